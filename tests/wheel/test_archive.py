from __future__ import annotations

import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sm120_wheels.errors import WheelInvalidError
from sm120_wheels.wheel.archive import open_wheel
from sm120_wheels.wheel.zipsafe import Limits

INFO = "tiny-0.1.dist-info"


def refused(path: Path, **limits: int) -> WheelInvalidError:
    """The error of opening and reading everything; it always names the file and says what to do."""
    with pytest.raises(WheelInvalidError) as caught, open_wheel(path, limits=Limits(**limits) if limits else None) as w:
        w.verify()
    assert path.name in caught.value.what
    assert caught.value.hint
    assert caught.value.exit_code == 60
    return caught.value


def test_a_sound_wheel_opens_and_its_parts_can_be_asked_for(tmp_path: Path, raw_wheel: Any) -> None:
    with open_wheel(raw_wheel().write(tmp_path)) as wheel:
        wheel.verify()
        assert wheel.members == (f"{INFO}/METADATA", f"{INFO}/RECORD", f"{INFO}/WHEEL", "tiny/__init__.py")
        assert wheel.filename.distribution == "tiny"
        assert str(wheel.filename.version) == "0.1"
        assert wheel.metadata["Name"] == "tiny"
        assert wheel.record["tiny/__init__.py"].size == wheel.size("tiny/__init__.py") == 12
        target = wheel.extract("tiny/__init__.py", tmp_path / "out")
    assert target.read_bytes() == b"answer = 42\n"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(WheelInvalidError, match="no wheel at"), open_wheel(tmp_path / "a-1-py3-none-any.whl"):
        pass


def test_a_name_that_is_no_wheels_name_says_what_one_looks_like(tmp_path: Path, raw_wheel: Any) -> None:
    error = refused(raw_wheel(filename="tiny.whl").write(tmp_path))
    assert "not a wheel's filename" in error.what
    assert "{python}-{abi}-{platform}" in error.hint


def test_a_file_that_is_no_zip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tiny-0.1-py3-none-any.whl"
    path.write_text("<html>404 Not Found</html>")
    assert "not a zip archive" in refused(path).what


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.9, 0.99])
def test_a_truncated_download_is_refused(tmp_path: Path, raw_wheel: Any, kept: float) -> None:
    path = raw_wheel().write(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept)])
    error = refused(path)
    assert "damaged zip archive" in error.what
    assert "cut short" in error.why


def test_a_flipped_byte_inside_a_member_is_refused_on_reading(tmp_path: Path, raw_wheel: Any) -> None:
    path = raw_wheel(files={"tiny/blob": bytes(range(256)) * 40}).write(tmp_path)
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        start = archive.getinfo("tiny/blob").header_offset + 30 + len("tiny/blob")
    data[start + 60] ^= 0xFF
    path.write_bytes(data)
    with open_wheel(path) as wheel, pytest.raises(WheelInvalidError, match="damaged member") as caught:
        wheel.extract("tiny/blob", tmp_path / "out")
    assert "tiny/blob" in caught.value.where
    assert not (tmp_path / "out/tiny/blob").exists()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("../evil.py", "'..' leads outside"),
        ("tiny/../../evil.py", "'..' leads outside"),
        ("/etc/evil.py", "an absolute path"),
        ("C:/evil.py", "an absolute path"),
        ("tiny\\..\\evil.py", "backslash"),
        ("tiny/two\nlines.py", "a line break"),
        ("tiny//evil.py", "an empty or '.' part"),
        ("./evil.py", "an empty or '.' part"),
    ],
)
def test_a_name_that_leads_outside_is_refused_and_nothing_is_written(
    tmp_path: Path, raw_wheel: Any, name: str, why: str
) -> None:
    path = raw_wheel(extra=[(zipfile.ZipInfo(name), b"evil")]).write(tmp_path)
    error = refused(path)
    assert "unsafe name" in error.what
    assert why in error.why
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_name_cut_by_a_nul_is_refused(tmp_path: Path, raw_wheel: Any) -> None:
    path = raw_wheel(extra=[(zipfile.ZipInfo("tiny/evilXpy"), b"evil")]).write(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"evilXpy", b"evil\0py"))
    assert "NUL" in refused(path).why


def test_a_symbolic_link_is_refused(tmp_path: Path, raw_wheel: Any) -> None:
    link = zipfile.ZipInfo("tiny/link")
    link.external_attr = 0o120777 << 16
    error = refused(raw_wheel(extra=[(link, b"/etc/passwd")]).write(tmp_path))
    assert "symbolic link" in error.why
    assert "tiny/link" in error.where


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_members_of_one_name_are_refused(tmp_path: Path, raw_wheel: Any) -> None:
    path = raw_wheel(extra=[(zipfile.ZipInfo("tiny/__init__.py"), b"evil = 1\n")]).write(tmp_path)
    assert "two members of one name" in refused(path).what


def test_a_member_that_is_also_a_folder_is_refused(tmp_path: Path, raw_wheel: Any) -> None:
    path = raw_wheel(extra=[(zipfile.ZipInfo("tiny/__init__.py/x"), b"")]).write(tmp_path)
    assert "file and folder at once" in refused(path).what


