"""The index at scale and under fire; the results are written down in docs/evidence/index.md.

``python -m benchmarks.index scale`` publishes many tiny wheels, then one more, beside dumb-pypi and
simple-repository-generator on the same files. ``kills`` kills publishers at random moments and lets pip install after
each. Figures go to stdout as a table; nothing is kept.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pip._internal.commands.install  # noqa: F401 - loaded before the forks
from pip._internal.cli.main import main as pip_main

from sm120_wheels.index.layout import Snapshot
from sm120_wheels.index.publish import publish
from sm120_wheels.index.verify import verify
from tests.index.crashing import changes_until
from tests.index.makewheel import make_wheel
from tests.index.serving import served


@click.group()
def main() -> None:
    """Measure the index."""


@contextlib.contextmanager
def work_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sm120-bench-") as folder:
        yield Path(folder)


class Took(float):
    """Seconds by the clock; printed with the seconds of processor time, which other load does not change."""

    cpu: float

    def __format__(self, spec: str) -> str:
        return f"{float(self):{spec}} s ({self.cpu:{spec}} s CPU)"


def timed(work: Callable[[], object]) -> Took:
    def cpu() -> float:
        own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
        return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime

    started, used = time.perf_counter(), cpu()
    work()
    took = Took(time.perf_counter() - started)
    took.cpu = cpu() - used
    return took


@main.command()
@click.option("--wheels", default=10_000, show_default=True)
@click.option("--projects", default=100, show_default=True)
@click.option(
    "--rivals", type=click.Path(path_type=Path), help="Folder with dumb-pypi and simple-repository-generator."
)
def scale(wheels: int, projects: int, rivals: Path | None) -> None:
    """First build of the pages, and adding one wheel, at three sizes."""
    with work_folder() as folder:
        dist = folder / "dist"
        made = [
            make_wheel(dist, f"tiny-{i % projects}", f"1.{i // projects}+cu130.sm120a", sbom=None)
            for i in range(wheels)
        ]
        click.echo(f"{wheels} wheels of {projects} projects")
        root = folder / "index"
        for size in (wheels // 100, wheels // 10, wheels):
            shutil.rmtree(root, ignore_errors=True)
            first = timed(lambda size=size: publish(root, made[:size]))  # type: ignore[misc]
            more = [
                make_wheel(folder / "more", "tiny-7", f"2.{turn}+cu130.sm120a", sbom=None, content=os.urandom(50))
                for turn in range(5)
            ]
            adding = sorted(timed(lambda wheel=wheel: publish(root, [wheel])) for wheel in more)  # type: ignore[misc]
            new = timed(lambda: publish(root, [make_wheel(folder / "more", "new-project", "1.0+cu130.sm120a")]))
            click.echo(
                f"sm120 index: {size:6} wheels: first build {first:.2f}; one more: median {adding[2]:.3f}, "
                f"slowest {adding[-1]:.3f} of 5; one of a new project {new:.3f}"
            )
        click.echo(f"sm120 index verify (re-hashes all): {timed(lambda: verify(root)):.2f}, {verify(root).findings}")
        pages = root / "simple"
        click.echo(
            f"front page: {(root / 'index.html').stat().st_size} bytes; {len(list(pages.iterdir()))} entries in simple/"
        )
        if rivals:
            took = _rivals(folder, dist, rivals)
            quickest = min(took, key=lambda name: took[name])
            click.echo(f"one_more_over_{quickest}: {adding[2] / took[quickest]:.4f}")


def _rivals(folder: Path, dist: Path, rivals: Path) -> dict[str, Took]:
    """The other generators on the same files: they make everything anew each time. What one more wheel takes them."""
    one_more = {}
    names = folder / "names.txt"
    names.write_text("".join(f"{p.name}\n" for p in sorted(dist.glob("*.whl"))))
    commands: dict[str, list[str | Path]] = {
        "dumb-pypi": [rivals / "dumb-pypi", "--package-list", names, "--packages-url", "../../files", "--output-dir"],
        "simple-repository-generator": [rivals / "simple-repository-generator", dist, "--force", "--output"],
    }
    for name, argv in commands.items():
        output = folder / name
        for what in ("first build", "with one more wheel"):
            took = timed(lambda: subprocess.run([*argv, output], check=True, capture_output=True))  # noqa: B023
            click.echo(f"{name}: {what}: {took:.2f}")
            if what == "first build":
                extra = make_wheel(dist, "tiny-7", f"3.0+cu130.sm120a.{name.replace('-', '.')}", sbom=None)
                names.write_text(names.read_text() + f"{extra.name}\n")
            one_more[name] = took
    return one_more


@main.command()
@click.option("--kills", default=200, show_default=True)
@click.option("--seed", default=20261130, show_default=True)
def kills(kills: int, seed: int) -> None:
    """Kill publishers, in turn at a random moment and at a random change of the disk; pip must install after each."""
    rng = random.Random(seed)
    old = new = 0
    with work_folder() as folder:
        root = folder / "index"
        publish(root, [make_wheel(folder, "steady", "1.0+cu130.sm120a")])
        before = {"steady-1.0+cu130.sm120a-cp310-abi3-manylinux_2_34_x86_64.whl"}
        spare = [make_wheel(folder, f"tiny-{i}", "0.1+cu130.sm120a", content=os.urandom(100_000)) for i in range(3)]
        usual = Took(1)
        _, changes = changes_until(lambda: _publish(root, spare), None)
        before |= {w.name for w in spare}
        with served(root) as address:
            for turn in range(kills):
                wheels = [
                    make_wheel(folder, f"tiny-{i}", f"1.{turn}+cu130.sm120a", content=os.urandom(100_000))
                    for i in range(3)
                ]
                if turn % 2:
                    _killed(root, wheels, rng.uniform(0, 1.2 * usual))
                else:
                    changes_until(lambda: _publish(root, wheels), rng.randrange(changes))  # noqa: B023 - runs now
                shown = {w.filename for p in Snapshot.current(root).projects() for w in p.wheels}
                added = {w.name for w in wheels}
                assert shown in (before, before | added), f"turn {turn}: a mixture"
                old, new = old + (shown == before), new + (shown != before)
                assert verify(root).damage == (), f"turn {turn}: {verify(root).damage}"
                _pip(address, folder / "downloads", rng.choice(sorted(before)))
                usual = timed(lambda: publish(root, wheels))  # noqa: B023 - runs now
                before = {w.filename for p in Snapshot.current(root).projects() for w in p.wheels}
                assert before >= added
                assert verify(root).findings == (), f"turn {turn}: {verify(root).findings}"
                for wheel in wheels:
                    wheel.unlink()
                if turn % 10 == 9:
                    click.echo(f"{turn + 1} kills: {old} left the old index, {new} the new one, none a mixture")


def _publish(root: Path, wheels: list[Path]) -> None:
    publish(root, wheels)


def _killed(root: Path, wheels: list[Path], after_s: float) -> None:
    child = os.fork()
    if child == 0:
        try:
            publish(root, wheels)
        finally:
            os._exit(0)
    time.sleep(after_s)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def _pip(address: str, downloads: Path, filename: str) -> None:
    """Install a published wheel with real pip into an empty folder; forked, as most of its time is its start."""
    shutil.rmtree(downloads, ignore_errors=True)
    name, version = filename.split("-")[:2]
    argv = ["install", "-q", "--no-deps", "--no-cache-dir", "--isolated", "--no-input", "--target", str(downloads)]
    argv += [
        "--platform",
        "manylinux_2_34_x86_64",
        "--only-binary=:all:",
        "-i",
        f"{address}cu130/",
        f"{name}=={version}",
    ]
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = pip_main(argv)
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0, f"pip could not install {filename}"
    assert (downloads / f"{name}-{version}.dist-info").is_dir()


if __name__ == "__main__":
    main()
