"""Two builds of one wheel: what differs is named, with its section and the likely cause."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.prove.conftest import Said
from tests.wheel.conftest import RawWheel

Run = Callable[..., Said]
SOURCE = """
const char *place(void) { return PLACE; }
"""


def library(folder: Path, *options: str) -> bytes:
    (folder / "tiny.c").write_text(SOURCE)
    built = folder / "libtiny.so"
    command = ["cc", "-shared", "-fPIC", "-Wl,--build-id=none", *options, "-o", built.name, "tiny.c"]
    subprocess.run(command, cwd=folder, check=True)
    return built.read_bytes()


def wheel(folder: Path, **files: bytes) -> Path:
    return RawWheel(name="tiny", version="0.1", files={f"tiny/{n}.so": d for n, d in files.items()}).write(folder)


@pytest.fixture
def one(tmp_path: Path) -> Path:
    return wheel(tmp_path / "one", _c=library(tmp_path, '-DPLACE="/build/a"'))


def test_the_same_bytes_in_two_places_are_the_same(one: Path, tmp_path: Path, sm120: Run) -> None:
    other = wheel(tmp_path / "other", _c=library(tmp_path, '-DPLACE="/build/a"'))
    assert sm120("audit", one, "--same-as", other).code == 0


def test_a_path_that_was_compiled_in_is_named_by_its_section_and_cause(one: Path, tmp_path: Path, sm120: Run) -> None:
    other = wheel(tmp_path / "other", _c=library(tmp_path, '-DPLACE="/build/b"'))
    said = sm120("audit", one, "--same-as", other)
    assert said.code == 61
    assert "tiny/_c.so differs in 1 section" in said.err
    assert ".rodata: __FILE__ of a folder that is not mapped" in said.out


def test_a_search_path_and_an_unstripped_symbol_have_causes_of_their_own(one: Path, tmp_path: Path, sm120: Run) -> None:
    other = wheel(tmp_path / "other", _c=library(tmp_path, '-DPLACE="/build/a"', "-Wl,-rpath,/build/lib", "-g"))
    said = sm120("audit", one, "--same-as", other)
    assert said.code == 61
    assert ".dynstr, .dynamic: another search path or library was linked" in said.out.replace("\n        ", " ")
    assert "debug or line information" in said.out


def test_a_member_that_one_build_lacks_is_named(one: Path, tmp_path: Path, sm120: Run) -> None:
    code = library(tmp_path, '-DPLACE="/build/a"')
    said = sm120("audit", one, "--same-as", wheel(tmp_path / "other", _c=code, more=code))
    assert said.code == 61
    assert "tiny/more.so: only one of the two builds has it" in said.err


def test_equal_members_in_an_archive_that_was_packed_otherwise_are_told_apart(
    one: Path, tmp_path: Path, sm120: Run
) -> None:
    other = tmp_path / one.name
    other.write_bytes(one.read_bytes())
    assert sm120("audit", one, "--same-as", other).code == 0
    data = bytearray(other.read_bytes())
    at = data.rindex(b"PK\x01\x02")  # the last entry of the central directory: its time of day
    data[at + 12 : at + 14] = b"\x21\x08"
    other.write_bytes(data)
    said = sm120("audit", one, "--same-as", other)
    assert said.code == 61
    assert "every member is the same, and the archives are not" in said.err


def test_one_wheel_is_compared_with_one_other(one: Path, sm120: Run) -> None:
    assert sm120("audit", one, one, "--same-as", one).code == 2
