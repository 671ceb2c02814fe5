"""What ninja repeats, and what becomes of a failure: real ninja, real c++."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sm120_wheels.compile.flashinfer.ninja import run_ninja
from sm120_wheels.errors import CompileError, CompilerKilledError, NoSpaceError

_RULES = "rule compile\n  command = c++ -c $in -o $out\nrule shell\n  command = $line\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "modules" / "norm").mkdir(parents=True)
    return tmp_path / "modules"


def build(folder: Path, statements: str) -> None:
    ninja_file = folder.parent / "modules.ninja"
    ninja_file.write_text(_RULES + statements)
    run_ninja(
        ninja_file=ninja_file,
        folder=folder,
        env=os.environ,
        jobs=1,
        log=folder.parent / "build.log",
    )


def test_what_is_finished_is_not_repeated(folder: Path) -> None:
    (folder / "a.cpp").write_text("int a;")
    (folder / "b.cpp").write_text("int b")
    statements = "build a.o: compile a.cpp\nbuild b.o: compile b.cpp\n"
    with pytest.raises(CompileError):
        build(folder, statements)
    (folder / "b.cpp").write_text("int b;")
    built = (folder / "a.o").stat().st_mtime_ns
    build(folder, statements)
    assert (folder / "a.o").stat().st_mtime_ns == built
    assert (folder / "b.o").is_file()


def test_a_compile_error_shows_the_command_and_its_first_errors_alone(folder: Path) -> None:
    (folder / "norm" / "norm.cpp").write_text("int f() { return undeclared_name; }\n" * 200)
    (folder / "fine.cpp").write_text("int a;")
    with pytest.raises(CompileError) as caught:
        build(folder, "build fine.o: compile fine.cpp\nbuild norm/norm.o: compile norm/norm.cpp\n")
    error = caught.value
    assert error.exit_code == 51
    assert error.what == "norm/norm.o does not compile"
    assert error.where == "c++ -c norm/norm.cpp -o norm/norm.o"
    assert "undeclared_name" in error.why
    assert len(error.why.splitlines()) <= 12
    assert str(folder.parent / "build.log") in error.hint
    assert (folder.parent / "build.log").read_text().count("undeclared_name") > 100


def test_a_killed_compiler_is_not_a_compile_error(folder: Path) -> None:
    with pytest.raises(CompilerKilledError) as caught:
        build(folder, "build norm/norm.o: shell\n  line = sh -c 'kill -9 $$$$'; exit $$?\n")
    assert caught.value.exit_code == 52
    assert "a compiler was killed on norm/norm.o" in str(caught.value)
    assert "--memory" in caught.value.hint


def test_the_failure_of_an_earlier_run_is_not_taken_for_this_ones(folder: Path) -> None:
    (folder / "norm" / "norm.cpp").write_text("int first = mistaken;")
    statements = "build norm/norm.o: compile norm/norm.cpp\n"
    with pytest.raises(CompileError, match="norm"):
        build(folder, statements)
    (folder / "norm" / "norm.cpp").write_text("int second = wrong;")
    with pytest.raises(CompileError) as caught:
        build(folder, statements)
    assert "wrong" in caught.value.why
    assert "mistaken" not in caught.value.why


def test_nvccs_word_for_a_killed_part_is_understood(folder: Path) -> None:
    line = "nvcc error   : 'cicc' died due to signal 9 (Kill signal)"
    with pytest.raises(CompilerKilledError) as caught:
        build(folder, f'build norm/norm.o: shell\n  line = echo "{line}"; exit 9\n')
    assert line in caught.value.why


def test_a_full_disk_is_told_as_such(folder: Path) -> None:
    with pytest.raises(NoSpaceError) as caught:
        build(
            folder,
            "build norm/norm.o: shell\n"
            "  line = echo 'cc1plus: fatal error: /tmp/x.s: No space left on device'; exit 1\n",
        )
    assert caught.value.exit_code == 44
