"""What a consumer gets from an index: a new environment, the package installed there by uv as anyone would.

Nothing is locked here: the index and its dependencies are what is tested. A consumer who has an environment with torch
already gets the package alone, in a new environment that sees the old one; what the package requires must be there.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from pypi_simple import NoSuchProjectError, PyPISimple, UnsupportedContentTypeError

from sm120_wheels import process
from sm120_wheels.errors import CommandError, DownloadError, HostUnreachableError, SettingError, ToolMissingError
from sm120_wheels.prove.smoke.overlay import holding
from sm120_wheels.prove.smoke.surroundings import lacking
from sm120_wheels.toolchain import uv
from sm120_wheels.toolchain.given import look_at
from sm120_wheels.toolchain.interpreters import find_interpreter

_TIMEOUT_S = 30
#: Where the packages of an interpreter lie.
_SITES = "import json, site, sysconfig; print(json.dumps([sysconfig.get_path('purelib'), *site.getsitepackages()]))"
#: What the installed distribution says of the file it came from.
_ASK = """
import importlib.metadata as m, json, sys
found = m.distribution(sys.argv[1])
wheel = found.read_text("WHEEL") or ""
tags = [line.partition(":")[2].strip() for line in wheel.splitlines() if line.startswith("Tag:")]
print(json.dumps({"name": found.metadata["Name"], "version": found.version, "tags": tags,
                  "requires": found.requires or []}))
"""


@dataclass(frozen=True, kw_only=True)
class Offered:
    """One wheel that the index offers."""

    filename: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Consumer:
    """An environment with the package installed."""

    python: Path
    name: str
    wheel: Offered | None
    """The file it was installed from; None where the index offers none that fits what is installed."""


def name_of(requirement: str) -> str:
    """The project that ``NAME`` or ``NAME==VERSION`` names. Raises :class:`SettingError`."""
    try:
        return str(canonicalize_name(Requirement(requirement).name))
    except InvalidRequirement as exc:
        raise SettingError(
            f"--from-index: {requirement!r} names no package", why=str(exc), hint="write NAME or NAME==VERSION"
        ) from exc


def offered_by(index: str, name: str) -> list[Offered]:
    """The wheels that an index offers of a project. Raises HostUnreachableError, DownloadError or SettingError."""
    try:
        with PyPISimple(endpoint=index) as client:
            page = client.get_project_page(name, timeout=_TIMEOUT_S)
    except NoSuchProjectError as exc:
        raise SettingError(f"the index has no {name}", where=index, hint="check the name and the address") from exc
    except requests.ConnectionError as exc:
        raise HostUnreachableError("the index cannot be reached", where=index, why=str(exc)) from exc
    except (requests.RequestException, ValueError, UnsupportedContentTypeError) as exc:
        raise DownloadError("the index did not answer with a page of files", where=index, why=str(exc)) from exc
    return [
        Offered(filename=file.filename, sha256=file.digests.get("sha256", ""))
        for file in page.packages
        if file.filename.endswith(".whl")
    ]


def install(
    index: str,
    requirement: str,
    *,
    python: str,
    folder: Path,
    cache_root: Path,
    over: Path | None = None,
    on_line: Callable[[str], None] | None = None,
) -> Consumer:
    """Make an environment in ``folder`` and install there; everything that ``index`` lacks comes from the usual index.

    ``over`` is the interpreter of an environment that the new one sees: only the package itself is installed then, and
    only ``index`` is asked. Raises :class:`CommandError` with what uv says where it cannot be installed, and
    :class:`ToolMissingError` where ``over`` lacks what it requires.
    """
    name = name_of(requirement)
    offered = offered_by(index, name)
    interpreter = find_interpreter(python if over is None else over)
    environment = uv.uv_environment(os.environ, cache_root=cache_root)
    root = folder / "consumer"
    process.run(
        [uv.uv_binary(), "venv", "--no-project", "--python", interpreter.executable, root],
        cwd=folder,
        env=environment,
    )
    inside = root / "bin" / "python"
    argv: list[str | Path] = [
        uv.uv_binary(),
        "pip",
        "install",
        "--python",
        inside,
        *(("--index", index) if over is None else ("--default-index", index, "--no-deps")),
        "--no-build",
        requirement,
    ]
    done = process.run(argv, cwd=folder, env=environment, on_line=on_line, check=False)
    if not done.ok:
        raise CommandError(
            f"{requirement} cannot be installed from the index",
            where=index,
            why="\n".join(uv.unwrapped(done.output).splitlines()[:6]),
            hint="a consumer would see the same; `sm120 which` says for each wheel why it does not fit",
        )
    if over is not None:
        _see(inside, over)
    told = json.loads(_asked(inside, _ASK, name))
    if over is not None:
        _check_requirements(inside, over, told)
    return Consumer(python=inside, name=name, wheel=came_from(offered, told["version"], told["tags"]))


def _see(inside: Path, over: Path) -> None:
    """Let the new environment import what the other one has, behind its own packages."""
    places = [json.loads(_asked(python, _SITES)) for python in (inside, over)]
    lines = [f"import site; site.addsitedir({place!r})" for place in dict.fromkeys(places[1])]
    (Path(places[0][0]) / "sm120-over.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _asked(python: Path, code: str, *arguments: str) -> str:
    return process.run([python.absolute(), "-I", "-c", code, *arguments]).output.strip().splitlines()[-1]


def _check_requirements(inside: Path, over: Path, told: Mapping[str, Any]) -> None:
    """uv was told not to look at them."""
    found = look_at(inside, isolated=True)
    lacks = lacking(holding(told["requires"], found.python), found.packages)
    if lacks:
        raise ToolMissingError(
            f"the environment lacks what {told['name']} {told['version']} requires",
            where=str(over),
            why="\n".join(lacks),
            hint="install it there, or leave out --environment: everything then comes from the indexes",
        )


def came_from(offered: Sequence[Offered], version: str, tags: Sequence[str]) -> Offered | None:
    """The file that an installed version with these tags (``cp310-abi3-linux_x86_64``) was installed from."""
    wanted = set(tags)
    for wheel in offered:
        _, found, _, found_tags = parse_wheel_filename(wheel.filename)
        if re.sub(r"[-_]", ".", str(found)) == re.sub(r"[-_]", ".", version) and wanted & set(map(str, found_tags)):
            return wheel
    return None
