"""The recipe: what a package is made of, as data. Reads and validates recipes/<name>/recipe.toml, and nothing else.

A new upstream version is a new block of pins in that file, never new code. The attribute docstrings below are the
recipe reference: docs/reference/recipe.md and recipes/recipe.schema.json are generated from them.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from sm120_wheels import headers, paths
from sm120_wheels.arch import Arch
from sm120_wheels.errors import (
    RecipeInvalidError,
    Sm120Error,
    UnknownRecipeError,
    UnknownVersionError,
    near_misses,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: The edition of the format that this code reads. A recipe of another edition is refused by name.
EDITION = 1


def _arch(text: str) -> str:
    try:
        return str(Arch.parse(text))
    except Sm120Error as exc:
        raise ValueError(f"{exc.what} ({exc.hint})") from exc


def _version(text: str) -> str:
    try:
        return str(Version(text))
    except InvalidVersion as exc:
        raise ValueError(f"{text!r} is not a PEP 440 version") from exc


def _stays_inside(text: str) -> str:
    if ".." in text.split("/"):
        raise ValueError(f"{text!r} leads outside")
    return text


def _header_set(text: str) -> str:
    if text not in headers.names():
        raise ValueError(f"there are no lean headers {text!r} ({near_misses(text, headers.names())})")
    return text


ArchName = Annotated[str, AfterValidator(_arch)]
VersionText = Annotated[str, AfterValidator(_version)]
CudaName = Annotated[str, Field(pattern=r"^\d+\.\d+$")]
PythonName = Annotated[str, Field(pattern=r"^3\.\d+$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
SlugName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
RelativePath = Annotated[str, Field(pattern=r"^[A-Za-z0-9._+-]+(/[A-Za-z0-9._+-]+)*$"), AfterValidator(_stays_inside)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, populate_by_name=True)


class Source(_Model):
    """One pinned source. Exactly one of ``git``, ``archive``, ``pypi`` and ``folder`` says where it comes from."""

    git: Annotated[str, Field(pattern=r"^https://[^/]+/[^/]+/[^/]+$")] | None = None
    """URL of a git repository, `https://host/owner/name`. The mirror setting can map it elsewhere."""
    commit: Commit | None = None
    """Full id of the commit (with `git`). Verified by git itself: an object is its hash."""
    archive: Annotated[str, Field(pattern=r"^https://")] | None = None
    """URL of a .tar.gz, .tar.xz or .zip file. One top folder inside is stripped."""
    pypi: str | None = None
    """File name of an sdist on the Python package index; found through the index that pip or uv is set to."""
    sha256: Sha256 | None = None
    """sha256 of the file (with `archive` and `pypi`)."""
    folder: RelativePath | None = None
    """A folder beside the recipe: sources of our own. Pinned by their content."""
    paths: tuple[RelativePath, ...] = ()
    """Only these files and folders are checked out (with `git`); empty: all."""
    fetchcontent: str | None = None
    """Name under which the package's CMake declares this source with FetchContent; it is handed over as
    `FETCHCONTENT_SOURCE_DIR_<NAME>`."""
    into: RelativePath | None = None
    """Where it is put, as `source/folder`, when it has to lie inside another source."""
    components: tuple[SlugName, ...] = ()
    """Needed only where one of these components is built; empty: always needed."""
    licence: str = ""
    """SPDX expression, for the bill of materials."""

    @model_validator(mode="after")
    def _one_kind(self) -> Source:
        kinds = [name for name in ("git", "archive", "pypi", "folder") if getattr(self, name)]
        if len(kinds) != 1:
            raise ValueError(f"exactly one of git, archive, pypi, folder is needed, found {', '.join(kinds) or 'none'}")
        if (self.commit is None) == (self.git is not None):
            raise ValueError("commit goes with git, and git needs commit")
        if (self.sha256 is None) == (self.archive is not None or self.pypi is not None):
            raise ValueError("sha256 goes with archive and pypi, and both need it")
        if self.paths and not self.git:
            raise ValueError("paths goes with git")
        return self

    @property
    def pin(self) -> str:
        """What identifies the content, for people: a commit id, a sha256, or the folder's name."""
        return self.commit or self.sha256 or f"folder {self.folder}"

    @property
    def url(self) -> str:
        return self.git or self.archive or self.pypi or self.folder or ""


class Component(_Model):
    """A part of the package that can be left out of a build."""

    summary: str
    """One line: what a user misses without it."""
    define: str | None = None
    """CMake option that is set ON or OFF with the component."""
    architectures: tuple[ArchName, ...] = ()
    """It holds code for these targets only, and is not built for any other; empty: for all."""
    one_python: bool = False
    """It holds an extension module of one Python's ABI: a wheel with it is tagged for the Python it was built with."""


