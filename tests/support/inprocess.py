"""The ``sm120`` command in this process: far quicker than a new interpreter for every call."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sm120_wheels.cli import main
from tests.support.world import Outcome, World


def in_process(world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> World:
    """Let ``world.sm120`` call the command directly, in the world's folder and with its data and cache."""

    def sm120(*arguments: str | Path, **extra: str) -> Outcome:
        with monkeypatch.context() as patched, pytest.raises(SystemExit) as left:
            patched.chdir(world.cwd)
            for name in [name for name in os.environ if name.startswith(("SM120_", "GITHUB_"))]:
                patched.delenv(name)
            values = {"SM120_DATA_DIR": str(world.data), "SM120_CACHE_DIR": str(world.cache), **world.env, **extra}
            for name, value in values.items():
                patched.setenv(name, value)
            main([str(argument) for argument in arguments])
        told = capsys.readouterr()
        return Outcome(code=int(left.value.code or 0), out=told.out, err=told.err)

    monkeypatch.setattr(world, "sm120", sm120)
    return world
