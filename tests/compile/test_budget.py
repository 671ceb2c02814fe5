"""Budgets read from made-up /proc and cgroup trees, whose formats are the kernel's."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm120_wheels.compile.budget import GIB, MIB, available_cores, level, measure, memory_folders, memory_info


def machine(
    root: Path, *, total: int = 64 * GIB, available: int = 60 * GIB, cgroup: str = "", mounts: str = ""
) -> Path:
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/meminfo").write_text(f"MemTotal: {total // 1024} kB\nMemAvailable: {available // 1024} kB\n")
    (root / "proc/self/cgroup").write_text(cgroup)
    (root / "proc/self/mountinfo").write_text(mounts)
    return root


V2_MOUNT = "31 23 0:28 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n"
V1_MOUNT = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"


def v2(folder: Path, limit: str, *, usage: int = 0, file: int = 0, high: str = "max") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(limit + "\n")
    (folder / "memory.high").write_text(high + "\n")
    (folder / "memory.current").write_text(f"{usage}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {file}\nactive_file 0\nslab_reclaimable 0\n")


def v1(folder: Path, limit: int, *, usage: int = 0, file: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{usage}\n")
    (folder / "memory.stat").write_text(f"inactive_file 0\ntotal_inactive_file {file}\ntotal_active_file 0\n")


def test_without_limits_it_is_free_memory_less_a_reserve(tmp_path: Path) -> None:
    budget = measure(root=machine(tmp_path), cores=8)
    assert budget.memory == 60 * GIB - int(64 * GIB * 0.05)
    assert budget.ceiling == 64 * GIB - int(64 * GIB * 0.05)
    assert budget.bound_by == "free memory"


def test_what_our_compiles_use_counts_as_free(tmp_path: Path) -> None:
    root = machine(tmp_path, available=20 * GIB)
    assert measure(root=root, own_usage=30 * GIB).memory - measure(root=root).memory == 30 * GIB


def test_the_users_limit_has_no_reserve_and_binds_when_it_is_the_tightest(tmp_path: Path) -> None:
    budget = measure(root=machine(tmp_path), cap=20 * GIB)
    assert (budget.memory, budget.ceiling, budget.bound_by) == (20 * GIB, 20 * GIB, "the limit asked for")
    assert measure(root=machine(tmp_path), cap=1000 * GIB).bound_by == "free memory"


def test_the_tightest_cgroup_up_the_tree_binds(tmp_path: Path) -> None:
    root = machine(tmp_path, cgroup="0::/a/b/c\n", mounts=V2_MOUNT)
    top = root / "sys/fs/cgroup"
    v2(top / "a/b/c", "max")
    v2(top / "a/b", str(40 * GIB), usage=5 * GIB, file=2 * GIB)
    v2(top / "a", str(24 * GIB), usage=6 * GIB, file=2 * GIB)
    budget = measure(root=root)
    assert budget.bound_by == f"cgroup {top / 'a'}"
    assert budget.memory == 24 * GIB - int(2.4 * GIB) - 4 * GIB
    assert budget.ceiling == 24 * GIB - int(2.4 * GIB)


def test_own_usage_inside_a_cgroup_does_not_count_against_it(tmp_path: Path) -> None:
    root = machine(tmp_path, cgroup="0::/a\n", mounts=V2_MOUNT)
    folder = root / "sys/fs/cgroup/a"
    v2(folder, str(20 * GIB), usage=12 * GIB)
    others_only = measure(root=root, own_usage=10 * GIB, own_usage_in={folder: 10 * GIB})
    assert others_only.memory == 18 * GIB - 2 * GIB
    assert measure(root=root, own_usage=10 * GIB, own_usage_in={}).memory == 18 * GIB - 12 * GIB


def test_memory_high_binds_as_memory_max_does(tmp_path: Path) -> None:
    v2(tmp_path / "g", str(40 * GIB), high=str(10 * GIB))
    found = level(tmp_path / "g")
    assert found is not None
    assert found.limit == 10 * GIB


def test_version_1_groups_are_read_with_their_children(tmp_path: Path) -> None:
    root = machine(tmp_path, cgroup="4:memory:/box\n0::/\n", mounts=V1_MOUNT)
    folder = root / "sys/fs/cgroup/memory/box"
    v1(folder, 10 * GIB, usage=3 * GIB, file=1 * GIB)
    v1(root / "sys/fs/cgroup/memory", (1 << 63) - 4096)
    assert memory_folders(root=root) == (folder, folder.parent)
    assert measure(root=root).memory == 9 * GIB - 2 * GIB


def test_a_container_that_sees_part_of_the_tree_finds_its_own_limit(tmp_path: Path) -> None:
    mount = "31 23 0:28 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n"
    root = machine(tmp_path, cgroup="0::/docker/abc/inner\n", mounts=mount)
    v2(root / "sys/fs/cgroup/inner", str(8 * GIB))
    assert measure(root=root).bound_by == f"cgroup {root / 'sys/fs/cgroup/inner'}"


def test_a_member_outside_the_mount_falls_back_to_the_mount_point(tmp_path: Path) -> None:
    root = machine(tmp_path, cgroup="0::/../../elsewhere\n", mounts=V2_MOUNT)
    v2(root / "sys/fs/cgroup", str(8 * GIB))
    assert measure(root=root).memory == 8 * GIB - int(0.8 * GIB)


def test_a_limit_above_the_machines_memory_is_none(tmp_path: Path) -> None:
    root = machine(tmp_path, cgroup="0::/a\n", mounts=V2_MOUNT)
    v2(root / "sys/fs/cgroup/a", str(100 * GIB), usage=99 * GIB)
    assert measure(root=root).bound_by == "free memory"


def test_the_budget_is_never_negative(tmp_path: Path) -> None:
    assert measure(root=machine(tmp_path, available=10 * MIB)).memory == 0


@pytest.mark.parametrize(("quota", "expected"), [("150000 100000", 1), ("max 100000", None)])
def test_a_cpu_quota_is_rounded_down_to_cores(tmp_path: Path, quota: str, expected: int | None) -> None:
    root = machine(tmp_path, cgroup="0::/a\n")
    (root / "sys/fs/cgroup/a").mkdir(parents=True)
    (root / "sys/fs/cgroup/a/cpu.max").write_text(quota)
    assert available_cores(root) == (expected if expected is not None else available_cores(tmp_path / "nothing"))


def test_this_machine_can_be_measured() -> None:
    total, available = memory_info()
    assert 0 < available <= total
    budget = measure()
    assert 0 <= budget.memory <= budget.ceiling <= total
    assert budget.cores >= 1