class Pairing(_Model):
    """A CUDA toolkit, the torch that is compiled against, and the Pythons that both support."""

    cuda: CudaName
    """CUDA toolkit, `major.minor`."""
    torch: VersionText
    """torch release whose headers and libraries are compiled against."""
    python: tuple[PythonName, ...] = Field(min_length=1)
    """Pythons for which this torch has wheels. A build takes the running one if it is listed, else the first."""


class PackageVersion(_Model):
    """Everything that is pinned for one upstream version."""

    distribution: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the distribution that upstream publishes."""
    import_name: str = Field(alias="import", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Name to import."""
    main: SlugName
    """Which of the sources holds the package."""
    directory: RelativePath = "."
    """Folder in the main source that holds pyproject.toml."""
    components: tuple[SlugName, ...] = ()
    """Which of the recipe's components this version has."""
    unavailable: dict[SlugName, str] = {}
    """Components that cannot be built in this version, each with the reason; a wheel without them is partial."""
    tools: tuple[SlugName, ...] = Field(min_length=1)
    """Locks in recipes/locks/ for the build environment (CMake, ninja, the build backend …), without torch."""
    cuda_needs: tuple[Literal["compiler", "libs", "tools"], ...] = ("compiler", "libs")
    """Parts of the CUDA toolkit: `compiler` (nvcc, runtime, headers), `libs` (cuBLAS and the other math libraries with
    their headers), `tools` (cuobjdump, nvdisasm)."""
    torch_runtime: bool = False
    """Whether the build imports torch. If not, only its headers and libraries are installed, which is far smaller."""
    numa: bool = False
    """Whether the build needs libnuma's headers."""
    abi3: PythonName | None = None
    """Lowest Python of the stable ABI that the wheel is tagged with; none: one wheel for each Python."""
    torch_requires: str = "~={torch}"
    """The version specifier written into Requires-Dist for torch; `{torch}` is the release that was built against."""
    pairings: tuple[Pairing, ...] = Field(min_length=1)
    """Supported CUDA, torch and Python combinations; the first is the default."""
    defines: dict[str, str] = {}
    """CMake definitions for every build. `{archs}` becomes the architecture list, as `120a;121a`."""
    defines_for: dict[ArchName, dict[str, str]] = {}
    """CMake definitions for one target."""
    environment: dict[str, str] = {}
    """Environment variables of the build."""
    lean_headers: Annotated[str, AfterValidator(_header_set)] | None = None
    """Small headers of ours that stand before this library's own (`torch`) where CUDA sources are compiled; none: the
    library's own. `--whole-headers` leaves them out of one build."""
    sources: dict[SlugName, Source]
    """All sources by name."""

    @model_validator(mode="after")
    def _references(self) -> PackageVersion:
        if self.main not in self.sources:
            raise ValueError(f"main = {self.main!r} is not among the sources ({', '.join(self.sources)})")
        if self.sources[self.main].components:
            raise ValueError(f"the main source {self.main!r} cannot depend on a component")
        try:
            SpecifierSet(self.torch_requires.format(torch="2.0"))
        except (InvalidSpecifier, LookupError, ValueError) as exc:
            raise ValueError(f"torch_requires = {self.torch_requires!r} makes no version specifier") from exc
        combinations = [(p.cuda, p.torch) for p in self.pairings]
        if len(set(combinations)) != len(combinations):
            raise ValueError("two pairings have the same cuda and torch")
        return self


class Architectures(_Model):
    """Which targets the package can be built for."""

    default: ArchName
    """Built when no --arch is given."""
    supported: tuple[ArchName, ...] = Field(min_length=1)
    """Targets that --arch accepts."""
    refused: dict[ArchName, str] = {}
    """Known targets that are refused, with the reason and what to take instead."""

    @model_validator(mode="after")
    def _consistent(self) -> Architectures:
        if self.default not in self.supported:
            raise ValueError(f"default {self.default} is not among supported")
        if both := set(self.supported) & set(self.refused):
            raise ValueError(f"{', '.join(sorted(both))} is both supported and refused")
        return self


