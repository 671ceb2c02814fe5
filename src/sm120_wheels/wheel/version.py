"""The local version label that tells what a wheel was built for: ``0.4.4+cu130.torch211.sm120a``.

Segments, in this order: CUDA, torch (where the package is bound to one), ``partial`` where components were left out,
and the architectures. ``partial`` stands before the architectures so that, by PEP 440's order of local labels (segment
by segment, words by alphabet), a partial wheel is always older than the complete one of the same make: an installer
that sees both takes the complete one. Put last it would be the newer one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from packaging.version import Version

from sm120_wheels.arch import Arch

PARTIAL = "partial"


def local_version(*, upstream: str, cuda: str, torch: str | None, archs: Sequence[Arch], partial: bool = False) -> str:
    """Upstream's version with our label: ``0.4.4``, ``13.0``, ``2.11.0``, 12.0a → ``0.4.4+cu130.torch211.sm120a``.

    A local label that upstream gave is replaced. Architectures are sorted and listed once each. The result is as
    PEP 440 normalises it.
    """
    if not archs:
        raise ValueError("a label needs an architecture")
    segments = [
        f"cu{_major_minor(cuda)}",
        *([f"torch{_major_minor(torch)}"] if torch else []),
        *([PARTIAL] if partial else []),
        *(f"sm{arch.number}" for arch in sorted(set(archs))),
    ]
    return str(Version(f"{Version(upstream).public}+{'.'.join(segments)}"))


def is_partial(version: str) -> bool:
    """Whether a version's label says that components were left out."""
    return PARTIAL in (Version(version).local or "").split(".")


def cuda_release(version: str) -> str:
    """The CUDA release that a version's label names, ours or another project's: ``13.0`` for ``2.11.0+cu130``; empty
    where it names none."""
    match = re.search(r"(?:^|[._-])cu(\d{2})(\d)(?=$|[._-])", version.partition("+")[2])
    return f"{match[1]}.{match[2]}" if match else ""


def cuda_major(version: str) -> int | None:
    """The major of :func:`cuda_release`."""
    release = cuda_release(version)
    return int(release.partition(".")[0]) if release else None


def _major_minor(text: str) -> str:
    version = Version(text)
    return f"{version.major}{version.minor}"
