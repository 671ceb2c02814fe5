"""Whole builds: ninja, the launcher, a broker, and a compiler that takes what it is told to take."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sm120_wheels.compile.budget import GIB, MIB
from sm120_wheels.compile.failure import first_failure
from sm120_wheels.compile.progress import Progress
from sm120_wheels.compile.session import CompileSession, compile_session
from sm120_wheels.compile.summary import CompileSummary
from sm120_wheels.errors import InsufficientMemoryError
from tests.compile.building import Cgroup, Project, Runtime, build, recorded, start
from tests.support.waiting import costs_less_than, until


def overlapping_peak(session: CompileSession) -> int:
    """From the records: the most that was reserved at once, in bytes."""
    ends = [json.loads(line) for line in session.records.read_text().splitlines()]
    ends = [e for e in ends if e["kind"] == "end"]
    return max(
        sum(int(e["reserved"]) for e in ends if e["started"] <= moment < e["ended"] - 0.005)
        for moment in (e["started"] for e in ends)
    )


def test_ninja_may_start_every_unit_of_a_profile_so_that_its_last_can_be_first(
    runtime: Runtime, project: Project, tmp_path: Path
) -> None:
    for i in range(300):
        project.add(f"u{i}.cu", mb=1, ms=1)
    with compile_session(package="p", work_dir=tmp_path / "w", profile=project.profile(), cores=2) as session:
        assert session.ninja_jobs == 300
    with compile_session(package="p", work_dir=tmp_path / "w", cores=2) as session:
        assert session.ninja_jobs == 64


def test_a_build_stays_within_its_budget_and_is_summed_up(runtime: Runtime, project: Project, tmp_path: Path) -> None:
    for i in range(10):
        project.add(f"u{i}.cu", mb=10 + 8 * i, ms=30 * i)
    with compile_session(
        package="p", work_dir=tmp_path / "w", profile=project.profile(), budget=250 * MIB, cores=4
    ) as session:
        build(project, session)
    summary = session.summary
    assert {Path(u.source).name for u in summary.units} == set(project.units)
    assert all(u.peak_rss >= project.units[Path(u.source).name][0] * MIB for u in summary.units)
    assert overlapping_peak(session) <= 250 * MIB
    assert (summary.kills, summary.failed, summary.without_broker) == (0, (), 0)
    assert 0 < summary.lower_bound <= summary.makespan
    assert json.loads((tmp_path / "w" / "compile-summary.json").read_text())["cores"] == summary.cores
    trace = json.loads(session.trace.read_text())["traceEvents"]
    assert sum(e["ph"] == "X" for e in trace) == 10


def test_the_longest_starts_first_though_it_arrives_last(runtime: Runtime, project: Project, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    project.add("before.cu", mb=1, ms=0, gate=gate)
    for i in range(8):
        project.add(f"u{i}.cu", mb=5, ms=20 + 30 * i)
    with compile_session(package="p", work_dir=tmp_path / "w", profile=project.profile(), cores=1) as session:
        project.write(session.launcher[0])
        before = start(project, session, "before.cu")
        until(lambda: (runtime.status() or {}).get("running_count") == 1, what="the core is taken")
        ninja = project.ninja(f"-j{session.ninja_jobs}", *(f"u{i}.cu.o" for i in range(8)), env=session.environment)
        until(lambda: (runtime.status() or {}).get("waiting_count") == 8, what="all have arrived")
        gate.touch()
        output, _ = ninja.communicate(timeout=120)
        assert (before.wait(timeout=120), ninja.returncode) == (0, 0), output
    records = [json.loads(line) for line in session.records.read_text().splitlines()]
    started = sorted((r for r in records if r["kind"] == "end"), key=lambda r: r["started"])
    assert [Path(r["source"]).name for r in started] == ["before.cu", *(f"u{i}.cu" for i in reversed(range(8)))]


def test_a_failing_compile_keeps_its_exit_status_and_words(runtime: Runtime, project: Project, tmp_path: Path) -> None:
    source = project.add("bad.cu", mb=1, ms=1, fail=7)
    with compile_session(package="p", work_dir=tmp_path / "w", profile=project.profile()) as session:
        ran = subprocess.run(
            [*session.launcher, str(project.fakecc), "-c", str(source), "-o", str(tmp_path / "x.o")],
            env={**os.environ, **session.environment},
            capture_output=True,
            text=True,
            check=False,
        )
    assert (ran.returncode, ran.stdout, ran.stderr) == (7, "", f"{source}:1: error: as asked\n")
    assert session.summary.failed == (str(source),)


def test_when_a_file_does_not_compile_those_that_wait_are_not_compiled_first(
    runtime: Runtime, project: Project, tmp_path: Path
) -> None:
    arrived, gate = tmp_path / "arrived", tmp_path / "gate"
    project.add("bad.cu", mb=1, ms=300, fail=1)  # the longest, so it is started first
    for i in range(12):
        project.add(f"u{i}.cu", mb=1, ms=10, gate=gate)
    targets = [f"{name}.o" for name in project.units]
    for name in ("before0.cu", "before1.cu"):
        project.add(name, mb=1, ms=0, gate=arrived)
    with compile_session(package="p", work_dir=tmp_path / "w", profile=project.profile(), cores=2) as session:
        project.write(session.launcher[0])
        before = [start(project, session, name) for name in ("before0.cu", "before1.cu")]
        until(lambda: (runtime.status() or {}).get("running_count") == 2, what="both cores are taken")
        process = project.ninja(f"-j{session.ninja_jobs}", *targets, env=session.environment)
        until(lambda: (runtime.status() or {}).get("waiting_count") == 13, what="all have arrived")
        arrived.touch()
        until(
            lambda: recorded(session, "bad.cu") and (status := runtime.status()) and not status["waiting_count"],
            what="bad.cu has failed, and nothing waits any more",
        )
        gate.touch()
        output, _ = process.communicate(timeout=120)
        assert [each.wait(timeout=120) for each in before] == [0, 0]
    assert process.returncode != 0
    assert Path(first_failure(output.splitlines()).target).name == "bad.cu.o"
    assert output.count("because another file of this build failed") >= 9
    assert len(project.objects()) <= 3
    assert [Path(source).name for source in session.summary.failed] == ["bad.cu"]


def test_stdout_and_stderr_stay_apart_and_a_missing_compiler_is_127(runtime: Runtime, tmp_path: Path) -> None:
    with compile_session(package="p", work_dir=tmp_path / "w", budget=256 * MIB) as session:  # less than it may need:
        environment = {**os.environ, **session.environment}  # alone and at once, whatever other programs leave
        both = subprocess.run(
            [*session.launcher, "sh", "-c", "echo out; echo err >&2; exit 3"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        missing = subprocess.run(
            [*session.launcher, "/no/such/compiler"], env=environment, capture_output=True, text=True, check=False
        )
    assert (both.returncode, both.stdout, both.stderr) == (3, "out\n", "err\n")
    assert missing.returncode == 127
    assert "/no/such/compiler" in missing.stderr


def test_two_builds_share_one_budget(runtime: Runtime, project: Project, fakecc: Path, tmp_path: Path) -> None:
    other = Project(folder=tmp_path / "other", fakecc=fakecc)
    gate = tmp_path / "gate"
    for each in (project, other):
        each.add("a.cu", mb=60, ms=0, gate=gate)
    options = {"budget": 150 * MIB, "cores": 2}
    with (
        compile_session(package="p", work_dir=tmp_path / "w1", profile=project.profile(), **options) as one,  # type: ignore[arg-type]
        compile_session(package="q", work_dir=tmp_path / "w2", profile=other.profile(), **options) as two,  # type: ignore[arg-type]
    ):
        runs = []
        for each, session in ((project, one), (other, two)):
            each.write(session.launcher[0])
            runs.append(each.ninja(env=session.environment))
        status = until(
            lambda: (s := runtime.status() or {}).get("waiting_count") == 1 and s["running_count"] == 1 and s,
            what="one compiles and the other waits",
        )
        assert status["why_waiting"] == "memory"
        gate.touch()
        for run in runs:
            output, _ = run.communicate(timeout=120)
            assert run.returncode == 0, output
    assert len(one.summary.units) == len(two.summary.units) == 1


def test_inside_a_limit_an_honest_profile_means_no_kill_and_a_tenth_left_free(
    runtime: Runtime, project: Project, tmp_path: Path, make_cgroup: Callable[[int], Cgroup]
) -> None:
    limit = 800 * MIB
    cgroup = make_cgroup(limit)
    for i in range(8):
        project.add(f"u{i}.cu", mb=80 + 40 * i, ms=500)  # three after each other at least: a second, so it is sampled
    with compile_session(package="p", work_dir=tmp_path / "w", profile=project.profile(), cores=8) as session:
        project.write(session.launcher[0])
        ninja = project.ninja(f"-j{session.ninja_jobs}", env=session.environment, preexec=cgroup.enter)
        output, _ = ninja.communicate(timeout=120)
    assert ninja.returncode == 0, output
    assert (session.summary.kills, cgroup.oom_kills()) == (0, 0)
    assert session.summary.budget <= 0.9 * limit
    assert session.summary.peak_used <= 0.9 * limit


def test_what_was_measured_is_used_the_next_time(runtime: Runtime, project: Project, tmp_path: Path) -> None:
    project.add("u.cu", mb=40, ms=50)
    bases = []
    for turn in range(2):
        (project.folder / "u.cu.o").unlink(missing_ok=True)
        with compile_session(package="p", work_dir=tmp_path / f"w{turn}", budget=GIB) as session:
            build(project, session)
        bases.append(session.summary.units[0].basis)
    assert bases == ["default", "measured"]
    assert session.summary.units[0].reserved < 100 * MIB


def test_a_large_file_starts_when_the_one_before_it_is_past_its_peak(
    runtime: Runtime, project: Project, tmp_path: Path
) -> None:
    ended = tmp_path / "ended"
    for name in ("a.cu", "b.cu"):
        project.add(name, mb=200, ms=0, gate=tmp_path / f"{name}.past-peak", tail_gate=ended)
    profile = tmp_path / "profile.csv"
    rows = [f"csrc/k/{name},200,100,20,1" for name in project.units]
    profile.write_text("source,peak_mib,seconds,tail_mib,tail_after\n" + "\n".join(rows) + "\n")
    with compile_session(package="p", work_dir=tmp_path / "w", profile=profile, budget=340 * MIB, cores=2) as session:
        project.write(session.launcher[0])
        ninja = project.ninja(f"-j{session.ninja_jobs}", env=session.environment)
        peak = until(lambda: (s := runtime.status() or {}).get("used", 0) >= 200 * MIB and s, what="one is at its peak")
        assert (peak["running_count"], peak["waiting_count"]) == (1, 1)
        (tmp_path / f"{Path(peak['running'][0]['source']).name}.past-peak").touch()
        both = until(lambda: (s := runtime.status() or {}).get("running_count") == 2 and s, what="both run")
        assert both["held"] <= 340 * MIB
        for name in project.units:
            (tmp_path / f"{name}.past-peak").touch()
        ended.touch()
        output, _ = ninja.communicate(timeout=120)
        assert ninja.returncode == 0, output


def test_a_file_that_can_never_fit_is_refused_before_anything_runs(
    runtime: Runtime, project: Project, tmp_path: Path
) -> None:
    project.add("small.cu", mb=10, ms=10)
    project.add("huge.cu", mb=2000, ms=10)
    with (
        pytest.raises(InsufficientMemoryError) as raised,
        compile_session(package="p", work_dir=tmp_path / "w", profile=project.profile(), budget=1000 * MIB),
    ):
        pytest.fail("the build was let start")
    assert raised.value.exit_code == 45
    assert "csrc/k/huge.cu needs 2.1 GB" in str(raised.value)
    assert "can give 1.0 GB" in str(raised.value)


def test_a_build_with_nothing_to_do_adds_less_than_a_second(runtime: Runtime, project: Project, tmp_path: Path) -> None:
    for i in range(20):
        project.add(f"u{i}.cu", mb=1, ms=0)
    profile = project.profile()
    with compile_session(package="p", work_dir=tmp_path / "w", profile=profile) as session:
        build(project, session)

    def again() -> float:
        began = time.monotonic()
        with compile_session(package="p", work_dir=tmp_path / "w", profile=profile) as session:
            assert "no work to do" in build(project, session)
        took = time.monotonic() - began
        assert session.summary.units == ()
        assert session.summary.lines() == ["nothing was compiled"]
        return took

    costs_less_than(1.0, again)


def test_behind_ccache_a_hit_asks_for_no_memory(runtime: Runtime, tmp_path: Path) -> None:
    ccache = shutil.which("ccache")
    if ccache is None:
        pytest.skip("not run: ccache is not installed")
    source = tmp_path / "a.c"
    source.write_text("int a(void) { return 1; }\n")
    summaries: list[CompileSummary] = []
    for turn in range(2):
        with compile_session(package="p", work_dir=tmp_path / f"w{turn}", budget=GIB) as session:
            subprocess.run(
                [ccache, "gcc", "-c", str(source), "-o", str(tmp_path / "a.o")],
                env={
                    **os.environ,
                    **session.environment,
                    "CCACHE_PREFIX": session.launcher[0],
                    "CCACHE_DIR": str(tmp_path / "ccache"),
                },
                check=True,
            )
        summaries.append(session.summary)
    assert [len(s.units) for s in summaries] == [1, 0]


@pytest.mark.cuda
def test_real_nvcc_is_measured_over_its_whole_tree(runtime: Runtime, tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not Path(nvcc).exists():
        pytest.skip("not run: no nvcc on PATH")
    source = tmp_path / "src" / "k" / "a.cu"
    source.parent.mkdir(parents=True)
    source.write_text("#include <cuda_fp16.h>\n__global__ void k(__half *x) { x[0] = __hadd(x[0], x[1]); }\n")
    with compile_session(package="p", work_dir=tmp_path / "w", budget=GIB) as session:
        subprocess.run(
            [*session.launcher, nvcc, "-gencode=arch=compute_120a,code=sm_120a", "-c", str(source), "-o", "a.o"],
            cwd=tmp_path,
            env={**os.environ, **session.environment},
            check=True,
        )
    (unit,) = session.summary.units
    assert unit.source == str(source)
    assert 40 * MIB < unit.peak_rss < 2000 * MIB
    assert unit.cpu_seconds > 0.2


def test_the_session_needs_no_display(runtime: Runtime, project: Project, tmp_path: Path) -> None:
    """Progress is only told: the numbers end where the build ends."""
    gate = tmp_path / "gate"
    for i in range(6):
        project.add(f"u{i}.cu", mb=5, ms=100, gate=gate)
    told: list[Progress] = []
    with compile_session(
        package="p", work_dir=tmp_path / "w", profile=project.profile(), cores=2, on_progress=told.append
    ) as session:
        project.write(session.launcher[0])
        ninja = project.ninja(f"-j{session.ninja_jobs}", env=session.environment)
        until(lambda: any(p.running for p in told), what="it is told what runs")
        gate.touch()
        output, _ = ninja.communicate(timeout=120)
        assert ninja.returncode == 0, output
        session.stage = "packing"
        until(lambda: told[-1].stage == "packing", what="the stage is told")
    assert told[0].stage == ""
    assert all(p.total == 6 and p.done + len(p.running) + p.waiting <= 6 for p in told)
    assert told[-1].done >= told[0].done
    assert sys.executable == session.environment["SM120_PYTHON"]
