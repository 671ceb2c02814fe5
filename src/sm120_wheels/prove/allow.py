"""The list of what is known not to run: kernels that are traps and libraries without code, each with its reason.

A recipe keeps one (``recipes/<recipe>/traps-allowed.toml``). What it names no longer lowers a verdict; anything else
of the kind is new, and fails the audit. Patterns are shell patterns (``*``, ``?``) on the mangled or demangled name.

    edition = 1

    [[trap]]
    kernel = "*Sm100FmhaFwdMainloopTmaWarpspecialized*"   # which kernels
    message = "*CUTE_ARCH_TCGEN05*"                        # optional: what they print
    targets = ["12.0"]                                     # optional: for which GPUs
    why = "SM100 MLA attention; sglang asks for it on compute capability 10.x only"

    [[absent]]
    library = "sgl_kernel/flash_ops*"
    why = "FlashAttention 3 needs wgmma, which only SM90 has"
"""

from __future__ import annotations

import fnmatch
import sys
from importlib import resources
from pathlib import Path
from typing import Literal

from packaging.utils import canonicalize_name
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sm120_wheels.errors import SettingError
from sm120_wheels.prove.names import demangle
from sm120_wheels.prove.traps import Trap

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


#: Distributions that go by another name now.
_RENAMED = {"sgl-kernel": "sglang-kernel"}


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class AllowedTrap(_Model):
    kernel: str
    """Shell pattern on the kernel's mangled or demangled name."""
    message: str = "*"
    targets: tuple[str, ...] = ()
    """Compute capabilities (``12.0``); all of them where empty."""
    why: str = Field(min_length=1)


class AllowedAbsence(_Model):
    library: str
    """Shell pattern on the library's path in the wheel."""
    targets: tuple[str, ...] = ()
    why: str = Field(min_length=1)


class AllowList(_Model):
    edition: Literal[1] = 1
    trap: tuple[AllowedTrap, ...] = ()
    absent: tuple[AllowedAbsence, ...] = ()

    def allows_trap(self, trap: Trap, target: str) -> str:
        """Why a trap is known, or nothing."""
        for rule in self.trap:
            if _for(rule.targets, target) and fnmatch.fnmatchcase(trap.message, rule.message):
                if fnmatch.fnmatchcase(trap.kernel, rule.kernel):
                    return rule.why
                if fnmatch.fnmatchcase(demangle(trap.kernel), rule.kernel):
                    return rule.why
        return ""

    def allows_absence(self, library: str, target: str) -> str:
        """Why a library is known to have no code for a target, or nothing."""
        for rule in self.absent:
            if _for(rule.targets, target) and fnmatch.fnmatchcase(library, rule.library):
                return rule.why
        return ""


def known_traps(distribution: str) -> AllowList:
    """What is known of a package that this project does not build, and holds for everybody; mostly nothing."""
    name = canonicalize_name(distribution)
    file = resources.files("sm120_wheels.prove").joinpath("known").joinpath(f"{_RENAMED.get(name, name)}.toml")
    if not file.is_file():
        return AllowList()
    return AllowList.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))


def merged(*lists: AllowList) -> AllowList:
    """The rules of all lists."""
    return AllowList(trap=tuple(r for x in lists for r in x.trap), absent=tuple(r for x in lists for r in x.absent))


def _for(targets: tuple[str, ...], target: str) -> bool:
    return not targets or target in targets


def read_allow_list(path: Path) -> AllowList:
    """Read the file. Raises :class:`SettingError` naming the key that is wrong."""
    try:
        return AllowList.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise SettingError("the list of allowed traps cannot be read", where=str(path), why=str(exc)) from exc
    except ValidationError as exc:
        lines = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in exc.errors()]
        raise SettingError(
            "the list of allowed traps is not valid",
            where=str(path),
            why="\n".join(lines),
            hint="[[trap]] has kernel, message, targets and why; [[absent]] has library, targets and why",
        ) from exc
