"""One compile as the scheduler sees it: what it holds, how long, and what no schedule of many can beat.

Pure figures; who starts when is ``policy``'s.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

#: A tail above this share of the peak could be taken for memory on its way up.
_TAIL_WORTH = 0.9


@dataclass(frozen=True, kw_only=True)
class Tail:
    """What a task holds at most once its first part is over: ``memory`` in bytes, from about ``after`` seconds of its
    time on."""

    memory: int
    after: float

    def saves(self, peak: int) -> bool:
        """Whether it is clearly less than the peak (bytes)."""
        return self.memory <= _TAIL_WORTH * peak


@dataclass(frozen=True, kw_only=True)
class Task:
    """One compile that asks for memory (bytes), cores and an expected time (seconds)."""

    key: str
    memory: int
    seconds: float
    cores: int = 1
    arrived: float = 0.0
    build: str = ""
    """Whose it is: builds take turns, and each may have a job count of its own."""
    alone: bool = False
    """Start only when nothing else runs, and let nothing else start: the last try of a compile that was killed."""
    tail: Tail | None = None
    """None: it holds ``memory`` until it ends."""

    @property
    def memory_past_peak(self) -> int:
        """Bytes held once the first part is over; to the end as many where that is not known."""
        return self.memory if self.tail is None else min(self.tail.memory, self.memory)

    @property
    def average(self) -> float:
        """Bytes held on average over its time."""
        if self.tail is None or self.seconds <= 0:
            return self.memory
        front = min(self.tail.after, self.seconds) / self.seconds
        return front * self.memory + (1 - front) * self.memory_past_peak

    def memory_after(self, seconds: float) -> int:
        """Bytes held that long after its start, as expected."""
        return self.memory_past_peak if self.tail is not None and seconds >= self.tail.after else self.memory


def lower_bound(tasks: Iterable[Task], *, cores: int, budget: int) -> float:
    """Seconds that no schedule of such tasks can beat: the longest, all work over all cores, all memory over time over
    the budget."""
    listed = list(tasks)
    if not listed:
        return 0.0
    return max(
        max(t.seconds for t in listed),
        sum(t.seconds * min(t.cores, cores) for t in listed) / cores,
        sum(t.seconds * min(t.average, budget) for t in listed) / budget,
    )
