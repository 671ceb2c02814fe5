"""Refuses and counts compiles by NVRTC in this process, where torch has loaded NVRTC from the beginning.

torch's wheels load NVRTC's libraries when torch is imported, so the libraries that are mapped tell nothing. While the
door is closed the first bytes of ``nvrtcCompileProgram`` are replaced by code that counts and answers with an error;
they are put back when it is opened. x86-64 Linux only; elsewhere, and where code may not be written, :meth:`Door.find`
says so.
"""

from __future__ import annotations

import ctypes
import platform
import struct
from pathlib import Path

_FUNCTION = "nvrtcCompileProgram"
_INTERNAL_ERROR = 11  # nvrtcResult, nvrtc.h
_READ, _WRITE, _EXECUTE = 1, 2, 4  # PROT_* of sys/mman.h
_PAGE = 4096


class Door:
    """Open: NVRTC compiles. Closed: it refuses, and each attempt is counted."""

    def __init__(self) -> None:
        self._count = ctypes.c_uint64(0)
        self._address = 0
        self._original = b""
        self.closed = False

    def find(self) -> str:
        """Look for NVRTC in this process, or beside its builtins. Why it cannot be watched; empty where it can."""
        if platform.machine() != "x86_64":
            return f"no code for {platform.machine()}"
        paths = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libnvrtc" in line}
        # Not those with another use of the name: libnvrtc.alt.so
        found = sorted(other for path in paths for other in Path(path).parent.glob("libnvrtc.so.*"))
        if not found:
            return "its library was not found"
        try:
            function = getattr(ctypes.CDLL(str(found[0])), _FUNCTION)
        except (OSError, AttributeError) as exc:
            return str(exc)
        self._address = ctypes.cast(function, ctypes.c_void_p).value or 0
        self._original = ctypes.string_at(self._address, len(self._code()))
        return self._writable()

    @property
    def attempts(self) -> int:
        """Compiles that were refused."""
        return int(self._count.value)

    def close(self) -> None:
        """From here on NVRTC refuses. Nothing where :meth:`find` found nothing."""
        if self._address:
            ctypes.memmove(self._address, self._code(), len(self._original))
            self.closed = True

    def open(self) -> None:
        """From here on NVRTC compiles."""
        if self._address and self.closed:
            ctypes.memmove(self._address, self._original, len(self._original))
            self.closed = False

    def _code(self) -> bytes:
        """``lock inc`` of the count, then ``return`` of an error."""
        count = struct.pack("<Q", ctypes.addressof(self._count))
        load, increment = b"\x48\xb8" + count, b"\xf0\x48\xff\x00"  # mov rax, imm64; lock inc qword ptr [rax]
        answer = b"\xb8" + struct.pack("<i", _INTERNAL_ERROR) + b"\xc3"  # mov eax, imm32; ret
        return load + increment + answer

    def _writable(self) -> str:
        libc = ctypes.CDLL(None, use_errno=True)
        start = self._address & -_PAGE
        length = (self._address + len(self._original) - start + _PAGE - 1) & -_PAGE
        rights = _READ | _WRITE | _EXECUTE
        if libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(length), ctypes.c_int(rights)):
            self._address = 0
            return f"its code may not be written (errno {ctypes.get_errno()})"
        return ""
