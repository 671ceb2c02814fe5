"""``sm120 doctor``: what this machine can build, line by line, and the command that mends each failure."""

from __future__ import annotations

import json
from dataclasses import asdict

import click
from rich.text import Text

from sm120_wheels import paths
from sm120_wheels.cli.options import json_option
from sm120_wheels.console import out
from sm120_wheels.errors import ToolMissingError, UnknownCudaError, near_misses
from sm120_wheels.toolchain import doctor, probe
from sm120_wheels.toolchain.cuda import known_releases

_STYLES = {"passed": "green", "failed": "bold red", "not needed": "dim", "not run": "yellow"}


@click.command("doctor")
@click.option("--cuda", default="13.0", show_default=True, metavar="X.Y", help="The CUDA toolkit to build with.")
@json_option
def command(cuda: str, as_json: bool) -> int:
    """Tell what this machine can build; each line passed, failed, not needed or not run. Downloads nothing.

    Exit code 0 if nothing failed, else 40.
    """
    if cuda not in known_releases():
        raise UnknownCudaError(f"unknown CUDA version {cuda!r}", hint=near_misses(cuda, known_releases()))
    facts = probe.probe_machine(cuda=cuda, cache_root=paths.cache_root(), build_root=paths.build_root())
    checks = doctor.examine(facts, cuda=cuda)
    failures = doctor.failed(checks)
    if as_json:
        out.print_json(json.dumps({"cuda": cuda, "ok": not failures, "checks": [asdict(check) for check in checks]}))
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            out.print(_line(check, width))
        count = len(failures)
        out.print("Nothing failed." if not failures else f"{count} {'check' if count == 1 else 'checks'} failed.")
    return ToolMissingError.exit_code if failures else 0


def _line(check: doctor.Check, width: int) -> Text:
    line = Text(f"{check.state:<10}", style=_STYLES[check.state])
    line.append(f"  {check.name:<{width}}  {check.detail}", style="default")
    if check.mend:
        indent = "\n" + " " * (width + 14)
        line.append(f"{indent}do: " + check.mend.replace("\n", f"{indent}    "), style="bold")
    return line
