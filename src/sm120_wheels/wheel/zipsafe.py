"""Whether a zip archive can be unpacked without harm, judged from its central directory alone.

Knows nothing of wheels. What it lets through: regular files, stored or deflated, with distinct relative names, whose
sizes are credible and whose bytes are their own.
"""

from __future__ import annotations

import re
import stat
import zipfile
from dataclasses import dataclass

from sm120_wheels.files import human_bytes


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What is taken for a zip bomb.

    The largest wheel seen in the field unpacks to 1.8 GB at a ratio of 3; deflate can reach 1032.
    """

    members: int = 200_000
    total_bytes: int = 32 << 30
    """Sum of the unpacked sizes."""
    ratio: int = 200
    """Unpacked over packed size; only judged for what unpacks to more than ``ratio_from_bytes``."""
    ratio_from_bytes: int = 64 << 20
    text_bytes: int = 64 << 20
    """Largest METADATA, WHEEL or RECORD."""


_CONTROL = re.compile(r"[\x00-\x1f\x7f\\]")


class UnsafeArchiveError(Exception):
    """What is wrong, with which member, and why; the caller knows the archive's name."""

    def __init__(self, what: str, *, member: str, why: str) -> None:
        super().__init__(f"{what}: {member}: {why}")
        self.what = what
        self.member = member
        self.why = why


def safe_members(archive: zipfile.ZipFile, *, file_size: int, limits: Limits) -> dict[str, zipfile.ZipInfo]:
    """The files of an archive by name. Raises :class:`UnsafeArchiveError` at the first thing that could do harm.

    ``file_size``: bytes of the archive on disk.
    """
    entries = archive.infolist()
    if len(entries) > limits.members:
        raise UnsafeArchiveError(
            f"has more than {limits.members} members", member="", why="that many look like a zip bomb"
        )
    files: dict[str, zipfile.ZipInfo] = {}
    for info in entries:
        _check_entry(info)
        if info.is_dir():
            continue
        if info.filename in files:
            why = "which of them is installed is anyone's guess"
            raise UnsafeArchiveError("has two members of one name", member=info.filename, why=why)
        files[info.filename] = info
    folders: set[str] = set()
    for name in files:
        at = name.rfind("/")
        while at > 0 and (folder := name[:at]) not in folders:  # of a folder that was seen the parents were too
            if folder in files:
                what = "has a member that is file and folder at once"
                raise UnsafeArchiveError(what, member=name, why=f"{folder} is a file")
            folders.add(folder)
            at = name.rfind("/", 0, at)
    _check_sizes(files, limits)
    _check_places(files, file_size)
    return files


def _check_entry(info: zipfile.ZipInfo) -> None:
    if problem := _name_problem(info.orig_filename):
        raise UnsafeArchiveError("has a member with an unsafe name", member=repr(info.orig_filename), why=problem)
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        why = f"it is {'a symbolic link' if kind == stat.S_IFLNK else 'a special file'}; wheels hold regular files only"
        raise UnsafeArchiveError("has a member that is not a file", member=info.filename, why=why)
    if info.flag_bits & 0x1:
        raise UnsafeArchiveError("has an encrypted member", member=info.filename, why="wheels are never encrypted")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        why = f"method {info.compress_type}; only stored and deflated are usual"
        raise UnsafeArchiveError("uses a compression that installers lack", member=info.filename, why=why)


def _check_sizes(files: dict[str, zipfile.ZipInfo], limits: Limits) -> None:
    total = sum(i.file_size for i in files.values())
    packed = max(1, sum(i.compress_size for i in files.values()))
    why = f"it would unpack to {human_bytes(total)}, {total // packed} times its size; "
    if total > limits.total_bytes:
        why += f"the limit is {human_bytes(limits.total_bytes)}"
    elif total > limits.ratio_from_bytes and total / packed > limits.ratio:
        why += f"the limit is {limits.ratio} times"
    else:
        return
    largest = max(files, key=lambda n: files[n].file_size)
    raise UnsafeArchiveError("looks like a zip bomb", member=largest, why=why)


def _check_places(files: dict[str, zipfile.ZipInfo], file_size: int) -> None:
    """Members that share bytes (how a small file claims to hold petabytes) or lie beyond the file's end."""
    end = 0
    for info in sorted(files.values(), key=lambda i: i.header_offset):
        if info.header_offset < end:
            why = "it shares its bytes with another member"
            raise UnsafeArchiveError("looks like a zip bomb", member=info.filename, why=why)
        end = info.header_offset + 30 + info.compress_size  # 30: a local header without its name
        if end > file_size:
            raise UnsafeArchiveError("has a damaged member", member=info.filename, why="it ends beyond the file's end")


def _name_problem(name: str) -> str:
    """Why a member's name must not become a path, or nothing."""
    parts = name.removesuffix("/").split("/")
    if not name or _CONTROL.search(name):
        return "empty, or with a backslash, a line break, a NUL or another control character"
    if name.startswith("/") or (len(name) > 1 and name[1] == ":"):
        return "an absolute path: it would be written outside the target folder"
    if ".." in parts:
        return "'..' leads outside the target folder"
    if "." in parts or "" in parts:
        return "an empty or '.' part"
    return ""
