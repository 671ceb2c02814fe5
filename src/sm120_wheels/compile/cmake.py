"""The scikit-build-core backend: upstream's own CMake build, driven through its pyproject, without network."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sm120_wheels.compile.failure import as_error, first_failure
from sm120_wheels.compile.isolation import no_network_prefix
from sm120_wheels.errors import CompileError
from sm120_wheels.process import run


@dataclass(frozen=True, kw_only=True)
class CmakeBuild:
    """What the backend needs; paths are absolute."""

    project: Path
    """Folder with pyproject.toml."""
    python: Path
    """Interpreter of the build environment."""
    bin: Path
    """Its folder of programs (cmake, ninja)."""
    cuda_root: Path
    host_compiler: Path
    torch_dir: Path
    """Folder of TorchConfig.cmake."""
    defines: Mapping[str, str]
    environment: Mapping[str, str]
    launcher: Sequence[str]
    """Program and arguments put before every compile; may be empty."""
    jobs: int
    build_dir: Path
    """Kept between runs: ninja goes on where it was stopped."""
    out_dir: Path
    log: Path


def clean_environment(extra: Mapping[str, str], *, path: Sequence[Path]) -> dict[str, str]:
    """The environment of a compile: ours, not the user's, so that two machines do the same.

    Flags and compiler choices that lie about in a shell (CFLAGS, CMAKE_ARGS, NVCC_APPEND_FLAGS …) would change the
    result behind the content key's back. Package managers are told to stay off the network.
    """
    kept = ("HOME", "TMPDIR", "TERM", "USER", "LOGNAME", "XDG_RUNTIME_DIR")
    system = os.environ.get("PATH", os.defpath)
    return {
        **{name: os.environ[name] for name in kept if name in os.environ},
        "PATH": os.pathsep.join([*(str(folder) for folder in path), system]),
        "LC_ALL": "C.UTF-8",  # compilers translate their messages, and failure.py reads them
        "PIP_NO_INDEX": "1",
        "UV_OFFLINE": "1",
        "GIT_ALLOW_PROTOCOL": "file",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONNOUSERSITE": "1",
        **extra,
    }


def build(request: CmakeBuild) -> Path:
    """Configure, compile and pack; returns the raw wheel.

    Raises ConfigureError, CompileError, CompilerKilledError or NoSpaceError with the first thing that failed.
    """
    shutil.rmtree(request.out_dir, ignore_errors=True)
    request.out_dir.mkdir(parents=True)
    request.log.unlink(missing_ok=True)

    finished = run(
        [*no_network_prefix(), *_command(request)],
        cwd=request.project,
        env=_environment(request),
        log=request.log,
        check=False,
    )
    if not finished.ok:
        with request.log.open(encoding="utf-8", errors="replace") as lines:
            raise as_error(first_failure(lines), log=str(request.log))
    wheels = list(request.out_dir.glob("*.whl"))
    if len(wheels) != 1:
        raise CompileError(
            f"the build ended well but left {len(wheels)} wheels", where=str(request.out_dir), hint=str(request.log)
        )
    return wheels[0]


def _environment(request: CmakeBuild) -> dict[str, str]:
    return clean_environment(
        {
            "CUDA_HOME": str(request.cuda_root),
            "CUDA_PATH": str(request.cuda_root),
            "CUDACXX": str(request.cuda_root / "bin" / "nvcc"),
            "CUDAHOSTCXX": str(request.host_compiler),
            "CXX": str(request.host_compiler),
            "NINJA_STATUS": "[%f/%t] ",
            "CMAKE_GENERATOR": "Ninja",
            **request.environment,
        },
        path=[request.bin, request.cuda_root / "bin"],
    )


def _command(request: CmakeBuild) -> list[str | Path]:
    launcher = ";".join(request.launcher)
    defines = {
        "CMAKE_CUDA_COMPILER": str(request.cuda_root / "bin" / "nvcc"),
        "CUDAToolkit_ROOT": str(request.cuda_root),
        "Torch_DIR": str(request.torch_dir),
        "FETCHCONTENT_FULLY_DISCONNECTED": "ON",
        **({f"CMAKE_{lang}_COMPILER_LAUNCHER": launcher for lang in ("C", "CXX", "CUDA")} if launcher else {}),
        # Links are not scheduled, so ninja itself holds them to two at once.
        "CMAKE_JOB_POOLS": "link=2",
        "CMAKE_JOB_POOL_LINK": "link",
        **request.defines,
    }
    settings = {
        "build-dir": str(request.build_dir),
        "build.verbose": "true",
        "build.tool-args": f"-j{request.jobs}",
        "logging.level": "INFO",
        **{f"cmake.define.{name}": value for name, value in defines.items()},
    }
    return [
        request.python,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--skip-dependency-check",
        f"--outdir={request.out_dir}",
        *(f"-C{name}={value}" for name, value in settings.items()),
        request.project,
    ]
