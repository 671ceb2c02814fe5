"""Profiles as files: what ships can be read, what is damaged is refused with its place, what cannot fit is named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sm120_wheels.compile.budget import GIB, MIB
from sm120_wheels.compile.footprint import Scanner
from sm120_wheels.compile.profile import (
    Footprint,
    Measured,
    Profile,
    Store,
    Unit,
    best_match,
    check_fits,
    read_profile,
    shipped_profile,
    write_profile,
)
from sm120_wheels.compile.task import Tail
from sm120_wheels.errors import InsufficientMemoryError, SettingError
from sm120_wheels.paths import recipes_root


@pytest.mark.parametrize("path", sorted(recipes_root().glob("*/profiles/*.csv")), ids=lambda p: p.stem)
def test_every_profile_that_ships_can_be_read(path: Path) -> None:
    profile = read_profile(path)
    assert profile.units
    assert all(10 * MIB < u.peak < 200 * GIB and u.seconds > 0 for u in profile.units.values())


def test_sgl_kernels_profile_is_found_and_holds_its_largest_file() -> None:
    peaks = {}
    for kind in ("sm120a-whole", "sm120a"):
        path = shipped_profile("sgl-kernel", "0.4.4", kind)
        assert path is not None
        unit = read_profile(path).find("/anywhere/sgl-kernel/csrc/gemm/fp8_gemm_kernel.cu")
        assert unit is not None
        peaks[kind] = unit.peak
    assert peaks == {"sm120a-whole": 18888 * MIB, "sm120a": 5123 * MIB}
    assert shipped_profile("sgl-kernel", "0.4.4", "sm80") is None


def test_a_profile_survives_writing_and_reading(tmp_path: Path) -> None:
    units = [
        Unit(source="a/b.cu", peak=300 * MIB, seconds=12.5, cpu_seconds=11.25),
        Unit(
            source="c/d.cu",
            peak=GIB,
            seconds=99.0,
            footprint=Footprint(files=7, size=2048, cutlass_files=3),
            tail=Tail(memory=200 * MIB, after=60.5),
        ),
    ]
    write_profile(tmp_path / "p.csv", units, comment="measured\nby a test")
    assert sorted(read_profile(tmp_path / "p.csv").units.values(), key=lambda u: u.source) == units


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("source,seconds\n", "no peak_mib in its first line"),
        ("source,peak_mib,seconds\na/b.cu,many,3\n", "line 2 of the compile profile is not a measurement"),
        ("source,peak_mib,seconds,tail_mib\na/b.cu,9,3,1\n", "line 2 of the compile profile is not a measurement"),
        ("source,peak_mib,seconds\na/b.cu\n", "line 2 of the compile profile is not a measurement"),
    ],
)
def test_a_damaged_profile_is_refused_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "p.csv"
    path.write_text(text)
    with pytest.raises(SettingError) as raised:
        read_profile(path)
    assert message in str(raised.value)
    assert str(path) in str(raised.value)


def test_a_tail_that_saves_nothing_is_not_written(tmp_path: Path) -> None:
    units = [Unit(source="a/b.cu", peak=300 * MIB, seconds=9, tail=Tail(memory=300 * MIB, after=0.0))]
    write_profile(tmp_path / "p.csv", units, comment="")
    assert read_profile(tmp_path / "p.csv").units["a/b.cu"].tail is None


def test_a_store_keeps_tails_and_reads_entries_of_before_they_were_measured(tmp_path: Path) -> None:
    what = Measured(
        source="a.cu", targets="120a", compiler="n", variant="", parallel=1, peak=9, seconds=1, cpu_seconds=1
    )
    store = Store(tmp_path / "s.json")
    store.add(what)
    store.save()
    old = json.loads((tmp_path / "s.json").read_text())
    del old["entries"][0]["tail"]
    (tmp_path / "s.json").write_text(json.dumps(old))
    store = Store(tmp_path / "s.json")
    store.add(replace(what, tail=Tail(memory=3, after=2.0)))
    store.add(replace(what, tail=Tail(memory=2, after=2.5)))
    store.add(what)
    store.save()
    (entry,) = Store(tmp_path / "s.json").entries.values()
    assert (entry.count, entry.tail) == (4, Tail(memory=3, after=2.5))


def test_a_missing_profile_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="cannot be read"):
        read_profile(tmp_path / "none.csv")


def test_paths_match_by_their_end_and_never_by_the_name_alone() -> None:
    known = ["csrc/elementwise/copy.cu", "csrc/moe/copy.cu"]
    assert best_match("/x/csrc/moe/copy.cu", known) == "csrc/moe/copy.cu"
    assert best_match("/x/other/copy.cu", known) is None
    assert best_match("/deps/flashinfer-src/csrc/norm.cu", ["flashinfer/csrc/norm.cu"]) == "flashinfer/csrc/norm.cu"
    assert best_match("/x/b/c.cu", ["a/b/c.cu", "d/b/c.cu"]) is None, "two that match as well are no match"


def test_only_files_that_will_be_compiled_must_fit() -> None:
    profile = Profile(
        units={
            "k/small.cu": Unit(source="k/small.cu", peak=GIB, seconds=1),
            "k/big.cu": Unit(source="k/big.cu", peak=9 * GIB, seconds=1),
            "k/huge.cu": Unit(source="k/huge.cu", peak=19 * GIB, seconds=1),
        }
    )
    check_fits(profile, ceiling=20 * GIB)
    with pytest.raises(InsufficientMemoryError) as raised:
        check_fits(profile, ceiling=8 * GIB)
    assert raised.value.exit_code == 45
    text = str(raised.value)
    assert "k/huge.cu needs 20.4 GB" in text
    assert "this machine can give 8.6 GB" in text
    assert "1 more files are too large as well" in text
    assert "leave out the component" in text


def test_a_footprint_counts_each_header_once_and_follows_folders(tmp_path: Path) -> None:
    include = tmp_path / "inc" / "cutlass"
    include.mkdir(parents=True)
    (include / "a.h").write_text('#include "b.h"\n# include <cutlass/a.h>\n')
    (include / "b.h").write_text("// nothing\n")
    source = tmp_path / "x.cu"
    source.write_text('#include <cutlass/a.h>\n#include "near.h"\n#include <vector>\n')
    (tmp_path / "near.h").write_text('#include "cutlass/b.h"\n')
    found = Scanner().scan(source, [str(tmp_path / "inc")])
    assert found is not None
    assert (found.files, found.cutlass_files) == (4, 2)
    assert Scanner().scan(tmp_path / "none.cu", []) is None
