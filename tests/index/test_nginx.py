"""The recipe in the documentation, in a real nginx, with a real pip."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from sm120_wheels.index.publish import publish
from sm120_wheels.index.serve import SIMPLE_JSON
from tests.index.makewheel import make_wheel

_PAGE = Path(__file__).parents[2] / "docs/how-to/serve-with-nginx.md"


@pytest.fixture(scope="module")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    binary = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if not binary:
        pytest.skip("not run: nginx is not installed")
    folder = tmp_path_factory.mktemp("nginx")
    publish(folder / "index", [make_wheel(folder)])
    found = re.search(r"```nginx\n(.*?)```", _PAGE.read_text(), re.S)
    assert found
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    recipe = found[1].replace("listen 80;", f"listen 127.0.0.1:{port};").replace("/srv/whl", str(folder / "index"))
    places = "".join(
        f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = folder / "nginx.conf"
    config.write_text(
        # started by root, its workers would be somebody who may not enter a test's folders
        f"{'user root;' if os.geteuid() == 0 else ''} daemon off; pid {folder}/pid; error_log {folder}/error.log;\n"
        "events {}\n"
        f"http {{ access_log off;\n{places}{recipe} }}\n"
    )
    process = subprocess.Popen([binary, "-c", config, "-p", folder])
    try:
        deadline = time.monotonic() + 30
        while not _listens(port):
            assert process.poll() is None, (folder / "error.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.terminate()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def ask(address: str, accept: str = "*/*") -> tuple[int, dict[str, str]]:
    request = urllib.request.Request(address, headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, {k.lower(): v for k, v in answer.headers.items()}
    except urllib.error.HTTPError as error:
        with error:
            return error.code, {}


def test_pages_files_and_secrets_are_as_our_own_server_has_them(nginx: str) -> None:
    status, html = ask(f"{nginx}cu130/sm120-selftest/", "text/html")
    assert (status, html["content-type"], html["vary"]) == (200, "text/html", "Accept")
    status, json = ask(f"{nginx}cu130/sm120-selftest/", f"{SIMPLE_JSON}, text/html;q=0.1")
    assert (status, json["content-type"], json["cache-control"]) == (200, SIMPLE_JSON, "no-cache")
    assert ask(nginx)[0] == 200
    assert ask(f"{nginx}packages/sm120-selftest/")[0] == 200
    assert ask(f"{nginx}.state/current/generation.json")[0] == 404
    assert ask(f"{nginx}cu128/sm120-selftest/")[0] == 404


def test_pip_installs_through_it(nginx: str, tmp_path: Path) -> None:
    argv: list[str | Path] = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--isolated"]
    argv += ["-d", tmp_path, "-i", f"{nginx}cu130/", "sm120-selftest"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(tmp_path.glob("*.whl"))) == 1
