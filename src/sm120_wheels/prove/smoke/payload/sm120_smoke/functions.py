"""Counts which functions of TVM-FFI modules are called: how flashinfer's ahead-of-time kernels are reached.

They are no torch operators. A function of the library ``…/norm/norm.so`` has the name ``flashinfer.norm::rmsnorm``.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

_reached: dict[str, None] = {}


class _Counted:
    """Stands for a function of a module; everything but being called is the function's own."""

    def __init__(self, function: Any, name: str) -> None:
        self._function, self._name = function, name

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        _reached[self._name] = None
        return self._function(*arguments, **named)

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._function, attribute)


class _CountedModule:
    """Stands for a loaded module."""

    def __init__(self, module: Any, prefix: str) -> None:
        self._module, self._prefix = module, prefix
        self._functions: dict[str, _Counted] = {}

    def get_function(self, name: str, query_imports: bool = False) -> Any:
        if name not in self._functions:
            function = self._module.get_function(name, query_imports)
            self._functions[name] = _Counted(function, f"{self._prefix}::{name}")
        return self._functions[name]

    def __getitem__(self, name: str) -> Any:
        return self.get_function(name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or hasattr(type(self._module), name):
            return getattr(self._module, name)
        return self.get_function(name)


def watch() -> bool:
    """Count from now on. False where TVM-FFI is not installed."""
    try:
        tvm_ffi: Any = importlib.import_module("tvm_ffi")
    except ImportError:
        return False
    load: Any = tvm_ffi.load_module

    def counted(path: Any, *arguments: Any, **named: Any) -> Any:
        return _CountedModule(load(path, *arguments, **named), f"flashinfer.{Path(path).stem}")

    tvm_ffi.load_module = counted
    return True


def begin() -> None:
    """Forget what was reached."""
    _reached.clear()


def reached() -> tuple[str, ...]:
    """The functions called since :func:`begin`."""
    return tuple(_reached)
