from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sm120_wheels.errors import IndexDamagedError, NoSpaceError
from sm120_wheels.index import maintain
from sm120_wheels.index.layout import Layout, Snapshot
from sm120_wheels.index.model import ALL
from sm120_wheels.index.publish import publish
from sm120_wheels.index.store import KEPT_GENERATIONS
from sm120_wheels.index.verify import verify
from tests.index.crashing import changes_until
from tests.index.makewheel import beside, make_wheel


def filenames(root: Path) -> set[str]:
    """What every page lists; fails where two pages disagree."""
    snapshot = Snapshot.current(root)
    stated = {w.filename for p in snapshot.projects() for w in p.wheels}
    front = (root / "index.html").read_text() if snapshot.number else ""
    listed = {name for name in stated if f">{name}</a>" in front}
    assert listed == stated
    for label in snapshot.labels:
        for project in snapshot.names(label):
            page = (root / label / project / "index.html").read_text()
            found = snapshot.project(project)
            assert found is not None
            wanted = {w.filename for w in found.wheels if label in (ALL, *w.indexes)}
            assert {w.filename for w in found.wheels if f">{w.filename}</a>" in page} == wanted
    return stated


@pytest.fixture
def old(root: Path, dist: Path) -> set[str]:
    """An index of two wheels; their names."""
    publish(root, [make_wheel(dist), make_wheel(dist, "flashinfer-python", "0.7.3+cu130.sm120a")])
    return filenames(root)


def new_set(folder: Path) -> list[Path]:
    """A wheel of a known project, one of a new project, one for a new CUDA version."""
    return [
        make_wheel(folder, version="0.2.0+cu130.torch211.sm120a"),
        make_wheel(folder, "flashinfer-jit-cache", "0.7.4+cu130.sm120a"),
        make_wheel(folder, "flashinfer-python", "0.7.4+cu129.sm120a"),
    ]


def test_a_kill_at_every_change_of_the_disk_leaves_the_old_index_or_the_new(
    root: Path, dist: Path, memory: Path, old: set[str]
) -> None:
    wheels = new_set(dist)
    new = old | {w.name for w in wheels}
    whole = _copy(root, memory / "whole")
    done, changes = changes_until(lambda: _publish(whole, wheels), None)
    assert done
    assert changes > 50
    seen = set()
    for limit in sorted({*range(0, changes, 7), *range(changes - 8, changes)}):  # the switch is among the last
        copy = _copy(root, memory / "killed")
        done, _ = changes_until(lambda: _publish(copy, wheels), limit)  # noqa: B023 - runs now
        assert not done
        shown = filenames(copy)
        assert shown in (old, new)
        assert verify(copy).damage == ()
        seen.add(shown == new)
        publish(copy, wheels)
        assert filenames(copy) == new
        assert verify(copy).findings == ()
    assert seen == {False, True}


def test_a_kill_while_pruning_leaves_the_old_index_or_the_new(root: Path, dist: Path, memory: Path) -> None:
    wheels = [make_wheel(dist, version=f"0.{i}.0+cu130.sm120a") for i in range(3)]
    publish(root, wheels)
    old, new = {w.name for w in wheels}, {wheels[-1].name}
    whole = _copy(root, memory / "whole")
    done, changes = changes_until(lambda: _prune(whole), None)
    assert done
    for limit in sorted({*range(0, changes, 7), *range(changes - 8, changes)}):  # the switch is among the last
        copy = _copy(root, memory / "killed")
        changes_until(lambda: _prune(copy), limit)  # noqa: B023 - runs now
        assert filenames(copy) in (old, new)
        assert verify(copy).damage == ()
        _prune(copy)
        assert filenames(copy) == new
        assert verify(copy).findings == ()


def _publish(root: Path, wheels: list[Path]) -> None:
    publish(root, wheels)


def _prune(root: Path) -> None:
    maintain.prune(root, keep=1)


