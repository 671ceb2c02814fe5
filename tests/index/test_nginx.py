"""The recipe in the documentation, in a real nginx, with a real pip."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from sm120_wheels.index.publish import publish
from sm120_wheels.index.serve import SIMPLE_JSON
from tests.index.makewheel import make_wheel
from tests.support.servers import held_port
from tests.support.servers import nginx as run_nginx

_PAGE = Path(__file__).parents[2] / "docs/how-to/serve-with-nginx.md"


@pytest.fixture(scope="module")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("nginx")
    publish(folder / "index", [make_wheel(folder)])
    found = re.search(r"```nginx\n(.*?)```", _PAGE.read_text(), re.S)
    assert found
    with held_port() as port:
        recipe = found[1].replace("listen 80;", f"listen 127.0.0.1:{port};").replace("/srv/whl", str(folder / "index"))
        with run_nginx(folder, recipe, port=port):
            yield f"http://127.0.0.1:{port}/"


def ask(address: str, accept: str = "*/*") -> tuple[int, dict[str, str]]:
    request = urllib.request.Request(address, headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
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
