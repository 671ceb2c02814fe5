from __future__ import annotations

import json
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from sm120_wheels.wheel.sbom import AppliedPatch, Source, Tool, make_sbom

UPSTREAM = Source(
    name="sglang", url="https://example.org/sglang", revision="3e97" + "0" * 36, licence="Apache-2.0", kind="upstream"
)
CUTLASS = Source(name="cutlass", url="https://example.org/cutlass", revision="57e3" + "0" * 36, licence="BSD-3-Clause")
ARCHIVE = Source(name="fmt", url="https://example.org/fmt.tar.gz", revision="11.0", sha256="b" * 64)
PATCH = AppliedPatch(name="sgl-kernel/0001-only-sm120.patch", sha256="a" * 64, description="Compile for one target")


def sbom(**changes: Any) -> str:
    values: dict[str, Any] = {
        "distribution": "sglang_kernel",
        "version": "0.4.4+cu130.torch211.sm120a",
        "sources": (UPSTREAM, CUTLASS, ARCHIVE),
        "patches": (PATCH,),
        "toolchain": (Tool(name="nvcc", version="13.0.88"), Tool(name="gcc", version="12.2.0", sha256="c" * 64)),
        "source_date_epoch": 1_750_000_000,
    }
    return make_sbom(**{**values, **changes})


def test_the_document_keeps_to_the_cyclonedx_schema() -> None:
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(sbom()) is None


def test_a_document_without_anything_to_list_keeps_to_the_schema() -> None:
    text = sbom(sources=(), patches=(), toolchain=())
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None


def test_sources_patches_and_toolchain_are_listed() -> None:
    document = json.loads(sbom())
    assert document["metadata"]["component"]["purl"] == "pkg:pypi/sglang-kernel@0.4.4%2Bcu130.torch211.sm120a"
    assert document["metadata"]["timestamp"] == "2025-06-15T15:06:40+00:00"
    parts = {component["name"]: component for component in document["components"]}
    assert set(parts) == {"sglang", "cutlass", "fmt"}
    assert parts["sglang"]["version"] == UPSTREAM.revision
    assert parts["sglang"]["externalReferences"] == [{"type": "vcs", "url": UPSTREAM.url}]
    assert parts["fmt"]["hashes"] == [{"alg": "SHA-256", "content": "b" * 64}]
    assert parts["fmt"]["externalReferences"][0]["type"] == "distribution"
    assert parts["cutlass"]["licenses"] == [{"expression": "BSD-3-Clause"}]
    assert PATCH.sha256 in parts["sglang"]["pedigree"]["patches"][0]["diff"]["url"]
    assert "pedigree" not in parts["cutlass"], "patches are upstream's"
    tools = {tool["name"]: tool["version"] for tool in document["metadata"]["tools"]["components"]}
    assert tools == {"nvcc": "13.0.88", "gcc": "12.2.0"}
    wheel = next(d for d in document["dependencies"] if d["ref"] == "wheel")
    assert len(wheel["dependsOn"]) == 3


def test_the_same_facts_give_the_same_bytes_and_serial_number() -> None:
    assert sbom() == sbom()


@pytest.mark.parametrize(
    "changes",
    [
        {"patches": ()},
        {"toolchain": (Tool(name="nvcc", version="13.0.89"),)},
        {"sources": (UPSTREAM,)},
        {"version": "0.4.5"},
        {"source_date_epoch": 0},
    ],
)
def test_other_facts_give_another_serial_number(changes: dict[str, Any]) -> None:
    assert json.loads(sbom(**changes))["serialNumber"] != json.loads(sbom())["serialNumber"]
