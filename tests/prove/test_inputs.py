"""What can be named, what is refused, and what an interruption leaves."""

from __future__ import annotations

import importlib.metadata
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sm120_wheels.arch import Arch
from sm120_wheels.errors import SettingError, WheelInvalidError
from sm120_wheels.prove import inputs
from sm120_wheels.prove.equivalence import compare
from tests.prove.conftest import Said
from tests.support.waiting import until

Run = Callable[..., Said]


def refused(text: str | Path) -> WheelInvalidError:
    with pytest.raises(WheelInvalidError) as caught:
        inputs.subject(str(text))
    return caught.value


def test_an_empty_name_is_not_the_current_folder() -> None:
    assert refused("").what == "there is no file ''"


def test_what_is_there_but_no_file_says_so(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.so")
    (tmp_path / "link.so").symlink_to("nowhere")
    for name in ("pipe.so", "link.so"):
        assert refused(tmp_path / name).what.endswith(f"{name} is not a file")
    assert "there is no file" in refused(tmp_path / "absent.so").what
    assert "neither a file nor an installed package" in refused("no-such-package").what


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_an_error_and_not_left_out(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o000)
    (tmp_path / "a.so").touch(mode=0o000)
    for name in (".", "a.so"):
        error = refused(tmp_path / name)
        assert "cannot be read" in error.what
        assert error.why == "Permission denied"


def test_an_unreadable_disk_is_an_error_and_not_an_empty_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raw_wheel: Callable[..., object]
) -> None:
    """The same for root: what the system refuses is told, for each way of naming something."""
    wheel = raw_wheel().write(tmp_path)  # type: ignore[attr-defined]
    (tmp_path / "folder").mkdir()

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "the disk")

    for name, function in ((wheel, "pathlib.Path.open"), (tmp_path / "folder", "os.scandir")):
        with monkeypatch.context() as patched:
            patched.setattr(function, refuse)
            error = refused(name)
        assert "cannot be read" in error.what
        assert error.why == "Permission denied"


def test_an_installed_package_that_lost_a_library_or_its_list_is_not_without_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extension: bytes
) -> None:
    info = tmp_path / "lossy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lossy\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert importlib.metadata.distribution("lossy").version == "1.0"
    assert "no list of its files" in refused("lossy").why
    (info / "RECORD").write_text("lossy/a.so,,\nlossy/__pycache__/x.pyc,,\nlossy-1.0.dist-info/METADATA,,\n")
    error = refused("lossy")
    assert error.where.endswith("lossy/a.so")
    assert error.why == "1 libraries are on its list and not there"
    (tmp_path / "lossy").mkdir()
    (tmp_path / "lossy/a.so").write_bytes(extension)
    assert [m.name for m in inputs.subject("lossy").members] == ["lossy/a.so"]


def test_a_library_pattern_that_matches_nothing_names_those_that_are_there(tmp_path: Path, extension: bytes) -> None:
    (tmp_path / "a.so").write_bytes(extension)
    named = inputs.subject(str(tmp_path))
    with pytest.raises(SettingError) as caught:
        compare(named, named, Arch.parse("12.0a"), libraries=["b*"])
    assert caught.value.hint == "it has a.so"


def test_ctrl_c_ends_every_process_quietly_and_leaves_nothing(tmp_path: Path, extension: bytes) -> None:
    (tmp_path / "a.so").write_bytes(extension)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.prove.held", tmp_path / "a.so"],
        env={**os.environ, "TMPDIR": str(temporary)},
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: len(list(temporary.glob("*/begun"))) == 2, what="two are being read")
        until((temporary / "idle").exists, what="the third has been read")
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert said == ""
    assert [p.name for p in temporary.iterdir()] == ["idle"]
