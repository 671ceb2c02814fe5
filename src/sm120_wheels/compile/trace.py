"""The records of a build as a trace that Perfetto (and chrome://tracing) opens: who compiled when, and the memory
over time.

Format: the Trace Event Format's JSON ("X" complete events, "C" counters, "M" metadata; times in microseconds).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from sm120_wheels.files import write_json

_COMPILES, _MEMORY = 1, 2


def trace_events(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row for each compile that ran at the same time, and counters of used, reserved and allowed memory in MiB."""
    listed = list(records)
    ends = sorted((r for r in listed if r["kind"] == "end"), key=lambda r: (r["started"], r["uid"]))
    zero = min([r["arrived"] for r in ends] + [r["at"] for r in listed if r["kind"] == "sample"], default=0.0)
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": _COMPILES, "tid": 0, "args": {"name": "compiles"}},
        {"ph": "M", "name": "process_name", "pid": _MEMORY, "tid": 0, "args": {"name": "memory"}},
    ]
    rows: list[float] = []
    for record in ends:
        row = next((i for i, free in enumerate(rows) if free <= record["started"]), len(rows))
        rows[row : row + 1] = [record["ended"]]
        events.append(
            {
                "ph": "X",
                "cat": "killed" if record["killed"] else "compile",
                "name": PurePosixPath(record["source"]).name or "?",
                "pid": _COMPILES,
                "tid": row + 1,
                "ts": round((record["started"] - zero) * 1e6),
                "dur": round(record["wall_s"] * 1e6),
                "args": {k: v for k, v in record.items() if k not in ("kind", "uid")},
            }
        )
    for record in listed:
        if record["kind"] == "sample":
            at = round((record["at"] - zero) * 1e6)
            values = {name: round(record[name] / 2**20) for name in ("used", "held", "budget")}
            for name, value in values.items():
                events.append(
                    {"ph": "C", "name": f"{name} MiB", "pid": _MEMORY, "tid": 0, "ts": at, "args": {name: value}}
                )
            tasks = {"running": record["running"], "waiting": record["waiting"]}
            events.append({"ph": "C", "name": "files", "pid": _MEMORY, "tid": 0, "ts": at, "args": tasks})
    return events


def write_trace(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    write_json(path, {"displayTimeUnit": "ms", "traceEvents": trace_events(records)})
