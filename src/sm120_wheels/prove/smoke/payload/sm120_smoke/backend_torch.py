"""Runs cases with torch: on a CUDA GPU, and without graphs and kernels on the CPU."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sm120_smoke import functions
from sm120_smoke.backend import NoGraphsError, Trace
from sm120_smoke.case import Tolerance
from sm120_smoke.compare import Measured
from sm120_smoke.launches import CAPTURE, Launches

_NO_CACHING = "PYTORCH_NO_CUDA_MEMORY_CACHING"
_KEEP_BYTES = 64 << 20
"""Allocated after a case: above it the collector looks for cycles that hold tensors."""


class TorchBackend:
    """torch on ``cuda`` or, for tests, on ``cpu``."""

    def __init__(self, kind: str) -> None:
        self.name = kind
        self.cuda = kind == "cuda"
        self._torch: Any = None
        self._device = 0
        self._launches: Launches | None = None

    def start(self, device: int) -> dict[str, Any]:
        os.environ["TEARDOWN_CUPTI"] = "0"  # torch's own setting where graphs and the profiler meet in one process
        os.environ["DISABLE_CUPTI_LAZY_REINIT"] = "1"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._torch = torch = importlib.import_module("torch")
        torch.set_grad_enabled(False)
        facts: dict[str, Any] = {"torch": str(torch.__version__), "cuda": torch.version.cuda}
        if not self.cuda:
            return {**facts, "gpu": "none (CPU)"}
        self._device = device
        torch.cuda.set_device(device)
        torch.cuda.init()
        properties = torch.cuda.get_device_properties(device)
        major, minor = torch.cuda.get_device_capability(device)
        torch.zeros(1, device="cuda").add_(1)  # torch itself must work here before any case is blamed
        torch.cuda.synchronize()
        return {
            **facts,
            "gpu": properties.name,
            "capability": f"{major}.{minor}",
            "memory": properties.total_memory,
            "multiprocessors": properties.multi_processor_count,
            "torch_architectures": torch.cuda.get_arch_list(),
        }

    def watch(self, launches: Launches) -> str:
        self._launches = launches
        return launches.watch() if self.cuda else "nothing is launched on a CPU"

    def operators(self, namespaces: Sequence[str]) -> list[str]:
        names = {name.partition(".")[0] for name in self._torch._C._dispatch_get_all_op_names()}
        return sorted(name for name in names if name.partition("::")[0] in namespaces)

    def free_memory(self) -> int:
        if not self.cuda:
            return 1 << 62
        free, _ = self._torch.cuda.mem_get_info()
        return int(free + self._torch.cuda.memory_reserved() - self._torch.cuda.memory_allocated())

    def synchronise(self) -> None:
        if self.cuda:
            self._torch.cuda.synchronize()

    def flatten(self, results: Any) -> list[Any]:
        if results is None:
            return []
        if isinstance(results, self._torch.Tensor):
            return [results]
        if isinstance(results, (list, tuple)):
            return [tensor for part in results for tensor in self.flatten(part)]
        if isinstance(results, (bool, int, float)):
            return [self._torch.tensor(results)]
        raise TypeError(f"a result must be a tensor, a number or several, and is {type(results).__name__}")

    def poison(self, results: Sequence[Any]) -> None:
        torch = self._torch
        for tensor in results:
            if tensor.is_contiguous() and tensor.dtype != torch.bool and tensor.numel():
                tensor.view(torch.uint8).fill_(0xFF) if tensor.dim() else tensor.view(1).view(torch.uint8).fill_(0xFF)
            elif tensor.is_floating_point():
                tensor.fill_(float("nan"))
            elif tensor.dtype == torch.bool:
                tensor.fill_(True)
            elif not tensor.is_complex():
                tensor.fill_(-1 if tensor.dtype.is_signed else torch.iinfo(tensor.dtype).max)

    def capture(self, run: Callable[[], Any]) -> tuple[Callable[[], None], list[Any]]:
        if not self.cuda:
            raise NoGraphsError("there are no CUDA graphs on a CPU")
        if _NO_CACHING in os.environ:
            raise NoGraphsError("each tensor is an allocation of its own under this tool: a graph allows none")
        cuda = self._torch.cuda
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            run()  # what is set up at a first call on a stream must not be captured
        cuda.current_stream().wait_stream(side)
        cuda.synchronize()
        graph = cuda.CUDAGraph()
        if self._launches is not None:
            self._launches.at = CAPTURE
        with cuda.graph(graph, stream=side):
            results = run()
        return graph.replay, self.flatten(results)

    def measure(self, actual: Any, expected: Any, tolerance: Tolerance) -> Measured:
        torch = self._torch
        shape, expected_shape = tuple(actual.shape), tuple(expected.shape)
        dtype = str(actual.dtype).removeprefix("torch.")
        if shape != expected_shape or actual.numel() == 0:
            return Measured(shape=shape, expected_shape=expected_shape, dtype=dtype, elements=actual.numel())
        got, want = self._wide(actual), self._wide(expected.to(actual.device))
        got_nan, want_nan = torch.isnan(got), torch.isnan(want)
        both_nan = got_nan & want_nan
        allowed = tolerance.absolute + tolerance.relative * want.abs()
        difference = (got - want).abs()
        same = both_nan | (got == want)  # equal infinities too, whose difference is NaN
        difference = torch.where(same, 0.0, difference)
        infinite = (torch.isinf(got) & ~same) & ~want_nan
        bad = difference > torch.where(torch.isinf(allowed), 0.0, allowed)
        bad = (bad | torch.isnan(difference)) & ~same
        # NaN and infinity first, then the largest share of what is allowed
        rank = torch.where(same, -1.0, torch.nan_to_num(difference / allowed.clamp_min(1e-300), nan=float("inf")))
        flat = int(rank.flatten().argmax())
        index = [int(i) for i in _unravel(flat, shape)]
        numbers = torch.stack(
            [
                (got_nan & ~want_nan).sum().double(),
                (want_nan & ~got_nan).sum().double(),
                infinite.sum().double(),
                both_nan.all().double(),
                (got == 0).all().double(),
                (want == 0).all().double(),
                bad.sum().double(),
                *(t.flatten()[flat].double() for t in (got, want, difference, allowed)),
            ]
        ).tolist()  # one transfer
        return Measured(
            shape=shape,
            expected_shape=expected_shape,
            dtype=dtype,
            elements=actual.numel(),
            not_a_number=int(numbers[0]),
            lost_nan=int(numbers[1]),
            infinite=int(numbers[2]),
            all_nan=bool(numbers[3]),
            zero=bool(numbers[4]),
            expected_zero=bool(numbers[5]),
            beyond=int(numbers[6]),
            worst_index=tuple(index),
            worst_actual=numbers[7],
            worst_expected=numbers[8],
            worst_difference=numbers[9],
            worst_allowed=numbers[10],
        )

    def _wide(self, tensor: Any) -> Any:
        """In float64. Integers of 64 bits beyond 2**53 lose their last bits, on both sides alike."""
        torch = self._torch
        if tensor.dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16) or not _is_float(tensor):
            return tensor.to(torch.float64)
        return tensor.to(torch.float32).to(torch.float64)  # the 8-bit formats convert by way of float32

    def trace(self, run: Callable[[], Any]) -> Trace:
        functions.begin()
        # torch.profiler.profile does the same, and first imports the whole compiler stack: seconds, and triton with it.
        profile = importlib.import_module("torch.autograd.profiler").profile
        with profile(use_cpu=True, use_device="cuda" if self.cuda else None, use_kineto=True) as profiled:
            run()
            self.synchronise()
        operators: dict[str, None] = {}
        kernels: dict[str, None] = {}
        on_gpu = self._torch.autograd.DeviceType.CUDA
        for event in profiled.kineto_results.events():
            name = event.name()
            if event.device_type() == on_gpu:
                if not name.startswith(("Memcpy", "Memset", "Activity Buffer")):
                    kernels[name] = None
            elif "::" in name and "(" not in name:
                operators[name] = None
        return Trace(
            operators=(*operators, *functions.reached()),
            kernels=tuple(kernels),
            kernels_unknown="" if kernels or not self.cuda else "CUPTI told of no kernel",
        )

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        torch = self._torch
        before = (torch.get_default_dtype(), torch.get_rng_state(), random.getstate(), torch.is_grad_enabled())
        precision, threads = torch.get_float32_matmul_precision(), torch.get_num_threads()
        environment, folder = dict(os.environ), os.getcwd()  # noqa: PTH109
        torch.manual_seed(0)
        random.seed(0)
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
        try:
            yield
        finally:
            torch.set_default_dtype(before[0])
            if torch.get_default_device().type != "cpu":
                torch.set_default_device(None)
            if self.cuda and torch.cuda.current_device() != self._device:
                torch.cuda.set_device(self._device)
            torch.set_rng_state(before[1])
            random.setstate(before[2])
            torch.set_grad_enabled(before[3])
            if torch.are_deterministic_algorithms_enabled():  # setting it imports the compiler stack
                torch.use_deterministic_algorithms(False)
            if torch.get_float32_matmul_precision() != precision:
                torch.set_float32_matmul_precision(precision)
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)
            if dict(os.environ) != environment:
                os.environ.clear()
                os.environ.update(environment)
            os.chdir(folder)

    def clean(self) -> int:
        if not self.cuda:
            return 0
        cuda = self._torch.cuda
        peak = int(cuda.max_memory_allocated())
        if cuda.memory_allocated() > _KEEP_BYTES:
            gc.collect()
        _, total = cuda.mem_get_info()
        if cuda.memory_reserved() > total // 4:
            cuda.empty_cache()
        return peak


def _is_float(tensor: Any) -> bool:
    return bool(tensor.is_floating_point())


def _unravel(flat: int, shape: tuple[int, ...]) -> list[int]:
    index = []
    for size in reversed(shape):
        flat, rest = divmod(flat, size)
        index.append(rest)
    return index[::-1]
