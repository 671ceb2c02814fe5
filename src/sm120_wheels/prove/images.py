"""What a library carries for GPUs, image by image, and which of them a GPU would run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sm120_wheels.arch import Arch
from sm120_wheels.prove import fatbin
from sm120_wheels.prove.traps import Trap

Capability = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Image:
    """One cubin or PTX text that a library carries."""

    container: int
    """Which fat binary (normally: which translation unit) of the library it is in."""
    kind: fatbin.Kind
    arch: Arch
    linkable: bool
    """Only a device linker reads it; the CUDA runtime does not load it."""
    bytes: int
    """In the file: header, payload, padding."""
    unpacked_bytes: int
    compression: fatbin.Compression
    compiler: str
    """The version of ptxas; for PTX the ISA version; nothing where it is not recorded."""
    kernels: tuple[str, ...]
    traps: tuple[Trap, ...] = ()
    traps_unread: str = "no target would load it"
    """Why traps were not looked for; empty where they were."""

    @property
    def target(self) -> str:
        return f"compute_{self.arch.number}" if self.kind == "ptx" else self.arch.sm


def choose(images: Sequence[Image], target: Capability) -> dict[int, int | None]:
    """For each container, the index of the image that a GPU of this compute capability would run, or None.

    Machine code before PTX; code of exactly this capability first (``a``, then ``f``, then plain), then that of the
    highest lower minor of the same major; of PTX the highest that may be compiled for it. The CUDA guide gives the
    order of preference only in part ("the most suitable"); among equals nothing here depends on it.
    """
    only_linkable = all(i.linkable for i in images)
    best: dict[int, tuple[tuple[int, ...], int] | None] = {}
    for index, image in enumerate(images):
        if image.kind not in ("sass", "ptx") or (image.linkable and not only_linkable):
            continue
        best.setdefault(image.container, None)
        if not _usable(image, target):
            continue
        rank = (
            int(image.kind == "sass"),
            *image.arch.capability,
            {"a": 2, "f": 1, "": 0}[image.arch.suffix],
        )
        current = best[image.container]
        if current is None or rank > current[0]:
            best[image.container] = (rank, index)
    return {container: None if b is None else b[1] for container, b in best.items()}


def _usable(image: Image, target: Capability) -> bool:
    if image.kind == "sass" or image.arch.suffix:
        return image.arch.runs_on(target)
    return image.arch.capability <= target
