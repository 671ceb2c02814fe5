"""The noxfile and bootstrap.py, as a person uses them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sm120_wheels import recipe
from tests.support.world import ROOT, environment

pytest.importorskip("nox", reason="not run: nox is not installed here (it is in the group dev)")


def nox_list() -> dict[str, str]:
    """Session → description, as ``nox --list`` prints them."""
    command = [sys.executable, "-m", "nox", "-f", str(ROOT / "noxfile.py"), "--list"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment(NO_COLOR="1"))
    return dict(re.findall(r"^[*-] (\S+)(?: -> (.*))?$", done.stdout, re.M))


def test_every_recipe_has_a_session_and_every_session_says_what_it_does() -> None:
    sessions = nox_list()
    assert {f"build_{name.replace('-', '_')}" for name in recipe.names()} <= set(sessions)
    assert {"tests", "lint", "doctor", "plan"} <= set(sessions)
    assert [name for name, text in sessions.items() if not text] == []


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The few files that bootstrap needs."""
    folder = tmp_path / "with space"
    (folder / "recipes" / "locks").mkdir(parents=True)
    for name in ("bootstrap.py", "noxfile.py", "recipes/locks/nox.txt"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def bootstrap(folder: Path, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(folder / "bootstrap.py"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder.parent,
        env=environment(**extra),
    )


@pytest.mark.network
def test_bootstrap_makes_nox_once_and_hands_over(checkout: Path) -> None:
    first = bootstrap(checkout, "--list")
    assert first.returncode == 0, first.stderr
    assert "build_sgl_kernel" in first.stdout
    stamp = checkout / ".venv" / "nox-lock.sha256"
    made = stamp.stat().st_mtime_ns
    again = bootstrap(checkout, "--list", PIP_NO_INDEX="1", PIP_FIND_LINKS="")
    assert again.returncode == 0, again.stderr
    assert stamp.stat().st_mtime_ns == made
    assert bootstrap(checkout, "-s", "no_such_session").returncode != 0


def test_bootstrap_without_network_is_one_message(checkout: Path) -> None:
    outcome = bootstrap(checkout, "--list", PIP_NO_INDEX="1", PIP_FIND_LINKS=os.devnull, PIP_CONFIG_FILE=os.devnull)
    assert outcome.returncode == 1
    assert "error: nox cannot be installed" in outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert not (checkout / ".venv" / "nox-lock.sha256").exists()
