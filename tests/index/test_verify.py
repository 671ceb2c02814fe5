from __future__ import annotations

import json
from pathlib import Path

import pytest

from sm120_wheels.index.layout import Layout, Snapshot
from sm120_wheels.index.publish import publish
from sm120_wheels.index.verify import verify
from tests.index.makewheel import make_wheel


@pytest.fixture
def index(root: Path, dist: Path) -> Path:
    publish(root, [make_wheel(dist), make_wheel(dist, "other", "1.0+cu128.sm120a")])
    return root


def told(root: Path) -> str:
    found = verify(root).damage
    assert found
    return "\n".join(f"{f.path}: {f.what}" for f in found)


def test_sound_index_has_no_findings(index: Path) -> None:
    result = verify(index)
    assert (result.wheels, result.findings) == (2, ())
    assert result.bytes == sum(p.stat().st_size for p in index.glob("files/*/*/*.whl"))


@pytest.mark.parametrize("pattern", ["*.whl", "*.metadata", "audit.*.json", "sbom.*.json"])
def test_changed_and_lost_files_are_found_by_name(index: Path, pattern: str) -> None:
    path = sorted(index.glob(f"files/*/*/{pattern}"))[0]
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert path.name in told(index)
    path.unlink()
    assert "gone" in told(index)


@pytest.mark.parametrize(
    "page",
    ["index.html", "cu130/index.html", "cu130/index.json", "simple/other/index.html", "cu128/other/index.json"],
)
def test_changed_pages_are_found(index: Path, page: str) -> None:
    path = index / page
    path.write_text(path.read_text() + " ")
    assert verify(index).damage


def test_links_that_lead_elsewhere_are_found(index: Path) -> None:
    link = index / "cu130/sm120-selftest"
    link.unlink()
    assert "cu130/sm120-selftest" in told(index)
    link.symlink_to("/etc")
    assert "cu130/sm120-selftest" in told(index)


def test_a_list_that_hides_a_project_is_found(index: Path) -> None:
    snapshot = Snapshot.current(index)
    manifest = json.loads((Layout(index).generation(snapshot.number) / "generation.json").read_text())
    slot = manifest["slots"].pop("roots/cu128")
    (Layout(index).generation(snapshot.number) / "generation.json").write_text(json.dumps(manifest))
    assert slot
    assert "wrong about other" in told(index)


def test_manifest_that_cannot_be_read_is_damage_not_a_crash(index: Path) -> None:
    (Layout(index).generation(1) / "generation.json").write_text("[]")
    assert "generation.json" in told(index)


def test_files_that_no_page_shows_are_a_note(index: Path) -> None:
    stray = index / "files/zz/stray"
    stray.mkdir(parents=True)
    result = verify(index)
    assert result.damage == ()
    assert [(f.kind, f.path) for f in result.findings] == [("note", "files/zz/stray")]
