"""Compiles on builders of sccache-dist: no builder, one, two, and two of which one is killed midway.

    python -m benchmarks.distributed WORK --target CMakeFiles/…/copy.cu.o … [--jobs N] [--memory GIB] [--json FILE]

WORK and targets as for caches.py. Each builder runs in a network namespace and a memory cgroup of its own and is
reached over a bridge. The objects of all runs must be the same. All builders share this machine's cores, so the ratio
of two builders to one that the last line gives shows what sending costs and cannot show what more cores would bring.

Needs root (namespaces, overlay mounts), bubblewrap, cgroups (version 1) and sccache.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import psutil

from benchmarks.caches import Machine, Run, compile_once, copied, found_in

_NET = "10.213.78"
_NAME = f"sm-d{os.getpid()}"


@dataclass(frozen=True, kw_only=True)
class Builder:
    number: int
    process: subprocess.Popen[bytes]
    cgroup: Path

    def peak(self) -> int:
        """Bytes, the page cache included."""
        return int((self.cgroup / "memory.max_usage_in_bytes").read_text())

    def kill(self) -> None:
        parent = psutil.Process(self.process.pid)
        for one in [*parent.children(recursive=True), parent]:
            one.send_signal(signal.SIGKILL)

    def works(self) -> bool:
        try:
            return len(psutil.Process(self.process.pid).children(recursive=True)) > 1
        except psutil.NoSuchProcess:
            return False


def ip(*lines: str) -> None:
    for line in lines:
        subprocess.run(["ip", *line.split()], check=True)


@contextmanager
def bridge() -> Iterator[None]:
    ip(f"link add {_NAME} type bridge", f"addr add {_NET}.1/24 dev {_NAME}", f"link set {_NAME} up")
    try:
        yield
    finally:
        ip(f"link del {_NAME}")


def start(command: list[str | Path], log: Path, *, cgroup: Path | None = None) -> subprocess.Popen[bytes]:
    def enter() -> None:
        if cgroup is not None:
            (cgroup / "cgroup.procs").write_text(str(os.getpid()))

    with log.open("wb") as stream:
        return subprocess.Popen(
            command,
            stdout=stream,
            stderr=stream,
            env={**os.environ, "SCCACHE_NO_DAEMON": "1", "SCCACHE_LOG": "info"},
            preexec_fn=enter,
        )


@contextmanager
def builder(top: Path, number: int, token: str, programs: Path, memory: int) -> Iterator[Builder]:
    space, outer, inner = f"{_NAME}-{number}", f"smo{os.getpid()}-{number}", f"smi{os.getpid()}-{number}"
    folder = top.parent / f"builder-{number}"  # toolchains stay there from run to run
    folder.mkdir(exist_ok=True)
    (folder / "builder.toml").write_text(
        f'cache_dir = "{folder}/toolchains"\npublic_addr = "{_NET}.{number + 10}:10501"\n'
        f'scheduler_url = "http://{_NET}.1:10600"\n'
        f'[builder]\ntype = "overlay"\nbuild_dir = "{folder}/build"\nbwrap_path = "/usr/bin/bwrap"\n'
        f'[scheduler_auth]\ntype = "token"\ntoken = "{token}"\n'
    )
    ip(
        f"netns add {space}",
        f"link add {outer} type veth peer name {inner} netns {space}",
        f"link set {outer} master {_NAME}",
        f"link set {outer} up",
        f"-n {space} addr add {_NET}.{number + 10}/24 dev {inner}",
        f"-n {space} link set {inner} up",
        f"-n {space} link set lo up",
    )
    cgroup = Path(f"/sys/fs/cgroup/memory/{space}")
    cgroup.mkdir()
    (cgroup / "memory.limit_in_bytes").write_text(str(memory))
    command: list[str | Path] = ["ip", "netns", "exec", space, programs / "sccache-dist", "server"]
    process = start([*command, "--config", folder / "builder.toml"], folder / "log", cgroup=cgroup)
    made = Builder(number=number, process=process, cgroup=cgroup)
    try:
        yield made
    finally:
        if process.poll() is None:
            made.kill()
        process.wait()
        ip(f"link del {outer}", f"netns del {space}")
        while cgroup.is_dir():
            try:
                cgroup.rmdir()
            except OSError:
                time.sleep(0.1)


@contextmanager
def scheduler(top: Path, client: str, server: str, programs: Path) -> Iterator[None]:
    (top / "scheduler.toml").write_text(
        f'public_addr = "{_NET}.1:10600"\n[client_auth]\ntype = "token"\ntoken = "{client}"\n'
        f'[server_auth]\ntype = "token"\ntoken = "{server}"\n'
    )
    (top / "client.toml").write_text(
        f'[dist]\nscheduler_url = "http://{_NET}.1:10600"\ntoolchain_cache_size = 10737418240\n'
        f'cache_dir = "{top.parent}/client"\n[dist.auth]\ntype = "token"\ntoken = "{client}"\n'
    )
    for file in top.glob("*.toml"):
        file.chmod(0o600)
    process = start([programs / "sccache-dist", "scheduler", "--config", top / "scheduler.toml"], top / "log")
    try:
        yield
    finally:
        process.kill()
        process.wait()


def ready(top: Path, programs: Path, count: int) -> None:
    """Wait until the scheduler knows so many builders; asked of it by a server of sccache that ends again."""
    env = {**os.environ, "SCCACHE_CONF": str(top / "client.toml"), "SCCACHE_SERVER_UDS": str(top / "asking")}
    try:
        for _ in range(120):
            said = subprocess.run([programs / "sccache", "--dist-status"], env=env, capture_output=True, check=False)
            if f'"num_servers":{count}' in said.stdout.decode().replace(" ", ""):
                return
            time.sleep(0.5)
        raise click.ClickException(f"the scheduler does not see {count} builders: {said.stdout!r} {said.stderr!r}")
    finally:
        subprocess.run([programs / "sccache", "--stop-server"], env=env, capture_output=True, check=False)


@click.command()
@click.argument("work", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--target", "targets", multiple=True, required=True, help="An object of the build. Repeatable.")
@click.option("--jobs", type=click.IntRange(1), default=2, show_default=True, help="Compiles under way at once.")
@click.option("--memory", type=click.FloatRange(0.1), default=4.0, show_default=True, help="Of each builder, GiB.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the runs there as JSON.")
def main(work: Path, targets: tuple[str, ...], jobs: int, memory: float, file: Path | None) -> None:
    origin = found_in(work)
    programs = Path(sys.executable).parent
    os.environ["PATH"] = f"{programs}{os.pathsep}{os.environ['PATH']}"
    runs: dict[str, Run] = {}
    peaks: dict[str, list[int]] = {}
    with ExitStack() as stack:
        top = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sm120-dist-")))
        os.environ |= {"SM120_CACHE_DIR": str(top / "cache"), "SM120_RUNTIME_DIR": str(top / "run")}
        stack.enter_context(bridge())

        def run(name: str, builders: int, *, kill: bool = False) -> None:
            machine = copied(
                Machine(
                    work=top / name.replace(" ", "-"),
                    cuda=origin.cuda,
                    environment=origin.environment,
                    lean=origin.lean,
                ),
                origin,
            )
            os.environ["SCCACHE_DIR"] = str(top / f"objects of {name}")
            os.environ.pop("SCCACHE_CONF", None)
            with ExitStack() as those:
                if builders:
                    area = top / f"dist-{len(runs)}"
                    area.mkdir()
                    os.environ["SCCACHE_CONF"] = str(area / "client.toml")
                    client, server = secrets.token_hex(16), secrets.token_hex(16)
                    those.enter_context(scheduler(area, client, server, programs))
                    made = [
                        those.enter_context(builder(area, n, server, programs, int(memory * 2**30)))
                        for n in range(builders)
                    ]
                    ready(area, programs, builders)
                    if kill:
                        threading.Thread(target=_kill_at_work, args=(made[-1],), daemon=True).start()
                runs[name] = compile_once(machine, targets, "sccache", "", origin=origin, jobs=jobs)
                peaks[name] = [one.peak() for one in made] if builders else []
                if kill and made[-1].process.poll() is None:
                    raise click.ClickException("the builder that was to be killed never had anything to do")
            print(f"{name}: {runs[name].wall_s} s; {'; '.join(runs[name].lines)}", file=sys.stderr, flush=True)
            if file is not None:
                text = json.dumps({k: asdict(v) | {"peaks": peaks[k]} for k, v in runs.items()}, indent=2)
                file.write_text(f"{text}\n")

        run("no builder", 0)
        run("one builder", 1)
        run("two builders", 2)
        run("two builders, one killed", 2, kill=True)
    print("| run | wall | same bytes as without builders | most memory of a builder |\n|---|--:|---|--:|")
    for name, done in runs.items():
        same = sum(done.objects[t] == runs["no builder"].objects[t] for t in targets)
        most = f"{max(peaks[name]) / 1e9:.2f} GB" if peaks[name] else ""
        print(f"| {name} | {done.wall_s:.1f} s | {same} of {len(targets)} | {most} |")
    print(f"distributed: {runs['two builders'].wall_s / runs['one builder'].wall_s:.3f}")


def _kill_at_work(victim: Builder) -> None:
    while not victim.works():
        time.sleep(0.05)
    victim.kill()


if __name__ == "__main__":
    main()
