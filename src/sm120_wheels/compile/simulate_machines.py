"""How long a build would take when its compiles go to several machines: one client that sends, N builders that compile.

The model, and what it leaves out:

- A compile has a part that stays on the client (preprocessing and what cannot be sent) and a part that goes to a
  builder. The client does the first with its own cores, first come first served.
- What is sent goes over one link of the client, one after the other, at its speed, plus a fixed time for each. What
  comes back is small beside it and is not in the model.
- A file goes to the builder with the fewest for each of its cores, as sccache's scheduler does it; each builder
  admits by the policy itself, within its own memory. So many are under way as there are cores on all builders.
- Not in it: links and configure, the first transfer of the toolchain, builders of other speeds, a scheduler that fails.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sm120_wheels.compile.policy import Policy
from sm120_wheels.compile.task import Task, lower_bound


@dataclass(frozen=True, kw_only=True)
class Link:
    """``bytes_each``: what is sent for a file (compressed text); ``bytes_per_s`` of the client's link;
    ``seconds_each``: the rest of what a transfer takes."""

    bytes_each: int
    bytes_per_s: float
    seconds_each: float


@dataclass(frozen=True, kw_only=True)
class Machines:
    """Seconds and bytes. ``peak``: the most memory in use on one builder. ``lower_bound``: of the builders' part, as if
    they were one machine without a link."""

    makespan: float
    lower_bound: float
    peak: int
    files_each: tuple[int, ...]


def simulate_machines(
    tasks: Sequence[Task],
    *,
    machines: int,
    cores: int,
    budget: int,
    client_cores: int,
    local_share: float,
    link: Link,
    truth: Mapping[str, Task] | None = None,
) -> Machines:
    """Run ``tasks`` in the order given. ``cores`` and ``budget`` (bytes) are each builder's; ``local_share``: which
    part of a compile's time stays on the client. ``truth``: what they really take where the tasks are only
    predictions. A file holds its peak until it ends here."""
    real = {k: (t.memory, t.seconds) for k, t in ({task.key: task for task in tasks} | dict(truth or {})).items()}
    remote = {key: (memory, seconds * (1 - local_share)) for key, (memory, seconds) in real.items()}
    policies = [Policy(budget=budget, cores=cores, patience_s=float("inf")) for _ in range(machines)]
    assigned = [0] * machines
    files = [0] * machines
    use = [0] * machines
    where: dict[str, int] = {}
    events: list[tuple[float, int, str, str]] = []
    number = itertools.count()
    client_free = [0.0] * client_cores
    link_free = peak = now = 0.0
    waiting = list(reversed(tasks))
    by_key = {task.key: task for task in tasks}
    while waiting or events:
        while waiting and len(where) < machines * cores:
            task = waiting.pop()
            begins = max(now, heapq.heappop(client_free))
            here = begins + real[task.key][1] * local_share
            heapq.heappush(client_free, here)
            where[task.key] = -1
            heapq.heappush(events, (here, next(number), "ready", task.key))
        now, _, what, key = heapq.heappop(events)
        if what == "ready":
            link_free = max(link_free, now) + link.bytes_each / link.bytes_per_s
            heapq.heappush(events, (link_free + link.seconds_each, next(number), "sent", key))
            continue
        if what == "sent":
            chosen = min(range(machines), key=lambda m: (assigned[m], m))
            where[key] = chosen
            assigned[chosen] += 1
            files[chosen] += 1
            task = by_key[key]
            policies[chosen].submit(
                Task(key=key, memory=task.memory, seconds=task.seconds * (1 - local_share), cores=task.cores)
            )
        else:
            chosen = where.pop(key)
            assigned[chosen] -= 1
            use[chosen] -= remote[key][0]
            policies[chosen].finish(key)
        for started in policies[chosen].admit(now):
            memory, seconds = remote[started.key]
            policies[chosen].observe(started.key, memory)
            use[chosen] += memory
            peak = max(peak, use[chosen])
            heapq.heappush(events, (now + seconds, next(number), "ended", started.key))
    whole = [Task(key=k, memory=m, seconds=s) for k, (m, s) in remote.items()]
    return Machines(
        makespan=now,
        lower_bound=lower_bound(whole, cores=cores * machines, budget=budget * machines),
        peak=int(peak),
        files_each=tuple(files),
    )


def repeated(tasks: Sequence[Task], count: int) -> list[Task]:
    """``count`` tasks: those given, over and over, each time under another name."""
    return [
        Task(key=f"{task.key}#{round_}", memory=task.memory, seconds=task.seconds, cores=task.cores)
        for round_, task in itertools.islice(
            ((i // len(tasks), tasks[i % len(tasks)]) for i in itertools.count()), count if tasks else 0
        )
    ]
