"""The bill of materials inside a wheel (PEP 770): a CycloneDX document whose bytes depend only on its content.

It lists what was compiled in: upstream's source, third-party sources, our patches, and the toolchain. Python
requirements are METADATA's business and not repeated here.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType, Diff, Patch, PatchClassification, Pedigree
from cyclonedx.model.license import LicenseExpression
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.utils import canonicalize_name

from sm120_wheels.files import content_key

#: What the serial numbers of our documents are derived from (uuid5 of a name in the DNS space; never looked up).
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "sbom.sm120-wheels.invalid")


@dataclass(frozen=True, kw_only=True)
class Source:
    """Source code that was compiled. Patches are listed under the first one of kind ``upstream``."""

    name: str
    url: str
    revision: str
    """Full commit id, or the version of an archive."""
    sha256: str = ""
    """Of the archive; empty for git sources, which the commit id pins."""
    licence: str = ""
    """SPDX expression, where known."""
    kind: Literal["upstream", "third-party"] = "third-party"


@dataclass(frozen=True, kw_only=True)
class AppliedPatch:
    """A patch of ours that was applied (one that upstream had already taken is not listed)."""

    name: str
    """Path below the patches folder."""
    sha256: str
    description: str = ""


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A program that made bytes of the wheel: nvcc, the C++ compiler, the linker, CMake."""

    name: str
    version: str
    sha256: str = ""


def make_sbom(
    *,
    distribution: str,
    version: str,
    sources: Sequence[Source],
    patches: Sequence[AppliedPatch],
    toolchain: Sequence[Tool],
    source_date_epoch: int,
) -> str:
    """A CycloneDX 1.6 JSON document. The serial number is a uuid5 of the content, the time is ``source_date_epoch``."""
    name = canonicalize_name(distribution)
    wheel = Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref="wheel",
        purl=PackageURL(type="pypi", name=name, version=version),
    )
    upstream = [s for s in sources if s.kind == "upstream"]
    patched = upstream[0] if upstream else None
    components = [_source(s, patches if s is patched else ()) for s in sources]
    tools = [_tool(t) for t in toolchain]
    facts = {
        "wheel": [name, version],
        "sources": [asdict(s) for s in sources],
        "patches": [asdict(p) for p in patches],
        "toolchain": [asdict(t) for t in toolchain],
        "epoch": source_date_epoch,
    }
    bom = Bom(
        serial_number=uuid.uuid5(_NAMESPACE, content_key(facts)),
        components=components,
        metadata=BomMetaData(
            timestamp=datetime.datetime.fromtimestamp(source_date_epoch, tz=datetime.timezone.utc),
            component=wheel,
            tools=ToolRepository(components=tools),
        ),
        properties=[Property(name="sm120:patches-on", value=patched.name)] if patched and patches else [],
    )
    bom.register_dependency(wheel, components)
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def _source(source: Source, patches: Sequence[AppliedPatch]) -> Component:
    reference = ExternalReferenceType.VCS if not source.sha256 else ExternalReferenceType.DISTRIBUTION
    pedigree = (
        Pedigree(patches=[_patch(p) for p in patches], notes="\n".join(_line(p) for p in patches)) if patches else None
    )
    return Component(
        name=source.name,
        version=source.revision,
        type=ComponentType.LIBRARY,
        bom_ref=f"source:{source.name}@{source.revision}",
        hashes=[_sha256(source.sha256)] if source.sha256 else [],
        licenses=[LicenseExpression(source.licence)] if source.licence else [],
        external_references=[ExternalReference(type=reference, url=XsUri(source.url))],
        properties=[Property(name="sm120:kind", value=source.kind)],
        pedigree=pedigree,
        modified=False,
    )


def _patch(patch: AppliedPatch) -> Patch:
    return Patch(
        type=PatchClassification.UNOFFICIAL, diff=Diff(url=XsUri(f"patches/{patch.name}#sha256={patch.sha256}"))
    )


def _line(patch: AppliedPatch) -> str:
    return f"{patch.name} sha256:{patch.sha256}" + (f" {patch.description}" if patch.description else "")


def _tool(tool: Tool) -> Component:
    return Component(
        name=tool.name,
        version=tool.version,
        type=ComponentType.APPLICATION,
        bom_ref=f"tool:{tool.name}@{tool.version}",
        hashes=[_sha256(tool.sha256)] if tool.sha256 else [],
    )


def _sha256(digest: str) -> HashType:
    return HashType(alg=HashAlgorithm.SHA_256, content=digest)
