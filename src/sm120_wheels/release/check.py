"""One thing that was looked at before a release, and the verdict over all of them. Three states, never two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sm120_wheels.errors import ReleaseFailedError, ReleaseIncompleteError, SettingError, near_misses
from sm120_wheels.index.model import State


@dataclass(frozen=True, kw_only=True)
class Check:
    """A row of the table."""

    name: str
    """What kind of check: ``lint``, ``audit``, …"""
    subject: str
    """A wheel, a lock, a recipe; empty for the checkout."""
    state: State
    detail: str = ""
    """Why it failed or was not run; a figure where it passed."""


#: Every kind of check, in the order of the table.
NAMES = (
    "lint",
    "types",
    "recipes",
    "docs",
    "tests",
    "patches",
    "locks",
    "complete",
    "audit",
    "promises",
    "equivalence",
    "smoke",
    "index",
)


def known_names(names: Sequence[str]) -> frozenset[str]:
    """Names of checks. Raises :class:`SettingError` for one that is none."""
    for name in names:
        if name not in NAMES:
            raise SettingError(f"no check is called {name!r}", hint=near_misses(name, NAMES))
    return frozenset(names)


def verdict(checks: Sequence[Check], *, may_be_missing: frozenset[str] = frozenset()) -> None:
    """Nothing where all passed.

    Raises :class:`ReleaseFailedError` where a check failed, else :class:`ReleaseIncompleteError` where one was not
    run and is not named in ``may_be_missing``.
    """
    failed = [check for check in checks if check.state == "failed"]
    if failed:
        raise ReleaseFailedError(f"{_count(failed)} failed", why=_told(failed), hint="mend them; nothing was published")
    missing = [check for check in checks if check.state == "not run" and check.name not in may_be_missing]
    if missing:
        names = " ".join(f"--may-be-missing {name}" for name in dict.fromkeys(check.name for check in missing))
        raise ReleaseIncompleteError(
            f"nothing failed, but {_count(missing)} could not be run",
            why=_told(missing),
            hint=f"run them; or, knowing what is not proved: {names}",
        )


def _count(checks: Sequence[Check]) -> str:
    return f"{len(checks)} check{'' if len(checks) == 1 else 's'}"


def _told(checks: Sequence[Check]) -> str:
    return "\n".join(
        f"{check.name}{' ' + check.subject if check.subject else ''}: {check.detail or check.state}" for check in checks
    )
