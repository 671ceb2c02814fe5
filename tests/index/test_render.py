from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote

import pytest
from pypi_simple import ProjectPage

from sm120_wheels.errors import PublishRefusedError, WheelInvalidError
from sm120_wheels.index import render
from sm120_wheels.index.layout import Snapshot
from sm120_wheels.index.maintain import yank
from sm120_wheels.index.model import Project, Wheel
from sm120_wheels.index.publish import Options, publish
from tests.index.makewheel import beside, make_wheel
from tests.index.test_evidence import provenance, sha

BASE = "http://host/whl/cu130/sm120-selftest/"


@pytest.fixture
def project(root: Path, dist: Path) -> Project:
    wheel = make_wheel(dist, requires_python=">=3.10,<4")
    wheel.with_name(wheel.name + ".provenance").write_text(provenance(sha(wheel)))
    beside(wheel, "smoke", state="passed", gpu="RTX 5090")
    publish(root, [wheel, make_wheel(dist, version="0.2.0+cu130.torch211.sm120a", requires_python=None)])
    yank(root, wheel.name, reason='wrong <script>alert("FP4")</script>')
    found = Snapshot.current(root).project("sm120-selftest")
    assert found is not None
    return found


def pages(project: Project) -> list[ProjectPage]:
    """Both forms, read by a library that is not ours."""
    html = render.project_html(project, "cu130").decode()
    return [
        ProjectPage.from_html(project.project, html, base_url=BASE),
        ProjectPage.from_json_data(json.loads(render.project_json(project, "cu130")), base_url=BASE),
    ]


def test_both_forms_tell_installers_the_same(project: Project, root: Path) -> None:
    for page in pages(project):
        new, old = page.packages
        assert new.filename.startswith("sm120_selftest-0.2.0+cu130")
        assert (new.is_yanked, new.requires_python) == (False, None)
        assert (old.is_yanked, old.requires_python) == (True, ">=3.10,<4")
        assert old.yanked_reason == 'wrong <script>alert("FP4")</script>'
        wheel = project.find(old.filename)
        assert wheel is not None
        assert old.digests == {"sha256": wheel.sha256}
        assert old.has_metadata
        assert old.metadata_digests == {"sha256": wheel.metadata_sha256}
        assert old.url.split("#")[0].startswith("http://host/whl/files/")
        path = unquote(old.url.split("#")[0].removeprefix("http://host/whl/"))
        assert (root / path).is_file()
        assert (root / f"{path}.metadata").is_file()


def test_json_has_what_html_has_no_place_for(project: Project) -> None:
    page = json.loads(render.project_json(project, "cu130"))
    assert page["meta"] == {"api-version": "1.3"}
    assert page["versions"] == ["0.1.0+cu130.torch211.sm120a", "0.2.0+cu130.torch211.sm120a"]
    new, old = page["files"]
    assert new["size"] > 0
    assert new["upload-time"].endswith("Z")
    assert "provenance" not in old
    kinds = {e["kind"]: e for e in old["_sm120"]["evidence"]}
    assert set(kinds) == {"audit", "smoke", "sbom", "provenance"}
    assert (kinds["smoke"]["state"], kinds["smoke"]["gpu"]) == ("passed", "RTX 5090")


def test_provenance_link_is_a_full_address_where_one_is_known(project: Project) -> None:
    page = json.loads(render.project_json(project, "cu130", base_url="https://wheels.example/"))
    assert page["files"][1]["provenance"].startswith("https://wheels.example/files/")
    assert ProjectPage.from_json_data(page, base_url=BASE).packages[1].provenance_url is not None
    html = render.project_html(project, "cu130", base_url="https://wheels.example/").decode()
    assert 'data-provenance="https://wheels.example/files/' in html


def test_plus_is_quoted_in_addresses(project: Project) -> None:
    assert "+" not in json.loads(render.project_json(project, "cu130"))["files"][0]["url"]


def test_an_index_lists_only_its_own_cuda_version(root: Path, dist: Path) -> None:
    publish(root, [make_wheel(dist), make_wheel(dist, version="0.1.0+cu128.torch28.sm120a")])
    found = Snapshot.current(root).project("sm120-selftest")
    assert found is not None
    assert [w.cuda for w in render.listed(found, "cu130")] == ["13.0"]
    assert [w.cuda for w in render.listed(found, "cu128")] == ["12.8"]
    assert len(render.listed(found, "simple")) == 2


HOSTILE = "</td><script>alert(1)</script><img src=x onerror=alert(2)>&\"'"


def test_markup_in_metadata_is_escaped_on_every_page(root: Path, dist: Path) -> None:
    wheel = make_wheel(dist, summary=HOSTILE, requires_dist=("torch ; python_version > '3'",))
    beside(wheel, "smoke", state="failed", gpu=HOSTILE, driver=HOSTILE, reason=HOSTILE)
    publish(root, [wheel], options=Options(allow=frozenset({"smoke"})))
    yank(root, wheel.name, reason=HOSTILE)
    read = [p.read_text() for p in root.rglob("*.html")]
    assert len(read) > 3
    for text in read:
        assert "<script>alert" not in text
        assert "<img" not in text
    front = (root / "index.html").read_text()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in front
    assert front.count("<script>") == 1


@pytest.mark.parametrize("what", ["Requires-Python: >=3.10 or <b>", "Requires-Dist: torch @@ <b>"])
def test_specifiers_that_no_installer_can_read_are_refused(root: Path, dist: Path, what: str) -> None:
    key, _, value = what.partition(": ")
    wheel = (
        make_wheel(dist, requires_python=value)
        if key == "Requires-Python"
        else make_wheel(dist, requires_dist=(value,))
    )
    with pytest.raises(WheelInvalidError, match="no installer can read"):
        publish(root, [wheel])


@pytest.mark.parametrize("name", ["..", "../../etc/passwd", "a/b", "x" * 300])
def test_names_that_lead_elsewhere_or_are_too_long_are_refused(root: Path, dist: Path, name: str) -> None:
    path = Path(f"{dist}/{name}-1.0+cu130-py3-none-any.whl")
    with pytest.raises((WheelInvalidError, PublishRefusedError)):
        publish(root, [path])
    assert not root.exists() or Snapshot.current(root).number == 0


def test_front_page_lists_are_deterministic(project: Project) -> None:
    one = render.root_html("cu130", ["b", "a"])
    assert one == render.root_html("cu130", ["a", "b"])
    assert json.loads(render.root_json("cu130", ["b", "a"]))["projects"] == [{"name": "a"}, {"name": "b"}]


def test_versions_come_newest_first_by_meaning_not_by_letters() -> None:
    def wheel(version: str) -> Wheel:
        return Wheel(
            filename=f"a-{version}-py3-none-any.whl",
            sha256="0" * 64,
            size=1,
            uploaded="2026-01-01T00:00:00Z",
            project="a",
            version=version,
            metadata_sha256="0" * 64,
            indexes=("cu130",),
        )

    versions = [w.version for w in Project.of("a", [wheel(v) for v in ("0.9.0", "0.10.0", "0.10.0rc1")]).wheels]
    assert versions == ["0.10.0", "0.10.0rc1", "0.9.0"]
