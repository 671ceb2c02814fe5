"""Runs inside the build environment: asks upstream's own code which modules exist, and writes their ninja files.

A script, never imported by us: ``python aot_driver.py REQUEST.json ANSWER.json``. Needs only the standard library, the
unpacked flashinfer source (0.7.x) and an environment with flashinfer's requirements. It downloads nothing, compiles
nothing but the one helper program that upstream's generator of ``trtllm_fmha_v2`` runs (and only where that module is
asked for), and writes only below the work folder.

Request keys: ``source`` (unpacked sdist), ``work`` (folder for generated sources and ninja files), ``take`` and
``leave`` (glob patterns over module names; a module is built if one of the first matches and none of the second).
Answer keys: ``version``, ``modules`` (every module that upstream builds for the architecture: ``name``, ``sources``,
``targets``), ``left_out`` (``name``, ``why``), ``ninja`` (the file that builds those asked for).
"""

import fnmatch
import importlib
import json
import os
import re
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any


class _LeftOut:
    """Stands in upstream's list for a module whose generator could not run here."""

    def __init__(self, name: str) -> None:
        self.name = name


class _CheckedPopen(subprocess.Popen[bytes]):
    """Popen that does not let a failed helper program pass unseen (upstream looks only at what it printed)."""

    def communicate(self, *args: Any, **kwargs: Any) -> tuple[bytes, bytes]:
        output, error = super().communicate(*args, **kwargs)
        if self.returncode != 0:
            command = self.args if isinstance(self.args, str) else " ".join(map(str, self.args))  # type: ignore[arg-type]
            raise RuntimeError(f"helper program failed (exit code {self.returncode}): {command}")
        return output, error


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    source, work = Path(request["source"]), Path(request["work"])

    def wanted(name: str) -> bool:
        return _matches(name, request["take"]) and not _matches(name, request["leave"])

    sys.path.insert(0, str(source))
    aot = importlib.import_module("flashinfer.aot")
    _point_at(source, work)
    left_out: list[dict[str, str]] = []
    _tame_generators(aot, left_out, wanted=wanted)
    specs = [spec for spec in _all_specs(aot) if not isinstance(spec, _LeftOut)]
    _explain_absent(specs, left_out)
    ninja = _write_ninja([spec for spec in specs if wanted(spec.name)], work)
    answer = {
        "version": importlib.import_module("flashinfer.version").__version__,
        "modules": [
            {
                "name": spec.name,
                "sources": [_shown(path, source, work) for path in spec.sources],
                "targets": _targets(spec),
            }
            for spec in specs
        ],
        "left_out": left_out,
        "ninja": str(ninja),
    }
    Path(sys.argv[2]).write_text(json.dumps(answer, indent=1), encoding="utf-8")


def _matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _point_at(source: Path, work: Path) -> None:
    """Use the sdist's own folders: ``flashinfer/data``, where an installed package keeps them, does not exist in it."""
    env: Any = importlib.import_module("flashinfer.jit.env")
    third = source / "3rdparty"
    env.FLASHINFER_CSRC_DIR = source / "csrc"
    env.FLASHINFER_INCLUDE_DIR = source / "include"
    env.CUTLASS_INCLUDE_DIRS = [third / "cutlass/include", third / "cutlass/tools/util/include"]
    env.SPDLOG_INCLUDE_DIR = third / "spdlog/include"
    env.CCCL_INCLUDE_DIRS = [third / "cccl/cub", third / "cccl/libcudacxx/include", third / "cccl/thrust"]
    env.FLASHINFER_WORKSPACE_DIR = work
    env.FLASHINFER_JIT_DIR = work / "modules"
    env.FLASHINFER_GEN_SRC_DIR = work / "generated"
    for folder in (env.FLASHINFER_JIT_DIR, env.FLASHINFER_GEN_SRC_DIR):
        folder.mkdir(parents=True, exist_ok=True)


