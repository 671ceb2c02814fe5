"""Compiles that were done before: cold, from the local cache in another folder, from Redis on another "machine".

    python benchmarks/caches.py WORK --target CMakeFiles/…/copy.cu.o … [--json FILE]

WORK is a work folder with a configured build (`sm120 build RECIPE --keep-work` leaves one). It is copied to other
paths, the paths in its ninja files changed. The second machine is a network namespace of its own with the toolkit and
the environment at other paths too; it has no cache but the Redis server outside, which it reaches by an address. All
compiles run without network, as in a build. Every object must be the same as without any cache. The last line is warm
over cold, for the slower of the two warm runs.

Needs root (namespaces), ccache, redis-server and ip.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from sm120_wheels import headers
from sm120_wheels.compile.cache import shared
from sm120_wheels.compile.cache.ccache import Places
from sm120_wheels.compile.cache.choice import Choice
from sm120_wheels.compile.cache.setup import compiler_cache
from sm120_wheels.compile.isolation import no_network_prefix
from sm120_wheels.compile.session import compile_session
from sm120_wheels.wheel.reproducible import reproducible_build

_LAUNCHER = re.compile(r"(?:\S*/sh \S*/stable-compile\.sh )?\S*/sm120-launch ")
_SPACE = f"sm120-bench-{os.getpid()}"
_OUTSIDE, _INSIDE = "10.213.77.1", "10.213.77.2"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A copy of the build at its own paths."""

    work: Path
    cuda: Path
    environment: Path
    lean: Path
    """Our lean headers for torch, as an installed sm120-wheels has them."""

    def toolchain(self) -> dict[Path, str]:
        return {self.cuda: "cuda", self.environment: "environment", self.lean: "headers"}

    def target(self, named: str, origin: Machine) -> str:
        """CMake names the objects of sources outside of its project after their whole path."""
        return named.replace(original_work(origin), str(self.work))


@dataclass(frozen=True, kw_only=True)
class Run:
    """Seconds; ``objects``: target, as the origin names it → sha256."""

    wall_s: float
    """Of ninja."""
    whole_s: float
    """With the cache's and the scheduler's setup, and until all is stored."""
    hits: int
    remote_hits: int
    misses: int
    compiled: int
    cpu_s: float
    objects: dict[str, str]
    lines: list[str]


def copied(machine: Machine, origin: Machine) -> Machine:
    """Sources copied, the toolchain linked file by file where its path differs, the ninja files rewritten."""
    for ours, theirs in zip(machine.toolchain(), origin.toolchain(), strict=True):
        if ours != theirs:
            ours.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["cp", "-al", f"{theirs}/.", str(ours)], check=True)
    shutil.copytree(origin.work / "src", machine.work / "src", symlinks=True)
    for name in ("build.ninja", "CMakeFiles/rules.ninja"):
        text = (origin.work / "compile" / name).read_text()
        for old, new in (
            (original_work(origin), machine.work),
            (origin.cuda, machine.cuda),
            (origin.environment, machine.environment),
        ):
            text = text.replace(str(old), str(new))
        # no way back to CMake: the files are what they are
        text = re.sub(r"^build build\.ninja:.*(?:\n  .*)*", "", text, flags=re.MULTILINE)
        target = machine.work / "compile" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return machine


def original_work(origin: Machine) -> str:
    """The path that the folder had when it was configured."""
    match = re.search(r"^cmake_ninja_workdir = (\S+)/compile/", read(origin), re.MULTILINE)
    return match.group(1) if match else str(origin.work)


def read(machine: Machine) -> str:
    return (machine.work / "compile" / "build.ninja").read_text()


