"""The way to a shared store: what reaches it, what it may cost, and what never comes out of it."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm120_wheels.compile.cache import gateway
from sm120_wheels.compile.cache.ccache import find
from sm120_wheels.compile.cache.gateway import Gateway, seal, served, unseal
from sm120_wheels.compile.cache.shared import Credentials, SharedCache
from sm120_wheels.compile.cache.stats import SharedReport
from sm120_wheels.compile.cache.stores import RedisStore, StoreError, open_store
from tests.compile.building import Runtime
from tests.compile.cache.building import Tree, free_port, redis_server

SECRET = "correct horse battery"
needs_redis = pytest.mark.skipif(shutil.which("redis-server") is None, reason="not run: redis-server is not installed")
needs_ccache = pytest.mark.skipif(isinstance(find(), str), reason=f"not run: {find()}")
FILES = {"a__cpp": "int a() { return 1; }\n"}


@given(st.text(min_size=1, max_size=40), st.binary(max_size=200), st.integers(0, 10**6), st.integers(1, 255))
def test_an_entry_with_one_byte_changed_is_none(key: str, data: bytes, place: int, change: int) -> None:
    for secret in (None, b"key"):
        sealed = seal(key, data, secret)
        assert unseal(key, sealed, secret) == data
        damaged = bytearray(sealed)
        damaged[place % len(sealed)] ^= change
        assert unseal(key, bytes(damaged), secret) is None
        assert unseal(key + "x", sealed, secret) is None, "an entry belongs to its key"
        assert unseal(key, sealed[:-1], secret) is None


def test_without_the_key_nobody_makes_an_entry_that_is_taken() -> None:
    assert unseal("k", seal("k", b"forged", None), b"key") is None
    assert unseal("k", seal("k", b"forged", b"another"), b"key") is None


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[int]:
    with redis_server(tmp_path / "redis", "--requirepass", SECRET) as port:
        yield port


@needs_redis
def test_redis_keeps_what_was_put_and_refuses_those_it_does_not_know(redis: int) -> None:
    shared = SharedCache(address=f"redis://127.0.0.1:{redis}/2")
    store = RedisStore(shared, Credentials(password=SECRET))
    store.probe()
    assert store.get("k") is None
    data = bytes(range(256)) * 1000
    store.put("k", data)
    assert store.get("k") == data
    store.close()
    for wrong in (Credentials(), Credentials(password="wrong")):
        with pytest.raises(StoreError, match="the server refused") as caught:
            RedisStore(shared, wrong).probe()
        assert "wrong" not in str(caught.value)


class _Files(BaseHTTPRequestHandler):
    kept: ClassVar[dict[str, bytes]]
    asked: ClassVar[list[str]]

    def do_GET(self) -> None:
        self.asked.append(self.headers.get("Authorization", ""))
        body = self.kept.get(self.path)
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")

    def do_PUT(self) -> None:
        self.kept[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(201)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Quiet."""


def test_http_gets_and_puts_below_a_folder_with_a_token() -> None:
    class Handler(_Files):
        kept: ClassVar[dict[str, bytes]] = {}
        asked: ClassVar[list[str]] = []

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        shared = SharedCache(address=f"http://127.0.0.1:{server.server_port}/cache")
        store = open_store(shared, Credentials(token=SECRET))
        store.probe()
        store.put("k", b"data")
        assert store.get("k") == b"data"
        store.close()
        server.shutdown()
    assert list(Handler.kept) == ["/cache/k"]
    assert set(Handler.asked) == {f"Bearer {SECRET}"}


@needs_redis
@needs_ccache
def test_two_machines_share_and_no_secret_is_written_anywhere(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, redis: int
) -> None:
    shared = SharedCache(address=f"redis://127.0.0.1:{redis}")
    secret = tmp_path / "secret"
    secret.write_text(f"{SECRET}\n")
    environ = {"SM120_SHARED_CACHE_PASSWORD_FILE": str(secret), "SM120_SHARED_CACHE_KEY": "sign it"}
    first = Tree(top=tmp_path / "one", environ=environ).write(**FILES).build("a.cpp", shared=shared)
    assert first.cache.shared is not None
    assert (first.cache.shared.stored, first.cache.shared.state) == (2, "used")

    monkeypatch.setenv("SM120_CACHE_DIR", str(tmp_path / "cache of another machine"))
    second = Tree(top=tmp_path / "two, far", environ=environ).write(**FILES).build("a.cpp", shared=shared)
    assert (second.cache.hits, second.cache.remote_hits, second.cache.misses) == (1, 1, 0)
    assert second.objects == first.objects
    assert second.said == []

    secret.unlink()
    for file in tmp_path.rglob("*"):
        if file.is_file() and not file.is_symlink():
            content = file.read_bytes()
            assert SECRET.encode() not in content, file
            assert b"sign it" not in content, file


