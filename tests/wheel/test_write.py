from __future__ import annotations

import csv
import hashlib
import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm120_wheels.wheel.archive import open_wheel, record_hash
from sm120_wheels.wheel.write import Member, from_bytes, from_file, record_text, write_archive

INFO = "tiny-0.1.dist-info"
NAME = "tiny-0.1-py3-none-any.whl"
REQUIRED = {
    f"{INFO}/METADATA": b"Metadata-Version: 2.1\nName: tiny\nVersion: 0.1\n",
    f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
}
#: Names with much that CSV and zip could stumble over (quotes, commas, Unicode line breaks), but no path separators.
LEAF = st.text(
    st.characters(min_codepoint=0x20, exclude_characters="/\\:\x7f", exclude_categories=["Cs"]), min_size=1, max_size=12
).filter(lambda name: name not in (".", ".."))
FILES = st.dictionaries(st.builds("pkg/{}".format, LEAF), st.binary(max_size=300), max_size=6)


@settings(max_examples=60, deadline=None)
@given(files=FILES, seed=st.randoms())
def test_any_members_come_back_in_any_order_with_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes], seed: object
) -> None:
    folder = tmp_path_factory.mktemp("any")
    members = [from_bytes(name, data) for name, data in {**REQUIRED, **files}.items()]
    shuffled = sorted(members, key=lambda m: hashlib.sha256(m.name.encode() + str(seed).encode()).digest())
    first = write_archive(folder / NAME, members, dist_info=INFO, source_date_epoch=1_700_000_000)
    second = write_archive(folder / "again" / NAME, shuffled, dist_info=INFO, source_date_epoch=1_700_000_000)
    assert first == second
    with open_wheel(folder / NAME) as wheel:
        wheel.verify()
        assert {name: wheel.read(name) for name in wheel.members if ".dist-info/" not in name} == files


@given(rows=st.lists(st.tuples(LEAF, st.binary(max_size=8), st.integers(0, 1 << 40))))
def test_record_can_be_read_back_by_a_csv_reader(rows: list[tuple[str, bytes, int]]) -> None:
    wanted = [(name, record_hash(hashlib.sha256(data).digest()), str(size)) for name, data, size in rows]
    assert [tuple(row) for row in csv.reader(io.StringIO(record_text(wanted), newline=""))] == wanted


def test_a_large_member_is_streamed_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(3 << 20))
    members = [from_file("pkg/big", tmp_path / "big"), *(from_bytes(n, d) for n, d in REQUIRED.items())]
    write_archive(tmp_path / NAME, members, dist_info=INFO, source_date_epoch=0)
    with open_wheel(tmp_path / NAME) as wheel:
        wheel.verify()
        assert wheel.size("pkg/big") == 3 << 20


def test_a_failure_leaves_neither_wheel_nor_rest(tmp_path: Path) -> None:
    def broken() -> list[bytes]:
        raise RuntimeError("gone")

    with pytest.raises(RuntimeError, match="gone"):
        write_archive(tmp_path / NAME, [Member(name="a", size=1, chunks=broken)], dist_info=INFO, source_date_epoch=0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("names", [("a", "a"), ("a", f"{INFO}/RECORD")])
def test_members_that_clash_are_a_defect(tmp_path: Path, names: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="distinct names"):
        write_archive(tmp_path / NAME, [from_bytes(n, b"") for n in names], dist_info=INFO, source_date_epoch=0)
