"""The suites for sgl-kernel, as pytest collects them where torch is not installed: nothing is launched here."""

from __future__ import annotations

import ast
import importlib
import json
import os
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import sm120_wheels.prove.smoke

PAYLOAD = Path(sm120_wheels.prove.smoke.__file__).parent / "payload"
SUITES = PAYLOAD / "sm120_smoke" / "suites" / "sgl_kernel"
MOST_PARAMETER_SETS = 800
"""Two minutes on one GPU are for all of them: a tenth of a second each, and the start."""

_COLLECT = """
import json, os, sys
sys.modules["torch"] = None  # importing it fails, installed or not
import pytest

class Plugin:
    def pytest_collection_finish(self, session):
        rows = []
        for item in session.items:
            mark = getattr(item.function, "__sm120_case__", None)
            rows.append({
                "id": item.nodeid,
                "operators": list(mark.operators) if mark else [],
                "deadline": mark.deadline if mark else 0,
                "limited": bool(mark and (mark.needs.capability or mark.needs.least_capability != (0, 0))),
                "why": mark.needs.why if mark else "",
                "parameters": repr(item.callspec.params) if hasattr(item, "callspec") else "{}",
                "returns": item.function.__annotations__.get("return", ""),
            })
        with open(sys.argv[1], "w") as out:
            json.dump(rows, out)

code = pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", sys.argv[2],
                    sys.argv[3]], plugins=[Plugin()])
sys.exit(int(code))
"""


@cache
def _collected() -> tuple[dict[str, Any], ...]:
    with TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.json"
        done = subprocess.run(
            [sys.executable, "-B", "-c", _COLLECT, str(rows), str(PAYLOAD), str(SUITES)],
            env={**os.environ, "PYTHONPATH": str(PAYLOAD), "PYTEST_ADDOPTS": "", "PYTEST_PLUGINS": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=400,  # a loaded machine
            check=False,
            cwd=PAYLOAD,
        )
        assert done.returncode == 0, done.stdout
        return tuple(json.loads(rows.read_text(encoding="utf-8")))


def test_every_suite_is_collected_without_torch() -> None:
    modules = {row["id"].partition("::")[0].rpartition("/")[2] for row in _collected()}
    assert modules == {path.name for path in SUITES.glob("test_*.py")}


def test_every_case_names_an_operator_and_returns_a_launch() -> None:
    for row in _collected():
        assert row["operators"], row["id"]
        assert all(name.startswith("sgl_kernel::") for name in row["operators"]), row["id"]
        assert row["returns"] == "Launch", row["id"]
        assert 0 < row["deadline"] <= 180, row["id"]


def test_a_case_for_some_capabilities_says_why() -> None:
    assert [row["id"] for row in _collected() if row["limited"] and not row["why"]] == []


def test_ids_are_unique_and_parameters_survive_the_way_to_the_worker() -> None:
    ids = Counter(row["id"] for row in _collected())
    assert [name for name, count in ids.items() if count > 1] == []
    for row in _collected():
        assert isinstance(ast.literal_eval(row["parameters"]), dict)


def test_there_are_not_too_many_parameter_sets() -> None:
    assert 300 <= len(_collected()) <= MOST_PARAMETER_SETS


def test_every_tolerance_says_where_it_comes_from() -> None:
    calls = 0
    for path in sorted(SUITES.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
            if name not in ("Tolerance", "rounding"):
                continue
            calls += 1
            assert isinstance(node, ast.Call)
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            source = given.get("source")
            assert source is not None, f"{path.name}:{node.lineno}"
            assert not (isinstance(source, ast.Constant) and len(str(source.value)) < 15), f"{path.name}:{node.lineno}"
            share = given.get("share")
            if isinstance(share, ast.Constant):
                assert float(str(share.value)) <= 0.02, f"{path.name}:{node.lineno}"
    assert calls > 20


def test_tolerances_follow_the_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PAYLOAD))
    tolerance = importlib.import_module("sm120_smoke.tolerance")
    half, brain = (tolerance.rounding(name, source="a test").relative for name in ("float16", "bfloat16"))
    assert brain == 8 * half == 2.0**-8
    plain = tolerance.product_sum("bfloat16", terms=512, scale=1.0)
    eight_bits = tolerance.product_sum_fp8("bfloat16", terms=512, scale=1.0)
    assert eight_bits.absolute == pytest.approx(plain.absolute + 16 * 2.0**-13 * 512**0.5)
