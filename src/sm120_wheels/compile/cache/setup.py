"""Puts a compiler cache in front of one build, and its report into the build's summary."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from sm120_wheels.compile.cache import ccache, gateway, sccache, shared, stats
from sm120_wheels.compile.cache.choice import Choice
from sm120_wheels.compile.session import CompileSession
from sm120_wheels.errors import ToolMissingError


@contextlib.contextmanager
def compiler_cache(
    session: CompileSession,
    places: ccache.Places,
    *,
    choice: Choice = "auto",
    shared_cache: shared.SharedCache | None = None,
    work_dir: Path,
    tell: Callable[[str], None],
    environ: Mapping[str, str] = os.environ,
    jobs: int | None = None,
) -> Iterator[None]:
    """While the block runs, ``session.launcher`` and ``session.environment`` go through the cache; after it,
    ``session.cache`` says what it did. ``work_dir`` must be there and be this build's own. ``jobs``: compiles at once
    on builders of sccache-dist.

    ``auto`` takes ccache and nothing else: sccache makes objects that differ in a symbol and compiles outside of the
    launcher, so it has to be asked for. Raises :class:`ToolMissingError` for a tool that was asked for and is not
    there.
    """
    if choice == "off":
        session.cache = stats.CacheReport(tool="none", why="switched off")
        yield
        return
    if choice == "sccache":
        with sccache.in_front(session, shared_cache, work_dir=work_dir, tell=tell, environ=environ, jobs=jobs):
            yield
        return
    found = ccache.find(environ)
    if isinstance(found, str):
        if choice == "ccache":
            raise ToolMissingError(found, hint="install ccache 4.7 or later, or use --compiler-cache off")
        if shared_cache is not None:
            tell(f"the shared cache {shared_cache.address} is not used: {found}")
        session.cache = stats.CacheReport(tool="none", why=found)
        yield
        return
    folder = ccache.object_folder(environ)
    why = _not_writable(folder)
    if why is not None:
        tell(f"compiling without a compiler cache: {why}")
        session.cache = stats.CacheReport(tool="none", why=why)
        yield
        return
    with _shared(found, shared_cache, session, environ=environ, tell=tell) as (socket, report):
        statistics = work_dir / "ccache-statistics.log"
        if statistics.exists():  # an earlier try's: what it found is there
            statistics.replace(work_dir / f"ccache-statistics-{statistics.stat().st_mtime_ns}.log")
        turns = work_dir.absolute() / "preprocessing"
        turns.mkdir(exist_ok=True)
        session.environment |= ccache.environment(
            found,
            places,
            launcher=session.launcher[0],
            statistics=statistics.absolute(),
            socket=socket,
            turns=[turns / str(number) for number in range(session.cores)],
            environ=environ,
        )
        session.launcher = [str(ccache.front_program())]
        try:
            yield
        finally:
            calls = stats.read_statistics_log(statistics)
            tool = f"ccache {found.version}"
            session.cache = stats.count(calls, tool=tool, shared=report())


def _not_writable(folder: Path) -> str | None:
    """ccache ends with an error where it cannot write, and a build must not."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as exc:
        return f"{folder}: {exc.strerror}"


@contextlib.contextmanager
def _shared(
    found: ccache.Ccache,
    shared_cache: shared.SharedCache | None,
    session: CompileSession,
    *,
    environ: Mapping[str, str],
    tell: Callable[[str], None],
) -> Iterator[tuple[Path | None, Callable[[], stats.SharedReport | None]]]:
    """The gateway's socket, and what will say how it went."""
    if shared_cache is None:
        yield None, lambda: None
        return
    if not found.unix_sockets:
        why = f"ccache {found.version} cannot reach it: it was built without redis+unix storage"
        tell(f"the shared cache {shared_cache.address} is not used: {why}")
        yield None, lambda: stats.SharedReport(where=shared_cache.address, state="unreachable", why=why)
        return
    secrets = shared.credentials(environ)
    socket = Path(session.environment["SM120_SOCKET"]).with_name(f"cache-{session.environment['SM120_SESSION']}")
    with gateway.served(shared_cache, secrets, socket=socket, tell=tell) as served:
        if isinstance(served, stats.SharedReport):
            yield None, lambda: served
        else:
            yield socket, lambda: _closed(served)


def _closed(served: gateway.Gateway) -> stats.SharedReport:
    """The report once everything is stored that can be."""
    served.close()
    return served.report
