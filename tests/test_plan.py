"""Plans: what a request means, and a content key that changes exactly when the result could."""

from __future__ import annotations

import dataclasses
import functools
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm120_wheels import files, headers, recipe
from sm120_wheels.build import BuildOptions
from sm120_wheels.errors import RecipeInvalidError, UnsupportedTargetError
from sm120_wheels.plan import BuildRequest, Plan, make_plan
from tests.support.world import World, git_source, make_patch, recipe_toml

DEFINES = '[versions."1.0".defines]\nA = "1"\n[versions."1.0".environment]\nE = "1"\n'
TOP = '[components.extra]\nsummary = "more"\ndefine = "WITH_EXTRA"\n'
TOP += '[components.old]\nsummary = "x"\narchitectures = ["9.0a"]\n'


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(root=tmp_path)
    write(world)
    world.patch("demo", "1.0", "0001-one.patch", make_patch({"a": "1\n"}, {"a": "2\n"}, tmp_path / "scratch"))
    return world


def write(world: World, **changes: str) -> None:
    values: dict[str, str] = {
        "sources": git_source("1" * 40),
        "extra": 'components = ["extra", "old"]\n' + DEFINES,
        "top": TOP,
        **changes,
    }
    world.recipe("demo", recipe_toml(**values))


def plan(world: World, *, python: str = "3.11", **request: object) -> Plan:
    return make_plan(
        BuildRequest(recipe="demo", **request),  # type: ignore[arg-type]
        recipes_root=world.data / "recipes",
        patches_root=world.data / "patches",
        running_python=python,
    )


def replace_in_recipe(old: str, new: str) -> Callable[[World], None]:
    def change(world: World) -> None:
        file = world.data / "recipes/demo/recipe.toml"
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new, 1))

    return change


def edit_lock(world: World) -> None:
    lock = world.locks() / "build-cmake3.txt"
    text = lock.read_text() + "# changed\n"
    lock.unlink()
    lock.write_text(text)


def edit_patch(world: World) -> None:
    file = world.data / "patches/demo/1.0/0001-one.patch"
    file.write_text(file.read_text().replace("Why it is needed", "Why it is really needed"))


def add_patch(world: World) -> None:
    world.patch("demo", "1.0", "0002-two.patch", make_patch({"b": "1\n"}, {"b": "2\n"}, world.root / "scratch"))


def nothing(world: World) -> None:
    """No change."""


CHANGES: list[tuple[str, Callable[[World], None]]] = [
    ("commit", replace_in_recipe("1" * 40, "2" * 40)),
    ("source url", replace_in_recipe("example.org/up/demo", "example.org/up/fork")),
    ("fetchcontent name", replace_in_recipe('licence = "MIT"', 'licence = "MIT"\nfetchcontent = "x"')),
    ("checked out paths", replace_in_recipe('licence = "MIT"', 'licence = "MIT"\npaths = ["a"]')),
    ("where a source is put", replace_in_recipe('licence = "MIT"', 'licence = "MIT"\ninto = "x/y"')),
    ("licence", replace_in_recipe('licence = "MIT"', 'licence = "BSD-3-Clause"')),
    ("folder of the package", replace_in_recipe('main = "demo"', 'main = "demo"\ndirectory = "sub"')),
    ("whether torch is imported", replace_in_recipe('main = "demo"', 'main = "demo"\ntorch_runtime = true')),
    ("a define", replace_in_recipe('A = "1"', 'A = "2"')),
    ("a variable", replace_in_recipe('E = "1"', 'E = "2"')),
    ("numa", replace_in_recipe('main = "demo"', 'main = "demo"\nnuma = true')),
    ("abi3", replace_in_recipe('main = "demo"', 'main = "demo"\nabi3 = "3.10"')),
    ("torch requirement", replace_in_recipe('main = "demo"', 'main = "demo"\ntorch_requires = "=={torch}"')),
    ("import name", replace_in_recipe('import = "demo"', 'import = "demo2"')),
    ("distribution", replace_in_recipe('distribution = "demo"', 'distribution = "demo2"')),
    ("parts of CUDA", replace_in_recipe('cuda_needs = ["compiler"]', 'cuda_needs = ["compiler", "libs"]')),
    ("a lock", edit_lock),
    ("a patch's text", edit_patch),
    ("one more patch", add_patch),
    ("lean headers", replace_in_recipe('main = "demo"', 'main = "demo"\nlean_headers = "torch"')),
    ("a component's define", replace_in_recipe('define = "WITH_EXTRA"', 'define = "WITH_MORE"')),
]


