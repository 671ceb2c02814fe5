"""What a person sees while cases run: a line that moves on a terminal, sparse plain lines elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from rich.live import Live
from rich.text import Text

from sm120_wheels import console
from sm120_wheels.files import human_seconds
from sm120_wheels.prove.smoke.model import CaseResult

_QUIET_S = 15.0


class Progress:
    """Counts as they grow. Failures are told at once, and stay on the screen."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = self._told = clock()
        self._counts: Counter[str] = Counter()
        self._total = 0
        self._doing = ""
        self._live: Live | None = None

    def begin(self, total: int) -> None:
        self._total = total
        if console.is_terminal():
            self._live = Live(self._line(), console=console.err, refresh_per_second=8, transient=True)
            self._live.start()

    def doing(self, text: str) -> None:
        """What is being waited for."""
        self._doing = text
        if self._live:
            self._live.update(self._line())

    def seen(self, result: CaseResult) -> None:
        self._counts[result.state] += 1
        if result.state == "failed":
            console.note(f"FAILED {result.spec.node}: {result.why[:400]}")
        if self._live:
            self._live.update(self._line())
        elif self._clock() - self._told >= _QUIET_S:
            self._told = self._clock()
            console.note(self._line().plain)

    def end(self) -> None:
        if self._live:
            self._live.stop()
            self._live = None

    def _line(self) -> Text:
        done = sum(self._counts.values())
        text = Text(f"{done} of {self._total} cases in {human_seconds(self._clock() - self._began)}: ")
        for state, style in (("passed", "green"), ("failed", "bold red"), ("not run", "yellow")):
            text.append(f"{self._counts[state]} {state}  ", style=style if self._counts[state] else "dim")
        text.append(self._doing[:90], style="dim")
        return text
