"""The three wheels: upstream's Python package by upstream's own backend, and its kernels as shim and provider.

flashinfer 0.7.4's runtime (jit/env.py) asks the package ``flashinfer_jit_cache`` (the shim) for providers, each a
package with a manifest and its modules as ``jit_cache/<name>/<name>.so``. It takes a shim whose version is
flashinfer's, or that plus ``+label``, and a provider whose version is exactly the shim's. The names and the shim's
requirements are those that its command ``flashinfer download-kernels`` reads.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from build import BuildBackendException, ProjectBuilder

from sm120_wheels import __version__, paths
from sm120_wheels.arch import Arch
from sm120_wheels.compile.flashinfer.listing import Module
from sm120_wheels.compile.isolation import no_network_prefix
from sm120_wheels.errors import ConfigureError
from sm120_wheels.process import describe_status, run
from sm120_wheels.wheel.write import Member, from_bytes, from_file, write_archive

#: Licence of flashinfer, of CUTLASS (and CuTe), and of the MIT parts that upstream names, as compiled into the modules.
_LICENCE = "Apache-2.0 AND BSD-3-Clause AND MIT"
#: Headers whose leading comment is the only copy of their licence's notice in the sdist.
_NOTICES = (
    "3rdparty/cutlass/include/cutlass/cutlass.h",
    "3rdparty/cccl/cub/cub/cub.cuh",
    "3rdparty/cccl/libcudacxx/include/cuda/std/version",
    "3rdparty/spdlog/include/spdlog/spdlog.h",
)
_LICENCE_FILES = (
    "LICENSE",
    "LICENSE.*",
    "licenses/*",
    "include/flashinfer/**/*LICENSE*",
    "include/flashinfer/**/NOTICE*",
)
_DESCRIPTION = """\
{about}

Compiled from flashinfer-python {public} by sm120-wheels {tool}; not made or endorsed by the FlashInfer team.
With the environment variable `FLASHINFER_DISABLE_JIT=1` flashinfer takes its kernels from here alone and says
which one is missing; without it, what is missing is compiled when it is first used.
"""


SHIM = "flashinfer-jit-cache"


@dataclass(frozen=True, kw_only=True)
class KernelWheels:
    """What shim and providers have in common."""

    version: str
    """Full version with local label; all of them bear it."""
    public: str
    """Version of flashinfer that they are for."""
    commit: str
    """Upstream's commit, as the sdist states it."""


@dataclass(frozen=True, kw_only=True)
class Provider:
    """Modules with machine code for the same targets."""

    targets: tuple[str, ...]
    """As flashinfer's runtime writes them: ``sm120f``."""
    modules: tuple[Module, ...]

    @property
    def distribution(self) -> str:
        """``flashinfer-jit-cache-sm120f``."""
        return "-".join([SHIM, *self.targets])


def by_target(modules: Sequence[Module], *, arch: Arch) -> tuple[Provider, ...]:
    """One provider for each set of targets, that of the build first.

    Some modules are compiled for ``sm_120a`` whatever the build asks for. In a provider of ``sm120f`` flashinfer would
    take them on a GPU of capability 12.1 as well, where they cannot run; in one of ``sm120a`` it takes them on 12.0
    alone. A module without machine code goes with the build's own.
    """
    own = (arch.sm,)
    groups: dict[tuple[str, ...], list[Module]] = {}
    for module in sorted(modules, key=lambda m: m.name):
        groups.setdefault(module.targets or own, []).append(module)
    return tuple(
        Provider(targets=tuple(target.replace("_", "") for target in targets), modules=tuple(groups[targets]))
        for targets in sorted(groups, key=lambda targets: (targets != own, targets))
    )


