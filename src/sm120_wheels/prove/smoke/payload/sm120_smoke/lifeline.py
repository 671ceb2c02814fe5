"""Ends this process when its parent ends, however that ends: a case that hangs must not outlive a killed controller."""

from __future__ import annotations

import ctypes
import signal

_PR_SET_PDEATHSIG = 1  # prctl(2); kept over execve, not over fork


def hold() -> None:
    """From here on."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
