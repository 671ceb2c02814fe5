"""``sm120 smoke`` as a person meets it: what is selected, what is not run, what is refused, what stays on disk."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from sm120_wheels import files
from sm120_wheels.cli.smoke import _write
from sm120_wheels.errors import BusyError
from sm120_wheels.gpus import Gpu
from sm120_wheels.index import evidence
from sm120_wheels.index.publish import Options, publish
from sm120_wheels.prove.smoke.report import Report, Subject
from sm120_wheels.prove.smoke.run import gpu_lock
from tests.index.serving import served
from tests.prove.conftest import Said, Samples
from tests.prove.smoke.conftest import HERE, SM120, demo_wheel, environment, run_demo, smoke_command
from tests.support.waiting import until

Sm120 = Callable[..., Said]

H200 = "0, GPU-11111111-2222, 9.0, 580.159.04, 143771 MiB, NVIDIA H200"


@pytest.fixture
def no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without nvidia-smi, whatever this one has."""
    empty = tmp_path / "bin"
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))
    monkeypatch.setenv("SM120_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("SM120_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return empty


@pytest.fixture
def h200(no_gpu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An nvidia-smi that tells of an H200."""
    program = no_gpu / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho '{H200}'\n")
    program.chmod(0o755)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")


def test_without_a_gpu_nothing_is_run_and_71_says_so(no_gpu: Path, tmp_path: Path, sm120: Sm120) -> None:
    wheel = demo_wheel(tmp_path / "dist")
    said = sm120("smoke", wheel)
    assert said.code == 71
    assert said.err.startswith("error: the smoke test was not run\n  why:   no GPU: ")
    assert not wheel.with_name(wheel.name + ".smoke.json").exists()


def test_not_run_never_counts_as_passed_in_the_index(no_gpu: Path, tmp_path: Path, sm120: Sm120) -> None:
    wheel = demo_wheel(tmp_path / "dist")
    record = wheel.with_name(wheel.name + ".smoke.json")
    assert sm120("smoke", wheel, "--record", record).code == 71
    (document,) = evidence.beside(wheel, files.sha256_file(wheel))
    assert document.evidence.state == "not run"
    assert document.evidence.detail.startswith("no GPU: ")


@pytest.mark.cuda
@pytest.mark.usefixtures("h200")
def test_a_gpu_that_the_wheel_has_no_code_for_is_refused_before_the_first_launch(
    tmp_path: Path, samples: Samples, packed: Callable[..., Path], sm120: Sm120
) -> None:
    wheel = packed({"demo/lib.so": samples["libonly.so"]}, name="demo")
    said = sm120("smoke", wheel, "--environment", tmp_path / "never-started", "--record", tmp_path / "record.json")
    assert said.code == 72
    assert "the GPU was refused: no wheel code for 9.0" in said.err
    assert f"{wheel.name} has sm_120a; NVIDIA H200 is 9.0 and needs sm_90" in said.err
    record = json.loads((tmp_path / "record.json").read_text())
    assert (record["state"], record["verdict"], record["driver"]) == ("not run", "none", "580.159.04")


@pytest.mark.usefixtures("no_gpu")
def test_nothing_to_test_is_said(sm120: Sm120) -> None:
    said = sm120("smoke")
    assert said.code == 17
    assert "nothing to test" in said.err


@pytest.mark.usefixtures("no_gpu")
def test_an_unknown_suite_is_said(sm120: Sm120) -> None:
    said = sm120("smoke", "--suite", "no_such_suite")
    assert said.code == 17
    assert "--suite no_such_suite: no such suite or folder" in said.err


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("seconds", ["nan", "inf", "0", "-1"])
def test_a_deadline_that_is_none_is_said(sm120: Sm120, seconds: str) -> None:
    said = sm120("smoke", "--suite", "selftest", "--deadline", seconds)
    assert said.code == 17
    assert f"--deadline {seconds}: give 0.1 to 86400 seconds" in said.err


@pytest.mark.usefixtures("h200")
def test_more_gpus_than_there_are_is_said(sm120: Sm120) -> None:
    said = sm120("smoke", "--suite", "selftest", "--gpus", "99")
    assert said.code == 17
    assert "--gpus 99: there are 1\n  why:   usable here: 0 (NVIDIA H200)" in said.err


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    ("option", "place", "why"),
    [
        ("--record", "a-file/record.json", "nothing can be written there"),
        ("--junit", "a-folder", "it is a folder"),
        ("--html", "/proc/page.html", "nothing can be written there"),
        ("--record", "./demo-1.0-cp310-abi3-linux_x86_64.whl", "that is the wheel itself"),
    ],
)
def test_a_report_that_cannot_be_written_is_said_before_anything_runs(
    tmp_path: Path, sm120: Sm120, option: str, place: str, why: str
) -> None:
    (tmp_path / "a-file").touch()
    (tmp_path / "a-folder").mkdir()
    said = sm120("smoke", demo_wheel(tmp_path), "--suite", "selftest", option, tmp_path / place)
    assert said.code == 17
    assert f"{option} {tmp_path / place}: {why}" in said.err


@pytest.mark.usefixtures("no_gpu")
def test_what_is_no_wheel_and_what_is_no_interpreter_is_said(tmp_path: Path, sm120: Sm120) -> None:
    assert sm120("smoke", tmp_path / "absent-1.0-py3-none-any.whl").code == 60
    host = ["smoke", "--backend", "host", demo_wheel(tmp_path / "dist"), "--suite", HERE / "cases", "--environment"]
    absent = sm120(*host, tmp_path / "absent")
    assert (absent.code, f"there is no interpreter {tmp_path}/absent" in absent.err) == (40, True)
    other = sm120(*host, "/bin/echo")
    assert (other.code, "/bin/echo is no Python interpreter" in other.err) == (40, True)


def test_a_suite_that_cannot_be_collected_is_no_result(tmp_path: Path) -> None:
    suite = tmp_path / "suite"
    suite.mkdir()
    (suite / "test_broken.py").write_text("import no_such_module\n\ndef test_a():\n    pass\n")
    (suite / "test_plain.py").write_text("def test_without_case():\n    pass\n")
    ran = run_demo(tmp_path, "--suite", suite)
    assert ran.code == 17
    assert "No module named 'no_such_module'" in ran.err
    assert "it is no case: put @case(...) over it" in ran.err
    assert not (tmp_path / "record.json").exists()


def test_k_selects_and_a_selection_that_passes_is_no_pass_of_the_wheel(tmp_path: Path) -> None:
    ran = run_demo(tmp_path, "-k", "test_right and not after and not rightly")
    assert ran.code == 0
    assert ran.record["counts"] == {"passed": 2, "failed": 0, "not_run": 0}
    assert ran.record["state"] == "not run"
    assert ran.record["selection"].startswith("-k test_right and not after and not rightly, ")


def test_a_record_of_a_run_is_not_replaced_by_one_of_a_run_that_launched_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = tmp_path / "demo-1.0-py3-none-any.whl"
    place = wheel.with_name(wheel.name + ".smoke.json")
    subject = Subject.untested(wheel.name, "a" * 64, "runs")
    nothing = replace(Report.nothing("needs 12.0", gpus=[]), subjects=[subject])
    _write(nothing, [wheel], None, None)
    assert json.loads(place.read_text())["state"] == "not run", "there was none"
    for state in ("passed", "failed"):
        before = json.dumps({"state": state, "wheel_sha256": "a" * 64})
        place.write_text(before)
        _write(nothing, [wheel], None, None)
        assert place.read_text() == before
        told = " ".join(capsys.readouterr().err.split())
        assert f"stays: it says {state}, and this run nothing (needs 12.0)" in told
    place.write_text(json.dumps({"state": "passed", "wheel_sha256": "b" * 64}))
    _write(nothing, [wheel], None, None)
    assert json.loads(place.read_text())["state"] == "not run", "that was about another file"


def test_k_that_selects_nothing_is_not_run(tmp_path: Path) -> None:
    ran = run_demo(tmp_path, "-k", "no_such_case")
    assert ran.code == 71
    assert "-k 'no_such_case' selects none" in ran.err


def test_lf_runs_what_failed_last_time(tmp_path: Path) -> None:
    assert run_demo(tmp_path, "-k", "test_right or test_zeros or test_wrong_shape").code == 70
    again = run_demo(tmp_path, "--lf")
    assert sorted(c["name"].partition("::")[2] for c in again.record["cases"]) == [
        "test_wrong_shape",
        "test_zeros",
        "test_zeros_within_tolerance",
    ]


def test_list_shows_cases_with_operators_and_runs_none(tmp_path: Path) -> None:
    ran = run_demo(tmp_path, "--list")
    assert ran.code == 0
    assert "test_wrong_numbers  demo::wrong  30 s" in ran.out
    assert not (tmp_path / "record.json").exists()


def test_a_package_that_cannot_be_imported_fails_every_case_with_that_reason(tmp_path: Path) -> None:
    ran = run_demo(tmp_path, "-k", "test_right", "--import", "not_in_this_wheel=x")
    assert ran.code == 70
    assert all("No module named 'not_in_this_wheel'" in c["why"] for c in ran.record["cases"])


def _stopped_by(number: signal.Signals, folder: Path, case: str, workers: int, mark: str) -> tuple[int, str]:
    """Send a signal to a run when its case hangs: then ``mark`` is in the workers' folder. Gives its exit code and
    what it said, when its workers are gone."""
    wheel = demo_wheel(folder / "dist")
    outputs: list[str | Path] = ["--record", folder / "record.json", "--junit", folder / "junit.xml"]
    command = smoke_command(wheel, "-k", case, "--deadline", "500", *outputs)
    with subprocess.Popen(command, cwd=folder, env=environment(folder), stderr=subprocess.PIPE, text=True) as process:
        seen = psutil.Process(process.pid)

        def hanging() -> list[psutil.Process]:
            assert process.poll() is None, process.communicate()
            with contextlib.suppress(psutil.Error):  # one has ended meanwhile
                found = [c for c in seen.children(recursive=True) if "worker.py" in " ".join(_argv(c))]
                if len(found) >= workers and any(Path(found[0].cwd()).glob(mark)):
                    return found
            return []

        try:
            children = until(hanging, what="the case hangs")
            process.send_signal(number)
            _, said = process.communicate(timeout=120)
        finally:
            process.kill()
    gone, alive = psutil.wait_procs(children, timeout=120)
    assert not alive, gone
    assert not (folder / "record.json").exists()
    return process.returncode, said


def test_ctrl_c_leaves_no_record_no_junit_and_no_process(tmp_path: Path) -> None:
    code, said = _stopped_by(signal.SIGINT, tmp_path, "test_hangs_once", 1, "it-hung")
    assert code == 130
    assert "error: interrupted" in said
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cache", "dist"]


@pytest.mark.parametrize(
    ("case", "workers", "mark"),
    [("test_hangs_once", 1, "it-hung"), ("test_one_rank_does_not_arrive", 3, "session-*/case1/1.0")],
)
def test_a_run_that_is_killed_leaves_no_worker_behind(tmp_path: Path, case: str, workers: int, mark: str) -> None:
    code, _ = _stopped_by(signal.SIGKILL, tmp_path, case, workers, mark)
    assert code == -signal.SIGKILL


def test_what_a_killed_run_left_on_disk_is_removed_by_the_next_one(tmp_path: Path) -> None:
    _stopped_by(signal.SIGKILL, tmp_path, "test_hangs_once", 1, "it-hung")
    scratch = tmp_path / "cache/smoke"
    (left,) = scratch.glob(".run.*")
    assert list(left.glob("worker-*.log"))
    assert run_demo(tmp_path, "-k", "test_wrong_shape").code == 70
    assert list(scratch.glob(".run.*")) == []


def _argv(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_two_runs_do_not_share_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SM120_RUNTIME_DIR", str(tmp_path))
    gpu = Gpu(index=0, uuid="GPU-1", name="NVIDIA H200", capability=(9, 0), memory=1, driver="580")
    other = """
import sys
from sm120_wheels.gpus import Gpu
from sm120_wheels.prove.smoke.run import gpu_lock
with gpu_lock(Gpu(index=0, uuid="GPU-1", name="x", capability=(9, 0), memory=1, driver="")):
    print("held", flush=True)
    sys.stdin.read()
"""
    held = {**os.environ, "SM120_RUNTIME_DIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", other], env=held, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(BusyError, match=r"GPU 0 \(NVIDIA H200\) is in use by another process"), gpu_lock(gpu):
            pass
        process.communicate("")
    with gpu_lock(gpu):
        pass


@pytest.mark.network
def test_what_a_consumer_gets_from_an_index_is_tested_and_bound_to_the_published_file(tmp_path: Path) -> None:
    wheel = demo_wheel(tmp_path / "dist")
    root = tmp_path / "index"
    publish(root, [wheel], options=Options(cuda=("cu130",)))
    options = ["--backend", "host", "--suite", str(HERE / "cases"), "--import", "demo_ops=demo", "-k", "test_right"]
    with served(root) as address:
        command = [*SM120, "smoke", "--from-index", f"{address}simple/", "demo==1.0", *options]
        done = subprocess.run(
            [*command, "--python", sys.executable, "--record", "record.json"],
            cwd=tmp_path,
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        absent = subprocess.run(
            [*SM120, "smoke", "--from-index", f"{address}simple/", "demoo", *options],
            cwd=tmp_path,
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            check=False,
        )
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["wheel"] == wheel.name
    assert record["wheel_sha256"] == files.sha256_file(wheel)
    assert record["counts"]["passed"] == 3
    assert absent.returncode == 17
    assert "the index has no demoo" in absent.stderr


def test_a_consumer_with_an_environment_gets_the_package_alone_and_sees_what_is_there(tmp_path: Path) -> None:
    wheel = demo_wheel(tmp_path / "dist", "pytest>=7", "nothing; python_version < '3'")
    ran, record = _over(tmp_path, wheel)
    assert ran.returncode == 0, ran.stderr
    assert record["wheel_sha256"] == files.sha256_file(wheel)
    assert record["environment"]["packages"]["demo"] == "1.0"
    assert "pytest" in record["environment"]["packages"]
    assert (record["counts"]["passed"], record["counts"]["failed"]) == (3, 0)


def test_a_consumer_whose_environment_lacks_what_the_package_requires_is_told(tmp_path: Path) -> None:
    ran, record = _over(tmp_path, demo_wheel(tmp_path / "dist", "pytest<7", "no-such-thing>1"))
    assert ran.returncode == 40
    assert "the environment lacks what demo 1.0 requires" in ran.stderr
    assert "pytest<7: " in ran.stderr
    assert "no-such-thing>1: it is not there" in ran.stderr
    assert not record


def _over(folder: Path, wheel: Path) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Install from an index over this environment; the index on the loopback interface is all that can be reached."""
    root, record = folder / "index", folder / "record.json"
    publish(root, [wheel], options=Options(cuda=("cu130",)))
    options = ["--backend", "host", "--suite", str(HERE / "cases"), "--import", "demo_ops=demo", "-k", "test_right"]
    with served(root) as address:
        command = [*SM120, "smoke", "--from-index", f"{address}simple/", "demo==1.0", "--environment", sys.executable]
        done = subprocess.run(
            [*command, *options, "--record", str(record)],
            cwd=folder,
            env={**environment(folder), "HTTPS_PROXY": "http://127.0.0.1:9"},
            capture_output=True,
            text=True,
            check=False,
        )
    return done, json.loads(record.read_text()) if record.is_file() else {}
