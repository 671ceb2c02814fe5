"""Moving a patch series between two versions of a small upstream, with the real git and the real command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.world import World, git_source, make_patch, recipe_toml

LINES = [f"line {n}" for n in range(1, 61)]


def text(changes: dict[int, str] | None = None, *, before: int = 0) -> str:
    """60 lines, some of them changed, with new ones before them."""
    lines = [f"new {n}" for n in range(before)] + LINES
    for number, line in (changes or {}).items():
        lines[before + number - 1] = line
    return "".join(f"{line}\n" for line in lines)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(root=tmp_path)


def versions(world: World, old: dict[str, str], new: dict[str, str]) -> None:
    """An upstream with two versions, and a recipe that pins both."""
    tree = world.upstream.work_tree("up", "demo")
    first = world.upstream.commit(tree, {**old, ".gitignore": "*.gen\n"})
    for name in set(old) - set(new):
        (tree / name).unlink()
    second = world.upstream.commit(tree, new)
    later = recipe_toml(version="2.0", sources=git_source(second, version="2.0"))
    later = later[later.index('[versions."2.0"]') :]
    world.recipe("demo", recipe_toml(sources=git_source(first)) + later)
    world.env["SM120_MIRROR"] = world.upstream.mirror


def series(world: World, before: dict[str, str], *steps: dict[str, str], headers: tuple[str, ...] = ()) -> None:
    """Patches 0001, 0002 … of version 1.0, each on top of the one before."""
    for number, after in enumerate(steps, 1):
        made = make_patch(before, {**before, **after}, world.root / "scratch", headers=headers)
        world.patch("demo", "1.0", f"000{number}-step.patch", made)
        before = {**before, **after}


def move(world: World, *options: str) -> dict[str, str]:
    rows = world.sm120("refresh-patches", "demo", "--version", "2.0", "--json", *options).json()
    return {Path(row["name"]).name: row["state"] for row in rows["patches"]}


def listing(world: World) -> list[str]:
    return sorted(str(path.relative_to(world.data / "patches")) for path in (world.data / "patches").rglob("*"))


def test_a_series_is_moved_and_applies_to_the_new_version(world: World) -> None:
    """The first's context has changed upstream so that git apply alone refuses it; the second has only moved."""
    old = {"a.txt": text(), "b.txt": text(), "x.gen": "1\n"}
    versions(world, old, {**old, "a.txt": text({23: "upstream"}), "b.txt": text(before=5)})
    series(world, old, {"a.txt": text({20: "ours"})}, {"b.txt": text({30: "ours"})}, headers=("Group: lean",))
    states = world.sm120("patches", "demo", "--json").json()
    assert move(world) == {"0001-step.patch": "refreshed", "0002-step.patch": "unchanged"}
    assert [row["states"]["1.0"]["state"] for row in states] == ["not run", "not run"]
    rows = world.sm120("patches", "demo", "--json").json()
    assert [(row["versions"], *[s["state"] for s in row["states"].values()]) for row in rows] == [
        (["1.0"], "applies"),
        (["2.0"], "applies"),
        (["1.0"], "applies"),
        (["2.0"], "applies"),
    ]
    new = (world.data / "patches/demo/2.0/0001-step.patch").read_text()
    assert new.startswith("Subject: [PATCH] Change what has to change\n")
    assert "Group: lean\n" in new
    assert " upstream\n" in new
    world.sm120("check").ok()


def test_a_patch_that_upstream_has_taken_over_is_dropped(world: World) -> None:
    old = {"a.txt": text(), "b.txt": text()}
    versions(world, old, {"a.txt": text({20: "ours"}, before=2), "b.txt": text()})
    series(world, old, {"a.txt": text({20: "ours"})}, {"b.txt": text({30: "ours"})})
    assert move(world) == {"0001-step.patch": "merged upstream", "0002-step.patch": "unchanged"}
    assert listing(world)[-2:] == ["demo/2.0", "demo/2.0/0002-step.patch"]


def test_a_renamed_file_is_followed(world: World) -> None:
    old = {"a.txt": text()}
    versions(world, old, {"sub/z.txt": text()})
    series(world, old, {"a.txt": text({20: "ours"})})
    assert move(world, "--from", "1.0") == {"0001-step.patch": "refreshed"}
    assert "+++ b/sub/z.txt" in (world.data / "patches/demo/2.0/0001-step.patch").read_text()


def test_a_conflict_names_file_and_hunk_and_leaves_nothing(world: World) -> None:
    """Also the patch before it, which could be moved, is not written."""
    old = {"a.txt": text(), "b.txt": text()}
    versions(world, old, {"a.txt": text({20: "theirs"}), "b.txt": text()})
    series(world, old, {"b.txt": text({30: "ours"})}, {"a.txt": text({20: "ours"})})
    before = listing(world)
    world.sm120("refresh-patches", "demo", "--version", "2.0").failed(
        30,
        "the patch demo/1.0/0002-step.patch cannot be moved to 2.0",
        "where: a.txt:20",
        "theirs",
        "ours",
        "nothing was written",
    )
    assert listing(world) == before


def test_what_covers_the_new_version_already_is_not_written_again(world: World) -> None:
    old = {"a.txt": text()}
    versions(world, old, {"a.txt": text(before=3)})
    made = make_patch(old, {"a.txt": text({20: "ours"})}, world.root / "scratch")
    world.patch("demo", "1.0--2.0", "0001-step.patch", made)
    assert move(world, "--from", "1.0") == {"0001-step.patch": "covers it already"}
    assert listing(world) == ["demo", "demo/1.0--2.0", "demo/1.0--2.0/0001-step.patch"]


def test_a_version_with_patches_of_its_own_is_left_alone(world: World) -> None:
    old = {"a.txt": text()}
    versions(world, old, old)
    series(world, old, {"a.txt": text({20: "ours"})})
    own = world.patch("demo", "2.0", "0001-own.patch", make_patch(old, {"a.txt": text({1: "x"})}, world.root / "s"))
    before = own.read_text()
    world.sm120("refresh-patches", "demo", "--version", "2.0").failed(32, "has patches of its own already", "demo/2.0")
    assert own.read_text() == before


def test_a_version_that_the_recipe_lacks_is_refused(world: World) -> None:
    versions(world, {"a.txt": text()}, {"a.txt": text()})
    world.sm120("refresh-patches", "demo", "--version", "3.0").failed(12, "no version '3.0'")
    world.sm120("refresh-patches", "demo", "--version", "2.0").failed(12, "no other version of demo has patches")
    world.sm120("refresh-patches", "demo", "--version", "2.0", "--from", "2.0").failed(12, "to itself")


def test_states_tell_a_conflict_and_what_is_already_in(world: World) -> None:
    old = {"a.txt": text(), "b.txt": text()}
    versions(world, old, {"a.txt": text({20: "ours"}), "b.txt": text({30: "theirs"})})
    for number, (name, line) in enumerate([("a.txt", 20), ("b.txt", 30)], 1):
        made = make_patch(old, {**old, name: text({line: "ours"})}, world.root / "scratch")
        world.patch("demo", "1.0--2.0", f"000{number}-step.patch", made)
    world.sm120("refresh-patches", "demo", "--version", "2.0").failed(30, "0002-step.patch", "b.txt:30")
    rows = world.sm120("patches", "demo", "--json").json()
    assert [row["states"]["2.0"]["state"] for row in rows] == ["already in", "conflicts"]
    assert rows[1]["states"]["2.0"]["why"] == "b.txt:27"
    shown = world.sm120("patches", "demo").ok().out
    assert "2.0: conflicts (b.txt:27)" in shown
