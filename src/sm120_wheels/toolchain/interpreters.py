"""Finding a CPython of the asked version on this machine. Nothing is ever downloaded or installed for it."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sm120_wheels import process
from sm120_wheels.errors import SettingError, Sm120Error, ToolMissingError

_PROBE = """
import json, os, platform, sys, sysconfig
include = sysconfig.get_paths()["include"]
executable = sys.executable
if sys.prefix != sys.base_prefix:  # in a virtual environment; sys._base_executable is right from 3.11 on only
    named = os.path.join(sys.base_prefix, "bin", "python%d.%d" % sys.version_info[:2])
    executable = named if os.path.exists(named) else sys._base_executable
print(json.dumps({
    "executable": executable,
    "version": platform.python_version(),
    "implementation": sys.implementation.name,
    "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    "headers": os.path.isfile(os.path.join(include, "Python.h")),
    "platform": sysconfig.get_platform(),
}))
"""

#: Where version managers keep interpreters, below the home folder (their shims on PATH fail for a version that is
#: installed but not selected, so the real files are looked up).
_MANAGED = (
    ".pyenv/versions/*/bin/python3",
    ".local/share/uv/python/*/bin/python3",
    ".local/share/mise/installs/python/*/bin/python3",
    ".asdf/installs/python/*/bin/python3",
)


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """A Python that can make environments."""

    executable: Path
    """The base interpreter, never one inside a virtual environment."""
    version: str
    """The full version, ``3.12.1``."""
    has_headers: bool
    """Whether Python.h is there, which extension modules need."""
    platform: str
    """As sysconfig names it, ``linux-x86_64``."""

    @property
    def minor(self) -> str:
        """``3.12``."""
        return ".".join(self.version.split(".")[:2])


def probe(executable: Path) -> Interpreter | None:
    """Ask an executable what it is; None where it is no working CPython with a GIL (shims, PyPy, free-threaded)."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    try:
        finished = process.run([executable, "-I", "-c", _PROBE], env=environment, check=False)
    except Sm120Error:
        return None
    if not finished.ok:
        return None
    try:
        facts = json.loads(finished.output.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return None
    if facts["implementation"] != "cpython" or facts["free_threaded"]:
        return None
    return Interpreter(
        executable=Path(facts["executable"]),
        version=facts["version"],
        has_headers=facts["headers"],
        platform=facts["platform"],
    )


def candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    """Executables that may be Pythons, each real file once: ours, the version managers', then those on PATH."""
    home = Path(environ.get("HOME") or Path.home())
    patterns = [(home, pattern) for pattern in _MANAGED]
    for variable, pattern in (("PYENV_ROOT", "versions/*/bin/python3"), ("UV_PYTHON_INSTALL_DIR", "*/bin/python3")):
        if environ.get(variable):
            patterns.append((Path(environ[variable]), pattern))
    names = re.compile(r"python3(\.\d+)?$")
    seen: set[Path] = set()

    def paths() -> Iterator[Path]:
        yield Path(sys.executable)
        for root, pattern in patterns:
            yield from sorted(root.glob(pattern), reverse=True)
        for folder in environ.get("PATH", os.defpath).split(os.pathsep):
            if folder and Path(folder).name != "shims" and Path(folder).is_dir():
                yield from sorted((p for p in Path(folder).iterdir() if names.match(p.name)), reverse=True)

    for path in paths():
        real = path.resolve()
        if real not in seen and os.access(path, os.X_OK):
            seen.add(real)
            yield path


def all_interpreters(environ: Mapping[str, str] | None = None) -> list[Interpreter]:
    """Every CPython on this machine, newest first, one for each base executable."""
    found: dict[Path, Interpreter] = {}
    for path in candidates(os.environ if environ is None else environ):
        interpreter = probe(path)
        if interpreter is not None:
            found.setdefault(interpreter.executable.resolve(), interpreter)
    return sorted(found.values(), key=lambda i: tuple(int(n) for n in re.findall(r"\d+", i.version)), reverse=True)


def find_interpreter(
    wanted: str | Path, *, need_headers: bool = False, environ: Mapping[str, str] | None = None
) -> Interpreter:
    """The interpreter at a path, or one of a version (``3.12`` or ``3.12.1``).

    With ``need_headers`` one that has Python.h is preferred, and without any an error says how to get it. Raises
    :class:`ToolMissingError` naming the versions that are there, :class:`SettingError` for what is neither.
    """
    environ = os.environ if environ is None else environ
    text = str(wanted)
    if not re.fullmatch(r"3\.\d+(\.\d+)?", text):
        return _at_path(Path(text), need_headers=need_headers)
    others: list[Interpreter] = []
    without_headers: Interpreter | None = None
    for path in candidates(environ):
        if _named_otherwise(path, text):
            continue
        interpreter = probe(path)
        if interpreter is None:
            continue
        if text not in (interpreter.minor, interpreter.version):
            others.append(interpreter)
        elif need_headers and not interpreter.has_headers:
            without_headers = without_headers or interpreter
        else:
            return interpreter
    if without_headers is not None:
        raise _no_headers(without_headers)
    versions = sorted({i.version for i in others} | {i.version for i in all_interpreters(environ)})
    raise ToolMissingError(
        f"there is no Python {text} on this machine",
        why=f"found: {', '.join(versions) or 'none'}",
        hint=f"install it (`uv python install {text}`, pyenv, or your distribution's python{text} package), or choose"
        " another with --python",
    )


def _named_otherwise(path: Path, version: str) -> bool:
    """Whether the path itself says that it is another minor version, so that it need not be started."""
    minor = ".".join(version.split(".")[:2])
    named = re.fullmatch(r"python(3\.\d+)", path.name) or re.search(
        r"/(?:cpython-)?(3\.\d+)[^/]*/bin/[^/]*$", str(path)
    )
    return named is not None and named.group(1) != minor


def _at_path(path: Path, *, need_headers: bool) -> Interpreter:
    if not path.is_file():
        raise SettingError(
            f"{path} is neither a Python version (like 3.12) nor the path of a Python", hint="see --python"
        )
    interpreter = probe(path)
    if interpreter is None:
        raise ToolMissingError(f"{path} is not a working CPython", hint="choose another with --python")
    if need_headers and not interpreter.has_headers:
        raise _no_headers(interpreter)
    return interpreter


def _no_headers(interpreter: Interpreter) -> ToolMissingError:
    return ToolMissingError(
        f"Python {interpreter.version} has no headers (Python.h)",
        where=str(interpreter.executable),
        why="extension modules cannot be compiled without them",
        hint=f"install python{interpreter.minor}-dev (apt-get) or python{interpreter.minor}-devel (dnf)",
    )
