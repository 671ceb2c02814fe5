"""Makes the compiler launcher (launcher.c) with the host's C compiler, once, and says where it lies.

A build of CUDA needs a host compiler anyway. The launcher's own work is described in launcher.c.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

from sm120_wheels import paths
from sm120_wheels.compile.protocol import socket_path
from sm120_wheels.errors import HostCompilerError
from sm120_wheels.files import atomic_path, make_private_folder, sha256_file
from sm120_wheels.process import run

_SOURCE = Path(__file__).with_name("launcher.c")
_COMPILERS = ("cc", "gcc", "clang")


def launcher(*, python: str = sys.executable, socket: Path | None = None) -> Path:
    """The launcher's path, without spaces, made now if it is not in the cache.

    The socket and the Python that starts brokers are compiled in, so that a build tool which is run again by hand is
    scheduled too; the environment variables SM120_SOCKET and SM120_PYTHON override them. Raises
    :class:`HostCompilerError` where no C compiler is found or it fails.
    """
    meeting = socket_path() if socket is None else socket
    make_private_folder(meeting.parent)
    key = hashlib.sha256("\0".join((sha256_file(_SOURCE), python, str(meeting))).encode()).hexdigest()[:16]
    target = launcher_folder() / key / "sm120-launch"
    if not target.is_file():
        _build(target, python=python, socket=meeting)
    return target


def launcher_folder() -> Path:
    """In the cache; where that path has a space (build tools split launchers there), in a private temporary folder."""
    folder = paths.cache_root() / "launcher"
    if any(c.isspace() or c == ";" for c in str(folder)):
        digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]
        folder = Path(tempfile.gettempdir()) / f"sm120-launcher-{os.getuid()}-{digest}"
        make_private_folder(folder)
    return folder


def _build(target: Path, *, python: str, socket: Path) -> None:
    compiler = next((found for name in _COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        raise HostCompilerError(
            "no C compiler was found",
            why=f"looked for {', '.join(_COMPILERS)} on PATH",
            hint="install the C and C++ compilers (Debian: apt install g++; Fedora: dnf install gcc-c++)",
        )
    with atomic_path(target) as temporary:
        ran = run(
            [
                compiler,
                "-O2",
                f'-DSM120_SOCKET="{_quoted(str(socket))}"',
                f'-DSM120_PYTHON="{_quoted(python)}"',
                "-o",
                temporary,
                _SOURCE,
            ],
            check=False,
        )
        if not ran.ok:
            raise HostCompilerError(
                "the C compiler cannot build the compile launcher",
                where=compiler,
                why="\n".join(ran.output.strip().splitlines()[-8:]),
                hint="check that the C library's headers are installed (Debian: libc6-dev)",
            )


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
