"""Every kind of shared store, as a real server: two machines share, and damaged entries are misses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sm120_wheels.compile.cache.ccache import find
from sm120_wheels.compile.cache.shared import Credentials, SharedCache, credentials, parse
from sm120_wheels.compile.cache.stores import RedisStore, StoreError, open_store
from tests.compile.building import Runtime
from tests.compile.cache.building import Tree
from tests.compile.cache.servers import KINDS, SECRET, Shared, redis_cli, redis_server

pytestmark = pytest.mark.usefixtures("patient")

FILES = {"a__cpp": "int a() { return 1; }\n", "b__cpp": "int b() { return 2; }\n"}
needs_ccache = pytest.mark.skipif(isinstance(find(), str), reason=f"not run: {find()}")


@pytest.fixture(params=KINDS)
def there(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shared]:
    with KINDS[request.param](tmp_path / "server") as shared:
        for name, value in shared.environ.items():
            if name.startswith("AWS_"):
                monkeypatch.setenv(name, value)
        yield shared


def cache_of(shared: Shared) -> SharedCache:
    parsed = parse(shared.address, "the test")
    assert parsed is not None
    return parsed


def test_a_store_gives_back_what_was_put_and_refuses_those_it_does_not_know(
    there: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(cache_of(there), credentials(there.environ))
    store.probe()
    assert store.get("k") is None
    for data in (b"first", bytes(range(256)) * 20_000):
        store.put("k", data)
        assert store.get("k") == data
    store.close()
    if there.address.startswith("s3"):
        return  # the test's server checks no signatures
    for wrong in (Credentials(), Credentials(user="me", password="wrong-one"), Credentials(password="wrong-one")):
        with pytest.raises(StoreError, match=r"the server (refused|answered 401)") as caught:
            open_store(cache_of(there), wrong).probe()
        assert "wrong-one" not in str(caught.value)


def other_machine(tmp_path: Path, name: str, there: Shared, monkeypatch: pytest.MonkeyPatch) -> Tree:
    monkeypatch.setenv("SM120_CACHE_DIR", str(tmp_path / f"cache of {name}"))
    return Tree(top=tmp_path / name, environ=dict(there.environ)).write(**FILES)


@needs_ccache
def test_two_machines_share_and_no_secret_is_written_anywhere(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: Shared
) -> None:
    there = replace(there, environ={**there.environ, "SM120_SHARED_CACHE_KEY": "sign-it"})
    built = [
        other_machine(tmp_path, name, there, monkeypatch).build("a.cpp", "b.cpp", shared=cache_of(there))
        for name in ("one", "two, far")
    ]
    first, second = (one.cache for one in built)
    assert first.shared
    assert second.shared
    assert (first.hits, first.misses, first.shared.stored, first.shared.dropped) == (0, 2, 4, 0)
    assert (second.hits, second.remote_hits, second.misses, second.shared.hits) == (2, 2, 0, 4)
    assert built[0].objects == built[1].objects
    assert built[0].said == built[1].said == []
    for file in tmp_path.rglob("*"):
        if file.is_file() and not file.is_symlink():
            content = file.read_bytes()
            assert SECRET.encode() not in content, file
            assert b"sign-it" not in content, file


def _flipped(entries: dict[str, bytes]) -> dict[str, bytes]:
    return {key: data[:-9] + bytes([data[-9] ^ 0x40]) + data[-8:] for key, data in entries.items()}


def _swapped(entries: dict[str, bytes]) -> dict[str, bytes]:
    """Each under the key of the next one: what was stored for a.cpp answers for b.cpp."""
    keys = sorted(entries)
    return {key: entries[other] for key, other in zip(keys, keys[1:] + keys[:1], strict=True)}


@needs_ccache
@pytest.mark.parametrize(
    "damage",
    [
        _flipped,
        _swapped,
        lambda entries: {key: data[: len(data) // 2] for key, data in entries.items()},
        lambda entries: dict.fromkeys(entries, b""),
    ],
    ids=["one bit turned", "swapped", "cut off", "empty"],
)
def test_a_damaged_entry_is_compiled_again_and_mended(
    runtime: Runtime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    there: Shared,
    damage: Callable[[dict[str, bytes]], dict[str, bytes]],
) -> None:
    def build(name: str) -> tuple[dict[str, bytes], tuple[int, int, int]]:
        built = other_machine(tmp_path, name, there, monkeypatch).build("a.cpp", "b.cpp", shared=cache_of(there))
        assert built.cache.shared
        return built.objects, (built.cache.hits, built.cache.misses, built.cache.shared.damaged)

    good, _ = build("one")
    there.change(damage)
    again, counts = build("two")
    assert again == good
    assert counts == (0, 2, 4)
    assert build("three") == (good, (2, 0, 0)), "what was compiled again took the damaged entries' place"


def test_a_connection_that_the_server_closed_meanwhile_is_opened_again(tmp_path: Path) -> None:
    """Redis with ``timeout``, and whatever stands between, close what says nothing for as long as a compile takes."""
    with redis_server(tmp_path / "redis") as (port, _):
        store = RedisStore(SharedCache(address=f"redis://127.0.0.1:{port}"), Credentials(password=SECRET))
        store.put("k", b"data")
        redis_cli(port, "CLIENT", "KILL", "TYPE", "normal")
        assert store.get("k") == b"data"
        store.close()