def _tame_generators(aot: Any, left_out: list[dict[str, str]], *, wanted: Callable[[str], bool]) -> None:
    """Keep a generator that needs the network from failing all, and one that compiles from doing so for a mere list."""

    def guarded(name: str, generator: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return generator(*args, **kwargs)
            except RuntimeError as exc:
                # Upstream's own refusal under FLASHINFER_NO_DOWNLOAD; anything else is a real failure.
                if "FLASHINFER_NO_DOWNLOAD" not in str(exc):
                    raise
                module = name.removeprefix("gen_").removesuffix("_module")
                missing = str(exc).split("(", 1)[0].removeprefix("Artifact not found locally:").strip()
                left_out.append(
                    {
                        "name": module,
                        "why": f"needs {missing} from upstream's artifact server, which the sdist does not hold and a "
                        "build does not fetch; flashinfer fetches and compiles it when it is first used (needs nvcc)",
                    }
                )
                return _LeftOut(module)

        return call

    for name, value in list(vars(aot).items()):
        if name.startswith("gen_") and name.endswith("_module") and callable(value):
            setattr(aot, name, guarded(name, value))

    attention: Any = importlib.import_module("flashinfer.jit.attention.modules")
    if wanted("trtllm_fmha_v2"):
        generator_utils: Any = importlib.import_module("flashinfer.jit.attention.fmha_v2.generator_utils")
        generator_utils.subprocess = types.SimpleNamespace(Popen=_CheckedPopen, PIPE=subprocess.PIPE)
    else:
        attention.enumerate_kernels = lambda *args: None


def _all_specs(aot: Any) -> list[Any]:
    """Upstream's default list for the architectures in FLASHINFER_CUDA_ARCH_LIST."""
    config = aot.get_default_config()
    config["sm_capabilities"] = aot.detect_sm_capabilities()
    # The parameters of gen_all_modules carry the names of the configuration, some with a trailing underscore.
    code = aot.gen_all_modules.__code__
    names = code.co_varnames[: code.co_argcount]
    return list(aot.gen_all_modules(**{name: config[name.rstrip("_")] for name in names}))


def _explain_absent(specs: list[Any], left_out: list[dict[str, str]]) -> None:
    """Name what upstream drops in silence."""
    names = [spec.name for spec in specs]
    has_sm120 = any(name.startswith("cudnn_frost_") and name.endswith("sm_120a") for name in names)
    if has_sm120 and not any(name.startswith("cake_sm120_megamoe") for name in names):
        why = "needs NCCL 2.30.7 headers, and its library would carry the build machine's path to NCCL as RPATH"
        left_out.append({"name": "cake_sm120_megamoe_*", "why": why})


def _write_ninja(specs: list[Any], work: Path) -> Path:
    """One file that includes the file of each module, as upstream's prebuild does; unchanged files keep their time."""
    utils = importlib.import_module("flashinfer.jit.utils")
    for spec in specs:
        _drop_line_info(spec)
        spec.write_ninja()
        missing = [str(path) for path in spec.sources if not path.is_file()]
        if missing:
            raise RuntimeError(f"module {spec.name}: generated source is missing: {missing[0]}")
    path = work / "modules.ninja"
    lines = ["ninja_required_version = 1.3", *(f"subninja {spec.ninja_path}" for spec in specs), ""]
    utils.write_if_different(path, "\n".join(lines))
    return path


def _drop_line_info(spec: Any) -> None:
    """Take ``-lineinfo`` out of a module's flags: it puts this machine's paths and all PTX text into the machine code.

    (topk's cubin is 98 MB with it.) It serves profilers alone and changes no instruction.
    """
    for flags in (spec.extra_cuda_cflags or [], *(spec.extra_cuda_cflags_by_source or {}).values()):
        flags[:] = [flag for flag in flags if flag not in ("-lineinfo", "--generate-line-info")]


def _targets(spec: Any) -> list[str]:
    """The machine code that the module's own flags ask for, or the build's architectures where it sets none."""
    flags = list(spec.extra_cuda_cflags or [])
    for extra in (spec.extra_cuda_cflags_by_source or {}).values():
        flags += extra
    own = sorted({match for flag in flags for match in re.findall(r"code=(sm_\w+)", flag)})
    if own or not any(path.suffix == ".cu" for path in spec.sources):
        return own
    return sorted("sm_" + arch.replace(".", "") for arch in os.environ["FLASHINFER_CUDA_ARCH_LIST"].split())


def _shown(path: Path, source: Path, work: Path) -> str:
    """Relative to the sdist, or ``generated:…`` for what upstream's templates wrote."""
    if path.is_relative_to(source):
        return path.relative_to(source).as_posix()
    return "generated:" + path.relative_to(work).as_posix() if path.is_relative_to(work) else path.as_posix()


if __name__ == "__main__":
    main()
