"""What a person sees: one console for results (stdout) and one for progress and notes (stderr).

Progress is drawn only on a terminal; elsewhere it becomes sparse plain lines. ``--json`` output goes to stdout alone,
so that it can be piped.
"""

from __future__ import annotations

import sys

from rich.console import Console

#: Results: tables, paths, JSON.
out = Console(highlight=False, soft_wrap=True)
#: Progress and notes.
err = Console(stderr=True, highlight=False, soft_wrap=True)


def note(text: str) -> None:
    """One plain line of progress on stderr, flushed at once (CI logs show it as it happens)."""
    err.print(text, markup=False)
    sys.stderr.flush()


def is_terminal() -> bool:
    """Whether progress may be drawn in place."""
    return err.is_terminal