def compile_once(
    machine: Machine,
    targets: tuple[str, ...],
    choice: Choice,
    address: str,
    *,
    origin: Machine,
    jobs: int | None = None,
) -> Run:
    build = machine.work / "compile"
    names = {target: machine.target(target, origin) for target in targets}
    stable = reproducible_build(
        source_root=machine.work / "src",
        build_root=build,
        source_date_epoch=1_700_000_000,
        others=machine.toolchain(),
        before_includes=(machine.lean,),
    )
    places = Places(
        build_root=build,
        roots={machine.work / "src": "src", **machine.toolchain()},
        header_folders=(machine.work / "src", machine.lean),
        cuda_root=machine.cuda,
        host_compiler=Path("/usr/bin/g++"),
    )
    said: list[str] = []
    start = time.monotonic()
    with ExitStack() as stack:
        session = stack.enter_context(compile_session(package="bench", work_dir=machine.work / "scheduler"))
        stack.enter_context(
            compiler_cache(
                session,
                places,
                choice=choice,
                shared_cache=shared.parse(address, "the benchmark"),
                work_dir=machine.work / "scheduler",
                tell=said.append,
                jobs=jobs,
            )
        )
        launcher = shlex.join([*stable.launcher, *session.launcher]) + " "
        (build / "bench.ninja").write_text(_LAUNCHER.sub(launcher, read(machine)))
        began = time.monotonic()
        environment = {**os.environ, **session.environment, **stable.environment}
        command = [*no_network_prefix(), "ninja", "-C", str(build), "-f", "bench.ninja", f"-j{session.ninja_jobs}"]
        ran = subprocess.run([*command, *names.values()], env=environment, capture_output=True, text=True, check=False)
        wall = time.monotonic() - began
        if ran.returncode != 0:
            raise click.ClickException(f"{ran.stdout[-3000:]}\n{ran.stderr[-1000:]}")
    whole = time.monotonic() - start
    summary, cache = session.summary, session.cache
    assert cache is not None
    return Run(
        wall_s=round(wall, 2),
        whole_s=round(whole, 2),
        hits=cache.hits,
        remote_hits=cache.remote_hits,
        misses=cache.misses,
        compiled=len(summary.units),
        cpu_s=round(sum(unit.cpu_seconds for unit in summary.units), 1),
        objects={t: hashlib.sha256((build / name).read_bytes()).hexdigest() for t, name in names.items()},
        lines=[*cache.lines(), *said],
    )


def elsewhere(machine: Machine, targets: tuple[str, ...], address: str, private: Path, *, origin: Machine) -> Run:
    """In the network namespace, with caches of its own."""
    asked = {
        **{name: {k: str(v) for k, v in asdict(m).items()} for name, m in (("machine", machine), ("origin", origin))},
        "targets": targets,
        "address": address,
    }
    ran = subprocess.run(
        ["ip", "netns", "exec", _SPACE, sys.executable, __file__, "--child", json.dumps(asked)],
        env={**os.environ, "SM120_CACHE_DIR": str(private / "cache"), "SM120_RUNTIME_DIR": str(private / "run")},
        stdout=subprocess.PIPE,
        check=True,
    )
    return Run(**json.loads(ran.stdout))


def child(asked: str) -> None:
    values = json.loads(asked)
    machine, origin = (Machine(**{k: Path(v) for k, v in values[name].items()}) for name in ("machine", "origin"))
    run = compile_once(machine, tuple(values["targets"]), "ccache", values["address"], origin=origin)
    print(json.dumps(asdict(run)))


def network(stack: ExitStack) -> None:
    """A namespace with one link to this one."""
    link, peer = f"sm-o{os.getpid()}", f"sm-i{os.getpid()}"
    for words in (
        f"netns add {_SPACE}",
        f"link add {link} type veth peer name {peer} netns {_SPACE}",
        f"addr add {_OUTSIDE}/30 dev {link}",
        f"link set {link} up",
        f"-n {_SPACE} addr add {_INSIDE}/30 dev {peer}",
        f"-n {_SPACE} link set {peer} up",
        f"-n {_SPACE} link set lo up",
    ):
        subprocess.run(["ip", *words.split()], check=True)
        if words.startswith("netns add"):
            stack.callback(subprocess.run, ["ip", "netns", "del", _SPACE], check=True)


