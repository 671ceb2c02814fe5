"""Which modules a build takes: reads profiles.toml and turns a profile and names into patterns."""

from __future__ import annotations

import fnmatch
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sm120_wheels import paths
from sm120_wheels.errors import RecipeInvalidError, SettingError, UnknownComponentError, near_misses

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Pattern = Annotated[str, Field(pattern=r"^!?[A-Za-z0-9_*?\[\]-]+$")]


class Profile(BaseModel):
    """One named choice of modules."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    summary: str
    """One line for people."""
    modules: tuple[Pattern, ...] = Field(min_length=1)
    """Groups or glob patterns over module names; ``!`` in front takes matches out again."""
    without: dict[Pattern, str] = {}
    """Patterns of modules that upstream builds by default and this profile does not, each with the reason."""


class Profiles(BaseModel):
    """profiles.toml as a whole."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    edition: Literal[1]
    """Format of this file."""
    default: str
    """The profile that a build takes when none is asked for."""
    groups: dict[str, tuple[Pattern, ...]] = {}
    """Short names for several patterns."""
    profiles: dict[str, Profile] = Field(min_length=1)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What was asked for, as patterns over module names."""

    take: tuple[str, ...]
    leave: tuple[str, ...] = ()
    asked: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Each name of ``--modules`` with its patterns: one that matches nothing is a user's mistake."""
    reasons: tuple[tuple[str, str], ...] = ()
    """Patterns of what the profile leaves out, with the reason."""

    def takes(self, module: str) -> bool:
        return _any_matches(module, self.take) and not _any_matches(module, self.leave)


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """Modules that upstream's default build would have, or that a profile names, and this build has not."""

    name: str
    """A module name or a pattern; ``*`` for all the rest."""
    why: str
    count: int | None = None
    """How many modules of the target that is; None where upstream does not tell."""


def profiles_path() -> Path:
    return paths.recipes_root() / "flashinfer" / "profiles.toml"


def load_profiles(path: Path | None = None) -> Profiles:
    """Read profiles.toml. Raises :class:`RecipeInvalidError` naming file and key."""
    path = path or profiles_path()
    try:
        profiles = Profiles.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except tomllib.TOMLDecodeError as exc:
        raise RecipeInvalidError("profiles.toml is not TOML", where=str(path), why=str(exc)) from exc
    except ValidationError as exc:
        first = exc.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise RecipeInvalidError("profiles.toml does not hold", where=f"{path}: {key}", why=first["msg"]) from exc
    if profiles.default not in profiles.profiles:
        raise RecipeInvalidError(
            f"profiles.toml has no profile {profiles.default!r}",
            where=f"{path}: default",
            hint=near_misses(profiles.default, profiles.profiles),
        )
    return profiles


def choose(profiles: Profiles, *, profile: str | None, modules: Sequence[str] = ()) -> Choice:
    """The patterns of a profile, of names (groups, modules, glob patterns), or of both together.

    With neither, the default profile. Raises :class:`SettingError` for an unknown profile; whether a name exists is
    only known once upstream has listed its modules (:func:`check_asked`).
    """
    if profile is None and not modules:
        profile = profiles.default
    if profile is not None and profile not in profiles.profiles:
        raise SettingError(
            f"flashinfer has no profile {profile!r}", where="--profile", hint=near_misses(profile, profiles.profiles)
        )
    chosen = profiles.profiles[profile] if profile else None
    asked = tuple((name, _expand(profiles, [name])) for name in modules)
    patterns = [*_expand(profiles, chosen.modules if chosen else ()), *(p for _, ps in asked for p in ps)]
    return Choice(
        take=tuple(dict.fromkeys(p for p in patterns if not p.startswith("!"))),
        leave=tuple(dict.fromkeys(p[1:] for p in patterns if p.startswith("!"))),
        asked=asked,
        reasons=tuple(chosen.without.items()) if chosen else (),
    )


def check_asked(choice: Choice, known: Sequence[str], *, groups: Iterable[str], target: str) -> None:
    """Raise :class:`UnknownComponentError` for a name given by hand that no module of the target bears."""
    for name, patterns in choice.asked:
        if not any(_any_matches(module, patterns) for module in known):
            raise UnknownComponentError(
                f"flashinfer has no module {name!r} for {target}",
                where="--modules",
                hint=near_misses(name, [*groups, *known]) if len(known) < 40 else _short_hint(name, [*groups, *known]),
            )


def explain(choice: Choice, known: Sequence[str]) -> tuple[LeftOut, ...]:
    """What of upstream's default list is not taken, with the profile's reasons, and what the profile names in vain."""
    rest = [module for module in known if not choice.takes(module)]
    found: list[LeftOut] = []
    for pattern, why in choice.reasons:
        matched = [module for module in rest if fnmatch.fnmatchcase(module, pattern)]
        rest = [module for module in rest if module not in matched]
        if matched:
            found.append(LeftOut(name=pattern, why=why, count=len(matched)))
    if rest:
        found.append(LeftOut(name="*", why="not in the chosen profile or modules", count=len(rest)))
    for pattern in choice.take:
        if not any(fnmatch.fnmatchcase(module, pattern) for module in known):
            found.append(LeftOut(name=pattern, why="upstream has no such module for this target", count=0))
    return tuple(found)


def _expand(profiles: Profiles, names: Iterable[str]) -> tuple[str, ...]:
    return tuple(pattern for name in names for pattern in profiles.groups.get(name, (name,)))


def _any_matches(module: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(module, pattern) for pattern in patterns)


def _short_hint(name: str, known: Sequence[str]) -> str:
    hint = near_misses(name, known)
    return hint if len(hint) < 400 else hint[:400].rsplit(",", 1)[0] + ", … (`*` in a name matches any part)"
