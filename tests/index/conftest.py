"""A folder for wheels and one for an index, in memory where there is room: most of these tests end in many syncs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_SHARED_MEMORY = Path("/dev/shm")


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """An empty folder, in memory if possible."""
    if not os.access(_SHARED_MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="sm120-test-", dir=_SHARED_MEMORY) as folder:
        yield Path(folder)


@pytest.fixture
def root(memory: Path) -> Path:
    return memory / "index"


@pytest.fixture
def dist(memory: Path) -> Path:
    folder = memory / "dist"
    folder.mkdir()
    return folder
