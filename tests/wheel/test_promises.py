from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sm120_wheels.wheel.archive import open_wheel
from sm120_wheels.wheel.promises import BrokenPromise, broken_promises


def broken(path: Path, folder: Path) -> tuple[BrokenPromise, ...]:
    with open_wheel(path) as wheel:
        return broken_promises(wheel, folder)


def test_a_wheel_that_keeps_its_promises_breaks_none(tmp_path: Path, raw_wheel: Any, extension: bytes) -> None:
    wheel = raw_wheel(
        version="0.1+cu130.sm120a", tag="cp310-abi3-manylinux_2_17_x86_64", files={"tiny/_core.abi3.so": extension}
    )
    assert broken(wheel.write(tmp_path), tmp_path / "out") == ()


def test_a_wheel_without_libraries_breaks_none(tmp_path: Path, raw_wheel: Any) -> None:
    assert broken(raw_wheel(tag="py3-none-any").write(tmp_path), tmp_path / "out") == ()


def test_each_broken_promise_is_told_apart_and_names_its_library(
    tmp_path: Path, raw_wheel: Any, compile_library: Any, empty_library: Callable[[str], Path]
) -> None:
    stubs = empty_library("libcublas.so.12")
    cuda12 = compile_library("int f;\n", "-Wl,--no-as-needed", f"-L{stubs}", "-l:libcublas.so.12")
    newer = "#include <stdlib.h>\nunsigned dice(void) { return arc4random(); }\n"
    unstable = '#include <Python.h>\nvoid PyInit_ext(void) { PyCode_NewEmpty("", "", 1); }\n'
    files = {
        "tiny/cuda12.so": cuda12,
        "tiny/newer.so": compile_library(newer, strip=["--strip-all"]),
        "tiny/ext.abi3.so": compile_library(unstable),
        "tiny/paths.so": compile_library("int f;\n", "-Wl,-rpath,/home/me/build"),
    }
    tag = "cp310-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64"
    path = raw_wheel(version="0.1+cu130", tag=tag, files=files).write(tmp_path)
    found = {(p.kind, p.why.split()[0].rstrip(":")) for p in broken(path, tmp_path / "out")}
    assert found == {
        ("platform", "tiny/newer.so"),
        ("abi3", "tiny/ext.abi3.so"),
        ("cuda", "tiny/cuda12.so"),
        ("search path", "tiny/paths.so"),
    }


def test_machine_code_in_a_wheel_for_any_machine_is_a_broken_promise(
    tmp_path: Path, raw_wheel: Any, compile_library: Any
) -> None:
    path = raw_wheel(tag="py3-none-any", files={"tiny/a.so": compile_library("int f;\n")}).write(tmp_path)
    (promise,) = broken(path, tmp_path / "out")
    assert promise.kind == "platform"
    assert "tiny/a.so is machine code for x86_64" in promise.why
