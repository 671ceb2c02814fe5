"""libnuma's header and library: the system's, else installed (root), else unpacked beside our cache (anyone).

Packages come through the distribution's own package manager, which checks their signatures. Only linking is provided
for: the machine that runs the wheel needs its own libnuma.so.1.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sm120_wheels import files, process
from sm120_wheels.errors import NumaMissingError, Sm120Error

Origin = Literal["system", "installed", "unpacked"]


@dataclass(frozen=True, kw_only=True)
class Numa:
    """Where libnuma is for compiling and linking."""

    include_dir: Path
    library: Path
    origin: Origin
    packages: Mapping[str, str] = field(default_factory=dict)
    """File name → sha256 of the packages that were unpacked; empty otherwise."""

    def cmake_defines(self) -> dict[str, str]:
        """Cache variables under the names that projects' own FindNUMA modules use."""
        include, library = str(self.include_dir), str(self.library)
        return {
            "NUMA_INCLUDE_DIR": include,
            "NUMA_INCLUDE_DIRS": include,
            "NUMA_LIBRARY": library,
            "NUMA_LIBRARIES": library,
        }

    def record(self) -> dict[str, Any]:
        """What provenance keeps of it."""
        return {"origin": self.origin, "packages": dict(self.packages)}


@dataclass(frozen=True, kw_only=True)
class PackageManager:
    """How one package manager installs libnuma's development files, and fetches them without root."""

    program: str
    refresh: tuple[str, ...]
    """Run before a second try, where package lists may be missing (containers); empty if it does so itself."""
    install: tuple[str, ...]
    fetch: tuple[str, ...]
    """Puts package files into the current folder; empty where that needs root."""
    suffix: str

    @property
    def install_line(self) -> str:
        """The command for a person to type."""
        return " ".join(word for word in self.install if not word.startswith("--no-install"))


MANAGERS = (
    PackageManager(
        program="apt-get",
        refresh=("apt-get", "update"),
        install=("apt-get", "install", "-y", "--no-install-recommends", "libnuma-dev"),
        fetch=("apt-get", "download", "libnuma-dev", "libnuma1"),
        suffix=".deb",
    ),
    PackageManager(
        program="dnf",
        refresh=(),
        install=("dnf", "install", "-y", "numactl-devel"),
        fetch=("dnf", "download", "numactl-devel", "numactl-libs"),
        suffix=".rpm",
    ),
    PackageManager(
        program="zypper",
        refresh=(),
        install=("zypper", "--non-interactive", "install", "libnuma-devel"),
        fetch=(),
        suffix=".rpm",
    ),
    PackageManager(
        program="apk",
        refresh=(),
        install=("apk", "add", "numactl-dev"),
        fetch=("apk", "fetch", "numactl-dev", "numactl"),
        suffix=".apk",
    ),
)


def ensure_numa(*, cache_root: Path, offline: bool, allow_install: bool = True) -> Numa:
    """libnuma for compiling and linking, from the first place that has it; see the module's text.

    ``allow_install`` False never changes the system, even for root. Raises :class:`NumaMissingError` with each
    attempt's cause.
    """
    if found := find_numa(Path("/")):
        return Numa(include_dir=found[0], library=found[1], origin="system")
    manager = find_manager()
    prefix = cache_root / "numa" / _system_name()
    if found := find_numa(prefix):
        return _unpacked(prefix, found)
    if offline or manager is None:
        why = (
            "--offline forbids to install it" if offline else "no package manager that we know (apt, dnf, zypper, apk)"
        )
        raise _missing(why, manager)
    failures: list[str] = []
    if allow_install and os.geteuid() == 0:
        with files.locked(cache_root / "numa" / "install.lock", what="the installation of libnuma"):
            failures += _install(manager)
        if found := find_numa(Path("/")):
            return Numa(include_dir=found[0], library=found[1], origin="installed")
    with files.locked(prefix.parent / f"{prefix.name}.lock", what="the unpacking of libnuma"):
        if not prefix.is_dir():
            failures += _unpack(manager, prefix)
    if found := find_numa(prefix):
        return _unpacked(prefix, found)
    raise _missing("\n".join(failures) or f"{manager.program} brought no numa.h", manager)


def find_numa(root: Path) -> tuple[Path, Path] | None:
    """(folder of numa.h, libnuma.so) below a filesystem root, or None."""
    triple = f"{platform.machine()}-linux-gnu"
    includes = [root / "usr/include", root / "usr/local/include"]
    libraries = [root / folder for folder in (f"usr/lib/{triple}", "usr/lib64", "usr/lib", "usr/local/lib", "lib64")]
    include = next((path for path in includes if (path / "numa.h").is_file()), None)
    library = next((path / "libnuma.so" for path in libraries if (path / "libnuma.so").exists()), None)
    return (include, library) if include is not None and library is not None else None


