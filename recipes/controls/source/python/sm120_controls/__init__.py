"""Operators ``torch.ops.sm120_controls.*`` that are faulty on purpose: what a smoke test must not pass.

Each should give ``2 * x + 1`` for a float32 tensor on a GPU; each but ``good`` is wrong in the way that its name says.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import torch

__version__ = "0.1.0"

_NATIVE = (
    "good",
    "returns_zeros",
    "returns_nan",
    "wrong_in_one_element",
    "forgets_the_tail",
    "launches_nothing",
    "never_returns",
    "waits_on_the_host",
    "writes_out_of_bounds",
    "writes_just_out_of_bounds",
    "traps",
    "fails_an_assertion",
    "aborts_the_process",
    "leaves_an_error_behind",
    "synchronises",
    "allocates",
    "ignores_the_stream",
    "starts_a_program",
)
#: Reserved for documentation (RFC 5737): nobody answers there.
_NOBODY = ("192.0.2.1", 80)
_JIT = "template <typename T> T {name}(T x) {{ return T(2) * x + T(1); }}"

_library = ctypes.CDLL(str(Path(__file__).with_name("libcontrols.so")))
_library.control_error.restype = ctypes.c_char_p


def _launch(name: str, x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
    out = torch.empty_like(x)
    error = getattr(_library, f"control_{name}")(
        ctypes.c_void_p(x.data_ptr()),
        ctypes.c_void_p(out.data_ptr()),
        ctypes.c_int64(x.numel()),
        ctypes.c_float(factor),
        ctypes.c_void_p(torch.cuda.current_stream(x.device).cuda_stream),
    )
    if error:
        raise RuntimeError(f"sm120_controls::{name}: {_library.control_error(error).decode()}")
    return out


def _native(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: _launch(name, x)


def _keeps_a_host_value(x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Reads the factor on the host when it is called: a graph keeps the value of its capture."""
    return _launch("with_factor", x, float(factor))


def _starts_nvcc(x: torch.Tensor) -> torch.Tensor:
    """Tries to compile, and hides that it could not."""
    with contextlib.suppress(OSError):
        subprocess.run(["nvcc", "--cubin", "absent.cu"], check=False, capture_output=True)
    return _launch("good", x)


def _compiles_with_nvrtc(x: torch.Tensor) -> torch.Tensor:
    return torch.cuda.jiterator._create_jit_fn(_JIT.format(name="twice_plus_one"))(x)


def _compiles_with_nvrtc_again(x: torch.Tensor) -> torch.Tensor:
    return torch.cuda.jiterator._create_jit_fn(_JIT.format(name="twice_plus_one_again"))(x)


def _uses_the_network(x: torch.Tensor) -> torch.Tensor:
    """Tries to connect, and hides that it could not."""
    with contextlib.suppress(OSError):
        socket.create_connection(_NOBODY, timeout=0.2).close()
    return _launch("good", x)


def _is_fussy(x: torch.Tensor) -> torch.Tensor:
    """Refuses what it was made for."""
    raise NotImplementedError("sm120_controls::is_fussy: not for this GPU")


_operators = torch.library.Library("sm120_controls", "DEF")
for _name in _NATIVE:
    _operators.define(f"{_name}(Tensor x) -> Tensor")
    _operators.impl(_name, _native(_name), "CUDA")
for _name, _function in {
    "starts_nvcc": _starts_nvcc,
    "compiles_with_nvrtc": _compiles_with_nvrtc,
    "compiles_with_nvrtc_again": _compiles_with_nvrtc_again,
    "uses_the_network": _uses_the_network,
    "is_fussy": _is_fussy,
}.items():
    _operators.define(f"{_name}(Tensor x) -> Tensor")
    _operators.impl(_name, _function, "CUDA")
_operators.define("keeps_a_host_value(Tensor x, Tensor factor) -> Tensor")
_operators.impl("keeps_a_host_value", _keeps_a_host_value, "CUDA")
