"""S3-compatible object storage as a remote. There are no links there, so pages are objects at their addresses.

The order is the safety: files, their metadata and evidence, pages of projects, lists, front page. A page is also put
under its folder's own key (``cu130/name/``), so that pip and uv work without a web server in front. boto3 finds
credentials and ``AWS_ENDPOINT_URL`` as it always does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sm120_wheels.errors import RemoteError, SettingError, ToolMissingError
from sm120_wheels.files import sha256_file
from sm120_wheels.index.layout import Snapshot
from sm120_wheels.index.remotes.plan import MEMORY, Memory, Pushed, check, file_keys, page_keys, wheels_of

_FOREVER = "public, max-age=31536000, immutable"
#: Pages are asked about each time, as our own server says.
_ASK = "no-cache"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".json": "application/json",
    ".metadata": "text/plain; charset=utf-8",
}
#: What a simple index in JSON must be sent as: pip and uv decide by it.
_SIMPLE_JSON = "application/vnd.pypi.simple.v1+json"


@dataclass(frozen=True)
class Bucket:
    bucket: str
    prefix: str
    """Empty, or ending in a slash."""

    @classmethod
    def parse(cls, address: str) -> Bucket:
        bucket, _, prefix = address.removeprefix("s3://").partition("/")
        if not bucket:
            raise SettingError(f"{address!r} names no bucket", hint="write it as s3://bucket/prefix")
        prefix = prefix.strip("/")
        return cls(bucket, f"{prefix}/" if prefix else "")

    def push(self, snapshot: Snapshot, *, delete: bool) -> Pushed:
        """See :func:`sm120_wheels.index.remotes.push`."""
        try:
            import boto3
            from boto3.exceptions import Boto3Error
            from botocore.exceptions import BotoCoreError, ClientError
        except ImportError as exc:
            raise ToolMissingError(
                "object storage needs boto3, which is not installed", hint="pip install 'sm120-wheels[s3]'"
            ) from exc
        try:
            return self._push(boto3.client("s3"), snapshot, delete=delete, client_error=ClientError)
        except (Boto3Error, BotoCoreError, ClientError) as exc:
            raise RemoteError(
                "the object storage failed",
                where=f"s3://{self.bucket}/{self.prefix}",
                why=str(exc),
                hint="what it shows is whole; check AWS_ENDPOINT_URL, AWS_REGION and the credentials, and push again",
            ) from exc

    def _push(self, client: Any, snapshot: Snapshot, *, delete: bool, client_error: type[Exception]) -> Pushed:
        where = f"s3://{self.bucket}/{self.prefix}"
        wheels = wheels_of(snapshot)
        memory = self._memory(client, client_error)
        check(memory, wheels, delete=delete, where=where)
        ours = {w.filename: w.sha256 for w in wheels}
        there = dict(self._listing(client, "files/"))
        files = [(k, p) for k, p in file_keys(snapshot, wheels) if there.get(k) != p.stat().st_size]
        pages = [(key, path, sha256_file(path)) for key, path in page_keys(snapshot)]
        changed = [(key, path) for key, path, sha256 in pages if memory.pages.get(key) != sha256]
        # The wheels are remembered before they are sent, the pages after: a push that stops is taken up again.
        self._remember(client, Memory(wheels={**memory.wheels, **ours}, pages=memory.pages))
        for key, path in files:
            kind = _TYPES.get(path.suffix, "application/octet-stream")
            extra = {"ContentType": kind, "CacheControl": _FOREVER, "ChecksumAlgorithm": "SHA256"}
            client.upload_file(str(path), self.bucket, self.prefix + key, ExtraArgs=extra)
        for key, path in changed:
            self._put_page(client, key, path.read_bytes())
        gone = sorted(set(memory.pages) - {key for key, _, _ in pages})
        for key in gone:
            self._delete(client, [key, key.removesuffix("index.html")] if key.endswith(".html") else [key])
        if delete:
            shown = {key for key, _ in file_keys(snapshot, wheels)}
            self._delete(client, sorted(set(there) - shown))
        self._remember(client, Memory(wheels=ours, pages={key: sha256 for key, _, sha256 in pages}))
        size = sum(path.stat().st_size for _, path in [*files, *changed])
        return Pushed(generation=snapshot.number, files=len(files), pages=len(changed), bytes=size)

    def _memory(self, client: Any, client_error: type[Exception]) -> Memory:
        try:
            answer = client.get_object(Bucket=self.bucket, Key=self.prefix + MEMORY)
        except client_error as exc:
            if exc.response["Error"]["Code"] in ("NoSuchKey", "404"):  # type: ignore[attr-defined]
                return Memory()
            raise
        return Memory.read(answer["Body"].read(), f"s3://{self.bucket}/{self.prefix}")

    def _remember(self, client: Any, memory: Memory) -> None:
        client.put_object(
            Bucket=self.bucket,
            Key=self.prefix + MEMORY,
            Body=memory.text().encode(),
            ContentType="application/json",
            CacheControl="no-store",
        )

    def _put_page(self, client: Any, key: str, body: bytes) -> None:
        kind = _TYPES[Path(key).suffix] if key.endswith(".html") else _SIMPLE_JSON
        keys = [key, key.removesuffix("index.html")] if key.endswith(".html") else [key]
        for name in keys:
            if name or self.prefix:
                client.put_object(
                    Bucket=self.bucket, Key=self.prefix + name, Body=body, ContentType=kind, CacheControl=_ASK
                )

    def _delete(self, client: Any, keys: list[str]) -> None:
        for key in keys:
            client.delete_object(Bucket=self.bucket, Key=self.prefix + key)

    def _listing(self, client: Any, below: str) -> Iterator[tuple[str, int]]:
        """The keys below a prefix, without ours, and their sizes in bytes."""
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self.prefix + below)
        for page in pages:
            for item in page.get("Contents", []):
                yield item["Key"].removeprefix(self.prefix), item["Size"]
