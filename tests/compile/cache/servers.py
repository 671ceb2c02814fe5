"""Real servers on loopback that hold a shared cache: Redis, S3-compatible, WebDAV, plain GET and PUT by nginx."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers import held_port, nginx, server

SECRET = "correct-horse-battery"


@dataclass(frozen=True, kw_only=True)
class Shared:
    """``change``: gives every entry, by its key, new bytes."""

    address: str
    environ: Mapping[str, str] = field(repr=False)
    change: Callable[[Callable[[dict[str, bytes]], dict[str, bytes]]], None]


@contextmanager
def redis_server(folder: Path) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Gives its port and process. Its password is on no command line and in no file: tests look for it there."""
    if shutil.which("redis-server") is None:
        pytest.skip("not run: redis-server is not installed")
    folder.mkdir(exist_ok=True)
    argv = ["redis-server", "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    with held_port() as port, server(*argv, "--port", str(port), port=port) as process:
        redis_cli(port, data=f"CONFIG SET requirepass {SECRET}".encode())
        yield port, process


def redis_cli(port: int, *words: str, data: bytes | None = None) -> bytes:
    command = ["redis-cli", "--no-auth-warning", "-p", str(port), *words]
    env = {**os.environ, "REDISCLI_AUTH": SECRET}
    return subprocess.run(command, check=True, capture_output=True, input=data, env=env).stdout.removesuffix(b"\n")


@contextmanager
def redis(folder: Path) -> Iterator[Shared]:
    with redis_server(folder) as (port, _):

        def change(how: Callable[[dict[str, bytes]], dict[str, bytes]]) -> None:
            keys = redis_cli(port, "KEYS", "*").decode().split()
            for key, data in how({key: redis_cli(port, "GET", key) for key in keys}).items():
                redis_cli(port, "-x", "SET", key, data=data)

        yield Shared(
            address=f"redis://127.0.0.1:{port}", environ={"SM120_SHARED_CACHE_PASSWORD": SECRET}, change=change
        )


@contextmanager
def object_storage(folder: Path) -> Iterator[Shared]:
    boto3 = pytest.importorskip("boto3", reason="not run: boto3 is not installed")
    environ = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }
    moto = (sys.executable, "-m", "moto.server", "-H", "127.0.0.1")
    with held_port() as port, server(*moto, "-p", str(port), port=port):
        endpoint = f"http://127.0.0.1:{port}"
        keys = {"aws_access_key_id": "test", "aws_secret_access_key": SECRET}
        client: Any = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys)
        client.create_bucket(Bucket="objects")

        def change(how: Callable[[dict[str, bytes]], dict[str, bytes]]) -> None:
            found = [item["Key"] for item in client.list_objects_v2(Bucket="objects").get("Contents", [])]
            entries = {key: client.get_object(Bucket="objects", Key=key)["Body"].read() for key in found}
            for key, data in how(entries).items():
                client.put_object(Bucket="objects", Key=key, Body=data)

        yield Shared(address=f"s3://objects/sm120?endpoint={endpoint}&region=us-east-1", environ=environ, change=change)


@contextmanager
def web_folder(folder: Path) -> Iterator[Shared]:
    """What docs/how-to/share-a-compiler-cache.md says of nginx, with a password."""
    (folder / "kept").mkdir(parents=True)
    digest = base64.b64encode(hashlib.sha1(SECRET.encode()).digest()).decode()
    (folder / "users").write_text(f"me:{{SHA}}{digest}\n")
    with held_port() as port:
        place = (
            f"server {{ listen 127.0.0.1:{port}; location /sm120/ {{\n"
            f"alias {folder}/kept/; dav_methods PUT; client_max_body_size 512m;\n"
            f"auth_basic cache; auth_basic_user_file {folder}/users;\n}} }}"
        )
        with nginx(folder, place, port=port):
            yield _by_files(f"http://127.0.0.1:{port}/sm120", folder / "kept")


_DAV = """
import os, sys, time
from cheroot import wsgi
from wsgidav.wsgidav_app import WsgiDAVApp
port, folder = int(sys.argv[1]), sys.argv[2]
app = WsgiDAVApp({
    "provider_mapping": {"/": folder},
    "http_authenticator": {"accept_basic": True, "accept_digest": False, "default_to_digest": False},
    "simple_dc": {"user_mapping": {"*": {"me": {"password": os.environ["SECRET"]}}}},
    "logging": {"enable": False},
})
def late(environ, start_response):
    if environ["REQUEST_METHOD"] == "PUT":
        check = environ["PATH_INFO"].endswith("check")
        time.sleep(float(os.environ["LATE_CHECK_S" if check else "LATE_S"]))
    return app(environ, start_response)
wsgi.Server(bind_addr=("127.0.0.1", port), wsgi_app=late).start()
"""


@contextmanager
def webdav(folder: Path, *, late_s: float = 0.0, late_check_s: float = 0.0) -> Iterator[Shared]:
    """``late_s``: seconds before it begins to store an entry; ``late_check_s``: or sccache's trial at its start."""
    pytest.importorskip("wsgidav", reason="not run: wsgidav is not installed")
    (folder / "kept").mkdir(parents=True)
    environ = {"SECRET": SECRET, "LATE_S": str(late_s), "LATE_CHECK_S": str(late_check_s)}
    with (
        held_port() as port,
        server(sys.executable, "-c", _DAV, str(port), folder / "kept", port=port, environ=environ),
    ):
        yield _by_files(f"http://127.0.0.1:{port}", folder / "kept")


def _by_files(address: str, kept: Path) -> Shared:
    def change(how: Callable[[dict[str, bytes]], dict[str, bytes]]) -> None:
        for key, data in how({file.name: file.read_bytes() for file in kept.iterdir()}).items():
            (kept / key).write_bytes(data)

    environ = {"SM120_SHARED_CACHE_USER": "me", "SM120_SHARED_CACHE_PASSWORD": SECRET}
    return Shared(address=address, environ=environ, change=change)


KINDS = {"redis": redis, "s3": object_storage, "webdav": webdav, "http": web_folder}
