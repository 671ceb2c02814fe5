"""What a GPU's traps cost: the kernels of a wheel that are traps on it, by translation unit, with its CPU and memory.

    python -m benchmarks.traps WHEEL --summary compile-summary.json [--target 12.0] [--order FILE …]

A library holds one fat binary for each translation unit, in the order of the link. FILE tells that order: the
CMakeLists.txt with `set(SOURCES …)`, or the build.ninja of each library. Where FILE does not list as many units as the
library has fat binaries, nor do those of them that the build compiled, a fat binary's number stands in the unit's
place. WHEEL may be one that was built elsewhere, such as upstream's: the costs are then those of the summary's build.
Seconds and peak are of the whole unit, with whatever else it holds: how much of it the traps are only a compile without
them tells.

The last line is the share of the build's CPU seconds that went into units with a trap; a unit without a name counts as
none.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click

from sm120_wheels.files import human_bytes
from sm120_wheels.prove import inputs
from sm120_wheels.prove.audit import Library, audit
from sm120_wheels.prove.images import Image, choose
from sm120_wheels.prove.names import demangle

_LINK = re.compile(r"^build (\S+\.so)[^:\n]*: (.*)$", re.MULTILINE)
_LIST = re.compile(r"^set\(SOURCES\n(.*?)^\)", re.MULTILINE | re.DOTALL)
_SOURCE = re.compile(r'^\s*"(?:\$\{[^}]*\}/)?(\S+\.cu)"$', re.MULTILINE)


def plain(path: str) -> str:
    """One spelling for a source and for the object that CMake or flashinfer make of it."""
    name = path.rpartition(".dir/")[2] if ".dir/" in path else path
    if name.endswith(".cuda.o"):
        name = Path(name).name.removesuffix(".cuda.o") + ".cu"
    return name.removesuffix(".o").replace("/", "_")


def link_orders(files: tuple[Path, ...]) -> dict[str, list[str]]:
    """For each library's file name, and for "" where a file names none, its CUDA sources as the linker meets them."""
    orders: dict[str, list[str]] = {}
    for file in files:
        text = file.read_text(encoding="utf-8").replace("$\n", "")
        links = _LINK.findall(text)
        for library, rest in links:
            words = rest.partition(" | ")[0].split()
            orders[Path(library).name] = [word for word in words if word.endswith((".cu.o", ".cuda.o"))]
        if listed := _LIST.search(text):
            orders[""] = _SOURCE.findall(listed[1])
    return orders


def unit_of(name: str, units: list[dict[str, Any]]) -> dict[str, Any] | None:
    found = [unit for unit in units if f"_{plain(unit['source'])}".endswith(f"_{plain(name)}")]
    return found[0] if len(found) == 1 else None


def rows_of(
    library: Library, chosen: list[Image], order: list[str], units: list[dict[str, Any]]
) -> list[tuple[str, dict[str, Any] | None, Image]]:
    """Each fat binary with traps: the unit's name, what is recorded of it, the image."""
    containers = sorted({image.container for image in library.images})
    compiled = [name for name in order if unit_of(name, units)]
    names = next((names for names in (order, compiled) if len(names) == len(containers)), None)
    rows = []
    for image in chosen:
        if image.traps:
            position = containers.index(image.container)
            number = f"{Path(library.path).name}, fat binary {position + 1} of {len(containers)}"
            name = names[position] if names else number
            rows.append((name, unit_of(name, units), image))
    return rows


def short(source: str) -> str:
    return re.sub(r"^.*?/(csrc/|generated/)", r"\1", source)


def families(image: Image) -> str:
    """The traps by what they say, the most first."""
    counts: dict[str, int] = {}
    for trap in image.traps:
        said = re.search(r"CUTE_ARCH_\w+|CUTLASS_ARCH_\w+", trap.message)
        what = said[0] if said else trap.message or f"{trap.reason}: {demangle(trap.kernel)}"
        counts[what] = counts.get(what, 0) + 1
    return ", ".join(f"{count} {what[:60]}" for what, count in sorted(counts.items(), key=lambda item: -item[1]))


@click.command()
@click.argument("wheel", type=click.Path(path_type=Path, exists=True))
@click.option("--summary", type=click.Path(path_type=Path, exists=True), required=True, help="compile-summary.json.")
@click.option("--order", "orders", type=click.Path(path_type=Path, exists=True), multiple=True, help="Repeatable.")
@click.option("--target", default="12.0", show_default=True, metavar="CC")
def main(wheel: Path, summary: Path, orders: tuple[Path, ...], target: str) -> None:
    units = json.loads(summary.read_text(encoding="utf-8"))["units"]
    lists = link_orders(orders)
    major, minor = (int(part) for part in target.split("."))
    rows = []
    for library in audit(inputs.subject(str(wheel)), [(major, minor)]).libraries:
        picked = choose(library.loadable, (major, minor)).values()
        chosen = [library.loadable[i] for i in picked if i is not None]
        order = lists.get(Path(library.path).name) or lists.get("", [])
        rows += rows_of(library, chosen, order, units)
    print("| translation unit | CPU | peak | kernels | traps | what they say |\n|---|--:|--:|--:|--:|---|")
    for name, unit, image in sorted(rows, key=lambda row: -(row[1] or {"cpu_seconds": 0})["cpu_seconds"]):
        cost = (f"{unit['cpu_seconds']:.0f} s", human_bytes(unit["peak_rss"])) if unit else ("not known", "not known")
        cells = [short(name), *cost, len(image.kernels), len(image.traps), families(image)]
        print("| " + " | ".join(map(str, cells)) + " |")
    whole = sum(unit["cpu_seconds"] for unit in units)
    spent = sum(unit["cpu_seconds"] for _, unit, _ in rows if unit)
    print(f"\n{sum(len(image.traps) for _, _, image in rows)} traps; {spent:.0f} of {whole:.0f} CPU seconds")
    print(f"cpu_share_of_units_with_traps: {spent / whole:.3f}")


if __name__ == "__main__":
    main()
