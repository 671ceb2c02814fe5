"""Servers on the loopback interface, at ports that no other process is given."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.waiting import until


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    """A port at which connections are refused until a server listens there.

    It stays bound while the block runs, so the kernel gives it to nobody who asks for any; a server that asks for this
    very one with SO_REUSEADDR, as servers do, gets it.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


def answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=10):
            return True
    except OSError:
        return False


@contextlib.contextmanager
def server(
    *argv: str | Path, port: int, quiet: bool = False, environ: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A program that listens at a held port; given when it does. ``quiet``: nothing of its stderr is shown."""
    stderr = subprocess.DEVNULL if quiet else None
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=stderr, env={**os.environ, **(environ or {})})
    try:
        until(lambda: answers(port) or process.poll() is not None, what=f"{argv[0]} answers")
        assert process.poll() is None, f"{argv[0]} ended with {process.returncode}"
        yield process
    finally:
        process.terminate()  # not killed: nginx would leave its workers, which go on listening
        process.send_signal(signal.SIGCONT)  # a test may have stopped it
        try:
            process.wait(60)
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def nginx(folder: Path, http: str, *, port: int) -> Iterator[None]:
    """nginx with all its files in a folder; ``http`` is what stands in its block of that name."""
    binary = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if binary is None:
        pytest.skip("not run: nginx is not installed")
    places = "".join(
        f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        # started by root, its workers would be somebody who may not enter a test's folders
        f"{'user root;' if os.geteuid() == 0 else ''} daemon off; pid {folder}/pid; error_log {folder}/error.log;\n"
        f"events {{}}\nhttp {{ access_log off;\n{places}{http} }}\n"
    )
    with server(binary, "-c", folder / "nginx.conf", "-p", folder, port=port):
        yield
