"""``sm120 which``: the published wheel that fits this machine, or why none does."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path

import click

from sm120_wheels import console
from sm120_wheels.arch import Arch
from sm120_wheels.cli.options import json_option
from sm120_wheels.errors import SettingError, UnsupportedTargetError
from sm120_wheels.files import human_bytes
from sm120_wheels.gpus import Gpu
from sm120_wheels.index import which
from sm120_wheels.index.machine import Machine, detect, python_tags
from sm120_wheels.index.model import Wheel
from sm120_wheels.index.page import UNKNOWN_BASE, commands, evidence_summary

_SHOWN_MISSES = 5


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("package")
@click.option(
    "--index",
    default="wheels",
    show_default=True,
    envvar="SM120_INDEX_URL",
    metavar="URL|FOLDER",
    help="The index (or SM120_INDEX_URL).",
)
@click.option("--python", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Environment to fit.")
@click.option("--gpu", metavar="CC", help="Compute capability instead of this machine's: 12.0.")
@click.option("--driver-cuda", metavar="X.Y", help="Newest CUDA the driver supports, instead of this machine's.")
@click.option("--torch", metavar="VERSION", help="torch instead of the environment's: 2.11.0+cu130, or none.")
@click.option("--python-version", metavar="X.Y", help="CPython version instead of the environment's.")
@json_option
def command(
    package: str,
    index: str,
    python: Path | None,
    gpu: str | None,
    driver_cuda: str | None,
    torch: str | None,
    python_version: str | None,
    as_json: bool,
) -> None:
    """Say which published wheel of PACKAGE fits this machine, and how to install it; or why none does."""
    machine = _overridden(detect(python), gpu=gpu, driver_cuda=driver_cuda, torch=torch, python=python_version)
    choice = which.choose(which.offered(index, package), machine)
    if as_json:
        console.out.print_json(json.dumps(_as_json(choice, machine, index)))
    else:
        for line in describe_machine(machine):
            console.note(line)
    if choice.wheel is None:
        raise _none_fits(package, choice)
    if not as_json:
        _show(choice.wheel, choice.notes, index)


def describe_machine(machine: Machine) -> list[str]:
    """What was found, a line each."""
    gpus = [f"{g.name} ({g.compute})" for g in machine.gpus]
    torch = "not installed"
    if machine.torch:
        torch = machine.torch + (f" (CUDA {machine.torch_cuda})" if machine.torch_cuda else "")
    reaches = f", reaches CUDA {machine.driver_cuda}" if machine.driver_cuda else ""
    return [
        f"GPU     {', '.join(gpus) or 'none found'}",
        f"driver  {(machine.driver or 'unknown') + reaches if machine.gpus or machine.driver_cuda else 'none found'}",
        f"torch   {torch}",
        f"Python  {machine.python}",
    ]


def _show(wheel: Wheel, notes: tuple[str, ...], index: str) -> None:
    out = console.out.print
    out(f"\n{wheel.filename}", markup=False)
    out(f"{human_bytes(wheel.size)}, published {wheel.uploaded}", markup=False)
    for evidence in wheel.evidence:
        if evidence.state or evidence.verdicts:
            out(evidence_summary(evidence), markup=False)
    for text in notes:
        out(f"note: {text}", markup=False)
    base = which.base_address(index)
    if not base:
        out(f"\npip install {shlex.quote(which.address_of(wheel, index))}", markup=False)
        return
    for line in commands(wheel):
        out(f"\n# {line.name}\n{line.before}{base}{line.path}{line.after}", markup=False)


def _none_fits(package: str, choice: which.Choice) -> UnsupportedTargetError:
    shown = choice.rejected[:_SHOWN_MISSES]
    lines = [f"{r.wheel.filename}: {'; '.join(r.reasons)}" for r in shown]
    more = len(choice.rejected) - len(shown)
    return UnsupportedTargetError(
        f"no published wheel of {package} fits this machine",
        why="\n".join([*lines, *([f"and {more} more"] if more else [])]),
        hint="change what the closest one asks for, or build one: sm120 build",
    )


def _overridden(
    machine: Machine, *, gpu: str | None, driver_cuda: str | None, torch: str | None, python: str | None
) -> Machine:
    changed: dict[str, object] = {}
    if gpu is not None:
        changed["gpus"] = (Gpu(name="--gpu", capability=Arch.parse(gpu.rstrip("af")).capability),)
    if driver_cuda is not None:
        changed["driver_cuda"] = _numbers("--driver-cuda", driver_cuda)
    if torch is not None:
        release, _, local = torch.partition("+")
        changed["torch"] = None if torch == "none" else _numbers("--torch", release) + (f"+{local}" if local else "")
        changed["torch_cuda"] = f"{local[2:-1]}.{local[-1]}" if local.startswith("cu") and local[2:].isdigit() else None
    if python is not None:
        numbers = _numbers("--python-version", python).split(".")
        changed["python"] = ".".join([*numbers, "0"][:3]) if len(numbers) > 1 else f"{python}.0.0"
        changed["tags"] = python_tags((int(numbers[0]), int(([*numbers, "0"])[1])))
    return dataclasses.replace(machine, **changed)  # type: ignore[arg-type]


def _numbers(option: str, text: str) -> str:
    if not text or not all(part.isdigit() for part in text.split(".")):
        raise SettingError(f"{option} {text!r} is not a version", hint="write numbers with dots: 13.0")
    return text


def _as_json(choice: which.Choice, machine: Machine, index: str) -> dict[str, object]:
    wheel = choice.wheel
    base = which.base_address(index) or UNKNOWN_BASE
    return {
        "machine": {
            "gpus": [dataclasses.asdict(g) for g in machine.gpus],
            "driver": machine.driver,
            "driver_cuda": machine.driver_cuda,
            "python": machine.python,
            "torch": machine.torch,
            "torch_cuda": machine.torch_cuda,
        },
        "wheel": wheel.model_dump(mode="json") if wheel else None,
        "file": which.address_of(wheel, index) if wheel else None,
        "commands": {c.name: f"{c.before}{base}{c.path}{c.after}" for c in commands(wheel)} if wheel else {},
        "notes": list(choice.notes),
        "rejected": [{"filename": r.wheel.filename, "reasons": list(r.reasons)} for r in choice.rejected],
    }
