"""Environments: real uv against an index in a folder; shared, complete or made anew, and each failure told apart."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sm120_wheels.errors import (
    DownloadError,
    HashMismatchError,
    HostUnreachableError,
    OfflineError,
    Sm120Error,
    UnsupportedTargetError,
)
from sm120_wheels.toolchain.locks import LockRequest
from sm120_wheels.toolchain.pyenv import PythonEnvironment, ensure_environment

if TYPE_CHECKING:
    from tests.toolchain.conftest import LocalIndex


def ensure(cache: Path, *locks: LockRequest, offline: bool = False) -> PythonEnvironment:
    return ensure_environment(Path(sys.executable), locks, cache_root=cache, offline=offline)


def error(cache: Path, *locks: LockRequest, offline: bool = False) -> Sm120Error:
    with pytest.raises(Sm120Error) as caught:
        ensure(cache, *locks, offline=offline)
    assert "Traceback" not in str(caught.value)
    return caught.value


def test_its_scripts_run_even_where_the_path_is_too_long_for_a_script_line(
    local_index: LocalIndex, tmp_path: Path
) -> None:
    lock = local_index.lock("x", alpha=local_index.add("alpha"))
    environment = ensure(tmp_path / ("long" * 40), lock)
    said = subprocess.run([environment.bin / "alpha"], capture_output=True, text=True, check=True).stdout
    assert said == "alpha runs\n"
    assert (environment.site_packages / "alpha.py").is_file()
    assert environment.packages == {"alpha": "1.0"}


def test_a_copy_of_the_cache_works_elsewhere(local_index: LocalIndex, tmp_path: Path) -> None:
    environment = ensure(tmp_path / "a", local_index.lock("x", alpha=local_index.add("alpha")))
    copy = shutil.copytree(environment.root, tmp_path / "b", symlinks=True)
    shutil.rmtree(environment.root)
    assert subprocess.run([copy / "bin" / "alpha"], capture_output=True, text=True, check=True).stdout


def test_the_second_time_nothing_is_installed(local_index: LocalIndex, tmp_path: Path) -> None:
    lock = local_index.lock("x", alpha=local_index.add("alpha"))
    first = ensure(tmp_path, lock)
    shutil.rmtree(local_index.root / "simple")
    assert ensure(tmp_path, lock) == first


def test_one_that_was_left_incomplete_is_made_anew(local_index: LocalIndex, tmp_path: Path) -> None:
    lock = local_index.lock("x", alpha=local_index.add("alpha"))
    environment = ensure(tmp_path, lock)
    (environment.root / "sm120-complete.json").unlink()
    (environment.site_packages / "alpha.py").unlink()
    ensure(tmp_path, lock)
    assert (environment.site_packages / "alpha.py").is_file()


def test_other_content_is_another_environment(local_index: LocalIndex, tmp_path: Path) -> None:
    alpha, beta = local_index.add("alpha"), local_index.add("beta")
    one = ensure(tmp_path, local_index.lock("x", alpha=alpha))
    two = ensure(tmp_path, local_index.lock("x", alpha=alpha, beta=beta))
    only = ensure(tmp_path, LockRequest(path=local_index.root / "x.txt", only=("alpha",)))
    assert one.key != two.key
    assert only == one


def test_two_processes_at_once_make_one_environment(local_index: LocalIndex, tmp_path: Path) -> None:
    lock = local_index.lock("x", alpha=local_index.add("alpha"))
    program = (
        "import sys; from pathlib import Path; from sm120_wheels.toolchain.locks import LockRequest;"
        "from sm120_wheels.toolchain.pyenv import ensure_environment as e;"
        "print(e(Path(sys.executable), [LockRequest(path=Path(sys.argv[1]))], cache_root=Path(sys.argv[2]),"
        "offline=False, on_line=lambda line: print(line, file=sys.stderr)).root)"
    )
    argv = [sys.executable, "-c", program, str(lock.path), str(tmp_path / "cache")]
    both = [subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert len({out for out, _ in outputs}) == 1
    assert sum("alpha==1.0" in err for _, err in outputs) == 1


def test_offline_works_with_what_the_cache_holds_and_says_what_it_lacks(
    local_index: LocalIndex, tmp_path: Path, clean_index_settings: Callable[..., None]
) -> None:
    alpha = local_index.add("alpha")
    made = ensure(tmp_path, local_index.lock("x", alpha=alpha))
    assert ensure(tmp_path, local_index.lock("x", alpha=alpha), offline=True) == made
    clean_index_settings(UV_DEFAULT_INDEX="https://index.invalid/simple")
    caught = error(tmp_path / "other", local_index.lock("y", alpha=alpha), offline=True)
    assert isinstance(caught, OfflineError)
    assert "alpha" in caught.what
    assert caught.exit_code == 23
    assert "--offline" in caught.what
    assert "copy the cache" in caught.hint


def test_a_file_that_differs_from_the_lock_is_refused_with_both_hashes(local_index: LocalIndex, tmp_path: Path) -> None:
    real, wrong = local_index.add("alpha"), "0" * 64
    (local_index.root / "simple" / "alpha" / "index.html").write_text(
        '<a href="alpha-1.0-py3-none-any.whl">alpha-1.0-py3-none-any.whl</a>'
    )
    lock = local_index.lock("x", alpha=wrong)
    caught = error(tmp_path, lock)
    assert isinstance(caught, HashMismatchError)
    assert caught.exit_code == 20
    assert "alpha==1.0" in caught.what
    assert real in caught.why
    assert wrong in caught.why
    assert caught.where == str(lock.path)


def test_a_failed_environment_is_not_taken_for_a_complete_one(local_index: LocalIndex, tmp_path: Path) -> None:
    digest = local_index.add("alpha")
    lock = local_index.lock("x", alpha=digest, beta="0" * 64)
    assert isinstance(error(tmp_path, lock), DownloadError)
    assert isinstance(error(tmp_path, lock), DownloadError)


def test_an_index_that_does_not_answer_is_told_with_the_ways_out(
    local_index: LocalIndex, tmp_path: Path, clean_index_settings: Callable[..., None]
) -> None:
    clean_index_settings(UV_DEFAULT_INDEX="http://127.0.0.1:9/simple", UV_HTTP_RETRIES="0")
    caught = error(tmp_path, local_index.lock("x", alpha="0" * 64))
    assert isinstance(caught, HostUnreachableError)
    assert caught.exit_code == 21
    assert "127.0.0.1:9" in caught.where
    assert "UV_DEFAULT_INDEX" in caught.hint
    assert "--offline" in caught.hint


def test_a_package_that_the_index_lacks_is_a_download_error(local_index: LocalIndex, tmp_path: Path) -> None:
    local_index.add("alpha")
    caught = error(tmp_path, local_index.lock("x", beta="0" * 64))
    assert isinstance(caught, DownloadError)
    assert "beta" in caught.why
    assert caught.exit_code == 24


def test_a_package_without_a_wheel_for_this_machine_is_told(local_index: LocalIndex, tmp_path: Path) -> None:
    digest = local_index.add("alpha")
    folder = local_index.root / "simple" / "alpha"
    wheel = next(folder.glob("*.whl"))
    other = wheel.rename(folder / "alpha-1.0-cp39-cp39-win_amd64.whl")
    (folder / "index.html").write_text(f'<a href="{other.name}#sha256={digest}">{other.name}</a>')
    caught = error(tmp_path, local_index.lock("x", alpha=digest))
    assert isinstance(caught, UnsupportedTargetError)
    assert caught.exit_code == 15


def test_pips_extra_index_serves_what_the_main_one_lacks(
    local_index: LocalIndex, tmp_path: Path, clean_index_settings: Callable[..., None]
) -> None:
    digest = local_index.add("alpha")
    empty = tmp_path / "empty"
    empty.mkdir()
    clean_index_settings(PIP_INDEX_URL=empty.as_uri(), PIP_EXTRA_INDEX_URL=f"file:///no/such/folder {local_index.url}")
    assert ensure(tmp_path, local_index.lock("x", alpha=digest)).packages == {"alpha": "1.0"}