def build_python_wheel(
    *,
    source: Path,
    work: Path,
    out: Path,
    python: Path,
    env: Mapping[str, str],
    log: Path,
) -> Path:
    """``flashinfer-python`` as upstream's backend makes it for a release: public version, pure Python, with headers.

    The backend writes into its source, so it gets a stand-in. Raises :class:`ConfigureError` where it fails.
    """
    stand_in = work / "python-source"
    shutil.rmtree(stand_in, ignore_errors=True)
    _link_source(source, stand_in)
    settings = {
        "FLASHINFER_BUILD_NO_PIP": "1",  # or it would install compilers into the environment
        "BUILD_NVEP": "0",  # a further native part, for other targets
        "FLASHINFER_WHEEL_EXCLUDE_EXPERIMENTAL_SOURCES": "1",  # as upstream's own release on the index
    }

    def runner(cmd: Sequence[str], cwd: str | None = None, extra_environ: Mapping[str, str] | None = None) -> None:
        done = run(
            [*no_network_prefix(), *cmd],
            cwd=Path(cwd) if cwd else None,
            env={**env, **settings, **(extra_environ or {})},
            log=log,
            check=False,
        )
        if not done.ok:
            raise ConfigureError(
                f"flashinfer's build backend failed ({describe_status(done.returncode)})",
                where=" ".join(cmd),
                why="\n".join(done.output.strip().splitlines()[-8:]),
                hint=f"the whole output is in {log}",
            )

    try:
        return Path(ProjectBuilder(stand_in, str(python), runner=runner).build("wheel", str(out)))
    except BuildBackendException as exc:
        raise ConfigureError(
            "flashinfer's build backend cannot be used", where=str(source), why=str(exc), hint=f"see {log}"
        ) from exc
    finally:
        shutil.rmtree(stand_in, ignore_errors=True)


def _link_source(source: Path, stand_in: Path) -> None:
    """A folder like ``source`` in which the backend may make files, without copying the 900 MB that it only reads.

    Real are the folders in which it makes something (the root, and ``flashinfer`` for its ``data``) and the root's
    files; everything else is a link.
    """
    (stand_in / "flashinfer").mkdir(parents=True)
    for entry in source.iterdir():
        if entry.is_file():
            shutil.copy2(entry, stand_in / entry.name)
        elif entry.name not in ("flashinfer", "tests", "build", "__pycache__") and entry.suffix != ".egg-info":
            (stand_in / entry.name).symlink_to(entry, target_is_directory=True)
    for entry in (source / "flashinfer").iterdir():
        if entry.name not in ("data", "__pycache__"):
            (stand_in / "flashinfer" / entry.name).symlink_to(entry, target_is_directory=entry.is_dir())


def write_provider(
    wheels: KernelWheels, provider: Provider, *, libraries: Path, source: Path, out: Path, epoch: int
) -> Path:
    """The wheel with the kernels. ``libraries`` holds ``<name>/<name>.so``; ``epoch`` is the members' time, seconds."""
    # A package of its own, not one inside the shim's: were the shim uninstalled, its emptied folder would still import
    # as a namespace, and flashinfer with it would not.
    package = provider.distribution.replace("-", "_")
    name = "_".join(provider.targets)
    manifest = {
        "schema_version": 1,
        "provider_id": name,
        "distribution": provider.distribution,
        "version": wheels.version,
        "cuda_architectures": list(provider.targets),
        "modules": [module.name for module in provider.modules],
    }
    template = paths.recipes_root() / "flashinfer" / "provider" / "__init__.py"
    members = [
        from_bytes(f"{package}/__init__.py", template.read_bytes()),
        from_bytes(f"{package}/manifest.json", _json(manifest)),
        *(
            from_file(f"{package}/jit_cache/{m.name}/{m.name}.so", libraries / m.name / f"{m.name}.so", executable=True)
            for m in provider.modules
        ),
    ]
    targets = ", ".join(provider.targets)
    return _write(
        wheels,
        name=provider.distribution,
        summary=f"flashinfer {wheels.public} kernels compiled ahead of time for {targets}",
        about=f"flashinfer's kernels compiled ahead of time for {targets}: {len(provider.modules)} modules.",
        requires=[f"flashinfer-python=={wheels.public}", f"{SHIM}=={wheels.version}"],
        tag=f"py3-none-linux_{platform.machine()}",
        members=members,
        entry_points=f"[flashinfer.jit_cache.providers]\n{name} = {package}:get_provider\n",
        source=source,
        out=out,
        epoch=epoch,
    )


