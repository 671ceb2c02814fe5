"""The whole pipeline through the real command: a recipe to an installed wheel, stopped, resumed and gone wrong.

The package is C++ only and torch is a stand-in wheel of some bytes, so that minutes of compiling and gigabytes of
downloads are not needed; git, patches, the CUDA toolkit, CMake, ninja and g++ are the real ones.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from sm120_wheels.toolchain.cuda import CudaToolkit
from tests.support.demo import DEMO, TORCH, arguments, prepare
from tests.support.waiting import until
from tests.support.world import World, finish, make_patch

pytestmark = [pytest.mark.cuda, pytest.mark.network]

GATE = (
    'if(NOT EXISTS "${CMAKE_BINARY_DIR}/gate.h")\n  execute_process(COMMAND mkfifo "${CMAKE_BINARY_DIR}/gate.h")\n'
    'endif()\ntarget_include_directories(demo PRIVATE "${CMAKE_BINARY_DIR}")\n'
)


def test_a_recipe_becomes_a_wheel_that_installs_and_a_second_run_has_nothing_to_do(
    world: World, stand_in: Path
) -> None:
    prepare(world, stand_in)
    before = dict(DEMO)
    after = {**DEMO, "a.cc": DEMO["a.cc"].replace("return 1", "return 41")}
    world.patch("demo", "1.0", "0001-answer.patch", make_patch(before, after, world.root / "scratch"))
    upstream_has = make_patch({**DEMO, "b.cc": 'extern "C" int b() { return 0; }\n'}, DEMO, world.root / "scratch")
    world.patch("demo", "0.9--1.1", "0002-already-in.patch", upstream_has)

    first = world.sm120(*arguments(world)).ok()
    wheel = next(world.dist.glob("*.whl"))
    assert wheel.name.startswith(f"demo-1.0+cu130.torch211.sm120a-cp3{sys.version_info.minor}-")
    assert {entry.name for entry in world.dist.iterdir()} == {wheel.name, f"{wheel.name}.build.json"}
    for text in (
        f"dist/{wheel.name}",
        hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "architectures: no GPU code",  # read from the wheel; the recipe is for sm_120a
        f"for torch {TORCH}, CUDA 13.0",
        f"install: pip install dist/{wheel.name}",
        "built in",
    ):
        assert text in first.out

    target = world.root / "installed"
    pip = [sys.executable, "-m", "uv", "pip", "install", "--offline", "--no-deps", "--target", str(target), str(wheel)]
    subprocess.run([*pip, "--python", sys.executable], check=True, capture_output=True)
    code = "import demo; print(demo.library.a(), demo.library.b())"
    said = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(target)}, capture_output=True, check=True
    )
    assert said.stdout.split() == [b"41", b"2"]
    assert (target / "demo/archs.txt").read_text() == "120a recipe\n"
    metadata = (target / "demo-1.0+cu130.torch211.sm120a.dist-info/METADATA").read_text()
    assert f"Requires-Dist: torch~={TORCH}" in metadata

    again = world.sm120(*arguments(world), "--json").json()
    assert again["up_to_date"] is True
    states = {one["name"].rsplit("/", 1)[-1]: one["state"] for one in again["stages"]["patch"]["output"]["patches"]}
    assert states == {"0001-answer.patch": "applied", "0002-already-in.patch": "already in"}
    plain = world.sm120(*arguments(world)).ok()
    assert "up to date" in plain.out
    assert plain.err == ""

    wheel.unlink()
    assert world.sm120(*arguments(world), "--offline", "--json").json()["up_to_date"] is False
    assert wheel.is_file()


def processes_of(folder: Path) -> list[str]:
    """Commands that are running with this folder in their arguments."""
    found = []
    for proc in Path("/proc").glob("[0-9]*"):
        try:
            command = (proc / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in command and int(proc.name) != os.getpid():
            found.append(command)
    return found


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_build_goes_on_where_it_was(world: World, stand_in: Path, stop: signal.Signals) -> None:
    prepare(
        world,
        stand_in,
        {"CMakeLists.txt": DEMO["CMakeLists.txt"] + GATE, "b.cc": '#include "gate.h"\n' + DEMO["b.cc"]},
    )
    # ccache's preprocessing stands before the launcher, which is what the broker can end after a kill: it would wait at
    # the gate for ever, where real ones end by themselves.
    running = world.start(*arguments(world, "--jobs", "2", "--compiler-cache", "off"))
    until(
        lambda: (
            any("a.cc.o" in log.read_text() for log in world.build.rglob(".ninja_log"))
            and any("cc1plus" in p and "b.cc" in p for p in processes_of(world.root))
        ),
        what="a.cc is compiled and b.cc is being compiled",
    )
    world.sm120(*arguments(world)).failed(46, "in use by another process", "demo-1.0-cu130")

    outcome = finish(running, interrupt=stop)
    if stop is not signal.SIGKILL:
        outcome.failed(130, "interrupted", "finished stages are not repeated")
        until(
            lambda: not [p for p in processes_of(world.build) if "cc1plus" in p or "ninja" in p],
            what="the compiler and ninja are ended",
        )
    assert not world.dist.exists() or not list(world.dist.iterdir())

    work = next(world.build.iterdir())
    kept = {file.name: json.loads(file.read_text())["started"] for file in (work / "records").iterdir()}
    assert sorted(kept) == ["0-plan.json", "1-fetch.json", "2-patch.json", "3-provision.json"]
    compiled = next(world.build.rglob("a.cc.o")).stat().st_mtime_ns
    gate = next(world.build.rglob("gate.h"))
    gate.rename(gate.with_name("opened"))
    gate.write_text("")
    if stop is signal.SIGKILL:
        until(
            lambda: not [p for p in processes_of(world.build) if "cc1plus" in p or "ninja" in p],
            what="the compiler and ninja, which nobody waits for any more, are ended",
        )
    second = world.sm120(*arguments(world, "--keep-work", "--compiler-cache", "off")).ok()
    assert "fetching" not in second.err
    now = {file.name: json.loads(file.read_text())["started"] for file in (work / "records").iterdir()}
    assert {name: now[name] for name in kept} == kept, "no finished stage ran again"
    assert next(world.build.rglob("a.cc.o")).stat().st_mtime_ns == compiled, "a.cc was not compiled again"
    assert len(list(world.dist.glob("*.whl"))) == 1


def test_a_compile_error_shows_the_first_error_and_not_the_whole_log(world: World, stand_in: Path) -> None:
    broken = "int first = undeclared;\n" + "".join(f"int x{n} = also_undeclared_{n};\n" for n in range(2000))
    prepare(world, stand_in, {"b.cc": broken})
    outcome = world.sm120(*arguments(world))
    outcome.failed(51, "b.cc", "undeclared", "build.log")
    assert len(outcome.err.splitlines()) < 40
    assert not world.dist.exists()
    assert len(next(world.build.rglob("build.log")).read_text().splitlines()) > 2000


def test_a_file_that_can_never_fit_is_refused_before_anything_is_fetched(world: World, stand_in: Path) -> None:
    prepare(world, stand_in)
    world.profile("demo", "1.0-sm120a.csv", "huge.cu,90000000,5\n")
    outcome = world.sm120("build", "demo", "--mirror", "file:///nowhere/{name}")
    outcome.failed(45, "huge.cu needs 94.4 TB of memory to compile", "raise --memory")


def test_a_failing_configure_has_its_own_code(world: World, stand_in: Path) -> None:
    prepare(world, stand_in, {"CMakeLists.txt": DEMO["CMakeLists.txt"] + "find_package(NoSuchThing REQUIRED)\n"})
    world.sm120(*arguments(world)).failed(50, "NoSuchThing", "build.log")


def compiler_script(world: World, text: str) -> str:
    script = world.root / "g++"
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o755)
    return str(script)


def test_a_compiler_that_is_always_killed_is_told_with_what_to_do(world: World, stand_in: Path) -> None:
    """It kills itself, as the kernel does under memory pressure."""
    prepare(world, stand_in)
    script = compiler_script(world, f'case "$*" in *b.cc.o*) kill -KILL $$ ;; esac\nexec {shutil.which("g++")} "$@"')
    world.sm120(*arguments(world, "--host-compiler", script)).failed(52, "b.cc", "killed", "memory")


def test_a_host_compiler_that_nvcc_refuses_is_told_with_the_one_it_takes(world: World, stand_in: Path) -> None:
    prepare(world, stand_in)
    script = compiler_script(world, f'exec {shutil.which("g++")} -U__GNUC__ -D__GNUC__=99 "$@"')
    outcome = world.sm120(*arguments(world, "--host-compiler", script))
    outcome.failed(41, "too new for nvcc 13.0", script, "--host-compiler g++-")


def test_an_nvcc_of_another_version_is_refused(world: World, stand_in: Path, pypi_cuda: CudaToolkit) -> None:
    prepare(world, stand_in)
    file = world.data / "recipes/demo/recipe.toml"
    file.write_text(file.read_text().replace('cuda = "13.0"', 'cuda = "13.2"'))
    outcome = world.sm120(*arguments(world, "--cuda-home", str(pypi_cuda.root)))
    outcome.failed(42, "this nvcc is CUDA 13.0, the build is for CUDA 13.2", "--cuda-home")


def test_a_prepared_folder_is_built_by_another_frontend(world: World, stand_in: Path, tmp_path: Path) -> None:
    prepare(world, stand_in)
    after = {**DEMO, "a.cc": DEMO["a.cc"].replace("return 1", "return 41")}
    world.patch("demo", "1.0", "0001-answer.patch", make_patch(dict(DEMO), after, world.root / "scratch"))
    folder = tmp_path / "prepared"
    told = world.sm120("prepare", "demo", "--mirror", world.upstream.mirror, "--into", folder, "--json").json()
    assert (folder / "cuda/bin/nvcc").is_file()
    assert "return 41" in (folder / "project/a.cc").read_text()
    python = Path(told["python"])
    env = {
        **world.variables(),
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        "SKBUILD_CMAKE_ARGS": f"-C{folder / 'cache.cmake'}",
    }
    argv: list[str | Path] = [
        python,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        tmp_path / "out",
        folder / "project",
    ]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (tmp_path / "out").glob("*.whl")
    with zipfile.ZipFile(wheel) as bundle:
        assert bundle.read("demo/archs.txt").decode() == "120a recipe\n"
    again = world.sm120("prepare", "demo", "--mirror", world.upstream.mirror, "--into", folder, "--json").json()
    assert again == told
