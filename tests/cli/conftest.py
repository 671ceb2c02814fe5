"""Fixture: a world of recipes and repositories, and the real command in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(root=tmp_path)
