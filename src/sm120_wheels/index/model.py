"""What the index remembers about a wheel: the records that all pages are rendered from.

Records are read back from files, so they are pydantic models; a file that breaks them is a damaged index. Nothing
here reads or writes.
"""

from __future__ import annotations

from typing import Literal

from packaging.utils import canonicalize_name
from packaging.version import Version
from pydantic import BaseModel, ConfigDict, Field

from sm120_wheels.files import canonical_json

#: The index of all CUDA versions together.
ALL = "simple"

EvidenceKind = Literal["audit", "equivalence", "smoke", "sbom", "build", "provenance"]
State = Literal["passed", "failed", "not run"]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Evidence(_Record):
    """One file of evidence about a wheel, published beside it under a name made of its own content."""

    kind: EvidenceKind
    sha256: str
    size: int
    """Bytes."""
    state: State | None = None
    """What it says, for the kinds that say something."""
    verdicts: dict[str, str] = Field(default_factory=dict)
    """For an audit: compute capability to ``runs``, ``part``, ``none`` or ``no-cuda``."""
    gpu: str = ""
    """For a smoke record: the GPU it ran on."""
    driver: str = ""
    """For a smoke record: that machine's driver."""
    detail: str = ""
    """One sentence: why it failed or was not run."""

    @property
    def filename(self) -> str:
        """``smoke.3f2a9c0d51e7.json``; a PEP 740 object and a CycloneDX bill keep the endings their readers expect."""
        ending = {"sbom": "cdx.json", "provenance": "provenance.json"}.get(self.kind, "json")
        return f"{self.kind}.{self.sha256[:12]}.{ending}"


class Wheel(_Record):
    """One published wheel."""

    filename: str
    sha256: str
    size: int
    """Bytes."""
    uploaded: str
    """When it was first published: RFC 3339, UTC, whole seconds."""
    project: str
    """Normalised name."""
    version: str
    summary: str = ""
    requires_python: str | None = None
    requires_dist: tuple[str, ...] = ()
    metadata_sha256: str
    indexes: tuple[str, ...]
    """The CUDA indexes that list it, ``cu130``; every wheel is also in the index of all."""
    cuda: str | None = None
    """``13.0``; none for a wheel without CUDA code of its own."""
    torch: str | None = None
    """``2.11``; none where the wheel is not bound to a torch."""
    archs: tuple[str, ...] = ()
    """Compile targets: ``12.0a``."""
    identifier: str = ""
    """Build identifier, where the wheel carries a build record."""
    without: tuple[str, ...] = ()
    """Components left out on purpose."""
    exceptions: tuple[str, ...] = ()
    """The gates that were overruled by name when it was published."""
    evidence: tuple[Evidence, ...] = ()
    """Oldest first."""
    yanked: str | None = None
    """The reason, possibly empty; none for a wheel in good standing."""

    @property
    def folder(self) -> str:
        """Where its bytes lie, below the index root: ``files/ab/<sha256>``."""
        return f"files/{self.sha256[:2]}/{self.sha256}"

    @property
    def path(self) -> str:
        return f"{self.folder}/{self.filename}"

    @property
    def tags(self) -> tuple[str, str, str]:
        """Python, ABI and platform tag, as the filename has them."""
        python, abi, platform = self.filename.removesuffix(".whl").rsplit("-", 3)[1:]
        return python, abi, platform

    @property
    def requirement(self) -> str:
        """The one requirement that means this version and no other."""
        return f"{self.project}=={self.version}"

    def latest(self, kind: EvidenceKind) -> Evidence | None:
        found = [e for e in self.evidence if e.kind == kind]
        return found[-1] if found else None

    def smokes(self) -> tuple[Evidence, ...]:
        """The newest smoke record of each GPU and driver."""
        by_machine = {(e.gpu, e.driver): e for e in self.evidence if e.kind == "smoke"}
        return tuple(by_machine.values())


class Project(_Record):
    """All published wheels of one project, newest version first."""

    format: Literal[1] = 1
    project: str
    wheels: tuple[Wheel, ...]

    @classmethod
    def of(cls, project: str, wheels: list[Wheel]) -> Project:
        return cls(project=project, wheels=tuple(sorted(wheels, key=sort_key)))

    @property
    def labels(self) -> tuple[str, ...]:
        """The indexes that list this project, the one of all included."""
        return (ALL, *sorted({label for w in self.wheels for label in w.indexes}))

    def find(self, filename: str) -> Wheel | None:
        return next((w for w in self.wheels if w.filename == filename), None)

    def text(self) -> str:
        return canonical_json(self.model_dump(mode="json")) + "\n"


class Package(_Record):
    """What the front page says about one project."""

    wheels: int
    newest: str
    labels: tuple[str, ...]


class Front(_Record):
    """What the front page shows: every project in a line, and the newest wheels in full.

    It is a function of the set of wheels alone, so that adding a wheel to the old one and making it anew agree.
    """

    format: Literal[1] = 1
    packages: dict[str, Package]
    recent: tuple[Wheel, ...]

    @property
    def total(self) -> int:
        return sum(p.wheels for p in self.packages.values())


class Settings(_Record):
    """What a person may set about an index."""

    title: str = "CUDA kernel wheels for SM120 GPUs"
    base_url: str = ""
    """Where the index is served, for the commands on its pages; with JavaScript the page finds out by itself."""


def sort_key(wheel: Wheel) -> tuple[str, _Descending, str]:
    """Projects by name, versions newest first, then by filename."""
    return (canonicalize_name(wheel.project), _Descending(Version(wheel.version)), wheel.filename)


class _Descending:
    def __init__(self, version: Version) -> None:
        self.version = version

    def __lt__(self, other: _Descending) -> bool:
        return other.version < self.version

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Descending) and other.version == self.version

    def __hash__(self) -> int:
        return hash(self.version)
