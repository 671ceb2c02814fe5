"""The steps of the GitHub workflow, read from it and run in its order: all of them but the compiling and the GPU."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from sm120_wheels.matrix.jobs import make_matrix
from sm120_wheels.plan import make_plan
from tests.ci.test_workflows import WORKFLOWS, sessions, words_of, workflow
from tests.index.makewheel import beside, make_wheel
from tests.support.inprocess import in_process
from tests.support.world import ROOT, Outcome, World

WHEELS = workflow(next(path for path in WORKFLOWS if path.name == "wheels.yml"))


class Pipeline:
    """Runs a step as its nox session would, in a folder that stands for the job's checkout."""

    def __init__(self, world: World) -> None:
        self.world = world

    def commands(self, job: str, **values: str) -> list[list[str]]:
        found = []
        for step in WHEELS["jobs"][job]["steps"]:
            if "run" in step:
                words = words_of(step["run"], self.world.cwd, **values)
                found.append([*(sessions()[words[2]] or []), *words[4:]])
        return found

    def run(self, command: list[str], *more: str, **environment: str) -> Outcome:
        return self.world.sm120(*command, *more, **environment)

    @property
    def dist(self) -> Path:
        return self.world.cwd / "dist"


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Pipeline:
    world = in_process(World(root=tmp_path, env={"SM120_DATA_DIR": str(ROOT)}), monkeypatch, capsys)
    return Pipeline(world)


def planned(pipeline: Pipeline) -> list[dict[str, Any]]:
    (trigger,) = (value for key, value in WHEELS.items() if str(key) == "True")  # YAML reads the key "on" as true
    inputs = trigger["workflow_dispatch"]["inputs"]
    output = pipeline.world.root / "output"
    (command,) = pipeline.commands("plan", ONLY=inputs["only"]["default"], SKIP=inputs["skip"]["default"])
    pipeline.run(command, GITHUB_OUTPUT=str(output)).ok()
    jobs: list[dict[str, Any]] = json.loads(output.read_text().partition("=")[2])
    return jobs


def wheel_of(job: dict[str, Any], folder: Path) -> Path:
    """What the build of a job would leave, without libraries."""
    found = make_matrix([job["recipe"]]).find(job["identifier"])
    assert found is not None
    plan = make_plan(found.request)
    record = {"plan": json.loads(json.dumps(plan.to_json())), "left_out": []}
    return make_wheel(folder, plan.distribution, plan.wheel_version, build=record)


def test_the_default_run_from_plan_to_publish(pipeline: Pipeline) -> None:
    jobs = planned(pipeline)
    assert {(job["cuda"], job["torch"]) for job in jobs} == {("13.0", "2.11.0"), ("13.0", "2.14.1"), ("13.2", "2.15.0")}
    artifacts = pipeline.world.root / "artifacts"
    for job in jobs:
        build, summary = pipeline.commands("build", SESSION=job["session"], IDENTIFIER=job["identifier"])
        assert build[0] == "build"
        told = pipeline.run(["plan", *build[1:]], "--json").json()
        assert (told["identifier"], told["key"]) == (job["identifier"], job["key"])
        wheel_of(job, pipeline.dist)
        page = pipeline.world.root / "page.md"
        pipeline.run(summary, GITHUB_STEP_SUMMARY=str(page)).ok()
        assert f"`{job['identifier']}`" in page.read_text()
        shutil.move(pipeline.dist, artifacts / job["identifier"])

    for folder in artifacts.iterdir():
        shutil.copytree(folder, pipeline.dist, dirs_exist_ok=True)
    (audit,) = pipeline.commands("audit")
    pipeline.run(audit).ok()

    for job in jobs:  # each by itself; together they would ask for three torches in one environment
        shutil.rmtree(pipeline.dist)
        shutil.copytree(artifacts / job["identifier"], pipeline.dist)
        (smoke,) = pipeline.commands("smoke")
        pipeline.run([*smoke, "--list"]).ok()
        assert pipeline.run(smoke).code in (71, 72)  # no GPU, or one of another kind
        assert not list(pipeline.dist.glob("*.smoke.json"))

    for folder in artifacts.iterdir():
        shutil.copytree(folder, pipeline.dist, dirs_exist_ok=True)
    remote, root = pipeline.world.root / "remote", pipeline.world.root / "index"
    summary, check, publish = pipeline.commands("publish", REMOTE=str(remote))
    assert "smoke" not in check  # it may not be missing
    part = [word for name in ("complete", "audit", "smoke", "index") for word in ("--only", name)]
    index = {"SM120_INDEX_ROOT": str(root)}
    pipeline.run(check, *part, **index).failed(84, "3 checks could not be run", "smoke")
    pipeline.run(publish, **index).failed(80, "a passed smoke record is required")
    assert not remote.exists()
    for wheel in pipeline.dist.glob("*.whl"):
        beside(wheel, "smoke", state="passed", gpu={"name": "a GPU"}, counts={"passed": 1, "failed": 0})
    pipeline.run(summary).ok()
    pipeline.run(check, *part, **index).ok()
    pipeline.run(publish, **index).ok()
    assert {path.name for path in remote.glob("cu*")} == {"cu130", "cu132"}


def test_a_later_run_adds_to_the_index_that_the_runner_keeps_and_a_fresh_one_would_be_refused(
    pipeline: Pipeline,
) -> None:
    remote, root = pipeline.world.root / "remote", pipeline.world.root / "index"
    first, second, _ = planned(pipeline)
    for job in (first, second):
        wheel = wheel_of(job, pipeline.dist)
        beside(wheel, "smoke", state="passed", gpu={"name": "a GPU"}, counts={"passed": 1, "failed": 0})
        *_, publish = pipeline.commands("publish", REMOTE=str(remote))
        if job is second:
            fresh = {"SM120_INDEX_ROOT": str(pipeline.world.root / "fresh")}
            pipeline.run(publish, **fresh).failed(80, "the remote holds wheels that this index does not")
        pipeline.run(publish, SM120_INDEX_ROOT=str(root)).ok()
        shutil.rmtree(pipeline.dist)
    assert len(list(remote.glob("files/*/*/*.whl"))) == 2


def test_without_a_remote_the_runners_own_index_is_all(pipeline: Pipeline) -> None:
    wheel = wheel_of(planned(pipeline)[0], pipeline.dist)
    beside(wheel, "smoke", state="passed", gpu={"name": "a GPU"}, counts={"passed": 1, "failed": 0})
    *_, publish = pipeline.commands("publish", REMOTE="")
    pipeline.run(publish, SM120_INDEX_ROOT=str(pipeline.world.root / "index")).ok()
    assert (pipeline.world.root / "index" / "cu130").exists()
