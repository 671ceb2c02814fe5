"""``python -m sm120_selftest``: runs every kernel against its reference and prints a table.

Exit code 0: all passed, but for what this target does not have; 1: something failed; 3: nothing ran, because there is
no GPU or none that this wheel has machine code for.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

import torch

from . import build_info
from .cases import all_cases
from .report import EXIT_NOTHING_RUN, CaseReport, Gpu, document, exit_code, table, why_nothing_runs
from .run import current_gpu, not_run, run_cases


def main(arguments: Sequence[str] | None = None) -> int:
    cases = all_cases()
    parser = argparse.ArgumentParser(prog="python -m sm120_selftest", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the result as JSON instead of a table")
    parser.add_argument(
        "--case",
        action="append",
        choices=[case.name for case in cases],
        metavar="NAME",
        help="only this one; repeatable",
    )
    options = parser.parse_args(arguments)
    chosen = [case for case in cases if not options.case or case.name in options.case]

    build, gpu = build_info(), current_gpu()
    refused = why_nothing_runs(build["archs"], gpu)
    reports = not_run(chosen, refused) if refused else list(run_cases(chosen))
    if options.json:
        versions = {"torch": torch.__version__, "cuda": str(torch.version.cuda)}
        print(json.dumps(document(reports, build=build, gpu=gpu, versions=versions), indent=2))
    else:
        _print_table(reports, archs=build["archs"], gpu=gpu, refused=refused)
    return EXIT_NOTHING_RUN if refused else exit_code(reports)


def _print_table(reports: Sequence[CaseReport], *, archs: Sequence[str], gpu: Gpu | None, refused: str) -> None:
    where = "no CUDA GPU" if gpu is None else f"{gpu.name} ({gpu.capability[0]}.{gpu.capability[1]})"
    print(f"sm120-selftest for {', '.join(archs)} on {where}, torch {torch.__version__}\n")
    print(table(reports))
    if refused:
        print(f"nothing was launched: {refused}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
