"""Shows an audit: as JSON for programs and as tables for a terminal. The HTML page is :mod:`treemap`'s."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from sm120_wheels.files import human_bytes
from sm120_wheels.prove.audit import Audit, Library, Promises
from sm120_wheels.prove.images import Image
from sm120_wheels.prove.names import brief
from sm120_wheels.prove.verdict import Failure, LibraryVerdict, TrapFound, Verdict
from sm120_wheels.wheel.version import cuda_major

_ANSWERS = {
    "runs": "[green]runs[/]",
    "unread": "[yellow]not known: traps not looked for[/]",
    "part": "[yellow]runs in part[/]",
    "none": "[red]does not run[/]",
    "no-cuda": "[dim]no GPU code[/]",
}
#: Kernels or traps named in a table before "and n more"; the JSON and the page have them all.
_NAMED = 8


def to_json(audit: Audit, verdicts: Sequence[Verdict], failed: Sequence[Failure]) -> dict[str, Any]:
    """The audit as JSON values. Sizes are bytes; ``sass`` and ``ptx`` count each library by architecture."""
    return {
        "name": audit.name,
        "version": audit.version,
        "path": audit.path,
        "cuda_label": cuda_major(audit.version),
        "cuda": {"release": audit.cuda_release, "compilers": list(audit.compilers)},
        "tag_problem": audit.tag_problem,
        "promises": _promises_json(audit.promises),
        "libraries": [_library_json(lib) for lib in audit.libraries],
        "verdicts": {v.target: v.answer for v in verdicts},
        "targets": {v.target: _verdict_json(v) for v in verdicts},
        "failures": [{"what": f.what, "why": f.why} for f in failed],
    }


def _promises_json(promises: Promises) -> dict[str, Any]:
    return {
        "state": promises.state,
        "why": promises.why,
        "broken": [{"kind": p.kind, "promise": p.promise, "why": p.why} for p in promises.broken],
    }


def _promise_lines(promises: Promises) -> list[str]:
    if promises.state == "not run":
        return [f"promises of its name: not run ({escape(promises.why)})"]
    if promises.state == "passed":
        return ["promises of its name: [green]passed[/]"]
    return [
        "promises of its name: [yellow]failed[/]",
        *(f"  {p.kind}: promised {escape(p.promise)}, but {escape(p.why)}" for p in promises.broken),
    ]


def _library_json(lib: Library) -> dict[str, Any]:
    host = lib.host
    return {
        "path": lib.path,
        "kind": lib.kind,
        "bytes": lib.bytes,
        "packed_bytes": lib.packed_bytes,
        "sass": _by_target(i for i in lib.images if i.kind == "sass" and not i.linkable),
        "ptx": _by_target(i for i in lib.images if i.kind == "ptx" and not i.linkable),
        "for_linking": _by_target(i for i in lib.images if i.linkable),
        "compression": dict(sorted(Counter(i.compression for i in lib.images).items())),
        "compilers": sorted({i.compiler for i in lib.images if i.compiler}),
        "needed": list(host.needed) if host else [],
        "rpath": list(host.rpath) if host else [],
        "cuda_majors": list(host.cuda_majors) if host else [],
        "symbol_versions": host.versions if host else {},
        "torch": {
            "libraries": list(host.torch_libraries) if host else [],
            "cxx_symbols": host.torch_symbols if host else 0,
            "stable_symbols": host.torch_stable_symbols if host else 0,
            "cxx11_abi": host.cxx11_abi if host else None,
        },
    }


def _by_target(images: Iterable[Image]) -> dict[str, dict[str, int]]:
    totals: dict[str, dict[str, int]] = {}
    for image in images:
        entry = totals.setdefault(image.target, {"kernels": 0, "bytes": 0})
        entry["kernels"] += len(image.kernels)
        entry["bytes"] += image.bytes
    return dict(sorted(totals.items()))


def _verdict_json(verdict: Verdict) -> dict[str, Any]:
    return {
        "verdict": verdict.answer,
        "dead_bytes": verdict.dead_bytes,
        "kernels": {c: verdict.total(c) for c in ("native", "family", "ptx", "trap", "absent")},
        "libraries": [
            {
                "path": lib.path,
                "loaded": not lib.skipped and not lib.data,
                "data": lib.data,
                "why_not_loaded": lib.skipped,
                "kernels": lib.counts,
                "absent": list(lib.absent),
                "absence_allowed": lib.absence_allowed,
                "traps": [_trap_json(t) for t in lib.traps],
                "traps_not_read": lib.unread,
                "dead_bytes": lib.dead,
            }
            for lib in verdict.libraries
        ],
    }


def _trap_json(trap: TrapFound) -> dict[str, str]:
    return {
        "kernel": trap.kernel,
        "reason": trap.reason,
        "message": trap.message,
        "allowed": trap.allowed,
        "twin": trap.twin,
    }


def to_terminal(audit: Audit, verdicts: Sequence[Verdict], failed: Sequence[Failure]) -> RenderableType:
    """The audit as tables."""
    parts: list[RenderableType] = [f"[bold]{escape(audit.name)}[/] {escape(audit.version)}"]
    if audit.tag_problem:
        parts.append(f"[yellow]note:[/] tags in WHEEL are not the filename's: {escape(audit.tag_problem)}")
    parts += [f"CUDA: {escape(told)}"] if (told := told_cuda(audit)) else []
    parts.append(_libraries_table(audit))
    if any(lib.host and lib.images for lib in audit.libraries):
        parts.append(_links_table(audit))
    parts += _promise_lines(audit.promises)
    for verdict in verdicts:
        parts += _verdict_lines(verdict)
    for failure in failed:
        parts.append(f"[red]failed:[/] {escape(failure.what)}")
        parts += [f"        {escape(line)}" for line in failure.why.splitlines()]
    return Group(*parts)


def told_cuda(audit: Audit) -> str:
    """Which CUDA the version says it is for, and which one's ptxas made the machine code; empty where neither tells."""
    label = f"{audit.cuda_release} by its version" if audit.cuda_release else ""
    code = f"machine code by ptxas {', '.join(audit.compilers)}" if audit.compilers else ""
    return ", ".join(filter(None, [label, code]))


