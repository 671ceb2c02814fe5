"""Lean headers: folders of small headers that stand before a library's own where CUDA sources are compiled.

A folder here bears a library's name. Its headers include fewer of the library's own, so that a compiler front end reads
less; they declare nothing of the library anew and change no type. What a source needs and does not get is an error of
the compiler, never another meaning. Nothing here knows a recipe or a build (docs/decisions/lean-headers.md).
"""

from __future__ import annotations

from pathlib import Path

from sm120_wheels import files

_ROOT = Path(__file__).resolve().parent


def names() -> list[str]:
    """The sets of lean headers that there are, by the name of the library that they stand before."""
    return sorted(path.name for path in _ROOT.iterdir() if path.is_dir() and path.name != "__pycache__")


def folder(name: str) -> Path:
    """The include folder of a set. Raises ``ValueError`` for a name that :func:`names` does not list."""
    if name not in names():
        raise ValueError(f"there are no lean headers {name!r} (known: {', '.join(names())})")
    return _ROOT / name


def digest(name: str) -> str:
    """sha256 over the names and contents of a set's headers: what a content key needs to know of it."""
    root = folder(name)
    return files.content_key(
        {str(path.relative_to(root)): files.sha256_file(path) for path in sorted(root.rglob("*")) if path.is_file()}
    )