def test_an_encrypted_member_is_refused(tmp_path: Path, raw_wheel: Any) -> None:
    path = raw_wheel().write(tmp_path)
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\x01\x02") + 8
    struct.pack_into("<H", data, at, struct.unpack_from("<H", data, at)[0] | 1)
    path.write_bytes(data)
    assert "encrypted" in refused(path).what


def test_an_unusual_compression_is_refused(tmp_path: Path, raw_wheel: Any) -> None:
    packed = zipfile.ZipInfo("tiny/packed")
    packed.compress_type = zipfile.ZIP_BZIP2
    assert "compression that installers lack" in refused(raw_wheel(extra=[(packed, b"x")]).write(tmp_path)).what


def test_a_zip_bomb_is_refused_by_its_ratio_before_anything_is_unpacked(tmp_path: Path, raw_wheel: Any) -> None:
    path = raw_wheel(files={"tiny/bomb": bytes(80 << 20)}).write(tmp_path)
    error = refused(path)
    assert "zip bomb" in error.what
    assert "tiny/bomb" in error.where
    assert "the limit is 200 times" in error.why


def test_a_zip_bomb_is_refused_by_its_total(tmp_path: Path, raw_wheel: Any) -> None:
    assert "the limit is 10 B" in refused(raw_wheel().write(tmp_path), total_bytes=10).why


def test_too_many_members_are_refused(tmp_path: Path, raw_wheel: Any) -> None:
    assert "more than 3 members" in refused(raw_wheel().write(tmp_path), members=3).what


def test_members_that_share_their_bytes_are_refused(tmp_path: Path, raw_wheel: Any) -> None:
    path = raw_wheel(files={"tiny/a": b"a" * 500, "tiny/b": b"a" * 500}).write(tmp_path)
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        first = archive.getinfo("tiny/a").header_offset
    entry = data.index(b"tiny/b", data.index(b"PK\x01\x02")) - 46
    struct.pack_into("<I", data, entry + 42, first)
    path.write_bytes(data)
    assert "shares its bytes" in refused(path).why


def test_a_declared_size_that_is_too_small_is_refused(tmp_path: Path, raw_wheel: Any) -> None:
    path = raw_wheel(files={"tiny/a": b"ab" * 500}).write(tmp_path)
    data = bytearray(path.read_bytes())
    entry = data.index(b"tiny/a", data.index(b"PK\x01\x02")) - 46
    struct.pack_into("<I", data, entry + 24, 10)
    path.write_bytes(data)
    assert "RECORD says 1000 bytes, the archive 10" in refused(path).why


def test_a_member_that_record_does_not_list_is_refused(tmp_path: Path, raw_wheel: Any) -> None:
    error = refused(raw_wheel(extra=[(zipfile.ZipInfo("tiny/more.py"), b"")]).write(tmp_path))
    assert "RECORD does not list" in error.what
    assert "tiny/more.py" in error.where


def test_a_member_that_only_record_lists_is_refused(tmp_path: Path, raw_wheel: Any) -> None:
    error = refused(raw_wheel(record=lambda text: text + "tiny/gone.py,sha256=x,1\n").write(tmp_path))
    assert "lacks members" in error.what
    assert "tiny/gone.py" in error.where


def test_a_member_of_another_size_than_recorded_is_refused(tmp_path: Path, raw_wheel: Any) -> None:
    error = refused(raw_wheel(record=lambda text: text.replace(",12\n", ",13\n")).write(tmp_path))
    assert "RECORD says 13 bytes, the archive 12" in error.why


def test_a_member_of_another_hash_than_recorded_is_refused_when_read(tmp_path: Path, raw_wheel: Any) -> None:
    path = raw_wheel(record=lambda text: text.replace("__init__.py,sha256=", "__init__.py,sha256=A", 1)).write(tmp_path)
    error = refused(path)
    assert "not the one RECORD describes" in error.what
    assert "tiny/__init__.py" in error.where


@pytest.mark.parametrize("weak", ["md5=1B2M2Y8AsgTpgAmY7PhCfg", ""])
def test_a_weak_or_missing_hash_in_record_is_refused(tmp_path: Path, raw_wheel: Any, weak: str) -> None:
    def weakened(text: str) -> str:
        first, rest = text.split("\n", 1)
        return f"tiny/__init__.py,{weak},12\n{rest}" if first.startswith("tiny/") else text

    assert "without a sound hash" in refused(raw_wheel(record=weakened).write(tmp_path)).what


@pytest.mark.parametrize("garbage", ["one,two\n", "a,b,c\n", '"open'])
def test_a_record_that_cannot_be_read_is_refused(tmp_path: Path, raw_wheel: Any, garbage: str) -> None:
    assert "RECORD" in refused(raw_wheel(record=lambda text: text + garbage).write(tmp_path)).where


def test_a_member_listed_twice_in_record_is_refused(tmp_path: Path, raw_wheel: Any) -> None:
    assert "twice" in refused(raw_wheel(record=lambda text: text + text).write(tmp_path)).what


