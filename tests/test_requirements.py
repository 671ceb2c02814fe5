"""The locks of the sessions' own environments: do they hold what pyproject.toml asks for?"""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from sm120_wheels.toolchain.locks import read_lock
from tests.support.world import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def group(name: str) -> list[Requirement]:
    found: list[Requirement] = []
    for entry in PROJECT["dependency-groups"][name]:
        found += group(entry["include-group"]) if isinstance(entry, dict) else [Requirement(entry)]
    return found


def wanted(lock: str) -> list[Requirement]:
    """What pyproject.toml asks of the environments that are made from a lock."""
    extras = PROJECT["project"]["optional-dependencies"]
    named = ["serve"] if lock == "run" else list(extras)
    texts = [*PROJECT["project"]["dependencies"], *(text for name in named for text in extras[name])]
    groups = group("build") + (group("dev") if lock == "dev" else [])
    return [*map(Requirement, texts), *groups]


def pins(lock: str) -> dict[str, set[Version]]:
    """Name to versions, one for each marker. Reading refuses a line without pin or hash."""
    found: dict[str, set[Version]] = {}
    for entry in read_lock(ROOT / "requirements" / f"{lock}.txt"):
        (pin,) = entry.requirement.specifier
        found.setdefault(canonicalize_name(entry.name), set()).add(Version(pin.version))
    return found


@pytest.mark.parametrize("lock", ["run", "dev"])
def test_a_lock_pins_everything_that_the_project_asks_for_with_hashes(lock: str) -> None:
    pinned = pins(lock)
    for requirement in wanted(lock):
        versions = pinned.get(canonicalize_name(requirement.name), set())
        assert versions, f"{requirement.name} is not in requirements/{lock}.txt: nox -s lock"
        assert all(requirement.specifier.contains(v) for v in versions), f"{requirement}: nox -s lock"


def test_both_locks_pin_the_same_versions() -> None:
    run, dev = pins("run"), pins("dev")
    assert {name: versions for name, versions in run.items() if not versions <= dev.get(name, set())} == {}


@pytest.mark.network
@pytest.mark.parametrize("lock", ["run", "dev"])
def test_a_lock_is_what_the_session_lock_would_write(lock: str, tmp_path: Path) -> None:
    """Pins that still fit stay, so nothing changes by itself."""
    source = ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8"))
    made_with = next(
        n.value for n in source.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "LOCKED"
    )
    locked = ROOT / "requirements" / f"{lock}.txt"
    copy = Path(shutil.copy(locked, tmp_path / locked.name))
    argv = [sys.executable, "-m", "uv", "pip", "compile", "-q", "--universal", "--generate-hashes", "--no-header"]
    argv += [
        "--no-annotate",
        "--python-version=3.10",
        *ast.literal_eval(made_with)[lock],
        "-o",
        str(copy),
        "pyproject.toml",
    ]
    subprocess.run(argv, cwd=ROOT, check=True)
    assert copy.read_text(encoding="utf-8") == locked.read_text(encoding="utf-8")
