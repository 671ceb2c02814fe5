from __future__ import annotations

import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sm120_wheels.errors import WheelInvalidError
from sm120_wheels.wheel.library import Library, is_host_elf, read_library

SOURCE = """
#include <stdlib.h>
extern void from_elsewhere(void);
__attribute__((weak)) extern void maybe(void);
unsigned dice(void) { from_elsewhere(); if (maybe) maybe(); return arc4random(); }
void PyInit_dice(void) {}
"""


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def read(path: Path) -> Library:
    library = read_library(path, member="tiny/dice.so")
    assert library is not None
    return library


def without_section_headers(data: bytes) -> bytes:
    """As ``strip --strip-section-headers`` of newer binutils leaves it."""
    cut = bytearray(data)
    struct.pack_into("<Q", cut, 0x28, 0)
    struct.pack_into("<HH", cut, 0x3C, 0, 0)
    return bytes(cut)


def test_what_the_dynamic_linker_reads_is_read(tmp_path: Path, compile_library: Any) -> None:
    data = compile_library(SOURCE, "-Wl,-soname,libdice.so.1", "-Wl,-rpath,$ORIGIN:/opt/lib")
    library = read(written(tmp_path / "dice.so", data))
    assert library.machine == "x86_64"
    assert library.soname == "libdice.so.1"
    assert library.needed == ("libc.so.6",)
    assert library.rpath == ("$ORIGIN", "/opt/lib")
    assert library.init_functions == ("PyInit_dice",)
    assert "GLIBC_2.36" in library.versions["libc.so.6"]
    assert "from_elsewhere" in library.undefined
    assert "maybe" not in library.undefined, "a weak symbol need not be there"
    assert library.filename == "dice.so"


def test_a_fully_stripped_library_tells_the_same(tmp_path: Path, compile_library: Any) -> None:
    whole = read(written(tmp_path / "dice.so", compile_library(SOURCE)))
    stripped = read(written(tmp_path / "dice.so", compile_library(SOURCE, strip=["--strip-all"])))
    assert stripped == whole


def test_a_library_without_section_headers_tells_the_same(tmp_path: Path, compile_library: Any) -> None:
    data = compile_library(SOURCE, strip=["--strip-all"])
    whole = read(written(tmp_path / "dice.so", data))
    headless = read(written(tmp_path / "dice.so", without_section_headers(data)))
    assert headless.versions == whole.versions
    assert headless.init_functions == whole.init_functions
    assert headless.undefined == whole.undefined


@pytest.mark.parametrize("kept", [70, 0.25, 0.5, 0.9, 0.999])
def test_a_library_that_was_cut_short_is_refused_by_its_name_in_the_wheel(
    tmp_path: Path, compile_library: Any, kept: float
) -> None:
    data = compile_library(SOURCE)
    path = written(tmp_path / "dice.so", data[: kept if isinstance(kept, int) else int(len(data) * kept)])
    with pytest.raises(WheelInvalidError) as caught:
        read(path)
    assert caught.value.what == "tiny/dice.so is not a whole ELF file"
    assert "cut short" in caught.value.why
    assert caught.value.hint


@pytest.mark.parametrize("kept", [0.5, 0.7])
def test_a_library_without_section_headers_that_was_cut_short_is_refused(
    tmp_path: Path, compile_library: Any, kept: float
) -> None:
    data = without_section_headers(compile_library(SOURCE))
    with pytest.raises(WheelInvalidError, match="not a whole ELF file"):
        read(written(tmp_path / "dice.so", data[: int(len(data) * kept)]))


def test_a_garbled_string_table_is_refused_without_a_traceback(tmp_path: Path, compile_library: Any) -> None:
    data = bytearray(compile_library(SOURCE))
    (headers,) = struct.unpack_from("<Q", data, 0x28)
    data[headers : headers + 64 * 5] = b"\xff" * (64 * 5)
    with pytest.raises(WheelInvalidError, match="not a whole ELF file"):
        read(written(tmp_path / "dice.so", bytes(data)))


def test_a_dynamic_section_that_points_nowhere_is_refused(tmp_path: Path, compile_library: Any) -> None:
    data = bytearray(compile_library(SOURCE))
    offset, count = struct.unpack_from("<Q", data, 0x20)[0], struct.unpack_from("<H", data, 0x38)[0]
    for entry in range(offset, offset + 56 * count, 56):
        if struct.unpack_from("<I", data, entry)[0] == 1:  # PT_LOAD
            struct.pack_into("<Q", data, entry + 16, 1 << 40)
    with pytest.raises(WheelInvalidError, match="not a whole ELF file") as caught:
        read(written(tmp_path / "dice.so", bytes(data)))
    assert "no segment holds address" in caught.value.why


def test_an_object_file_has_nothing_for_the_dynamic_linker(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("int f;\n")
    subprocess.run(["gcc", "-c", "a.c", "-o", "a.o"], cwd=tmp_path, check=True)
    assert read_library(tmp_path / "a.o") is None


def test_a_cubin_is_data_and_not_host_code(extension: bytes) -> None:
    assert is_host_elf(extension[:20])
    cubin = bytearray(extension[:20])
    struct.pack_into("<H", cubin, 18, 190)
    assert not is_host_elf(bytes(cubin))
    assert not is_host_elf(b"\x7fELF")
    assert not is_host_elf(b"#!/bin/sh\n# a long enough script")


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=12),
    in_head=st.booleans(),
)
def test_a_garbled_library_is_read_or_refused_and_never_anything_else(
    tmp_path: Path, extension: bytes, changes: list[tuple[float, int]], in_head: bool
) -> None:
    data = bytearray(extension)
    reach = 1200 if in_head else len(data)  # the head holds the headers, where a byte does most harm
    for place, value in changes:
        data[int(place * reach)] = value
    path = written(tmp_path / "garbled.so", bytes(data))
    try:
        read_library(path, member="tiny/garbled.so")
    except WheelInvalidError as error:
        assert error.what == "tiny/garbled.so is not a whole ELF file"
