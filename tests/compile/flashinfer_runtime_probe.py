"""Runs inside an environment where the wheels are installed: asks flashinfer's own runtime for each module.

A script, never imported by us: ``python flashinfer_runtime_probe.py ANSWER.json TARGET [MODULE …]``, where TARGET is as
flashinfer reads it (``12.0f``). No GPU is needed: the target stands in for the one that flashinfer would ask the driver
for. With no module named, those of the installed providers are asked for. Answer: ``flashinfer`` (version),
``providers`` (id, version, number of modules), ``modules`` (``name``, ``path`` or null, ``loaded`` true, false or null,
``why``).

``loaded`` says that the library was opened, every symbol resolved, and its functions are registered; it says nothing
about the kernels, which only a GPU can run.
"""

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    answer_path, target, *names = sys.argv[1:]
    os.environ["FLASHINFER_CUDA_ARCH_LIST"] = target
    os.environ["FLASHINFER_DISABLE_JIT"] = "1"
    flashinfer: Any = importlib.import_module("flashinfer")
    env: Any = importlib.import_module("flashinfer.jit.env")
    providers = env.FLASHINFER_AOT_PROVIDERS
    wanted = names or sorted({module for provider in providers for module in provider.modules})
    answer = {
        "flashinfer": flashinfer.__version__,
        "providers": [{"id": p.provider_id, "version": p.version, "modules": len(p.modules)} for p in providers],
        "modules": [_probe(env, name) for name in wanted],
    }
    Path(answer_path).write_text(json.dumps(answer, indent=1), encoding="utf-8")


def _probe(env: Any, name: str) -> dict[str, Any]:
    """Find a module as flashinfer does, and load it as flashinfer does."""
    artifacts = env.get_aot_artifacts(name)
    if not artifacts:
        return {"name": name, "path": None, "loaded": None, "why": "flashinfer's runtime does not find it"}
    core: Any = importlib.import_module("flashinfer.jit.core")
    spec = core.gen_jit_spec(name, [])
    if not spec.is_aot or spec.get_library_path() != artifacts[0].path:
        return {
            "name": name,
            "path": str(artifacts[0].path),
            "loaded": False,
            "why": "a jit spec takes another library",
        }
    try:
        spec.load(artifacts[0].path)  # says why where it fails, which the next line would only log
        spec.build_and_load()
    except (OSError, RuntimeError) as exc:  # what tvm_ffi and flashinfer raise
        return {"name": name, "path": str(artifacts[0].path), "loaded": False, "why": str(exc)}
    return {"name": name, "path": str(artifacts[0].path), "loaded": True, "why": ""}


if __name__ == "__main__":
    main()
