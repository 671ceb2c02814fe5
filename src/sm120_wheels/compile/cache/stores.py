"""Shared stores: get and put bytes under a key, in Redis, over HTTP or in object storage.

A store that does not answer raises ``StoreError`` after a fraction of a second. Counting and giving up are the
gateway's.
"""

from __future__ import annotations

import contextlib
import io
import socket
import ssl
import threading
from typing import Any, BinaryIO, Protocol
from urllib.parse import urlsplit

import requests

from sm120_wheels.compile.cache.shared import Credentials, SharedCache
from sm120_wheels.errors import ToolMissingError

#: Seconds. Two of them in a row make one second at most, which is what an unreachable cache may cost.
CONNECT_S = 0.4
ANSWER_S = 0.5
#: Bytes that the other side has to take in that time; an entry is sent in such pieces.
_PIECE = 64 * 1024
_LARGEST = 512 * 2**20


class StoreError(Exception):
    """The store did not answer, or refused. The text names no credential."""


class Store(Protocol):
    def probe(self) -> None:
        """Raise :class:`StoreError` where the store cannot be used."""

    def get(self, key: str) -> bytes | None: ...

    def put(self, key: str, data: bytes) -> None: ...

    def close(self) -> None: ...


def open_store(shared: SharedCache, credentials: Credentials) -> Store:
    """Connects to nothing yet. Raises :class:`ToolMissingError` for S3 without boto3."""
    if shared.scheme in ("redis", "rediss"):
        return RedisStore(shared, credentials)
    if shared.scheme == "s3":
        return S3Store(shared)
    return HttpStore(shared, credentials)


class RedisStore:
    """The four commands that a cache needs, in the protocol's own words (RESP2), over as many connections as are used
    at once."""

    def __init__(self, shared: SharedCache, credentials: Credentials) -> None:
        parts = urlsplit(shared.address)
        self._host, self._port = parts.hostname or "localhost", parts.port or 6379
        self._tls = parts.scheme == "rediss"
        self._database = parts.path.strip("/")
        self._credentials = credentials
        self._idle: list[tuple[socket.socket, BinaryIO]] = []
        self._lock = threading.Lock()

    def probe(self) -> None:
        self._ask(b"PING")

    def get(self, key: str) -> bytes | None:
        answer = self._ask(b"GET", key.encode())
        if answer is not None and not isinstance(answer, bytes):
            raise StoreError("the answer to GET is no string")
        return answer

    def put(self, key: str, data: bytes) -> None:
        self._ask(b"SET", key.encode(), data)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection, stream in idle:
            stream.close()
            connection.close()

    def _ask(self, *words: bytes) -> object:
        with self._lock:
            kept = self._idle.pop() if self._idle else None
        try:
            if kept is not None:
                try:
                    return self._say(*kept, *words)
                except ConnectionError:
                    pass  # servers close what was not used for a while, and a compile takes that long
            return self._say(*self._connect(), *words)
        except OSError as exc:
            raise StoreError(_reason(exc)) from exc

    def _say(self, connection: socket.socket, stream: BinaryIO, *words: bytes) -> object:
        """Keeps the connection for later where it answered."""
        try:
            answer = _say(connection, stream, *words)
        except BaseException:
            stream.close()
            connection.close()
            raise
        with self._lock:
            self._idle.append((connection, stream))
        return answer

    def _connect(self) -> tuple[socket.socket, BinaryIO]:
        connection = socket.create_connection((self._host, self._port), timeout=CONNECT_S)
        try:
            if self._tls:
                connection = ssl.create_default_context().wrap_socket(connection, server_hostname=self._host)
            connection.settimeout(ANSWER_S)
        except BaseException:
            connection.close()
            raise
        stream: BinaryIO = connection.makefile("rb")
        try:
            if self._credentials.password:
                user = [self._credentials.user.encode()] if self._credentials.user else []
                _say(connection, stream, b"AUTH", *user, self._credentials.password.encode())
            if self._database:
                _say(connection, stream, b"SELECT", self._database.encode())
        except BaseException:
            stream.close()
            connection.close()
            raise
        return connection, stream


def _say(connection: socket.socket, stream: BinaryIO, *words: bytes) -> object:
    request = b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
    rest = memoryview(request)
    while rest:
        connection.sendall(rest[:_PIECE])
        rest = rest[_PIECE:]
    return read_reply(stream)


def read_reply(stream: BinaryIO) -> object:
    """One RESP2 value: bytes, int, None or a list. Raises OSError or StoreError."""
    line = stream.readline(1 << 16)
    if not line.endswith(b"\r\n"):
        raise ConnectionResetError("the connection ended")
    kind, text = line[:1], line[1:-2]
    if kind == b"-":
        raise StoreError(f"the server refused: {text.decode('utf-8', 'replace').split(' ')[0]}")
    if kind == b"+":
        return text
    if kind not in b":$*" or not text.lstrip(b"-").isdigit():
        raise StoreError("what answers does not speak Redis")
    number = int(text)
    if kind == b":":
        return number
    if number < 0:
        return None
    if kind == b"*":
        return [read_reply(stream) for _ in range(min(number, 64))]
    if number > _LARGEST:
        raise StoreError("an entry is larger than 512 MiB")
    data = stream.read(number + 2)
    if len(data) != number + 2:
        raise ConnectionResetError("the connection ended")
    return data[:-2]


