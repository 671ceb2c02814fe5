"""How much memory and how many cores compiles may use here, now: cgroup limits, free memory, the user's cap.

It reads /proc and the cgroup file systems (v1 and v2) below a root that tests can replace. It keeps no state and
decides nothing about compiles.

Sources of the formats: kernel documentation admin-guide/cgroup-v1/memory.rst, admin-guide/cgroup-v2.rst, proc(5).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20
GIB = 1 << 30
#: Part of a cgroup's limit, and of the machine's memory, that is never given to compiles.
CGROUP_RESERVE = 0.10
HOST_RESERVE = 0.05
HOST_RESERVE_LEAST = 512 * MIB


@dataclass(frozen=True, kw_only=True)
class CgroupLevel:
    """One folder of a cgroup tree that limits memory. All in bytes; ``reclaimable`` is page cache inside ``usage``."""

    folder: Path
    limit: int
    usage: int
    reclaimable: int


@dataclass(frozen=True, kw_only=True)
class Budget:
    """``memory``: what all compiles together may hold now, in bytes. ``ceiling``: the same if no other program ran.
    ``free``: the same without the reserve."""

    memory: int
    ceiling: int
    free: int
    cores: int
    bound_by: str
    """In words, what sets ``memory``."""


def memory_info(root: Path = Path("/")) -> tuple[int, int]:
    """(MemTotal, MemAvailable) in bytes."""
    values = {}
    for line in (root / "proc/meminfo").read_text(encoding="ascii").splitlines():
        name, _, rest = line.partition(":")
        values[name] = int(rest.split()[0]) * 1024 if rest.split() else 0
    return values["MemTotal"], values.get("MemAvailable", values.get("MemFree", 0))


def memory_folders(pid: int | str = "self", root: Path = Path("/")) -> tuple[Path, ...]:
    """The folders of this process's memory cgroup up to the mount's top, innermost first; empty without one."""
    try:
        lines = (root / f"proc/{pid}/cgroup").read_text(encoding="utf-8").splitlines()
        mounts = (root / "proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ()
    member_of = {}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        member_of[controllers] = path
    folders: list[Path] = []
    for line in mounts:
        before, _, after = line.partition(" - ")
        fields, (kind, _, options) = before.split(), after.split(" ", 2)
        if kind == "cgroup2" and "" in member_of:
            folders += _upwards(root, fields[4], fields[3], member_of[""])
        elif kind == "cgroup" and "memory" in options.split(","):
            named = next((p for c, p in member_of.items() if "memory" in c.split(",")), None)
            if named is not None:
                folders += _upwards(root, fields[4], fields[3], named)
    return tuple(folders)


def _upwards(root: Path, mount: str, mounted: str, member: str) -> list[Path]:
    """Folders from the member's up to the mount point. A mount of a part of the tree (containers) is cut
    accordingly."""
    inside = member
    if mounted != "/":
        inside = member[len(mounted) :] if member.startswith(mounted) else "/"
    top = root / mount.lstrip("/")
    folder = top / inside.strip("/")
    if not folder.is_dir() or ".." in Path(inside).parts:
        return [top] if top.is_dir() else []
    found = [folder]
    while folder != top:
        folder = folder.parent
        found.append(folder)
    return found


def level(folder: Path) -> CgroupLevel | None:
    """The limit of one cgroup folder, or None where it has none."""
    limits = [n for n in map(_number, (folder / "memory.max", folder / "memory.high")) if n is not None]
    v1 = _number(folder / "memory.limit_in_bytes")
    limits += [v1] if v1 is not None else []
    usage = _number(folder / "memory.current")
    usage = _number(folder / "memory.usage_in_bytes") if usage is None else usage
    if not limits or usage is None or min(limits) >= 1 << 60:
        return None
    stat = _pairs(folder / "memory.stat")
    if "total_inactive_file" in stat:  # v1: the plain names leave out child groups
        cache = stat["total_inactive_file"] + stat.get("total_active_file", 0)
    else:
        cache = stat.get("inactive_file", 0) + stat.get("active_file", 0) + stat.get("slab_reclaimable", 0)
    return CgroupLevel(folder=folder, limit=min(limits), usage=usage, reclaimable=cache)


def oom_kills(root: Path = Path("/")) -> int:
    """How many processes the kernel's out-of-memory killer has ended since boot (0 where the kernel does not say)."""
    return _pairs(root / "proc/vmstat").get("oom_kill", 0)


def available_cores(root: Path = Path("/")) -> int:
    """Cores that this process may use: its affinity, and the CPU quota of its cgroups, at least 1."""
    cores = float(len(os.sched_getaffinity(0)))
    for folder in _cpu_folders(root):
        try:
            words = (folder / "cpu.max").read_text(encoding="ascii").split()
        except OSError:
            quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
            words = [str(quota), str(period)] if quota and period and quota > 0 else ["max"]
        if words and words[0] != "max":
            cores = min(cores, int(words[0]) / int(words[1]))
    return max(1, int(cores))


def _cpu_folders(root: Path) -> list[Path]:
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        names = controllers.split(",")
        if controllers and "cpu" not in names:
            continue
        top = root / "sys/fs/cgroup" / (controllers if controllers else "")
        folder = top / path.strip("/")
        while folder != top.parent and folder.is_relative_to(top):
            folders.append(folder)
            folder = folder.parent
    return [f for f in folders if f.is_dir()]


def measure(
    *,
    cap: int | None = None,
    cores: int | None = None,
    own_usage: int = 0,
    own_usage_in: Mapping[Path, int] | None = None,
    folders: Sequence[Path] | None = None,
    root: Path = Path("/"),
) -> Budget:
    """The tightest of ``cap``, free memory and the limits of ``folders`` (default: this process's cgroups).

    ``own_usage`` is what running compiles use now, in bytes, and ``own_usage_in`` the same for each cgroup folder:
    it is theirs already, so it does not count against them. The reserve is taken from free memory and from cgroup
    limits, not from ``cap``, which is the user's word.
    """
    total, available = memory_info(root)
    reserve = max(HOST_RESERVE_LEAST, int(total * HOST_RESERVE))
    choices = [(available + own_usage - reserve, total - reserve, reserve, "free memory")]
    if cap is not None:
        choices.append((cap, cap, 0, "the limit asked for"))
    for folder in memory_folders(root=root) if folders is None else folders:
        found = level(folder)
        if found is None or found.limit >= total:
            continue
        keep = int(found.limit * CGROUP_RESERVE)
        own = own_usage if own_usage_in is None else own_usage_in.get(folder, 0)
        others = max(0, found.usage - found.reclaimable - own)
        choices.append((found.limit - others - keep, found.limit - keep, keep, f"cgroup {folder}"))
    memory, _, _, bound_by = min(choices, key=lambda c: c[0])
    here = available_cores(root)
    return Budget(
        memory=max(0, memory),
        ceiling=max(0, min(c[1] for c in choices)),
        free=max(0, min(c[0] + c[2] for c in choices)),
        cores=here if cores is None else max(1, cores),
        bound_by=bound_by,
    )


def _number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.lstrip("-").isdigit() else None


def _pairs(path: Path) -> dict[str, int]:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    return {w[0]: int(w[1]) for w in map(str.split, lines) if len(w) == 2 and w[1].isdigit()}
