"""Makes tiny wheels that differ in what the index cares about, and the evidence that lies beside them."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

from sm120_wheels.wheel.archive import record_hash

_DATE = (2026, 1, 1, 0, 0, 0)


def make_wheel(
    folder: Path,
    name: str = "sm120-selftest",
    version: str = "0.1.0+cu130.torch211.sm120a",
    *,
    tag: str = "cp310-abi3-manylinux_2_34_x86_64",
    build: dict[str, Any] | None = None,
    requires_dist: tuple[str, ...] = (),
    requires_python: str | None = ">=3.10",
    summary: str = "Kernels for SM120",
    content: bytes = b"answer = 42\n",
    audit: dict[str, str] | None = None,
    sbom: bytes | None = b'{"bomFormat":"CycloneDX"}\n',
    extra: dict[str, bytes] | None = None,
) -> Path:
    """Write a valid wheel, and beside it an audit with these verdicts (an empty one for none)."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    metadata = ["Metadata-Version: 2.3", f"Name: {name}", f"Version: {version}", f"Summary: {summary}"]
    metadata += [f"Requires-Python: {requires_python}"] if requires_python else []
    metadata += [f"Requires-Dist: {r}" for r in requires_dist]
    python, abi, platforms = tag.split("-")
    tags = [f"Tag: {p}-{abi}-{platform}" for p in python.split(".") for platform in platforms.split(".")]
    members: dict[str, bytes] = {
        f"{module}/__init__.py": content,
        **(extra or {}),
        f"{info}/METADATA": ("\n".join(metadata) + "\n").encode(),
        f"{info}/WHEEL": ("\n".join(["Wheel-Version: 1.0", "Root-Is-Purelib: false", *tags]) + "\n").encode(),
    }
    if build is not None:
        members[f"{info}/sm120/build.json"] = json.dumps(build).encode()
    if sbom is not None:
        members[f"{info}/sboms/{module}.cdx.json"] = sbom
    record = [f"{n},{record_hash(hashlib.sha256(d).digest())},{len(d)}" for n, d in members.items()]
    members[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,"]).encode()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{module}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in members.items():
            archive.writestr(zipfile.ZipInfo(member, _DATE), data)
    verdicts = {"12.0": "runs", "12.1": "none"} if audit is None else audit
    if verdicts:
        beside(path, "audit", verdicts=verdicts)
    return path


def beside(wheel: Path, kind: str, **value: Any) -> Path:
    """Write evidence beside a wheel, bound to its sha256 unless another is given."""
    value.setdefault("wheel_sha256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    path = wheel.with_name(f"{wheel.name}.{kind}.json")
    path.write_text(json.dumps(value))
    return path
