"""Asks upstream which modules there are for a target and has it write their ninja files; remembers the answer.

The question takes half a minute (it imports torch and writes thousands of generated sources), so an answer to the same
question is read back from the work folder.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sm120_wheels.arch import Arch
from sm120_wheels.compile.cmake import clean_environment
from sm120_wheels.compile.flashinfer.profiles import Choice
from sm120_wheels.compile.isolation import no_network_prefix
from sm120_wheels.errors import ConfigureError, SettingError
from sm120_wheels.files import content_key, sha256_file, write_json
from sm120_wheels.process import describe_status, run

_DRIVER = Path(__file__).with_name("aot_driver.py")


@dataclass(frozen=True, kw_only=True)
class Module:
    """One shared library that upstream can build."""

    name: str
    sources: tuple[str, ...]
    """Paths inside the sdist, or ``generated:…`` for sources that upstream writes from templates."""
    targets: tuple[str, ...]
    """Machine code it is compiled for, as ``sm_120f``: the build's target, unless upstream's flags say otherwise."""


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Upstream's default modules for a target."""

    version: str
    """Public version of flashinfer, from its own metadata."""
    modules: tuple[Module, ...]
    missing: tuple[tuple[str, str], ...]
    """Modules that could not be listed here, each with the reason."""
    ninja: Path
    """Builds the chosen modules."""


def environment(
    *,
    python: Path,
    cuda_root: Path,
    arch: Arch,
    work: Path,
    host_compiler: Path | None = None,
    launcher: Sequence[str] = (),
    ldflags: Sequence[str] = (),
    extra: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The whole environment of the driver and of ninja: nothing of the caller's shell that changes what is compiled.

    Upstream's variables are read from its jit/cpp_ext.py, jit/core.py and jit/env.py.
    """
    compiler = {"CC": str(host_compiler), "CXX": str(host_compiler)} if host_compiler else {}
    return clean_environment(
        {
            **compiler,
            "CUDA_HOME": str(cuda_root),
            "CUDA_PATH": str(cuda_root),
            # What is compiled must not depend on an NCCL that happens to be installed.
            "NCCL_HOME": str(work / "no-nccl"),
            "FLASHINFER_CUDA_ARCH_LIST": str(arch),
            "FLASHINFER_NVCC_THREADS": "1",
            "FLASHINFER_WORKSPACE_BASE": str(work / "workspace"),
            "FLASHINFER_CUBIN_DIR": str(work / "cubins"),
            "FLASHINFER_NO_DOWNLOAD": "1",
            "FLASHINFER_DISABLE_VERSION_CHECK": "1",
            "FLASHINFER_LOGGING_LEVEL": "warning",
            "FLASHINFER_NVCC_LAUNCHER": _for_ninja(launcher),
            "FLASHINFER_CXX_LAUNCHER": _for_ninja(launcher),
            "FLASHINFER_EXTRA_LDFLAGS": shlex.join(ldflags),
            # Compiled Python beside the work, so that the source stays as it is and a second run starts sooner.
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": str(work / "pycache"),
            **(extra or {}),
        },
        path=[python.parent, cuda_root / "bin"],
    )


def list_modules(
    *,
    source: Path,
    work: Path,
    python: Path,
    choice: Choice,
    env: Mapping[str, str],
    log: Path,
) -> Listing:
    """Upstream's modules, with the ninja files of the chosen ones written below ``work``.

    Raises :class:`SettingError` for a path that upstream's ninja files cannot hold and :class:`ConfigureError` where
    upstream's code fails.
    """
    for path in (source, work, python, Path(env["CUDA_HOME"])):
        if any(character in str(path) for character in " \t$:"):
            raise SettingError(
                f"flashinfer cannot be built under {str(path)!r}",
                why="upstream writes paths into ninja files unquoted, so blanks, `$` and `:` break them",
                hint="point SM120_BUILD_DIR and SM120_CACHE_DIR to paths without these characters",
            )
    question = {
        "source": str(source),
        "work": str(work),
        "take": list(choice.take),
        "leave": list(choice.leave),
    }
    relevant = {
        k: v for k, v in env.items() if k.startswith(("FLASHINFER_", "CUDA_")) or k in ("CC", "CXX", "NCCL_HOME")
    }
    key = content_key([question, relevant, str(python), sha256_file(_DRIVER)])
    answered = work / "listing.json"
    if not _still_good(answered, key):
        work.mkdir(parents=True, exist_ok=True)
        write_json(work / "question.json", question)
        answer = work / "answer.json"
        answer.unlink(missing_ok=True)
        done = run(
            [*no_network_prefix(), python, _DRIVER, work / "question.json", answer],
            env=env,
            log=log,
            check=False,
            cwd=work,
        )
        if not done.ok or not answer.is_file():
            lines = done.output.strip().splitlines()
            raise ConfigureError(
                f"flashinfer's own code could not list its modules ({describe_status(done.returncode)})",
                where=" ".join(done.argv),
                why="\n".join(lines[-5:]),
                hint=f"the whole output is in {log}",
            )
        write_json(answered, {"key": key, "answer": json.loads(answer.read_text(encoding="utf-8"))})
    return _listing(json.loads(answered.read_text(encoding="utf-8"))["answer"])


def _for_ninja(launcher: Sequence[str]) -> str:
    return shlex.join(launcher).replace("$", "$$")


def _still_good(answered: Path, key: str) -> bool:
    try:
        saved = json.loads(answered.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(saved.get("key") == key and Path(saved["answer"]["ninja"]).is_file())


def _listing(answer: Mapping[str, object]) -> Listing:
    modules = answer["modules"]
    missing = answer["left_out"]
    assert isinstance(modules, list)
    assert isinstance(missing, list)
    return Listing(
        version=str(answer["version"]),
        modules=tuple(
            Module(name=m["name"], sources=tuple(m["sources"]), targets=tuple(m["targets"])) for m in modules
        ),
        missing=tuple((m["name"], m["why"]) for m in missing),
        ninja=Path(str(answer["ninja"])),
    )
