"""Preparing for another build frontend. That such a build works is in test_build.py, with the real tools."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from sm120_wheels.build import BuildOptions
from sm120_wheels.errors import UnsupportedTargetError
from sm120_wheels.plan import BuildRequest
from sm120_wheels.prepare import cmake_cache, prepare


def test_a_recipe_of_more_than_one_build_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedTargetError, match="flashinfer cannot be prepared") as caught:
        prepare(BuildRequest(recipe="flashinfer"), tmp_path, BuildOptions())
    assert caught.value.hint == "sm120 build flashinfer"
    assert not list(tmp_path.iterdir())


def test_the_cache_survives_cmakes_own_reading(tmp_path: Path) -> None:
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("not run: cmake is not on PATH")
    values = {"ARCHS": "120a;121a", "ODD": 'a "b" ${HOME} \\ c'}
    (tmp_path / "cache.cmake").write_text(cmake_cache(values, {"RECIPE": "x;y"}))
    shown = "\n".join(f'file(APPEND "${{CMAKE_BINARY_DIR}}/out" "{name}=${{{name}}}\\n")' for name in values)
    lists = f"cmake_minimum_required(VERSION 3.20)\nproject(p NONE)\n{shown}\n"
    (tmp_path / "CMakeLists.txt").write_text(lists + 'file(APPEND "${CMAKE_BINARY_DIR}/out" "E=$ENV{RECIPE}\\n")\n')
    argv: list[str | Path] = [cmake, "-C", tmp_path / "cache.cmake", "-S", tmp_path, "-B", tmp_path / "b"]
    subprocess.run(argv, check=True, capture_output=True)
    told = (tmp_path / "b/out").read_text().splitlines()
    assert told == ["ARCHS=120a;121a", 'ODD=a "b" ${HOME} \\ c', "E=x;y"]
