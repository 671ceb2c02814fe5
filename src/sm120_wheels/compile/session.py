"""One build's compiles: what to put in front of the compilers, and what came of it.

    with compile_session(package="sgl-kernel", profile=path, work_dir=work) as session:
        ...  # run the build with session.launcher, session.environment and ninja -j session.ninja_jobs
    session.summary

It starts no compile itself. A broker that dies meanwhile is started again by the launchers.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sm120_wheels.compile import budget as budgets
from sm120_wheels.compile.cache.shared import without_secrets
from sm120_wheels.compile.cache.stats import CacheReport
from sm120_wheels.compile.launcher import launcher as make_launcher
from sm120_wheels.compile.present import Present
from sm120_wheels.compile.profile import Profile, check_fits, read_profile, store_path
from sm120_wheels.compile.progress import Progress, watch
from sm120_wheels.compile.protocol import owner_text, socket_path
from sm120_wheels.compile.summary import CompileSummary, read_records, summarise
from sm120_wheels.compile.trace import write_trace
from sm120_wheels.errors import BrokerNotStartedError, CompilerKilledError
from sm120_wheels.files import human_bytes, make_private_folder, write_json
from sm120_wheels.process import run

#: ninja's job count: enough that the broker sees what there is to choose from, so all units of a profile: ninja goes
#: down its list, and a long unit near its end would start last. A waiting launcher holds about 0.3 MB.
_JOBS_PER_CORE = 16
_LEAST_JOBS = 64
_MOST_JOBS = 512


@dataclass(kw_only=True)
class CompileSession:
    """A running session. ``summary`` is there after the with-block has ended, also when it ended in an error."""

    launcher: list[str]
    """What stands in front of a compiler: one path without spaces."""
    environment: dict[str, str]
    """To be added to the build's environment."""
    ninja_jobs: int
    """Not how many compile: the launcher holds them back."""
    records: Path
    trace: Path
    """Written at the end; opens in Perfetto."""
    cores: int
    budget: budgets.Budget
    profile: Profile | None
    stage: str = ""
    """What the build does while it compiles nothing, for the progress; the build sets it."""
    cache: CacheReport | None = None
    """What a compiler cache answered, where one was asked (see compile/cache)."""
    _summary: CompileSummary | None = field(default=None)

    @property
    def summary(self) -> CompileSummary:
        if self._summary is None:
            raise RuntimeError("the session has not ended")
        return self._summary


@contextlib.contextmanager
def compile_session(
    *,
    package: str,
    work_dir: Path,
    profile: Path | None = None,
    budget: int | None = None,
    cores: int | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Iterator[CompileSession]:
    """Schedule a build's compiles within memory.

    ``budget``: at most this many bytes for compiles (default: what the machine has free). ``cores``: at most this many
    at once. ``profile``: a CSV of measured units.
    Raises :class:`InsufficientMemoryError` at once for a profile whose largest unit can never fit,
    :class:`HostCompilerError` where the launcher cannot be built, :class:`BrokerNotStartedError` where no broker
    answers, and :class:`CompilerKilledError` at the end, in place of the build's own error, when a compiler was killed
    at every try.
    """
    known = read_profile(profile) if profile is not None else None
    limits = budgets.measure(cap=budget, cores=cores)
    if known is not None:
        check_fits(known, ceiling=limits.ceiling)
    work_dir.mkdir(parents=True, exist_ok=True)
    identity = uuid.uuid4().hex[:12]
    records = work_dir.absolute() / f"compile-{identity}.jsonl"
    meeting = socket_path()
    make_private_folder(meeting.parent)
    session = CompileSession(
        launcher=[str(make_launcher(socket=meeting))],
        environment={
            "SM120_SOCKET": str(meeting),
            "SM120_PYTHON": sys.executable,
            "SM120_SESSION": identity,
            "SM120_PACKAGE": package,
            "SM120_PROFILE": str(profile.absolute()) if profile is not None else "",
            "SM120_STORE": str(store_path(package)),
            "SM120_MEMORY": str(budget or ""),
            "SM120_CORES": str(cores or ""),
            "SM120_RECORDS": str(records),
            "SM120_OWNER": owner_text(),
        },
        ninja_jobs=min(_MOST_JOBS, max(_LEAST_JOBS, _JOBS_PER_CORE * limits.cores, len(known.units) if known else 0)),
        records=records,
        trace=work_dir.absolute() / "compile-trace.json",
        cores=limits.cores,
        budget=limits,
        profile=known,
    )
    _start_broker(session.launcher, {**without_secrets(os.environ), **session.environment}, meeting)
    ended = threading.Event()

    def tell(progress: Progress) -> None:
        if on_progress is not None:
            on_progress(replace(progress, stage=session.stage))

    present = Present(work_dir, records).sources
    watcher = threading.Thread(
        target=watch,
        kwargs={"socket": meeting, "session": identity, "records": records, "profile": known}
        | {"ended": ended, "tell": tell, "present": present},
        daemon=True,
    )
    if on_progress is not None:
        watcher.start()
    try:
        yield session
    except BaseException as exc:
        _finish(session, work_dir)
        if isinstance(exc, Exception):
            _explain_kills(session, exc)
        raise
    else:
        _finish(session, work_dir)
    finally:
        ended.set()
        if on_progress is not None:
            watcher.join(timeout=5)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{meeting}.noted-{identity}")  # noqa: PTH108 - the launcher's own naming


def _start_broker(launcher: Sequence[str], environment: Mapping[str, str], meeting: Path) -> None:
    """Have a broker before the build starts, so that one which cannot run is the build's error and not a line in its
    log: without a broker files are compiled one at a time."""
    Path(f"{meeting}.failed").unlink(missing_ok=True)  # whatever it was, it may have been mended
    if run([*launcher, "--start-broker"], env=environment, check=False).ok:
        return
    log = Path(f"{meeting}.log")
    said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.is_file() else []
    python = environment["SM120_PYTHON"]
    raise BrokerNotStartedError(
        "the compile broker cannot be started",
        where=f"{python} -m sm120_wheels.compile.broker",
        why="\n".join(said[-5:]) or "it said nothing",
        hint=f"see {log}; the broker needs a runtime folder that this user can write (SM120_RUNTIME_DIR)",
    )


def _finish(session: CompileSession, work_dir: Path) -> None:
    records = read_records(session.records)
    session._summary = summarise(records, cores=session.cores, budget=session.budget.memory, cache=session.cache)
    write_trace(session.trace, records)
    write_json(work_dir / "compile-summary.json", session.summary.to_json())


def _explain_kills(session: CompileSession, cause: Exception) -> None:
    """Say that it was memory, not the source, when a compiler was killed at every try."""
    summary = session.summary
    if not summary.killed_for_good:
        return
    worst = next(u for u in summary.largest(len(summary.units)) if u.source in summary.killed_for_good)
    raise CompilerKilledError(
        f"the compiler of {worst.source} was killed at each of {worst.retries + 1} tries",
        where=worst.source,
        why=f"it held {human_bytes(worst.peak_rss)} when it was ended, and {human_bytes(summary.budget)} may be used; "
        "at the last tries nothing else was compiled beside it",
        hint="raise the memory limit of the container or VM, or build on a machine with more memory",
    ) from cause
