"""Stage records: a stage runs once, runs again when its output is gone, and what follows it then runs too."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm120_wheels.stages import Record, WorkFolder


class Counted:
    """Work that counts its runs."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self) -> Record:
        self.runs += 1
        return {"run": self.runs}


@pytest.fixture
def work(tmp_path: Path) -> WorkFolder:
    return WorkFolder(root=tmp_path, key="k")


def test_a_finished_stage_is_not_repeated(work: WorkFolder) -> None:
    job = Counted()
    first = work.run("fetch", job, still_there=lambda output: True)
    assert work.run("fetch", job, still_there=lambda output: True) == first
    assert job.runs == 1
    assert first["stage"] == "fetch"
    assert first["seconds"] >= 0


def test_a_stage_whose_output_is_gone_runs_again_and_forgets_what_came_after(work: WorkFolder) -> None:
    for stage in ("plan", "fetch", "patch", "compile"):
        work.run(stage, Counted(), still_there=lambda output: True)
    work.run("fetch", Counted(), still_there=lambda output: False)
    assert work.read("plan") is not None
    assert work.read("fetch") is not None
    assert work.read("patch") is None
    assert work.read("compile") is None


def test_a_stage_that_fails_leaves_no_record(work: WorkFolder) -> None:
    def fail() -> Record:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work.run("fetch", fail, still_there=lambda output: True)
    assert work.read("fetch") is None


def test_a_record_of_another_plan_does_not_count(tmp_path: Path) -> None:
    WorkFolder(root=tmp_path, key="a").run("fetch", Counted(), still_there=lambda output: True)
    assert WorkFolder(root=tmp_path, key="b").read("fetch") is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff", b'"text"', b'{"key": "k"}'])
def test_a_record_that_cannot_be_read_counts_as_none(work: WorkFolder, content: bytes) -> None:
    path = work.record_path("fetch")
    path.parent.mkdir()
    path.write_bytes(content)
    assert work.read("fetch") is None
