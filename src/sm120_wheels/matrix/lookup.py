"""The one build that an identifier names, or an error that says which part of it is wrong."""

from __future__ import annotations

from sm120_wheels import recipe
from sm120_wheels.errors import (
    Sm120Error,
    UnknownArchError,
    UnknownCudaError,
    UnknownRecipeError,
    UnknownVersionError,
    UnsupportedTargetError,
)
from sm120_wheels.matrix.explain import Explanation, explain
from sm120_wheels.matrix.jobs import Job, make_matrix

_ERRORS: dict[str, type[Sm120Error]] = {
    "distribution": UnknownRecipeError,
    "version": UnknownVersionError,
    "CUDA": UnknownCudaError,
    "architecture": UnknownArchError,
}


def find_job(identifier: str) -> Job:
    """The job of the matrix with this identifier.

    Raises the error of the part that rules it out (unknown recipe, version, CUDA or architecture), else
    :class:`UnsupportedTargetError`.
    """
    matrix = make_matrix()
    job = matrix.find(identifier.strip())
    if job is None:
        raise not_there(explain(identifier, matrix, [recipe.load(name) for name in recipe.names()]))
    return job


def not_there(explanation: Explanation) -> Sm120Error:
    kind = _ERRORS.get(explanation.axis, UnsupportedTargetError)
    return kind(
        f"{explanation.identifier!r} is not in the matrix",
        why=f"{explanation.axis}: {explanation.why}",
        hint=f"closest: {', '.join(explanation.near)}" if explanation.near else "see `sm120 matrix`",
    )
