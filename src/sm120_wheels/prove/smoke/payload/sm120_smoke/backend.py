"""What the worker asks of the place where cases run: a CUDA GPU with torch, or (to test the harness) plain Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from sm120_smoke.case import Tolerance
from sm120_smoke.compare import Measured
from sm120_smoke.launches import Launches


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What one run reached."""

    operators: tuple[str, ...] = ()
    """Qualified names, each once, in the order of their first call."""
    kernels: tuple[str, ...] = ()
    """Kernels as CUPTI names them (demangled), each once."""
    kernels_unknown: str = ""
    """Why no kernels are known; empty where they are."""


class NoGraphsError(Exception):
    """This backend captures no graphs; the reason is its text."""


class Backend(Protocol):
    """One device, used by one worker."""

    name: str

    def start(self, device: int) -> dict[str, Any]:
        """Load what is needed and take the device. Facts: ``gpu``, ``driver``, ``torch``, ``cuda``, …"""

    def watch(self, launches: Launches) -> str:
        """Note every launch from now on; why that cannot be done. :meth:`trace` is not used in that process."""

    def operators(self, namespaces: Sequence[str]) -> list[str]:
        """Every operator that is registered in these namespaces."""

    def free_memory(self) -> int:
        """Bytes that can still be allocated."""

    def synchronise(self) -> None:
        """Wait for what was launched; raises what went wrong there."""

    def flatten(self, results: Any) -> list[Any]:
        """The tensors of what ``run`` returned."""

    def poison(self, results: Sequence[Any]) -> None:
        """Overwrite each with 0xFF bytes, or what comes nearest."""

    def capture(self, run: Callable[[], Any]) -> tuple[Callable[[], None], list[Any]]:
        """Warm up, capture; gives the replay and the results that it writes. May raise :class:`NoGraphsError`."""

    def measure(self, actual: Any, expected: Any, tolerance: Tolerance) -> Measured:
        """Compare one result."""

    def trace(self, run: Callable[[], Any]) -> Trace:
        """Run once more and see what is reached."""

    def restored(self) -> AbstractContextManager[None]:
        """Puts back what a case may have changed (random state, default dtype), after the block."""

    def clean(self) -> int:
        """Give memory back after a case; the bytes that it used at its peak."""
