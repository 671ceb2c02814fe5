"""A small world for pipeline tests: upstream repositories, recipes of our own, and the real ``sm120`` command."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SM120 = (sys.executable, "-m", "sm120_wheels")

#: Variables of the developer's shell that would steer a run under test.
_OURS = ("SM120_", "UV_", "GIT_", "CUDA", "NVCC_", "CXX", "CC", "CFLAGS", "CXXFLAGS", "LDFLAGS", "CMAKE_")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str

    def failed(self, code: int, *texts: str) -> None:
        """Assert one message with these texts, this exit code and no traceback."""
        shown = f"exit code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"
        assert self.code == code, shown
        assert "Traceback" not in self.out + self.err, shown
        assert self.err.count("error: ") >= 1, shown
        for text in texts:
            assert text in self.err, f"{text!r} is not in\n{shown}"

    def ok(self) -> Outcome:
        assert self.code == 0, f"exit code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"
        return self

    def json(self) -> Any:
        return json.loads(self.ok().out)


def environment(**extra: str) -> dict[str, str]:
    """This process's environment without settings of the shell; wide enough that no message is wrapped."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    return {**kept, "COLUMNS": "200", "LC_ALL": "C.UTF-8", **extra}


def git(folder: Path, *arguments: str, **extra: str) -> str:
    """Run git as a fixed person, deaf to configuration; gives its output without the last newline."""
    env = environment(
        GIT_CONFIG_GLOBAL=os.devnull,
        GIT_CONFIG_NOSYSTEM="1",
        GIT_AUTHOR_NAME="A",
        GIT_AUTHOR_EMAIL="a@example.org",
        GIT_COMMITTER_NAME="A",
        GIT_COMMITTER_EMAIL="a@example.org",
        GIT_AUTHOR_DATE="2024-05-06T07:08:09Z",
        GIT_COMMITTER_DATE="2024-05-06T07:08:09Z",
        **extra,
    )
    done = subprocess.run(["git", *arguments], cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"git {' '.join(arguments)}: {done.stderr}"
    return done.stdout.rstrip("\n")


@dataclass(frozen=True, kw_only=True)
class Upstream:
    """Git repositories that stand for public ones, reached with the mirror setting."""

    root: Path

    @property
    def mirror(self) -> str:
        return f"{self.root.as_uri()}/{{owner}}+{{name}}/repo"

    def repository(self, owner: str, name: str) -> Path:
        return self.root / f"{owner}+{name}" / "repo"

    def work_tree(self, owner: str, name: str) -> Path:
        """A new repository (not bare: a mirror may be either)."""
        folder = self.repository(owner, name)
        folder.mkdir(parents=True)
        git(folder, "init", "--quiet", "--initial-branch=main")
        return folder

    def commit(self, folder: Path, files: Mapping[str, str | bytes] | None = None, message: str = "change") -> str:
        """Write files, commit everything, give the commit's id."""
        for name, content in (files or {}).items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        git(folder, "add", "--all", "--force")
        git(folder, "commit", "--quiet", "--allow-empty", "-m", message)
        return git(folder, "rev-parse", "HEAD")


@dataclass(kw_only=True)
class World:
    """Folders of one test and the command that runs in them."""

    root: Path
    env: dict[str, str] = field(default_factory=dict)
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    """To be ended with the test, however it ends."""

    def __post_init__(self) -> None:
        (self.data / "recipes").mkdir(parents=True)
        (self.data / "patches").mkdir()
        self.cwd.mkdir()

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def cwd(self) -> Path:
        return self.root / "here"

    @property
    def cache(self) -> Path:
        return Path(self.env.get("SM120_CACHE_DIR", self.root / "cache"))

    @property
    def dist(self) -> Path:
        return self.cwd / "dist"

    @property
    def build(self) -> Path:
        return self.cwd / "build"

    @property
    def upstream(self) -> Upstream:
        return Upstream(root=self.root / "mirror")

    def variables(self, **extra: str) -> dict[str, str]:
        return environment(
            **{
                "SM120_DATA_DIR": str(self.data),
                "SM120_CACHE_DIR": str(self.root / "cache"),
                "XDG_CONFIG_HOME": str(self.root / "config"),
                **self.env,
                **extra,
            }
        )

    def sm120(self, *arguments: str | Path, **extra: str) -> Outcome:
        """Run the command to its end."""
        done = subprocess.run(
            [*SM120, *map(str, arguments)],
            cwd=self.cwd,
            env=self.variables(**extra),
            capture_output=True,
            text=True,
            timeout=560,
            check=False,
        )
        return Outcome(code=done.returncode, out=done.stdout, err=done.stderr)

    def start(self, *arguments: str | Path, **extra: str) -> subprocess.Popen[str]:
        """Start the command in its own process group."""
        process = subprocess.Popen(
            [*SM120, *map(str, arguments)],
            cwd=self.cwd,
            env=self.variables(**extra),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def profile(self, name: str, file: str, rows: str) -> None:
        """What a recipe's files take: one without a profile is taken to need gigabytes, and would wait for them on a
        machine whose other programs have the memory. ``rows``: SOURCE,MIB,SECONDS."""
        path = self.data / "recipes" / name / "profiles" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"source,peak_mib,seconds\n{rows}")

    def recipe(self, name: str, text: str) -> Path:
        """Write a recipe; the real locks lie beside it."""
        file = self.data / "recipes" / name / "recipe.toml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        self.locks()
        return file

    def locks(self) -> Path:
        """A folder of locks: links to the real ones, so that a test can add its own."""
        folder = self.data / "recipes" / "locks"
        if not folder.is_dir():
            folder.mkdir()
            for lock in (ROOT / "recipes" / "locks").iterdir():
                (folder / lock.name).symlink_to(lock)
        return folder

    def patch(self, name: str, versions: str, file: str, text: str) -> Path:
        path = self.data / "patches" / name / versions / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path


def finish(process: subprocess.Popen[str], *, interrupt: signal.Signals | None = None) -> Outcome:
    """Wait for a started command, after a signal to it alone."""
    if interrupt is not None:
        process.send_signal(interrupt)
    out, err = process.communicate(timeout=120)
    return Outcome(code=process.returncode, out=out, err=err)


def recipe_toml(
    *,
    name: str = "demo",
    sources: str,
    main: str = "demo",
    version: str = "1.0",
    extra: str = "",
    top: str = "",
    archs: str = "",
    pairings: str = '{ cuda = "13.0", torch = "2.11.0", python = ["3.10", "3.11", "3.12", "3.13"] }',
    tools: str = "build-cmake3",
) -> str:
    """A small recipe. ``extra`` goes into the version's table, ``top`` before the versions."""
    archs = archs or 'default = "12.0a"\nsupported = ["12.0a", "12.0f", "9.0a"]\nrefused = {"12.0" = "needs FP4"}'
    return f"""\
edition = 1
name = "{name}"
summary = "a package for tests"
licence = "Apache-2.0"
backend = "scikit-build-core"
default_version = "{version}"

[architectures]
{archs}

{top}

[versions."{version}"]
distribution = "{name}"
import = "{name}"
main = "{main}"
tools = ["{tools}"]
cuda_needs = ["compiler"]
pairings = [{pairings}]
{extra}

{sources}
"""


def git_source(commit: str, *, name: str = "demo", owner: str = "up", version: str = "1.0", more: str = "") -> str:
    return (
        f'[versions."{version}".sources.{name}]\ngit = "https://example.org/{owner}/{name}"\n'
        f'commit = "{commit}"\nlicence = "MIT"\n{more}\n'
    )


def make_patch(
    before: Mapping[str, str], after: Mapping[str, str], scratch: Path, *, headers: Sequence[str] = ()
) -> str:
    """A patch in our format, made by git itself."""
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    git(scratch, "init", "--quiet")
    upstream = Upstream(root=scratch)
    upstream.commit(scratch, before)
    for name in set(before) - set(after):
        (scratch / name).unlink()
    for name, text in after.items():
        (scratch / name).parent.mkdir(parents=True, exist_ok=True)
        (scratch / name).write_text(text, encoding="utf-8")
    git(scratch, "add", "--all")
    diff = git(scratch, "diff", "--cached", "--no-color")
    head = ["Subject: [PATCH] Change what has to change", "Date: Mon, 6 May 2024 07:08:09 +0000"]
    head += ["Upstream-Status: not proposed", *headers]
    return "\n".join([*head, "", "Why it is needed.", "Kernels removed: none.", "---", diff, ""])
