"""What this machine can build, and a run that goes on past a failure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sm120_wheels.build import BuildResult
from sm120_wheels.errors import CompileError, Interrupted, UnsupportedTargetError
from sm120_wheels.matrix.here import Here, look, obstacles, python_for
from sm120_wheels.matrix.jobs import Job, Matrix
from sm120_wheels.matrix.names import platform_name
from sm120_wheels.matrix.run import run_jobs
from sm120_wheels.plan import BuildRequest, make_plan

Make = Callable[..., Matrix]
HERE = Here(platform="linux_x86_64", pythons=("3.12",), index_cuda=("13.0", "13.2"), system_cuda=())


@pytest.fixture
def jobs(matrix_of: Make) -> list[Job]:
    return [job for job in matrix_of(extra='abi3 = "3.10"\n').jobs if job.arch == "12.0a"]


def one(jobs: list[Job], cuda: str, platform: str = "linux_x86_64") -> Job:
    return next(job for job in jobs if (job.cuda, job.platform) == (cuda, platform))


def test_what_stands_in_the_way_is_said(jobs: list[Job]) -> None:
    assert obstacles(one(jobs, "13.0"), HERE) == []
    assert obstacles(one(jobs, "13.0", "linux_aarch64"), HERE) == [
        "is built on linux_aarch64; this machine is linux_x86_64"
    ]
    cuda, python = obstacles(one(jobs, "12.8"), HERE)
    assert cuda == "CUDA 12.8 is not on the package index and comes from the system or an image; there is none here"
    assert python == "needs Python 3.11 with headers; here: 3.12"


def test_a_cuda_of_the_system_counts(jobs: list[Job]) -> None:
    here = Here(platform="linux_x86_64", pythons=("3.11",), index_cuda=(), system_cuda=("12.8",))
    assert obstacles(one(jobs, "12.8"), here) == []


def test_another_python_is_taken_where_it_gives_the_same_wheel(jobs: list[Job]) -> None:
    job = one(jobs, "13.0")
    assert job.python == "3.11"
    assert python_for(job, HERE) == "3.12"
    assert python_for(one(jobs, "12.8"), HERE) is None


def test_this_machine_is_looked_at() -> None:
    here = look()
    assert here.platform == platform_name()
    assert here.pythons
    assert {"13.0", "13.2"} <= set(here.index_cuda)


def test_a_failure_does_not_stop_the_others_and_what_cannot_run_says_so(jobs: list[Job], tmp_path: Path) -> None:
    asked: list[BuildRequest] = []

    def build(request: BuildRequest) -> BuildResult:
        asked.append(request)
        if request.cuda == "13.0":
            raise CompileError("a.cu does not compile")
        plan = make_plan(BuildRequest(recipe="selftest"))
        stages = {"compile": {"seconds": 2.5}}
        wheels = ({"path": str(tmp_path / "x.whl")},)
        return BuildResult(plan=plan, wheels=wheels, work=tmp_path, up_to_date=False, stages=stages)

    told: list[str] = []
    results = run_jobs(jobs, HERE, build, told.append)
    states = {(r.job.cuda, r.job.platform): (r.state, r.why) for r in results}
    assert states["13.0", "linux_x86_64"] == ("failed", "a.cu does not compile")
    assert states["13.2", "linux_x86_64"] == ("built", "")
    assert states["12.8", "linux_x86_64"][0] == "not run"
    assert states["13.2", "linux_aarch64"][0] == "not run"
    assert [(request.cuda, request.python) for request in asked] == [("13.0", "3.12"), ("13.2", "3.12")]
    assert next(r for r in results if r.state == "built").seconds == 2.5
    identifiers = [one(jobs, cuda).identifier for cuda in ("13.0", "13.2")]
    assert told == [
        f"build 1 of 2: {identifiers[0]}",
        "failed: a.cu does not compile",
        f"build 2 of 2: {identifiers[1]}",
        "built in 2.5 s",
    ]


def test_ctrl_c_ends_the_run(jobs: list[Job]) -> None:
    def build(request: BuildRequest) -> BuildResult:
        raise Interrupted("interrupted")

    with pytest.raises(Interrupted):
        run_jobs(jobs, HERE, build, print)


def test_nothing_to_build_here_is_an_error_and_no_empty_success(jobs: list[Job]) -> None:
    elsewhere = Here(platform="linux_riscv64", pythons=("3.12",), index_cuda=("13.0",), system_cuda=())
    with pytest.raises(UnsupportedTargetError, match=r"none of the \d chosen builds") as caught:
        run_jobs(jobs, elsewhere, lambda request: pytest.fail("built"), print)
    assert "this machine is linux_riscv64" in caught.value.why
