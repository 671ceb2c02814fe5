"""GPU architectures as nvcc names them: what ``12.0a`` means, which GPUs run it, which CUDA can compile it.

Source of the rules: NVIDIA's nvcc manual ("Virtual Architecture Feature List") and the CUDA 12.9 announcement of
family-specific targets; the table in docs/architecture.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from sm120_wheels.errors import UnknownArchError, near_misses

Suffix = Literal["", "a", "f"]

#: The targets that this project knows, with the first CUDA release that compiles each.
KNOWN: dict[str, tuple[int, int]] = {
    "8.0": (11, 0),
    "8.6": (11, 1),
    "8.9": (11, 8),
    "9.0": (11, 8),
    "9.0a": (12, 0),
    "10.0a": (12, 8),
    "10.0f": (12, 9),
    "10.3a": (12, 9),
    "12.0": (12, 8),
    "12.0a": (12, 8),
    "12.0f": (12, 9),
    "12.1": (12, 9),
    "12.1a": (12, 9),
    "12.1f": (12, 9),
}


@dataclass(frozen=True, order=True)
class Arch:
    """One compile target: compute capability plus ``a`` (this architecture only) or ``f`` (its family)."""

    major: int
    minor: int
    suffix: Suffix = ""

    @classmethod
    def parse(cls, text: str) -> Arch:
        """Read ``12.0a``, ``120a`` or ``sm_120a``. Raises :class:`UnknownArchError` with near misses."""
        match = re.fullmatch(r"(?:sm_|compute_)?(\d+)\.?(\d)([af]?)", text.strip())
        if match:
            major, minor, suffix = match.groups()
            arch = cls(int(major), int(minor), suffix)  # type: ignore[arg-type]
            if str(arch) in KNOWN:
                return arch
        raise UnknownArchError(f"unknown GPU architecture {text!r}", hint=near_misses(text, KNOWN))

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}{self.suffix}"

    @property
    def number(self) -> str:
        """``120a``: the form in CMake lists."""
        return f"{self.major}{self.minor}{self.suffix}"

    @property
    def sm(self) -> str:
        """``sm_120a``: the form in cubins."""
        return f"sm_{self.number}"

    @property
    def gencode(self) -> str:
        """The nvcc option that compiles machine code, and no PTX, for this target."""
        return f"-gencode=arch=compute_{self.number},code={self.sm}"

    @property
    def min_cuda(self) -> tuple[int, int]:
        return KNOWN[str(self)]

    @property
    def capability(self) -> tuple[int, int]:
        return (self.major, self.minor)

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """Whether a GPU of this compute capability executes machine code of this target.

        Plain code runs on the same major with an equal or higher minor; ``a`` on exactly its own; ``f`` on its
        family, which is the same major with an equal or higher minor.
        """
        major, minor = capability
        if self.suffix == "a":
            return capability == self.capability
        return major == self.major and minor >= self.minor
