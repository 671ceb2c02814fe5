"""What failed first in a long log: texts as CMake, ninja, g++, nvcc and the linker really print them."""

from __future__ import annotations

import pytest

from sm120_wheels.compile.failure import as_error, first_failure
from sm120_wheels.errors import CompileError, CompilerKilledError, ConfigureError, NoSpaceError

PROGRESS = [f"[{n}/900] /usr/bin/c++ -O2 -c file{n}.cc\n" for n in range(1, 800)]
WARNINGS = [f"file.cc:{n}:1: warning: unused variable 'error_{n}' [-Wunused-variable]\n" for n in range(2000)]


def edge(*output: str, target: str = "CMakeFiles/x.dir/bad.cc.o", code: str = "") -> list[str]:
    return [
        *PROGRESS,
        f"[800/900] building\nFAILED: {code}{target} \n".split("\n")[1] + "\n",
        "/usr/bin/c++ -O2 -c bad.cc\n",
        *(f"{line}\n" for line in output),
        "[801/900] /usr/bin/c++ -O2 -c after.cc\n",
        "after.cc:1:1: error: this came later\n",
        "ninja: build stopped: subcommand failed.\n",
    ]


@pytest.mark.parametrize("code", ["", "[code=1] "])
def test_the_first_failing_command_is_shown_with_its_first_errors_only(code: str) -> None:
    output = [*(w.rstrip() for w in WARNINGS), "bad.cc:3:5: error: expected ';'", *["bad.cc:9:1: error: more"] * 3000]
    failure = first_failure(edge(*output, code=code))
    assert failure.target == "CMakeFiles/x.dir/bad.cc.o"
    assert failure.command == "/usr/bin/c++ -O2 -c bad.cc"
    assert failure.errors[0] == "bad.cc:3:5: error: expected ';'"
    error = as_error(failure, log="/l")
    assert isinstance(error, CompileError)
    assert len(str(error).splitlines()) < 20
    assert "came later" not in str(error)
    assert "/l" in error.hint


@pytest.mark.parametrize(
    "line",
    [
        "g++: fatal error: Killed signal terminated program cc1plus",
        "c++: internal compiler error: Killed (program cc1plus)",
        "nvcc error   : 'cicc' died due to signal 9 (Kill signal)",
        "Killed",
        "clang++: error: unable to execute command: Killed",
    ],
)
def test_a_killed_compiler_is_not_a_source_error(line: str) -> None:
    error = as_error(first_failure(edge(line, "compilation terminated.")), log="/l")
    assert isinstance(error, CompilerKilledError)
    assert "out-of-memory" in error.why
    assert "--memory" in error.hint


def test_an_error_in_the_source_counts_before_a_kill() -> None:
    failure = first_failure(edge("bad.cc:1:1: error: no", "g++: fatal error: Killed signal terminated program cc1plus"))
    assert failure.kind == "compile"


@pytest.mark.parametrize(
    "line",
    [
        "fatal error: error writing to /tmp/ccXYZ.s: No space left on device",
        "bad.cc: error: unable to open output file 'x.o': 'No space left on device'",
        "/usr/bin/ld: final link failed: No space left on device",
    ],
)
def test_a_full_disk_is_not_a_source_error(line: str) -> None:
    assert isinstance(as_error(first_failure(edge(line)), log="/l"), NoSpaceError)


@pytest.mark.parametrize(
    "line",
    [
        "bad.cc:(.text+0x5): undefined reference to `f()'",
        "/usr/bin/ld: cannot find -lnuma: No such file or directory",
        "ptxas fatal   : Value 'sm_999' is not defined for option 'gpu-name'",
        'bad.cu(7): error: identifier "x" is undefined',
        "bad.cc:1:10: fatal error: numa.h: No such file or directory",
    ],
)
def test_each_tools_own_way_to_say_error_is_known(line: str) -> None:
    failure = first_failure(edge("In file included from here:", "some context", line))
    assert failure.errors == (line,)


def test_a_failing_configure_is_told_with_cmakes_message() -> None:
    log = [
        "-- The CXX compiler identification is GNU 12.2.0\n",
        "CMake Error at CMakeLists.txt:7 (find_package):\n",
        '  Could not find a package configuration file provided by "NUMA"\n',
        "\n",
        "-- Configuring incomplete, errors occurred!\n",
    ]
    error = as_error(first_failure(log), log="/l")
    assert isinstance(error, ConfigureError)
    assert "CMakeLists.txt:7" in error.why
    assert "NUMA" in error.why
    assert "incomplete" not in error.why


@pytest.mark.parametrize("log", [[], ["\n"], ["hello\n"], ["FAILED: x\n"], ["FAILED: \n"]])
def test_a_log_that_says_nothing_still_gives_an_error_with_its_place(log: list[str]) -> None:
    error = as_error(first_failure(log), log="/l")
    assert isinstance(error, CompileError)
    assert "/l" in str(error)
