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
#: With so much as margin, a compile must not be taken to be past its peak before it is. A prediction adds less, but for
#: tails of some 200 MB and below and for builds whose peaks have proved larger than predicted.
_CLAIM = 1.25


@dataclass(kw_only=True)
class Envelope:
    """Samples of one compile as they come. Bytes; seconds from its start. ``whole``: from its start on, else nothing
    can be said of it."""

    peak: int = 0
    whole: bool = True
    _most: list[int] = field(default_factory=list)
    _least: list[int] = field(default_factory=list)
    """The most and the least in each step of the time."""

    def add(self, elapsed: float, used: int) -> None:
        self.peak = max(self.peak, used)
        step = int(elapsed / _STEP_S)
        missing = step + 1 - len(self._most)
        self._most += [used] * missing  # steps without a sample hold what came next
        self._least += [used] * missing
        self._most[step] = max(self._most[step], used)
        self._least[step] = min(self._least[step], used)

    @property
    def mean(self) -> int | None:
        """Bytes held on average, at least; None for a compile that was not seen from its start."""
        return sum(self._least) // len(self._least) if self.whole and self._least else None

    def tail(self) -> Tail | None:
        """Where the time is best cut into a part that holds the peak and one that holds what comes after (as much, for
        a compile without a tail). None where that cannot be told: too short, or not seen from its start.

        A cut that :meth:`in_tail` would have believed too early on these very samples is not taken.
        """
        count = len(self._most)
        if count < _LEAST_STEPS or not self.whole:
            return None
        highest = list(itertools.accumulate(self._most, max))
        after = list(itertools.accumulate(reversed(self._most), max))[::-1]
        cuts = [i for i in range(1, count) if after[i] < after[i - 1]]
        for cut in sorted(cuts, key=lambda i: self.peak * i + after[i] * (count - i)):
            if not self._misleads(cut, highest, after):
                return Tail(memory=after[cut], after=cut * _STEP_S)
        return Tail(memory=self.peak, after=0.0)

    def _misleads(self, cut: int, highest: list[int], after: list[int]) -> bool:
        """Whether the compile fell to what it holds after the cut for a moment, past a first peak, and needed more
        again. ``highest`` and ``after``: the most up to each step, and from it on. The step before the cut has the
        fall itself in it."""
        claim = _CLAIM * after[cut]
        believed = next(
            (
                i
                for i in range(int(_EARLIEST * cut), cut - 1)
                if highest[i] >= _NEARLY * self.peak and self._least[i] <= claim
            ),
            cut,
        )
        return after[believed] > claim

    def in_tail(self, tail: Tail, *, elapsed: float, used: int, expected: int) -> bool:
        """Whether a compile that is expected to peak at ``expected`` bytes has come to its ``tail``."""
        past_peak = self.peak >= _NEARLY * expected and elapsed >= _EARLIEST * tail.after
        return past_peak and used <= tail.memory
