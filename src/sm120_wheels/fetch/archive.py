"""Unpack a source archive safely: nothing lands outside the folder, and the one top folder is stripped."""

from __future__ import annotations

import lzma
import shutil
import tarfile
import zipfile
import zlib
from pathlib import Path

from sm120_wheels.errors import DownloadError


def unpack(archive: Path, destination: Path) -> None:
    """Unpack a .tar.gz, .tar.xz, .tar.bz2 or .zip file into a new folder.

    Raises :class:`DownloadError` for anything else, for a damaged file, and for members that point outside.
    """
    holder = destination.with_name(f"{destination.name}.unpacking")
    holder.mkdir(parents=True)
    try:
        try:
            if zipfile.is_zipfile(archive):
                _unzip(archive, holder)
            else:
                _untar(archive, holder)
        except (tarfile.TarError, zipfile.BadZipFile, EOFError, ValueError, zlib.error, lzma.LZMAError) as exc:
            raise DownloadError(
                "the archive cannot be unpacked",
                where=str(archive),
                why=str(exc),
                hint="its sha256 is right, so the pin names a bad file: check the recipe",
            ) from exc
        tops = list(holder.iterdir())
        top = tops[0] if len(tops) == 1 and tops[0].is_dir() else holder
        top.rename(destination)
    finally:
        shutil.rmtree(holder, ignore_errors=True)


def _untar(archive: Path, into: Path) -> None:
    with tarfile.open(archive) as tar:
        if not hasattr(tarfile, "data_filter"):  # Python before 3.10.12
            raise ValueError("this Python's tarfile cannot unpack safely; use Python 3.10.12 or newer")
        tar.extractall(into, filter="data")


def _unzip(archive: Path, into: Path) -> None:
    root = into.resolve()
    with zipfile.ZipFile(archive) as bundle:
        for member in bundle.infolist():
            target = (root / member.filename).resolve()
            if not target.is_relative_to(root):
                raise ValueError(f"member {member.filename!r} leads outside the archive")
        bundle.extractall(into)  # noqa: S202 - every name was checked above
        for member in bundle.infolist():
            if member.external_attr >> 16 & 0o100 and not member.is_dir():  # zipfile itself drops executable bits
                (root / member.filename).chmod(0o755)
