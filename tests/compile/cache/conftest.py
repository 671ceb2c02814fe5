"""Fixture: time for the servers of a test."""

from __future__ import annotations

import pytest

from sm120_wheels.compile.cache import gateway, stores


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store has a minute to answer: what a test's own server needs on a loaded machine is no fault of the store."""
    for module, name in ((stores, "CONNECT_S"), (stores, "ANSWER_S"), (gateway, "_PROBE_S")):
        monkeypatch.setattr(module, name, 60.0)
