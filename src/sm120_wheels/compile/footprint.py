"""How much a source includes, all levels deep, found by reading ``#include`` lines.

It runs no preprocessor: conditional includes count, and headers that no ``-I`` folder holds (the system's) do not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sm120_wheels.compile.profile import Footprint

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*(["<])([^">\n]+)[">]', re.MULTILINE)
_MOST_FILES = 6000


@dataclass(kw_only=True)
class Scanner:
    """Reads each header once, however many sources include it."""

    _includes: dict[Path, tuple[int, tuple[tuple[bool, str], ...]]] = field(default_factory=dict)
    _resolved: dict[tuple[tuple[str, ...], str], Path | None] = field(default_factory=dict)

    def scan(self, source: Path, folders: Sequence[str]) -> Footprint | None:
        """The footprint of a source, itself included; None where it cannot be read."""
        if not source.is_file():
            return None
        key = tuple(folders)
        seen: set[Path] = set()
        pending = [source]
        size = cutlass = 0
        while pending and len(seen) < _MOST_FILES:
            path = pending.pop()
            if path in seen:
                continue
            seen.add(path)
            length, names = self._read(path)
            size += length
            cutlass += "/cutlass/" in path.as_posix() or "/cute/" in path.as_posix()
            for quoted, name in names:
                found = self._find(path.parent, name, key) if quoted else self._search(name, key)
                if found is not None and found not in seen:
                    pending.append(found)
        return Footprint(files=len(seen), size=size, cutlass_files=cutlass)

    def _find(self, folder: Path, name: str, key: tuple[str, ...]) -> Path | None:
        beside = folder / name
        return beside if beside in self._includes or beside.is_file() else self._search(name, key)

    def _search(self, name: str, key: tuple[str, ...]) -> Path | None:
        if (key, name) not in self._resolved:
            paths = (Path(folder, name) for folder in key)
            self._resolved[key, name] = next((p for p in paths if p.is_file()), None)
        return self._resolved[key, name]

    def _read(self, path: Path) -> tuple[int, tuple[tuple[bool, str], ...]]:
        if path not in self._includes:
            try:
                content = path.read_bytes()
            except OSError:
                content = b""
            names = tuple((q == b'"', n.decode("utf-8", "replace")) for q, n in _INCLUDE.findall(content))
            self._includes[path] = (len(content), names)
        return self._includes[path]
