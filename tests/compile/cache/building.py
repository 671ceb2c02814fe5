"""What the tests of compiler caches share: one project on several machines, and real servers."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sm120_wheels.compile.cache.ccache import Places
from sm120_wheels.compile.cache.choice import Choice
from sm120_wheels.compile.cache.setup import compiler_cache
from sm120_wheels.compile.cache.shared import SharedCache
from sm120_wheels.compile.cache.stats import CacheReport
from sm120_wheels.compile.session import compile_session
from sm120_wheels.compile.summary import CompileSummary
from sm120_wheels.wheel.reproducible import reproducible_build
from tests.compile.building import until

EPOCH = 1_700_000_000


@dataclass(frozen=True, kw_only=True)
class Built:
    """``objects``: source → bytes; ``said``: what a person was told."""

    objects: dict[str, bytes]
    cache: CacheReport
    summary: CompileSummary
    said: list[str]


@dataclass(kw_only=True)
class Tree:
    """A copy of a project: sources at one path, objects at another; the toolkit's and the environment's folders too."""

    top: Path
    cuda: Path | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    epoch: int = EPOCH

    @property
    def sources(self) -> Path:
        return self.top / "sources"

    def write(self, **files: str) -> Tree:
        """``a__cu="…"`` writes a.cu."""
        for name, text in files.items():
            file = self.sources / name.replace("__", ".")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return self

    def build(
        self,
        *names: str,
        choice: Choice = "ccache",
        shared: SharedCache | None = None,
        options: tuple[str, ...] = (),
        prefix: tuple[str, ...] = (),
        nvcc: Path | None = None,
    ) -> Built:
        """Compile as ninja does: in the build folder, sources by absolute path."""
        objects = self.top / "objects"
        objects.mkdir(parents=True, exist_ok=True)
        others = {self.cuda: "cuda"} if self.cuda else {}
        stable = reproducible_build(
            source_root=self.sources, build_root=objects, source_date_epoch=self.epoch, others=others
        )
        places = Places(
            build_root=objects,
            roots={self.sources: "src", **others},
            header_folders=(self.sources,),
            cuda_root=self.cuda,
            host_compiler=Path(shutil.which("g++") or "g++"),
        )
        said: list[str] = []
        work = self.top / "work"
        with (
            compile_session(package="p", work_dir=work) as session,
            compiler_cache(
                session,
                places,
                choice=choice,
                shared_cache=shared,
                work_dir=work,
                tell=said.append,
                environ={**os.environ, **self.environ},
            ),
        ):
            for name in names:
                compiler = str(nvcc or (self.cuda and self.cuda / "bin" / "nvcc")) if name.endswith(".cu") else "g++"
                command = [*prefix, *stable.launcher, *session.launcher, compiler, f"-I{self.sources}", *options]
                command += ["-MD", "-MT", f"{name}.o", "-MF", f"{name}.d", "-c", str(self.sources / name)]
                subprocess.run(
                    [*command, "-o", f"{name}.o"],
                    cwd=objects,
                    env={
                        "PATH": os.environ["PATH"],
                        "HOME": str(self.top),
                        **session.environment,
                        **stable.environment,
                    },
                    check=True,
                )
        assert session.cache is not None
        return Built(
            objects={name: (objects / f"{name}.o").read_bytes() for name in names},
            cache=session.cache,
            summary=session.summary,
            said=said,
        )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def redis_server(folder: Path, *options: str) -> Iterator[int]:
    """A real server on loopback; gives its port."""
    port = free_port()
    folder.mkdir(exist_ok=True)
    server = subprocess.Popen(
        ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder), *options],
        stdout=subprocess.DEVNULL,
    )
    try:
        until(lambda: _answers(port), what="redis answers")
        yield port
    finally:
        server.terminate()
        server.wait()


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False
