"""What a compile depends on beside its sources: the compiler's programs by content, and which headers there are.

Caches look at the driver program alone by default. nvcc is only the driver: cicc, ptxas, cudafe++ and the host
compiler's own parts make the bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

from sm120_wheels.errors import Sm120Error
from sm120_wheels.files import sha256_file, write_json
from sm120_wheels.process import run

#: Below the toolkit's root. Headers are not here: caches read them for each compile.
_CUDA_FOLDERS = ("bin", "nvvm/bin", "nvvm/libdevice", "nvvm/lib64", "nvvm/lib")
_HOST_PARTS = ("cc1", "cc1plus", "as")
_HEADER_SUFFIXES = frozenset({"", ".h", ".hh", ".hpp", ".hxx", ".cuh", ".inc", ".inl", ".ipp", ".tcc"})


def toolchain_digest(cuda_root: Path | None, host_compiler: Path, *, memo: Path) -> str:
    """sha256 over the programs that make the bytes. ``memo`` keeps digests by path, size and time of change."""
    known = _read(memo)
    digests = {name: _digest(file, known) for name, file in sorted(_programs(cuda_root, host_compiler).items())}
    write_json(memo, known)
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()


def header_names_digest(folders: Iterable[Path]) -> str:
    """sha256 over the paths of all headers below these folders, relative to each."""
    digest = hashlib.sha256()
    for folder in folders:
        digest.update(b"\0\0")
        for name in sorted(_headers(folder)):
            digest.update(os.fsencode(name) + b"\0")
    return digest.hexdigest()[:32]


def _headers(folder: Path) -> Iterable[str]:
    for base, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in (".git", "__pycache__")]
        relative = os.path.relpath(base, folder)
        yield from (f"{relative}/{name}" for name in files if Path(name).suffix in _HEADER_SUFFIXES)


def _programs(cuda_root: Path | None, host_compiler: Path) -> dict[str, Path]:
    """By a name that is the same on every machine."""
    found: dict[str, Path] = {}
    if cuda_root is not None:
        for folder in _CUDA_FOLDERS:
            found |= {f"cuda/{folder}/{file.name}": file for file in (cuda_root / folder).glob("*") if file.is_file()}
    found["host/driver"] = host_compiler.resolve()
    for part in _HOST_PARTS:
        try:
            said = run([host_compiler, f"-print-prog-name={part}"]).output.strip()
        except Sm120Error:
            continue  # a compiler that is not gcc's kind has no such parts; its driver is all of it
        if Path(said).is_file():
            found[f"host/{part}"] = Path(said).resolve()
    return found


def _digest(file: Path, known: dict[str, list[object]]) -> str:
    status = file.stat()
    stamp: list[object] = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
    entry = known.get(str(file))
    if entry is not None and entry[:4] == stamp:
        return str(entry[4])
    digest = sha256_file(file)
    known[str(file)] = [*stamp, digest]
    return digest


def _read(memo: Path) -> dict[str, list[object]]:
    try:
        value = json.loads(memo.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
