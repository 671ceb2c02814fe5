"""Atomic writes, their rest after a kill, full disks, and locks between real processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm120_wheels import files
from sm120_wheels.errors import BusyError, NoSpaceError, NotWritableError
from tests.support.disk import make_read_only, small_disk
from tests.support.waiting import until


def child(code: str, *arguments: Path) -> subprocess.Popen[str]:
    """A Python that imports ``files`` and runs code with its arguments in ``argv``."""
    prelude = "import os, sys, time\nfrom pathlib import Path\nfrom sm120_wheels import files\nargv = sys.argv[1:]\n"
    return subprocess.Popen(
        [sys.executable, "-c", prelude + code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


HALF_WRITTEN = """
with files.atomic_path(Path(argv[0])) as temporary:
    temporary.write_text("half")
    print("there", flush=True)
    sys.stdin.read()
"""


def start_half_written(target: Path) -> subprocess.Popen[str]:
    process = child(HALF_WRITTEN, target)
    assert process.stdout is not None and process.stdout.readline() == "there\n"
    return process


@pytest.fixture
def tiny_disk() -> Iterator[Path]:
    with small_disk("1m") as folder:
        yield folder


def test_a_file_appears_whole(tmp_path: Path) -> None:
    with files.atomic_path(tmp_path / "new" / "f") as temporary:
        temporary.write_text("x")
        assert not (tmp_path / "new" / "f").exists()
    assert (tmp_path / "new" / "f").read_text() == "x"
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["f"]


def test_an_exception_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("old")
    with pytest.raises(KeyboardInterrupt), files.atomic_path(tmp_path / "f") as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt
    assert (tmp_path / "f").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_a_folder_that_another_process_finished_first_is_kept(tmp_path: Path) -> None:
    with files.atomic_path(tmp_path / "d") as temporary:
        temporary.mkdir()
        (temporary / "mine").touch()
        (tmp_path / "d").mkdir()
        (tmp_path / "d" / "theirs").touch()
    assert [p.name for p in (tmp_path / "d").iterdir()] == ["theirs"]
    assert [p.name for p in tmp_path.iterdir()] == ["d"]


def test_a_killed_writer_leaves_the_target_alone_and_the_next_one_removes_its_rest(tmp_path: Path) -> None:
    target = tmp_path / "odd [name]*?"
    target.write_text("old")
    with start_half_written(target) as process:
        process.kill()
    assert target.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 2
    files.write_text(target, "new")
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


def test_the_temporary_of_a_living_writer_is_not_removed(tmp_path: Path) -> None:
    target = tmp_path / "f"
    with start_half_written(target) as process:
        files.write_text(target, "quick")
        assert process.stdin is not None
        process.stdin.close()
    assert process.returncode == 0
    assert target.read_text() == "half"
    assert list(tmp_path.iterdir()) == [target]


def test_sigterm_as_the_command_line_handles_it_leaves_nothing(tmp_path: Path) -> None:
    code = "import signal\nsignal.signal(signal.SIGTERM, signal.default_int_handler)\n" + HALF_WRITTEN
    process = child(code, tmp_path / "f")
    with process:
        assert process.stdout is not None and process.stdout.readline() == "there\n"
        process.send_signal(signal.SIGTERM)
    assert process.returncode != 0
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_error_with_figures_and_leaves_nothing_half_written(tiny_disk: Path) -> None:
    target = tiny_disk / "f"
    target.write_text("old")
    with pytest.raises(NoSpaceError) as caught, files.atomic_path(target) as temporary:
        temporary.write_bytes(b"x" * 2_000_000)
    assert "0.0 GB are free" in caught.value.why
    assert "SM120_CACHE_DIR" in caught.value.hint
    assert target.read_text() == "old"
    assert list(tiny_disk.iterdir()) == [target]


def test_a_disk_that_fills_while_a_folder_is_copied_is_the_same_error(tiny_disk: Path, tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / f"{number}").write_bytes(b"x" * 300_000)
    with pytest.raises(NoSpaceError), files.no_space_is_an_error(tiny_disk / "copy"):
        shutil.copytree(tmp_path, tiny_disk / "copy")


def test_a_folder_that_may_not_be_written_is_named(tiny_disk: Path) -> None:
    make_read_only(tiny_disk)
    with pytest.raises(NotWritableError, match="cannot write below") as caught:
        files.write_text(tiny_disk / "f", "x")
    assert caught.value.why == "Read-only file system"
    with pytest.raises(NotWritableError), files.locked(tiny_disk / ".lock", what="x"):
        raise AssertionError


def test_other_failures_of_the_block_pass_unchanged(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError), files.no_space_is_an_error(tmp_path):
        raise IsADirectoryError


def test_a_lock_is_held_between_processes_and_released_by_a_kill(tmp_path: Path) -> None:
    lock = tmp_path / "l" / ".lock"
    process = child("with files.locked(Path(argv[0]), what='x'):\n    print(1, flush=True)\n    sys.stdin.read()", lock)
    with process:
        assert process.stdout is not None and process.stdout.readline() == "1\n"
        with (
            pytest.raises(BusyError, match="the thing is in use") as caught,
            files.locked(lock, what="the thing", timeout_s=0),
        ):
            raise AssertionError
        assert str(lock) in caught.value.where
        process.kill()
    with files.locked(lock, what="the thing", timeout_s=0):
        pass


def test_a_waiting_process_gets_the_lock_when_it_is_free(tmp_path: Path) -> None:
    lock, done = tmp_path / ".lock", tmp_path / "done"
    with files.locked(lock, what="x"):
        process = child(
            "print(1, flush=True)\nwith files.locked(Path(argv[0]), what='x'):\n    Path(argv[1]).touch()", lock, done
        )
        assert process.stdout is not None and process.stdout.readline() == "1\n"
        assert not done.exists()
    with process:
        until(done.exists, what="the second process has the lock")


def test_an_exception_of_the_block_releases_the_lock_and_is_not_taken_for_a_timeout(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), files.locked(tmp_path / ".lock", what="x"):
        raise ZeroDivisionError
    with files.locked(tmp_path / ".lock", what="x", timeout_s=0):
        pass


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.integers() | st.booleans()))
def test_a_content_key_does_not_depend_on_the_order_of_keys(value: dict[str, int]) -> None:
    backwards = dict(reversed(list(value.items())))
    assert files.content_key(value) == files.content_key(backwards)
    assert len(files.content_key(value)) == 64


def test_json_files_keep_every_letter_and_end_with_a_newline(tmp_path: Path) -> None:
    files.write_json(tmp_path / "j", {"b": "naïve ☃", "a": [1]})
    assert (tmp_path / "j").read_text(encoding="utf-8") == '{\n  "a": [\n    1\n  ],\n  "b": "naïve ☃"\n}\n'


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (615e6, "615.0 MB"), (2.5e12, "2.5 TB")]
)
def test_bytes_are_written_for_people(count: float, text: str) -> None:
    assert files.human_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(8.14, "8.1 s"), (59.99, "60.0 s"), (125, "2 min 05 s"), (3599.9, "1 h 00 min"), (7320, "2 h 02 min")],
)
def test_seconds_are_written_for_people(seconds: float, text: str) -> None:
    assert files.human_seconds(seconds) == text


def test_a_private_folder_is_this_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run" / "sm120"
    files.make_private_folder(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    files.make_private_folder(folder)
    owner = folder.stat().st_uid
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    with pytest.raises(NotWritableError, match="belongs to another user") as caught:
        files.make_private_folder(folder)
    assert "SM120_RUNTIME_DIR" in caught.value.hint
