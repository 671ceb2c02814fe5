"""Runs the worker under compute-sanitizer, and gives what that reports to the case that ran at the time."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sm120_wheels.prove.smoke.model import CaseResult
from sm120_wheels.prove.smoke.packages import PAYLOAD

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
#: These see nothing of a tensor that torch cuts from a larger piece: each must be an allocation of its own.
_SEES_ALLOCATIONS = ("memcheck", "initcheck")
_WITH_LOOPBACK = PAYLOAD / "sm120_smoke" / "with_loopback.py"
_SUMMARY = re.compile(
    r"^========= (?:COMPUTE-SANITIZER|ERROR SUMMARY|LEAK SUMMARY|RACECHECK SUMMARY|Target application"
    r"|Warning: (?!Race))"  # of itself: what it cannot look at
)
_PLACES = ("CUDA_HOME", "CUDA_PATH")


def find_sanitizer(python: Path | None = None) -> Path | None:
    """compute-sanitizer: ours (nvidia-cuda-sanitizer-api), the environment's, CUDA_HOME's, or one on the PATH."""
    on_path = shutil.which("compute-sanitizer")
    for place in [*_places(python), *([Path(on_path)] if on_path else [])]:
        if place.is_file() and os.access(place, os.X_OK):
            return _program(place)
    return None


def _program(found: Path) -> Path:
    """What a toolkit has in bin/ is a script that asks programs of the PATH, of which a worker has none, where the real
    one lies: take that one."""
    with found.open("rb") as stream:
        if stream.read(2) != b"#!":
            return found
    real = found.resolve().parent.parent / "compute-sanitizer" / "compute-sanitizer"
    return real if real.is_file() and os.access(real, os.X_OK) else found


def _places(python: Path | None) -> Iterator[Path]:
    for file in _files("nvidia-cuda-sanitizer-api"):
        if file.name == "compute-sanitizer":
            yield file
    if python is not None:
        yield from python.parent.parent.glob("lib/python3*/site-packages/nvidia/**/compute-sanitizer")
    homes = [os.environ[name] for name in _PLACES if os.environ.get(name)]
    for home in [*homes, "/usr/local/cuda"]:
        yield Path(home) / "bin" / "compute-sanitizer"
        yield Path(home) / "compute-sanitizer" / "compute-sanitizer"


def _files(distribution: str) -> list[Path]:
    try:
        return [Path(str(file.locate())) for file in importlib.metadata.files(distribution) or []]
    except importlib.metadata.PackageNotFoundError:
        return []


@dataclass(kw_only=True)
class Sanitizer:
    """One tool of compute-sanitizer for the length of a run."""

    program: Path
    tool: str
    folder: Path
    """Where the logs go, one for each worker: the tool empties a file that is there."""
    slower: float = 20.0
    """Deadlines are this much longer: every access is checked."""
    _read: dict[Path, int] = field(default_factory=dict)

    def wrapper(self, python: Path) -> Sequence[str]:
        """What is put before the interpreter; ``{worker}`` stands for the worker's number."""
        options = {
            "--tool": self.tool,
            "--log-file": str(self.folder / "sanitizer-{worker}.log"),
            "--launch-timeout": "300",  # seconds; importing torch takes longer than the 10 that are usual
            "--print-limit": "10000",  # for all cases of a worker together
            "--report-api-errors": "no",  # libraries probe, and what an operator meets it raises
            "--show-backtrace": "device",  # looking up names in torch's libraries takes minutes
            "--target-processes": "application-only",
        }
        words = [word for option in options.items() for word in option]
        return (str(python), "-I", "-B", str(_WITH_LOOPBACK), str(self.program), *words)

    @property
    def environment(self) -> Mapping[str, str]:
        """For the workers."""
        found = {"TMPDIR": str(self.folder)}  # pipes of a process that was killed would stay behind
        if self.tool in _SEES_ALLOCATIONS:
            found["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
        return found

    def judge(self, result: CaseResult) -> CaseResult:
        """The result with what the tool reported since the last case."""
        report = errors_in(self._new())
        if not report or result.state == "not run":
            return result
        text = f"compute-sanitizer {self.tool}: {report[0]}"
        more = f" (and {len(report) - 1} more lines)" if len(report) > 1 else ""
        why = f"{result.why}; {text}{more}" if result.why else text + more
        return replace(result, state="failed", why=why, output="\n".join([*report[:60], result.output]))

    def _new(self) -> str:
        texts = []
        for log in sorted(self.folder.glob("sanitizer-*.log")):
            with log.open("rb") as stream:
                stream.seek(self._read.get(log, 0))
                new = stream.read()
            self._read[log] = self._read.get(log, 0) + len(new)
            texts.append(new.decode("utf-8", "replace"))
        return "".join(texts)


def errors_in(text: str) -> list[str]:
    """The lines of a report that tell of errors, without its frame."""
    lines = [line for line in text.splitlines() if line.startswith("=========") and not _SUMMARY.match(line)]
    return [line.removeprefix("=========").strip() for line in lines if line.removeprefix("=========").strip()]
