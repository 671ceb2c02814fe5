"""Generated pages are as the models say, and so is every recipe, patch and lock of the project."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sm120_wheels import docs, errors, paths
from sm120_wheels.cli import COMMANDS
from tests.support.world import World


def test_no_generated_page_is_stale() -> None:
    # In a process of its own: what other tests have set or loaded must not change the pages.
    done = subprocess.run([sys.executable, "-m", "sm120_wheels.docs", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, f"run nox -s docs\n{done.stderr}"


def test_a_changed_page_is_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sm120_wheels.paths.data_root", lambda: tmp_path)
    assert len(docs.stale()) == 4
    assert docs.main([]) == 0
    assert docs.stale() == []
    (tmp_path / "docs/reference/recipe.md").write_text("edited")
    assert docs.main(["--check"]) == 1


def test_every_command_and_every_exit_code_has_its_place_in_the_reference() -> None:
    commands = docs.command_reference()
    codes = docs.error_reference()
    assert [name for name in COMMANDS if f"## sm120 {name}" not in commands] == []
    assert f"| {errors.PatchConflictError.exit_code} | PatchConflictError |" in codes


def test_check_passes_for_all_recipes_and_gives_a_schema(tmp_path: Path) -> None:
    world = World(root=tmp_path, env={"SM120_DATA_DIR": ""})
    checked = world.sm120("check", "--json").json()
    assert set(checked) >= {"sgl-kernel", "flashinfer", "selftest"}
    assert all(checked.values())
    schema = world.sm120("check", "--schema").json()
    assert schema == json.loads((paths.recipes_root() / "recipe.schema.json").read_text(encoding="utf-8"))


def test_check_tells_of_patches_for_no_recipe(tmp_path: Path) -> None:
    world = World(root=tmp_path)
    world.locks()
    world.patch("gone", "1.0", "0001-a.patch", "")
    world.sm120("check").failed(31, "patches/gone", "no recipe")


def test_patches_are_listed_with_their_versions(tmp_path: Path) -> None:
    world = World(root=tmp_path, env={"SM120_DATA_DIR": ""})
    rows = world.sm120("patches", "sgl-kernel", "--json").json()
    first = next(row for row in rows if row["name"].startswith("sgl-kernel/0.4.4--0.4.5/0001-"))
    assert first["versions"] == ["0.4.4", "0.4.5"]
    assert set(first["states"]) == {"0.4.4", "0.4.5"}
    assert first["date"] == "2026-11-30"
    assert first["kernels_removed"]
    assert "    0.4.5: " in world.sm120("patches", "sgl-kernel").ok().out
