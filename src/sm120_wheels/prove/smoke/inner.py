"""Runs pytest in this process over suites, so that nothing of the caller's pytest leaks in and nothing leaks out."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from sm120_wheels.errors import SettingError, SmokeNotRunError, ToolMissingError
from sm120_wheels.prove.smoke.model import CaseResult, CaseSpec
from sm120_wheels.prove.smoke.packages import PAYLOAD


def run(
    suites: list[Path],
    *,
    run_case: Callable[[CaseSpec], CaseResult],
    seen: Callable[[CaseResult], None],
    begin: Callable[[int], None],
    keyword: str,
    last_failed: bool,
    list_only: bool,
    junit: bool,
    scratch: Path,
    cache: Path,
) -> tuple[list[CaseSpec], str]:
    """Collect and run; what was selected, and JUnit XML where ``junit`` asks for it.

    Raises SettingError, SmokeNotRunError (none selected), KeyboardInterrupt.
    """
    try:
        import pytest

        from sm120_wheels.prove.smoke.plugin import SmokePlugin, pytest_arguments
    except ImportError as exc:
        raise ToolMissingError(
            "the smoke test needs pytest", why=str(exc), hint="pip install 'sm120-wheels[smoke]'"
        ) from exc
    plugin = SmokePlugin(run_case, seen, begin, list_only=list_only)
    aside = scratch / "junit.xml" if junit and not list_only else None
    arguments = pytest_arguments(
        suites, keyword=keyword, last_failed=last_failed, cache=cache, junit=aside, root=scratch / "pytest"
    )
    with _alone():
        code = pytest.main(arguments, plugins=[plugin])
    if plugin.problems:
        raise SettingError(
            "a suite cannot be collected",
            why="\n".join(plugin.problems[:10]),
            hint="mend it; a suite imports nothing at its top but pytest, the standard library and sm120_smoke",
        )
    if code == pytest.ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    if code == pytest.ExitCode.USAGE_ERROR or code == pytest.ExitCode.INTERNAL_ERROR:
        raise SettingError("pytest refused to run the suites", why=f"exit code {int(code)}; arguments: {arguments}")
    if not plugin.specs:
        what = f"-k {keyword!r}" if keyword else "--lf" if last_failed else "the suites"
        why = f"{plugin.collected} cases are there, {what} selects none" if plugin.collected else "no cases are there"
        raise SmokeNotRunError("nothing was run", why=why, hint="--list shows the cases")
    return plugin.specs, aside.read_text(encoding="utf-8") if aside is not None and aside.is_file() else ""


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Without plugins and options of the caller's environment, and without bytecode written beside the suites."""
    kept = {k: os.environ.pop(k) for k in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS") if k in os.environ}
    before = os.environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    sys.path.append(str(PAYLOAD))
    try:
        yield
    finally:
        sys.path.remove(str(PAYLOAD))
        sys.dont_write_bytecode = bytecode
        os.environ.pop("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
        os.environ.update(kept)
        if before is not None:
            os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = before
