"""Choosing jobs by identifier, in the one syntax of build selectors: shell patterns with braces, several with spaces.

The same as cibuildwheel's: ``sglang_kernel-0.4.*-cu13{0,2}-*``; upper and lower case differ.
"""

from __future__ import annotations

import difflib
import fnmatch
import itertools
from collections.abc import Sequence

import bracex

from sm120_wheels.errors import EmptySelectionError, SettingError
from sm120_wheels.matrix.jobs import Job


def expand(selector: str) -> tuple[str, ...]:
    """The plain patterns of a selector: ``a-{b,c} d`` is ``a-b``, ``a-c`` and ``d``. Raises :class:`SettingError`."""
    try:
        return tuple(pattern for part in selector.split() for pattern in bracex.expand(part))
    except bracex.ExpansionLimitException as exc:
        raise SettingError(f"the selector {selector!r} expands to too many patterns", hint="use *") from exc


def matches(identifier: str, selectors: Sequence[str]) -> bool:
    """Whether any pattern of any selector matches the whole identifier."""
    return any(fnmatch.fnmatchcase(identifier, pattern) for selector in selectors for pattern in expand(selector))


def select(jobs: Sequence[Job], *, only: Sequence[str] = (), skip: Sequence[str] = ()) -> tuple[Job, ...]:
    """The jobs that ``only`` names (all, where it is empty) and ``skip`` does not.

    Raises :class:`EmptySelectionError`, naming the patterns that match nothing and the closest identifiers.
    """
    named = [job for job in jobs if not only or matches(job.identifier, only)]
    chosen = tuple(job for job in named if not matches(job.identifier, skip))
    if chosen:
        return chosen
    identifiers = [job.identifier for job in jobs]
    if not identifiers:
        raise EmptySelectionError("the matrix is empty", why="no recipe gives a build", hint="see `sm120 check`")
    if named:
        raise EmptySelectionError(
            "nothing of the matrix is left",
            why=f"--skip {' '.join(skip)!r} matches all {len(named)} builds that were chosen",
            hint="skip less: `sm120 matrix` lists the identifiers",
        )
    idle = unused(jobs, only)
    raise EmptySelectionError(
        "no build of the matrix is selected",
        why=f"no identifier matches {', '.join(idle) or 'an empty selector'}",
        hint=_closest(idle[0] if idle else "", identifiers),
    )


def unused(jobs: Sequence[Job], selectors: Sequence[str]) -> tuple[str, ...]:
    """The plain patterns that match no job: most often a slip of the keyboard."""
    patterns = [pattern for selector in selectors for pattern in expand(selector)]
    return tuple(p for p in patterns if not any(fnmatch.fnmatchcase(job.identifier, p) for job in jobs))


def _closest(pattern: str, identifiers: Sequence[str]) -> str:
    wanted = pattern.replace("*", "")

    def likeness(identifier: str) -> tuple[int, float]:
        pairs = zip(wanted, identifier, strict=False)
        common = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        return common, difflib.SequenceMatcher(None, wanted, identifier).ratio()

    close = sorted(identifiers, key=likeness, reverse=True)[:2]
    return (
        f"close to it: {', '.join(close)}; a pattern is for the whole identifier, so begin or end it with *; "
        "`sm120 matrix` lists them"
    )
