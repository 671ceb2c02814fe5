"""``sm120 doctor``: exit code, three kinds of lines, JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sm120_wheels.cli import main


def run(*argv: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(["doctor", *argv])
    assert isinstance(caught.value.code, int)
    return caught.value.code


def test_the_exit_code_is_40_exactly_when_a_check_failed(capsys: pytest.CaptureFixture[str]) -> None:
    code = run("--json")
    answer = json.loads(capsys.readouterr().out)
    states = [check["state"] for check in answer["checks"]]
    assert answer["ok"] == ("failed" not in states)
    assert code == (0 if answer["ok"] else 40)
    assert set(states) <= {"passed", "failed", "not needed", "not run"}


def test_a_folder_that_cannot_be_written_fails_with_its_mend(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SM120_BUILD_DIR", "/proc/nowhere")
    assert run() == 40
    out = capsys.readouterr().out
    assert "failed      disk for builds" in out
    assert "do: " in out
    assert "failed." in out.splitlines()[-1]


def test_an_unknown_cuda_offers_the_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--cuda", "13.9") == 13
    assert "known: " in capsys.readouterr().err.lower()


def test_it_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SM120_CACHE_DIR", str(tmp_path / "cache"))
    run("--json")
    assert not (tmp_path / "cache").exists()
