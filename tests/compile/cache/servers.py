"""Real servers on loopback that hold a shared cache: Redis, S3-compatible, WebDAV, plain GET and PUT by nginx."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.compile.building import until

SECRET = "correct-horse-battery"


@dataclass(frozen=True, kw_only=True)
class Shared:
    """``change``: gives every entry, by its key, new bytes."""

    address: str
    environ: Mapping[str, str] = field(repr=False)
    change: Callable[[Callable[[dict[str, bytes]], dict[str, bytes]]], None]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


@contextmanager
def server(*argv: str | Path, port: int, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, env={**os.environ, **environ})
    try:
        until(lambda: _answers(port) or process.poll() is not None, what=f"{argv[0]} answers")
        assert process.poll() is None, f"{argv[0]} ended"
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def redis_server(folder: Path) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Gives its port and process. Its password is on no command line and in no file: tests look for it there."""
    if shutil.which("redis-server") is None:
        pytest.skip("not run: redis-server is not installed")
    port = free_port()
    folder.mkdir(exist_ok=True)
    argv = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    with server(*argv, port=port) as process:
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
    port = free_port()
    environ = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }
    with server(sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port), port=port):
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
    binary = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if binary is None:
        pytest.skip("not run: nginx is not installed")
    port = free_port()
    (folder / "kept").mkdir(parents=True)
    digest = base64.b64encode(hashlib.sha1(SECRET.encode()).digest()).decode()
    (folder / "users").write_text(f"me:{{SHA}}{digest}\n")
    places = "".join(
        f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"{'user root;' if os.geteuid() == 0 else ''} daemon off; pid {folder}/pid; error_log {folder}/error.log;\n"
        f"events {{}}\nhttp {{ access_log off;\n{places}server {{ listen 127.0.0.1:{port}; location /sm120/ {{\n"
        f"alias {folder}/kept/; dav_methods PUT; client_max_body_size 512m;\n"
        f"auth_basic cache; auth_basic_user_file {folder}/users;\n}} }} }}\n"
    )

    with server(binary, "-c", folder / "nginx.conf", "-p", folder, port=port):
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
    port = free_port()
    (folder / "kept").mkdir(parents=True)
    late = {"LATE_S": str(late_s), "LATE_CHECK_S": str(late_check_s)}
    with server(sys.executable, "-c", _DAV, str(port), folder / "kept", port=port, SECRET=SECRET, **late):
        yield _by_files(f"http://127.0.0.1:{port}", folder / "kept")


def _by_files(address: str, kept: Path) -> Shared:
    def change(how: Callable[[dict[str, bytes]], dict[str, bytes]]) -> None:
        for key, data in how({file.name: file.read_bytes() for file in kept.iterdir()}).items():
            (kept / key).write_bytes(data)

    environ = {"SM120_SHARED_CACHE_USER": "me", "SM120_SHARED_CACHE_PASSWORD": SECRET}
    return Shared(address=address, environ=environ, change=change)


KINDS = {"redis": redis, "s3": object_storage, "webdav": webdav, "http": web_folder}
