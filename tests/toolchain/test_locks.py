"""Locks: every recipe lock is whole, satisfies its .in, and the right lines are chosen."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from sm120_wheels.errors import RecipeInvalidError
from sm120_wheels.toolchain.locks import LockRequest, choose, known_locks, lock_path, read_lock

A, B = "a" * 64, "b" * 64


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", known_locks())
def test_every_lock_pins_each_line_by_sha256(name: str) -> None:
    entries = read_lock(lock_path(name))
    assert entries
    assert all(entry.sha256 for entry in entries)


@pytest.mark.parametrize("name", known_locks())
def test_every_lock_satisfies_the_in_file_beside_it(name: str) -> None:
    source = lock_path(name).with_suffix(".in").read_text(encoding="utf-8")
    wanted = [
        Requirement(text)
        for line in source.splitlines()
        if (text := line.partition(" #")[0].strip()) and text[0] not in "#-"
    ]
    entries = read_lock(lock_path(name))
    for requirement in wanted:
        pinned = [entry for entry in entries if entry.name == canonicalize_name(requirement.name)]
        assert pinned, requirement
        assert all(requirement.specifier.contains(entry.version) for entry in pinned), requirement


def test_every_in_file_has_a_lock() -> None:
    sources = {path.stem for path in lock_path("x").parent.glob("*.in")}
    assert sources == set(known_locks())


def test_no_lock_names_an_index() -> None:
    for name in known_locks():
        text = lock_path(name).read_text(encoding="utf-8")
        assert "index-url" not in text
        assert "://" not in text


def test_the_torch_lock_and_the_toolkit_lock_pin_the_same_cuda() -> None:
    torch = {entry.name: entry.version for entry in read_lock(lock_path("torch-2.11.0"))}
    toolkit = {e.name: e.version for e in (*read_lock(lock_path("cuda-13.0")), *read_lock(lock_path("cuda-13.0-libs")))}
    common = (torch.keys() & toolkit.keys()) - {"cuda-toolkit"}
    assert {"nvidia-cublas", "nvidia-cuda-runtime"} <= common
    assert {name: torch[name] for name in common} == {name: toolkit[name] for name in common}


def test_only_the_entries_whose_marker_holds_are_chosen(tmp_path: Path) -> None:
    lock = write(
        tmp_path / "x.txt",
        f"old==1 ; python_version < '3.11' \\\n    --hash=sha256:{A}\nnew==2 ; python_version >= '3.11' \\\n"
        f"    --hash=sha256:{A} \\\n    --hash=sha256:{B}\n",
    )
    assert [e.line() for e in choose([LockRequest(path=lock)], python_version="3.10.4")] == [
        f"old==1 --hash=sha256:{A}"
    ]
    assert [e.line() for e in choose([LockRequest(path=lock)], python_version="3.12.1")] == [
        f"new==2 --hash=sha256:{A} --hash=sha256:{B}"
    ]


def test_where_two_locks_pin_the_same_name_the_earlier_counts(tmp_path: Path) -> None:
    first = write(tmp_path / "first.txt", f"setuptools==81 --hash=sha256:{A}\n")
    second = write(tmp_path / "second.txt", f"setuptools==84 --hash=sha256:{B}\nwheel==1 --hash=sha256:{B}\n")
    chosen = choose([LockRequest(path=first), LockRequest(path=second)], python_version="3.12.0")
    assert {entry.name: entry.version for entry in chosen} == {"setuptools": "81", "wheel": "1"}


def test_only_named_distributions_are_chosen() -> None:
    request = LockRequest(path=lock_path("torch-2.11.0"), only=("torch", "typing_extensions"))
    assert [entry.name for entry in choose([request], python_version="3.12.0")] == ["torch", "typing-extensions"]


def test_a_name_that_the_lock_lacks_is_an_error_with_near_misses() -> None:
    request = LockRequest(path=lock_path("torch-2.11.0"), only=("torhc",))
    with pytest.raises(RecipeInvalidError, match="holds no torhc") as caught:
        choose([request], python_version="3.12.0")
    assert "did you mean torch" in caught.value.hint
    assert caught.value.exit_code == 10


@pytest.mark.parametrize("line", ["name==1", "name>=1 --hash=sha256:" + A, "name==1 --hash=sha256:abc", "=="])
def test_a_line_without_pin_or_hash_is_an_error_that_names_the_file(tmp_path: Path, line: str) -> None:
    lock = write(tmp_path / "x.txt", line + "\n")
    with pytest.raises(RecipeInvalidError) as caught:
        read_lock(lock)
    assert caught.value.where == str(lock)
    assert "sm120 lock" in caught.value.hint


def test_a_lock_that_is_not_there_offers_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(RecipeInvalidError, match="no lock file") as caught:
        read_lock(tmp_path / "torch-2.12.0.txt")
    assert "torch-2.11.0" in caught.value.hint
