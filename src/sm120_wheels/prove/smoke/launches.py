"""Reads what a worker noted of its launches (see :mod:`sm120_smoke.launches`), and says it in a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sm120_wheels.prove.names import brief

_SHOWN = 8
_CAPTURE = "graph: capture"  # sm120_smoke.launches.CAPTURE


@dataclass(frozen=True, kw_only=True)
class Launched:
    """One launch."""

    kernel: str
    """As the driver names it; ``cuGraphLaunch`` for a graph."""
    step: str
    """What the worker was doing: ``eager: run``."""

    def __str__(self) -> str:
        return f"{brief(self.kernel, 200)} (at {self.step})"


def launches(file: Path) -> list[Launched]:
    """The last of them, oldest first; empty where the worker noted none."""
    if not file.is_file():
        return []
    rows = [line.rstrip().split("\t", 2) for line in file.read_text(encoding="utf-8", errors="replace").splitlines()]
    numbered = sorted((int(row[0]), row[1], row[2]) for row in rows if len(row) == 3 and row[0].isdigit())
    return [Launched(kernel=kernel, step=step) for _, step, kernel in numbered]


def last_kernel(found: Sequence[Launched]) -> str:
    """The answer in a line. A graph is named by its kernels: which of them it is cannot be told."""
    if not found:
        return "none was launched"
    last = found[-1]
    captured = [each for each in found if each.step == _CAPTURE]
    if last.kernel.startswith("cuGraphLaunch") and captured:
        return f"a graph of {', '.join(brief(each.kernel, 100) for each in captured[-_SHOWN:])} (at {last.step})"
    return str(last)


def shown(found: Sequence[Launched]) -> tuple[str, ...]:
    """The last few, oldest first."""
    return tuple(str(each) for each in found[-_SHOWN:])
