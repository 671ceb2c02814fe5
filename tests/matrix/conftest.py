"""Fixture: the matrix of small recipes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sm120_wheels.matrix.jobs import Matrix, make_matrix
from tests.support.world import World, git_source, recipe_toml

PAIRS = ", ".join(
    [
        '{ cuda = "13.0", torch = "2.11.0", python = ["3.11", "3.12"] }',
        '{ cuda = "13.2", torch = "2.15.0", python = ["3.12"] }',
        '{ cuda = "12.8", torch = "2.9.1", python = ["3.11"] }',
    ]
)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(root=tmp_path)


@pytest.fixture
def matrix_of(world: World) -> Callable[..., Matrix]:
    """Write one recipe (as ``recipe_toml``) and give the matrix of all that were written."""

    def make(name: str = "demo", **changes: str) -> Matrix:
        values = {"sources": git_source("1" * 40, name="demo"), "pairings": PAIRS, **changes}
        world.recipe(name, recipe_toml(name=values.pop("distribution", name), **values))
        return make_matrix(recipes_root=world.data / "recipes", patches_root=world.data / "patches")

    return make
