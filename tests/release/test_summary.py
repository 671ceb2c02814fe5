"""The table of a CI run, from the records beside the wheels."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sm120_wheels import measured
from sm120_wheels.cli import main
from sm120_wheels.errors import PublishRefusedError, WheelInvalidError
from sm120_wheels.files import sha256_file
from sm120_wheels.release import summary
from sm120_wheels.release.standing import standing, wheels_in
from tests.index.makewheel import beside, make_wheel

NAME = "sm120_selftest-0.1.0-cu130-torch2.11-cp310_abi3-sm120a-linux_x86_64"
PLAN = {"identifier": NAME, "cuda": "13.0", "torch": "2.11.0", "archs": ["12.0a"]}
STAGES = {
    "fetch": {"seconds": 0.5, "output": {}},
    "provision": {"seconds": 1.0, "output": {"cuda": {"version": "13.0.88"}}},
    "compile": {"seconds": 61.0, "output": {"cpu_seconds": 99.5, "scheduler": {"peak_used": 863_900_000}}},
}


def built(folder: Path, **options: object) -> Path:
    """A wheel with the record that a build leaves."""
    wheel = make_wheel(folder, build={"plan": PLAN, "left_out": []}, **options)  # type: ignore[arg-type]
    told = [{"path": str(wheel), "sha256": sha256_file(wheel)}]
    measured.write_beside(told, identifier=NAME, key="k", stages=STAGES)
    return wheel


def test_a_wheel_with_all_its_records(tmp_path: Path) -> None:
    wheel = built(tmp_path)
    beside(wheel, "equivalence", state="passed")
    beside(wheel, "smoke", state="passed", gpu="RTX 5090")
    (row,) = summary.rows([standing(wheel)])
    size = f"{wheel.stat().st_size} B" if wheel.stat().st_size < 1000 else f"{wheel.stat().st_size / 1000:.1f} kB"
    assert row == (NAME, "1 min 02 s", "863.9 MB", size, sha256_file(wheel), "passed", "passed", "passed")
    assert summary.reasons([standing(wheel)]) == []


def test_what_has_no_record_is_not_run_and_never_passed(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, audit={})
    known = standing(wheel)
    assert (known.audit.state, known.equivalence.state, known.smoke.state) == ("not run", "not run", "not run")
    assert summary.rows([known])[0][:3] == (wheel.name, "–", "–")
    assert f"{wheel.name}: smoke not run: there is no smoke record" in summary.reasons([known])


@pytest.mark.parametrize(
    ("record", "state"),
    [({"state": "failed", "reason": "NaN"}, "failed"), ({"state": "not run", "reason": "no GPU"}, "not run")],
)
def test_a_smoke_that_did_not_pass_is_told_with_its_reason(tmp_path: Path, record: dict[str, str], state: str) -> None:
    wheel = built(tmp_path)
    beside(wheel, "smoke", **record)
    known = standing(wheel)
    assert known.smoke.state == state
    assert record["reason"] in known.smoke.detail


def test_an_audit_without_code_for_the_target_is_failed(tmp_path: Path) -> None:
    known = standing(built(tmp_path, audit={"12.0": "part", "12.1": "none"}))
    assert known.audit.state == "failed"
    assert "12.0: part" in known.audit.detail


def test_a_partial_wheel_is_told(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, build={"plan": PLAN, "left_out": ["extra"]})
    assert "it was built without extra" in standing(wheel).complete.detail


def test_records_of_another_file_are_refused(tmp_path: Path) -> None:
    wheel = built(tmp_path)
    measured.path_of(wheel).write_text(measured.path_of(wheel).read_text().replace(sha256_file(wheel), "0" * 64))
    with pytest.raises(WheelInvalidError, match="is about another file"):
        standing(wheel)
    measured.path_of(wheel).write_text("{}")
    with pytest.raises(WheelInvalidError, match="cannot be read"):
        standing(wheel)
    measured.path_of(wheel).unlink()
    beside(wheel, "smoke", state="passed", wheel_sha256="0" * 64)
    with pytest.raises(PublishRefusedError, match="is not about this wheel"):
        standing(wheel)


def test_markdown_is_one_table_and_text_from_records_cannot_break_it(tmp_path: Path) -> None:
    wheel = built(tmp_path)
    beside(wheel, "smoke", state="failed", reason="a|b <script>")
    text = summary.markdown([standing(wheel)])
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in table} == {len(summary.HEAD) + 1}
    assert "**failed**" in table[2]
    assert "a\\|b \\<script\\>" in text


def test_folders_and_files_and_nothing(tmp_path: Path) -> None:
    wheel = built(tmp_path / "dist")
    assert wheels_in([tmp_path / "dist", wheel]) == [wheel]
    for place in (tmp_path, tmp_path / "none.whl"):
        with pytest.raises(WheelInvalidError, match="there is no wheel"):
            wheels_in([place])


def test_the_command_prints_a_table_and_fills_the_page_of_a_workflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = built(tmp_path / "dist")
    page = tmp_path / "page.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    run: Callable[..., None] = main
    for arguments in (["summary", str(tmp_path / "dist")], ["summary", str(wheel), "--json"]):
        with pytest.raises(SystemExit) as left:
            run(arguments)
        assert not left.value.code
    out = capsys.readouterr().out
    table, _, rest = out.partition("[")
    assert table.splitlines()[1].startswith(NAME)
    assert "equivalence not run" in table
    (told,) = json.loads("[" + rest)
    assert (told["peak_memory"], told["smoke"]["state"]) == (863_900_000, "not run")
    assert page.read_text().count("### Wheels") == 2
