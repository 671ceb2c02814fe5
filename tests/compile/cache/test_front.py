"""What ccache is shown of a command line, and which preprocessor runs a compile of nvcc consists of."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm120_wheels.compile.cache import front
from sm120_wheels.compile.cache.ccache import make_programs
from tests.support.waiting import until

ROOTS = [("/home/me/build/src", ".sm120-roots/src"), ("/src", ".sm120-roots/other")]


@pytest.mark.parametrize(
    ("argument", "shown"),
    [
        ("/home/me/build/src/a.cu", ".sm120-roots/src/a.cu"),
        ("-I/home/me/build/src", "-I.sm120-roots/src"),
        ("-isystem/home/me/build/src/x", "-isystem.sm120-roots/src/x"),
        (
            '-Xcompiler=-ffile-prefix-map="/home/me/build/src"=src',
            '-Xcompiler=-ffile-prefix-map=".sm120-roots/src"=src',
        ),
        ("-ffile-prefix-map=/home/me/build/src=src", "-ffile-prefix-map=.sm120-roots/src=src"),
        ("-Xcompiler=-I/src/a,-I/home/me/build/src/b", "-Xcompiler=-I.sm120-roots/other/a,-I.sm120-roots/src/b"),
        ("/home/me/build/src2/a.cu", "/home/me/build/src2/a.cu"),
        ("/elsewhere/src/a.cu", "/elsewhere/src/a.cu"),
        ("-I/elsewhere/src", "-I/elsewhere/src"),
        ("/home/me/build/src/../other/a.h", "/home/me/build/src/../other/a.h"),
        ("-DNAME=value", "-DNAME=value"),
    ],
)
def test_folders_are_named_by_their_links(argument: str, shown: str) -> None:
    assert front.rewrite(argument, ROOTS) == shown


@given(st.text(alphabet='ab/.-=" ,srcI', max_size=30))
def test_what_names_no_folder_stays(argument: str) -> None:
    assert front.rewrite(argument, [("/not/there", "x")]) == argument


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A build folder with the settings that a build has."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SM120_CACHE_LINKS", str(tmp_path / ".sm120-roots"))
    monkeypatch.setenv("SM120_CACHE_ROOTS", f"{tmp_path}\tbuild\n/s\tsrc")
    monkeypatch.setenv("SM120_CACHE_NAMES", "names")
    monkeypatch.setenv("SM120_CACHE_LAUNCHER", "launch")
    monkeypatch.setenv("SM120_CACHE_CCACHE", "ccache")
    return tmp_path


def test_a_compile_goes_to_ccache_with_response_files_and_long_words_replaced(told: Path) -> None:
    (told / "flags.rsp").write_text('-I/s/include "-DTEXT=a b"')
    command = ["/x/nvcc", "--generate-dependencies-with-compile", "--options-file", "flags.rsp", "-c", "/s/a.cu"]
    assert front.front([*command, "-o", f"{told}/a.o"]) == (
        [
            "ccache",
            "/x/nvcc",
            "-MD",
            "-I.sm120-roots/src/include",
            "-DTEXT=a b",
            "-c",
            ".sm120-roots/src/a.cu",
            "-o",
            ".sm120-roots/build/a.o",
            "-DSM120_HEADER_NAMES=names",
        ]
    )


def test_the_maps_of_folders_have_one_order_wherever_the_folders_lie(
    told: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maps = [f"-ffile-prefix-map={told}=build", "-ffile-prefix-map=/s=src"]
    shown = []
    for order in (maps, maps[::-1]):
        monkeypatch.setenv("SM120_STABLE_HOST_FLAGS", "\n".join(order))
        shown.append(front.front(["g++", "-c", "/s/a.cpp", "-o", "a.o", *order]))
    assert shown[0] == shown[1]


@pytest.mark.parametrize(
    "command",
    [
        ["g++", "a.o", "-o", "a.so"],
        ["nvcc", "--version"],
        ["ptxas", "-c", "a.ptx", "-o", "a.cubin"],
        ["nvcc", "-c", "a.cu"],
        ["nvcc", "--options-file", "missing.rsp", "-c", "a.cu", "-o", "a.o"],
    ],
)
def test_anything_else_goes_to_the_launcher_unchanged(told: Path, command: list[str]) -> None:
    assert front.front(command) == ["launch", *command]


def test_from_a_folder_below_the_links_are_found_too(told: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (told / "modules").mkdir()
    monkeypatch.chdir(told / "modules")
    assert front.front(["g++", "-c", "/s/a.cpp", "-o", "a.o"])[3] == "../.sm120-roots/src/a.cpp"


DRYRUN = """#$ _SPACE_=
#$ gcc -D__CUDA_ARCH__=1200 -M -E -x c++ "a.cu" -o "a.d"
#$ gcc -D__CUDA_ARCH__=1200 -E -x c++ "-DTEXT=a b" "a.cu" -o "a.cpp1.ii"  > /tmp/out 2>/tmp/err
#$ gcc -D__CUDA_ARCH__=900 -E -x c++ "a.cu" -o "a.cpp2.ii"
#$ gcc -E -x c++ "a.cu" -o "a.cpp4.ii"
#$ cudafe++ --orig_src_file_name "a.cu"
#$ ptxas -arch=sm_120a "a.ptx" -o "a.cubin"
"""


def test_the_passes_of_nvcc_are_those_of_every_architecture_and_the_host() -> None:
    assert front.passes(DRYRUN) == [
        ["gcc", "-D__CUDA_ARCH__=1200", "-E", "-x", "c++", "-DTEXT=a b", "a.cu"],
        ["gcc", "-D__CUDA_ARCH__=900", "-E", "-x", "c++", "a.cu"],
        ["gcc", "-E", "-x", "c++", "a.cu"],
    ]


def test_an_nvcc_that_is_not_understood_is_compiled_without_the_cache(
    told: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    nvcc = told / "nvcc"
    nvcc.write_text("#!/bin/sh\necho '#$ something new' >&2\n")
    nvcc.chmod(0o755)
    assert front.preprocess([str(nvcc), "-c", "a.cu", "-E"]) == 1
    assert "the passes of nvcc were not understood" in capfd.readouterr().err


def test_no_more_preprocessors_run_at_a_time_than_there_are_turns(told: Path) -> None:
    log, turns = told / "log", [told / "turn-0", told / "turn-1"]
    compiler = told / "g++"
    compiler.write_text(f"#!/bin/sh\necho + >> {log}\nsleep 0.2\necho - >> {log}\necho text\n")
    compiler.chmod(0o755)
    environ = {**os.environ, "SM120_CACHE_TURNS": "\n".join(map(str, turns))}
    command = [str(make_programs() / "sm120-cc-cpp"), str(compiler), "-E", "a.cpp"]
    started = [subprocess.Popen(command, env=environ, stdout=subprocess.PIPE) for _ in range(6)]
    assert [process.communicate()[0] for process in started] == [b"text\n"] * 6
    running = most = 0
    for line in log.read_text().split():
        running += 1 if line == "+" else -1
        most = max(most, running)
    assert most == 2


def test_a_killed_preprocessor_gives_its_turn_back(told: Path) -> None:
    compiler = told / "g++"
    compiler.write_text("#!/bin/sh\ncase $2 in hangs.cpp) echo begun; exec sleep 1000;; esac\necho text\n")
    compiler.chmod(0o755)
    environ = {**os.environ, "SM120_CACHE_TURNS": str(told / "turn-0")}
    command = [str(make_programs() / "sm120-cc-cpp"), str(compiler), "-E"]
    with subprocess.Popen([*command, "hangs.cpp"], env=environ, stdout=subprocess.PIPE, start_new_session=True) as hung:
        until(lambda: _is_held(told / "turn-0"), what="the turn is taken")
        os.killpg(hung.pid, signal.SIGKILL)
    assert (
        subprocess.run([*command, "a.cpp"], env=environ, stdout=subprocess.PIPE, timeout=60, check=True).stdout
        == b"text\n"
    )


def _is_held(file: Path) -> bool:
    with file.open("ab") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
