"""The lines that the broker writes about a build as it happens: one for each end of a compile, one a second for the
whole.

They are what the summary, the trace and the progress are made of. JSON lines; memory in bytes, times in seconds,
moments in seconds since the epoch.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sm120_wheels.compile.budget import Budget, oom_kills
from sm120_wheels.compile.policy import Policy
from sm120_wheels.compile.protocol import Message
from sm120_wheels.compile.task import Tail

if TYPE_CHECKING:
    from sm120_wheels.compile.client import Client


def end_record(
    client: Client,
    *,
    peak: int,
    tail: Tail | None,
    code: int,
    killed: bool,
    retry: bool,
    message: Message,
) -> dict[str, Any]:
    ended = time.time()
    wall = message.number("wall_ms") / 1000
    return {
        "kind": "end",
        "uid": client.uid,
        "source": client.command.source or client.command.output,
        "attempt": client.attempt,
        "arrived": round(client.arrived_at, 3),
        "started": round(ended - wall, 3),
        "ended": round(ended, 3),
        "wall_s": wall,
        "cpu_s": message.number("cpu_ms") / 1000,
        "waited_s": message.number("waited_ms") / 1000,
        "peak": peak,
        "mean": client.envelope.mean,
        "tail": tail and asdict(tail),
        "reserved": client.reserved,
        "expected": client.prediction.expected,
        "expected_s": round(client.prediction.seconds, 3),
        "basis": client.prediction.basis,
        "cores": client.command.parallel,
        "exit": code,
        "killed": killed,
        "retry": retry,
    }


def sample_record(policy: Policy, budget: Budget, *, session: str, used: int, cores: int) -> dict[str, Any]:
    """One build's second: ``used`` and ``cores`` are its own, ``held`` and ``budget`` those of all builds together."""
    return {
        "kind": "sample",
        "at": round(time.time(), 3),
        "used": used,
        "held": policy.held,
        "budget": budget.memory,
        "bound_by": budget.bound_by,
        "cores": cores,
        "running": sum(running.task.build == session for running in policy.running.values()),
        "waiting": sum(task.build == session for task in policy.waiting.values()),
        "why_waiting": policy.why_waiting(session),
        "oom_kills": oom_kills(),
    }
