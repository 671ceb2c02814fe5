"""The way to a shared store: what it may cost, and what never comes out of it."""

from __future__ import annotations

import math
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm120_wheels.compile.cache import gateway
from sm120_wheels.compile.cache.gateway import Gateway, seal, served, unseal
from sm120_wheels.compile.cache.shared import Credentials, SharedCache
from sm120_wheels.compile.cache.stats import SharedReport
from sm120_wheels.compile.cache.stores import ANSWER_S, RedisStore, StoreError
from tests.compile.cache.servers import SECRET, redis_cli, redis_server
from tests.support.servers import held_port
from tests.support.waiting import costs_less_than, until


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


def _probed(address: str, tmp_path: Path, expected: str) -> float:
    """The seconds until a store is known to be out of reach, which is said once, as expected."""
    said: list[str] = []
    began = time.monotonic()
    with served(SharedCache(address=address), Credentials(), socket=tmp_path / "s", tell=said.append) as answer:
        took = time.monotonic() - began
    assert said == [expected]
    assert isinstance(answer, SharedReport)
    assert answer.state == "unreachable"
    return took


@pytest.mark.parametrize("scheme", ["redis", "http"])
def test_a_closed_port_is_said_once_and_costs_less_than_a_second(scheme: str, tmp_path: Path) -> None:
    with held_port() as port:
        address = f"{scheme}://127.0.0.1:{port}"
        said = f"the shared cache {address} cannot be used (Connection refused): only the local one is"
        costs_less_than(1, lambda: _probed(address, tmp_path, said))


@pytest.mark.parametrize("scheme", ["redis", "http"])
def test_a_server_that_takes_connections_and_says_nothing_costs_less_than_a_second(scheme: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"{scheme}://127.0.0.1:{silent.getsockname()[1]}"
        said = f"the shared cache {address} cannot be used (no answer in time): only the local one is"
        costs_less_than(1, lambda: _probed(address, tmp_path, said))


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
    inside = f'{link} && exec "$0" "$@"'
    argv = ["unshare", "--net", "sh", "-c", inside, sys.executable, "-c", code, str(tmp_path / "s")]

    def probed() -> float:
        ran = subprocess.run(argv, check=True, capture_output=True, text=True)
        took, _, said = ran.stdout.partition(" ")
        assert said.count("cannot be used (no answer in time)") == 1
        return float(took)

    costs_less_than(1, probed)


def test_a_store_that_stops_answering_costs_a_second_at_most_and_is_said_once(tmp_path: Path) -> None:
    """Lookups one after the other, and the end of a build with much that is still to be stored."""
    with redis_server(tmp_path / "redis") as (port, process):
        shared, who = SharedCache(address=f"redis://127.0.0.1:{port}"), Credentials(password=SECRET)

        def cost(work: Callable[[Gateway], None], *, at_its_end: bool) -> float:
            said: list[str] = []
            process.send_signal(signal.SIGCONT)
            with served(shared, who, socket=tmp_path / "s", tell=said.append) as way:
                if not isinstance(way, Gateway):
                    return math.inf  # a loaded machine: it was too slow while it still ran
                process.send_signal(signal.SIGSTOP)
                began = time.monotonic()
                work(way)
                took = time.monotonic() - began
                began = time.monotonic()
            assert (way.report.state, way.report.why) == ("lost", "no answer in time")
            assert said == [f"the shared cache {shared.address} was lost (no answer in time)"], "once in each build"
            if at_its_end:
                assert way.report.dropped == 40
                return time.monotonic() - began
            return took

        def look_up(way: Gateway) -> None:
            assert [way.get(str(number)) for number in range(50)] == [None] * 50

        def store(way: Gateway) -> None:
            for number in range(40):
                way.put(str(number), bytes(2**23))

        costs_less_than(2 * ANSWER_S + 0.5, lambda: cost(look_up, at_its_end=False))
        costs_less_than(2 * ANSWER_S + 0.5, lambda: cost(store, at_its_end=True))


def test_one_failure_is_an_accident(patient: None, tmp_path: Path) -> None:
    """A memory limit for an entry, one slow answer: the next lookup goes on."""
    said: list[str] = []
    with redis_server(tmp_path / "redis") as (port, _):
        store = RedisStore(SharedCache(address=f"redis://127.0.0.1:{port}"), Credentials(password=SECRET))
        way = Gateway(store, SharedCache(address="redis://there"), Credentials(), said.append)
        redis_cli(port, "LPUSH", "odd", "a list")
        for _ in range(3):
            assert way.get("odd") is None, "the server answers with an error"
            assert way.get("none") is None
        way.put("k", b"data")
        until(lambda: way.report.stored == 1, what="an entry is stored")
        assert way.get("k") == b"data"
        assert (way.report.state, said) == ("used", [])
        way.close(wait_s=5)
        store.close()


class _Failing:
    """A store that never answers."""

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
    assert (store.asked, said) == (2, ["no answer in time"])
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
