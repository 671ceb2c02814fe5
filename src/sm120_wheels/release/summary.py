"""The table of a CI run: each wheel with what its build cost and what is known of it; as text, or as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from sm120_wheels.files import human_bytes, human_seconds
from sm120_wheels.release.standing import Standing, Told
from sm120_wheels.report import columns

HEAD = ("build", "time", "peak memory", "size", "sha256", "audit", "equivalence", "smoke")


def rows(wheels: Sequence[Standing]) -> list[tuple[str, ...]]:
    """The cells of the table; what nobody measured is a dash."""
    return [
        (
            wheel.identifier or wheel.path.name,
            human_seconds(wheel.cost.seconds) if wheel.cost else "–",
            human_bytes(wheel.cost.peak_memory) if wheel.cost and wheel.cost.peak_memory is not None else "–",
            human_bytes(wheel.size),
            wheel.sha256,
            wheel.audit.state,
            wheel.equivalence.state,
            wheel.smoke.state,
        )
        for wheel in wheels
    ]


def reasons(wheels: Sequence[Standing]) -> list[str]:
    """A line for each thing that did not pass, with its reason."""
    found = []
    for wheel in wheels:
        for name, told in _proofs(wheel):
            if told.state != "passed":
                found.append(f"{wheel.path.name}: {name} {told.state}: {told.detail}")
    return found


def _proofs(wheel: Standing) -> tuple[tuple[str, Told], ...]:
    return (
        ("complete", wheel.complete),
        ("audit", wheel.audit),
        ("equivalence", wheel.equivalence),
        ("smoke", wheel.smoke),
    )


def plain(wheels: Sequence[Standing]) -> str:
    return "\n".join([*columns([HEAD, *rows(wheels)]), "", *reasons(wheels)]).rstrip() + "\n"


def markdown(wheels: Sequence[Standing]) -> str:
    """For GITHUB_STEP_SUMMARY."""
    lines = ["### Wheels", "", f"| {' | '.join(HEAD)} |", f"|{'---|' * len(HEAD)}"]
    for row in rows(wheels):
        name, *rest = row
        cells = [f"`{name}`", *(f"`{cell}`" if len(cell) == 64 else _marked(cell) for cell in rest)]
        lines.append(f"| {' | '.join(cells)} |")
    told = reasons(wheels)
    lines += ["", "Not passed:", "", *(f"- {_escaped(line)}" for line in told)] if told else []
    return "\n".join([*lines, ""])


def _marked(cell: str) -> str:
    return f"**{cell}**" if cell == "failed" else cell


def _escaped(text: str) -> str:
    for character in "\\`*_[]<>|":
        text = text.replace(character, f"\\{character}")
    return " ".join(text.split())
