"""What a compile will take: from what was measured here, from the recipe's profile, or from a model of both.

Pure code: it is given the store, the profile and the footprint. Every prediction names its basis, and every basis
carries a margin learnt from its own past errors.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from sm120_wheels.compile.budget import GIB, MIB
from sm120_wheels.compile.command import CompileCommand
from sm120_wheels.compile.profile import Footprint, Measured, Profile, Store, Unit, best_match, short_source, store_key
from sm120_wheels.compile.task import Tail, Task

#: The least margin for each basis, as a factor on the expected peak, until enough errors are known.
_LEAST_MARGIN = {"measured": 1.03, "profile": 1.03, "similar": 1.15, "model": 1.5, "default": 1.0}
#: A tail is only sampled, the kernel keeps no high-water mark of it.
_TAIL_MARGIN = 1.1
_SLACK = 32 * MIB
#: With nothing known at all: what most CUDA and C++ files that include torch's headers stay below.
_DEFAULT_CUDA = 4 * GIB
_DEFAULT_HOST = 2 * GIB
_DEFAULT_SECONDS = 60.0
_QUANTILE = 0.95
_ERRORS_NEEDED = 8
_MODEL_NEEDS = 8
_RIDGE = 0.5


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """``expected``: the likely peak (bytes); ``memory``: with its margin, what is reserved; ``seconds``: the likely
    time."""

    memory: int
    expected: int
    seconds: float
    basis: str
    tail: Tail | None = None
    """What is reserved past the peak, where that is known."""
    bias: float = 1.0
    """The factor inside ``expected`` by which this build's peaks exceeded earlier predictions."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """Log-linear in the footprint: one vector of weights for the peak, one for the time."""

    peak: tuple[float, ...]
    seconds: tuple[float, ...]
    margin: float
    """Factor that covers 95 % of its own leave-one-out errors."""


def predict(
    command: CompileCommand,
    *,
    compiler: str,
    store: Store,
    profile: Profile | None,
    footprint: Footprint | None,
    model: Model | None,
    bias: float = 1.0,
) -> Prediction:
    """Predict one compile. ``compiler`` is its version text; ``bias`` a factor by which this build's peaks exceed
    predictions from anything but a measurement of the same thing."""
    one_peak = len(command.targets) <= 1  # with several targets there is a peak for each, so no tail is believed
    known = store.entries.get(store_key(key_of(command, compiler)))
    if known is not None:
        tail = known.tail if one_peak else None
        return _with_margin(known.peak, known.seconds, "measured", store, tail=tail)
    wide = command.parallel
    rounds = math.ceil(max(1, len(command.targets)) / wide)
    unit = profile.find(command.source) if profile is not None and command.source else None
    if unit is not None:
        tail = unit.tail if one_peak else None
        return _with_margin(unit.peak * wide, unit.seconds * rounds, "profile", store, bias, tail=tail)
    similar = _similar(command, store)
    if similar is not None:
        scale = wide / max(1, similar.parallel)
        return _with_margin(similar.peak * max(scale, 1.0), similar.seconds, "similar", store, bias)
    if model is not None and footprint is not None:
        features = _features(command.source, footprint)
        peak, seconds = math.exp(_dot(model.peak, features)), math.exp(_dot(model.seconds, features))
        return _with_margin(peak * wide, seconds * rounds, "model", store, bias, at_least=model.margin)
    base = _DEFAULT_CUDA if command.source.endswith(".cu") else _DEFAULT_HOST
    if not command.source:
        base = 512 * MIB
    return _with_margin(base * wide, _DEFAULT_SECONDS * rounds, "default", store, bias)


def key_of(command: CompileCommand, compiler: str) -> Measured:
    """An entry without figures, for its key."""
    return Measured(
        source=short_source(command.source),
        targets=" ".join(command.targets),
        compiler=compiler,
        variant=command.variant,
        parallel=command.parallel,
        peak=0,
        seconds=0.0,
        cpu_seconds=0.0,
    )


def margin(basis: str, errors: Sequence[float]) -> float:
    """The factor that covered 95 % of a basis's past errors (logarithms of measured over predicted)."""
    least = _LEAST_MARGIN[basis]
    if len(errors) < _ERRORS_NEEDED:
        return least
    ordered = sorted(errors)
    return max(least if basis in ("measured", "profile") else 1.05, math.exp(ordered[_rank(len(ordered))]))


def reserved(peak: int, basis: str = "profile") -> int:
    """What is reserved for an expected peak (bytes) while no errors of its basis are known."""
    return int(peak * margin(basis, ())) + _SLACK


def claimed(task: Task) -> Task:
    """What the broker reserves for a task that is measured like this, while no errors are known."""
    tail = task.tail and _claimed_tail(task.tail, peak=task.memory, factor=margin("profile", ()))
    return replace(task, memory=reserved(task.memory), tail=tail)


