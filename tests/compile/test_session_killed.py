"""A session whose compilers, launchers, broker or build are killed: nothing is stuck, left running or lost."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sm120_wheels.compile.budget import MIB
from sm120_wheels.compile.session import compile_session
from sm120_wheels.errors import BrokerNotStartedError, CompilerKilledError
from tests.compile.building import Cgroup, Project, Runtime, recorded, start
from tests.support.waiting import until


def test_an_interrupted_launcher_ends_its_compiler_and_dies_by_the_signal(
    runtime: Runtime, project: Project, tmp_path: Path
) -> None:
    project.add("slow.cu", mb=1, ms=0, gate=tmp_path / "never")
    with compile_session(package="p", work_dir=tmp_path / "w", profile=project.profile()) as session:
        process = start(project, session, "slow.cu")
        until(lambda: (runtime.status() or {}).get("running_count") == 1, what="it compiles")
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=120) == -signal.SIGINT
        until(lambda: (runtime.status() or {}).get("held") == 0, what="its reservation is gone")


def test_a_killed_launcher_frees_its_reservation_and_leaves_no_compiler(
    runtime: Runtime, project: Project, tmp_path: Path
) -> None:
    source = project.add("slow.cu", mb=30, ms=0, gate=tmp_path / "never")
    with compile_session(package="p", work_dir=tmp_path / "w", profile=project.profile()) as session:
        process = start(project, session, "slow.cu")
        until(lambda: (runtime.status() or {}).get("used", 0) > 30 * MIB, what="the compiler holds its memory")
        process.kill()
        process.wait()
        until(lambda: (runtime.status() or {}).get("held") == 0, what="its reservation is gone")
        assert _processes_of(str(source)) == []


def test_a_new_broker_knows_what_runs(runtime: Runtime, project: Project, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    for name in ("a.cu", "b.cu"):
        project.add(name, mb=20, ms=0, gate=gate)
    with compile_session(
        package="p", work_dir=tmp_path / "w", profile=project.profile(), cores=2, budget=300 * MIB
    ) as session:
        project.write(session.launcher[0])
        ninja = project.ninja(f"-j{session.ninja_jobs}", env=session.environment)
        first = until(lambda: (runtime.status() or {}).get("running_count") == 2 and runtime.status(), what="two run")
        os.kill(first["pid"], signal.SIGKILL)
        second = until(
            lambda: (runtime.status() or {}).get("running_count") == 2 and runtime.status(), what="both are known again"
        )
        assert second["pid"] != first["pid"]
        assert second["held"] == first["held"] > 0
        gate.touch()
        output, _ = ninja.communicate(timeout=120)
        assert ninja.returncode == 0, output
    assert len(session.summary.units) == 2


def test_without_a_broker_compiles_take_turns_and_say_so_once(
    runtime: Runtime, project: Project, tmp_path: Path
) -> None:
    for i in range(4):
        project.add(f"u{i}.cu", mb=5, ms=50)
    with compile_session(package="p", work_dir=tmp_path / "w") as session:
        project.write(session.launcher[0])
        runtime.stop_broker()
        ninja = project.ninja("-j4", env={**session.environment, "SM120_PYTHON": "/bin/false"})
        output, _ = ninja.communicate(timeout=120)
    assert ninja.returncode == 0, output
    assert "4 files compiled one at a time: no broker could be started" in session.summary.lines()
    assert output.count("no compile broker can be started") == 1
    assert session.summary.without_broker == 4
    assert len(session.summary.units) == 4
    lines = [json.loads(line) for line in session.records.read_text().splitlines()]
    spans = sorted((r["ended"] - r["wall_s"], r["ended"]) for r in lines)
    assert all(later[0] >= earlier[1] - 0.02 for earlier, later in itertools.pairwise(spans))


def test_a_broker_that_cannot_be_started_is_an_error_of_the_build_and_names_its_log(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho cannot import the broker >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with pytest.raises(BrokerNotStartedError) as raised, compile_session(package="p", work_dir=tmp_path / "w"):
        pytest.fail("the build was let start")
    assert raised.value.exit_code == 48
    text = str(raised.value)
    assert "the compile broker cannot be started" in text
    assert "cannot import the broker" in text
    assert f"see {runtime.socket}.log" in text


_OWNER = """
import sys
from pathlib import Path
from sm120_wheels.compile.session import compile_session
from tests.compile.building import Project
work, folder, fakecc = map(Path, sys.argv[1:])
project = Project(folder=folder, fakecc=fakecc, units={p.name: (5, 0) for p in (folder / "csrc/k").iterdir()})
with compile_session(package="p", work_dir=work, cores=2, profile=project.profile()) as session:
    project.write(session.launcher[0])
    project.ninja(f"-C{folder}", "-k0", env=session.environment).wait()
