"""What a wheel's filename says, and which filenames an index accepts.

A name goes into folders, URLs, pages and shell commands, so only its canonical spelling in plain ASCII is accepted.
What is inside the wheel is not looked at here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from sm120_wheels.arch import Arch
from sm120_wheels.errors import PublishRefusedError, UnknownArchError, UnknownCudaError

#: A file system's 255 bytes, less the longest ending that is put behind a wheel's name (``.equivalence.json``).
MAX_FILENAME = 255 - len(".equivalence.json")

_PLAIN = re.compile(r"[A-Za-z0-9_.+!-]+")
_LABEL = re.compile(r"cu(\d{3})")


@dataclass(frozen=True, kw_only=True)
class Labels:
    """What the segments of a local version say: ``cu130.torch211.sm120a``."""

    index: str | None
    torch: str | None
    archs: tuple[str, ...]


def check_filename(filename: str) -> None:
    """Refuse a filename that is not the canonical, plain spelling of itself.

    Raises :class:`PublishRefusedError`; the caller has already parsed it as a wheel's filename.
    """
    if len(filename.encode()) > MAX_FILENAME:
        raise PublishRefusedError(
            f"the filename {filename[:40]}… is too long",
            why=f"it has {len(filename.encode())} bytes; {MAX_FILENAME} fit, with the endings put behind it",
            hint="give the build a shorter local version",
        )
    if odd := sorted({c for c in filename if not _PLAIN.fullmatch(c)}):
        raise PublishRefusedError(
            f"the filename {filename!a} has characters that no wheel's name needs",
            why=", ".join(f"{c!a} (U+{ord(c):04X})" for c in odd[:5]),
            hint="letters, digits and _ . + ! - are accepted; look-alike letters of other alphabets are not",
        )
    name, version, _, _ = parse_wheel_filename(filename)
    parts = filename.split("-")
    canonical = "-".join([name.replace("-", "_"), str(version), *parts[2:]])
    if filename != canonical:
        raise PublishRefusedError(
            f"the filename {filename} is not spelt canonically",
            why="two spellings of one wheel would be two files of one version",
            hint=f"build it as {canonical} (a wheel must not be renamed: its METADATA would disagree)",
        )


def read_labels(version: str) -> Labels:
    """Read the local part of a version. Unknown segments mean nothing."""
    index = torch = None
    archs: list[str] = []
    for segment in (Version(version).local or "").split("."):
        if _LABEL.fullmatch(segment):
            index = segment
        elif found := re.fullmatch(r"torch(\d)(\d+)", segment):
            torch = f"{found[1]}.{found[2]}"
        elif re.fullmatch(r"sm\d+[af]?", segment):
            try:
                archs.append(str(Arch.parse(segment.removeprefix("sm"))))
            except UnknownArchError:
                continue
    return Labels(index=index, torch=torch, archs=tuple(archs))


def cuda_of(label: str) -> str:
    """``cu130`` → ``13.0``. Raises :class:`UnknownCudaError`."""
    found = _LABEL.fullmatch(label)
    if not found:
        raise UnknownCudaError(f"unknown CUDA index {label!r}", hint="write it as cu130 for CUDA 13.0")
    return f"{found[1][:-1]}.{found[1][-1]}"


def label_of(cuda: str) -> str:
    """``13.0`` or ``cu130`` → ``cu130``. Raises :class:`UnknownCudaError`."""
    label = cuda if cuda.startswith("cu") else "cu" + "".join(cuda.split(".")[:2])
    cuda_of(label)
    return label


def project_of(name: str) -> str:
    """A project's normalised name."""
    return str(canonicalize_name(name))
