"""What a person meets when something is wrong: one message, its own exit code, no traceback. The real command."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from sm120_wheels import errors
from tests.support.disk import make_read_only, small_disk
from tests.support.world import SM120, World, git_source, make_patch, recipe_toml


def kinds(base: type[errors.Sm120Error] = errors.Sm120Error) -> list[type[errors.Sm120Error]]:
    return [kind for sub in base.__subclasses__() for kind in [sub, *kinds(sub)] if kind.__module__ == errors.__name__]


def test_every_kind_of_failure_has_its_own_exit_code() -> None:
    codes = [kind.exit_code for kind in kinds()]
    assert len(codes) > 30
    assert len(set(codes)) == len(codes)
    assert not {0, 1, 2, errors.Sm120Error.exit_code} & set(codes)


@pytest.fixture
def demo(world: World) -> World:
    """A recipe whose source is in a mirror."""
    commit = world.upstream.commit(world.upstream.work_tree("up", "demo"), {"a.txt": "one\ntwo\nthree\n"})
    world.recipe("demo", recipe_toml(sources=git_source(commit)))
    return world


# What was asked for. The real recipes, since SM120_DATA_DIR is off here.


@pytest.mark.parametrize(
    ("arguments", "code", "texts"),
    [
        (["sgl-kernl"], 11, ["no recipe 'sgl-kernl'", "did you mean sgl-kernel"]),
        (["../etc"], 11, ["no recipe '../etc'"]),
        (["ünï"], 11, ["no recipe 'ünï'"]),
        (["sgl-kernel", "--version", "0.4.6"], 12, ["no version '0.4.6'", "did you mean 0.4.", "add-a-version"]),
        (["sgl-kernel", "--version", "latest"], 12, ["no version 'latest'", "known: 0.4.4"]),
        (["sgl-kernel", "--cuda", "13.1"], 13, ["not built with CUDA 13.1", "did you mean 13.0"]),
        (["sgl-kernel", "--cuda", "thirteen"], 13, ["not built with CUDA thirteen", "known: 13.0"]),
        (["sgl-kernel", "--arch", "12.0b"], 14, ["unknown GPU architecture '12.0b'", "12.0a"]),
        (["sgl-kernel", "--arch", "8.0"], 14, ["not built for 8.0", "12.0a"]),
        (["sgl-kernel", "--arch", "12.0"], 15, ["cannot be built for 12.0", "FP4", "--arch 12.0a"]),
        (["sgl-kernel", "--arch", "sm_120"], 15, ["cannot be built for 12.0", "FP4"]),
        (["sgl-kernel", "--torch", "2.9.1"], 15, ["CUDA 13.0 against torch 2.9.1", "major differs"]),
        (["sgl-kernel", "--torch", "nightly"], 15, ["against torch nightly", "pinned pairings"]),
        (["sgl-kernel", "--python", "3.9"], 15, ["no build with Python 3.9", "3.10"]),
        (["sgl-kernel", "--without", "tritonkernels"], 16, ["no component", "did you mean triton-kernels"]),
        (["sgl-kernel", "--profile", "full"], 16, ["no module profiles", "--without"]),
    ],
)
def test_a_wrong_request_is_refused_with_near_misses(
    world: World, arguments: list[str], code: int, texts: list[str]
) -> None:
    world.env["SM120_DATA_DIR"] = ""
    world.sm120("plan", *arguments).failed(code, *texts)


def test_build_refuses_what_plan_refuses_before_it_touches_anything(world: World) -> None:
    world.env["SM120_DATA_DIR"] = ""
    world.sm120("build", "sgl-kernel", "--arch", "12.0").failed(15, "FP4")
    assert list(world.cwd.iterdir()) == []


def test_a_plain_target_is_refused_for_flashinfer_too(world: World) -> None:
    world.env["SM120_DATA_DIR"] = ""
    world.sm120("plan", "flashinfer", "--arch", "12.0").failed(15, "FP4", "12.0f")


def test_flashinfer_is_refused_for_two_targets_since_only_one_would_be_compiled(world: World) -> None:
    world.env["SM120_DATA_DIR"] = ""
    told = world.sm120("plan", "flashinfer", "--arch", "12.0f,12.1a")
    told.failed(15, "one target at a time, not for 12.0f and 12.1a", "build each by itself")
    world.sm120("plan", "flashinfer", "--arch", "12.0f,12.0f").ok()


@pytest.mark.parametrize(
    ("arguments", "env", "texts"),
    [
        (["--mirror", "file:///srv/git"], {}, ["option --mirror", "it has no field"]),
        (["--mirror", "https://m/{hots}"], {}, ["option --mirror", "unknown field {hots}"]),
        (["--mirror", "https://m/{host"], {}, ["option --mirror"]),
        (["--mirror", "https://m/{owner:d}"], {}, ["option --mirror"]),
        ([], {"SM120_MIRROR": "nothing"}, ["environment variable SM120_MIRROR"]),
        ([], {"SM120_OFFLINE": "perhaps"}, ["environment variable SM120_OFFLINE", "neither true nor false"]),
    ],
)
def test_a_setting_that_cannot_be_used_names_its_place(
    demo: World, arguments: list[str], env: dict[str, str], texts: list[str]
) -> None:
    demo.sm120("build", "demo", *arguments, **env).failed(17, *texts)


@pytest.mark.parametrize(
    ("text", "found"), [("mirror = [", "not TOML"), ("mirrors = 'x'", "did you mean mirror"), ("mirror = 3", "string")]
)
def test_a_config_file_that_cannot_be_used_is_named(demo: World, text: str, found: str) -> None:
    (demo.cwd / "sm120.toml").write_text(text)
    demo.sm120("build", "demo").failed(17, "sm120.toml", found)


@pytest.mark.parametrize("arguments", [["build"], ["biuld"], ["build", "demo", "--jobs", "0"], ["plan", "demo", "--x"]])
def test_a_usage_error_is_2(demo: World, arguments: list[str]) -> None:
    outcome = demo.sm120(*arguments)
    assert outcome.code == 2
    assert "Error:" in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize("size", ["20", "1GB5", "12iB", "-1GiB", "nanGB"])
def test_a_memory_size_that_is_none_is_a_usage_error(demo: World, size: str) -> None:
    outcome = demo.sm120("build", "demo", f"--memory={size}")
    assert outcome.code == 2
    assert "Traceback" not in outcome.err


# Recipes and patches


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        ("edition = 2\n", ["edition 2", "reads edition 1"]),
        ("edition = [", ["not a TOML file"]),
        ("edition = 1\nname = 'demo'\n", ["key summary", "this key is needed", "more)"]),
    ],
)
def test_a_broken_recipe_names_file_and_key(world: World, text: str, texts: list[str]) -> None:
    file = world.recipe("demo", text)
    world.sm120("build", "demo").failed(10, str(file), *texts)


def test_a_folder_source_that_is_not_there_is_a_broken_recipe(world: World) -> None:
    world.recipe("demo", recipe_toml(sources='[versions."1.0".sources.demo]\nfolder = "gone"\n'))
    world.sm120("plan", "demo").failed(10, "no folder gone")


def test_a_patch_conflict_shows_the_hunk_and_upstreams_lines(demo: World, tmp_path: Path) -> None:
    text = make_patch({"a.txt": "one\nzwei\nthree\n"}, {"a.txt": "one\nTWO\nthree\n"}, tmp_path / "scratch")
    demo.patch("demo", "1.0", "0001-change.patch", text)
    outcome = demo.sm120("build", "demo", "--mirror", demo.upstream.mirror)
    outcome.failed(30, "0001-change.patch does not apply", "-zwei", "+TWO", "upstream has at a.txt:1", "2 two")
    assert not demo.dist.exists()


def test_a_patch_for_no_version_is_an_error(demo: World, tmp_path: Path) -> None:
    text = make_patch({"a": "1\n"}, {"a": "2\n"}, tmp_path / "scratch")
    demo.patch("demo", "2.0--2.5", "0001-change.patch", text)
    demo.sm120("plan", "demo").failed(31, "matches no version", "2.0--2.5", "1.0")


@pytest.mark.parametrize("content", [b"nonsense", b"Subject: x\n\xff\xfe\n", b""], ids=["text", "not UTF-8", "empty"])
def test_a_damaged_patch_is_an_error(demo: World, content: bytes) -> None:
    demo.patch("demo", "1.0", "0001-change.patch", "").write_bytes(content)
    demo.sm120("plan", "demo").failed(32, "0001-change.patch")


def test_a_patch_outside_any_version_folder_is_an_error_and_not_ignored(demo: World) -> None:
    demo.patch("demo", "", "0001-change.patch", "Subject: x\n")
    demo.sm120("plan", "demo").failed(32, "0001-change.patch", "version")


# Fetching


def test_a_host_that_cannot_be_reached_says_how_to_set_a_mirror(demo: World) -> None:
    outcome = demo.sm120("build", "demo", "--mirror", "https://127.0.0.1:9/{owner}/{name}")
    outcome.failed(21, "cannot fetch from 127.0.0.1:9", "--mirror", "SM120_MIRROR", "sm120.toml")


def test_a_commit_that_is_not_in_the_mirror_is_named(demo: World) -> None:
    demo.recipe("demo", recipe_toml(sources=git_source("1" * 40)))
    outcome = demo.sm120("build", "demo", "--mirror", demo.upstream.mirror)
    outcome.failed(22, f"commit {'1' * 40} is not there", "up+demo/repo", "update it")


def test_offline_and_not_cached_is_refused(demo: World) -> None:
    demo.sm120("build", "demo", "--offline").failed(23, "offline mode forbids", "https://example.org/up/demo")
    demo.sm120("build", "demo", SM120_OFFLINE="1").failed(23, "offline mode forbids")


def archive_recipe(world: World, sha256: str) -> None:
    source = (
        '[versions."1.0".sources.demo]\narchive = "https://example.org/up/demo/v1.tar.gz"\n'
        f'sha256 = "{sha256}"\nlicence = "MIT"\n'
    )
    world.recipe("demo", recipe_toml(sources=source))


def test_a_wrong_sha256_names_both_and_leaves_no_file(world: World) -> None:
    folder = world.upstream.root / "up/demo"
    folder.mkdir(parents=True)
    with tarfile.open(folder / "v1.tar.gz", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("top/x"), io.BytesIO())
    archive_recipe(world, "0" * 64)
    outcome = world.sm120("build", "demo", "--mirror", f"{world.upstream.root.as_uri()}/{{path}}")
    outcome.failed(20, "another sha256 than its pin", "pinned " + "0" * 64, "found  ")
    assert not [p for p in world.cache.rglob("*.tar.gz*") if p.is_file()]


def test_an_archive_offline_and_not_cached_is_refused(world: World) -> None:
    archive_recipe(world, "0" * 64)
    world.sm120("build", "demo", "--offline").failed(23, "v1.tar.gz is not in the cache")


# This machine


def test_no_disk_space_is_told_with_figures(world: World) -> None:
    commit = world.upstream.commit(world.upstream.work_tree("up", "demo"), {f"{n}": "x" * 100_000 for n in range(30)})
    world.recipe("demo", recipe_toml(sources=git_source(commit)))
    with small_disk("1m") as disk:
        outcome = world.sm120("build", "demo", "--mirror", world.upstream.mirror, SM120_CACHE_DIR=str(disk))
        outcome.failed(44, "no disk space left", "GB are free", "SM120_CACHE_DIR")
        outcome = world.sm120("build", "demo", "--mirror", world.upstream.mirror, SM120_BUILD_DIR=str(disk))
        outcome.failed(44, "no disk space left", "GB are free", "SM120_BUILD_DIR")


def test_a_cache_that_may_not_be_written_is_told(demo: World) -> None:
    with small_disk("1m") as disk:
        make_read_only(disk)
        for variable in ("SM120_CACHE_DIR", "SM120_BUILD_DIR"):
            outcome = demo.sm120("build", "demo", "--mirror", demo.upstream.mirror, **{variable: str(disk / "x")})
            outcome.failed(47, "cannot write below", str(disk), "Read-only file system", variable)


def test_without_git_the_message_says_so(demo: World, tmp_path: Path) -> None:
    empty = tmp_path / "no-programs"
    empty.mkdir()
    demo.sm120("build", "demo", "--mirror", demo.upstream.mirror, PATH=str(empty)).failed(40, "git is not installed")


# The command itself


def test_output_that_nobody_reads_any_more_is_no_crash(world: World) -> None:
    world.env["SM120_DATA_DIR"] = ""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        done = subprocess.run(
            [*SM120, "plan", "sgl-kernel"],
            cwd=world.cwd,
            env=world.variables(),
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_a_terminal_that_knows_only_ascii_gets_a_plan_and_an_error(world: World) -> None:
    world.env["SM120_DATA_DIR"] = ""
    ascii_only = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    assert "sgl" in world.sm120("plan", "sgl-kernel", **ascii_only).ok().out
    world.sm120("plan", "ünï", **ascii_only).failed(11, "no recipe")
    assert world.sm120("--help", **ascii_only).code == 0
    assert world.sm120("build", "--help", **ascii_only).code == 0


def test_help_loads_no_pipeline() -> None:
    code = (
        "import sys; from sm120_wheels.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print('pydantic' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "build" in done.stdout
    assert done.stderr.strip() == "False"