"""


def test_a_killed_build_leaves_neither_compilers_nor_a_build_tool(
    runtime: Runtime, project: Project, tmp_path: Path
) -> None:
    """kill -9 of the process that holds the session: what it started ends, also files that had not begun."""
    gate = tmp_path / "never"
    for i in range(6):
        project.add(f"u{i}.cu", mb=5, ms=0, gate=gate)
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(tmp_path / "w"), str(project.folder), str(project.fakecc)],
        stdout=subprocess.PIPE,
        text=True,
    )
    until(lambda: (runtime.status() or {}).get("running_count") == 2, what="two compile")
    left = (str(project.fakecc), f"-C{project.folder}")
    assert all(_processes_of(word) for word in left)
    owner.kill()
    owner.communicate()
    until(lambda: not any(_processes_of(word) for word in left), what="compilers, launchers and ninja have ended")
    until(lambda: (s := runtime.status() or {}).get("held") == 0 and s["waiting_count"] == 0, what="all is released")


def test_a_profile_that_lies_costs_kills_but_not_the_build(
    runtime: Runtime, project: Project, tmp_path: Path, make_cgroup: Callable[[int], Cgroup]
) -> None:
    cgroup = make_cgroup(400 * MIB)
    arrived, gate = tmp_path / "arrived", tmp_path / "gate"
    for i in range(6):
        project.add(f"u{i}.cu", mb=160 + 10 * i, ms=0, gate=gate)
    targets = [f"{name}.o" for name in project.units]
    project.add("before.cu", mb=1, ms=0, gate=arrived)
    project.units["before.cu"] = (3200, 0)  # so the others wait for memory, and then start together
    with compile_session(package="p", work_dir=tmp_path / "w", profile=project.profile(scale=0.1), cores=8) as session:
        project.write(session.launcher[0])
        before = start(project, session, "before.cu")
        until(lambda: (runtime.status() or {}).get("running_count") == 1, what="the memory is taken")
        ninja = project.ninja(f"-j{session.ninja_jobs}", *targets, env=session.environment, preexec=cgroup.enter)
        until(lambda: (runtime.status() or {}).get("waiting_count") == 6, what="all have arrived")
        arrived.touch()
        until(lambda: recorded(session, '"killed": true'), what="one is killed")
        gate.touch()
        output, _ = ninja.communicate(timeout=120)
        assert before.wait(timeout=120) == 0
    assert ninja.returncode == 0, output
    assert "Killed" not in output
    summary = session.summary
    assert len(summary.units) == 7
    assert summary.kills >= 1
    assert sum(u.retries for u in summary.units) == summary.kills
    assert summary.failed == ()

    for each in (gate, *project.folder.glob("*.o")):
        each.unlink()
    project.write()
    kills = cgroup.oom_kills()
    plain = project.ninja("-j6", "-k0", *targets, preexec=cgroup.enter)
    until(lambda: cgroup.oom_kills() > kills, what="without the launcher one is killed as well")
    gate.touch()
    output, _ = plain.communicate(timeout=120)
    assert plain.returncode != 0


def test_a_compiler_killed_at_every_try_is_told_as_memory(
    runtime: Runtime, project: Project, tmp_path: Path, make_cgroup: Callable[[int], Cgroup]
) -> None:
    cgroup = make_cgroup(100 * MIB)
    project.add("huge.cu", mb=200, ms=10)
    with (
        pytest.raises(CompilerKilledError) as raised,
        compile_session(package="p", work_dir=tmp_path / "w") as session,
    ):
        project.write(session.launcher[0])
        ninja = project.ninja(env=session.environment, preexec=cgroup.enter)
        output, _ = ninja.communicate(timeout=120)
        assert "Killed" in output
        raise RuntimeError("ninja failed")
    assert raised.value.exit_code == 52
    text = str(raised.value)
    assert "huge.cu was killed at each of 4 tries" in text
    assert "raise the memory limit" in text


def _processes_of(word: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if word in (entry / "cmdline").read_bytes().decode("utf-8", "replace"):
                    found.append(int(entry.name))
    return found


def test_kills_at_random_points_leave_no_stuck_build_and_no_reservation(
    runtime: Runtime, project: Project, tmp_path: Path
) -> None:
    """Fifty times kill -9 of the broker, a launcher or ninja; the build is started again until it is complete."""
    chance = random.Random(7)
    for i in range(40):
        project.add(f"u{i}.cu", mb=3, ms=60)
    kills = {"broker": 0, "launcher": 0, "ninja": 0}
    with compile_session(
        package="p", work_dir=tmp_path / "w", profile=project.profile(), cores=4, budget=400 * MIB
    ) as session:
        project.write(session.launcher[0])
        ninja = project.ninja(f"-j{session.ninja_jobs}", "-k0", env=session.environment)
        while sum(kills.values()) < 50:
            time.sleep(chance.uniform(0.0, 0.08))  # the random point
            victim = chance.choice(["broker", "launcher", "ninja"])
            if victim == "broker":
                pid = runtime.broker_pid()
            elif victim == "launcher":
                pid = next(iter(_processes_of(session.launcher[0])), None)
            else:
                pid = ninja.pid
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    kills[victim] += 1
            if ninja.poll() is not None:
                ninja.communicate(timeout=120)
                if project.objects() == set(project.units):
                    for each in project.folder.glob("*.o"):
                        each.unlink()
                ninja = project.ninja(f"-j{session.ninja_jobs}", "-k0", env=session.environment)
        ninja.communicate(timeout=120)
        last = project.ninja(f"-j{session.ninja_jobs}", "-k0", env=session.environment)
        output, _ = last.communicate(timeout=120)
        assert last.returncode == 0, output
        # Where the last kill took the broker and nothing was left to compile, nobody has started a new one.
        subprocess.run([*session.launcher, "true"], env={**os.environ, **session.environment}, check=True)
        status = until(
            lambda: (s := runtime.status()) is not None and s["held"] == 0 and s["waiting_count"] == 0 and s,
            what="nothing is reserved any more",
        )
        assert status["running"] == []
    assert project.objects() == set(project.units)
    assert all(kills.values()), kills
