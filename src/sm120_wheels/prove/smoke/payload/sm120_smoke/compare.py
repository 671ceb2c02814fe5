"""Whether a result is what the reference says: decided from numbers that a backend measured. Knows no tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sm120_smoke.case import Tolerance


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One result against one expected result. Differences are taken in float64."""

    shape: tuple[int, ...]
    expected_shape: tuple[int, ...]
    dtype: str
    elements: int
    not_a_number: int = 0
    """Elements that are NaN where the reference is not."""
    lost_nan: int = 0
    """Elements that are not NaN where the reference is."""
    infinite: int = 0
    """Elements that are infinite where the reference is not, or infinite with the other sign."""
    all_nan: bool = False
    """Nothing but NaN on both sides: nothing was compared."""
    zero: bool = False
    """Every element is zero."""
    expected_zero: bool = False
    beyond: int = 0
    """Elements that differ by more than the tolerance."""
    worst_index: tuple[int, ...] = ()
    worst_actual: float = 0.0
    worst_expected: float = 0.0
    worst_difference: float = 0.0
    worst_allowed: float = 0.0

    def facts(self) -> dict[str, Any]:
        """What goes into the record: how near to its tolerance the worst element is."""
        used = 0.0 if self.worst_difference == 0 else self.worst_difference / (self.worst_allowed or 1e-300)
        return {
            "shape": list(self.shape),
            "dtype": self.dtype,
            "beyond": self.beyond,
            "worst_difference": _finite(self.worst_difference),
            "worst_of_allowed": _finite(used),
        }


def _finite(value: float) -> float | str:
    return value if value == value and abs(value) != float("inf") else str(value)  # JSON has no NaN


def problem(found: Measured, tolerance: Tolerance, *, name: str = "the result") -> str:
    """Why a result is wrong, in one sentence with the worst element; empty where it is right."""
    if found.shape != found.expected_shape:
        return f"{name} has shape {_shape(found.shape)}, the reference {_shape(found.expected_shape)}"
    if not found.elements:
        return ""
    of = f"of {found.elements} elements ({found.dtype}, shape {_shape(found.shape)})"
    if found.all_nan:
        return f"{name} and the reference are nothing but NaN: nothing was written, or nothing compared"
    if found.not_a_number:
        return f"{name}: {found.not_a_number} {of} are NaN and the reference is not{_worst(found)}"
    if found.infinite:
        return f"{name}: {found.infinite} {of} are infinite and the reference is not{_worst(found)}"
    if found.lost_nan:
        return f"{name}: {found.lost_nan} {of} are numbers where the reference is NaN"
    if found.zero and not found.expected_zero:
        return f"{name} is all zeros: {found.elements} elements ({found.dtype}, shape {_shape(found.shape)})"
    if found.beyond > tolerance.share * found.elements:
        share = f", allowed are {tolerance.share:.3g} of them" if tolerance.share else ""
        return f"{name}: {found.beyond} {of} differ by more than allowed{share}{_worst(found)}"
    return ""


def _worst(found: Measured) -> str:
    return (
        f"; worst at {_shape(found.worst_index)}: got {found.worst_actual:.9g}, expected {found.worst_expected:.9g},"
        f" difference {found.worst_difference:.3g}, allowed {found.worst_allowed:.3g}"
    )


def _shape(shape: tuple[int, ...]) -> str:
    return "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"
