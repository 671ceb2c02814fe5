"""Reads any wheel, from anyone, without trusting it: the one door through which wheels enter this project.

Opening checks everything that the central directory and the small text members can tell (names, sizes, filename,
METADATA, WHEEL, RECORD's list); the bytes of a member are checked against RECORD when they are read, so that a
600 MB wheel opens in milliseconds. Nothing is written but by :meth:`WheelFile.extract`, and only below its folder.
Writing wheels is ``write.py``.

Format facts: the "Binary distribution format" page of the Python packaging specifications.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import hmac
import io
import stat
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO, NoReturn

from packaging.tags import Tag, parse_tag
from packaging.utils import BuildTag, InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from sm120_wheels.errors import WheelInvalidError
from sm120_wheels.files import human_bytes, no_space_is_an_error
from sm120_wheels.wheel.unpack import beside, unpacked
from sm120_wheels.wheel.zipsafe import Limits, UnsafeArchiveError, safe_members

_REDOWNLOAD = "download or build the wheel again; do not install this file"
_HASHES = ("sha256", "sha384", "sha512")
#: Members that RECORD lists without a hash, or does not list at all (the specification says so).
_UNRECORDED = ("RECORD", "RECORD.jws", "RECORD.p7s")


@dataclass(frozen=True, kw_only=True)
class WheelName:
    """A wheel's filename, taken apart."""

    distribution: str
    """Normalised: ``sglang-kernel``."""
    version: Version
    build: BuildTag
    tags: frozenset[Tag]


@dataclass(frozen=True, kw_only=True)
class RecordEntry:
    """One line of RECORD: the hash as ``sha256=<urlsafe base64 without padding>``, the size in bytes."""

    hash: str
    size: int | None


def parse_filename(path: Path) -> WheelName:
    """Take a wheel's filename apart. Raises :class:`WheelInvalidError` with what a wheel's name looks like."""
    try:
        name, version, build, tags = parse_wheel_filename(path.name)
    except (InvalidWheelFilename, InvalidVersion) as exc:
        raise WheelInvalidError(
            f"{path.name} is not a wheel's filename",
            where=str(path),
            why=str(exc),
            hint="a wheel is named {name}-{version}-{python}-{abi}-{platform}.whl; give it its old name back",
        ) from exc
    return WheelName(distribution=name, version=version, build=build, tags=tags)


def record_hash(digest: bytes, algorithm: str = "sha256") -> str:
    """A digest as RECORD writes it."""
    return f"{algorithm}={base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


@contextlib.contextmanager
def open_wheel(path: Path, *, limits: Limits | None = None, same_tags: bool = True) -> Iterator[WheelFile]:
    """Open and check a wheel. Raises :class:`WheelInvalidError` naming the file, the member and what to do.

    Without ``same_tags`` a wheel whose filename has other tags than its WHEEL is read too: installers take it, and
    published wheels are like that (renamed after the build). :meth:`WheelFile.tag_problem` says so.

    The hashes in RECORD are checked for each member as it is read, and for all of them by :meth:`WheelFile.verify`.
    """
    limits = limits or Limits()
    if not path.is_file():
        raise WheelInvalidError(
            f"no wheel at {path}" if not path.exists() else f"{path} is not a file",
            where=str(path),
            hint="give the path of a .whl file",
        )
    name = parse_filename(path)
    try:
        opened = path.open("rb")
    except OSError as exc:
        raise WheelInvalidError(
            f"{path.name} cannot be read",
            where=str(path),
            why=exc.strerror or str(exc),
            hint="check its owner and mode",
        ) from exc
    with opened as stream:
        if stream.read(4) != b"PK\x03\x04":
            raise WheelInvalidError(
                f"{path.name} is not a zip archive",
                where=str(path),
                why="its first bytes are not a zip's",
                hint=_REDOWNLOAD,
            )
        stream.seek(0)
        try:
            archive = zipfile.ZipFile(stream)
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as exc:
            raise WheelInvalidError(
                f"{path.name} is a damaged zip archive",
                where=str(path),
                why=f"{exc}; the list of members at its end cannot be read, as when a download was cut short",
                hint=_REDOWNLOAD,
            ) from exc
        with archive:
            wheel = WheelFile(path=path, name=name, archive=archive, limits=limits)
            wheel.check(same_tags=same_tags)
            yield wheel


