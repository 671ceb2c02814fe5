"""Fixtures: a world with upstream repositories, and a web server that can break off half way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.web import Web, serving
from tests.support.world import Upstream


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    return Upstream(root=tmp_path / "mirror")


@pytest.fixture
def web() -> Iterator[Web]:
    with serving() as server:
        yield server
