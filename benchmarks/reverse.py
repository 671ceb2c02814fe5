"""Whether each lean patch is needed: without it alone, the kernels that its header names are back.

    python -m benchmarks.reverse --prepare FOLDER [--version 0.4.4] [--jobs 8] [--patch 0115 …] [-- --python 3.12 …]

FOLDER is the one of `benchmarks.lean --prepare`. Each CUDA source that a patch touches is compiled twice with the flags
of the lean build, with all patches and with all but that one, and kernels and traps are counted as `sm120 audit` does;
the kernels that stay are compared with those of the unpatched unit as `sm120 equivalence` does.
Only device code is compiled (`nvcc --fatbin`), which holds the traps: seconds and peaks are not those of a whole unit.

Ends with an error where leaving a patch out brings no kernel back, or where a kernel that stays is another. The last
line counts the traps that come back.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import click
from unidiff.patch import PatchSet

from benchmarks.lean import Cost, command_of, compile_once, configured, environment, without_launchers
from sm120_wheels import headers, patch, recipe
from sm120_wheels.arch import Arch
from sm120_wheels.files import human_bytes
from sm120_wheels.prove import inputs
from sm120_wheels.prove.audit import audit
from sm120_wheels.prove.equivalence import compare

WAYS = ("with", "without")


def units_of(one: patch.Patch) -> list[str]:
    """The CUDA sources that a patch touches."""
    touched = PatchSet(one.path.read_text(encoding="utf-8"))
    return [file.path for file in touched if file.path.endswith(".cu")]


def device_code_only(argv: list[str], name: str) -> list[str]:
    """The command for device code alone, with the lean headers that stable-compile.sh would have put first."""
    words = [word for word in without_launchers(argv) if Path(word).name not in ("sh", "stable-compile.sh")]
    start = words.index("-MD")
    del words[start : words.index("-MF") + 2]  # no list of what it read
    words = ["--fatbin" if word == "-c" else word for word in words]
    return [words[0], f"-I{headers.folder(name)}", *words[1:]]


def counted(file: Path) -> tuple[int, int]:
    """Kernels and traps."""
    images = [image for library in audit(inputs.subject(str(file)), [(12, 0)]).libraries for image in library.images]
    return sum(len(image.kernels) for image in images), sum(len(image.traps) for image in images)


def measured(task: tuple[patch.Patch, str, str], build: Path, made: Path) -> tuple[Cost, int, int]:
    """What a unit's compile took in one of the ways; the kernels and traps that came of it."""
    one, unit, way = task
    sources = build.parent / "src" / "sglang"
    with tempfile.TemporaryDirectory(prefix="sm120-reverse-") as where:
        tree = sources
        if way == "without":
            tree = Path(where) / "sglang"
            shutil.copytree(sources, tree)
            # the ceiling: inside somebody's checkout git would take the paths for that checkout's, and do nothing
            env = {**os.environ, "GIT_CEILING_DIRECTORIES": where}
            subprocess.run(["git", "apply", "-R", str(one.path)], cwd=tree, env=env, check=True)
        argv = command_of(build, unit.partition("/csrc/")[2])[0]
        argv = [word.replace(str(sources), str(tree)) for word in device_code_only(argv, "torch")]
        output = fatbin_of(task, made)
        return compile_once(argv, build, environment(build), output), *counted(output)


def fatbin_of(task: tuple[patch.Patch, str, str], made: Path) -> Path:
    one, unit, way = task
    return made / f"{one.path.name[:4]}-{Path(unit).stem}.{way}.fatbin"


def identical(ours: Path, reference: Path) -> int:
    """How many kernels of ``ours`` the reference has bit for bit."""
    found = compare(inputs.subject(str(ours)), inputs.subject(str(reference)), Arch.parse("12.0a"), allow_missing=["*"])
    return found.count("identical")


@click.command()
@click.option("--prepare", type=click.Path(path_type=Path), required=True, help="Folder to prepare and configure in.")
@click.option("--jobs", default=1, show_default=True, help="Compiles at a time.")
@click.option("--version", default="0.4.4", show_default=True, help="Upstream version.")
@click.option("--patch", "only", multiple=True, metavar="NNNN", help="Only this one. Repeatable.")
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def main(prepare: Path, jobs: int, version: str, only: tuple[str, ...], options: tuple[str, ...]) -> None:
    what = ["--version", version, "--without", "triton-kernels,sparse-attention", *options]
    build = configured(prepare.absolute() / "lean", what)
    known = recipe.load("sgl-kernel").versions
    chosen = [one for one in patch.select(patch.discover("sgl-kernel"), version, known) if one.group == "lean"]
    chosen = [one for one in chosen if not only or one.path.name[:4] in only]
    tasks = [(one, unit, way) for way in reversed(WAYS) for one in chosen for unit in units_of(one)]
    made = prepare / "fatbins"
    made.mkdir(exist_ok=True)
    with ThreadPoolExecutor(jobs) as pool:
        found = dict(zip(tasks, pool.map(partial(measured, build=build, made=made), tasks), strict=True))
    print("| patch | unit | | CPU s | peak | kernels | traps | identical |\n|---|---|---|--:|--:|--:|--:|--:|")
    back, idle, others = 0, [], []
    for one in chosen:
        gained = 0
        for unit in units_of(one):
            kept = found[one, unit, "with"][1]
            same = identical(*(fatbin_of((one, unit, way), made) for way in WAYS)) if kept else 0
            others += [unit] if same != kept else []
            for way in WAYS:
                cost, kernels, traps = found[one, unit, way]
                cells = [one.path.name[:4], unit.partition("/csrc/")[2], way, f"{cost.cpu_s:.0f}"]
                cells += [human_bytes(cost.peak), str(kernels), str(traps), str(same) if way == "with" else ""]
                print("| " + " | ".join(cells) + " |")
            before, after = found[one, unit, "without"], found[one, unit, "with"]
            gained += before[1] - after[1]
            back += before[2] - after[2]
        if units_of(one) and not gained:
            idle.append(one.path.name)
    if idle:
        print(f"left out without effect: {', '.join(idle)}", file=sys.stderr)
    if others:
        print(f"kernels that stay are not the unpatched unit's: {', '.join(others)}", file=sys.stderr)
    print(f"traps_that_come_back: {back}")
    sys.exit(1 if idle or others else 0)


if __name__ == "__main__":
    main()