class WheelFile:
    """An open wheel. Made by :func:`open_wheel`."""

    def __init__(self, *, path: Path, name: WheelName, archive: zipfile.ZipFile, limits: Limits) -> None:
        self.path = path
        self.filename = name
        self._archive = archive
        self._limits = limits
        self._infos: dict[str, zipfile.ZipInfo] = {}

    @property
    def members(self) -> tuple[str, ...]:
        """The names of all files (no folders), sorted."""
        return tuple(sorted(self._infos))

    def size(self, name: str) -> int:
        """The unpacked size of a member in bytes."""
        return self._info(name).file_size

    def packed_size(self, name: str) -> int:
        """The size of a member inside the archive in bytes."""
        return self._info(name).compress_size

    def executable(self, name: str) -> bool:
        """Whether the archive marks the member as executable by its owner."""
        return bool((self._info(name).external_attr >> 16) & stat.S_IXUSR)

    @cached_property
    def dist_info(self) -> str:
        """The name of the one ``.dist-info`` folder."""
        found = sorted(
            {n.split("/", 1)[0] for n in self._infos if n.split("/", 1)[0].endswith(".dist-info") and "/" in n}
        )
        if len(found) != 1:
            self._refuse(
                "has no .dist-info folder" if not found else f"has {len(found)} .dist-info folders: {', '.join(found)}",
                why="a wheel has exactly one, named after its distribution and version",
            )
        return found[0]

    @cached_property
    def metadata_text(self) -> str:
        """METADATA as written."""
        return self._text(f"{self.dist_info}/METADATA")

    @cached_property
    def metadata(self) -> Message:
        """METADATA's fields; the description, if it is the body, as the payload."""
        return HeaderParser().parsestr(self.metadata_text)

    @cached_property
    def wheel_text(self) -> str:
        """WHEEL as written."""
        return self._text(f"{self.dist_info}/WHEEL")

    @cached_property
    def record(self) -> dict[str, RecordEntry]:
        """RECORD: member name to hash and size."""
        member = f"{self.dist_info}/RECORD"
        entries: dict[str, RecordEntry] = {}
        try:
            # not splitlines(): a name may hold characters that it takes for the end of a line
            rows = csv.reader(io.StringIO(self._text(member), newline=""))
            for number, row in enumerate(rows, start=1):
                if not row:
                    continue
                if len(row) != 3 or (row[2] and not row[2].isdigit()):
                    self._refuse("has a RECORD that cannot be read", member=f"{member} line {number}", why=f"{row!r}")
                if row[0] in entries:
                    self._refuse("lists a member twice in RECORD", member=f"{member} line {number}", why=row[0])
                entries[row[0]] = RecordEntry(hash=row[1], size=int(row[2]) if row[2] else None)
        except csv.Error as exc:
            self._refuse("has a RECORD that cannot be read", member=member, why=str(exc))
        return entries

    def open(self, name: str) -> IO[bytes]:
        """A member's bytes as a stream, not checked against RECORD."""
        info = self._info(name)
        try:
            return self._archive.open(info)
        except (zipfile.BadZipFile, OSError, NotImplementedError, RuntimeError) as exc:
            self._refuse("has a damaged member", member=name, why=str(exc))

    def chunks(self, name: str) -> Iterator[bytes]:
        """A member's bytes piece by piece; after the last one they have been checked against size and RECORD."""
        algorithm, _, wanted = self._recorded_hash(name).partition("=")
        digest = hashlib.new(algorithm or "sha256")
        count = 0
        try:
            with beside(digest.update, size=self.size(name)) as update:
                for chunk in unpacked(self._archive, self._info(name), self.path):
                    count += len(chunk)
                    if count > self.size(name):
                        break
                    update(chunk)
                    yield chunk
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError) as exc:
            self._refuse("has a damaged member", member=name, why=f"{exc} (after {count} bytes)")
        if count != self.size(name):
            self._refuse("has a damaged member", member=name, why=f"{count} bytes where {self.size(name)} are declared")
        if algorithm and not hmac.compare_digest(record_hash(digest.digest(), algorithm), f"{algorithm}={wanted}"):
            self._refuse(
                "has a member that is not the one RECORD describes",
                member=name,
                why=f"RECORD says {algorithm}={wanted}\nthe file is {record_hash(digest.digest(), algorithm)}",
            )

    def read(self, name: str) -> bytes:
        """A member's bytes, checked against RECORD."""
        return b"".join(self.chunks(name))

    def extract(self, name: str, folder: Path) -> Path:
        """Unpack one member below ``folder``, checked against RECORD; a failure leaves no file behind."""
        target = folder.joinpath(*PurePosixPath(name).parts)
        source = self.chunks(self._info(name).filename)
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.parent.resolve().is_relative_to(folder.resolve()):
            self._refuse("would be unpacked outside its folder", member=name, why=f"{target.parent} leads elsewhere")
        try:
            with (
                no_space_is_an_error(target),
                target.open("xb") as stream,
                beside(stream.write, size=self.size(name)) as write,
            ):
                for chunk in source:
                    write(chunk)
        except FileExistsError:
            raise
        except BaseException:
            target.unlink(missing_ok=True)
            raise
        return target

    def verify(self) -> None:
        """Check every member's bytes against RECORD (reads the whole archive)."""
        for name in self.members:
            for _ in self.chunks(name):
                pass

    # -- the checks made on opening

    def check(self, *, same_tags: bool = True) -> None:
        """Everything that can be known without unpacking; called by :func:`open_wheel`."""
        try:
            self._infos = safe_members(self._archive, file_size=self.path.stat().st_size, limits=self._limits)
        except UnsafeArchiveError as exc:
            self._refuse(exc.what, member=exc.member, why=exc.why)
        self._check_metadata()
        self._check_tags(same_tags=same_tags)
        self._check_record()

    def _check_metadata(self) -> None:
        name, version = self.filename.distribution, self.filename.version
        folder, _, folder_version = self.dist_info.removesuffix(".dist-info").partition("-")
        places = [(self.dist_info, folder, folder_version)]
        member = f"{self.dist_info}/METADATA"
        places.append((member, self.metadata.get("Name", "").strip(), self.metadata.get("Version", "").strip()))
        for place, found_name, found_version in places:
            if canonicalize_name(found_name) != name:
                self._refuse(
                    "has another name inside than outside",
                    member=place,
                    why=f"{found_name!r}; the filename says {name!r}",
                )
            try:
                same = Version(found_version) == version
            except InvalidVersion:
                same = False
            if not same:
                self._refuse(
                    "has another version inside than outside",
                    member=place,
                    why=f"{found_version!r}; the filename says {str(version)!r}. Installers refuse such a wheel",
                    hint="a wheel's version cannot be changed by renaming the file: build it with that version, "
                    "or give the file its old name back",
                )

    def _check_tags(self, *, same_tags: bool) -> None:
        member = f"{self.dist_info}/WHEEL"
        if not HeaderParser().parsestr(self.wheel_text).get("Wheel-Version", "").startswith("1."):
            self._refuse("is of an unknown wheel version", member=member, why=self.wheel_text[:200])
        problem = self.tag_problem()
        if problem and same_tags:
            self._refuse(
                "has other tags inside than outside",
                member=member,
                why=problem,
                hint="a wheel's tags cannot be changed by renaming the file: give it its old name back",
            )

    def tag_problem(self) -> str:
        """How the tags in WHEEL are not those of the filename, or nothing."""
        inside: set[Tag] = set()
        for text in HeaderParser().parsestr(self.wheel_text).get_all("Tag", []):
            if text.count("-") != 2:
                self._refuse("has a tag that cannot be read", member=f"{self.dist_info}/WHEEL", why=repr(text))
            inside |= parse_tag(text)
        if inside == self.filename.tags:
            return ""
        return f"inside {_tags(inside)}; the filename says {_tags(self.filename.tags)}"

    def _check_record(self) -> None:
        record = f"{self.dist_info}/RECORD"
        exempt = {f"{self.dist_info}/{n}" for n in _UNRECORDED}
        if missing := sorted(set(self._infos) - set(self.record) - exempt):
            self._refuse(
                "holds members that RECORD does not list",
                member=missing[0],
                why=_and_more("not listed in RECORD", missing),
            )
        listed = {n for n in self.record if not n.endswith("/")}
        if extra := sorted(listed - set(self._infos) - exempt):
            self._refuse("lacks members that RECORD lists", member=extra[0], why=_and_more("listed, not there", extra))
        for name, info in sorted(self._infos.items()):
            if name in exempt:
                continue
            entry = self.record[name]
            if entry.size is not None and entry.size != info.file_size:
                self._refuse(
                    "has a member that is not the one RECORD describes",
                    member=name,
                    why=f"RECORD says {entry.size} bytes, the archive {info.file_size}",
                )
            if entry.hash.partition("=")[0] not in _HASHES:
                self._refuse(
                    "has a member without a sound hash in RECORD",
                    member=f"{record}: {name}",
                    why=f"{entry.hash!r}; sha256 or longer is required",
                )

    # -- small helpers

    def _info(self, name: str) -> zipfile.ZipInfo:
        if name not in self._infos:
            self._refuse("lacks a member", member=name, why="no such file in the archive")
        return self._infos[name]

    def _recorded_hash(self, name: str) -> str:
        """The hash that RECORD gives; nothing for RECORD itself and while RECORD is being read."""
        if name.rpartition("/")[2] in _UNRECORDED and name.startswith(f"{self.dist_info}/"):
            return ""
        entry = self.record.get(name)
        return entry.hash if entry else ""

    def _text(self, name: str) -> str:
        if name in self._infos and self.size(name) > self._limits.text_bytes:
            self._refuse("has a text member too large to be true", member=name, why=human_bytes(self.size(name)))
        try:
            return self.read(name).decode("utf-8")
        except UnicodeDecodeError as exc:
            self._refuse("has a text member that is not UTF-8", member=name, why=str(exc))

    def _refuse(self, what: str, *, why: str, member: str = "", hint: str = _REDOWNLOAD) -> NoReturn:
        raise WheelInvalidError(
            f"{self.path.name} {what}", where=f"{self.path}{f': {member}' if member else ''}", why=why, hint=hint
        )


def _and_more(what: str, names: list[str], shown: int = 5) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return f"{what}: {', '.join(names[:shown])}{more}"


def _tags(tags: set[Tag] | frozenset[Tag]) -> str:
    return ", ".join(sorted(map(str, tags))) or "none"
