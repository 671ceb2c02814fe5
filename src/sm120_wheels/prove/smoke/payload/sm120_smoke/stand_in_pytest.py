"""Stands for pytest where the worker imports a suite: its marks say nothing there, and a skip is a failure."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn


class SkipAttempt(Exception):  # noqa: N818 - pytest's own is called Skipped
    """A case asked to be skipped; what it cannot have it must say by ``NotRun``."""


def _unchanged(function: Any) -> Any:
    return function


def _mark(*_: Any, **__: Any) -> Callable[[Any], Any]:
    return _unchanged


class _Marks:
    def __getattr__(self, name: str) -> Callable[..., Callable[[Any], Any]]:
        return _mark


def _skip(reason: str = "", **_: Any) -> NoReturn:
    raise SkipAttempt(reason)


def _fail(reason: str = "", **_: Any) -> NoReturn:
    raise AssertionError(reason)


def install() -> None:
    """Put it where ``import pytest`` finds it."""
    module = ModuleType("pytest", __doc__)
    module.__spec__ = ModuleSpec("pytest", None)
    parts: dict[str, Any] = {
        "mark": _Marks(),
        "param": lambda *values, **_: values,
        "skip": _skip,
        "fail": _fail,
        "fixture": lambda *a, **k: a[0] if a and callable(a[0]) else _unchanged,
    }
    for name, value in parts.items():
        setattr(module, name, value)
    sys.modules["pytest"] = module