def _claimed_tail(tail: Tail, *, peak: int, factor: float, bias: float = 1.0) -> Tail | None:
    """What is reserved for a tail; None where that is hardly less than the peak (bytes)."""
    claim = replace(tail, memory=int(tail.memory * bias * max(factor, _TAIL_MARGIN)) + _SLACK)
    return claim if claim.saves(peak) else None


def bias_of(errors: Sequence[float]) -> float:
    """How much too small this build's predictions have been: 1 until two compiles agree that they are."""
    recent = errors[-8:]
    if len(recent) < 2:
        return 1.0
    return max(1.0, math.exp(statistics.median_low(recent)))


def fit(units: Sequence[Unit]) -> Model | None:
    """Fit the model on units whose footprint is known; None when there are fewer than eight."""
    usable = [u for u in units if u.footprint is not None and u.peak > 0 and u.seconds > 0]
    if len(usable) < _MODEL_NEEDS:
        return None
    rows = [_features(u.source, u.footprint) for u in usable if u.footprint is not None]
    peaks = [math.log(u.peak) for u in usable]
    weights = _solve(rows, peaks)
    errors = []
    for left_out in range(len(rows)):
        others = [i for i in range(len(rows)) if i != left_out]
        partial = _solve([rows[i] for i in others], [peaks[i] for i in others])
        errors.append(peaks[left_out] - _dot(partial, rows[left_out]))
    return Model(
        peak=weights,
        seconds=_solve(rows, [math.log(u.seconds) for u in usable]),
        margin=max(1.05, math.exp(sorted(errors)[_rank(len(errors))])),
    )


def units_of(store: Store) -> list[Unit]:
    """The store's entries as units, for :func:`fit`; a peak is for one target at a time."""
    return [
        Unit(
            source=e.source,
            peak=e.peak // max(1, e.parallel),
            seconds=e.seconds * e.parallel / max(1, len(e.targets.split())),
            footprint=e.footprint,
        )
        for e in store.entries.values()
    ]


def _rank(count: int) -> int:
    return min(count - 1, math.ceil(_QUANTILE * count) - 1)


def _with_margin(
    peak: float,
    seconds: float,
    basis: str,
    store: Store,
    bias: float = 1.0,
    *,
    at_least: float = 1.0,
    tail: Tail | None = None,
) -> Prediction:
    factor = max(margin(basis, store.errors.get(basis, ())), at_least if basis == "model" else 1.0)
    if basis == "model" and len(store.errors.get(basis, ())) >= _ERRORS_NEEDED:
        factor = margin(basis, store.errors[basis])
    if tail is not None:
        tail = _claimed_tail(tail, peak=int(peak * bias), factor=factor, bias=bias)
    return Prediction(
        memory=int(peak * bias * factor) + (0 if basis == "default" else _SLACK),
        expected=int(peak * bias),
        seconds=max(seconds, 0.01),
        basis=basis,
        tail=tail,
        bias=bias,
    )


def _similar(command: CompileCommand, store: Store) -> Measured | None:
    """The same source measured with other flags, another compiler or other targets: the largest of them."""
    if not command.source:
        return None
    short = short_source(command.source)
    name = PurePosixPath(short).name
    same = [e for e in store.entries.values() if e.source == short]
    if not same:
        close = best_match(short, {e.source for e in store.entries.values() if PurePosixPath(e.source).name == name})
        same = [e for e in store.entries.values() if e.source == close]
    return max(same, key=lambda e: e.peak / e.parallel, default=None)


def _features(source: str, footprint: Footprint) -> tuple[float, ...]:
    return (
        1.0,
        math.log1p(footprint.size / 1024),
        math.log1p(footprint.cutlass_files),
        1.0 if source.endswith(".cu") else 0.0,
    )


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def _solve(rows: Sequence[Sequence[float]], values: Sequence[float]) -> tuple[float, ...]:
    """Ridge regression (the constant is not shrunk) by Gaussian elimination: four unknowns need no library."""
    size = len(rows[0])
    matrix = [
        [sum(r[i] * r[j] for r in rows) + (_RIDGE if i == j and i > 0 else 0.0) for j in range(size)]
        + [sum(r[i] * v for r, v in zip(rows, values, strict=True))]
        for i in range(size)
    ]
    for i in range(size):
        pivot = max(range(i, size), key=lambda r: abs(matrix[r][i]))
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        for r in range(size):
            if r != i and matrix[i][i]:
                factor = matrix[r][i] / matrix[i][i]
                matrix[r] = [x - factor * y for x, y in zip(matrix[r], matrix[i], strict=True)]
    return tuple(matrix[i][size] / matrix[i][i] if matrix[i][i] else 0.0 for i in range(size))