def write_shim(wheels: KernelWheels, providers: Sequence[Provider], *, source: Path, out: Path, epoch: int) -> Path:
    """The wheel through which flashinfer finds the providers; it requires them, and holds no machine code."""
    template = paths.recipes_root() / "flashinfer" / "shim" / "__init__.py"
    build = {"version": wheels.version, "upstream_commit": wheels.commit}
    return _write(
        wheels,
        name=SHIM,
        summary=f"Finds flashinfer {wheels.public} kernels that were compiled ahead of time",
        about="Installs flashinfer's kernels for its GPU target and tells flashinfer where they are.",
        # Nothing but providers: `flashinfer download-kernels` refuses a shim that requires anything else.
        requires=[f"{provider.distribution}=={wheels.version}" for provider in providers],
        tag="py3-none-any",
        members=[
            from_bytes("flashinfer_jit_cache/__init__.py", template.read_bytes()),
            from_bytes("flashinfer_jit_cache/build.json", _json(build)),
        ],
        entry_points=None,
        source=source,
        out=out,
        epoch=epoch,
    )


def upstream_commit(source: Path) -> str:
    """The commit that the sdist says it was made from, or ``unknown``."""
    text = (source / "flashinfer" / "_build_meta.py").read_text(encoding="utf-8")
    match = re.search(r'__git_commit__\s*=\s*"([0-9a-f]{40})"', text)
    return match.group(1) if match else "unknown"


def _write(
    wheels: KernelWheels,
    *,
    name: str,
    summary: str,
    about: str,
    requires: Sequence[str],
    tag: str,
    members: Sequence[Member],
    entry_points: str | None,
    source: Path,
    out: Path,
    epoch: int,
) -> Path:
    file_name = name.replace("-", "_")
    dist_info = f"{file_name}-{wheels.version}.dist-info"
    licences = dict(_licences(source))
    headers = [
        "Metadata-Version: 2.4",
        f"Name: {name}",
        f"Version: {wheels.version}",
        f"Summary: {summary}",
        "Author: FlashInfer team",
        f"License-Expression: {_LICENCE}",
        *(f"License-File: {file}" for file in sorted(licences)),
        "Project-URL: Upstream, https://github.com/flashinfer-ai/flashinfer",
        "Classifier: Environment :: GPU :: NVIDIA CUDA",
        "Classifier: Operating System :: POSIX :: Linux",
        "Classifier: Programming Language :: Python :: 3",
        "Requires-Python: >=3.10",
        *(f"Requires-Dist: {requirement}" for requirement in requires),
        "Description-Content-Type: text/markdown",
    ]
    body = _DESCRIPTION.format(about=about, public=wheels.public, tool=__version__)
    pure = str(tag.endswith("-any")).lower()
    wheel = f"Wheel-Version: 1.0\nGenerator: sm120-wheels {__version__}\nRoot-Is-Purelib: {pure}\nTag: {tag}\n"
    meta = {
        "METADATA": "\n".join(headers) + "\n\n" + body,
        "WHEEL": wheel,
        **({"entry_points.txt": entry_points} if entry_points else {}),
    }
    path = out / f"{file_name}-{wheels.version}-{tag}.whl"
    write_archive(
        path,
        [
            *members,
            *(from_bytes(f"{dist_info}/{file}", text.encode()) for file, text in meta.items()),
            *(from_bytes(f"{dist_info}/licenses/{file}", data) for file, data in licences.items()),
        ],
        dist_info=dist_info,
        source_date_epoch=epoch,
    )
    return path


def _licences(source: Path) -> Iterator[tuple[str, bytes]]:
    """Upstream's licence files by their names, and the notices that stand only in headers of what is compiled in."""
    seen: set[bytes] = set()
    for pattern in _LICENCE_FILES:
        for path in sorted(source.glob(pattern)):
            if path.is_file() and (data := path.read_bytes()) not in seen:
                seen.add(data)
                yield path.relative_to(source).as_posix().replace("/", "."), data
    notices = [f"{name}\n\n{text}\n" for name in _NOTICES if (text := _leading_comment(source / name))]
    if notices:
        yield "NOTICE.third-party.txt", "\n\n".join(notices).encode()


def _leading_comment(path: Path) -> str:
    """The comment that a C++ file begins with, or nothing."""
    if not path.is_file():
        return ""
    text = path.read_text(encoding="utf-8", errors="replace").lstrip()
    match = re.match(r"/\*.*?\*/|(?://[^\n]*\n)+", text, re.DOTALL)
    return match.group(0).strip() if match else ""


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()
