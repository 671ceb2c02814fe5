"""Summary and trace, from records as the broker writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sm120_wheels.compile.budget import MIB
from sm120_wheels.compile.summary import Records, read_records, summarise
from sm120_wheels.compile.trace import trace_events


def end(uid: str, started: float, ended: float, **other: Any) -> dict[str, Any]:
    return {
        "kind": "end",
        "uid": uid,
        "source": f"/w/{uid}.cu",
        "attempt": 0,
        "arrived": 0.0,
        "started": started,
        "ended": ended,
        "wall_s": ended - started,
        "cpu_s": ended - started,
        "waited_s": started,
        "peak": 100 * MIB,
        "reserved": 120 * MIB,
        "expected": 110 * MIB,
        "expected_s": 1.0,
        "basis": "profile",
        "cores": 1,
        "exit": 0,
        "killed": False,
        "retry": False,
        **other,
    }


def sample(at: float, **other: Any) -> dict[str, Any]:
    return {
        "kind": "sample",
        "at": at,
        "used": 50 * MIB,
        "held": 60 * MIB,
        "budget": 200 * MIB,
        "bound_by": "free memory",
        "cores": 2,
        "running": 1,
        "waiting": 0,
        "why_waiting": "",
        "oom_kills": 3,
        **other,
    }


def test_makespan_bound_and_lost_time_add_up() -> None:
    records = [end("a", 0, 10), end("b", 10, 14), sample(1), sample(5, used=170 * MIB, oom_kills=4)]
    summary = summarise(records, cores=8, budget=1)
    assert (summary.makespan, summary.cores, summary.budget) == (14.0, 2, 200 * MIB)
    assert summary.lower_bound == 10.0
    assert summary.efficiency == round(10 / 14, 4)
    assert summary.peak_used == 170 * MIB
    assert summary.oom_kills == 1
    assert (summary.lost.waiting, summary.lost.no_work) == (10.0, 4.0), "b waited beside a; then nobody beside b"


def test_a_killed_try_and_its_successor_are_one_unit() -> None:
    records = [
        end("a", 0, 2, exit=-9, killed=True, retry=True, peak=300 * MIB),
        end("a", 2, 5, attempt=1),
        end("b", 0, 1, exit=1),
    ]
    summary = summarise(records, cores=2, budget=400 * MIB)
    units = {u.source: u for u in summary.units}
    assert (units["/w/a.cu"].retries, units["/w/a.cu"].exit_code, units["/w/a.cu"].peak_rss) == (1, 0, 300 * MIB)
    assert (summary.kills, summary.failed, summary.killed_for_good) == (1, ("/w/b.cu",), ())


def test_a_line_cut_off_by_a_dying_broker_and_one_said_twice_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    line = json.dumps(end("a", 0, 1))
    path.write_text(line + "\n" + line + "\n" + line[:40])
    assert len(read_records(path)) == 1
    assert read_records(tmp_path / "none") == []


def test_the_trace_gives_each_compile_a_row_of_its_own_and_counts_memory() -> None:
    events = trace_events([end("a", 0, 10), end("b", 1, 3), end("c", 4, 5), sample(2)])
    rows = {e["name"]: (e["tid"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"}
    assert rows == {"a.cu": (1, 0, 10_000_000), "b.cu": (2, 1_000_000, 2_000_000), "c.cu": (2, 4_000_000, 1_000_000)}
    counters = {e["name"]: e["args"] for e in events if e["ph"] == "C"}
    assert counters["budget MiB"] == {"budget": 200}
    json.dumps(events)


def test_records_are_read_as_they_are_written_and_a_line_only_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    records = Records(path)
    assert records.read() == []
    with path.open("a", encoding="utf-8") as stream:
        stream.write('{"kind": "sample", "at": 1}\n{"kind": "sam')
        stream.flush()
        assert [r["at"] for r in records.read()] == [1]
        stream.write('ple", "at": 2}\n')
        stream.flush()
        assert [r["at"] for r in records.read()] == [1, 2]
