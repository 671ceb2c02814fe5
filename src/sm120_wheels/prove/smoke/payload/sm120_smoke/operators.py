"""Operators that only some versions of a package register."""

from __future__ import annotations

from typing import Any

from sm120_smoke.case import NotRun
from sm120_smoke.lazy import torch


def of_some_versions(name: str) -> Any:
    """The operator ``package::name``, or :class:`NotRun` where the package at hand does not register it."""
    package, operator = name.split("::")
    found = getattr(getattr(torch.ops, package), operator, None)
    if found is None:
        raise NotRun(f"this build of {package} does not register {operator}")
    return found.default
