"""The local version label that tells what a wheel was built for: ``0.4.4+cu130.torch211.sm120a``.

Segments, in this order: CUDA, torch (where the package is bound to one), ``partial`` where components were left out,
and the architectures. ``partial`` stands before the architectures so that, by PEP 440's order of local labels (segment
by segment, words by alphabet), a partial wheel is always older than the complete one of the same make: an installer
that sees both takes the complete one. Put last it would be the newer one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from packaging.version import Version

from sm120_wheels.arch import Arch

PARTIAL = "partial"


@dataclass(frozen=True, kw_only=True)
class LocalLabel:
    """A local label, taken apart."""

    cuda: tuple[int, int]
    torch: tuple[int, int] | None
    archs: tuple[Arch, ...]
    partial: bool = False

    def __str__(self) -> str:
        segments = [f"cu{self.cuda[0]}{self.cuda[1]}"]
        if self.torch:
            segments.append(f"torch{self.torch[0]}{self.torch[1]}")
        if self.partial:
            segments.append(PARTIAL)
        return ".".join([*segments, *(f"sm{a.number}" for a in self.archs)])


def local_version(*, upstream: str, cuda: str, torch: str | None, archs: Sequence[Arch], partial: bool = False) -> str:
    """Upstream's version with our label: ``0.4.4``, ``13.0``, ``2.11.0``, 12.0a → ``0.4.4+cu130.torch211.sm120a``.

    A local label that upstream gave is replaced. Architectures are sorted and listed once each. The result is as
    PEP 440 normalises it.
    """
    if not archs:
        raise ValueError("a label needs an architecture")
    label = LocalLabel(
        cuda=_major_minor(cuda),
        torch=_major_minor(torch) if torch else None,
        archs=tuple(sorted(set(archs))),
        partial=partial,
    )
    return str(Version(f"{Version(upstream).public}+{label}"))


def read_label(version: str) -> LocalLabel | None:
    """The label of a version that :func:`local_version` made, or None for any other version."""
    match = re.fullmatch(
        rf"cu(\d+)(\d)(?:\.torch(\d)(\d+))?(\.{PARTIAL})?((?:\.sm\d+[af]?)+)", Version(version).local or ""
    )
    if not match:
        return None
    cuda_major, cuda_minor, torch_major, torch_minor, partial, archs = match.groups()
    return LocalLabel(
        cuda=(int(cuda_major), int(cuda_minor)),
        torch=(int(torch_major), int(torch_minor)) if torch_major else None,
        archs=tuple(Arch.parse(a.removeprefix("sm")) for a in archs.lstrip(".").split(".")),
        partial=bool(partial),
    )


def is_partial(version: str) -> bool:
    """Whether a version's label says that components were left out."""
    return PARTIAL in (Version(version).local or "").split(".")


def _major_minor(text: str) -> tuple[int, int]:
    version = Version(text)
    return version.major, version.minor
