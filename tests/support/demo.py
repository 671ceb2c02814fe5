"""A scikit-build-core package of two C++ files, without CUDA and torch: the least that the backend can build."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

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
