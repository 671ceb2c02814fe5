"""Finds the installed providers of flashinfer's ahead-of-time kernels; flashinfer's runtime asks this package for them.

A provider is a distribution with an entry point in the group ``flashinfer.jit_cache.providers``; calling it gives a
mapping with the keys of :class:`JitCacheProvider` and ``schema_version``. A provider that cannot be read is warned
about and passed over, so that it never keeps flashinfer from being imported. Versions are
compared by flashinfer, not here.
"""

import json
import logging
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

GROUP = "flashinfer.jit_cache.providers"
SCHEMA_VERSION = 1

_HERE = Path(__file__).resolve().parent
_BUILD = json.loads((_HERE / "build.json").read_text(encoding="utf-8"))
_log = logging.getLogger(__name__)

__version__: str = _BUILD["version"]
__git_version__: str = _BUILD["upstream_commit"]


@dataclass(frozen=True)
class JitCacheProvider:
    """One provider, as flashinfer's runtime reads it."""

    provider_id: str
    distribution: str
    version: str
    jit_cache_dir: Path
    cuda_architectures: frozenset[str]
    modules: frozenset[str]


def get_jit_cache_providers() -> tuple[JitCacheProvider, ...]:
    """All usable providers of this environment, sorted by their names."""
    found = {}
    for entry in entry_points(group=GROUP):
        try:
            found[entry.name] = _read(entry)
        except (ImportError, AttributeError, OSError, LookupError, TypeError, ValueError) as exc:
            _log.warning("flashinfer kernel provider %s cannot be used: %s: %s", entry.name, type(exc).__name__, exc)
    return tuple(found[name] for name in sorted(found))


def get_jit_cache_dir() -> str:
    """Where releases before providers existed kept their modules; there are none of those here."""
    return str(_HERE / "jit_cache")


def _read(entry: EntryPoint) -> JitCacheProvider:
    manifest = entry.load()()
    if manifest["schema_version"] != SCHEMA_VERSION:
        raise ValueError(f"its manifest has schema {manifest['schema_version']}, known is {SCHEMA_VERSION}")
    provider = JitCacheProvider(
        provider_id=entry.name,
        distribution=str(manifest["distribution"]),
        version=str(manifest["version"]),
        jit_cache_dir=Path(manifest["jit_cache_dir"]),
        cuda_architectures=frozenset(manifest["cuda_architectures"]),
        modules=frozenset(manifest["modules"]),
    )
    if not provider.jit_cache_dir.is_dir():
        raise FileNotFoundError(f"no folder {provider.jit_cache_dir}")
    return provider
