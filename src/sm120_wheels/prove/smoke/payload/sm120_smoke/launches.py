"""Notes every kernel launch of this process in a file that outlives it: what was launched last before a hang.

CUPTI calls us at each launch, before the driver does anything. Only for a process that is started to repeat a hang:
each launch costs a call of Python, and CUPTI has one subscriber at a time, so the profiler cannot be used beside it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CAPTURE = "graph: capture"
"""The step of a launch that goes into a graph; the warm-up before it has another one."""
_SLOTS = 256
"""Launches that are kept: a case that launches for ever must not fill the disk."""
_SLOT_BYTES = 4096
#: cupti_callbacks.h: CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_API_ENTER. Callback ids of CUDA 13.0 end at about 780.
_DRIVER_API, _ENTER, _CALLBACK_IDS = 1, 0, 2000
_LAUNCHES = ("cuLaunchKernel", "cuLaunchCooperativeKernel", "cuGraphLaunch")


class _CallbackData(ctypes.Structure):
    """The beginning of CUpti_CallbackData (cupti_callbacks.h)."""

    _fields_ = (
        ("site", ctypes.c_int),
        ("function", ctypes.c_char_p),
        ("parameters", ctypes.c_void_p),
        ("answer", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
    )


_Callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.POINTER(_CallbackData))


class Launches:
    """The last launches, oldest first by number: one line each, ``number TAB step TAB kernel``."""

    def __init__(self, file: Path) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._count = 0
        self._kept: list[Any] = []
        self.at = ""
        """What the worker is doing."""

    def note(self, name: str) -> None:
        line = f"{self._count}\t{self.at}\t{name}".encode()[: _SLOT_BYTES - 1]
        os.pwrite(self._file, line.ljust(_SLOT_BYTES - 1) + b"\n", self._count % _SLOTS * _SLOT_BYTES)
        self._count += 1

    def watch(self) -> str:
        """Note the launches of the CUDA driver from now on. Why that cannot be done; empty where it is."""
        places = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libcupti" in line}
        if not places:
            return "CUPTI is not loaded"
        try:
            return self._subscribe(ctypes.CDLL(min(places)))
        except (OSError, AttributeError) as exc:
            return f"CUPTI: {exc}"

    def _subscribe(self, cupti: ctypes.CDLL) -> str:
        callback, subscriber = _Callback(self._called), ctypes.c_void_p()
        self._kept += [cupti, callback]
        if error := cupti.cuptiSubscribe(ctypes.byref(subscriber), callback, None):
            return f"CUPTI: {_message(cupti, error)}"
        names = dict(_callbacks(cupti))
        for number in names:
            if error := cupti.cuptiEnableCallback(1, subscriber, _DRIVER_API, number):
                return f"CUPTI: {names[number]}: {_message(cupti, error)}"
        return "" if names else "CUPTI names no function that launches"

    def _called(self, user: int | None, domain: int, number: int, data: Any) -> None:
        with contextlib.suppress(Exception):  # ctypes would print it into the driver's face
            told = data.contents
            if told.site == _ENTER:
                self.note((told.symbol or told.function or b"without a name").decode("utf-8", "replace"))


def _callbacks(cupti: ctypes.CDLL) -> Iterator[tuple[int, str]]:
    """The functions of the driver that launch, by their id: the ids grow with each CUDA."""
    name = ctypes.c_char_p()
    for number in range(1, _CALLBACK_IDS):
        if not cupti.cuptiGetCallbackName(_DRIVER_API, number, ctypes.byref(name)):
            text = (name.value or b"").decode("utf-8", "replace")
            if text.startswith(_LAUNCHES):
                yield number, text


def _message(cupti: ctypes.CDLL, error: int) -> str:
    text = ctypes.c_char_p()
    if cupti.cuptiGetResultString(error, ctypes.byref(text)) or not text.value:
        return f"error {error}"
    return text.value.decode("utf-8", "replace")
