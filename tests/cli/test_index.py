"""The commands as a person meets them: what they print, and what they leave with."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from sm120_wheels.cli import main
from tests.index.makewheel import beside, make_wheel

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def sm120(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run ``sm120`` in an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SM120_INDEX_ROOT", raising=False)
    monkeypatch.delenv("SM120_INDEX_URL", raising=False)

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main([str(a) for a in arguments])
        told = capsys.readouterr()
        assert "Traceback" not in told.err
        return int(left.value.code or 0), told.out, told.err

    return run


def test_publish_verify_yank_and_prune_from_an_empty_folder(sm120: Run, tmp_path: Path) -> None:
    old, new = make_wheel(tmp_path), make_wheel(tmp_path, version="0.2.0+cu130.torch211.sm120a")
    code, out, _ = sm120("index", "publish", old, new)
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines() if line.startswith("published")] == [
        ["published", old.name],
        ["published", new.name],
    ]
    assert sm120("index", "publish", old)[1].startswith("unchanged")
    code, out, _ = sm120("index", "verify")
    assert (code, out.endswith("as published\n")) == (0, True)
    assert sm120("index", "yank", "sm120-selftest==0.2.0+cu130.torch211.sm120a", "--reason", "wrong")[1] == (
        f"yanked {new.name}\n"
    )
    assert sm120("index", "unyank", new.name)[1] == f"no longer yanked: {new.name}\n"
    assert f"would remove {old.name}" in sm120("index", "prune", "--keep", 1, "--dry-run")[1]
    assert f"removed {old.name}" in sm120("index", "prune", "--keep", 1)[1]
    assert sm120("index", "rebuild")[1] == "pages of 1 wheels made anew\n"


def test_published_records_as_json(sm120: Run, tmp_path: Path) -> None:
    code, out, _ = sm120("index", "publish", make_wheel(tmp_path), "--json")
    told = json.loads(out)
    assert (code, told["generation"]) == (0, 1)
    assert (told["wheels"][0]["action"], told["wheels"][0]["cuda"]) == ("published", "13.0")


def test_refusal_says_why_and_what_to_do_and_leaves_with_80(sm120: Run, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, build={"without": ["flash_ops"], "archs": ["12.0a"]})
    code, _, err = sm120("index", "publish", wheel)
    assert code == 80
    assert f"error: {wheel.name} was not published" in err
    assert "it was built without flash_ops [partial]" in err
    assert "--allow partial" in err
    code, out, _ = sm120("index", "publish", wheel, "--allow", "partial")
    assert code == 0
    assert "exception: [partial]" in out


def test_require_smoke_refuses_what_was_not_run(sm120: Run, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    beside(wheel, "smoke", state="not run", reason="no GPU here")
    code, _, err = sm120("index", "publish", wheel, "--require-smoke")
    assert code == 80
    assert "a passed smoke record is required: not run because no GPU here" in err


def test_unknown_gate_leaves_with_17(sm120: Run, tmp_path: Path) -> None:
    code, _, err = sm120("index", "publish", make_wheel(tmp_path), "--allow", "everything")
    assert code == 17
    assert "no gate is called 'everything'" in err


def test_absent_wheel_leaves_with_60(sm120: Run) -> None:
    code, _, err = sm120("index", "publish", "nosuch-1.0-py3-none-any.whl")
    assert code == 60
    assert "there is no wheel nosuch-1.0-py3-none-any.whl" in err


def test_damage_leaves_with_81_and_names_the_file(sm120: Run, tmp_path: Path) -> None:
    sm120("index", "publish", make_wheel(tmp_path))
    (path,) = Path("wheels").glob("files/*/*/*.whl")
    path.write_bytes(b"PK")
    code, out, err = sm120("index", "verify")
    assert code == 81
    assert path.name in out
    assert "the index is damaged in 1 place" in err
    told = json.loads(sm120("index", "verify", "--json")[1])
    assert told["findings"][0]["kind"] == "damage"


@pytest.mark.parametrize(
    "arguments",
    [
        ["verify"],
        ["rebuild"],
        ["yank", "x", "--reason", "y"],
        ["unyank", "x"],
        ["prune", "--keep", "1"],
        ["push", "copy"],
        ["upload", "x", "--repository-url", "http://127.0.0.1:9/"],
        ["serve"],
    ],
)
def test_folder_without_an_index_leaves_with_17(sm120: Run, arguments: list[str]) -> None:
    code, _, err = sm120("index", *arguments)
    assert code == 17
    assert "there is no index here" in err


def test_root_that_cannot_be_written_leaves_with_17(sm120: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = sm120("index", "publish", make_wheel(tmp_path), "--root", tmp_path / "file" / "index")
    assert code == 17
    assert "the index cannot be written" in err


def test_publish_can_push_at_once(sm120: Run, tmp_path: Path) -> None:
    code, out, _ = sm120("index", "publish", make_wheel(tmp_path), "--to", tmp_path / "copy")
    assert code == 0
    assert "generation 1" in out
    assert sm120("index", "verify", "--root", tmp_path / "copy")[0] == 0


def test_title_and_address_are_set(sm120: Run, tmp_path: Path) -> None:
    sm120("index", "publish", make_wheel(tmp_path))
    assert sm120("index", "configure", "--title", "Ours", "--base-url", "https://wheels.example/whl")[0] == 0
    assert "https://wheels.example/whl/cu130/" in Path("wheels/index.html").read_text()
    assert sm120("index", "configure", "--base-url", "nonsense")[0] == 17


_MACHINE = ["--gpu", "12.0", "--driver-cuda", "13.0", "--python-version", "3.12"]


def test_which_gives_the_wheel_that_fits(sm120: Run, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    beside(wheel, "smoke", state="passed", gpu="RTX 5090")
    sm120("index", "publish", wheel)
    code, out, err = sm120("which", "sm120-selftest", *_MACHINE, "--torch", "2.11.0+cu130")
    assert code == 0
    assert wheel.name in out
    assert "architecture audit: 12.0 runs, 12.1 none" in out
    assert "GPU smoke test: passed on RTX 5090" in out
    assert "torch   2.11.0+cu130 (CUDA 13.0)" in err
    told = json.loads(sm120("which", "sm120-selftest", *_MACHINE, "--torch", "none", "--json")[1])
    assert told["wheel"]["filename"] == wheel.name
    assert Path(told["file"]).read_bytes() == wheel.read_bytes()
    (tmp_path / "wheels").rename(tmp_path / "my wheels")
    shown = sm120("which", "sm120-selftest", *_MACHINE, "--torch", "none", "--index", tmp_path / "my wheels")[1]
    (line,) = [line for line in shown.splitlines() if line.startswith("pip install")]
    assert Path(shlex.split(line)[2]).name == wheel.name, "one word for a shell"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([*_MACHINE, "--torch", "2.10.0+cu130"], "was built against torch 2.11; torch 2.10.0+cu130 is installed"),
        ([*_MACHINE[2:], "--gpu", "12.1", "--torch", "none"], "compute capability 12.1 (audit: none)"),
        ([*_MACHINE[:2], "--driver-cuda", "12.8", "--torch", "none"], "which is driver 580 or later"),
        ([*_MACHINE[:4], "--python-version", "3.9", "--torch", "none"], "needs Python >=3.10; this is 3.9.0"),
    ],
)
def test_which_says_why_none_fits_and_leaves_with_15(
    sm120: Run, tmp_path: Path, arguments: list[str], reason: str
) -> None:
    sm120("index", "publish", make_wheel(tmp_path))
    code, _, err = sm120("which", "sm120-selftest", *arguments)
    assert code == 15
    assert "no published wheel of sm120-selftest fits this machine" in err
    assert reason in err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["sm120-selftets"], 17),
        (["sm120-selftest", "--torch", "two"], 17),
        (["sm120-selftest", "--python-version", "x"], 17),
        (["sm120-selftest", "--gpu", "99.9"], 14),
    ],
)
def test_which_refuses_values_that_are_none(sm120: Run, tmp_path: Path, arguments: list[str], code: int) -> None:
    sm120("index", "publish", make_wheel(tmp_path))
    assert sm120("which", *arguments)[0] == code
