"""``sm120 matrix`` and ``--id``, as a person and as CI meet them."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest

from sm120_wheels.matrix import here
from sm120_wheels.toolchain.interpreters import Interpreter
from tests.index.makewheel import make_wheel
from tests.support.inprocess import in_process
from tests.support.world import World, git_source, recipe_toml

PAIRS = '{ cuda = "13.0", torch = "2.11.0", python = ["3.10", "3.11", "3.12", "3.13"] }, '
PAIRS += '{ cuda = "12.8", torch = "2.9.1", python = ["3.10", "3.11", "3.12", "3.13"] }'
NAME = "demo-1.0-cu130-torch2.11-cp310_abi3-sm120a-linux_x86_64"


@pytest.fixture
def world(world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> World:
    in_process(world, monkeypatch, capsys)
    text = recipe_toml(sources=git_source("1" * 40), pairings=PAIRS, extra='abi3 = "3.10"')
    world.recipe("demo", text)
    return world


def test_the_list_says_what_is_built_here(world: World) -> None:
    told = world.sm120("matrix", "--only", "*-sm120a-*").ok()
    lines = {line.split()[0]: line for line in told.out.splitlines()}
    assert len(lines) == 4  # the heading; 13.0 on two platforms, 12.8 on one
    assert "3 builds" in told.err
    assert "CUDA 12.8 is not on the package index" in lines[NAME.replace("cu130-torch2.11", "cu128-torch2.9")]


def test_json_is_a_flat_list_whose_arguments_plan_the_same_build(world: World) -> None:
    jobs = world.sm120("matrix", "--only", "*-cu130-*-sm120a-linux_x86_64", "--json").json()
    assert [job["identifier"] for job in jobs] == [NAME]
    assert jobs[0]["sm120"][:2] == ["build", "demo"]
    assert jobs[0]["nox"] == ["-s", "build_demo", "--", *jobs[0]["sm120"][2:]]
    planned = world.sm120("plan", *jobs[0]["sm120"][1:], "--json").json()
    if planned["platform"] == "linux_x86_64":
        assert (planned["identifier"], planned["key"]) == (NAME, jobs[0]["key"])


def test_the_list_goes_into_one_line_of_githubs_output_file(world: World) -> None:
    target = world.root / "output"
    target.write_text("before=1\n")
    world.sm120("matrix", "--skip", "*-sm90a-*", "--github-output", "jobs", GITHUB_OUTPUT=str(target)).ok()
    before, line = target.read_text().splitlines()
    name, _, value = line.partition("=")
    assert (before, name) == ("before=1", "jobs")
    assert NAME in {job["identifier"] for job in json.loads(value)}
    world.sm120("matrix", "--github-output", "jobs").failed(17, "GITHUB_OUTPUT is not set", "--json")


def test_an_empty_selection_has_its_own_exit_code(world: World) -> None:
    world.sm120("matrix", "--only", "dmo-*").failed(18, "no identifier matches dmo-*", "close to it: demo-")
    world.sm120("matrix", "--skip", "*").failed(18, "--skip '*' matches all")


def test_a_pattern_that_matches_nothing_beside_others_is_noted(world: World) -> None:
    assert "note: the pattern x* matches no build" in world.sm120("matrix", "--only", "demo* x*", "--json").ok().err


def test_why_not_names_the_axis_and_near_misses(world: World) -> None:
    assert "is in the matrix; this machine " in world.sm120("matrix", "--why-not", NAME).ok().out
    elsewhere = NAME.replace("cu130-torch2.11", "cu128-torch2.9")
    told = world.sm120("matrix", "--why-not", elsewhere).ok().out
    assert "cannot build it: CUDA 12.8 is not on the package index and comes from the system or an image" in told
    world.sm120("matrix", "--why-not", NAME.replace("sm120a", "sm120")).failed(14, "needs FP4", f"closest: {NAME}")
    impossible = NAME.replace("cu130-torch2.11", "cu128-torch2.9").replace("sm120a", "sm120f")
    world.sm120("matrix", "--why-not", impossible).failed(15, "12.0f needs CUDA 12.9 or newer")
    world.sm120("matrix", "--why-not", "nonsense").failed(15, "an identifier has 7")


def test_two_builds_of_one_name_are_refused(world: World) -> None:
    world.recipe("fork", recipe_toml(name="demo", sources=git_source("1" * 40)).replace('"demo"', '"fork"', 1))
    text = (world.data / "recipes/demo/recipe.toml").read_text()
    world.recipe("fork", text.replace('name = "demo"', 'name = "fork"', 1))
    world.sm120("matrix").failed(19, "two builds have one identifier", "recipe fork 1.0", "recipe demo 1.0")


def test_a_build_of_another_platform_is_refused_here(world: World) -> None:
    jobs = world.sm120("matrix", "--only", "*-cu130-*-sm120a-*", "--json").json()
    here = world.sm120("plan", "demo", "--json").json()["platform"]
    other = next(job for job in jobs if job["platform"] != here)
    world.sm120("build", "--id", other["identifier"]).failed(15, "nothing is compiled across platforms")
    only = ("matrix", "--only", other["identifier"])
    world.sm120(*only, "--run").failed(15, "none of the 1 chosen builds", "this machine is " + here)
    world.sm120(*only, "--here").failed(18, "none of the 1 chosen builds", "this machine is " + here)


def test_an_identifier_stands_for_the_options_that_it_decides(world: World) -> None:
    world.sm120("plan", "--id", NAME).ok()
    world.sm120("plan", "demo", "--id", NAME).ok()
    world.sm120("plan", "--id", NAME.replace("1.0", "1.1")).failed(12, "demo has no version 1.1")
    for arguments, text in [
        (("--id", NAME, "--cuda", "13.0"), "--id decides the build"),
        (("--id", NAME, "--python", "3.9"), "is built with Python 3.10, 3.11, 3.12, 3.13, not 3.9"),
        (("other", "--id", NAME), "belongs to the recipe demo"),
        ((), "Missing argument 'RECIPE'"),
    ]:
        refused = world.sm120("plan", *arguments)
        assert (refused.code, text in refused.err) == (2, True), refused.err


def test_a_wheel_for_every_python_is_built_with_one_that_is_here(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(*pythons: str, asked: tuple[str, ...] = ()) -> str:
        there = [
            Interpreter(executable=Path(f"/python{minor}"), version=f"{minor}.2", has_headers=True, platform="linux")
            for minor in pythons
        ]
        monkeypatch.setattr(here, "all_interpreters", lambda: there)
        plan = world.sm120("plan", "--id", NAME, *asked, "--json").json()
        assert plan["identifier"] == NAME
        return str(plan["python"])

    assert chosen("3.11", "3.12") == "3.11"  # as in an image that has no 3.10
    assert chosen("3.10", "3.11") == "3.10"
    assert chosen("3.11", "3.12", asked=("--python", "3.12")) == "3.12"
    assert chosen("3.8") == "3.10"  # the build then says that there is none


def test_options_that_do_not_go_together_are_a_usage_error(world: World) -> None:
    assert world.sm120("matrix", "--publish-to", "x").code == 2
    assert world.sm120("matrix", "--run", "--allow", "partial").code == 2
    assert world.sm120("matrix", "--run", "--published", "x").code == 2


@pytest.mark.skipif(platform.machine() != "x86_64", reason="not run: the build is one of x86_64")
def test_what_could_not_be_published_is_refused_before_it_is_built(world: World) -> None:
    extra = 'abi3 = "3.10"\ncomponents = ["more"]\n[versions."1.0".unavailable]\nmore = "not pinned yet"\n'
    top = '[components.more]\nsummary = "more"\ndefine = "WITH_MORE"\n'
    world.recipe("demo", recipe_toml(sources=git_source("1" * 40), extra=extra, top=top))
    run = ("matrix", "--only", NAME, "--run", "--publish-to", "wheels")
    told = world.sm120(*run)
    told.failed(80, f"{NAME} was not published", "its wheels would leave something out [partial]", "--allow partial")
    world.sm120(*run, "--allow", "prtial").failed(17, "no gate is called 'prtial'", "partial")
    assert not (world.root / "wheels").exists()


def test_coverage_of_an_index(world: World) -> None:
    plan = {"identifier": NAME, "cuda": "13.0", "torch": "2.11.0", "archs": ["12.0a"]}
    wheel = make_wheel(Path(world.cwd), "demo", "1.0+cu130.torch211.sm120a", build={"plan": plan, "left_out": []})
    world.sm120("index", "publish", wheel).ok()
    told = world.sm120("matrix", "--only", "*-sm120a-linux_x86_64", "--published", "wheels").ok()
    rows = {line.split()[0]: line.split()[1:] for line in told.out.splitlines()}
    assert rows[NAME] == ["published", "not", "run", wheel.name]
    assert rows[NAME.replace("cu130-torch2.11", "cu128-torch2.9")] == ["missing"]
    assert "1 of 2 builds are published" in told.err
    as_json = world.sm120("matrix", "--only", NAME, "--published", "wheels", "--json").json()
    assert (as_json["missing"], as_json["expected"][0]["state"]) == ([], "published")
    world.sm120("matrix", "--published", "nowhere").failed(17, "there is no index here")
