"""Which package index uv is told to use: the user's own uv settings, else what pip is configured with.

pip's settings are read from its documented places (pip's manual, "Configuration"): the global, user and site files,
``PIP_CONFIG_FILE``, then ``PIP_*`` variables, the later winning; sections ``[global]`` and ``[install]``.
"""

from __future__ import annotations

import configparser
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

_UV_OWN = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_NO_INDEX", "UV_FIND_LINKS")
_KEYS = ("index-url", "extra-index-url", "find-links", "cert", "trusted-host", "proxy")


@dataclass(frozen=True, kw_only=True)
class IndexSettings:
    """Environment variables for uv: ``first`` for every run, ``fallback`` added when the main index lacks a file.

    Extra indexes and link folders are only asked for what the main index does not have, so that one that is broken
    or unreachable cannot stop a build that does not need it. Every file is checked against the lock's sha256, so it
    does not matter which of them serves it.
    """

    first: Mapping[str, str]
    fallback: Mapping[str, str]
    source: str
    """Whose index setting it is, for messages: ``uv's own settings``, ``pip's settings`` or ``uv's default``."""


def index_settings(environ: Mapping[str, str], *, files: list[Path] | None = None) -> IndexSettings:
    """Translate pip's settings for uv, unless the user configured uv itself. ``files`` are pip's, in pip's order."""
    if any(environ.get(name) for name in _UV_OWN) or _uv_config_has_index(environ):
        return IndexSettings(first={}, fallback={}, source="uv's own settings")
    pip = pip_settings(environ, files=pip_files(environ) if files is None else files)
    first: dict[str, str] = {}
    if pip.get("index-url"):
        first["UV_DEFAULT_INDEX"] = pip["index-url"]
    if pip.get("trusted-host") and not environ.get("UV_INSECURE_HOST"):
        first["UV_INSECURE_HOST"] = " ".join(pip["trusted-host"].split())
    if pip.get("cert") and not environ.get("SSL_CERT_FILE"):
        first["SSL_CERT_FILE"] = pip["cert"]
    if pip.get("proxy") and not any(environ.get(n) for n in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        first["ALL_PROXY"] = pip["proxy"]
    fallback: dict[str, str] = {}
    extra = [url for url in pip.get("extra-index-url", "").split() if _exists(url)]
    if extra:
        fallback["UV_INDEX"] = " ".join(extra)
        fallback["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    links = [place for place in pip.get("find-links", "").split() if _exists(place)]
    if links:
        fallback["UV_FIND_LINKS"] = ",".join(links)
    return IndexSettings(
        first=first, fallback=fallback, source="pip's settings" if first.get("UV_DEFAULT_INDEX") else "uv's default"
    )


def pip_files(environ: Mapping[str, str]) -> list[Path]:
    """pip's configuration files on a POSIX system, in the order in which pip reads them."""
    config_file = environ.get("PIP_CONFIG_FILE", "")
    if config_file == os.devnull:
        return []
    home = Path(environ.get("HOME") or Path.home())
    system = [Path(d) / "pip/pip.conf" for d in reversed(environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")) if d]
    user = Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip/pip.conf"
    files = [*system, Path("/etc/pip.conf"), home / ".pip/pip.conf", user, Path(sys.prefix) / "pip.conf"]
    return files + ([Path(config_file)] if config_file else [])


def pip_settings(environ: Mapping[str, str], *, files: list[Path]) -> dict[str, str]:
    """The pip options that matter here, by their long names. A file that is not readable INI is passed over."""
    values: dict[str, str] = {}
    for file in files:
        parser = configparser.RawConfigParser()
        try:
            parser.read(file, encoding="utf-8")
        except (configparser.Error, OSError, UnicodeDecodeError):
            continue  # pip itself will complain about it; our builds do not depend on it
        for section in ("global", "install"):
            if parser.has_section(section):
                options = {key.replace("_", "-"): value for key, value in parser.items(section)}
                values.update({key: options[key] for key in _KEYS if key in options})
    for key in _KEYS:
        if value := environ.get("PIP_" + key.upper().replace("-", "_")):
            values[key] = value
    return values


def _exists(place: str) -> bool:
    """False only for a local folder that is not there; whether a server answers is seen when it is asked."""
    parts = urlsplit(place)
    if parts.scheme == "file":
        return Path(unquote(parts.path)).is_dir()
    return bool(parts.scheme) or Path(place).expanduser().is_dir()


def _uv_config_has_index(environ: Mapping[str, str]) -> bool:
    home = Path(environ.get("HOME") or Path.home())
    own = environ.get("UV_CONFIG_FILE")
    user = Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "uv/uv.toml"
    for file in [Path(own)] if own else [user, Path("/etc/uv/uv.toml")]:
        if file.is_file() and "index" in file.read_text(encoding="utf-8", errors="replace"):
            return True
    return False
