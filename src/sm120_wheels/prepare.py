"""Everything up to the compile, for somebody else's build frontend: patched sources, and a CMake cache that finds them.

For cibuildwheel and other frontends that want to compile themselves. No wheel is made here, and none that they make has
our version label, SBOM or record: ``sm120 build`` does that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sm120_wheels import backends, files, paths, recipe
from sm120_wheels.build import BuildOptions, sources, toolchain
from sm120_wheels.errors import UnsupportedTargetError
from sm120_wheels.plan import BuildRequest, Plan, make_plan
from sm120_wheels.stages import WorkFolder


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What lies ready."""

    plan: Plan
    project: Path
    """Folder with pyproject.toml: also reached as ``project`` in the folder."""
    cache: Path
    """For ``cmake -C``: also in SKBUILD_CMAKE_ARGS."""
    cuda: Path
    """Root of the toolkit: also reached as ``cuda`` in the folder."""
    python: Path
    """Interpreter of a locked environment that has the build tools and torch's headers."""
    tools: tuple[Path, ...]
    """Hash-locked requirements of the build environment."""


def prepare(request: BuildRequest, into: Path, options: BuildOptions) -> Prepared:
    """Fetch, patch and provision into a folder. Raises what the stages raise, and :class:`UnsupportedTargetError` for a
    recipe that is not built by CMake alone."""
    plan = make_plan(request)
    if plan.backend != "scikit-build-core":
        raise UnsupportedTargetError(
            f"{plan.recipe} cannot be prepared for another frontend",
            why=f"its backend {plan.backend} is more than one CMake build",
            hint=f"sm120 build {plan.recipe}",
        )
    _, pins = recipe.load(plan.recipe).version(plan.version)
    work = WorkFolder(root=into.absolute(), key=plan.key)
    with files.locked(into / ".lock", what=f"the folder {into}", timeout_s=0):
        sources(plan, pins, work, options.settings)
        provisioned = toolchain(plan, pins, options)
        nvcc = provisioned.cuda.root / "bin" / "nvcc"
        defines = {
            "CMAKE_CUDA_COMPILER": str(nvcc),
            "CMAKE_CUDA_HOST_COMPILER": str(provisioned.cuda.host_compiler.path),
            "CUDAToolkit_ROOT": str(provisioned.cuda.root),
            "CUDA_TOOLKIT_ROOT_DIR": str(provisioned.cuda.root),  # torch's own search: else the first nvcc on the PATH
            "Torch_DIR": str(provisioned.torch_dir),
            "FETCHCONTENT_FULLY_DISCONNECTED": "ON",
            **backends.cmake_defines(plan, pins, work, provisioned),
        }
        cache = work.root / "cache.cmake"
        files.write_text(cache, cmake_cache(defines, plan.environment))
        project = work.sources / pins.main / pins.directory
        _link(work.root / "project", project)
        _link(work.root / "cuda", provisioned.cuda.root)
    locks = tuple(paths.recipes_root() / "locks" / f"{name}.txt" for name in pins.tools)
    return Prepared(
        plan=plan,
        project=project,
        cache=cache,
        cuda=provisioned.cuda.root,
        python=provisioned.environment.python,
        tools=locks,
    )


def cmake_cache(defines: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """A script for ``cmake -C``: cache entries that a later -D still overrules, and the recipe's variables."""
    lines = [f'set({name} "{_quoted(value)}" CACHE STRING "")' for name, value in sorted(defines.items())]
    lines += [f'set(ENV{{{name}}} "{_quoted(value)}")' for name, value in sorted(environment.items())]
    return "\n".join([*lines, ""])


def _quoted(text: str) -> str:
    for character in ("\\", '"', "$"):
        text = text.replace(character, f"\\{character}")
    return text


def _link(link: Path, target: Path) -> None:
    """Point a link at a folder, also where it pointed elsewhere."""
    aside = link.with_name(f".{link.name}.new")
    aside.unlink(missing_ok=True)
    aside.symlink_to(target)
    aside.replace(link)
