"""Options that several commands share, declared once so that they mean the same everywhere."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sm120_wheels.compile.cache.choice import CHOICES

if TYPE_CHECKING:  # many commands take --json from here and plan nothing
    from sm120_wheels.plan import BuildRequest

F = TypeVar("F", bound=Callable[..., Any])

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


class Bytes(click.ParamType[int]):
    """``20GiB``, ``512MB``, ``8000000000``; gives bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", str(value).strip().lower())
        if not match or match.group(2) == "i":
            self.fail(f"{value!r} is not a size; write for example 20GiB or 8GB", param, ctx)
        count = int(float(match.group(1)) * _UNITS[match.group(2)])
        if count < 64 * 2**20:
            self.fail(f"{value!r} is less than 64 MiB, which no compiler fits in", param, ctx)
        return count


def _split(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """``-o a,b -o c`` and ``-o a -o b -o c`` are the same."""
    return tuple(part.strip() for text in value for part in text.split(",") if part.strip())


def _known_profile(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Refuse a slip of the keyboard before anything is fetched."""
    from sm120_wheels.compile.flashinfer.profiles import choose, load_profiles, profiles_path

    if value is not None and profiles_path().is_file():
        choose(load_profiles(), profile=value)
    return value


def profile_option(help_text: str) -> Callable[[F], F]:
    return click.option("--profile", metavar="NAME", callback=_known_profile, help=help_text)


def _apply(function: F, *decorators: Callable[[F], F]) -> F:
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


#: Fields of a BuildRequest that options give; the recipe is the command's argument.
_TARGET_FIELDS = (
    *("version", "cuda", "torch", "archs", "python", "without", "profile", "modules"),
    *("without_patches", "whole_headers"),
)


def target_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """RECIPE and what of it is built: version, CUDA, torch, architecture, Python, components; gives one ``request``."""

    @functools.wraps(function)
    def with_request(recipe: str | None, identifier: str | None, **values: Any) -> Any:
        chosen = {name: values.pop(name) for name in _TARGET_FIELDS}
        return function(request=_request(recipe, identifier, chosen), **values)

    return _apply(
        with_request,
        click.argument("recipe", required=False),
        click.option("--id", "identifier", metavar="ID", help="The build that `sm120 matrix` calls so, instead."),
        click.option("--version", "version", metavar="X.Y.Z", help="Upstream version. Default: the recipe's."),
        click.option("--cuda", metavar="X.Y", help="CUDA toolkit. Default: the recipe's first pairing."),
        click.option("--torch", metavar="X.Y", help="torch to compile against. Default: the one paired with --cuda."),
        click.option(
            "--arch",
            "archs",
            multiple=True,
            callback=_split,
            metavar="ARCH",
            help="GPU target, e.g. 12.0a, 12.0f, 12.1a or 9.0a; several with commas. Default: the recipe's.",
        ),
        click.option("--python", metavar="3.X", help="Python to build with. Default: the running one, if paired."),
        click.option(
            "--without",
            multiple=True,
            callback=_split,
            metavar="COMPONENT",
            help="Leave a component out; the wheel is then marked as partial.",
        ),
        click.option(
            "--without-patches",
            multiple=True,
            callback=_split,
            metavar="GROUP",
            help="Leave out a group of patches: lean, which drop what the target's GPUs cannot run.",
        ),
        click.option(
            "--whole-headers", is_flag=True, help="Compile with the libraries' own headers, not the lean ones."
        ),
        profile_option("flashinfer: minimal (default), sglang or full set of modules."),
        click.option(
            "--modules", multiple=True, callback=_split, metavar="NAME,…", help="flashinfer: modules by name."
        ),
    )


def _request(recipe: str | None, identifier: str | None, chosen: dict[str, Any]) -> BuildRequest:
    from sm120_wheels.plan import BuildRequest

    if identifier is None:
        if recipe is None:
            raise click.UsageError("Missing argument 'RECIPE', or --id with an identifier of `sm120 matrix`.")
        return BuildRequest(recipe=recipe, **chosen)
    from sm120_wheels.matrix.here import look, python_for
    from sm120_wheels.matrix.lookup import find_job

    for name, option in (("version", "--version"), ("cuda", "--cuda"), ("torch", "--torch"), ("archs", "--arch")):
        if chosen[name]:
            raise click.UsageError(f"--id decides the build, so {option} cannot be given too.")
    job = find_job(identifier)
    request = job.request
    if recipe is not None and recipe.replace("_", "-").lower() != request.recipe:
        raise click.UsageError(f"{identifier} belongs to the recipe {request.recipe}, not to {recipe}.")
    if chosen["python"] and chosen["python"] not in job.pythons:
        raise click.UsageError(f"{identifier} is built with Python {', '.join(job.pythons)}, not {chosen['python']}.")
    chosen["python"] = chosen["python"] or python_for(job, look())
    return replace(request, **{name: value for name, value in chosen.items() if value})


def build_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """How a build is run, and where sources and tools come from; gives one ``options`` (a BuildOptions)."""

    @functools.wraps(function)
    def with_options(
        *,
        jobs: int | None,
        memory: int | None,
        mirror: str | None,
        offline: bool | None,
        cuda_source: str,
        cuda_home: str | None,
        host_compiler: str | None,
        environment: str | None,
        compiler_cache: str | None,
        shared_cache: str | None,
        keep_work: bool,
        **values: Any,
    ) -> Any:
        from sm120_wheels import settings
        from sm120_wheels.build import BuildOptions

        options = BuildOptions(
            jobs=jobs,
            memory=memory,
            settings=settings.resolve(
                mirror=mirror, offline=offline, compiler_cache=compiler_cache, shared_cache=shared_cache
            ),
            cuda_source=cuda_source,  # type: ignore[arg-type]  # click.Choice holds it to the literal's values
            cuda_home=Path(cuda_home).absolute() if cuda_home else None,
            host_compiler=Path(host_compiler) if host_compiler else None,
            environment=Path(environment) if environment else None,
            keep_work=keep_work,
        )
        return function(options=options, **values)

    return _apply(
        with_options,
        click.option(
            "--jobs", type=click.IntRange(min=1), metavar="N", help="Most compiles at once. Default: one per core."
        ),
        click.option(
            "--memory", type=Bytes(), metavar="SIZE", help="Memory budget, e.g. 20GiB. Default: what is free."
        ),
        source_options,
        cache_options,
        click.option(
            "--keep-work", is_flag=True, help="Keep patched sources and objects after a build that ended well."
        ),
    )


def fetch_options(function: F) -> F:
    """Where sources come from."""
    return _apply(
        function,
        click.option(
            "--mirror",
            metavar="TEMPLATE",
            help="Take sources from another place, e.g. file:///srv/git/{owner}+{name}/repo. Also SM120_MIRROR.",
        ),
        click.option("--offline/--online", default=None, help="Use nothing but the cache and file: mirrors."),
    )


def source_options(function: F) -> F:
    """Where sources and tools come from."""
    return _apply(
        function,
        fetch_options,
        click.option(
            "--cuda-from",
            "cuda_source",
            type=click.Choice(["auto", "pypi", "system"]),
            default="auto",
            show_default=True,
            help="Where the CUDA toolkit comes from.",
        ),
        click.option("--cuda-home", metavar="DIR", help="Use the CUDA toolkit in this folder."),
        click.option("--host-compiler", metavar="PATH", help="C++ compiler. Default: $CXX or g++."),
        click.option(
            "--environment",
            metavar="PYTHON",
            help="Build in this interpreter's environment, as in an image with torch; else one is made from locks.",
        ),
    )


def cache_options(function: F) -> F:
    """What keeps compiles for later ones."""
    return _apply(
        function,
        click.option(
            "--compiler-cache",
            type=click.Choice(CHOICES),
            help="Keep objects for later builds. Default: ccache where it is installed. Also SM120_COMPILER_CACHE.",
        ),
        click.option(
            "--shared-cache",
            metavar="ADDRESS",
            help="Share them: redis://…, https://… or s3://…; also SM120_SHARED_CACHE. Credentials come from "
            "SM120_SHARED_CACHE_USER, _PASSWORD, _TOKEN or files that …_FILE names.",
        ),
    )


def json_option(function: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")(function)
