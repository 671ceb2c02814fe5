"""Runs cases without torch and without a GPU, to test the harness: a tensor is a list of numbers.

Operators are Python functions that a test's package registers by :func:`operator`. A "graph" is the function called
again with :data:`capturing` telling it so. A result of this backend is never a proof about a GPU wheel.
"""

from __future__ import annotations

import contextlib
import functools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from sm120_smoke.backend import Trace
from sm120_smoke.case import Tolerance
from sm120_smoke.compare import Measured
from sm120_smoke.launches import Launches

_F = TypeVar("_F", bound=Callable[..., Any])
_registered: dict[str, Callable[..., Any]] = {}
_called: dict[str, None] = {}
_watched: list[Launches] = []
#: Whether an operator is being captured; test operators behave otherwise then.
capturing = False


def operator(name: str) -> Callable[[_F], _F]:
    """Register a Python function as an operator of that qualified name."""

    def register(function: _F) -> _F:
        @functools.wraps(function)
        def counted(*arguments: Any, **named: Any) -> Any:
            _called[name] = None
            for launches in _watched:
                launches.note(name)
            return function(*arguments, **named)

        _registered[name] = counted
        return counted  # type: ignore[return-value]

    return register


class HostBackend:
    """Plain Python."""

    name = "host"

    def start(self, device: int) -> dict[str, Any]:
        return {"gpu": "none (host backend)", "torch": None, "cuda": None}

    def watch(self, launches: Launches) -> str:
        _watched.append(launches)  # an operator stands for a kernel here
        return ""

    def operators(self, namespaces: Sequence[str]) -> list[str]:
        return sorted(name for name in _registered if name.partition("::")[0] in namespaces)

    def free_memory(self) -> int:
        return 1 << 62

    def synchronise(self) -> None:
        return None

    def flatten(self, results: Any) -> list[Any]:
        if isinstance(results, tuple):
            return list(results)
        return [] if results is None else [results]

    def poison(self, results: Sequence[Any]) -> None:
        for values in results:
            values[:] = [math.nan] * len(values)

    def capture(self, run: Callable[[], Any]) -> tuple[Callable[[], None], list[Any]]:
        global capturing
        capturing = True
        try:
            results = self.flatten(run())
        finally:
            capturing = False

        def replay() -> None:
            for kept, new in zip(results, self.flatten(run()), strict=True):
                kept[:] = new

        return replay, results

    def measure(self, actual: Any, expected: Any, tolerance: Tolerance) -> Measured:
        shapes = ((len(actual),), (len(expected),))
        if shapes[0] != shapes[1] or not actual:
            return Measured(shape=shapes[0], expected_shape=shapes[1], dtype="float", elements=len(actual))
        allowed = [tolerance.absolute + tolerance.relative * abs(e) for e in expected]
        pairs = list(zip(actual, expected, allowed, strict=True))
        same = [a == e or (math.isnan(a) and math.isnan(e)) for a, e, _ in pairs]
        difference = [0.0 if s else abs(a - e) for s, (a, e, _) in zip(same, pairs, strict=True)]
        share = [
            -1.0 if s else math.inf if math.isnan(d) else d / max(limit, 1e-300)
            for s, d, limit in zip(same, difference, allowed, strict=True)
        ]
        worst = share.index(max(share))
        return Measured(
            shape=shapes[0],
            expected_shape=shapes[1],
            dtype="float",
            elements=len(actual),
            not_a_number=sum(math.isnan(a) and not math.isnan(e) for a, e, _ in pairs),
            lost_nan=sum(math.isnan(e) and not math.isnan(a) for a, e, _ in pairs),
            infinite=sum(math.isinf(a) and a != e for a, e, _ in pairs),
            all_nan=all(math.isnan(a) and math.isnan(e) for a, e, _ in pairs),
            zero=not any(actual),
            expected_zero=not any(expected),
            beyond=sum(not d <= limit for d, limit in zip(difference, allowed, strict=True)),
            worst_index=(worst,),
            worst_actual=actual[worst],
            worst_expected=expected[worst],
            worst_difference=difference[worst],
            worst_allowed=allowed[worst],
        )

    def trace(self, run: Callable[[], Any]) -> Trace:
        _called.clear()
        run()
        return Trace(operators=tuple(_called), kernels_unknown="there are no kernels on this backend")

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        before = random.getstate()
        random.seed(0)
        try:
            yield
        finally:
            random.setstate(before)

    def clean(self) -> int:
        return 0
