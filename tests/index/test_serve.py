from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from sm120_wheels.errors import SettingError
from sm120_wheels.index.publish import publish
from sm120_wheels.index.serve import HTML, SIMPLE_HTML, SIMPLE_JSON, choose, locate, make_app
from tests.index.makewheel import make_wheel
from tests.index.serving import served

OFFERED = (HTML, SIMPLE_JSON, SIMPLE_HTML)


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        ("", HTML),
        ("*/*", HTML),
        ("text/*", HTML),
        ("application/*", SIMPLE_JSON),
        (SIMPLE_JSON, SIMPLE_JSON),
        # what pip sends, and what uv sends
        (f"{SIMPLE_JSON}, {SIMPLE_HTML}; q=0.1, text/html; q=0.01", SIMPLE_JSON),
        (f"{SIMPLE_JSON}, {SIMPLE_HTML};q=0.2, text/html;q=0.01", SIMPLE_JSON),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", HTML),
        ("application/vnd.pypi.simple.latest+json", SIMPLE_JSON),
        (f"text/html;q=0, {SIMPLE_HTML};q=0.5", SIMPLE_HTML),
        ("*/*;q=0", None),
        ("image/png", None),
        ("text/html;q=nonsense", None),
    ],
)
def test_content_type_is_chosen_by_the_accept_header(accept: str, chosen: str | None) -> None:
    assert choose(accept, OFFERED) == chosen


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class Client:
    address: str

    def ask(self, path: str, method: str = "GET", **headers: str) -> Answer:
        """One request with exactly this path: nothing is normalised on the way."""
        parts = urlsplit(self.address)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120)
        try:
            connection.putrequest(method, path, skip_accept_encoding=True)
            for name, value in headers.items():
                connection.putheader(name.replace("_", "-"), value)
            connection.endheaders()
            response = connection.getresponse()
            told = {k.lower(): v for k, v in response.getheaders()}
            return Answer(response.status, told, response.read())
        finally:
            connection.close()


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serve")
    publish(folder / "index", [make_wheel(folder, content=bytes(range(256)) * 40)])
    (folder / "secret.txt").write_text("secret")
    (folder / "index" / "outside").symlink_to(folder / "secret.txt")
    (folder / "index" / "parent").symlink_to(folder)
    return folder / "index"


@pytest.fixture(scope="module")
def client(index: Path) -> Iterator[Client]:
    with served(index) as address:
        yield Client(address)


@pytest.fixture
def wheel(index: Path) -> Path:
    (path,) = index.glob("files/*/*/*.whl")
    return path


def test_it_listens_on_loopback_unless_told_otherwise(client: Client) -> None:
    assert urlsplit(client.address).hostname == "127.0.0.1"


def test_pages_are_negotiated_and_say_so(client: Client) -> None:
    html = client.ask("/cu130/sm120-selftest/")
    assert (html.status, html.headers["content-type"]) == (200, "text/html; charset=utf-8")
    json = client.ask("/cu130/sm120-selftest/", Accept=SIMPLE_JSON)
    assert (json.status, json.headers["content-type"]) == (200, SIMPLE_JSON)
    assert html.headers["vary"] == json.headers["vary"] == "Accept"
    assert html.headers["etag"] != json.headers["etag"]
    assert client.ask("/cu130/", Accept="image/png").status == 406
    assert client.ask("/").headers["content-type"] == "text/html; charset=utf-8"


def test_pages_are_asked_about_each_time_and_not_sent_twice(client: Client) -> None:
    first = client.ask("/cu130/sm120-selftest/")
    assert first.headers["cache-control"] == "no-cache"
    again = client.ask("/cu130/sm120-selftest/", If_None_Match=first.headers["etag"])
    assert (again.status, again.body) == (304, b"")


def test_files_may_be_kept_for_ever(client: Client, index: Path, wheel: Path) -> None:
    answer = client.ask(f"/{wheel.relative_to(index)}".replace("+", "%2B"))
    assert answer.body == wheel.read_bytes()
    assert "immutable" in answer.headers["cache-control"]
    assert answer.headers["etag"] == f'"{wheel.parent.name}"'
    assert client.ask(f"/{wheel.relative_to(index)}", If_None_Match=answer.headers["etag"]).status == 304


def test_ranges_are_served(client: Client, index: Path, wheel: Path) -> None:
    path = f"/{wheel.relative_to(index)}"
    content = wheel.read_bytes()
    middle = client.ask(path, Range="bytes=100-199")
    assert (middle.status, middle.body) == (206, content[100:200])
    assert middle.headers["content-range"] == f"bytes 100-199/{len(content)}"
    assert client.ask(path, Range="bytes=-10").body == content[-10:]
    assert client.ask(path, Range=f"bytes={len(content)}-").status == 416
    head = client.ask(path, method="HEAD")
    assert (head.status, head.body, head.headers["content-length"]) == (200, b"", str(len(content)))


def test_folder_without_a_slash_is_sent_to_the_one_with(client: Client) -> None:
    answer = client.ask("/cu130/sm120-selftest")
    assert (answer.status, answer.headers["location"]) == (301, "sm120-selftest/")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_changed(client: Client, method: str) -> None:
    assert client.ask("/cu130/", method=method).status == 405


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt",
        "/%2e%2e/secret.txt",
        "/..%2fsecret.txt",
        "/cu130/../../secret.txt",
        "/cu130/%2e%2e%2f%2e%2e%2fsecret.txt",
        "//etc/passwd",
        "/%2fetc%2fpasswd",
        "/outside",
        "/parent/secret.txt",
        "/parent/",
        "/.state/lock",
        "/.state/current/generation.json",
        "/%2estate/lock",
        "/cu130/.state",
        "/files/",
        "/index.html%00.whl",
        "/..\\secret.txt",
        "/cu130/nosuch/",
    ],
)
def test_nothing_but_the_index_can_be_read(client: Client, path: str) -> None:
    answer = client.ask(path)
    assert answer.status == 404
    assert b"secret" not in answer.body


def test_links_out_of_the_root_lead_nowhere(index: Path) -> None:
    assert locate(index.resolve(), "outside") is None
    assert locate(index.resolve(), "index.html") is not None


def test_a_folder_without_an_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="there is no index here") as refused:
        make_app(tmp_path)
    assert "--root" in refused.value.hint


def test_a_port_that_is_taken_is_one_message(index: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        argv = [sys.executable, "-m", "sm120_wheels", "index", "serve", "--root", str(index), "--port", str(port)]
        ended = subprocess.run(argv, capture_output=True, text=True, env=dict(os.environ), timeout=60)
    assert ended.returncode == 17
    assert f"cannot listen on 127.0.0.1:{port}" in ended.stderr
    assert "Traceback" not in ended.stderr
