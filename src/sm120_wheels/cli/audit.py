"""``sm120 audit``: what GPU code is in a wheel, and what a GPU would make of it. Needs no GPU."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click

from sm120_wheels import console
from sm120_wheels.arch import Arch
from sm120_wheels.errors import AuditFailedError, UnknownArchError
from sm120_wheels.files import sha256_file, write_text
from sm120_wheels.prove import inputs
from sm120_wheels.prove.allow import known_traps, merged, read_allow_list
from sm120_wheels.prove.audit import Audit, audit
from sm120_wheels.prove.images import Capability
from sm120_wheels.prove.render import to_json, to_terminal
from sm120_wheels.prove.sameness import differences
from sm120_wheels.prove.treemap import to_html
from sm120_wheels.prove.verdict import EXIT_CODES, Failure, Verdict, failures, judge

_DEFAULT_TARGETS = ("12.0", "12.1")


def _capability(text: str) -> Capability:
    match = re.fullmatch(r"(\d{1,2})\.(\d)", text)
    if match is None:
        raise UnknownArchError(
            f"{text!r} is not a compute capability", hint="--target takes the GPU's number, such as 9.0, 12.0 or 12.1"
        )
    return int(match[1]), int(match[2])


@click.command("audit")
@click.argument("subjects", metavar="WHEEL...", nargs=-1, required=True)
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="CC",
    help="GPU to judge for, e.g. 12.0; its verdict sets the exit code. Repeatable.",
)
@click.option(
    "--expect",
    default="",
    metavar="ARCHS",
    help="Architectures that were asked of the build (12.0a,9.0a): a missing one fails.",
)
@click.option(
    "--cuda",
    "cuda_major",
    type=click.IntRange(min=1),
    metavar="MAJOR",
    help="CUDA major it must be linked with; default: the wheel's label.",
)
@click.option(
    "--allow-traps",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Known traps and absences (TOML); any other trap fails.",
)
@click.option("--strict", is_flag=True, help="What the filename promises and the libraries do not keep fails.")
@click.option(
    "--same-as",
    type=click.Path(path_type=Path),
    metavar="OTHER",
    help="Another build of the same wheel: members and sections that differ fail, with the likely cause.",
)
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
@click.option(
    "--html", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write a page with a size treemap."
)
def command(
    subjects: tuple[str, ...],
    targets: tuple[str, ...],
    expect: str,
    cuda_major: int | None,
    allow_traps: Path | None,
    strict: bool,
    same_as: Path | None,
    as_json: bool,
    html: Path | None,
) -> int:
    """Show what GPU code a WHEEL carries and what runs on a GPU.

    WHEEL is a wheel, a folder, an installed package, a library, an object file, a cubin, a fat binary or PTX.

    Exit codes with --target: 0 runs, 64 not known (traps could not be looked for), 65 runs in part, 66 does not run,
    67 no GPU code; the worst where there are several. 61 where a check fails: --expect, the CUDA major of the label, a
    trap that --allow-traps does not name, a difference from --same-as, with --strict a promise of the filename
    (manylinux, abi3, no foreign search paths) that is not kept, or traps that could not be looked for. Without --target
    12.0 and 12.1 are shown and only the checks count.
    """
    if same_as is not None and len(subjects) > 1:
        raise click.UsageError("--same-as compares one WHEEL with another build of it.")
    wanted = [_capability(t) for t in dict.fromkeys(targets or _DEFAULT_TARGETS)]
    archs = [Arch.parse(a) for a in re.split(r"[,; ]+", expect) if a]
    allow = None if allow_traps is None else read_allow_list(allow_traps)
    results: list[tuple[Audit, list[Verdict], list[Failure]]] = []
    for text in subjects:
        found = audit(inputs.subject(text), wanted)
        known = merged(known_traps(found.name), *([allow] if allow else []))
        verdicts = [judge(found, target, known) for target in wanted]
        failed = failures(found, verdicts, expect=archs, allow=allow, cuda_major=cuda_major, strict=strict)
        failed += differences(Path(text), same_as) if same_as is not None else []
        results.append((found, verdicts, failed))
        if not as_json:
            console.out.print(to_terminal(found, verdicts, failed))
    if as_json:
        documents = [to_json(*result) | _bound_to(result[0]) for result in results]
        click.echo(json.dumps(documents[0] if len(documents) == 1 else documents, indent=2))
    if html is not None:
        write_text(html, to_html(results))
        console.note(f"page: {html}")
    failed_names = [found.name for found, _, failed in results if failed]
    if failed_names:
        raise AuditFailedError(
            f"the audit of {', '.join(failed_names)} failed",
            why="\n".join(f.what for _, _, failed in results for f in failed),
            hint="what is missing must be built; a trap known to be harmless goes into the recipe's list of traps; two "
            "builds that differ: docs/how-to/compare-two-builds.md",
        )
    return max((EXIT_CODES[v.answer] for _, verdicts, _ in results for v in verdicts), default=0) if targets else 0


def _bound_to(found: Audit) -> dict[str, str]:
    """The wheel's sha256, which makes the document evidence about this file; nothing for what is no file."""
    path = Path(found.path)
    return {"wheel_sha256": sha256_file(path)} if path.suffix == ".whl" and path.is_file() else {}
