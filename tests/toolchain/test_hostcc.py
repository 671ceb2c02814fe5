"""Host compilers: limits are read from the toolkit's header, and a compiler beyond them is refused with the mend."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sm120_wheels.errors import HostCompilerError
from sm120_wheels.toolchain.hostcc import (
    CompilerLimits,
    find_host_compiler,
    parse_limits,
    probe_compiler,
    read_limits,
)

HEADER = """
#if __GNUC__ > 15
#error -- unsupported GNU version! gcc versions later than 15 are not supported! The nvcc flag
#endif
#error -- unsupported HOS clang version! The version must be must be less than 20 and greater than 3.2 .
#error -- unsupported clang version! clang version must be less than 21 and greater than 3.2 . The nvcc flag
"""
GXX = shutil.which("g++")


def test_limits_are_read_from_the_headers_messages() -> None:
    assert parse_limits(HEADER) == CompilerLimits(gcc=15, clang=20)


def test_a_header_without_messages_names_no_limit(tmp_path: Path) -> None:
    assert read_limits(tmp_path) == CompilerLimits(gcc=None, clang=None)


@pytest.mark.skipif(GXX is None, reason="no g++ here")
class TestRealCompiler:
    @property
    def path(self) -> Path:
        assert GXX is not None
        return Path(GXX)

    def test_its_kind_and_version_come_from_its_own_macros(self) -> None:
        compiler = probe_compiler(self.path, chosen_by="PATH")
        assert compiler is not None
        assert compiler.kind == "gcc"
        assert compiler.major >= 8

    def test_one_within_the_limits_is_found(self) -> None:
        found = find_host_compiler(None, limits=CompilerLimits(gcc=99, clang=99), nvcc_version="13.0.88")
        assert found.chosen_by == "PATH"

    def test_one_that_was_asked_for_and_is_too_new_is_refused(self) -> None:
        with pytest.raises(HostCompilerError) as caught:
            find_host_compiler(self.path, limits=CompilerLimits(gcc=5, clang=5), nvcc_version="13.0.88")
        text = str(caught.value)
        assert "is too new for nvcc 13.0.88" in text
        assert "--host-compiler" in caught.value.where
        assert "up to 5" in caught.value.why
        assert "g++-5" in caught.value.hint
        assert caught.value.exit_code == 41

    def test_the_environment_names_one_and_a_launcher_in_front_is_passed_over(self) -> None:
        environ = {"PATH": f"{self.path.parent}:/usr/bin:/bin", "CXX": f"env {self.path} -m64"}
        found = find_host_compiler(None, limits=CompilerLimits(gcc=99, clang=99), nvcc_version="13.0", environ=environ)
        assert (found.chosen_by, found.path) == ("CXX", self.path)

    def test_an_older_one_is_taken_when_the_default_is_too_new(self, tmp_path: Path) -> None:
        real = probe_compiler(self.path, chosen_by="PATH")
        assert real is not None
        new = real.major + 1
        (tmp_path / "g++").write_text(
            f'#!/bin/sh\n{self.path} "$@" | sed "s/^#define __GNUC__ .*/#define __GNUC__ {new}/"\n'
        )
        (tmp_path / f"g++-{real.major}").symlink_to(self.path)
        (tmp_path / "g++").chmod(0o755)
        (tmp_path / "c++").symlink_to("g++")
        found = find_host_compiler(
            None,
            limits=CompilerLimits(gcc=real.major, clang=None),
            nvcc_version="13.0",
            environ={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        )
        assert found.path == tmp_path / f"g++-{real.major}"


def test_no_compiler_at_all_says_how_to_install_one(tmp_path: Path) -> None:
    with pytest.raises(HostCompilerError, match="no C\\+\\+ compiler") as caught:
        find_host_compiler(
            None, limits=CompilerLimits(gcc=15, clang=20), nvcc_version="13.0", environ={"PATH": str(tmp_path)}
        )
    assert "apt-get install g++" in caught.value.hint


def test_an_asked_one_that_does_not_work_is_named_with_its_source() -> None:
    with pytest.raises(HostCompilerError, match="not a working") as caught:
        find_host_compiler(
            None, limits=CompilerLimits(gcc=15, clang=20), nvcc_version="13.0", environ={"CXX": "/bin/true"}
        )
    assert caught.value.where == "CXX"
