"""Compiler caches through the real command: what a second machine's build takes from a shared store, what a patch
compiles anew, and that no secret is left anywhere."""

from __future__ import annotations

import shutil
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sm120_wheels.compile.cache.ccache import find
from tests.compile.cache.servers import KINDS, SECRET, Shared
from tests.support import world as worlds
from tests.support.demo import DEMO, arguments, prepare
from tests.support.servers import held_port
from tests.support.world import Outcome, World, make_patch

pytestmark = [
    pytest.mark.long,
    pytest.mark.cuda,
    pytest.mark.network,
    pytest.mark.skipif(isinstance(find(), str), reason=f"not run: {find()}"),
]


#: ``sm120``, with a minute for a store to answer: a test's own server on a loaded machine takes longer than is allowed.
PATIENT = (
    "from sm120_wheels.compile.cache import gateway, stores; stores.CONNECT_S = stores.ANSWER_S = 60.0; "
    "gateway._PROBE_S = 60.0; from sm120_wheels.cli import main; main()"
)


@pytest.fixture(params=KINDS)
def there(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shared]:
    monkeypatch.setattr(worlds, "SM120", (sys.executable, "-c", PATIENT))
    with KINDS[request.param](tmp_path / "server") as shared:
        yield shared


def other_machine(world: World, name: str) -> dict[str, str]:
    """Settings for work, results and objects elsewhere; the tools are the same."""
    return {
        "SM120_BUILD_DIR": str(world.root / name / "build"),
        "SM120_DIST_DIR": str(world.root / name / "dist"),
        "CCACHE_DIR": str(world.root / name / "ccache"),
    }


def cache_of(outcome: Outcome) -> dict[str, Any]:
    counts: dict[str, Any] = outcome.json()["stages"]["compile"]["output"]["scheduler"]["cache"]
    return counts


def watching_compiler(world: World) -> Path:
    """g++ that writes down every command line there is, the environment of a compile and that of the brokers."""
    script = world.root / "bin" / "g++"
    script.parent.mkdir()
    script.write_text(
        "#!/bin/sh\n"
        "{ cat /proc/[0-9]*/cmdline\n"
        'case "$*" in *a.cc*) cat /proc/self/environ ;; esac\n'
        "for p in $(grep -ls compile.broker /proc/[0-9]*/cmdline); do cat ${p%cmdline}environ; done\n"
        f"}} 2>/dev/null | tr '\\0' '\\n' >> {world.root}/seen\n"
        f'exec {shutil.which("g++")} "$@"\n'
    )
    script.chmod(0o755)
    return script


def test_another_machine_takes_what_was_compiled_and_no_secret_is_left(
    world: World, stand_in: Path, there: Shared
) -> None:
    prepare(world, stand_in)
    compiler = str(watching_compiler(world))
    command = [*arguments(world), "--host-compiler", compiler, "--shared-cache", there.address, "--keep-work"]
    secrets = {**there.environ, "SM120_SHARED_CACHE_KEY": "sign-it"}
    first = world.sm120(*command, "--json", **secrets, **other_machine(world, "one"))
    second = world.sm120(*command, **secrets, **other_machine(world, "two, far"))
    one, two = (next((world.root / name / "dist").glob("*.whl")) for name in ("one", "two, far"))
    assert one.read_bytes() == two.read_bytes()
    assert "2 of 2 compiles were there already, 2 of them in the shared cache" in second.ok().out
    assert "at most" not in second.out, "nothing was compiled, so nothing was measured"
    told = cache_of(first)
    assert (told["misses"], told["hit_rate"], told["shared"]["stored"]) == (2, 0.0, 4)
    assert there.address.partition("?")[0] == told["shared"]["where"]

    seen = (world.root / "seen").read_text(errors="replace")
    assert "a.cc" in seen, "the compiler looked around"
    assert "sm120_wheels.compile.broker" in seen
    for said in (first.out, first.err, second.out, second.err, seen):
        assert SECRET not in said
        assert "sign-it" not in said
    for file in world.root.rglob("*"):
        if not file.is_file() or file.is_symlink():
            continue
        contents = [file.read_bytes()]
        if file.suffix == ".whl":
            with zipfile.ZipFile(file) as bundle:
                contents += [bundle.read(name) for name in bundle.namelist()]
        for content in contents:
            assert SECRET.encode() not in content, file
            assert b"sign-it" not in content, file


def test_a_patch_compiles_only_what_it_touches(world: World, stand_in: Path) -> None:
    prepare(world, stand_in)
    first = world.sm120(*arguments(world), "--json")
    after = {**DEMO, "a.cc": DEMO["a.cc"].replace("return 1", "return 41")}
    world.patch("demo", "1.0", "0001-answer.patch", make_patch(dict(DEMO), after, world.root / "scratch"))
    second = world.sm120(*arguments(world), "--json", "--keep-work")
    assert (cache_of(first)["hits"], cache_of(first)["misses"]) == (0, 2)
    assert (cache_of(second)["hits"], cache_of(second)["misses"], cache_of(second)["hit_rate"]) == (1, 1, 0.5)
    compiled = second.json()["stages"]["compile"]["output"]["scheduler"]["units"]
    assert [Path(unit["source"]).name for unit in compiled] == ["a.cc"]
    assert second.json()["key"] != first.json()["key"]


@pytest.mark.parametrize("kind", ["redis", "http"])
def test_a_store_that_cannot_be_reached_is_said_once(world: World, stand_in: Path, kind: str) -> None:
    prepare(world, stand_in)
    with held_port() as port:
        address = f"{kind}://127.0.0.1:{port}"
        outcome = world.sm120(*arguments(world), "--shared-cache", address).ok()
    assert (outcome.out + outcome.err).count("cannot be used (Connection refused)") == 1
    assert f"shared cache {address}: not used (Connection refused)" in outcome.out
