"""ccache in front of a build's compilers: its settings for one build, and the three programs that make it fit for nvcc.

    build tool → stable-compile.sh → sm120-cc-front → ccache ─ hit
                                                       └ miss → launcher → sm120-cc-run → nvcc

A hit asks for no memory: only ccache's prefix command, the launcher, does. ccache's own configuration files are not
read, so that two machines do the same; the folder and its size can be set.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sm120_wheels import paths
from sm120_wheels.compile.cache import front
from sm120_wheels.compile.cache.identity import header_names_digest, toolchain_digest
from sm120_wheels.compile.launcher import launcher_folder
from sm120_wheels.errors import Sm120Error
from sm120_wheels.files import atomic_path
from sm120_wheels.process import run

#: The first with this name of remote storage and with what else is used here.
LEAST_VERSION = (4, 7)
#: Raised when what is cached under one key would differ.
_FORMAT = 1
_LINKS = ".sm120-roots"
_FRONT, _CPP, _RUN = "sm120-cc-front", "sm120-cc-cpp", "sm120-cc-run"
_DEFAULT_SIZE = "20G"


@dataclass(frozen=True, kw_only=True)
class Ccache:
    program: Path
    version: str
    unix_sockets: bool
    """Whether it can reach a shared store through the gateway's socket."""


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where a build's things lie. ``roots``: folder → the name that stands for it on every machine."""

    build_root: Path
    roots: Mapping[Path, str]
    header_folders: Sequence[Path]
    """Folders in which headers may come and go with patches and versions."""
    cuda_root: Path | None
    host_compiler: Path


def find(environ: Mapping[str, str] | None = None) -> Ccache | str:
    """The installed ccache, or why there is none to be used."""
    program = shutil.which("ccache", path=(environ or os.environ).get("PATH"))
    if program is None:
        return "ccache is not installed"
    try:
        said = run([program, "--version"]).output
    except Sm120Error as exc:
        return f"{program} does not run: {exc.what}"
    match = re.search(r"ccache version (\d+)\.(\d+)(\S*)", said)
    if match is None:
        return f"{program} does not say its version"
    version = f"{match.group(1)}.{match.group(2)}{match.group(3)}"
    if (int(match.group(1)), int(match.group(2))) < LEAST_VERSION:
        return f"ccache {version} is older than {LEAST_VERSION[0]}.{LEAST_VERSION[1]}"
    return Ccache(program=Path(program).resolve(), version=version, unix_sockets="redis+unix" in said)


def object_folder(environ: Mapping[str, str]) -> Path:
    """Where objects are kept: ``CCACHE_DIR``, or in our cache."""
    return Path(environ.get("CCACHE_DIR") or paths.cache_root() / "ccache" / "objects").absolute()


def environment(
    ccache: Ccache,
    places: Places,
    *,
    launcher: str,
    statistics: Path,
    socket: Path | None,
    turns: Sequence[Path],
    environ: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """What a build's environment must hold. ``statistics``: where ccache counts; ``socket``: of the gateway;
    ``turns``: files that preprocessors take turns with, one for each that may run at a time."""
    folder = make_programs()
    links = make_links(places)
    digest = toolchain_digest(
        places.cuda_root, places.host_compiler, memo=paths.cache_root() / "ccache" / "toolchains.json"
    )
    settings = {
        "DIR": str(object_folder(environ)),
        "MAXSIZE": environ.get("CCACHE_MAXSIZE") or _DEFAULT_SIZE,
        "CONFIGPATH": os.devnull,
        "STATSLOG": str(statistics),
        "PREFIX": f"{launcher} {folder / _RUN}",
        "PREFIX_CPP": str(folder / _CPP),
        "COMPILERCHECK": f"string:{digest}",
        "NAMESPACE": f"sm120-{_FORMAT}",
        "NOHASHDIR": "1",
        # Sources are written before the first compile and not while one runs; a patched file is always new.
        "SLOPPINESS": "include_file_ctime,include_file_mtime",
        **({"REMOTE_STORAGE": f"redis+unix:{socket}"} if socket else {}),
    }
    return {
        **{f"CCACHE_{name}": value for name, value in settings.items()},
        "SM120_CACHE_CCACHE": str(ccache.program),
        "SM120_CACHE_LAUNCHER": launcher,
        "SM120_CACHE_LINKS": str(links),
        "SM120_CACHE_NAMES": header_names_digest(places.header_folders),
        "SM120_CACHE_ROOTS": "\n".join(f"{folder}\t{name}" for folder, name in _named(places).items()),
        "SM120_CACHE_TURNS": "\n".join(map(str, turns)),
    }


def front_program() -> Path:
    """What the build tool starts in place of the launcher; its path changes only with its content."""
    return make_programs() / _FRONT


def make_programs(*, python: str = sys.executable) -> Path:
    """The folder with the three programs, made now if it is not in the cache."""
    text = f"#!{python} -IS\n{Path(front.__file__).read_text(encoding='utf-8')}"
    folder = launcher_folder() / f"cc-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    for name in (_FRONT, _CPP, _RUN):
        if not (folder / name).is_file():
            with atomic_path(folder / name) as temporary:
                temporary.write_text(text, encoding="utf-8")
                temporary.chmod(0o755)
    return folder


def _named(places: Places) -> dict[Path, str]:
    return {places.build_root: "build", **places.roots}


def make_links(places: Places) -> Path:
    links = places.build_root / _LINKS
    links.mkdir(parents=True, exist_ok=True)
    for folder, name in _named(places).items():
        link = links / name
        if link.is_symlink() and link.readlink() == folder:
            continue
        link.unlink(missing_ok=True)
        link.symlink_to(folder)
    return links