def _copy(root: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(root, target, symlinks=True)
    return target


def test_random_kills_leave_the_old_index_or_the_new(root: Path, dist: Path, old: set[str]) -> None:
    rng = random.Random(20261130)
    shown = old
    for turn in range(25):
        wheels = [
            make_wheel(dist, f"tiny-{i}", f"1.{turn}+cu130.sm120a", content=os.urandom(100_000)) for i in range(2)
        ]
        child = os.fork()
        if child == 0:
            try:
                publish(root, wheels)
            finally:
                os._exit(0)
        time.sleep(rng.uniform(0, 0.15))  # the random point is the matter of the test
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        after = filenames(root)
        assert after in (shown, shown | {w.name for w in wheels})
        assert verify(root).damage == ()
        publish(root, wheels)
        shown = filenames(root)
        assert shown >= {w.name for w in wheels}
    assert verify(root).findings == ()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"not run: no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_disk_that_fills_up_anywhere_leaves_the_index_as_it_was(small_disk: Path, dist: Path) -> None:
    root = small_disk / "index"
    publish(root, [make_wheel(dist)])
    old = filenames(root)
    wheels = [*new_set(dist), make_wheel(dist, "large", "1.0+cu130.sm120a", content=os.urandom(200_000))]
    free = shutil.disk_usage(small_disk).free
    failed = 0
    for left in range(0, 420_000, 16_384):
        ballast = small_disk / "ballast"
        ballast.write_bytes(bytes(free - left))
        try:
            publish(root, wheels)
        except NoSpaceError as error:
            failed += 1
            assert error.exit_code == 44
            assert filenames(root) == old
            assert verify(root).damage == ()
            ballast.unlink()
        else:
            break
    assert failed > 5
    ballast.unlink(missing_ok=True)
    publish(root, wheels)
    assert filenames(root) == old | {w.name for w in wheels}
    assert verify(root).findings == ()


def test_old_generations_and_their_pages_go_but_the_last_few_stay(root: Path, dist: Path) -> None:
    for turn in range(8):
        publish(root, [make_wheel(dist, version=f"0.{turn}.0+cu130.sm120a")])
    layout = Layout(root)
    assert layout.numbers() == [6, 7, 8][-KEPT_GENERATIONS:]
    shown = {n for g in layout.numbers() for n in Snapshot(layout, g).slots.values()}
    shown |= {node.name for g in layout.numbers() for _, node in Snapshot(layout, g).project_nodes()}
    assert {p.name for p in layout.nodes.iterdir()} == shown


def test_pages_that_come_back_are_not_collected(root: Path, dist: Path) -> None:
    publish(root, [make_wheel(dist)])
    for _ in range(4):
        maintain.yank(root, "sm120-selftest", reason="bad")
        maintain.yank(root, "sm120-selftest", reason=None)
        assert verify(root).findings == ()


def test_two_runs_with_the_same_wheels_give_the_same_bytes(root: Path, dist: Path, tmp_path: Path) -> None:
    from datetime import datetime, timezone

    wheels = new_set(dist)
    for wheel in wheels:
        beside(wheel, "smoke", state="passed", gpu="RTX 5090", driver="580")
    for target, order in ((root, wheels), (tmp_path / "other", wheels[::-1])):
        publish(target, order, now=lambda: datetime(2026, 1, 1, tzinfo=timezone.utc))
    assert _content(root) == _content(tmp_path / "other")


def _content(root: Path) -> dict[str, str | bytes]:
    found: dict[str, str | bytes] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = str(path.readlink())
        elif path.is_file():
            found[name] = path.read_bytes()
    return found


def test_a_lost_link_is_damage_and_never_a_reason_to_clean_up(root: Path, dist: Path) -> None:
    publish(root, [make_wheel(dist)])
    publish(root, [make_wheel(dist, version="0.2.0+cu130.sm120a")])
    Layout(root).current.unlink()
    before = _content(root)
    with pytest.raises(IndexDamagedError, match="the index is damaged"):
        publish(root, [make_wheel(dist, version="0.3.0+cu130.sm120a")])
    assert _content(root) == before
    assert maintain.rebuild(root, adopt=True) == 2
    assert verify(root).findings == ()