@pytest.mark.parametrize("change", [c for _, c in CHANGES], ids=[name for name, _ in CHANGES])
def test_whatever_can_change_the_wheel_changes_the_key(world: World, change: Callable[[World], None]) -> None:
    before = plan(world)
    change(world)
    assert plan(world).key != before.key


@pytest.mark.parametrize(
    "request_",
    [{"archs": ("12.0f",)}, {"archs": ("12.0a", "9.0a")}, {"python": "3.12"}, {"without": ("extra",)}],
    ids=lambda value: next(iter(value)),
)
def test_whatever_a_request_changes_in_the_wheel_changes_the_key(world: World, request_: dict[str, object]) -> None:
    values = dict(request_)
    asked = values.pop("python", None)
    changed = make_plan(
        BuildRequest(recipe="demo", python=asked, **values),  # type: ignore[arg-type]
        recipes_root=world.data / "recipes",
        patches_root=world.data / "patches",
        running_python="3.11",
    )
    assert changed.key != plan(world).key


@pytest.mark.parametrize(
    "change",
    [
        nothing,
        replace_in_recipe('summary = "a package for tests"', 'summary = "another text"'),
        replace_in_recipe("edition = 1", "# a comment\nedition = 1"),
        lambda world: world.patch("demo", "1.0", "notes.txt", "not a patch"),
        lambda world: shutil.copytree(world.data / "recipes/demo", world.data / "recipes/other"),
    ],
    ids=["nothing", "summary", "comment", "a note beside the patches", "another recipe"],
)
def test_what_cannot_change_the_wheel_keeps_the_key(world: World, change: Callable[[World], None]) -> None:
    before = plan(world)
    change(world)
    assert plan(world) == before


def test_the_same_request_in_other_words_is_the_same_plan(world: World) -> None:
    assert plan(world, archs=("sm_120a", "9.0a", "12.0a"), version="1.0.0") == plan(world, archs=("9.0a", "120a"))
    assert plan(world, cuda="13.0", torch="2.11") == plan(world)


def test_how_a_build_is_run_is_no_part_of_what_is_built() -> None:
    """Jobs, memory, mirrors and paths live in BuildOptions, which no plan sees."""
    options = {field.name for field in dataclasses.fields(BuildOptions)}
    assert {"jobs", "memory", "settings", "keep_work"} <= options
    assert not {"jobs", "memory", "settings", "keep_work"} & {field.name for field in dataclasses.fields(Plan)}


FIELDS = [f.name for f in dataclasses.fields(Plan) if f.name not in ("key", "identifier")]


@functools.cache
def default_plan() -> Plan:
    return make_plan(BuildRequest(recipe="sgl-kernel"), running_python="3.11")


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(FIELDS), value=st.text(max_size=8))
def test_every_field_of_a_plan_goes_into_the_key(name: str, value: str) -> None:
    base = default_plan()
    values = {**dataclasses.asdict(base), "key": "", "identifier": ""}
    assert files.content_key(values) == base.key
    if values[name] == value:
        return
    assert files.content_key({**values, name: value}) != base.key


def test_a_source_of_a_component_that_is_left_out_is_not_fetched(world: World) -> None:
    second = git_source("2" * 40, name="more", more='components = ["extra"]')
    write(world, sources=git_source("1" * 40) + second)
    assert [s.name for s in plan(world).sources] == ["demo", "more"]
    assert [s.name for s in plan(world, without=("extra",)).sources] == ["demo"]


def test_a_component_for_other_targets_is_left_out_without_making_the_wheel_partial(world: World) -> None:
    complete = plan(world)
    states = {c.name: (c.built, c.partial) for c in complete.components}
    assert states == {"extra": (True, False), "old": (False, False)}
    assert not complete.partial
    assert complete.defines["WITH_EXTRA"] == "ON"
    partial = plan(world, without=("extra",))
    assert partial.partial
    assert partial.wheel_version == "1.0+cu130.torch211.partial.sm120a"
    assert partial.defines["WITH_EXTRA"] == "OFF"


def test_the_running_python_is_taken_if_it_is_paired_else_the_first(world: World) -> None:
    assert plan(world, python="3.12").python == "3.12"
    assert plan(world, python="3.99").python == "3.10"


def test_an_architecture_list_reaches_the_defines_in_order(world: World) -> None:
    write(world, extra='components = []\n[versions."1.0".defines]\nL = "{archs}"\nR = "{archs_real}"\n')
    made = plan(world, archs=("12.0a", "9.0a"))
    assert (made.defines["L"], made.defines["R"]) == ("90a;120a", "90a-real;120a-real")