class Recipe(_Model):
    """A package: its versions, components and targets."""

    edition: Literal[1]
    """Edition of this format. It changes when a recipe would be read differently."""
    name: SlugName
    """Name of the recipe: the folder's name, and the last part of `nox -s build_<name>`."""
    summary: str
    """One line: what the package is."""
    homepage: Annotated[str, Field(pattern=r"^https://")] | None = None
    """Where upstream lives."""
    licence: str
    """SPDX expression of the package."""
    backend: Literal["scikit-build-core", "flashinfer-aot"]
    """How it is compiled."""
    default_version: VersionText
    """Built when no --version is given."""
    architectures: Architectures
    components: dict[SlugName, Component] = {}
    """Parts that can be left out with --without."""
    versions: dict[VersionText, PackageVersion] = Field(min_length=1)
    """The pins, by upstream version."""

    @model_validator(mode="after")
    def _references(self) -> Recipe:
        if self.default_version not in self.versions:
            raise ValueError(f"default_version {self.default_version} is not among versions")
        for number, version in self.versions.items():
            for place, used in [
                ("components", version.components),
                ("unavailable", version.unavailable),
                *((f"sources.{name}.components", source.components) for name, source in version.sources.items()),
            ]:
                known = self.components if place == "components" else version.components
                if unknown := set(used) - set(known):
                    raise ValueError(f"versions.{number}.{place} names unknown component {sorted(unknown)[0]!r}")
        return self

    def version(self, wanted: str | None) -> tuple[str, PackageVersion]:
        """The pins of a version (the default for None). Raises :class:`UnknownVersionError`."""
        number = self.default_version if wanted is None else wanted
        if number in self.versions:
            return number, self.versions[number]
        for known, pins in self.versions.items():
            try:
                if Version(known) == Version(number):
                    return known, pins
            except InvalidVersion:
                break
        raise UnknownVersionError(
            f"{self.name} has no version {number!r}",
            where=f"recipes/{self.name}/recipe.toml",
            hint=near_misses(number, self.versions) + "; docs/how-to/add-a-version.md shows how to add one",
        )


def names(root: Path | None = None) -> list[str]:
    """Names of all recipes."""
    folder = root or paths.recipes_root()
    return sorted(p.parent.name for p in folder.glob("*/recipe.toml"))


def load(name: str, root: Path | None = None) -> Recipe:
    """Read and validate one recipe.

    Raises :class:`UnknownRecipeError` with near misses, and :class:`RecipeInvalidError` naming file and key.
    """
    folder = root or paths.recipes_root()
    file = folder / name / "recipe.toml"
    if not re.fullmatch(r"[A-Za-z0-9._-]+", name) or not file.is_file():
        known = names(folder)
        alias = name.replace("_", "-").lower()
        if alias != name and alias in known:
            return load(alias, root)
        raise UnknownRecipeError(f"no recipe {name!r}", where=str(folder), hint=near_misses(name, known))
    recipe = read(file)
    if recipe.name != name:
        raise RecipeInvalidError(
            "a recipe's name must be that of its folder",
            where=f"{file}, key name",
            why=f"name = {recipe.name!r}, folder {name!r}",
            hint="rename one of them",
        )
    return recipe


def read(file: Path) -> Recipe:
    """Validate one recipe file. Raises :class:`RecipeInvalidError` naming file and key."""
    try:
        raw: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise RecipeInvalidError("not a TOML file", where=str(file), why=str(exc)) from exc
    if raw.get("edition") != EDITION:
        raise RecipeInvalidError(
            f"recipe of edition {raw.get('edition', '(none)')}",
            where=f"{file}, key edition",
            why=f"this release reads edition {EDITION}",
            hint="update sm120-wheels, or write the recipe for this edition",
        )
    try:
        return Recipe.model_validate(raw)
    except ValidationError as exc:
        raise _explain(file, exc) from exc


def _explain(file: Path, error: ValidationError) -> RecipeInvalidError:
    """The first problem of a validation, with the dotted key; the others are counted."""
    details = error.errors(include_url=False)
    first = details[0]
    key = ".".join(str(part) for part in first["loc"]) or "(the whole file)"
    why = str(first["msg"]).removeprefix("Value error, ")
    hint = ""
    if first["type"] == "extra_forbidden":
        why = "no such key"
        hint = near_misses(str(first["loc"][-1]), _keys_at(first["loc"][:-1]))
    elif first["type"] == "missing":
        why = "this key is needed"
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    return RecipeInvalidError(
        f"the recipe does not fit the model{more}", where=f"{file}, key {key}", why=why, hint=hint
    )


def _keys_at(location: tuple[int | str, ...]) -> list[str]:
    """Keys that the model knows at a place, for near misses."""
    models: dict[str, type[_Model]] = {
        "sources": Source,
        "versions": PackageVersion,
        "components": Component,
        "pairings": Pairing,
        "architectures": Architectures,
    }
    for part in reversed(location):
        if part in models:
            return [field.alias or name for name, field in models[str(part)].model_fields.items()]
    return [field.alias or name for name, field in Recipe.model_fields.items()]


def json_schema() -> dict[str, Any]:
    """The JSON Schema of recipe.toml, generated from the model."""
    schema = Recipe.model_json_schema(by_alias=True)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "sm120-wheels recipe"
    return schema
