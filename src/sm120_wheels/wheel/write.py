"""Writes a wheel whose bytes depend only on its content: sorted, one timestamp, fixed modes, RECORD made anew.

What it cannot fix is zlib itself: two machines whose zlib (or zlib-ng) deflates differently give archives that differ
in their packed bytes and agree in every member. ``record_sha256`` is the same on both, so it is what to compare then.
"""

from __future__ import annotations

import csv
import hashlib
import io
import stat
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sm120_wheels.files import atomic_path, sha256_file
from sm120_wheels.wheel.archive import record_hash

#: The zip format's first instant, 1980-01-01T00:00:00Z, in seconds since 1970.
ZIP_EPOCH = 315_532_800


@dataclass(frozen=True, kw_only=True)
class Member:
    """One file to be written: its name, its unpacked size in bytes, and how to get its bytes."""

    name: str
    size: int
    chunks: Callable[[], Iterable[bytes]]
    executable: bool = False


@dataclass(frozen=True, kw_only=True)
class Written:
    """An archive on disk."""

    sha256: str
    size: int
    record_sha256: str
    """Digest of RECORD: depends on the members alone, not on how zlib packed them."""


def from_bytes(name: str, data: bytes) -> Member:
    return Member(name=name, size=len(data), chunks=lambda: (data,))


def from_file(name: str, path: Path, *, executable: bool = False) -> Member:
    def chunks() -> Iterator[bytes]:
        with path.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                yield chunk

    return Member(name=name, size=path.stat().st_size, chunks=chunks, executable=executable)


def write_archive(target: Path, members: Iterable[Member], *, dist_info: str, source_date_epoch: int) -> Written:
    """Write a wheel atomically. RECORD is made here and must not be among ``members``.

    Order: by name, ``dist_info`` last and RECORD last of all, as the specification asks. Times are
    ``source_date_epoch`` in UTC, not before 1980; modes are 0644, or 0755 where executable; deflate at zlib's
    default level.
    """
    record = f"{dist_info}/RECORD"
    ordered = sorted(members, key=lambda m: (m.name.startswith(f"{dist_info}/"), m.name))
    names = [m.name for m in ordered]
    if len(set(names)) != len(names) or record in names:
        raise ValueError("members must have distinct names and not include RECORD")
    rows: list[tuple[str, str, str]] = []
    with atomic_path(target) as temporary:
        with zipfile.ZipFile(temporary, "w", compression=zipfile.ZIP_DEFLATED) as archive:
            for member in ordered:
                digest = hashlib.sha256()
                count = 0
                with archive.open(_info(member, source_date_epoch), "w") as stream:
                    for chunk in member.chunks():
                        digest.update(chunk)
                        count += len(chunk)
                        stream.write(chunk)
                rows.append((member.name, record_hash(digest.digest()), str(count)))
            text = record_text([*rows, (record, "", "")]).encode()
            archive.writestr(_info(from_bytes(record, text), source_date_epoch), text)
        return Written(
            sha256=sha256_file(temporary),
            size=temporary.stat().st_size,
            record_sha256=hashlib.sha256(text).hexdigest(),
        )


def record_text(rows: Iterable[tuple[str, str, str]]) -> str:
    """RECORD's text for rows of name, hash and size."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _info(member: Member, source_date_epoch: int) -> zipfile.ZipInfo:
    moment = time.gmtime(max(source_date_epoch, ZIP_EPOCH))
    info = zipfile.ZipInfo(member.name, date_time=moment[:6])
    info.compress_type = zipfile.ZIP_DEFLATED
    info.create_system = 3  # Unix, wherever it runs: the modes below are Unix modes
    info.external_attr = (stat.S_IFREG | (0o755 if member.executable else 0o644)) << 16
    info.file_size = member.size  # lets zipfile choose zip64 before it knows the packed size
    return info
