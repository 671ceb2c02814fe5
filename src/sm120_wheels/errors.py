"""Every failure that a user can meet: one class and one exit code for each kind.

The command line prints ``what``, then the place, the cause and the mend, and leaves with ``exit_code``; no
traceback is shown for these. Anything that is not an :class:`Sm120Error` is a defect of ours and keeps its traceback.

Codes are grouped by stage, so that a script can tell "your input" (1x) from "the network" (2x), "the patches"
(3x), "this machine" (4x), "the compile" (5x), "the wheel" (6x), "the GPU test" (7x) and "the index" (8x). Codes 1
and 2 stay the interpreter's and click's own.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class Sm120Error(Exception):
    """A failure with a place, a cause and a mend.

    ``what`` is one sentence; ``where`` a file, key or command; ``why`` the cause; ``hint`` what the user can do.
    """

    exit_code = 9

    def __init__(self, what: str, *, where: str = "", why: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.why = why
        self.hint = hint

    def __str__(self) -> str:
        lines = [self.what]
        lines += [f"  where: {self.where}"] if self.where else []
        lines += [f"  why:   {_indent(self.why)}"] if self.why else []
        lines += [f"  do:    {_indent(self.hint)}"] if self.hint else []
        return "\n".join(lines)


def _indent(text: str) -> str:
    return text.rstrip().replace("\n", "\n         ")


def near_misses(wanted: str, known: Iterable[str]) -> str:
    """A hint that names the closest known values, or all of them where none is close."""
    names = list(known)
    close = difflib.get_close_matches(wanted, names, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(close)}? Known: {', '.join(names)}"
    return f"known: {', '.join(names)}" if names else "none is known"


# 1x: what the user asked for


class RecipeInvalidError(Sm120Error):
    """A recipe file that breaks the model; names file and key."""

    exit_code = 10


class UnknownRecipeError(Sm120Error):
    exit_code = 11


class UnknownVersionError(Sm120Error):
    exit_code = 12


class UnknownCudaError(Sm120Error):
    exit_code = 13


class UnknownArchError(Sm120Error):
    exit_code = 14


class UnsupportedTargetError(Sm120Error):
    """Known values that do not go together: plain 12.0 where FP4 is needed, a torch of another CUDA major."""

    exit_code = 15


class UnknownComponentError(Sm120Error):
    """A component or module name that the recipe does not have, or one that may not be left out."""

    exit_code = 16


class SettingError(Sm120Error):
    """A value of an option, environment variable or config file that cannot be used; names which of them set it."""

    exit_code = 17


class EmptySelectionError(Sm120Error):
    """Selectors that leave nothing of the matrix."""

    exit_code = 18


class DuplicateIdentifierError(Sm120Error):
    """Two different builds of the matrix that would have one name."""

    exit_code = 19


# 2x: bringing sources and tools here


class HashMismatchError(Sm120Error):
    exit_code = 20


class HostUnreachableError(Sm120Error):
    exit_code = 21


class CommitNotFoundError(Sm120Error):
    exit_code = 22


class OfflineError(Sm120Error):
    """Something is needed that no cache holds, and ``--offline`` forbids to fetch it."""

    exit_code = 23


class DownloadError(Sm120Error):
    """The server answered, but not with the file."""

    exit_code = 24


# 3x: patches


class PatchConflictError(Sm120Error):
    exit_code = 30


class PatchUnusedError(Sm120Error):
    """A patch whose version range matches no version of the recipe."""

    exit_code = 31


class PatchInvalidError(Sm120Error):
    exit_code = 32


# 4x: this machine


class ToolMissingError(Sm120Error):
    exit_code = 40


class HostCompilerError(Sm120Error):
    """No C++ compiler, or one that this nvcc refuses."""

    exit_code = 41


class CudaVersionError(Sm120Error):
    """An nvcc of another version than the recipe's CUDA."""

    exit_code = 42


class NumaMissingError(Sm120Error):
    exit_code = 43


class NoSpaceError(Sm120Error):
    exit_code = 44


class InsufficientMemoryError(Sm120Error):
    """A translation unit that this machine's memory can never hold."""

    exit_code = 45


class BusyError(Sm120Error):
    """Another process holds the lock on this build, cache entry or index."""

    exit_code = 46


class NotWritableError(Sm120Error):
    """A folder of ours (cache, build, output) that this user may not write."""

    exit_code = 47


class BrokerNotStartedError(Sm120Error):
    """The process that admits compiles by the memory they need does not run and cannot be started."""

    exit_code = 48


# 5x: configure and compile


class ConfigureError(Sm120Error):
    exit_code = 50


class CompileError(Sm120Error):
    exit_code = 51


class CompilerKilledError(Sm120Error):
    """A compiler that died from a signal; most often the kernel's out-of-memory killer."""

    exit_code = 52


class CommandError(Sm120Error):
    """A helper program (git, uv, …) failed in a way that no other class describes."""

    exit_code = 53


# 6x: wheels


class WheelInvalidError(Sm120Error):
    """A file that is not a well-formed wheel; nothing of it was unpacked outside the work folder."""

    exit_code = 60


class AuditFailedError(Sm120Error):
    exit_code = 61


class EquivalenceFailedError(Sm120Error):
    exit_code = 62


# 64 to 67 are verdicts of `sm120 audit --target` (prove/verdict.py): not known, in part, not at all, no GPU code


# 7x: GPU smoke


class SmokeFailedError(Sm120Error):
    exit_code = 70


class SmokeNotRunError(Sm120Error):
    """Nothing was launched (no GPU, no cases): neither passed nor failed."""

    exit_code = 71


class SmokeRefusedError(Sm120Error):
    """A GPU that the wheel has no code for: refused before the first launch."""

    exit_code = 72


# 8x: the index


class PublishRefusedError(Sm120Error):
    exit_code = 80


class IndexDamagedError(Sm120Error):
    exit_code = 81


class RemoteError(Sm120Error):
    """The place an index is pushed to refused, or could not be reached; what it shows is still whole."""

    exit_code = 82


class ReleaseFailedError(Sm120Error):
    """Something that must be green before a publish is not."""

    exit_code = 83


class ReleaseIncompleteError(Sm120Error):
    """Nothing failed before a publish, but something that must be known was not run."""

    exit_code = 84


class Interrupted(Sm120Error):  # noqa: N818 - an event, not an error: what is done is kept
    """Ctrl-C or SIGTERM. 128 + SIGINT, as shells expect."""

    exit_code = 130
