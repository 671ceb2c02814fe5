"""A package index of our own in a folder, so that real uv can be driven into each failure without network."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from sm120_wheels.toolchain.locks import LockRequest


class LocalIndex:
    """A folder in the simple-index layout, and locks of what is in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = (root / "simple").as_uri()
        (root / "simple").mkdir(parents=True)

    def add(self, name: str, version: str = "1.0") -> str:
        """Add a wheel with a console script of the package's name; returns its sha256."""
        folder = self.root / "simple" / name
        folder.mkdir(parents=True)
        wheel = folder / f"{name}-{version}-py3-none-any.whl"
        info = f"{name}-{version}.dist-info"
        members = {
            f"{name}.py": f'def main():\n    print("{name} runs")\n',
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/entry_points.txt": f"[console_scripts]\n{name} = {name}:main\n",
        }
        record = "".join(f"{path},,\n" for path in [*members, f"{info}/RECORD"])
        with zipfile.ZipFile(wheel, "w") as archive:
            for path, text in {**members, f"{info}/RECORD": record}.items():
                archive.writestr(path, text)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        (folder / "index.html").write_text(f'<a href="{wheel.name}#sha256={digest}">{wheel.name}</a>')
        return digest

    def lock(self, name: str, **packages: str) -> LockRequest:
        """Write a lock of ``package=sha256`` pins, all of version 1.0."""
        path = self.root / f"{name}.txt"
        path.write_text("".join(f"{p}==1.0 \\\n    --hash=sha256:{digest}\n" for p, digest in packages.items()))
        return LockRequest(path=path)


@pytest.fixture
def local_index(tmp_path: Path, clean_index_settings: Callable[..., None]) -> LocalIndex:
    """The index that uv uses for the rest of the test."""
    index = LocalIndex(tmp_path / "index")
    clean_index_settings(UV_DEFAULT_INDEX=index.url)
    return index


@pytest.fixture
def clean_index_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Forget the developer's index settings of pip and uv; set those given."""

    def clean(**settings: str) -> None:
        for name in os.environ:
            if name.startswith(("PIP_", "UV_")):
                monkeypatch.delenv(name)
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
        for name, value in settings.items():
            monkeypatch.setenv(name, value)

    return clean
