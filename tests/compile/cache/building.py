"""What the tests of compiler caches share: one project on several machines."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sm120_wheels.compile.budget import GIB
from sm120_wheels.compile.cache.ccache import Places
from sm120_wheels.compile.cache.choice import Choice
from sm120_wheels.compile.cache.setup import compiler_cache
from sm120_wheels.compile.cache.shared import SharedCache
from sm120_wheels.compile.cache.stats import CacheReport
from sm120_wheels.compile.session import compile_session
from sm120_wheels.compile.summary import CompileSummary
from sm120_wheels.wheel.reproducible import reproducible_build

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
    environment: Path | None = None
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
        outside: bool = False,
    ) -> Built:
        """Compile as ninja does: in the build folder, sources by absolute path. ``outside``: objects are named as CMake
        names those of sources that lie outside of its project."""
        objects = self.top / "objects"
        objects.mkdir(parents=True, exist_ok=True)
        named = {"cuda": self.cuda, "environment": self.environment}
        others = {folder: name for name, folder in named.items() if folder}
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
            # what a file without a profile is taken to need is more than this: it is started alone and waits for nobody
            compile_session(package="p", work_dir=work, budget=GIB) as session,
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
                target = f"x.dir{str(self.sources).replace(' ', '_')}/{name}" if outside else name
                (objects / target).parent.mkdir(parents=True, exist_ok=True)
                command += ["-MD", "-MT", f"{target}.o", "-MF", f"{target}.d", "-c", str(self.sources / name)]
                subprocess.run(
                    [*command, "-o", f"{target}.o"],
                    cwd=objects,
                    env={
                        "PATH": os.environ["PATH"],
                        "HOME": str(self.top),
                        **session.environment,
                        **stable.environment,
                    },
                    check=True,
                )
                if outside:
                    (objects / f"{target}.o").rename(objects / f"{name}.o")
        assert session.cache is not None
        return Built(
            objects={name: (objects / f"{name}.o").read_bytes() for name in names},
            cache=session.cache,
            summary=session.summary,
            said=said,
        )