@needs_redis
@needs_ccache
def test_a_damaged_entry_in_redis_is_compiled_again(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, redis: int
) -> None:
    shared = SharedCache(address=f"redis://127.0.0.1:{redis}")
    environ = {"SM120_SHARED_CACHE_PASSWORD": SECRET}
    good = Tree(top=tmp_path / "one", environ=environ).write(**FILES).build("a.cpp", shared=shared)
    command = ["redis-cli", "--no-auth-warning", "-a", SECRET, "-p", str(redis)]
    keys = subprocess.run([*command, "KEYS", "*"], check=True, capture_output=True, text=True).stdout.split()
    assert len(keys) == 2
    for key in keys:
        subprocess.run([*command, "SETRANGE", key, "80", "damage"], check=True, capture_output=True)
    monkeypatch.setenv("SM120_CACHE_DIR", str(tmp_path / "another"))
    again = Tree(top=tmp_path / "two", environ=environ).write(**FILES).build("a.cpp", shared=shared)
    assert again.objects == good.objects
    assert again.cache.misses == 1
    assert again.cache.shared is not None
    assert again.cache.shared.damaged == 2


def _probed(address: str, tmp_path: Path) -> tuple[float, list[str], object]:
    said: list[str] = []
    began = time.monotonic()
    with served(SharedCache(address=address), Credentials(), socket=tmp_path / "s", tell=said.append) as answer:
        took = time.monotonic() - began
    return took, said, answer


@pytest.mark.parametrize("scheme", ["redis", "http"])
def test_a_closed_port_is_said_once_and_costs_less_than_a_second(scheme: str, tmp_path: Path) -> None:
    address = f"{scheme}://127.0.0.1:{free_port()}"
    took, said, report = _probed(address, tmp_path)
    assert took < 1
    assert said == [f"the shared cache {address} cannot be used (Connection refused): only the local one is"]
    assert isinstance(report, SharedReport)
    assert report.state == "unreachable"


@pytest.mark.parametrize("scheme", ["redis", "http"])
def test_a_server_that_takes_connections_and_says_nothing_costs_less_than_a_second(scheme: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        took, said, _ = _probed(f"{scheme}://127.0.0.1:{silent.getsockname()[1]}", tmp_path)
    assert took < 1
    assert len(said) == 1
    assert "no answer in time" in said[0]


def test_an_address_that_swallows_packets_costs_less_than_a_second(tmp_path: Path) -> None:
    """In a network namespace whose only route leads to a link with nobody on it."""
    code = (
        "import sys, time, pathlib; from sm120_wheels.compile.cache import gateway; "
        "from sm120_wheels.compile.cache.shared import SharedCache, Credentials; said = []; began = time.monotonic()\n"
        "with gateway.served(SharedCache(address='redis://10.1.2.3'), Credentials(), "
        "socket=pathlib.Path(sys.argv[1]), tell=said.append): print(time.monotonic() - began, said)"
    )
    link = (
        "ip link add d0 type veth peer name d1 && ip link set d1 up && "
        "ip addr add 10.1.2.1/24 dev d0 && ip link set d0 up"
    )
    made = subprocess.run(["unshare", "--net", "sh", "-c", link], check=False, capture_output=True)
    if made.returncode != 0:
        pytest.skip("not run: no network namespace with a link can be made here")
    ran = subprocess.run(
        ["unshare", "--net", "sh", "-c", f'{link} && exec "$0" "$@"', sys.executable, "-c", code, str(tmp_path / "s")],
        check=True,
        capture_output=True,
        text=True,
    )
    took, _, said = ran.stdout.partition(" ")
    assert float(took) < 1
    assert said.count("cannot be used (no answer in time)") == 1


class _Failing:
    """A store that is lost after the first answer."""

    asked = 0

    def probe(self) -> None:
        """Fine."""

    def get(self, key: str) -> bytes | None:
        self.asked += 1
        raise StoreError("no answer in time")

    def close(self) -> None:
        """Nothing is open."""

    def put(self, key: str, data: bytes) -> None:
        raise StoreError("no answer in time")


def test_a_store_that_is_lost_is_said_once_and_not_asked_again() -> None:
    said: list[str] = []
    store = _Failing()
    lost = Gateway(store, SharedCache(address="redis://there"), Credentials(), said.append)
    for _ in range(5):
        assert lost.get("k") is None
    lost.put("k", b"data")
    lost.close(wait_s=5)
    assert (store.asked, said) == (1, ["no answer in time"])
    assert (lost.report.state, lost.report.dropped) == ("lost", 1)


def test_a_read_only_cache_is_not_written() -> None:
    store = _Failing()
    only = Gateway(store, SharedCache(address="redis://there", read_only=True), Credentials(), lambda _: None)
    only.put("k", b"data")
    only.close(wait_s=5)
    assert (only.report.stored, only.report.dropped, only.report.state) == (0, 0, "used")


def test_what_is_no_request_ends_the_connection_and_nothing_else(tmp_path: Path) -> None:
    store = type("Empty", (_Failing,), {"get": lambda self, key: None})()
    server = gateway._Server(str(tmp_path / "s"), gateway._Handler)
    server.gateway = Gateway(store, SharedCache(address="redis://there"), Credentials(), lambda _: None)
    Thread(target=server.serve_forever, daemon=True).start()
    for text in (b"GET / HTTP/1.1\r\n\r\n", b"*1\r\n$x\r\n", b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "s"))
            client.sendall(text)
            client.shutdown(socket.SHUT_WR)
            assert client.recv(100) == (b"$-1\r\n" if text.startswith(b"*2") else b"")
    server.shutdown()
    server.server_close()