def test_metadata_of_another_version_than_the_filename_says_why_renaming_does_not_work(
    tmp_path: Path, raw_wheel: Any
) -> None:
    path = raw_wheel(filename="tiny-0.1+cu130-cp310-abi3-linux_x86_64.whl").write(tmp_path)
    error = refused(path)
    assert "another version inside than outside" in error.what
    assert "'0.1'; the filename says '0.1+cu130'" in error.why
    assert "renaming" in error.hint


def test_metadata_that_disagrees_with_its_own_folder_is_refused(tmp_path: Path, raw_wheel: Any) -> None:
    path = raw_wheel(metadata="Metadata-Version: 2.1\nName: tiny\nVersion: 0.2\n").write(tmp_path)
    assert f"{INFO}/METADATA" in refused(path).where


def test_metadata_without_a_version_is_refused(tmp_path: Path, raw_wheel: Any) -> None:
    assert "another version" in refused(raw_wheel(metadata="Metadata-Version: 2.1\nName: tiny\n").write(tmp_path)).what


def test_metadata_of_another_name_is_refused(tmp_path: Path, raw_wheel: Any) -> None:
    path = raw_wheel(metadata="Metadata-Version: 2.1\nName: other\nVersion: 0.1\n").write(tmp_path)
    assert "another name" in refused(path).what


def test_names_are_compared_as_the_index_normalises_them(tmp_path: Path, raw_wheel: Any) -> None:
    path = raw_wheel(name="Tiny.Thing", metadata="Metadata-Version: 2.1\nName: tiny_thing\nVersion: 0.1.0\n")
    with open_wheel(path.write(tmp_path)) as wheel:
        assert wheel.filename.distribution == "tiny-thing"


def test_tags_that_disagree_with_the_filename_are_refused(tmp_path: Path, raw_wheel: Any) -> None:
    path = raw_wheel(filename="tiny-0.1-cp310-abi3-manylinux_2_28_x86_64.whl").write(tmp_path)
    error = refused(path)
    assert "other tags" in error.what
    assert "inside cp310-abi3-linux_x86_64; the filename says cp310-abi3-manylinux_2_28_x86_64" in error.why


@pytest.mark.parametrize(
    ("wheel", "what"),
    [
        ("Wheel-Version: 2.0\nTag: cp310-abi3-linux_x86_64\n", "unknown wheel version"),
        ("Wheel-Version: 1.0\nTag: nonsense\n", "tag that cannot be read"),
    ],
)
def test_a_wheel_file_that_cannot_be_understood_is_refused(
    tmp_path: Path, raw_wheel: Any, wheel: str, what: str
) -> None:
    assert what in refused(raw_wheel(wheel=wheel).write(tmp_path)).what


def test_two_dist_info_folders_are_refused(tmp_path: Path, raw_wheel: Any) -> None:
    path = raw_wheel(files={"other-1.dist-info/METADATA": b"x"}).write(tmp_path)
    assert "2 .dist-info folders: other-1.dist-info, tiny-0.1.dist-info" in refused(path).what


def test_an_archive_without_dist_info_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tiny-0.1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny.py", "")
    assert "no .dist-info folder" in refused(path).what


def test_a_dist_info_without_metadata_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tiny-0.1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{INFO}/RECORD", "")
    assert f"{INFO}/METADATA" in refused(path).where


def test_metadata_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tiny-0.1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{INFO}/METADATA", b"\xff\xfe")
        archive.writestr(f"{INFO}/RECORD", "")
    assert "not UTF-8" in refused(path).what


def test_folders_in_the_archive_are_no_members(tmp_path: Path, raw_wheel: Any) -> None:
    with open_wheel(raw_wheel(extra=[(zipfile.ZipInfo("tiny/"), b"")]).write(tmp_path)) as wheel:
        wheel.verify()
        assert "tiny/" not in wheel.members


def test_extracting_through_a_link_to_elsewhere_is_refused(tmp_path: Path, raw_wheel: Any) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out/tiny").symlink_to(tmp_path / "elsewhere")
    path = raw_wheel().write(tmp_path)
    with open_wheel(path) as wheel, pytest.raises(WheelInvalidError, match="outside its folder"):
        wheel.extract("tiny/__init__.py", tmp_path / "out")
    assert list((tmp_path / "elsewhere").iterdir()) == []


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=6),
    kept=st.just(1.0) | st.floats(0, 1),
)
def test_a_garbled_archive_is_read_as_it_was_or_refused_and_never_anything_else(
    tmp_path: Path, raw_wheel: Any, changes: list[tuple[float, int]], kept: float
) -> None:
    path = raw_wheel().write(tmp_path)
    data = bytearray(path.read_bytes())
    for place, value in changes:
        data[int(place * len(data))] = value
    path.write_bytes(data[: int(len(data) * kept)])
    try:
        with open_wheel(path) as wheel:
            wheel.verify()
            assert wheel.read("tiny/__init__.py") == b"answer = 42\n"
    except WheelInvalidError as error:
        assert error.hint
