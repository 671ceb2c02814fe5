"""libnuma: found, unpacked without root by the real package manager, or an error with the command that mends it."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from sm120_wheels.errors import NumaMissingError
from sm120_wheels.files import sha256_file
from sm120_wheels.toolchain import numa
from sm120_wheels.toolchain.numa import MANAGERS, ensure_numa, find_numa

#: Taken before any test replaces it.
REAL_FIND = find_numa
needs_apt = pytest.mark.skipif(shutil.which("apt-get") is None, reason="no apt-get here")


@pytest.fixture
def no_system_numa(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look as on a machine whose system has no libnuma-dev."""
    monkeypatch.setattr(numa, "find_numa", lambda root: None if root == Path("/") else REAL_FIND(root))


def place(root: Path, library_folder: str) -> None:
    (root / "usr/include").mkdir(parents=True)
    (root / "usr/include/numa.h").touch()
    (root / library_folder).mkdir(parents=True)
    (root / library_folder / "libnuma.so").touch()


@pytest.mark.parametrize("folder", [f"usr/lib/{platform.machine()}-linux-gnu", "usr/lib64", "usr/lib"])
def test_it_is_found_where_each_distribution_puts_it(tmp_path: Path, folder: str) -> None:
    place(tmp_path, folder)
    assert find_numa(tmp_path) == (tmp_path / "usr/include", tmp_path / folder / "libnuma.so")


def test_a_runtime_library_without_the_header_is_not_enough(tmp_path: Path) -> None:
    place(tmp_path, "usr/lib64")
    (tmp_path / "usr/include/numa.h").unlink()
    assert find_numa(tmp_path) is None


@needs_apt
@pytest.mark.network
def test_without_root_it_is_unpacked_once_recorded_and_links(
    no_system_numa: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = ensure_numa(cache_root=tmp_path, offline=False, allow_install=False)
    assert found.origin == "unpacked"
    assert found.include_dir.is_relative_to(tmp_path)
    assert any(name.startswith("libnuma-dev") for name in found.packages)
    assert all(len(digest) == 64 for digest in found.packages.values())
    assert set(found.cmake_defines()) == {
        "NUMA_INCLUDE_DIR",
        "NUMA_INCLUDE_DIRS",
        "NUMA_LIBRARY",
        "NUMA_LIBRARIES",
    }
    source = tmp_path / "n.c"
    source.write_text("#include <numa.h>\nint main(void) { return numa_available() < -1; }\n")
    gcc: list[str | Path] = ["gcc", f"-I{found.include_dir}", source, found.library, "-o", tmp_path / "n"]
    subprocess.run(gcc, check=True)
    needed = subprocess.run(["readelf", "-d", tmp_path / "n"], capture_output=True, text=True, check=True).stdout
    assert "[libnuma.so.1]" in needed
    again = ensure_numa(cache_root=tmp_path, offline=True)
    assert again == found


@needs_apt
@pytest.mark.network
def test_apt_without_package_lists_fetches_its_own(
    no_system_numa: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lists" / "partial").mkdir(parents=True)
    config = tmp_path / "apt.conf"
    config.write_text(f'Dir::State::Lists "{tmp_path}/lists";\n')
    monkeypatch.setenv("APT_CONFIG", str(config))
    found = ensure_numa(cache_root=tmp_path / "cache", offline=False, allow_install=False)
    assert found.origin == "unpacked"


@pytest.mark.parametrize("manager", MANAGERS, ids=lambda m: m.program)
def test_offline_the_error_names_the_command_of_this_machines_package_manager(
    manager: numa.PackageManager, no_system_numa: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numa, "find_manager", lambda: manager)
    with pytest.raises(NumaMissingError, match="libnuma's header and library are missing") as caught:
        ensure_numa(cache_root=tmp_path, offline=True)
    assert "--offline" in caught.value.why
    assert caught.value.hint.startswith(manager.program)
    assert manager.install[-1] in caught.value.hint
    assert caught.value.exit_code == 43


def test_without_a_known_package_manager_both_families_commands_are_named(
    no_system_numa: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numa, "find_manager", lambda: None)
    with pytest.raises(NumaMissingError) as caught:
        ensure_numa(cache_root=tmp_path, offline=False)
    assert "libnuma-dev" in caught.value.hint
    assert "numactl-devel" in caught.value.hint


@needs_apt
def test_a_failed_fetch_says_what_the_package_manager_said_and_leaves_nothing(
    no_system_numa: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "sources.list").touch()
    config = tmp_path / "apt.conf"
    config.write_text(
        f'Dir::State::Lists "{tmp_path}/empty";\nDir::Etc::SourceList "{tmp_path}/sources.list";\n'
        f'Dir::Etc::SourceParts "{tmp_path}/empty";\n'
    )
    monkeypatch.setenv("APT_CONFIG", str(config))
    with pytest.raises(NumaMissingError) as caught:
        ensure_numa(cache_root=tmp_path / "cache", offline=False, allow_install=False)
    assert "apt-get download libnuma-dev libnuma1: E:" in caught.value.why
    assert not [path for path in (tmp_path / "cache" / "numa").iterdir() if path.suffix != ".lock"]


def test_without_rpm2cpio_the_error_says_so_and_leaves_nothing(
    no_system_numa: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    dnf = tools / "dnf"
    dnf.write_text("#!/bin/sh\n: >numactl-devel-2.0.19-1.fc42.x86_64.rpm\n")
    dnf.chmod(0o755)
    monkeypatch.setenv("PATH", str(tools))
    with pytest.raises(NumaMissingError) as caught:
        ensure_numa(cache_root=tmp_path / "cache", offline=False, allow_install=False)
    assert "numactl-devel-2.0.19-1.fc42.x86_64.rpm needs rpm2cpio, which is not installed" in caught.value.why
    assert caught.value.hint.startswith("dnf install -y numactl-devel")
    assert not [path for path in (tmp_path / "cache" / "numa").iterdir() if path.suffix != ".lock"]


@needs_apt
def test_a_package_is_unpacked_by_the_systems_own_tool(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "DEBIAN").mkdir(parents=True)
    (root / "DEBIAN/control").write_text(
        "Package: proof\nVersion: 1\nArchitecture: all\nMaintainer: t <t@example.org>\nDescription: proof\n"
    )
    place(root, "usr/lib64")
    subprocess.run(["dpkg-deb", "--build", root, tmp_path / "proof.deb"], check=True, capture_output=True)
    target = tmp_path / "target"
    target.mkdir()
    numa.unpack_package(tmp_path / "proof.deb", target)
    assert find_numa(target) is not None
    assert len(sha256_file(tmp_path / "proof.deb")) == 64
