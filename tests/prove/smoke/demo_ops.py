"""A package of operators for the host backend: some right, some wrong in the ways that the harness must catch."""

from __future__ import annotations

import ctypes
import os
import subprocess
import time

from sm120_smoke import backend_host
from sm120_smoke.backend_host import operator


@operator("demo::double")
def double(values: list[float], out: list[float]) -> None:
    out[:] = [2 * v for v in values]


@operator("demo::double_of_nothing")
def double_of_nothing(values: list[float], out: list[float]) -> None:
    out[:] = [2 * v for v in values]


@operator("demo::refuses_nothing")
def refuses_nothing(values: list[float], out: list[float]) -> None:
    """As a launch of no block does."""
    if not values:
        raise RuntimeError("invalid configuration argument")
    out[:] = [2 * v for v in values]


@operator("demo::wrong")
def wrong(values: list[float], out: list[float]) -> None:
    out[:] = [2 * v for v in values]
    out[-1] += 0.5


@operator("demo::zeros")
def zeros(values: list[float], out: list[float]) -> None:
    out[:] = [0.0 for _ in values]


@operator("demo::lazy")
def lazy(values: list[float], out: list[float]) -> None:
    """Leaves the last element as it was."""
    out[:-1] = [2 * v for v in values[:-1]]


_kept: list[list[float]] = []


@operator("demo::once")
def once(values: list[float], out: list[float]) -> None:
    """Works eagerly, and keeps what it was captured with."""
    if backend_host.capturing:
        _kept[:] = [list(values)]
    out[:] = [2 * v for v in (_kept[0] if _kept else values)]


@operator("demo::sleeps")
def sleeps() -> None:
    time.sleep(3600)


@operator("demo::sleeps_in_c")
def sleeps_in_c() -> None:
    ctypes.CDLL(None).sleep(3600)


@operator("demo::aborts")
def aborts() -> None:
    os.abort()


@operator("demo::segfaults")
def segfaults() -> None:
    ctypes.string_at(0)


@operator("demo::compiles")
def compiles() -> None:
    subprocess.run(["nvcc", "-o", "x", "x.cu"], check=False)


@operator("demo::compiles_and_hides_it")
def compiles_and_hides_it() -> None:
    try:
        os.system("ninja -C build")
    except OSError:
        return


@operator("demo::untested")
def untested() -> None:
    return None


@operator("demo::never_mentioned")
def never_mentioned() -> None:
    return None
