"""Compiles by NVRTC are refused and counted while the door is closed, with the real library where there is one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sm120_wheels.paths import cache_root
from sm120_wheels.prove.smoke.packages import PAYLOAD

_PROGRAM = """
import ctypes, sys
sys.path.insert(0, sys.argv[1])
from sm120_smoke.nvrtc import Door

def compiled():
    program = ctypes.c_void_p()
    library.nvrtcCreateProgram(ctypes.byref(program), b"__global__ void f(int *x) { *x = 1; }", b"f.cu", 0, None, None)
    return library.nvrtcCompileProgram(program, 0, None)

door = Door()
if len(sys.argv) == 2:
    print(door.find())
    raise SystemExit
for path in sys.argv[3:]:
    ctypes.CDLL(path)  # it looks for its builtins by name
library = ctypes.CDLL(sys.argv[2])
why = door.find()
before = compiled()
door.close()
closed = compiled(), compiled()
door.open()
print(repr(why), before, closed, door.attempts, compiled())
"""


def _run(*arguments: str | Path) -> str:
    command = [sys.executable, "-c", _PROGRAM, str(PAYLOAD), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_process_without_nvrtc_is_told_apart() -> None:
    assert _run() == "its library was not found"


def test_a_closed_door_refuses_and_counts_and_an_open_one_compiles() -> None:
    places = [*cache_root().glob("cuda/*/lib"), *Path("/usr/local").glob("cuda*")]
    found = sorted(path for place in places for path in place.rglob("libnvrtc.so.*"))
    if not found:
        pytest.skip("not run: no libnvrtc here")
    builtins = sorted(found[0].parent.glob("libnvrtc-builtins.so.*"))[:1]
    assert _run(found[0], *builtins) == "'' 0 (11, 11) 2 0"
