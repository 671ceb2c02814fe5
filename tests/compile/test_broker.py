"""The broker as its users see it: status, stop, idle end, a second one, other users' eyes."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sm120_wheels.compile.broker import Gathering
from sm120_wheels.compile.protocol import connect, encode
from sm120_wheels.compile.session import CompileSession, compile_session
from tests.compile.building import Project, Runtime
from tests.support.waiting import until


@pytest.fixture
def session(runtime: Runtime, tmp_path: Path) -> Iterator[CompileSession]:
    with compile_session(package="pack", work_dir=tmp_path / "w", budget=900 << 20, cores=1) as session:
        yield session


@pytest.fixture
def compiling(session: CompileSession, project: Project, runtime: Runtime, tmp_path: Path) -> Iterator[list[Path]]:
    """One file compiles until its gate exists, and one waits for it; gives the gate in a list, and ends both."""
    gate = tmp_path / "gate"
    for name in ("first.cu", "second.cu"):
        project.add(name, mb=20, ms=0, gate=gate)
    project.write(session.launcher[0])
    ninja = project.ninja(env=session.environment)
    until(
        lambda: (s := runtime.status() or {}).get("running_count") == 1 and s["waiting_count"] == 1,
        what="one compiles and one waits",
    )
    yield [gate]
    gate.touch()
    output, _ = ninja.communicate(timeout=60)
    assert ninja.returncode == 0, output


def sm120(*arguments: str) -> str:
    ran = subprocess.run([sys.executable, "-m", "sm120_wheels", *arguments], capture_output=True, text=True, check=True)
    return ran.stdout


def test_status_shows_what_compiles_what_waits_and_why(compiling: list[Path]) -> None:
    text = sm120("broker", "status")
    assert "1 running, 1 waiting for cores" in text
    assert "943.7 MB allowed (set by the limit asked for)" in text
    rows = [line.split() for line in text.splitlines() if ".cu" in line]
    assert [row[0] for row in rows] == ["running", "waiting"]
    assert all("pack" in row and "default" in row for row in rows)


def test_a_stopped_broker_is_replaced_and_the_build_goes_on(compiling: list[Path], runtime: Runtime) -> None:
    before = runtime.broker_pid()
    assert "told to end" in sm120("broker", "stop")
    until(
        lambda: (
            (status := runtime.status())
            and status["pid"] != before
            and (status["running_count"], status["waiting_count"]) == (1, 1)
        ),
        what="the new broker knows both",
    )


def test_a_second_broker_ends_at_once(session: CompileSession, runtime: Runtime) -> None:
    subprocess.run([*session.launcher, "true"], env={**os.environ, **session.environment}, check=True)
    first = runtime.broker_pid()
    ran = subprocess.run(
        [sys.executable, "-m", "sm120_wheels.compile.broker", str(runtime.socket)], timeout=120, check=False
    )
    assert ran.returncode == 0
    assert runtime.broker_pid() == first


def test_it_ends_when_nobody_comes_and_leaves_no_socket(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SM120_BROKER_IDLE_S", "0.5")
    with compile_session(package="p", work_dir=tmp_path / "w") as session:
        until(lambda: not runtime.socket.exists(), what="the broker ends")
        subprocess.run([*session.launcher, "true"], env={**os.environ, **session.environment}, check=True)


def test_only_its_user_can_reach_it(session: CompileSession, runtime: Runtime) -> None:
    assert stat.S_IMODE(runtime.socket.parent.stat().st_mode) == 0o700


def test_nonsense_does_not_harm_it(compiling: list[Path], runtime: Runtime) -> None:
    pid = runtime.broker_pid()
    for packet in (b"\xff\xfe\0=\0\0", encode({"state": "ended", "exit": "x"}), encode({"state": "running"})):
        with connect(runtime.socket) as connection:
            connection.send(packet)
    until(lambda: (runtime.status() or {}).get("running_count") == 1, what="the nonsense is forgotten")
    assert runtime.broker_pid() == pid


def test_those_that_come_together_are_heard_out_before_one_is_let_in_but_not_for_ever() -> None:
    gathering = Gathering(0.0)
    assert gathering.left(5.0) is None
    for moment in range(5000, 5500, 5):
        gathering.arrived(moment / 1000)
        assert gathering.left(moment / 1000 + 0.004) is not None, "one came a moment ago"
    assert gathering.left(5.5) is None, "half a second is the most"
    gathering.arrived(6.0)
    assert gathering.left(6.009) is None, "no other one came"


def test_a_new_broker_hears_out_launchers_that_look_for_it_now_and_then() -> None:
    gathering = Gathering(0.0)
    gathering.arrived(0.1)
    assert gathering.left(0.2) == pytest.approx(0.05)