def find_manager() -> PackageManager | None:
    """This machine's package manager, if it is one that we know."""
    return next((manager for manager in MANAGERS if shutil.which(manager.program)), None)


def _system_name() -> str:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    return f"{release.get('ID', 'linux')}-{release.get('VERSION_ID', 'rolling')}-{platform.machine()}"


def _install(manager: PackageManager) -> list[str]:
    """Install for the whole system; returns what failed, empty if it went well."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    first = process.run(manager.install, env=environment, check=False)
    if first.ok:
        return []
    if manager.refresh:
        process.run(manager.refresh, env=environment, check=False)
        second = process.run(manager.install, env=environment, check=False)
        if second.ok:
            return []
        first = second
    return [f"{manager.install_line}: {_last_line(first.output)}"]


def _unpack(manager: PackageManager, prefix: Path) -> list[str]:
    """Fetch the packages without root and unpack them to ``prefix``; returns what failed."""
    if not manager.fetch:
        return [f"{manager.program} fetches packages for root only"]
    with files.atomic_path(prefix) as aside:
        holder = aside.parent
        finished = process.run(manager.fetch, cwd=holder, check=False)
        if not finished.ok and manager.program == "apt-get":
            # Containers often come without package lists; private ones need no root.
            private = private_apt(holder)
            process.run(["apt-get", *private, "update"], cwd=holder, check=False)
            finished = process.run(["apt-get", *private, *manager.fetch[1:]], cwd=holder, check=False)
        packages = sorted(holder.glob(f"*{manager.suffix}"))
        if not finished.ok or not packages:
            return [f"{' '.join(manager.fetch)}: {_last_line(finished.output)}"]
        aside.mkdir()
        try:
            for package in packages:
                unpack_package(package, aside)
        except Sm120Error as exc:
            shutil.rmtree(aside)
            return [f"unpacking: {exc.what}"]
        sums = {package.name: files.sha256_file(package) for package in packages}
        files.write_json(aside / "packages.json", sums)
    return []


def private_apt(folder: Path) -> list[str]:
    """Options that make apt keep its lists and cache in ``folder``, so that it works without root."""
    for name in ("state/lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    state = [f"Dir::State={folder / 'state'}", f"Dir::Cache={folder / 'cache'}"]
    return [word for option in [*state, "Dir::State::status=/var/lib/dpkg/status"] for word in ("-o", option)]


def unpack_package(package: Path, target: Path) -> None:
    """Unpack a .deb, .rpm or .apk into a folder with the system's own tools."""
    if package.suffix == ".deb":
        process.run(["dpkg-deb", "-x", package, target])
    elif package.suffix == ".rpm":
        _rpm_to_cpio(package, target)
    else:
        process.run(["tar", "-xzf", package, "-C", target])


def _rpm_to_cpio(package: Path, target: Path) -> None:
    for program in ("rpm2cpio", "cpio"):
        if shutil.which(program) is None:
            raise NumaMissingError(f"{package.name} needs {program}, which is not installed")
    archive = target.parent / f"{package.name}.cpio"
    with archive.open("wb") as stream:  # binary output: process.run keeps text only
        status = subprocess.run(["rpm2cpio", str(package)], stdout=stream, check=False).returncode
    if status != 0:
        raise NumaMissingError(f"rpm2cpio could not read {package.name}")
    process.run(["cpio", "-idm", "--quiet", "-F", archive], cwd=target)


def _unpacked(prefix: Path, found: tuple[Path, Path]) -> Numa:
    sums: dict[str, str] = json.loads((prefix / "packages.json").read_text(encoding="utf-8"))
    return Numa(include_dir=found[0], library=found[1], origin="unpacked", packages=sums)


def _last_line(output: str) -> str:
    lines: Sequence[str] = [line for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("E:", "Error", "ERROR"))]
    return (errors or list(lines) or ["it said nothing"])[-1]


def _missing(why: str, manager: PackageManager | None) -> NumaMissingError:
    line = manager.install_line if manager else "apt-get install -y libnuma-dev (or dnf install -y numactl-devel)"
    return NumaMissingError(
        "libnuma's header and library are missing",
        why=why,
        hint=f"{line}\nwithout root: run without --offline, they are then unpacked for the build only",
    )
