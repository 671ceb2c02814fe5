"""docker/: every download is pinned, hadolint agrees, and what is not pinned is refused."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.version import Version

from sm120_wheels import images
from sm120_wheels.compile.cache.ccache import LEAST_VERSION
from sm120_wheels.errors import SettingError, ToolMissingError
from sm120_wheels.toolchain.locks import read_lock
from tests.support.inprocess import in_process
from tests.support.world import ROOT, World

FILES = sorted((ROOT / "docker").glob("*.Dockerfile"))
DIGEST = f"debian@sha256:{'0' * 64}"
#: What a person has to give for each image.
GIVEN = {
    "debian": {"BASE": DIGEST},
    "index": {"BASE": DIGEST},
    "manylinux": {"NUMACTL_VERSION": "2.0.16-4.el8"},
}


def program(name: str) -> str:
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        pytest.skip(f"not run: {name} is not installed here (it is in the group lint)")
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_everything_is_pinned_once_the_arguments_are_given(file: Path) -> None:
    given = GIVEN[file.name.removesuffix(".Dockerfile")]
    assert images.unpinned(file.read_text(), given) == []
    assert images.unpinned(file.read_text(), {}), "an argument without a default must be asked for"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_hadolint_finds_nothing(file: Path) -> None:
    done = subprocess.run([program("hadolint"), str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["debian", "manylinux"])
def test_an_image_that_builds_brings_a_ccache_that_a_build_takes(name: str) -> None:
    """Their distributions' are too old: a build would say so and compile everything each time."""
    installed = [one.text for one in images.read((ROOT / f"docker/{name}.Dockerfile").read_text()) if one.name == "RUN"]
    assert any("/opt/ccache.txt" in command for command in installed)
    assert not any(re.search(r"(apt-get|dnf) .*\bccache\b", command) for command in installed)
    (locked,) = read_lock(ROOT / "recipes/locks/ccache.txt")
    assert Version(locked.version).release[:2] >= LEAST_VERSION


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("FROM debian:bullseye", "line 1: the base debian:bullseye has no digest"),
        (f"FROM debian:bullseye@sha256:{'0' * 63}", "has no digest"),
        ("ARG BASE=debian:12\nFROM ${BASE}", "line 2: the base debian:12 has no digest"),
        ("ARG BASE\nFROM ${BASE}", "line 1: the build argument BASE has to be given"),
        (f"FROM {DIGEST}\nRUN pip install nox", "line 2: pip install without --require-hashes"),
        (f"FROM {DIGEST}\nRUN curl -LO https://x/y && \\\n  tar xf y", "line 2: a download without sha256sum"),
        (f"FROM {DIGEST}\nRUN apt-get -qq update && apt-get install -y gcc", "apt-get installs from no snapshot"),
        (
            f"FROM {DIGEST}\nARG DEBIAN_MIRROR=http://snapshot.debian.org/archive/debian/1\n"
            "ARG DEBIAN_SECURITY_MIRROR=http://security.debian.org\nRUN apt-get -qq install -y gcc",
            "apt-get installs from no snapshot",
        ),
        (f'FROM {DIGEST}\nRUN dnf -y install gcc "make-4.2.1-11.el8"', "dnf installs gcc in no certain version"),
    ],
)
def test_what_is_not_pinned_is_told_with_its_line(text: str, told: str) -> None:
    (problem,) = images.unpinned(text, {})
    assert told in problem


def test_stages_comments_and_local_images_are_no_problem() -> None:
    text = f"# c\nFROM {DIGEST} AS one\n\nFROM one AS two\nRUN a && \\\n  # c\n  b\nARG BASE\nFROM ${{BASE}}\n"
    assert images.unpinned(text, {"BASE": "localhost/bullseye:base"}) == []
    assert [one.text for one in images.read(text) if one.name == "RUN"] == ["a && b"]


def test_the_command_refuses_and_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = in_process(World(root=tmp_path), monkeypatch, capsys)
    shutil.copytree(ROOT / "docker", world.data / "docker")
    world.sm120("image", "debian", "--engine", "sh").failed(
        17, "the image debian is not pinned", "BASE has to be given"
    )
    world.sm120("image", "debian", "--build-arg", "BASE=debian:11", "--engine", "sh").failed(
        17, "debian:11 has no digest"
    )
    world.sm120("image", "debain").failed(17, "no image is called 'debain'", "did you mean debian")
    world.sm120("image", "debian", "--build-arg", "BASE").failed(17, "has no value")
    good = ("image", "debian", "--build-arg", f"BASE={DIGEST}")
    world.sm120(*good, "--engine", "no-such-engine").failed(40, "there is no no-such-engine")
    told = world.sm120(*good, "--engine", "sh", "--dry-run", "--", "--network=host").ok().out
    assert told.startswith("sh build --file ")
    assert f"--build-arg BASE={DIGEST} --network=host" in told


def test_without_an_engine_podman_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ToolMissingError) as caught:
        images.command("debian", tag="x", given={"BASE": DIGEST}, target=None, engine=None)
    assert "podman" in caught.value.hint
    with pytest.raises(SettingError):
        images.command("none", tag="x", given={}, target=None, engine=None)


# -- cibuildwheel


def cibuildwheel(*arguments: str) -> str:
    argv = [program("cibuildwheel"), "--platform", "linux", "--config-file", "docker/cibuildwheel.toml", *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_cibuildwheel_takes_one_stable_abi_build_for_each_architecture() -> None:
    told = cibuildwheel("--archs", "all", "--print-build-identifiers", "recipes/selftest/source")
    assert told.split() == ["cp310-manylinux_x86_64", "cp310-manylinux_aarch64"]


def test_cibuildwheel_reads_our_options_as_they_are_meant() -> None:
    python = Path(program("cibuildwheel")).parent / "python"
    code = """
import json, os
from pathlib import Path
from cibuildwheel.options import CommandLineArguments, compute_options
given = CommandLineArguments.defaults()
given.package_dir, given.config_file = Path("recipes/selftest/source"), "docker/cibuildwheel.toml"
given.archs = "x86_64"
options = compute_options(platform="linux", command_line_arguments=given, env=os.environ)
build = options.build_options("cp310-manylinux_x86_64")
print(json.dumps({
    "images": {k: str(v) for k, v in build.manylinux_images.items()},
    "before_all": build.before_all, "before_build": build.before_build,
    "repair": build.repair_command, "pass": [],
}, default=str))
"""
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    told = done.stdout
    assert "manylinux_2_28_x86_64@sha256:e0adf18521ad35192df733a6c62d35df7801957d24e0470238aacecfab2188a3" in told
    assert "sm120 prepare ${SM120_RECIPE:-selftest}" in told
    assert "--require-hashes -r {project}/recipes/locks/build-cmake4.txt" in told
    assert "auditwheel repair --exclude 'libtorch*'" in told


def test_the_images_of_cibuildwheel_and_of_the_dockerfile_are_one() -> None:
    text = (ROOT / "docker/cibuildwheel.toml").read_text()
    base = next(
        one.text for one in images.read((ROOT / "docker/manylinux.Dockerfile").read_text()) if one.name == "ARG"
    )
    assert base.removeprefix("BASE=") in text
