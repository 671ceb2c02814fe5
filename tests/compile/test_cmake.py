"""scikit-build-core through the backend: real CMake, ninja and g++ from the locks, with a package of one C++ file."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from sm120_wheels.compile import cmake
from sm120_wheels.compile.isolation import no_network_prefix
from sm120_wheels.errors import CompileError, CompilerKilledError, ConfigureError
from sm120_wheels.paths import cache_root
from sm120_wheels.toolchain.locks import LockRequest, lock_path
from sm120_wheels.toolchain.pyenv import PythonEnvironment, ensure_environment
from tests.support.demo import DEMO, write

pytestmark = pytest.mark.network

#: The user's real cache, looked up before any test changes it: CMake and ninja are installed once.
_CACHE = cache_root()


@pytest.fixture(scope="session")
def real_cache() -> Path:
    return _CACHE


def tools(lock: str, cache: Path) -> PythonEnvironment:
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return ensure_environment(
        python, [LockRequest(path=lock_path(lock))], cache_root=cache, offline=False, need_headers=True
    )


@pytest.fixture(scope="session")
def cmake3(real_cache: Path) -> PythonEnvironment:
    return tools("build-cmake3", real_cache)


def request(
    environment: PythonEnvironment, folder: Path, files: dict[str, str], *, compiler: str = "g++", **defines: str
) -> cmake.CmakeBuild:
    write(folder / "project", files)
    found = shutil.which(compiler)
    assert found is not None
    return cmake.CmakeBuild(
        project=folder / "project",
        python=environment.python,
        bin=environment.bin,
        cuda_root=folder / "no-cuda",
        host_compiler=Path(found),
        torch_dir=folder / "no-torch",
        defines=defines,
        environment={"DEMO_ENVIRONMENT": "seen"},
        launcher=(),
        jobs=2,
        build_dir=folder / "build",
        out_dir=folder / "raw",
        log=folder / "build.log",
    )


def test_a_package_is_built_with_the_given_defines_and_environment(cmake3: PythonEnvironment, tmp_path: Path) -> None:
    asked = request(cmake3, tmp_path, DEMO, DEMO_ARCHS="120a;121a")
    wheel = cmake.build(asked)
    with zipfile.ZipFile(wheel) as bundle:
        assert bundle.read("demo/archs.txt") == b"120a;121a seen\n"
        assert any(name.endswith(".so") for name in bundle.namelist())


def test_flags_of_the_users_shell_do_not_reach_the_compile(
    cmake3: PythonEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "CXXFLAGS": "-DBREAK_IT",
        "CFLAGS": "-nonsense",
        "CMAKE_ARGS": "-DDEMO_ARCHS=shell",
        "SKBUILD_CMAKE_ARGS": "-DDEMO_ARCHS=shell",
        "CMAKE_GENERATOR": "Unix Makefiles",
        "LDFLAGS": "-nonsense",
    }.items():
        monkeypatch.setenv(name, value)
    with zipfile.ZipFile(cmake.build(request(cmake3, tmp_path, DEMO, DEMO_ARCHS="120a"))) as bundle:
        assert bundle.read("demo/archs.txt") == b"120a seen\n"


def test_configure_and_compile_have_no_network(cmake3: PythonEnvironment, tmp_path: Path) -> None:
    if not no_network_prefix():
        pytest.skip("not run: this machine forbids network namespaces")
    probe = 'execute_process(COMMAND cat /proc/net/dev OUTPUT_FILE "${CMAKE_SOURCE_DIR}/devices.txt")\n'
    files = {**DEMO, "CMakeLists.txt": DEMO["CMakeLists.txt"] + probe}
    asked = request(cmake3, tmp_path, files)
    cmake.build(asked)
    devices = [line.split(":")[0].strip() for line in (asked.project / "devices.txt").read_text().splitlines()[2:]]
    assert devices == ["lo"]


def test_a_fetchcontent_that_was_not_declared_fails_instead_of_downloading(
    cmake3: PythonEnvironment, tmp_path: Path
) -> None:
    more = (
        "include(FetchContent)\nFetchContent_Declare(other GIT_REPOSITORY https://example.org/a/b GIT_TAG main)\n"
        "FetchContent_MakeAvailable(other)\nadd_library(needed INTERFACE)\nif(NOT other_SOURCE_DIR)\nendif()\n"
        'if(NOT EXISTS "${other_SOURCE_DIR}/CMakeLists.txt")\nmessage(FATAL_ERROR "other was not provided")\nendif()\n'
    )
    with pytest.raises(ConfigureError) as caught:
        cmake.build(request(cmake3, tmp_path, {**DEMO, "CMakeLists.txt": DEMO["CMakeLists.txt"] + more}))
    assert "CMake Error" in caught.value.why


def test_a_configure_error_shows_cmakes_message(cmake3: PythonEnvironment, tmp_path: Path) -> None:
    text = DEMO["CMakeLists.txt"] + "find_package(NoSuchThing REQUIRED)\n"
    with pytest.raises(ConfigureError) as caught:
        cmake.build(request(cmake3, tmp_path, {**DEMO, "CMakeLists.txt": text}))
    assert "NoSuchThing" in caught.value.why
    assert str(tmp_path / "build.log") in caught.value.hint


def test_a_compile_error_shows_the_first_error_and_what_was_compiled_is_kept(
    cmake3: PythonEnvironment, tmp_path: Path
) -> None:
    broken = {**DEMO, "b.cc": 'extern "C" int b() { return undeclared; }\n' + "int x = also_undeclared;\n" * 200}
    asked = request(cmake3, tmp_path, broken)
    with pytest.raises(CompileError) as caught:
        cmake.build(asked)
    assert "b.cc" in caught.value.what
    first = caught.value.why.splitlines()[0]
    assert "b.cc:1:" in first
    assert "undeclared" in first
    assert len(str(caught.value).splitlines()) < 25
    good = next(asked.build_dir.rglob("a.cc.o"))
    compiled = good.stat().st_mtime_ns
    (asked.project / "b.cc").write_text(DEMO["b.cc"])
    cmake.build(asked)
    assert good.stat().st_mtime_ns == compiled, "a.cc is not compiled again"


def test_a_killed_compiler_is_told_apart_from_a_source_error(cmake3: PythonEnvironment, tmp_path: Path) -> None:
    """The compiler kills itself, as the kernel does under memory pressure."""
    wrapper = tmp_path / "g++"
    wrapper.write_text(
        '#!/bin/sh\ncase "$*" in *b.cc.o*) kill -KILL $$ ;; esac\nexec ' + str(shutil.which("g++")) + ' "$@"\n'
    )
    wrapper.chmod(0o755)
    asked = request(cmake3, tmp_path, DEMO, compiler=str(wrapper))
    with pytest.raises(CompilerKilledError) as caught:
        cmake.build(asked)
    assert "b.cc" in caught.value.what
    assert "out-of-memory" in caught.value.why


def test_a_vendored_cmake_minimum_below_3_5_works_with_cmake_3_and_breaks_under_4(
    cmake3: PythonEnvironment, real_cache: Path, tmp_path: Path
) -> None:
    files = {
        **DEMO,
        "CMakeLists.txt": DEMO["CMakeLists.txt"] + "add_subdirectory(vendored)\n",
        "vendored/CMakeLists.txt": "cmake_minimum_required(VERSION 3.1)\nproject(vendored CXX)\n",
    }
    cmake.build(request(cmake3, tmp_path / "3", files))
    with pytest.raises(ConfigureError) as caught:
        cmake.build(request(tools("build-cmake4", real_cache), tmp_path / "4", files))
    assert "Compatibility with CMake < 3.5 has been removed" in caught.value.why


def test_the_pinned_tools_are_those_that_run(cmake3: PythonEnvironment) -> None:
    said = subprocess.run([cmake3.bin / "cmake", "--version"], capture_output=True, text=True, check=True).stdout
    assert cmake3.packages["cmake"] in said
    assert cmake3.packages["cmake"].startswith("3.")
