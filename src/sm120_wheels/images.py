"""Building the images in docker/: refuses whatever is not pinned, then hands over to podman or docker.

Reads only as much of a Dockerfile as our own use: ARG, FROM, RUN with line continuations.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sm120_wheels import paths
from sm120_wheels.errors import SettingError, ToolMissingError, near_misses

_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
_VARIABLE = re.compile(r"\$\{?(\w+)(?::\?[^}]*)?\}?")
#: What a package of dnf's must end with: a version, or an argument that holds one.
_VERSIONED = re.compile(r"-(\d[\w.]*-\d[\w.]*|\$\{?\w*VERSION\b.*)$")


@dataclass(frozen=True, kw_only=True)
class Instruction:
    line: int
    name: str
    text: str


def read(text: str) -> list[Instruction]:
    """The instructions of a Dockerfile; comments are dropped, continued lines joined."""
    found: list[Instruction] = []
    pending: list[str] = []
    start = 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if line.startswith("#") or (not line and not pending):
            continue
        start = start if pending else number
        pending.append(line.removesuffix("\\").strip())
        if not line.endswith("\\"):
            name, _, rest = " ".join(pending).partition(" ")
            found.append(Instruction(line=start, name=name.upper(), text=rest.strip()))
            pending = []
    return found


def unpinned(text: str, given: Mapping[str, str]) -> list[str]:
    """What in a Dockerfile could change from one day to the next, with these build arguments; a sentence for each."""
    values: dict[str, str] = {}
    stages: set[str] = set()
    problems: list[str] = []
    for one in read(text):
        if one.name == "ARG":
            name, has_default, default = one.text.partition("=")
            values[name] = given.get(name, default)
            if not has_default and name not in given:
                problems.append(f"line {one.line}: the build argument {name} has to be given")
        elif one.name == "FROM":
            problems += _from(one, values, stages)
        elif one.name == "RUN":
            problems += [f"line {one.line}: {problem}" for problem in _run(one.text, values, given)]
    return problems


def _from(one: Instruction, values: Mapping[str, str], stages: set[str]) -> list[str]:
    image, *rest = one.text.split()
    named = _VARIABLE.sub(lambda found: values.get(found[1], ""), image)
    if len(rest) == 2 and rest[0].upper() == "AS":
        stages.add(rest[1])
    if named in stages or not named or _DIGEST.search(named) or named.startswith("localhost/"):
        return []  # an empty one was told as an argument that has to be given; localhost/ is no registry
    return [f"line {one.line}: the base {named} has no digest (@sha256:…)"]


def _run(text: str, values: Mapping[str, str], given: Mapping[str, str]) -> list[str]:
    problems = []
    if re.search(r"\b(curl|wget)\s+-", text) and "sha256sum --check" not in text:
        problems.append("a download without sha256sum --check")
    for command in re.split(r"&&|;", text):
        if re.search(r"\bpip install\b", command) and not re.search(r"--require-hashes|--no-deps", command):
            problems.append("pip install without --require-hashes")
        if match := re.search(r"\bdnf\b.* install (.*)", command):
            packages = [
                word.strip("\"'") for word in re.findall(r"\"[^\"]*\"|\S+", match[1]) if not word.startswith("-")
            ]
            problems += [f"dnf installs {p} in no certain version" for p in packages if not _VERSIONED.search(p)]
        if re.search(r"\bapt-get\b.* install\b", command) and not _dated(values, given):
            problems.append("apt-get installs from no snapshot (ARG DEBIAN_MIRROR)")
    return problems


def _dated(values: Mapping[str, str], given: Mapping[str, str]) -> bool:
    """Whether Debian's mirrors are those of a day. Whoever names another one says by that what is in it."""
    mirrors = [name for name in values if name.endswith("_MIRROR")]
    return bool(mirrors) and all(m in given or "snapshot.debian.org/archive" in values[m] for m in mirrors)


def names() -> list[str]:
    return sorted(path.name.removesuffix(".Dockerfile") for path in _folder().glob("*.Dockerfile"))


def command(
    name: str, *, tag: str, given: Mapping[str, str], target: str | None, engine: str | None, more: Sequence[str] = ()
) -> list[str]:
    """The engine's command line for an image.

    Raises :class:`SettingError` for an unknown image or one that is not pinned, :class:`ToolMissingError` without an
    engine.
    """
    file = _folder() / f"{name}.Dockerfile"
    if not file.is_file():
        raise SettingError(f"no image is called {name!r}", where=str(_folder()), hint=near_misses(name, names()))
    if problems := unpinned(file.read_text(encoding="utf-8"), given):
        raise SettingError(
            f"the image {name} is not pinned",
            where=str(file),
            why="\n".join(problems),
            hint="name bases by digest: --build-arg BASE=image@sha256:…; the file's first lines say what to give",
        )
    program = engine or next((found for found in ("podman", "docker") if shutil.which(found)), None)
    if program is None or shutil.which(program) is None:
        raise ToolMissingError(
            f"there is no {program or 'podman or docker'}", hint="apt-get install podman, or name one with --engine"
        )
    argv = [program, "build", "--file", str(file), "--tag", tag]
    argv += ["--format", "docker"] if Path(program).name == "podman" else []
    argv += ["--target", target] if target else []
    argv += [part for key, value in given.items() for part in ("--build-arg", f"{key}={value}")]
    return [*argv, *more, str(paths.data_root())]


def _folder() -> Path:
    return paths.data_root() / "docker"