class HttpStore:
    """One file for each entry below a folder's address: GET, PUT. WebDAV servers and nginx's dav module do."""

    def __init__(self, shared: SharedCache, credentials: Credentials) -> None:
        self._base = shared.address
        self._session = requests.Session()
        self._session.trust_env = False  # no proxy and no .netrc by accident
        if credentials.token:
            self._session.headers["Authorization"] = f"Bearer {credentials.token}"
        elif credentials.password:
            self._session.auth = (credentials.user or "", credentials.password)

    def probe(self) -> None:
        self.get("sm120-probe")

    def get(self, key: str) -> bytes | None:
        answer = self._send("GET", key)
        if answer.status_code == 404:
            return None
        self._check(answer)
        return answer.content

    def put(self, key: str, data: bytes) -> None:
        self._check(self._send("PUT", key, data))

    def close(self) -> None:
        self._session.close()

    def _send(self, method: str, key: str, data: bytes | None = None) -> requests.Response:
        try:
            return self._session.request(
                method,
                f"{self._base}/{key}",
                data=None if data is None else io.BytesIO(data),  # sent in pieces, each with its time limit
                timeout=(CONNECT_S, ANSWER_S),
                allow_redirects=False,
            )
        except requests.RequestException as exc:
            raise StoreError(_reason(exc)) from exc

    def _check(self, answer: requests.Response) -> None:
        if not answer.ok:
            raise StoreError(f"the server answered {answer.status_code} {answer.reason}")


class S3Store:
    """Objects below a prefix. boto3 finds credentials and region as it always does."""

    def __init__(self, shared: SharedCache) -> None:
        try:
            import boto3
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError, ClientError
        except ImportError as exc:
            raise ToolMissingError(
                "a shared cache in object storage needs boto3, which is not installed",
                hint="pip install 'sm120-wheels[s3]'",
            ) from exc
        parts = urlsplit(shared.address)
        prefix = parts.path.strip("/")
        self._bucket, self._prefix = parts.netloc, f"{prefix}/" if prefix else ""
        self._client_error: Any = ClientError
        self._errors: tuple[Any, ...] = (BotoCoreError, ClientError)
        config = Config(
            connect_timeout=CONNECT_S, read_timeout=ANSWER_S, retries={"total_max_attempts": 1}, max_pool_connections=64
        )

        # reads its own files for up to a second, but connects to nothing
        self._client: Any = boto3.client("s3", endpoint_url=shared.endpoint, region_name=shared.region, config=config)

    def probe(self) -> None:
        self.get("sm120-probe")

    def get(self, key: str) -> bytes | None:
        try:
            answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + key)
            return bytes(answer["Body"].read())
        except self._errors as exc:
            if self._code(exc) in ("NoSuchKey", "404"):
                return None
            raise StoreError(self._say(exc)) from exc

    def put(self, key: str, data: bytes) -> None:
        try:
            self._client.put_object(Bucket=self._bucket, Key=self._prefix + key, Body=io.BytesIO(data))
        except self._errors as exc:
            raise StoreError(self._say(exc)) from exc

    def close(self) -> None:
        self._client.close()

    def _code(self, exc: Exception) -> str:
        return str(exc.response["Error"]["Code"]) if isinstance(exc, self._client_error) else ""

    def _say(self, exc: Exception) -> str:
        return f"the storage answered {self._code(exc)}" if self._code(exc) else type(exc).__name__


def _reason(exc: BaseException) -> str:
    """A cause in a few words, without addresses that may hold more than they should."""
    inner: BaseException | None = exc
    while inner is not None:
        if isinstance(inner, TimeoutError) or "imeout" in type(inner).__name__ or "timed out" in str(inner):
            return "no answer in time"
        if isinstance(inner, ssl.SSLError):
            return f"TLS: {inner.reason or 'failed'}"
        if isinstance(inner, OSError) and inner.strerror and not isinstance(inner, requests.RequestException):
            return inner.strerror
        inner = inner.__cause__ or inner.__context__ or _argument(inner)
    with contextlib.suppress(IndexError):
        return str(exc).splitlines()[0].split(":")[0][:80]
    return type(exc).__name__


def _argument(exc: BaseException) -> BaseException | None:
    """urllib3 keeps the cause in ``reason``, requests keeps urllib3's error as its argument."""
    reason = getattr(exc, "reason", None)
    if isinstance(reason, BaseException):
        return reason
    return next((value for value in exc.args if isinstance(value, BaseException)), None)