def _table(*columns: tuple[str, bool]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title, number in columns:
        table.add_column(title, justify="right" if number else "left", overflow="fold")
    return table


def _libraries_table(audit: Audit) -> Table:
    table = _table(
        ("library", False),
        ("code", False),
        ("kernels", True),
        ("in the file", True),
        ("compiler", False),
        ("packed", False),
    )
    for lib in audit.gpu_libraries:
        first = f"{escape(lib.path)}"
        groups: dict[tuple[str, bool], list[Image]] = {}
        for image in lib.images:
            groups.setdefault((image.target, image.linkable), []).append(image)
        for (target, linkable), images in sorted(groups.items()):
            table.add_row(
                first,
                target + (" (for linking)" if linkable else ""),
                str(sum(len(i.kernels) for i in images)),
                human_bytes(sum(i.bytes for i in images)),
                ", ".join(sorted({i.compiler for i in images if i.compiler})),
                "+".join(sorted({i.compression for i in images})),
            )
            first = ""
    others = len(audit.libraries) - len(audit.gpu_libraries)
    if others:
        table.add_row(f"[dim]{others} more without GPU code[/]", "", "", "", "", "")
    return table


def _links_table(audit: Audit) -> Table:
    table = _table(("library", False), ("CUDA", False), ("torch", False), ("needs", False), ("RPATH", False))
    for lib in audit.gpu_libraries:
        if lib.host is None:
            continue
        torch = ""
        if lib.host.torch_symbols:
            torch = f"C++ ABI of one release ({lib.host.torch_symbols} symbols)"
        elif lib.host.torch_stable_symbols:
            torch = f"stable ABI ({lib.host.torch_stable_symbols} symbols)"
        table.add_row(
            escape(lib.path),
            ", ".join(map(str, lib.host.cuda_majors)) or "linked in",
            torch,
            ", ".join(f"{k} {v}" for k, v in lib.host.versions.items()),
            escape(":".join(lib.host.rpath)),
        )
    return table


def _verdict_lines(verdict: Verdict) -> list[RenderableType]:
    lines: list[RenderableType] = ["", f"[bold]compute capability {verdict.target}:[/] {_ANSWERS[verdict.answer]}"]
    if verdict.answer == "no-cuda":
        return lines
    words = {
        "native": "native", "family": "through the family", "ptx": "only as PTX, compiled on first use",
        "trap": "traps", "absent": "without code",
    }  # fmt: skip
    counted = [f"{verdict.total(c)} {words[c]}" for c in words if verdict.total(c)]  # type: ignore[arg-type]
    lines.append(f"  kernels: {', '.join(counted) or 'none'}")
    for lib in verdict.libraries:
        lines += [f"  {escape(text)}" for text in _library_lines(lib)]
    if verdict.dead_bytes:
        lines.append(f"  dead weight: {human_bytes(verdict.dead_bytes)} that this GPU can never run")
    return lines


def _library_lines(lib: LibraryVerdict) -> list[str]:
    if lib.data:
        return [f"{lib.path}: data, no library lies beside it and no Python file names it"]
    if lib.skipped:
        return [f"{lib.path}: not loaded ({lib.skipped})"]
    lines = []
    if lib.absent:
        allowed = f" (allowed: {lib.absence_allowed})" if lib.absence_allowed else ""
        whole = "nothing for it" if not lib.runnable and not lib.traps else f"{len(lib.absent)} kernels without code"
        lines.append(f"{lib.path}: {whole}{allowed}")
        if lib.runnable and not lib.absence_allowed:
            lines += _named([brief(k) for k in lib.absent])
    groups: dict[tuple[str, str], list[TrapFound]] = {}
    for trap in lib.traps:
        groups.setdefault((trap.reason, trap.message), []).append(trap)
    for (reason, message), traps in sorted(groups.items(), key=lambda g: -len(g[1])):
        known = sum(not t.counts for t in traps)
        note = f", {known} of them known or replaced" if known else ""
        lines.append(f"{lib.path}: {len(traps)} traps{note}: {_REASONS[reason]}{': ' + message if message else ''}")
        lines += _named([brief(t.kernel) for t in traps if t.counts])
    if lib.unread:
        lines.append(f"{lib.path}: traps not looked for: {lib.unread}")
    return lines


_REASONS = {
    "guard": "a guard says",
    "report": "only prints",
    "abort": "only aborts",
    "empty": "does nothing",
}


def _named(names: Sequence[str]) -> list[str]:
    counted = Counter(names)
    lines = [f"    {name}{f'  (×{n})' if n > 1 else ''}" for name, n in list(counted.items())[:_NAMED]]
    if len(counted) > _NAMED:
        lines.append(f"    and {len(counted) - _NAMED} more names; --json lists all")
    return lines
