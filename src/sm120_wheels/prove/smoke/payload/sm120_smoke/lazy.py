"""torch, imported when it is first used: a case can be collected where torch is not installed.

Suites say ``from sm120_smoke.lazy import torch``; their parameters are strings and numbers, never torch's objects.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any


class LazyModule(ModuleType):
    """Stands for a module until one of its attributes is asked for."""

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self.__name__), attribute)


if TYPE_CHECKING:
    import torch
else:
    torch = LazyModule("torch")

__all__ = ["torch"]
