"""Progress: what is told, and how little of it where nobody looks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sm120_wheels.compile.budget import MIB
from sm120_wheels.compile.profile import Profile, Unit
from sm120_wheels.compile.progress import (
    Progress,
    RunningUnit,
    SparseLines,
    progress_of,
    progress_without_broker,
    render,
)
from sm120_wheels.compile.sampling import largest_programs


def status(**other: Any) -> dict[str, Any]:
    client = {"uid": "r", "source": "/w/k/r.cu", "session": "s", "used": 90 * MIB, "needs": 100 * MIB}
    return {
        "cores": 1,
        "budget": 400 * MIB,
        "held": 100 * MIB,
        "used": 90 * MIB,
        "why_waiting": "memory",
        "others_for_s": 0.0,
        "bound_by": "free memory",
        "builds": {"s": {"used": 80 * MIB, "cores": 1, "why_waiting": "cores"}},
        "running": [{**client, "for_s": 4.0, "expected_s": 10.0}, {**client, "uid": "x", "session": "another"}],
        "waiting": [{**client, "uid": "w", "source": "/w/k/w.cu", "for_s": 9.0, "expected_s": 20.0}],
        "waiting_in": {"s": 1},
        **other,
    }


PROFILE = Profile(
    units={f"k/{n}.cu": Unit(source=f"k/{n}.cu", peak=50 * MIB, seconds=30) for n in ("r", "w", "done", "unseen")}
)
DONE = {"kind": "end", "uid": "d", "source": "/w/k/done.cu", "retry": False}


def progress(done: int = 1, total: int | None = 10) -> Progress:
    return Progress(
        done=done,
        running=(RunningUnit(source="/w/a.cu", seconds=9, expected_seconds=3, used=MIB),),
        waiting=2,
        total=total,
        used=MIB,
        held=MIB,
        budget=4 * MIB,
        why_waiting="memory",
        killed=1,
        seconds_left=61.0,
    )


def test_only_this_builds_files_count_and_the_rest_comes_from_the_profile() -> None:
    told = progress_of(status(), [DONE], session="s", profile=PROFILE)
    assert (told.done, len(told.running), told.waiting, told.total) == (1, 1, 1, 4)
    assert told.seconds_left == 6 + 20 + 30
    assert "1 of 4 compiled, 1 running, 1 waiting for cores" in told.line()
    assert told.line().endswith("about 56.0 s left")


def test_what_ended_after_the_broker_was_asked_is_counted_once() -> None:
    ended = [DONE, {**DONE, "uid": "r", "source": "/w/k/r.cu"}, {**DONE, "uid": "w", "source": "/w/k/w.cu"}]
    told = progress_of(status(), ended, session="s", profile=PROFILE)
    assert (told.done, told.running, told.waiting, told.total) == (3, (), 0, 4)


def test_a_file_that_does_not_compile_is_named_at_once_and_never_counted_as_compiled() -> None:
    bad = {**DONE, "uid": "b", "source": "/w/k/w.cu", "exit": 2, "wall_s": 1.0, "expected_s": 1.0}
    told = progress_of(status(), [DONE, bad], session="s", profile=PROFILE)
    assert (told.done, told.failed) == (1, ("w.cu",))
    assert "FAILED: w.cu" in told.line()
    said: list[str] = []
    lines = SparseLines(said.append, clock=lambda: 0.0)
    lines.tell(replace(told, failed=(), total=100))
    lines.tell(replace(told, total=100))
    assert said == [replace(told, total=100).line()]


def test_time_left_follows_the_pace_of_what_has_ended() -> None:
    slow = {**DONE, "wall_s": 90.0, "expected_s": 30.0, "exit": 0}
    told = progress_of(status(), [slow], session="s", profile=PROFILE)
    assert told.seconds_left == pytest.approx(3 * (10 + 20 + 30) - 4)


@pytest.mark.parametrize(("tail", "seconds"), [(None, 190.0), ({"memory": MIB, "after": 50.0}, 140.0)])
def test_time_left_counts_on_the_room_that_files_past_their_peak_give(
    tail: dict[str, Any] | None, seconds: float
) -> None:
    client = {"uid": "r", "source": "/w/k/r.cu", "session": "s", "used": MIB, "needs": 3 * MIB, "tail": tail}
    asked = status(
        running=[{**client, "for_s": 10.0, "expected_s": 100.0}],
        waiting=[{**client, "uid": "w", "source": "/w/k/w.cu", "for_s": 9.0, "expected_s": 100.0}],
        builds={"s": {"used": MIB, "cores": 2, "why_waiting": "memory"}},
        budget=4 * MIB,
    )
    known = Profile(units={u.source: u for u in PROFILE.units.values() if u.source in ("k/r.cu", "k/w.cu")})
    assert progress_of(asked, [], session="s", profile=known).seconds_left == seconds


def test_files_that_need_no_compile_are_neither_waited_for_nor_counted_as_compiled() -> None:
    there = [".sm120-roots/w/k/unseen.cu", "/w/k/done.cu", "/w/k/r.cu", "/w/k/another.cu"]
    told = progress_of(status(), [DONE], session="s", profile=PROFILE, present=there)
    assert (told.done, told.there, told.total) == (1, 1, 3), "what runs or ended here is this build's own"
    assert told.seconds_left == 6 + 20
    assert told.line().startswith("1 of 3 compiled (1 there already), 1 running")


def test_without_a_profile_no_total_and_no_time_are_made_up() -> None:
    told = progress_of(status(), [DONE], session="s", profile=None)
    assert (told.total, told.seconds_left) == (None, None)
    assert "left" not in told.line()


def test_a_wait_for_other_programs_says_who_holds_the_memory_and_how_much_is_wanted_and_free() -> None:
    pressed = status(
        running=[], others_for_s=7.0, builds={"s": {"used": 0, "cores": 1, "why_waiting": "other programs"}}
    )
    told = progress_of(pressed, [DONE], session="s", profile=PROFILE, largest=[("java", 3 << 30), ("firefox", MIB)])
    assert told.line() == (
        "1 of 4 compiled, 0 running, 1 waiting, memory 0 B of 419.4 MB, about 1 min 20 s left; waiting 7.0 s (at most "
        "5 min 00 s) for other programs to give memory back: w.cu wants 104.9 MB, 419.4 MB are "
        "free by free memory; the largest programs are java 3.2 GB, firefox 1.0 MB"
    )
    assert progress_of({**pressed, "others_for_s": 4.0}, [], session="s", profile=None).others is None


def test_the_largest_programs_are_named_with_all_their_processes() -> None:
    programs = dict(largest_programs(10_000))
    own = Path("/proc/self/comm").read_text().strip()
    assert programs[own] >= 4 * MIB
    assert list(programs.values()) == sorted(programs.values(), reverse=True)


def test_a_wait_for_other_programs_is_said_at_once_and_then_every_half_minute() -> None:
    now = [0.0]
    said: list[str] = []
    lines = SparseLines(said.append, clock=lambda: now[0])
    held_up = replace(progress(done=0), one_at_a_time=2)
    for second in range(50):
        now[0] = second
        lines.tell(held_up if second >= 5 else progress(done=0))
    assert len(said) == 2
    assert said[0].endswith("no compile broker can be started: compiling one file at a time")


def test_without_a_broker_the_records_alone_say_what_is_done() -> None:
    told = progress_without_broker([DONE, {**DONE, "kind": "turn", "uid": "t"}], profile=PROFILE)
    assert (told.done, told.total, told.one_at_a_time) == (2, 4, 1)


def test_off_a_terminal_a_line_comes_at_most_every_half_minute_or_tenth() -> None:
    now = [0.0]
    said: list[str] = []
    lines = SparseLines(said.append, clock=lambda: now[0])
    for second in range(61):
        now[0] = second
        lines.tell(progress(done=0, total=10))
    assert len(said) == 2
    lines.tell(progress(done=1, total=10))
    lines.tell(progress(done=1, total=10))
    assert len(said) == 3
    assert "1 killed and tried again" in said[-1]


def test_while_nothing_compiles_the_stage_is_said_at_once_and_again_every_half_minute() -> None:
    now = [0.0]
    said: list[str] = []
    lines = SparseLines(said.append, clock=lambda: now[0])
    for second in range(40):
        now[0] = second
        lines.tell(replace(progress(done=10), stage="packing the wheel"))
    assert said == ["packing the wheel; 10 of 10 compiled"] * 2


def test_the_live_view_shows_files_memory_and_what_runs() -> None:
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(render(progress()))
    text = console.export_text()
    assert "a.cu" in text
    assert "1/10" in text
    assert "of 4.2 MB" in text
