"""``sm120 equivalence``: is the machine code of two builds the same, kernel by kernel? Needs no GPU."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import click
from rich.markup import escape

from sm120_wheels import console
from sm120_wheels.arch import Arch
from sm120_wheels.errors import EquivalenceFailedError, WheelInvalidError
from sm120_wheels.prove import inputs
from sm120_wheels.prove.equivalence import STATUSES, Comparison, Pair, compare, show
from sm120_wheels.prove.names import brief
from sm120_wheels.prove.prints import Print

_COLOURS = {
    "identical": "green",
    "relocated": "green",
    "different": "red",
    "only ours": "yellow",
    "missing": "red",
}
_NAMED = 20


@click.command("equivalence")
@click.argument("ours")
@click.argument("reference")
@click.option("--arch", required=True, metavar="ARCH", help="Architecture to compare, e.g. sm_120a.")
@click.option(
    "--reference-arch", metavar="ARCH", help="The reference's architecture, where it is another (120a against 120f)."
)
@click.option(
    "--library",
    "libraries",
    multiple=True,
    metavar="PATTERN",
    help="Compare only with these libraries of the reference. Repeatable.",
)
@click.option(
    "--allow-missing",
    multiple=True,
    metavar="PATTERN",
    help="Kernels or libraries that OURS may lack; '*' for all. Repeatable.",
)
@click.option(
    "--show", "shown", metavar="KERNEL", help="Also print the difference in SASS of kernels whose name contains this."
)
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
def command(
    ours: str,
    reference: str,
    arch: str,
    reference_arch: str | None,
    libraries: tuple[str, ...],
    allow_missing: tuple[str, ...],
    shown: str | None,
    as_json: bool,
) -> None:
    """Compare the machine code of OURS with that of REFERENCE, kernel by kernel.

    Both are wheels, folders, libraries, object files, cubins or fat binaries. Exit code 0 where every kernel of the
    reference is in OURS with the same code (kernels that --allow-missing names aside), 62 otherwise.
    """
    target = Arch.parse(arch)
    left, right = inputs.subject(ours), inputs.subject(reference)
    result = compare(
        left,
        right,
        target,
        reference_arch=Arch.parse(reference_arch) if reference_arch else None,
        libraries=libraries,
        allow_missing=allow_missing,
    )
    if as_json:
        click.echo(json.dumps(to_json(result), indent=2))
    else:
        _print(result)
    if shown:
        lines = show(result, shown, left, right)
        if not lines:
            raise WheelInvalidError(
                f"no kernel for {target.sm} has {shown!r} in its name", where=f"{ours}, {reference}"
            )
        click.echo("\n".join(lines), err=as_json)
    _check(result, Path(ours).name, Path(reference).name)


def _check(result: Comparison, ours: str, reference: str) -> None:
    if result.holds:
        return
    sides = ((ours, result.arch, result.archs[0]), (reference, result.reference_arch, result.archs[1]))
    for side, wanted, archs in sides:
        if wanted.sm not in archs:
            raise EquivalenceFailedError(
                f"{side} has no machine code for {wanted.sm}", why=f"it has {', '.join(archs) or 'none'}"
            )
    different = result.count("different")
    missing = sum(p.status == "missing" and not p.allowed for p in result.pairs)
    raise EquivalenceFailedError(
        f"the machine code of {ours} is not that of {reference}",
        why=f"{different} kernels differ, {missing} are missing"
        if different or missing
        else "no kernel of one has the name of a kernel of the other",
        hint="--show NAME prints the difference in SASS; --allow-missing PATTERN names what was left out on purpose",
    )


def to_json(result: Comparison) -> dict[str, Any]:
    """The comparison as JSON values."""
    return {
        "ours": result.ours,
        "reference": result.reference,
        "arch": result.arch.sm,
        "reference_arch": result.reference_arch.sm,
        "equivalent": result.holds,
        "counts": {status: result.count(status) for status in STATUSES},
        "compilers": {"ours": list(result.compilers[0]), "reference": list(result.compilers[1])},
        "skipped": [{"library": name, "why": why} for name, why in result.skipped],
        "kernels": [_pair_json(p) for p in result.pairs],
    }


def _pair_json(pair: Pair) -> dict[str, Any]:
    return {
        "name": pair.name,
        "status": pair.status,
        "why": list(pair.why),
        "allowed": pair.allowed,
        "ours": _side_json(pair.ours),
        "reference": _side_json(pair.reference),
    }


def _side_json(side: Print | None) -> dict[str, Any] | None:
    if side is None:
        return None
    return {
        "library": side.library,
        "unit": side.unit,
        "bytes": side.bytes,
        "instructions": side.instructions,
        "sha256": side.code,
        **dict(side.needs),
    }


def _print(result: Comparison) -> None:
    out = console.out
    out.print(f"[bold]{result.arch.sm}[/]: {escape(result.ours)}")
    out.print(f"  against {result.reference_arch.sm}: {escape(result.reference)}")
    for name, why in result.skipped:
        out.print(f"  [dim]left out: {escape(name)} ({escape(why)})[/]")
    if result.compilers[0] != result.compilers[1]:
        out.print(f"  [yellow]compilers: {', '.join(result.compilers[0])} against {', '.join(result.compilers[1])}[/]")
    for status in STATUSES:
        pairs = [p for p in result.pairs if p.status == status]
        if not pairs:
            continue
        allowed = sum(p.allowed for p in pairs)
        note = f" ({allowed} of them allowed)" if allowed else ""
        out.print(f"  [{_COLOURS[status]}]{len(pairs):6} {status}[/]{note}")
        if status == "identical":
            continue
        lines = Counter((brief(p.name), ", ".join(p.why)) for p in pairs if not p.allowed)
        for (name, why), count in list(lines.items())[:_NAMED]:
            times = f" ×{count}" if count > 1 else ""
            out.print(f"           {escape(name)}{times}{': ' + escape(why) if why else ''}")
        if len(lines) > _NAMED:
            out.print(f"           and {len(lines) - _NAMED} more names; --json lists all")
