"""What the index is for: real pip and real uv, in clean environments, against the served index."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import uv

from sm120_wheels.index.layout import Snapshot
from sm120_wheels.index.maintain import yank
from sm120_wheels.index.publish import publish
from tests.index.makewheel import make_wheel
from tests.index.serving import served

NEW, OLD = "0.2.0+cu130.torch211.sm120a", "0.1.0+cu130.torch211.sm120a"


@dataclass
class Index:
    address: str
    root: Path
    torch: Path
    """A folder with wheels of something called torch: what a general index would bring."""


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    folder = tmp_path_factory.mktemp("install")
    needs = ("torch==2.11.*",)
    version = f"cp3{sys.version_info.minor + 1}"
    publish(
        folder / "index",
        [
            make_wheel(folder, version=OLD, requires_dist=needs),
            make_wheel(folder, version=NEW, requires_dist=needs),
            make_wheel(folder, version="0.3.0+cu128.torch28.sm120a", requires_dist=("torch==2.8.*",)),
            make_wheel(folder, "other-python", "1.0+cu130.sm120a", tag=f"{version}-{version}-linux_x86_64"),
            make_wheel(folder, "later-python", "1.0+cu130.sm120a", requires_python=">=3.99"),
            make_wheel(folder, "bad-kernels", "1.0+cu130.sm120a"),
        ],
    )
    yank(folder / "index", "bad-kernels", reason="wrong results on FP4")
    for torch in ("2.8.0", "2.10.0", "2.11.0"):
        make_wheel(folder / "torch", "torch", torch, tag="py3-none-any", audit={})
    with served(folder / "index") as address:
        yield Index(address=address, root=folder / "index", torch=folder / "torch")


@dataclass
class Installer:
    """pip or uv in an environment of its own, reaching nothing but the served index."""

    install: list[str]
    python: Path
    index_option: str

    def __call__(self, *arguments: str, index: Index, label: str = "cu130") -> subprocess.CompletedProcess[str]:
        argv = [*self.install, self.index_option, f"{index.address}{label}/"]
        argv += ["--find-links", str(index.torch), *arguments]
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "UV_"))}
        env |= {"PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1", "UV_PYTHON_DOWNLOADS": "never", "NO_COLOR": "1"}
        return subprocess.run(argv, capture_output=True, text=True, env=env, timeout=120)

    def version(self, project: str) -> str | None:
        code = "import importlib.metadata as m, sys; print(*{d.version for d in m.distributions(name=sys.argv[1])})"
        asked = subprocess.run([self.python, "-c", code, project], capture_output=True, text=True, check=True)
        return asked.stdout.strip() or None


@pytest.fixture(params=["pip", "uv"])
def installer(request: pytest.FixtureRequest, tmp_path: Path) -> Installer:
    environment = tmp_path / "env"
    binary = uv.find_uv_bin()
    argv: list[str | Path] = [binary, "venv", "-q", "--no-config", "-p", sys.executable, environment]
    subprocess.run(argv, check=True, timeout=60)
    python = environment / "bin/python"
    if request.param == "pip":
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-cache-dir", "--no-input"]
        return Installer(install=pip, python=python, index_option="--index-url")
    cache = str(tmp_path / "cache")
    return Installer(
        install=[binary, "pip", "install", "--python", str(python), "--cache-dir", cache],
        python=python,
        index_option="--default-index",
    )


def test_newest_of_its_cuda_version_is_installed_by_name(index: Index, installer: Installer) -> None:
    done = installer("sm120-selftest", index=index)
    assert done.returncode == 0, done.stderr
    assert installer.version("sm120-selftest") == NEW
    assert installer.version("torch") == "2.11.0"


@pytest.mark.parametrize("requirement", [f"sm120-selftest=={OLD}", "sm120_selftest<0.2"])
def test_exact_local_version_and_ranges_are_installed(index: Index, installer: Installer, requirement: str) -> None:
    done = installer(requirement, index=index)
    assert done.returncode == 0, done.stderr
    assert installer.version("sm120-selftest") == OLD


def test_hashes_are_required_and_checked(index: Index, installer: Installer, tmp_path: Path) -> None:
    project = Snapshot.current(index.root).project("sm120-selftest")
    assert project is not None
    wheel = next(w for w in project.wheels if w.version == OLD)
    lock = tmp_path / "requirements.txt"
    lock.write_text(f"{wheel.requirement} --hash=sha256:{'0' * 64}\n")
    wrong = installer("--require-hashes", "--no-deps", "-r", str(lock), index=index)
    assert wrong.returncode != 0
    assert "hash" in (wrong.stderr + wrong.stdout).lower()
    assert installer.version("sm120-selftest") is None
    lock.write_text(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n")
    right = installer("--require-hashes", "--no-deps", "-r", str(lock), index=index)
    assert right.returncode == 0, right.stderr
    assert installer.version("sm120-selftest") == OLD


def refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    told = " ".join((done.stderr + done.stdout).split())
    assert done.returncode != 0, told
    assert any(word in told for word in words), told
    assert "Traceback" not in told


def test_wrong_cuda_index_refuses_the_version(index: Index, installer: Installer) -> None:
    refused(
        installer(f"sm120-selftest=={NEW}", index=index, label="cu128"),
        f"No matching distribution found for sm120-selftest=={NEW}",
        f"there is no version of sm120-selftest=={NEW}",
    )
    assert installer.version("sm120-selftest") is None


def test_cuda_index_that_does_not_exist_is_a_clear_refusal(index: Index, installer: Installer) -> None:
    refused(
        installer("sm120-selftest", index=index, label="cu999"), "No matching distribution", "not found in the package"
    )


def test_wrong_torch_is_refused_naming_the_torch_it_needs(index: Index, installer: Installer) -> None:
    done = installer(f"sm120-selftest=={NEW}", "torch==2.10.0", index=index)
    refused(done, "torch==2.11.*")
    assert "torch==2.10.0" in done.stderr + done.stdout


@pytest.mark.parametrize("project", ["other-python", "later-python"])
def test_wrong_python_is_refused(index: Index, installer: Installer, project: str) -> None:
    refused(
        installer(project, index=index),
        "No matching distribution found",
        "no wheels with a matching Python",
        "does not satisfy Python>=3.99",
        "requires a different Python",
    )


def test_yanked_wheel_is_taken_only_where_it_is_pinned(index: Index, installer: Installer) -> None:
    by_name = installer("bad-kernels>=0.5", index=index)
    assert by_name.returncode != 0 or "yanked" in by_name.stderr + by_name.stdout
    pinned = installer("bad-kernels==1.0+cu130.sm120a", index=index)
    assert pinned.returncode == 0, pinned.stderr
    assert installer.version("bad-kernels") == "1.0+cu130.sm120a"