def redis(stack: ExitStack, folder: Path) -> str:
    folder.mkdir()
    with socket.socket() as probe:
        probe.bind((_OUTSIDE, 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [
            "redis-server",
            "--port",
            str(port),
            "--bind",
            "127.0.0.1",
            _OUTSIDE,
            "--protected-mode",
            "no",
            "--save",
            "",
            "--dir",
            str(folder),
        ],
        stdout=subprocess.DEVNULL,
    )
    stack.callback(server.wait)
    stack.callback(server.terminate)
    return f"redis://{_OUTSIDE}:{port}"


def found_in(work: Path) -> Machine:
    text = (work / "compile" / "build.ninja").read_text() + (work / "compile/CMakeFiles/rules.ninja").read_text()
    cuda = re.search(r"(/[^\s}$]+)/bin/nvcc ", text)
    environment = re.search(r"(/[^\s=}]+)/lib/python[\d.]+/site-packages/torch/include", text)
    if cuda is None or environment is None:
        raise click.UsageError(f"{work} holds no configured build with nvcc and torch")
    return Machine(
        work=work.resolve(),
        cuda=Path(cuda.group(1)),
        environment=Path(environment.group(1)),
        lean=headers.folder("torch"),
    )


@click.command()
@click.argument("work", type=click.Path(path_type=Path, exists=True, file_okay=False), required=False)
@click.option("--target", "targets", multiple=True, help="An object of the build. Repeatable.")
@click.option(
    "--json",
    "file",
    type=click.Path(path_type=Path),
    help="Write the runs there as JSON. What was compiled without a cache and stands there is not compiled again.",
)
@click.option("--child", "asked", hidden=True)
def main(work: Path | None, targets: tuple[str, ...], file: Path | None, asked: str | None) -> None:
    if asked is not None:
        child(asked)
        return
    if work is None or not targets:
        raise click.UsageError("name a work folder and at least one --target")
    origin = found_in(work)
    with ExitStack() as stack:
        top = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sm120-bench-")))
        os.environ |= {"SM120_CACHE_DIR": str(top / "cache"), "SM120_RUNTIME_DIR": str(top / "run")}
        network(stack)
        address = redis(stack, top / "redis")
        there = {"cuda": origin.cuda, "environment": origin.environment, "lean": origin.lean}
        first = copied(Machine(work=top / "first/build", **there), origin)
        second = copied(Machine(work=top / "another-and-longer/folder/b", **there), origin)
        opt = top / "m3/opt"
        third = copied(
            Machine(work=top / "m3/w", cuda=opt / "cuda", environment=opt / "environment", lean=opt / "headers"), origin
        )
        runs: dict[str, Run] = {}
        if file is not None and file.is_file():
            known = Run(**json.loads(file.read_text())["no cache"])
            runs = {"no cache": known} if known.objects.keys() == set(targets) else {}
        wanted: dict[str, Callable[[], Run]] = {
            "no cache": lambda: compile_once(first, targets, "off", "", origin=origin),
            "cold": lambda: compile_once(second, targets, "ccache", address, origin=origin),
            "warm, local, another folder": lambda: compile_once(
                copied(Machine(work=top / "fourth", **there), origin), targets, "ccache", "", origin=origin
            ),
            "warm, Redis, another machine": lambda: elsewhere(third, targets, address, top / "m3", origin=origin),
        }
        for name, run in wanted.items():
            runs[name] = runs.get(name) or run()
            print(f"{name}: {runs[name].wall_s} s; {'; '.join(runs[name].lines)}", file=sys.stderr, flush=True)
            if file is not None:
                file.write_text(json.dumps({k: asdict(v) for k, v in runs.items()}, indent=2) + "\n")
    print("| run | wall | with setup | hits | misses | compiled | same bytes as without a cache |")
    print("|---|--:|--:|--:|--:|--:|---|")
    for name, done in runs.items():
        same = sum(done.objects[t] == runs["no cache"].objects[t] for t in targets)
        counts = f"{done.hits} | {done.misses} | {done.compiled}"
        print(f"| {name} | {done.wall_s:.1f} s | {done.whole_s:.1f} s | {counts} | {same} of {len(targets)} |")
    warm = max(done.wall_s for name, done in runs.items() if name.startswith("warm"))
    print(f"caches: {warm / runs['cold'].wall_s:.4f}")


if __name__ == "__main__":
    main()
