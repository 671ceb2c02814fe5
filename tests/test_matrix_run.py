"""One command builds a package for three torches with two CUDA toolkits and publishes it; pip picks the right wheel.

The package is one translation unit, and torch a stand-in wheel of some bytes; nvcc 13.0 and 13.2, the pipeline, the
index and pip are the real ones. The same with the selftest and real torches: docs/evidence/matrix.md.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uv

from tests.index.makewheel import make_wheel
from tests.index.serving import served
from tests.support.world import ROOT, World, git_source, recipe_toml

pytestmark = [pytest.mark.long, pytest.mark.cuda, pytest.mark.network]

#: CUDA and the stand-in torch that is paired with it.
PAIRS = (("13.0", "2.11.99"), ("13.0", "2.14.99"), ("13.2", "2.15.99"))
TINY = {
    "pyproject.toml": """\
[build-system]
requires = ["scikit-build-core"]
build-backend = "scikit_build_core.build"

[project]
name = "tiny"
version = "1.0"

[tool.scikit-build]
wheel.packages = ["python/tiny"]
wheel.py-api = "py3"
""",
    "python/tiny/__init__.py": "",
    "CMakeLists.txt": """\
cmake_minimum_required(VERSION 3.26)
project(tiny LANGUAGES CXX CUDA)
add_library(tiny SHARED tiny.cu)
set_target_properties(tiny PROPERTIES CUDA_ARCHITECTURES "${TINY_ARCHS}" CUDA_RUNTIME_LIBRARY Shared)
install(TARGETS tiny LIBRARY DESTINATION tiny)
""",
    "tiny.cu": "__global__ void twice(float* x) { x[threadIdx.x] *= 2; }\n"
    'extern "C" int launch(float* x) { twice<<<1, 32>>>(x); return cudaGetLastError(); }\n',
}


@dataclass
class Done:
    world: World
    result: dict[str, Any]
    torches: Path
    """A folder with the stand-ins."""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path) -> Iterator[Done]:
    """The one command, run to its end."""
    root = tmp_path_factory.mktemp("matrix-run")
    cache = root / "cache"
    cache.mkdir()
    for shared in ("cuda", "uv"):
        (shared_cache / shared).mkdir(parents=True, exist_ok=True)
        (cache / shared).symlink_to(shared_cache / shared)
    torches = root / "torches"
    for torch in ("2.12.0", *(torch for _, torch in PAIRS)):
        make_wheel(torches, "torch", torch, tag="py3-none-any", audit={}, sbom=None, requires_python=None)
    runtime = tempfile.mkdtemp(prefix="sm120-test-")
    links = f"{os.environ.get('PIP_FIND_LINKS', '')} {torches}".strip()
    env = {"SM120_RUNTIME_DIR": runtime, "SM120_BROKER_IDLE_S": "20", "PIP_FIND_LINKS": links}
    world = World(root=root / "world", env={**env, "SM120_CACHE_DIR": str(cache)})
    _write_recipe(world, torches)
    told = world.sm120(
        "matrix", "--here", "--mirror", world.upstream.mirror, "--run", "--publish-to", "wheels", "--json"
    )
    yield Done(world=world, result=told.json(), torches=torches)
    shutil.rmtree(runtime, ignore_errors=True)


def _write_recipe(world: World, torches: Path) -> None:
    commit = world.upstream.commit(world.upstream.work_tree("up", "tiny"), TINY)
    python = f"3.{sys.version_info.minor}"
    pairings = ", ".join(f'{{ cuda = "{c}", torch = "{t}", python = ["{python}"] }}' for c, t in PAIRS)
    text = recipe_toml(
        name="tiny",
        main="tiny",
        sources=git_source(commit, name="tiny"),
        pairings=pairings,
        archs='default = "12.0a"\nsupported = ["12.0a"]',
        tools="build-cmake4",
        extra='[versions."1.0".defines]\nTINY_ARCHS = "{archs_real}"\n',
    )
    world.recipe("tiny", text)
    world.profile("tiny", "1.0-sm120a.csv", "tiny/tiny.cu,300,5\n")
    real = (ROOT / "recipes/locks/torch-2.11.0.txt").read_text()
    extensions = "typing-extensions==" + real.split("\ntyping-extensions==", 1)[1]
    end = next(n for n, line in enumerate(extensions.splitlines()) if not line.endswith("\\"))
    kept = "\n".join(extensions.splitlines()[: end + 1])
    for _, torch in PAIRS:
        sha256 = hashlib.sha256((torches / f"torch-{torch}-py3-none-any.whl").read_bytes()).hexdigest()
        lock = f"torch=={torch} --hash=sha256:{sha256}"
        (world.locks() / f"torch-{torch}.txt").write_text(f"{lock}\n{kept}\n")


def test_three_wheels_in_the_indexes_of_their_two_cudas(done: Done) -> None:
    assert [job["state"] for job in done.result["jobs"]] == ["built"] * 3
    places = {row["filename"].split("-")[1]: row["index"] for row in done.result["published"]}
    assert places == {
        "1.0+cu130.torch211.sm120a": "cu130",
        "1.0+cu130.torch214.sm120a": "cu130",
        "1.0+cu132.torch215.sm120a": "cu132",
    }


def test_each_wheel_was_compiled_by_its_own_toolkit_and_its_audit_names_it(done: Done) -> None:
    for wheel in done.world.dist.glob("*.whl"):
        cuda, torch = next((c, t) for c, t in PAIRS if f"torch{t[0]}{t.split('.')[1]}." in wheel.name)
        with zipfile.ZipFile(wheel) as bundle:
            record = json.loads(bundle.read(next(n for n in bundle.namelist() if n.endswith("/sm120/build.json"))))
        assert record["toolchain"]["cuda"]["version"].startswith(f"{cuda}.")
        assert record["plan"]["torch"] == torch
        audit = done.world.sm120("audit", wheel, "--target", "12.0", "--json").json()
        assert audit["verdicts"]["12.0"] == "runs"
        # read off the machine code, so that "built with" is no mere label
        assert audit["cuda"]["release"] == cuda
        assert [compiler.rpartition(".")[0] for compiler in audit["cuda"]["compilers"]] == [cuda]
        assert json.loads(wheel.with_name(f"{wheel.name}.build.json").read_text())["toolkit"].startswith(f"{cuda}.")


def test_coverage_of_the_new_index_is_complete(done: Done) -> None:
    found = done.world.sm120("matrix", "--here", "--published", "wheels", "--json").json()
    assert [one["state"] for one in found["expected"]] == ["published"] * 3
    assert (found["missing"], found["others"]) == ([], [])


@pytest.mark.parametrize(
    ("torch", "version"),
    [
        ("2.11.99", "1.0+cu130.torch211.sm120a"),
        ("2.14.99", "1.0+cu130.torch214.sm120a"),
        ("2.15.99", "1.0+cu132.torch215.sm120a"),
        ("2.12.0", None),
    ],
)
def test_pip_picks_the_wheel_for_the_torch_that_is_installed_or_refuses(
    done: Done, tmp_path: Path, torch: str, version: str | None
) -> None:
    python = tmp_path / "env/bin/python"
    argv: list[str | Path] = [uv.find_uv_bin(), "venv", "-q", "--no-config", "-p", sys.executable, tmp_path / "env"]
    subprocess.run(argv, check=True)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    env |= {"PIP_CONFIG_FILE": os.devnull, "NO_COLOR": "1"}
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-cache-dir", "-q"]
    standing = done.torches / f"torch-{torch}-py3-none-any.whl"
    subprocess.run([*pip, "--no-index", "--no-deps", standing], check=True, env=env)
    with served(done.world.cwd / "wheels") as address:
        index = ["--index-url", f"{address}simple/", "--upgrade-strategy", "only-if-needed"]
        got = subprocess.run(
            [*pip, *index, f"torch=={torch}", "tiny"], env=env, capture_output=True, text=True, check=False
        )
    shown = subprocess.run([*pip[:-3], "list", "--format=json"], env=env, capture_output=True, text=True, check=True)
    installed = {one["name"]: one["version"] for one in json.loads(shown.stdout)}
    assert installed["torch"] == torch
    assert installed.get("tiny") == version
    if version is None:
        assert got.returncode != 0
        assert "ResolutionImpossible" in got.stderr
    else:
        assert got.returncode == 0, got.stderr
