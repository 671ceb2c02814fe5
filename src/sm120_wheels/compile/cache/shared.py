"""Where a shared cache lies and who we are there: one address, and credentials that come from elsewhere.

Credentials come from the environment or from files that it names, never from the address: an address is written into
logs, records and config files. They stay in this process; the build's own environment does not get them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlsplit, urlunsplit

from sm120_wheels.errors import SettingError, near_misses

SCHEMES = ("redis", "rediss", "http", "https", "s3")
_OPTIONS = ("read-only", "endpoint", "region")
_EXAMPLE = "for example redis://cache.example.org, https://cache.example.org/sm120 or s3://bucket/prefix"
_PREFIX = "SM120_SHARED_CACHE_"


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """``signing``: a secret that entries are signed with; None for a plain digest."""

    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    signing: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class SharedCache:
    """``redis[s]://host[:port][/database]``, ``http[s]://host/folder`` (plain GET and PUT, as WebDAV has them) or
    ``s3://bucket[/prefix]``."""

    address: str
    """Without options; safe to print."""
    read_only: bool = False
    endpoint: str | None = None
    """Of an S3-compatible storage; None for boto3's own rules."""
    region: str | None = None

    @property
    def scheme(self) -> str:
        return urlsplit(self.address).scheme


def parse(value: object, origin: str) -> SharedCache | None:
    """The setting's value; None for an empty one. Raises :class:`SettingError`, which never repeats a password."""
    if value in ("", None, "off"):
        return None
    if not isinstance(value, str):
        raise SettingError("a shared cache is an address in a string", where=origin, hint=_EXAMPLE)
    parts = urlsplit(value)
    if parts.scheme not in SCHEMES:
        raise SettingError(
            f"a shared cache cannot be at {parts.scheme}://" if parts.scheme else "a shared cache is an address",
            where=origin,
            why=f"known: {', '.join(f'{scheme}://' for scheme in SCHEMES)}",
            hint=_EXAMPLE,
        )
    if "@" in parts.netloc:
        raise SettingError(
            "the address of a shared cache must not hold a user name or a password",
            where=origin,
            why="addresses are written into logs and records",
            hint=f"set {_PREFIX}USER and {_PREFIX}PASSWORD, or {_PREFIX}PASSWORD_FILE",
        )
    try:
        port_is_fine = parts.port is None or parts.port > 0
    except ValueError:
        port_is_fine = False
    if not parts.hostname or not port_is_fine:
        raise SettingError("the address of a shared cache names no host", where=origin, hint=_EXAMPLE)
    options = {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
    for name in options:
        if name not in _OPTIONS:
            raise SettingError(
                f"unknown option {name!r} of a shared cache", where=origin, hint=near_misses(name, _OPTIONS)
            )
    database = parts.path.strip("/")
    if parts.scheme.startswith("redis") and database and not database.isdigit():
        raise SettingError(
            f"{database!r} is not the number of a Redis database", where=origin, hint="write redis://host:6379/0"
        )
    return SharedCache(
        address=urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", "")),
        read_only="read-only" in options and options["read-only"] not in ("0", "false", "no"),
        endpoint=options.get("endpoint"),
        region=options.get("region"),
    )


def credentials(environ: Mapping[str, str]) -> Credentials:
    """``SM120_SHARED_CACHE_USER``, ``_PASSWORD``, ``_TOKEN`` and ``_KEY``; each with ``_FILE`` names a file instead.

    Object storage has its own: boto3 finds them. Raises :class:`SettingError` for a file that cannot be read.
    """
    signing = _secret("KEY", environ)
    return Credentials(
        user=_secret("USER", environ),
        password=_secret("PASSWORD", environ),
        token=_secret("TOKEN", environ),
        signing=signing.encode() if signing else None,
    )


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """For a program that lives on: it has no use for a shared cache, and other builds meet it."""
    return {name: value for name, value in environ.items() if not name.startswith((_PREFIX, "AWS_"))}


def _secret(name: str, environ: Mapping[str, str]) -> str | None:
    if value := environ.get(f"{_PREFIX}{name}"):
        return value
    file = environ.get(f"{_PREFIX}{name}_FILE")
    if not file:
        return None
    try:
        return Path(file).read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError) as exc:
        raise SettingError(
            "the file with a secret of the shared cache cannot be read",
            where=f"environment variable {_PREFIX}{name}_FILE",
            why=f"{file}: {exc.strerror if isinstance(exc, OSError) else 'it is not text'}",
        ) from exc
