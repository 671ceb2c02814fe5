"""GPU memory that every rank of a case sees, by CUDA's own inter-process handles (torch has no call for raw ones)."""

from __future__ import annotations

import ctypes
from typing import Any

from sm120_smoke.lazy import torch
from sm120_smoke.ranks import Ranks

_HANDLE_BYTES = 64  # CUDA_IPC_HANDLE_SIZE, driver_types.h
_LAZY_PEER_ACCESS = 1  # cudaIpcMemLazyEnablePeerAccess


class _Handle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_byte * _HANDLE_BYTES),)


class CudaError(RuntimeError):
    """What a call of the CUDA runtime answered."""


class Runtime:
    """The CUDA runtime that torch has loaded."""

    def __init__(self) -> None:
        major = str(torch.version.cuda).partition(".")[0]
        self._library = ctypes.CDLL(f"libcudart.so.{major}")
        self._library.cudaGetErrorString.restype = ctypes.c_char_p

    def _call(self, name: str, *arguments: Any) -> None:
        error = getattr(self._library, name)(*arguments)
        if error:
            raise CudaError(f"{name}: {self._library.cudaGetErrorString(error).decode()}")

    def allocate(self, size: int) -> int:
        """The address of ``size`` bytes on the current GPU, all zero."""
        address = ctypes.c_void_p()
        self._call("cudaMalloc", ctypes.byref(address), ctypes.c_size_t(size))
        self.clear(int(address.value or 0), size)
        return int(address.value or 0)

    def clear(self, address: int, size: int) -> None:
        self._call("cudaMemset", ctypes.c_void_p(address), ctypes.c_int(0), ctypes.c_size_t(size))
        self._call("cudaDeviceSynchronize")

    def handle(self, address: int) -> bytes:
        handle = _Handle()
        self._call("cudaIpcGetMemHandle", ctypes.byref(handle), ctypes.c_void_p(address))
        return bytes(handle)

    def open(self, handle: bytes) -> int:
        """The address by which the current GPU reaches another process's memory."""
        address = ctypes.c_void_p()
        given = _Handle.from_buffer_copy(handle)
        self._call("cudaIpcOpenMemHandle", ctypes.byref(address), given, ctypes.c_uint(_LAZY_PEER_ACCESS))
        return int(address.value or 0)


def shared_memory(here: Ranks, size: int) -> list[int]:
    """``size`` zeroed bytes on each rank's GPU: the addresses of all of them as this rank sees them, in rank order.

    They live as long as the process.
    """
    runtime = Runtime()
    mine = runtime.allocate(size)
    handles = here.exchange(runtime.handle(mine))
    return [mine if rank == here.rank else runtime.open(handle) for rank, handle in enumerate(handles)]
