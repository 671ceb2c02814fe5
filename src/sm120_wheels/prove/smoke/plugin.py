"""The pytest plugin: collects the cases, hands each to the engine, and gives pytest real reports of them.

So ``-k``, ``--lf``, JUnit and editors work, and no case is ever called in this process.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pytest import TestReport

from sm120_wheels.prove.smoke.model import CaseResult, CaseSpec
from sm120_wheels.prove.smoke.packages import PAYLOAD, SUITES

_ATTRIBUTE = "__sm120_case__"  # sm120_smoke.case.ATTRIBUTE

RunCase = Callable[[CaseSpec], CaseResult]
Seen = Callable[[CaseResult], None]


class SmokePlugin:
    """One run of pytest over suites."""

    def __init__(self, run_case: RunCase, seen: Seen, begin: Callable[[int], None], *, list_only: bool = False) -> None:
        self._run_case, self._seen, self._begin, self._list_only = run_case, seen, begin, list_only
        self.specs: list[CaseSpec] = []
        """What was selected, in order."""
        self.collected = 0
        """How many there are, selected or not."""
        self.problems: list[str] = []
        """Modules that cannot be collected, and functions that are no cases."""
        self._by_node: dict[str, CaseSpec] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        # The progress is ours; the plugin must load all the same, since others take options from it.
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            config.pluginmanager.unregister(reporter)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.problems.append(f"{report.nodeid}: {report.longreprtext.strip().splitlines()[-1]}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.collected = len(items)
        for item in items:
            try:
                self._by_node[item.nodeid] = spec_of(item)
            except ValueError as exc:
                self.problems.append(f"{item.nodeid}: {exc}")
        # Cases of several GPUs last: the single worker is taken away for them.
        items.sort(key=lambda item: self._by_node[item.nodeid].gpus if item.nodeid in self._by_node else 1)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.specs = [self._by_node[item.nodeid] for item in session.items if item.nodeid in self._by_node]

    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        # An incomplete collection must not become a result.
        if self._list_only or self.problems:
            return True
        self._begin(len(self.specs))
        return None

    def pytest_runtest_protocol(self, item: pytest.Item) -> bool:
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        began = time.time()
        result = self._run_case(self._by_node[item.nodeid])
        for report in reports(item, result, began):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        self._seen(result)
        return True


def spec_of(item: pytest.Item) -> CaseSpec:
    """The case behind a collected function. Raises ValueError where it is none."""
    function: Any = getattr(item, "function", None)
    marked = getattr(function, _ATTRIBUTE, None)
    if marked is None:
        raise ValueError("it is no case: put @case(...) over it")
    callspec = getattr(item, "callspec", None)
    parameters: dict[str, Any] = dict(callspec.params) if callspec is not None else {}
    for name, value in parameters.items():
        if not _is_literal(value):
            raise ValueError(f"the parameter {name} = {value!r} is no literal (text, number, bool, None or several)")
    inside = item.path.is_relative_to(PAYLOAD)
    module = ".".join(item.path.relative_to(PAYLOAD).with_suffix("").parts) if inside else item.path.stem
    suite = item.path.relative_to(SUITES).parts[0] if item.path.is_relative_to(SUITES) else item.path.parent.name
    return CaseSpec(
        node=item.nodeid,
        suite=suite,
        module=module,
        file="" if inside else str(item.path),
        function=str(function.__name__),
        parameters=parameters,
        operators=tuple(dict.fromkeys(n.format(**parameters) if "{" in n else n for n in marked.operators)),
        deadline=float(marked.deadline),
        gpus=marked.needs.gpus,
        memory=marked.needs.memory,
        capabilities=tuple(marked.needs.capability),
        least_capability=marked.needs.least_capability,
        needs_why=marked.needs.why,
    )


def _is_literal(value: Any) -> bool:
    try:
        back = ast.literal_eval(repr(value))
    except (ValueError, SyntaxError):
        return False
    return type(back) is type(value) and back == value


def reports(item: pytest.Item, result: CaseResult, began: float) -> list[TestReport]:
    """What pytest would have made of it: setup, call, teardown."""
    outcomes: dict[str, Any] = {"passed": "passed", "failed": "failed", "not run": "skipped"}
    longrepr: Any = None
    if result.state == "failed":
        longrepr = failure_text(result)
    elif result.state == "not run":
        longrepr = (str(item.path), item.location[1] or 0, f"not run: {result.why}")
    sections = [(f"Captured stage {s.name}", f"{s.state} in {s.seconds:.3f} s {s.why}".strip()) for s in result.stages]
    if result.output:
        sections.append(("Captured stdout call", result.output))
    properties = [(f"stage {s.name}", s.state) for s in result.stages]
    common: dict[str, Any] = {
        "nodeid": item.nodeid,
        "location": item.location,
        "keywords": dict.fromkeys(item.keywords, 1),
        "user_properties": properties,
    }
    empty: dict[str, Any] = {**common, "outcome": "passed", "longrepr": None, "sections": (), "duration": 0.0}
    return [
        TestReport(**empty, when="setup", start=began, stop=began),
        TestReport(
            **common,
            outcome=outcomes[result.state],
            longrepr=longrepr,
            sections=sections,
            when="call",
            duration=result.seconds,
            start=began,
            stop=began + result.seconds,
        ),
        TestReport(**empty, when="teardown", start=began + result.seconds, stop=began + result.seconds),
    ]


def failure_text(result: CaseResult) -> str:
    """Everything that is known of a failure."""
    parts = [result.why]
    if result.hang is not None:
        parts += ["", "stacks when it was stopped:", result.hang.stacks, "", "GPU:", result.hang.gpu]
        parts += ["", "launched last, when it was repeated:", *result.hang.launches] if result.hang.launches else []
    if result.output:
        parts += ["", "the last of its output:", result.output]
    return "\n".join(parts)


def pytest_arguments(
    paths: list[Path], *, keyword: str, last_failed: bool, cache: Path, junit: Path | None, root: Path
) -> list[str]:
    """The command line of the inner pytest. ``root`` is a folder of ours: no configuration of the caller's leaks in."""
    configuration = root / "empty.ini"
    configuration.parent.mkdir(parents=True, exist_ok=True)
    configuration.write_text("[pytest]\n", encoding="utf-8")
    arguments = [
        "-c",
        str(configuration),
        "--rootdir",
        str(PAYLOAD),
        "--import-mode=importlib",
        "--capture=no",
        "--noconftest",
    ]
    arguments += ["-o", f"cache_dir={cache}", "-p", "no:logging", "-p", "no:faulthandler", "-p", "no:stepwise"]
    arguments += ["-o", "junit_logging=all", "-o", "junit_suite_name=sm120 smoke"] if junit else []
    arguments += [f"--junitxml={junit}"] if junit else []
    arguments += ["-k", keyword] if keyword else []
    arguments += ["--lf", "--lfnf=none"] if last_failed else []
    return [*arguments, *(str(path) for path in paths)]
