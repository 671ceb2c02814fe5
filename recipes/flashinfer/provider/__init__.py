"""flashinfer's kernels, compiled ahead of time for one GPU target: ``manifest.json`` beside this file says which."""

import json
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent


def get_provider() -> dict[str, Any]:
    """The manifest with the folder that holds the modules; what the package flashinfer_jit_cache asks for."""
    manifest: dict[str, Any] = json.loads((_HERE / "manifest.json").read_text(encoding="utf-8"))
    return {**manifest, "jit_cache_dir": str(_HERE / "jit_cache")}
