"""A scikit-build-core package of two C++ files, without CUDA and torch: the least that the backend can build."""

from __future__ import annotations

import base64
import hashlib
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

from tests.support.world import ROOT, World, git_source, recipe_toml

#: Of the wheel that stands for torch.
TORCH = "2.11.99"

DEMO = {
    "pyproject.toml": """\
[build-system]
requires = ["scikit-build-core"]
build-backend = "scikit_build_core.build"

[project]
name = "demo"
version = "1.0"

[tool.scikit-build]
wheel.packages = ["python/demo"]
""",
    "python/demo/__init__.py": "import ctypes, pathlib\n"
    'library = ctypes.CDLL(str(pathlib.Path(__file__).with_name("libdemo.so")))\n',
    "CMakeLists.txt": """\
cmake_minimum_required(VERSION 3.26)
project(demo LANGUAGES CXX)
set(DEMO_ARCHS "none" CACHE STRING "")
add_library(demo SHARED a.cc b.cc)
install(TARGETS demo LIBRARY DESTINATION demo)
file(WRITE "${CMAKE_BINARY_DIR}/archs.txt" "${DEMO_ARCHS} $ENV{DEMO_ENVIRONMENT}\\n")
install(FILES "${CMAKE_BINARY_DIR}/archs.txt" DESTINATION demo)
""",
    "a.cc": '#ifdef BREAK_IT\n#error flags of the shell came through\n#endif\nextern "C" int a() { return 1; }\n',
    "b.cc": 'extern "C" int b() { return 2; }\n',
}


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def torch_stand_in(folder: Path) -> Path:
    """Write a wheel called torch, always of the same bytes, into the folder."""
    info = f"torch-{TORCH}.dist-info"
    members = {
        "torch/__init__.py": b"",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: torch\nVersion: {TORCH}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for name, data in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(data)}\n"
    members[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    with zipfile.ZipFile(folder / f"torch-{TORCH}-py3-none-any.whl", "w") as bundle:
        for name, data in members.items():
            bundle.writestr(zipfile.ZipInfo(name), data)
    return folder


def prepare(world: World, stand_in: Path, files: dict[str, str] | None = None) -> str:
    """The demo package as upstream, and its recipe. Gives the commit."""
    commit = world.upstream.commit(world.upstream.work_tree("up", "demo"), {**DEMO, **(files or {})})
    python = f"3.{sys.version_info.minor}"
    world.recipe(
        "demo",
        recipe_toml(
            sources=git_source(commit),
            pairings=f'{{ cuda = "13.0", torch = "{TORCH}", python = ["{python}"] }}',
            extra='[versions."1.0".defines]\nDEMO_ARCHS = "{archs}"\n'
            '[versions."1.0".environment]\nDEMO_ENVIRONMENT = "recipe"\n',
        ),
    )
    # a.cc first, so that a test may hold b.cc back also where memory is left for one compile alone
    world.profile("demo", "1.0-sm120a.csv", "demo/a.cc,60,2\ndemo/b.cc,60,1\n")
    real = (ROOT / "recipes/locks/torch-2.11.0.txt").read_text()
    extensions = "typing-extensions==" + real.split("typing-extensions==", 1)[1].split("\n\n")[0]
    kept = [line for line in extensions.splitlines() if "#" not in line]
    last = max(n for n, line in enumerate(kept) if "--hash" in line)
    wheel = stand_in / f"torch-{TORCH}-py3-none-any.whl"
    lines = [f"torch=={TORCH} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}"]
    (world.locks() / f"torch-{TORCH}.txt").write_text(
        "\n".join([*lines, kept[0], *(x for x in kept[1 : last + 1] if "--hash" in x)]).rstrip("\\ ") + "\n"
    )
    return commit


def arguments(world: World, *more: str) -> list[str]:
    return ["build", "demo", "--mirror", world.upstream.mirror, *more]
