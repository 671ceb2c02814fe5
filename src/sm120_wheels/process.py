"""The one way a program is run: its own process group, its output to a log, stopped whole when we are stopped.

Arguments are always a list; no shell is ever involved.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sm120_wheels.errors import CommandError, ToolMissingError

_TAIL_LINES = 60
_TERM_GRACE_S = 5.0
#: Variables that hold our own secrets (see compile/cache/shared.py): no program that we start has a use for them.
_OUR_SECRETS = "SM120_SHARED_CACHE_"


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A program that ended. ``returncode`` < 0 is the number of the signal that killed it."""

    argv: tuple[str, ...]
    returncode: int
    output: str
    """stdout and stderr together; only the last lines where a log was given."""

    @property
    def ok(self) -> bool:
        return self.returncode == 0


def run(
    argv: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    log: Path | None = None,
    on_line: Callable[[str], None] | None = None,
    check: bool = True,
    stdin: bytes | None = None,
) -> Finished:
    """Run a program to its end and return what it said.

    ``env`` replaces the whole environment; the secrets of a shared cache are never handed on. With ``log``, every line
    is appended there and ``output`` keeps only the last 60. ``on_line`` sees each line without its newline. Raises
    :class:`ToolMissingError` where the program does not exist and, with ``check``, :class:`CommandError` where it
    fails. On any exception (Ctrl-C too) the whole process group is ended before it goes on.
    """
    arguments = tuple(str(a) for a in argv)
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(log.open("a", encoding="utf-8")) if log else None
        process = stack.enter_context(_started(arguments, cwd=cwd, env=env, with_stdin=stdin is not None))
        if stdin is not None:
            assert process.stdin is not None
            threading.Thread(target=_feed, args=(process, stdin), daemon=True).start()
        kept: deque[str] | list[str] = deque(maxlen=_TAIL_LINES) if stream else []
        assert process.stdout is not None
        for raw in process.stdout:
            line = raw.decode("utf-8", "replace")
            kept.append(line)
            if stream:
                stream.write(line)
                stream.flush()
            if on_line:
                on_line(line.rstrip("\n"))
        returncode = process.wait()
    finished = Finished(argv=arguments, returncode=returncode, output="".join(kept))
    if check and not finished.ok:
        raise CommandError(
            f"{Path(arguments[0]).name} failed ({describe_status(returncode)})",
            where=" ".join(arguments),
            why="\n".join(finished.output.strip().splitlines()[-15:]),
        )
    return finished


def describe_status(returncode: int) -> str:
    """``exit code 2`` or ``killed by SIGKILL``."""
    if returncode >= 0:
        return f"exit code {returncode}"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-returncode).name}"
    return f"killed by signal {-returncode}"


def _feed(process: subprocess.Popen[bytes], data: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
        pipe.write(data)


@contextlib.contextmanager
def _started(
    argv: tuple[str, ...], *, cwd: Path | None, env: Mapping[str, str] | None, with_stdin: bool
) -> Iterator[subprocess.Popen[bytes]]:
    if cwd is not None and not cwd.is_dir():
        raise CommandError(f"cannot run {argv[0]}: no folder {cwd}")
    try:
        process = subprocess.Popen(
            argv,
            cwd=cwd,
            env={k: v for k, v in (os.environ if env is None else env).items() if not k.startswith(_OUR_SECRETS)},
            stdin=subprocess.PIPE if with_stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except FileNotFoundError as exc:
        raise ToolMissingError(
            f"{argv[0]} is not installed", hint=f"install {Path(argv[0]).name} and run again"
        ) from exc
    except OSError as exc:
        if exc.errno not in (errno.EACCES, errno.EPERM, errno.ENOEXEC):
            raise
        raise ToolMissingError(f"{argv[0]} cannot be executed", why=os.strerror(exc.errno)) from exc
    try:
        yield process
    finally:
        if process.poll() is None:
            _end_group(process)
        if process.stdout is not None:
            process.stdout.close()


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the group (ninja then ends its compilers and keeps its log), SIGKILL to what is left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=_TERM_GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
