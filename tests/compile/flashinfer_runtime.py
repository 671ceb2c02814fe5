"""Whether an installed flashinfer finds and loads its modules from the wheels, with compiling at run time forbidden.

What a machine without a GPU can show; running the kernels is the smoke test's.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sm120_wheels.arch import Arch
from sm120_wheels.errors import CommandError
from sm120_wheels.process import run

_PROBE = Path(__file__).with_name("flashinfer_runtime_probe.py")
#: A user's settings that would let a module come from elsewhere than the wheels.
_DROPPED = ("FLASHINFER_", "PYTHON", "CUDA_")

State = Literal["passed", "failed", "not run"]


@dataclass(frozen=True, kw_only=True)
class ModuleCheck:
    """One module."""

    name: str
    found: State
    loaded: State
    """``not run`` where it was not found."""
    path: str | None
    why: str


@dataclass(frozen=True, kw_only=True)
class RuntimeCheck:
    """All modules asked for."""

    flashinfer: str
    """What the installed package says its version is."""
    providers: tuple[tuple[str, str], ...]
    """Id and version of each provider that flashinfer accepted."""
    modules: tuple[ModuleCheck, ...]

    @property
    def state(self) -> State:
        if not self.modules:
            return "not run"
        return "passed" if all(m.found == m.loaded == "passed" for m in self.modules) else "failed"


def check_runtime(*, python: Path, arch: Arch, modules: Sequence[str] = (), log: Path) -> RuntimeCheck:
    """Ask the flashinfer of an environment for ``modules`` (none named: all that its providers claim).

    Raises :class:`CommandError` where flashinfer cannot even be imported there.
    """
    with tempfile.TemporaryDirectory(prefix="sm120-flashinfer-") as folder:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(_DROPPED)}
        answer = Path(folder) / "answer.json"
        env = {
            **kept,
            "FLASHINFER_WORKSPACE_BASE": folder,
            "FLASHINFER_CUBIN_DIR": folder,
            "FLASHINFER_NO_DOWNLOAD": "1",
        }
        done = run([python, _PROBE, answer, str(arch), *modules], env=env, log=log, check=False, cwd=Path(folder))
        if not done.ok or not answer.is_file():
            raise CommandError(
                "flashinfer cannot be imported from its wheels",
                where=str(python),
                why="\n".join(done.output.strip().splitlines()[-8:]),
                hint=f"the whole output is in {log}",
            )
        said = json.loads(answer.read_text(encoding="utf-8"))
    return RuntimeCheck(
        flashinfer=said["flashinfer"],
        providers=tuple((p["id"], p["version"]) for p in said["providers"]),
        modules=tuple(
            ModuleCheck(
                name=m["name"],
                found="passed" if m["path"] else "failed",
                loaded="not run" if m["loaded"] is None else "passed" if m["loaded"] else "failed",
                path=m["path"],
                why=m["why"],
            )
            for m in said["modules"]
        ),
    )
