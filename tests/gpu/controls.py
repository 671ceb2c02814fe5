"""Compares the record of a smoke test of the negative controls with what must become of each of them.

``python tests/gpu/controls.py RECORD [--sanitizer]`` prints every control with its outcome; exit code 1 where one has
another outcome than ``controls.toml`` says. Launches nothing itself.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_EXPECTED = Path(__file__).with_name("controls.toml")
_SHORT = re.compile(r"^it needs 2 GPUs, this run has 1$")
_HANG_NEEDS = ("stage", "step", "stacks")


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What must become of one control."""

    state: str
    why: str = ""
    """A regular expression that the reason must match."""
    stage: str = ""
    """The stage that must have failed; empty where the process was lost."""
    stacks: str = ""
    """A regular expression for the stacks of a hang; empty where no hang is expected."""
    last_kernel: str = ""
    """A regular expression for the last kernel that was launched before a hang."""


def expectations(*, sanitizer: bool = False) -> dict[str, Expected]:
    """By the control's name; what is not there must pass."""
    data: dict[str, dict[str, dict[str, str]]] = tomllib.loads(_EXPECTED.read_text(encoding="utf-8"))
    found = {name: Expected(state="failed", **fields) for name, fields in data["failed"].items()}
    found |= {name: Expected(state="not run", **fields) for name, fields in data["not_run"].items()}
    if sanitizer:
        found |= {name: Expected(state="failed", **fields) for name, fields in data["sanitizer"].items()}
    return found


def control_of(case: str) -> str:
    """``returns_zeros`` of ``…::test_control[returns_zeros]``, ``never_returns`` of ``…::test_never_returns``."""
    function = case.rpartition("::")[2]
    _, bracket, rest = function.partition("[")
    return rest.removesuffix("]") if bracket else function.removeprefix("test_")


def problem(case: Mapping[str, Any], expected: Expected | None) -> str:
    """How a case differs from what must become of it; empty where it does not."""
    state, why = case["state"], str(case.get("why", ""))
    if expected is None:
        return "" if state == "passed" else f"must pass, and is {state}: {why}"
    if state != expected.state:
        return f"must be {expected.state}, and is {state}: {why}"
    if not re.search(expected.why, why):
        return f"{state} for another reason than {expected.why!r}: {why}"
    failed = [stage["name"] for stage in case["stages"] if stage["state"] == "failed"]
    if expected.stage and failed != [expected.stage]:
        return f"failed at {', '.join(failed) or 'no stage'}, and must at {expected.stage}"
    if expected.stacks:
        hang = case.get("hang") or {}
        if missing := [name for name in _HANG_NEEDS if not hang.get(name)]:
            return f"the record of the hang lacks {', '.join(missing)}"
        if not re.search(expected.stacks, hang["stacks"]):
            return f"its stacks have no {expected.stacks!r}"
        if not re.search(expected.last_kernel, str(hang.get("last_kernel", "not known"))):
            return f"its last kernel is no {expected.last_kernel!r}: {hang.get('last_kernel', 'not known')}"
    return ""


def problems(record: Mapping[str, Any], expected: Mapping[str, Expected], *, whole: bool) -> list[str]:
    """Everything that differs in a record. ``whole``: every control that is expected must be in it."""
    cases = {control_of(case["name"]): case for case in record["cases"]}
    found = [f"{name}: {text}" for name, case in cases.items() if (text := problem(case, expected.get(name)))]
    if not cases:
        found.append("the record holds no case")
    if whole:
        found += [f"{name}: it is not in the record" for name in expected if name not in cases]
    return found


def for_one_gpu(expected: Mapping[str, Expected], record: Mapping[str, Any]) -> dict[str, Expected]:
    """What must become of the controls where the run had one GPU: those for two are not run, and say so."""
    short = {control_of(case["name"]) for case in record["cases"] if _SHORT.search(str(case.get("why", "")))}
    return {**expected, **dict.fromkeys(short, Expected(state="not run", why=_SHORT.pattern))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("record", type=Path)
    parser.add_argument("--sanitizer", action="store_true", help="the record is of a run under memcheck")
    given = parser.parse_args()
    record = json.loads(given.record.read_text(encoding="utf-8"))
    whole = expectations(sanitizer=given.sanitizer)
    expected = for_one_gpu(whole, record)
    for case in record["cases"]:
        name = control_of(case["name"])
        text = problem(case, expected.get(name))
        print(f"{'as it must' if not text else 'WRONG     '}  {name}: {case['state']}  {case.get('why', '')[:160]}")
    found = problems(record, expected, whole=False)
    print("\n".join(["", *found]) if found else f"\nall {len(record['cases'])} are as they must be")
    if alone := sum(expected[name].why == _SHORT.pattern for name in expected):
        print(f"{alone} of them need two GPUs and were not run")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
