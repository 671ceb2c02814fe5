"""Who compiles next: the admission policy, as pure code over three named sets (waiting, running, done).

The clock is passed in, so the broker drives it with the real one and the simulator with a made-up one; both run this
very code. It does no I/O, predicts nothing and knows no compiler.

The rule, in order:

1. The waiting tasks are sorted by the share of the scarcer resource that they will take, times how long they take it
   (``seconds × max(cores / all cores, memory / budget)``, memory on average): with much memory that is longest first,
   with little it is the most memory over time first. Only tasks that arrived within ``patience_s`` of the oldest that
   waits compete so; later ones stand behind them.
2. Down that list, whatever fits is started. The first task that does not fit gets a reservation: the earliest
   moment at which the running tasks will have left room for it.
3. Tasks after it may start only where they cannot delay it: they end before that moment, or fit beside it (this is
   known as EASY backfilling).
4. A task may hold less from some moment on (a compile past its peak, see ``task.Tail``). That room is free
   as soon as whoever watches it says so, and is counted on for the reservation of rule 2.
5. A task whose need is larger than the budget keeps no room from the others (unless it is overdue). It is started
   alone, when nothing else runs: at once if it needs more than this machine could ever give, else after
   ``patience_alone_s`` in which other programs may leave.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sm120_wheels.compile.task import Task

#: How long, in seconds, a task waits for other programs to give memory back while nothing else runs.
PATIENCE_ALONE_S = 300.0
#: How much of a task's time, in seconds, counts against its build's turns before it has run. All of it, and a build
#: that starts one long task would stand behind the others for minutes; none, and one build would get all that is free.
_AHEAD_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Running:
    """A started task; ``held`` is the larger of what was predicted and what has been measured, in bytes. ``in_tail``:
    its first part is over."""

    task: Task
    started: float
    held: int
    in_tail: bool = False

    def expected_end(self, now: float) -> float:
        """When it will end, in seconds. A task past its prediction is given another tenth of the time it has run."""
        return self._expected(self.task.seconds, now)

    def releases(self, now: float) -> list[tuple[float, int, int]]:
        """When it is expected to give back how many bytes and cores."""
        end, kept = self.expected_end(now), self.held
        tail, released = self.task.tail, []
        if tail is not None and not self.in_tail and tail.memory < kept:
            released = [(min(self._expected(tail.after, now), end), kept - tail.memory, 0)]
            kept = tail.memory
        return [*released, (end, kept, self.task.cores)]

    def _expected(self, after: float, now: float) -> float:
        predicted = self.started + after
        return predicted if predicted > now else now + 0.1 * max(now - self.started, 1.0)


@dataclass(frozen=True, kw_only=True)
class _Reservation:
    """Room kept for the first task that does not fit: from ``at`` on, only ``memory`` and ``cores`` are left beside
    it."""

    at: float
    memory: int
    cores: int


class Policy:
    """Decides which waiting tasks start. ``budget`` in bytes, ``cores`` as a count, both changed by :meth:`resize`."""

    def __init__(
        self,
        *,
        budget: int,
        cores: int,
        ceiling: int | None = None,
        patience_s: float = 3600.0,
        patience_alone_s: float = PATIENCE_ALONE_S,
    ) -> None:
        self.waiting: dict[str, Task] = {}
        self.running: dict[str, Running] = {}
        self.done: set[str] = set()
        self.budget = budget
        self.cores = cores
        self.ceiling = budget if ceiling is None else ceiling
        self.free = budget
        self._patience_s = patience_s
        self._patience_alone_s = patience_alone_s
        self._jobs: dict[str, int] = {}
        self._served: dict[str, float] = {}
        self._ended: list[Running] = []
        self._clock = 0.0
        self._has_turn: str | None = None
        self._idle_since: float | None = None

    @property
    def idle_since(self) -> float | None:
        """Since when nothing runs because the memory for what waits is other programs'; None where that is not so."""
        return self._idle_since if self.waiting and not self.running else None

    @property
    def held(self) -> int:
        """Memory that the running tasks hold, in bytes."""
        return sum(r.held for r in self.running.values())

    @property
    def cores_held(self) -> int:
        return sum(min(r.task.cores, self.cores) for r in self.running.values())

    def resize(self, *, budget: int, cores: int, ceiling: int | None = None, free: int | None = None) -> None:
        """A new budget; running tasks keep what they hold, even when that is more. ``ceiling`` is what there would be
        if no other program used memory, ``free`` the budget with the reserve, which one compile alone may use."""
        self.budget = budget
        self.cores = max(1, cores)
        self.ceiling = budget if ceiling is None else max(ceiling, budget)
        self.free = budget if free is None else max(free, budget)

    def limit_jobs(self, jobs: Mapping[str, int]) -> None:
        """How many cores each build may hold at most, for those that have such a limit."""
        self._jobs = dict(jobs)

    def submit(self, task: Task) -> None:
        """A task waits from now on (again, after a retry)."""
        if task.key in self.running:
            raise ValueError(f"{task.key} is running")
        self._join(task.build, task.arrived)
        self.done.discard(task.key)
        self.waiting[task.key] = task

    def resume(self, task: Task, *, started: float) -> None:
        """A task that is running already under an earlier broker: it holds its memory whether or not that fits."""
        self.waiting.pop(task.key, None)
        self._join(task.build, started)
        self.running[task.key] = Running(task=task, started=started, held=task.memory)

    def observe(self, key: str, used: int) -> None:
        """What a running task was measured to use (bytes): more than predicted holds back new admissions at once."""
        running = self.running.get(key)
        if running is not None and used > running.held:
            self.running[key] = replace(running, held=used)

    def enter_tail(self, key: str, used: int) -> None:
        """The first part of a running task is over, ``used`` bytes are in use: it holds only its tail from now on."""
        running = self.running.get(key)
        if running is not None and running.task.tail is not None and not running.in_tail:
            held = min(running.held, max(used, running.task.tail.memory))
            self.running[key] = replace(running, held=held, in_tail=True)

    def leave_tail(self, key: str, peak: int) -> None:
        """A first part that was thought to be over was not: the task holds again what it held before, ``peak`` being
        the most that was measured (bytes)."""
        running = self.running.get(key)
        if running is not None and running.in_tail:
            held = max(running.held, running.task.memory, peak)
            self.running[key] = replace(running, held=held, in_tail=False)

    def finish(self, key: str) -> None:
        """A task ended, or its client died: whatever it held is free. Unknown keys are fine."""
        known = key in self.running or key in self.waiting
        running = self.running.pop(key, None)
        if running is not None:
            self._ended.append(running)
        self.waiting.pop(key, None)
        if known:
            self.done.add(key)

    def forget(self, key: str) -> None:
        """Drop every trace of a task, so that a broker which lives long does not grow."""
        self.finish(key)
        self.done.discard(key)

    def order(self) -> list[Task]:
        """The waiting tasks, first to start first. Depends on the set and on what each build was given, not on the
        order in which the set was made. A build for whose first task room is kept has its turn until that starts."""
        by_build: defaultdict[str, list[Task]] = defaultdict(list)
        for task in self.waiting.values():
            by_build[task.build].append(task)
        queues = {build: self._queue(tasks) for build, tasks in by_build.items()}
        served = {build: self._used(build) + self._ahead(build) for build in queues}
        ordered: list[Task] = []
        if self._has_turn in queues:
            ordered.append(queues[self._has_turn].pop())
            served[self._has_turn] += self._charge(ordered[0])
        turns = [self._turn(build, served[build], queue[-1]) for build, queue in queues.items() if queue]
        heapq.heapify(turns)
        while turns:
            so_far, _, _, build = heapq.heappop(turns)
            queue = queues[build]
            task = queue.pop()
            ordered.append(task)
            if queue:
                heapq.heappush(turns, self._turn(build, so_far + self._charge(task), queue[-1]))
        return ordered

    def admit(self, now: float) -> list[Task]:
        """Start what may start at ``now`` and return it, in order."""
        admitted: list[Task] = []
        reservation: _Reservation | None = None
        reserved_for: str | None = None
        at_their_limit: set[str] = set()
        self._settle(now)
        for task in self.order():
            if self.cores_held >= self.cores or any(r.task.alone for r in self.running.values()):
                break
            if task.build in at_their_limit or not self._within_jobs(task):
                at_their_limit.add(task.build)  # its smaller ones stay behind it, so it cannot be starved
            elif self._fits(task):
                if reservation is None or self._harmless(task, reservation, now):
                    reservation = self._beside(task, reservation, now)
                    self._start(task, now)
                    admitted.append(task)
            elif reservation is None and (task.memory <= self.budget or self._overdue(task, now)):
                reservation, reserved_for = self._reserve(task, now), task.build
        self._has_turn = reserved_for
        first = None if self.running else next((t for t in self.order() if self._may_go_alone(t, now)), None)
        if first is not None:
            pressed_since = self._idle_since
            self._start(first if first.memory <= self.budget else replace(first, alone=True), now)
            self._idle_since = pressed_since  # the patience is spent once, not for every task
            admitted.append(first)
        return admitted

    def why_waiting(self, build: str | None = None) -> str:
        """In a few words, what the first waiting task (of a build) lacks; empty when none waits."""
        first = next((task for task in self.order() if build is None or task.build == build), None)
        if first is None:
            return ""
        if not self.running:
            return "other programs"
        if build is not None and all(running.task.build != build for running in self.running.values()):
            return "another build"
        if self.cores_held + min(first.cores, self.cores) > self.cores or not self._within_jobs(first):
            return "cores"
        return "memory"

    def _join(self, build: str, now: float) -> None:
        """A build that was away is level with the least served of those that are here, and keeps no credit."""
        self._settle(now)
        here = {task.build for task in self.waiting.values()} | {r.task.build for r in self.running.values()}
        if not here:
            self._served.clear()
        if build not in here:
            least = min((self._used(other) for other in here), default=0.0)
            self._served[build] = max(self._served.get(build, 0.0), least)

    def _settle(self, now: float) -> None:
        """Count what has ended against its build. Time never goes back, whatever a client says when it came."""
        self._clock = max(self._clock, now)
        for ended in self._ended:
            build = ended.task.build
            self._served[build] = self._served.get(build, 0.0) + self._taken(ended)
        self._ended.clear()

    def _used(self, build: str) -> float:
        """What a build was given until now, in seconds of the whole machine."""
        own = (r for r in self.running.values() if r.task.build == build)
        return self._served.get(build, 0.0) + sum(self._taken(r) for r in own)

    def _ahead(self, build: str) -> float:
        """What its running tasks will take soon."""
        own = (r for r in self.running.values() if r.task.build == build)
        return sum(self._share(r.task) * min(r.expected_end(self._clock) - self._clock, _AHEAD_S) for r in own)

    def _taken(self, running: Running) -> float:
        return self._share(running.task) * max(0.0, self._clock - running.started)

    def _charge(self, task: Task) -> float:
        return self._share(task) * min(task.seconds, _AHEAD_S)

    def _turn(self, build: str, served: float, head: Task) -> tuple[float, float, float, str]:
        """Where builds were given the same, the one that holds less now is first, then the one with more to do."""
        holds = sum(self._share(r.task) for r in self.running.values() if r.task.build == build)
        return (served, holds, -self._work(head), build)

    def _share(self, task: Task) -> float:
        return max(min(task.cores, self.cores) / self.cores, task.average / max(self.budget, 1))

    def _work(self, task: Task) -> float:
        return task.seconds * self._share(task)

    def _within_jobs(self, task: Task) -> bool:
        most = self._jobs.get(task.build)
        if most is None:
            return True
        own = sum(min(r.task.cores, most) for r in self.running.values() if r.task.build == task.build)
        return own + min(task.cores, most) <= most

    def _queue(self, tasks: list[Task]) -> list[Task]:
        """One build's tasks, the first at the end."""
        oldest = min(task.arrived for task in tasks)
        return sorted(tasks, key=lambda task: self._priority(task, oldest), reverse=True)

    def _priority(self, task: Task, oldest: float) -> tuple[int, float, str]:
        cores = min(self.cores, self._jobs.get(task.build, self.cores))
        share = max(min(task.cores, cores) / cores, task.average / max(self.budget, 1))
        return (int((task.arrived - oldest) / self._patience_s), -task.seconds * share, task.key)

    def _overdue(self, task: Task, now: float) -> bool:
        return now - task.arrived > self._patience_s

    def _fits(self, task: Task) -> bool:
        if task.alone:
            return not self.running and task.memory <= self.budget
        return self.held + task.memory <= self.budget and self.cores_held + min(task.cores, self.cores) <= self.cores

    def _may_go_alone(self, task: Task, now: float) -> bool:
        if self._idle_since is None:
            self._idle_since = now
        if task.memory > self.ceiling or task.memory <= self.free:
            return True
        return now - self._idle_since >= self._patience_alone_s

    def _start(self, task: Task, now: float) -> None:
        del self.waiting[task.key]
        self.running[task.key] = Running(task=task, started=now, held=task.memory)
        self._idle_since = None

    def _reserve(self, task: Task, now: float) -> _Reservation:
        held, cores_held, at = self.held, self.cores_held, now
        for moment, memory, cores in sorted(r for running in self.running.values() for r in running.releases(now)):
            if not task.alone and self._room(task, held, cores_held):
                break
            at = moment
            held -= memory
            cores_held -= min(cores, self.cores)
        if task.alone:
            return _Reservation(at=at, memory=0, cores=0)
        return _Reservation(
            at=at,
            memory=max(0, self.budget - held - task.memory),
            cores=max(0, self.cores - cores_held - min(task.cores, self.cores)),
        )

    def _room(self, task: Task, held: int, cores_held: int) -> bool:
        return held + task.memory <= self.budget and cores_held + min(task.cores, self.cores) <= self.cores

    def _harmless(self, task: Task, reservation: _Reservation, now: float) -> bool:
        memory = task.memory_after(reservation.at - now)
        return now + task.seconds <= reservation.at or (
            memory <= reservation.memory and min(task.cores, self.cores) <= reservation.cores
        )

    def _beside(self, task: Task, reservation: _Reservation | None, now: float) -> _Reservation | None:
        if reservation is None or now + task.seconds <= reservation.at:
            return reservation
        return replace(
            reservation,
            memory=reservation.memory - task.memory_after(reservation.at - now),
            cores=reservation.cores - min(task.cores, self.cores),
        )
