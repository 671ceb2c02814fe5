"""Waiting for what other processes and threads do: on a condition, with a deadline that a loaded machine keeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def until(condition: Callable[[], Any], *, what: str, seconds: float = 120.0) -> Any:
    """Wait until a condition holds and return its value; fail the test, naming it, when it does not in time."""
    limit = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < limit, f"not in {seconds:.0f} s: {what}"
        time.sleep(0.01)
    return value


def costs_less_than(seconds: float, action: Callable[[], float], *, tries: int = 10) -> None:
    """Fail unless the action, which gives the seconds that it took, is quick enough once.

    What the code waits for is in every run; what a loaded machine adds is not.
    """
    took: list[float] = []
    while not took or min(took) >= seconds:
        assert len(took) < tries, f"never less than {seconds} s: {', '.join(f'{t:.2f}' for t in took)}"
        took.append(action())
