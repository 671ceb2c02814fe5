"""Archives of every kind, hostile ones too, unpacked with nothing outside the folder."""

from __future__ import annotations

import io
import os
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from sm120_wheels.errors import DownloadError
from sm120_wheels.fetch.archive import unpack


def make_tar(path: Path, mode: str = "w:gz", *, extra: tarfile.TarInfo | None = None) -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, content, bits in [("top/a", b"1", 0o644), ("top/sub/naïve ☃", b"2", 0o644), ("top/run", b"3", 0o755)]:
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), bits
            tar.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo("top/link")
        link.type, link.linkname = tarfile.SYMTYPE, "a"
        tar.addfile(link)
        if extra:
            tar.addfile(extra)
    return path


@pytest.mark.parametrize("mode", ["w:gz", "w:xz", "w:bz2"])
def test_a_tar_is_unpacked_without_its_top_folder(tmp_path: Path, mode: str) -> None:
    unpack(make_tar(tmp_path / "x", mode), tmp_path / "out")
    assert sorted(os.listdir(tmp_path / "out")) == ["a", "link", "run", "sub"]
    assert (tmp_path / "out" / "sub" / "naïve ☃").read_bytes() == b"2"
    assert (tmp_path / "out" / "run").stat().st_mode & stat.S_IXUSR
    assert (tmp_path / "out" / "link").readlink() == Path("a")


def test_a_zip_keeps_executable_bits(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as bundle:
        bundle.writestr("top/a", "1")
        runnable = zipfile.ZipInfo("top/run")
        runnable.create_system, runnable.external_attr = 3, 0o100755 << 16
        bundle.writestr(runnable, "2")
    unpack(tmp_path / "x.zip", tmp_path / "out")
    assert (tmp_path / "out" / "a").read_text() == "1"
    assert (tmp_path / "out" / "run").stat().st_mode & stat.S_IXUSR
    assert not (tmp_path / "out" / "a").stat().st_mode & stat.S_IXUSR


def test_several_tops_are_kept_as_they_are(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as bundle:
        bundle.writestr("a/1", "")
        bundle.writestr("b/2", "")
    unpack(tmp_path / "x.zip", tmp_path / "out")
    assert sorted(os.listdir(tmp_path / "out")) == ["a", "b"]


def evil(name: str, **values: object) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    for key, value in values.items():
        setattr(member, key, value)
    return member


@pytest.mark.parametrize(
    "member",
    [
        evil("../outside"),
        evil("top/out", type=tarfile.SYMTYPE, linkname="../../outside"),
        evil("top/hard", type=tarfile.LNKTYPE, linkname="../outside"),
        evil("top/dev", type=tarfile.CHRTYPE),
    ],
    ids=["name", "symlink", "hard link", "device"],
)
def test_a_member_that_leads_outside_refuses_the_archive(tmp_path: Path, member: tarfile.TarInfo) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    with pytest.raises(DownloadError, match="cannot be unpacked"):
        unpack(make_tar(inner / "x", extra=member), inner / "out")
    assert sorted(os.listdir(inner)) == ["x"]
    assert os.listdir(tmp_path) == ["inner"]


def test_a_zip_member_that_leads_outside_refuses_the_archive(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as bundle:
        bundle.writestr("../outside", "")
    with pytest.raises(DownloadError) as caught:
        unpack(tmp_path / "x.zip", tmp_path / "out")
    assert "leads outside" in caught.value.why


@pytest.mark.parametrize(("mode", "damage"), [("w:gz", "cut"), ("w:xz", "cut"), ("w:bz2", "cut"), ("w:bz2", "changed")])
def test_a_damaged_archive_is_an_error_of_ours(tmp_path: Path, mode: str, damage: str) -> None:
    big = tmp_path / "big"
    with tarfile.open(big, mode) as tar:  # type: ignore[call-overload]
        member = tarfile.TarInfo("top/noise")
        member.size = 300_000
        tar.addfile(member, io.BytesIO(os.urandom(300_000)))
    data = bytearray(big.read_bytes())
    if damage == "cut":
        del data[len(data) // 2 :]
    else:
        data[len(data) // 2 : len(data) // 2 + 64] = b"\xff" * 64
    big.write_bytes(data)
    with pytest.raises(DownloadError) as caught:
        unpack(big, tmp_path / "out")
    assert "check the recipe" in caught.value.hint
    assert not (tmp_path / "out").exists()


def test_what_is_no_archive_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("<html>not found</html>")
    with pytest.raises(DownloadError, match="cannot be unpacked"):
        unpack(tmp_path / "x", tmp_path / "out")
