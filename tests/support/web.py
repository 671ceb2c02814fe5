"""A real HTTP server on the loopback interface that answers Range requests and misbehaves on demand."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(kw_only=True)
class Web:
    """Files by path, what each request asked for, and the faults to show."""

    port: int
    files: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    """(path, Range header or "") of each request."""
    break_after: list[int] = field(default_factory=list)
    """For each coming request: bytes of the body after which the connection is cut; -1: send all."""
    status: dict[str, int] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    ranges: bool = True
    """Whether Range requests are honoured."""

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"


@contextlib.contextmanager
def serving() -> Iterator[Web]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            wanted = self.headers.get("Range", "")
            web.requests.append((self.path, wanted))
            if self.path in web.redirects:
                self.send_response(302)
                self.send_header("Location", web.redirects[self.path])
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            body = web.files.get(self.path)
            status = web.status.get(self.path, 200 if body is not None else 404)
            if status != 200 or body is None:
                self._head(status, 0)
                return
            start = 0
            if wanted and web.ranges:
                match = re.fullmatch(r"bytes=(\d+)-", wanted)
                assert match is not None, wanted
                start, status = int(match.group(1)), 206
                if start >= len(body):
                    self._head(416, 0)
                    return
            self._head(status, len(body) - start, self.path)
            cut = web.break_after.pop(0) if web.break_after else -1
            self.wfile.write(body[start:] if cut < 0 else body[start : start + cut])
            if cut >= 0:
                self.wfile.flush()
                self.close_connection = True

        def _head(self, status: int, length: int, path: str = "") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(length))
            self.send_header("Content-Type", "text/html" if path.endswith("/") else "application/octet-stream")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Tests read ``requests`` instead."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    web = Web(port=server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield web
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
