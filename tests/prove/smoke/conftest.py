"""The demo package as a wheel, and the real command run over its cases on the host backend."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.wheel.conftest import RawWheel

HERE = Path(__file__).parent
#: Cases of the harness: the worker runs them, never this pytest.
collect_ignore = ["cases"]

SM120 = (sys.executable, "-m", "sm120_wheels")


@dataclass(frozen=True, kw_only=True)
class Ran:
    """One run of ``sm120 smoke`` over the demo cases."""

    code: int
    out: str
    err: str
    folder: Path

    @property
    def record(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self.folder / "record.json").read_text())
        return loaded

    def case(self, name: str) -> dict[str, Any]:
        """One case of the record, by the end of its name."""
        found: list[dict[str, Any]] = [c for c in self.record["cases"] if c["name"].endswith(f"::{name}")]
        assert len(found) == 1, (name, self.err)
        return found[0]


def demo_wheel(folder: Path, *requires: str) -> Path:
    files = {"demo_ops.py": (HERE / "demo_ops.py").read_bytes()}
    lines = ["Metadata-Version: 2.1", "Name: demo", "Version: 1.0", *(f"Requires-Dist: {r}" for r in requires)]
    return RawWheel(name="demo", version="1.0", files=files, metadata="\n".join(lines) + "\n").write(folder)


def environment(folder: Path) -> dict[str, str]:
    """A user's environment with its own cache, and settings that must not leak into a run."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COV_"))}
    return kept | {
        "SM120_CACHE_DIR": str(folder / "cache"),
        "SM120_RUNTIME_DIR": str(folder / "run"),
        "PYTEST_ADDOPTS": "--no-such-option",
        "CUDA_LAUNCH_BLOCKING": "1",
    }


def smoke_command(wheel: Path, *more: str | Path) -> list[str]:
    demo = ("--backend", "host", "--environment", sys.executable, "--suite", str(HERE / "cases"))
    return [*SM120, "smoke", *demo, "--import", "demo_ops=demo", str(wheel), *map(str, more)]


def run_demo(folder: Path, *more: str | Path) -> Ran:
    wheel = demo_wheel(folder / "dist")
    command = smoke_command(wheel, "--record", folder / "record.json", *more)
    done = subprocess.run(command, cwd=folder, env=environment(folder), capture_output=True, text=True, check=False)
    return Ran(code=done.returncode, out=done.stdout, err=done.stderr, folder=folder)


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """All demo cases, once."""
    folder = tmp_path_factory.mktemp("smoke")
    return run_demo(folder, "--junit", folder / "junit.xml", "--html", folder / "page.html")
