"""How a compile's memory goes over its time: a first part up to its peak, and a tail that needs much less.

cicc, nvcc's compiler for the device, holds the whole translation unit at its peak and gives nearly all of it back when
that is over; what it does after, ptxas and the host compiler can take as long again with a tenth of the memory. A
compiler does the same every time, so what one compile was seen to do says when the next may give room to others.
Pure code over samples.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from sm120_wheels.compile.task import Tail

_STEP_S = 0.5
_LEAST_STEPS = 6
#: A compile is past its peak when it has held nearly what it was expected to hold at most, then no more than its tail,
#: and is not far too early: memory may fall between two peaks. How early is too early allows for another machine, and
#: for a measurement on a busy one.
_NEARLY = 0.9
_EARLIEST = 0.3


@dataclass(kw_only=True)
class Envelope:
    """Samples of one compile as they come. Bytes; seconds from its start."""

    peak: int = 0
    _most: list[int] = field(default_factory=list)
    """The most in each step of the time."""

    def add(self, elapsed: float, used: int) -> None:
        self.peak = max(self.peak, used)
        step = int(elapsed / _STEP_S)
        self._most += [used] * (step + 1 - len(self._most))  # steps without a sample hold what came next
        self._most[step] = max(self._most[step], used)

    def tail(self) -> Tail | None:
        """Where the time is best cut into a part that holds the peak and one that holds what comes after (as much, for
        a compile without a tail). None for one that was too short to tell."""
        count = len(self._most)
        if count < _LEAST_STEPS:
            return None
        after = list(itertools.accumulate(reversed(self._most), max))[::-1]
        _, cut = min((self.peak * i + after[i] * (count - i), i) for i in range(1, count))
        return Tail(memory=after[cut], after=cut * _STEP_S)

    def in_tail(self, tail: Tail, *, elapsed: float, used: int, expected: int) -> bool:
        """Whether a compile that is expected to peak at ``expected`` bytes has come to its ``tail``."""
        past_peak = self.peak >= _NEARLY * expected and elapsed >= _EARLIEST * tail.after
        return past_peak and used <= tail.memory
