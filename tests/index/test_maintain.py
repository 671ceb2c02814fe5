from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm120_wheels.errors import IndexDamagedError, SettingError
from sm120_wheels.index import maintain, page
from sm120_wheels.index.change import front_of
from sm120_wheels.index.layout import Layout, Snapshot
from sm120_wheels.index.model import Settings
from sm120_wheels.index.publish import publish
from sm120_wheels.index.verify import verify
from tests.index.makewheel import make_wheel


@pytest.fixture
def three(root: Path, dist: Path) -> list[Path]:
    wheels = [make_wheel(dist, version=f"0.{i}.0+cu130.sm120a") for i in range(3)]
    publish(root, wheels)
    return wheels


def json_of(root: Path) -> str:
    return (root / "cu130/sm120-selftest/index.json").read_text()


def test_yank_is_told_on_every_page_and_can_be_taken_back(root: Path, three: list[Path]) -> None:
    before = json_of(root)
    (wheel,) = maintain.yank(root, three[0].name, reason="FP4 <wrong>")
    assert wheel.yanked == "FP4 <wrong>"
    assert 'data-yanked="FP4 &lt;wrong&gt;"' in (root / "cu130/sm120-selftest/index.html").read_text()
    assert '"yanked":"FP4 <wrong>"' in json_of(root)
    assert "FP4 &lt;wrong&gt;" in (root / "index.html").read_text()
    assert verify(root).findings == ()
    maintain.yank(root, "sm120-selftest==0.0.0", reason=None)
    assert json_of(root) == before


def test_yank_of_what_is_not_there_names_near_misses(root: Path, three: list[Path]) -> None:
    with pytest.raises(SettingError, match="no published wheel") as refused:
        maintain.yank(root, "sm120-selftets", reason="x")
    assert "sm120-selftest" in refused.value.hint
    with pytest.raises(SettingError, match="names no wheel"):
        maintain.yank(root, "==1", reason="x")


def test_prune_keeps_the_newest_releases_and_frees_the_files(root: Path, three: list[Path]) -> None:
    would = maintain.prune(root, keep=1, dry_run=True)
    assert [w.filename for w in would.wheels] == [three[1].name, three[0].name]
    assert len(list(root.glob("files/*/*/*.whl"))) == 3
    pruned = maintain.prune(root, keep=1)
    assert pruned.wheels == would.wheels
    assert [p.name for p in root.glob("files/*/*/*.whl")] == [three[2].name]
    assert verify(root).findings == ()
    with pytest.raises(SettingError, match="would leave nothing"):
        maintain.prune(root, keep=0)


def test_prune_of_one_project_leaves_the_others(root: Path, three: list[Path], dist: Path) -> None:
    publish(root, [make_wheel(dist, "other", f"{i}.0+cu130.sm120a") for i in (1, 2)])
    maintain.prune(root, keep=1, only="other")
    assert len(list(root.glob("files/*/*/sm120*.whl"))) == 3
    with pytest.raises(SettingError, match="no project is called"):
        maintain.prune(root, keep=1, only="othr")


def test_rebuild_of_a_sound_index_gives_the_same_pages(root: Path, three: list[Path]) -> None:
    maintain.yank(root, three[0].name, reason="bad")
    before = Snapshot.current(root).slots
    assert maintain.rebuild(root) == 3
    assert Snapshot.current(root).slots == before


def test_rebuild_mends_pages_that_were_changed_by_hand(root: Path, three: list[Path]) -> None:
    page = root / "cu130/sm120-selftest/index.html"
    good = page.read_text()
    page.write_text("broken")
    (root / "cu130/sm120-selftest").unlink()
    assert len(verify(root).damage) == 2
    maintain.rebuild(root)
    assert page.read_text() == good
    assert verify(root).findings == ()


def test_rebuild_refuses_a_wheel_whose_bytes_changed(root: Path, three: list[Path]) -> None:
    (path,) = root.glob(f"files/*/*/{three[0].name}")
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(IndexDamagedError) as refused:
        maintain.rebuild(root)
    assert "published as sha256" in refused.value.why


def test_rebuild_adopts_the_files_where_the_state_is_lost(root: Path, three: list[Path]) -> None:
    before = json_of(root)
    for state in Layout(root).nodes.glob("*/state.json"):
        state.write_text("{")
    with pytest.raises(IndexDamagedError) as refused:
        maintain.rebuild(root)
    assert "rebuild" in refused.value.hint
    assert maintain.rebuild(root, adopt=True) == 3
    assert json_of(root) == before
    assert verify(root).findings == ()


def test_title_and_address_reach_the_pages(root: Path, three: list[Path]) -> None:
    wanted = maintain.settings_with(Settings(), title="Ours & yours", base_url="https://wheels.example/whl")
    maintain.configure(root, wanted)
    text = (root / "index.html").read_text()
    assert "Ours &amp; yours" in text
    assert "https://wheels.example/whl/cu130/" in text
    assert page.UNKNOWN_BASE not in text
    assert verify(root).findings == ()


@pytest.mark.parametrize(
    "address", ["wheels.example", "ftp://a/b", "https://a/'b", "https://a/?q", "javascript:alert(1)"]
)
def test_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(SettingError, match="is not an address"):
        maintain.settings_with(Settings(), title=None, base_url=address)


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(0, 3), st.integers(0, 4), st.sampled_from(["cu128", "cu130"])),
        st.tuples(st.just("yank"), st.integers(0, 3), st.integers(0, 4), st.sampled_from(["bad", None])),
        st.tuples(st.just("prune"), st.integers(1, 2), st.just(0), st.just(None)),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=8, deadline=None)
@given(steps=_STEPS)
def test_any_history_equals_making_the_pages_anew(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int, str | None]]
) -> None:
    """The pages are a function of the set of wheels, however it came about; with room for 3 rows on the front page."""
    folder = tmp_path_factory.mktemp("history")
    root = folder / "index"
    clock = datetime(2026, 1, 1, tzinfo=timezone.utc)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "FRONT_ROWS", 3)
        patch.setattr(page.newest, "__defaults__", (3,))
        for kind, first, second, third in steps:
            clock += timedelta(seconds=1)
            if kind == "publish":
                wheel = make_wheel(folder, f"tiny-{first}", f"1.{second}+{third}.sm120a")
                publish(root, [wheel], now=lambda: clock)  # noqa: B023 - runs now
            elif Snapshot.current(root).number and kind == "yank":
                known = Snapshot.current(root).project(f"tiny-{first}")
                if known and any(w.version.startswith(f"1.{second}+") for w in known.wheels):
                    maintain.yank(root, f"tiny-{first}=={next(w.version for w in known.wheels)}", reason=third)
            elif Snapshot.current(root).number and kind == "prune":
                maintain.prune(root, keep=first)
        if Snapshot.current(root).number == 0:
            return
        assert verify(root).findings == ()
        before = Snapshot.current(root).slots
        assert Snapshot.current(root).front() == front_of(list(Snapshot.current(root).projects()))
        maintain.rebuild(root)
        assert Snapshot.current(root).slots == before
