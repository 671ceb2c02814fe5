"""What is said of the limited API is what abi3audit says."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sm120_wheels.wheel.library import read_library
from sm120_wheels.wheel.tags import abi3_problems

MODULE = """
#include <Python.h>
%s
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_x", "", -1, 0, 0, 0, 0, 0};
PyMODINIT_FUNC PyInit__x(void) { %s; return PyModule_Create(&module); }
"""
WEAK = "__attribute__((weak)) void "
EXTENSIONS = {
    "nothing beyond it": MODULE % ("", ""),
    "newer": MODULE % ("", "PyType_GetName(0); PyType_GetQualName(0)"),
    "outside": MODULE % ("", 'PyCode_NewEmpty("", "", 1)'),
    "outside and newer": MODULE % ("", "_PyObject_GC_New(0); PyType_GetName(0)"),
    "outside, weak": MODULE % ("extern " + WEAK + "PyNobodys_Function(void);", "PyNobodys_Function()"),
    "inlined": MODULE % (WEAK + '__attribute__((visibility("hidden"))) PyInlined_(void) {}', "PyInlined_()"),
    "inlined, local": MODULE % ("static __attribute__((noinline)) void PyLocal_(void) { abort(); }", "PyLocal_()"),
    "data": MODULE % ("", "Py_INCREF(&PyFunction_Type)"),
}


@pytest.mark.parametrize("strip", [(), ("--strip-all",)], ids=["whole", "stripped"])
def test_the_verdict_on_each_extension_is_abi3audits(
    tmp_path: Path, compile_library: Callable[..., bytes], strip: tuple[str, ...]
) -> None:
    paths = [tmp_path / f"{number}.abi3.so" for number in range(len(EXTENSIONS))]
    for path, source in zip(paths, EXTENSIONS.values(), strict=True):
        path.write_bytes(compile_library(source, strip=strip))
    report = tmp_path / "report.json"
    command: list[str | Path] = [sys.executable, "-m", "abi3audit", "--report", "--output", report]
    command += ["--assume-minimum-abi3", "3.10"]
    subprocess.run([*command, *paths], check=False, capture_output=True)
    said = json.loads(report.read_text())["specs"]
    for name, path in zip(EXTENSIONS, paths, strict=True):
        result = said[str(path)]["object"]["result"]
        library = read_library(path)
        assert library is not None
        problems = abi3_problems([library], baseline=(3, 10))
        wanted = {*result["non_abi3_symbols"]} or {*result["future_abi3_objects"]}
        assert bool(problems) == bool(wanted), name
        assert all(symbol in problem.why for symbol in wanted for problem in problems), name
    assert sum(bool(s["object"]["result"]["non_abi3_symbols"]) for s in said.values()) >= 3
