"""Settings of a user or site: mirror template, offline mode, compiler caches; each with the place that set it.

Precedence: option, environment variable, config file (``sm120.toml`` in the current folder, then the user's), default.
"""

from __future__ import annotations

import os
import re
import string
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import platformdirs

from sm120_wheels.compile.cache.choice import CHOICES, Choice
from sm120_wheels.compile.cache.shared import SharedCache
from sm120_wheels.compile.cache.shared import parse as parse_shared
from sm120_wheels.errors import SettingError, near_misses

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: Fields that a mirror template may hold.
MIRROR_FIELDS = ("scheme", "host", "owner", "name", "path", "file")
_KEYS = ("mirror", "offline", "compiler_cache", "shared_cache")
_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off", ""}


@dataclass(frozen=True, kw_only=True)
class Mirror:
    """Maps the URL of a source to another place. A commit id or sha256 is checked after, so it needs no trust."""

    template: str
    origin: str
    """Where the setting came from: ``option --mirror``, ``environment variable SM120_MIRROR`` or a file."""

    def map_url(self, url: str) -> str | None:
        """The mirrored URL, or None where the template has no place for a single file (``{path}`` or ``{file}``)
        and the URL is one."""
        parts = urlsplit(url)
        pieces = parts.path.strip("/").split("/")
        is_repository = len(pieces) == 2
        if not is_repository and not re.search(r"\{(path|file)\}", self.template):
            return None
        values = {
            "scheme": parts.scheme,
            "host": parts.netloc,
            "owner": pieces[0],
            "name": (pieces[1] if len(pieces) > 1 else pieces[0]).removesuffix(".git"),
            "path": parts.path.strip("/"),
            "file": pieces[-1],
        }
        return self.template.format(**values)


@dataclass(frozen=True, kw_only=True)
class Settings:
    mirror: Mirror | None = None
    offline: bool = False
    compiler_cache: Choice = "auto"
    shared_cache: SharedCache | None = None


def config_files(cwd: Path) -> list[Path]:
    """Config files in order of precedence."""
    return [cwd / "sm120.toml", Path(platformdirs.user_config_path("sm120-wheels")) / "config.toml"]


def resolve(
    *,
    mirror: str | None = None,
    offline: bool | None = None,
    compiler_cache: str | None = None,
    shared_cache: str | None = None,
    environ: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
) -> Settings:
    """Settings from the options given, the environment and the config files. Raises :class:`SettingError`."""
    found: dict[str, tuple[object, str]] = {}
    for file in reversed(config_files(cwd or Path.cwd())):
        for key, value in _read(file).items():
            found[key] = (value, f"{file}, key {key}")
    for key in _KEYS:
        variable = f"SM120_{key.upper()}"
        if environ.get(variable):
            found[key] = (environ[variable], f"environment variable {variable}")
    if mirror is not None:
        found["mirror"] = (mirror, "option --mirror")
    if offline is not None:
        found["offline"] = (offline, "option --offline")
    if compiler_cache is not None:
        found["compiler_cache"] = (compiler_cache, "option --compiler-cache")
    if shared_cache is not None:
        found["shared_cache"] = (shared_cache, "option --shared-cache")
    return Settings(
        mirror=_mirror(*found.get("mirror", ("", ""))),
        offline=_boolean(*found.get("offline", (False, ""))),
        compiler_cache=_choice(*found.get("compiler_cache", ("auto", ""))),
        shared_cache=parse_shared(*found.get("shared_cache", ("", ""))),
    )


def _read(file: Path) -> dict[str, object]:
    if not file.is_file():
        return {}
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise SettingError("the config file is not TOML", where=str(file), why=str(exc)) from exc
    for key in values:
        if key not in _KEYS:
            raise SettingError(f"unknown setting {key!r}", where=str(file), hint=near_misses(key, _KEYS))
    return values


def _mirror(value: object, origin: str) -> Mirror | None:
    if value == "":
        return None
    known = ", ".join("{" + field + "}" for field in MIRROR_FIELDS)
    example = "for example file:///srv/git/{owner}+{name}/repo or https://git.example.org/{path}"
    if not isinstance(value, str):
        raise SettingError("a mirror is a template in a string", where=origin, why=f"found {value!r}", hint=example)
    try:
        parsed = list(string.Formatter().parse(value))
        # A conversion or format after the name makes it an unknown field: a template only joins texts.
        fields = [
            f"{name}{(conversion and '!' + conversion) or ''}{(spec and ':' + spec) or ''}"
            for _, name, spec, conversion in parsed
            if name is not None
        ]
    except ValueError as exc:
        raise SettingError(f"bad mirror template {value!r}", where=origin, why=str(exc), hint=example) from exc
    for field in fields:
        if field not in MIRROR_FIELDS:
            raise SettingError(
                f"bad mirror template {value!r}",
                where=origin,
                why=f"unknown field {{{field}}}; known: {known}",
                hint=example,
            )
    if not fields:
        raise SettingError(
            f"bad mirror template {value!r}",
            where=origin,
            why="it has no field, so every source would come from the same place",
            hint=f"use {known}; {example}",
        )
    if "://" not in value and not re.match(r"[^/]+@[^/]+:", value):  # git@host:path is an address too
        value = Path(value).expanduser().absolute().as_uri().replace("%7B", "{").replace("%7D", "}").replace("%2B", "+")
    return Mirror(template=value, origin=origin)


def _choice(value: object, origin: str) -> Choice:
    for choice in CHOICES:
        if value == choice or (value is False and choice == "off"):
            return choice
    raise SettingError(f"{value!r} is no compiler cache", where=origin, hint=near_misses(str(value), CHOICES))


def _boolean(value: object, origin: str) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise SettingError(f"{value!r} is neither true nor false", where=origin, hint="use true or false")