def test_a_target_newer_than_the_cuda_is_refused(world: World) -> None:
    old, new = '{ cuda = "12.8", torch = "2.9.1", ', '{ cuda = "13.0", torch = "2.11.0", '
    write(world, pairings=f'{old}python = ["3.10"] }}, {new}python = ["3.10"] }}')
    with pytest.raises(UnsupportedTargetError, match=r"CUDA 12\.8 cannot compile for 12\.0f"):
        plan(world, archs=("12.0f",))
    assert plan(world, archs=("12.0f",), cuda="13.0").torch == "2.11.0"


def test_a_pairing_of_another_cuda_major_than_its_torch_is_refused(world: World) -> None:
    write(world, pairings='{ cuda = "12.8", torch = "2.11.0", python = ["3.10"] }')
    with pytest.raises(UnsupportedTargetError, match=r"torch 2\.11\.0 does not go with CUDA 12\.8"):
        plan(world)


def test_a_lock_that_is_missing_is_named_with_how_to_make_it(world: World) -> None:
    write(world, tools="no-such-lock")
    with pytest.raises(RecipeInvalidError, match="no lock no-such-lock") as caught:
        plan(world)
    assert "sm120 lock" in caught.value.hint


def test_a_patch_for_an_unknown_source_is_refused(world: World) -> None:
    text = make_patch({"a": "1\n"}, {"a": "2\n"}, world.root / "scratch", headers=["Source: demmo"])
    world.patch("demo", "1.0", "0002-other.patch", text)
    with pytest.raises(RecipeInvalidError, match="unknown source 'demmo'") as caught:
        plan(world)
    assert "did you mean demo" in caught.value.hint


def test_a_folder_is_pinned_by_names_modes_and_bytes(world: World) -> None:
    write(world, sources='[versions."1.0".sources.demo]\nfolder = "source"\n')
    folder = world.data / "recipes/demo/source"
    folder.mkdir()
    (folder / "a").write_text("1")
    keys = [plan(world).key]
    (folder / "a").chmod(0o755)
    keys.append(plan(world).key)
    (folder / "a").rename(folder / "b")
    keys.append(plan(world).key)
    (folder / "b").write_text("2")
    keys.append(plan(world).key)
    assert len(set(keys)) == 4
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.pyc").write_text("")
    assert plan(world).key == keys[-1]


@pytest.mark.parametrize("name", recipe.names())
def test_every_recipe_of_the_project_has_a_default_plan(name: str) -> None:
    made = make_plan(BuildRequest(recipe=name))
    assert made.identifier.startswith(made.distribution.replace("-", "_") + "-" + made.version)
    assert len(made.key) == 64


def test_the_identifier_says_it_all() -> None:
    made = make_plan(BuildRequest(recipe="sgl-kernel", version="0.4.4"))
    assert made.identifier == f"sglang_kernel-0.4.4-cu130-torch2.11-cp310_abi3-sm120a-{made.platform}"
    assert made.wheel_version == "0.4.4+cu130.torch211.sm120a"


def test_leaving_out_a_group_or_the_lean_headers_changes_the_key_and_is_in_the_plan(world: World) -> None:
    replace_in_recipe('main = "demo"', 'main = "demo"\nlean_headers = "torch"')(world)
    lean = make_patch({"b": "1\n"}, {"b": "2\n"}, world.root / "scratch", headers=["Group: lean"])
    world.patch("demo", "1.0", "0010-lean.patch", lean)
    whole = plan(world)
    assert [p.name for p in whole.patches] == ["demo/1.0/0001-one.patch", "demo/1.0/0010-lean.patch"]
    assert (whole.without_patches, whole.lean_headers) == ((), "torch")
    without = plan(world, without_patches=("lean",))
    assert [p.name for p in without.patches] == ["demo/1.0/0001-one.patch"]
    assert without.without_patches == ("lean",)
    own = plan(world, whole_headers=True)
    assert (own.lean_headers, own.lean_headers_sha256) == (None, None)
    assert len({whole.key, without.key, own.key}) == 3
    assert whole.wheel_version == without.wheel_version == own.wheel_version
    assert not without.partial


def test_an_edited_lean_header_changes_the_key(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_in_recipe('main = "demo"', 'main = "demo"\nlean_headers = "torch"')(world)
    copy = tmp_path / "headers"
    shutil.copytree(headers.folder("torch"), copy / "torch")
    monkeypatch.setattr(headers, "_ROOT", copy)
    before = plan(world).key
    with (copy / "torch/torch/all.h").open("a") as stream:
        stream.write("// changed\n")
    assert plan(world).key != before
