"""sgl_kernel's own all-reduce over peer memory, on two GPUs.

Its kernels read their peers' buffers through a table that is filled in after a capture, so the harness cannot capture
them: the second case here captures, registers and replays by itself.
"""

from __future__ import annotations

from typing import Any

from sm120_smoke import ranks
from sm120_smoke.case import Launch, Needs, case
from sm120_smoke.draw import dtype_of
from sm120_smoke.ipc import Runtime, shared_memory
from sm120_smoke.lazy import torch
from sm120_smoke.tolerance import rounding

TWO = Needs(gpus=2, why="custom all-reduce is between GPUs")
DTYPES = ("float32", "float16", "bfloat16")
#: Multiples of 8, which is what 16 bytes of the smaller dtypes hold: the operator asks for that.
COUNTS = (8, 4104, 1 << 20)
_SOURCE = "float32 sum of one value a rank, one rounding to dtype"
#: For what the two-stage algorithm keeps behind the signals, and for the largest input (4 MiB).
_BUFFER = 8 << 20
_RANK_DATA = 1 << 20


def _drawn(seed: int, rank: int, dtype: str, count: int) -> Any:
    """Drawn on the CPU, so that every rank can have every rank's values."""
    generator = torch.Generator().manual_seed(seed * 1000 + rank)
    return torch.randn(count, generator=generator).to(dtype_of(dtype))


class _Group:
    """The memory that the ranks share, and the operator's own object over it."""

    def __init__(self) -> None:
        self.here = ranks.here()
        self.operators = torch.ops.sgl_kernel
        self.signal_bytes = int(self.operators.meta_size.default()) + _BUFFER
        self.signals = shared_memory(self.here, self.signal_bytes)
        self.buffers = shared_memory(self.here, _BUFFER)
        self.rank_data = torch.empty(_RANK_DATA, dtype=torch.uint8, device="cuda")

    def open(self) -> int:
        handle = int(self.operators.init_custom_ar.default(self.signals, self.rank_data, self.here.rank, True))
        self.operators.register_buffer.default(handle, self.buffers)
        return handle

    def all_reduce(self, handle: int, x: Any, out: Any) -> None:
        """By way of the registered buffer."""
        self.operators.all_reduce.default(handle, x, out, self.buffers[self.here.rank], _BUFFER)


@case("sgl_kernel::all_reduce", needs=TWO, deadline=60)
def test_all_reduce() -> Launch:
    group = _Group()
    handle = group.open()
    keys = [(dtype, count) for dtype in DTYPES for count in COUNTS]
    mine = [torch.empty(count, dtype=dtype_of(dtype), device="cuda") for dtype, count in keys]
    outs = [torch.empty_like(x) for x in mine]
    every: list[list[Any]] = []

    def redraw(seed: int) -> None:
        every[:] = [[_drawn(seed, r, dtype, n).cuda() for r in range(group.here.world)] for dtype, n in keys]
        for x, values in zip(mine, every, strict=True):
            x.copy_(values[group.here.rank])

    def run() -> list[Any]:
        for x, out in zip(mine, outs, strict=True):
            group.all_reduce(handle, x, out)
        return outs

    return Launch(
        run=run,
        reference=lambda: [sum(v.double() for v in values).to(values[0].dtype) for values in every],
        redraw=redraw,
        tolerance=[rounding(dtype, roundings=2, float32_steps=2, source=_SOURCE) for dtype, _ in keys],
        no_graph="its buffers must be registered after the capture: the case of graph buffers captures by itself",
        keep=(group,),
    )


@case(
    "sgl_kernel::meta_size",
    "sgl_kernel::init_custom_ar",
    "sgl_kernel::register_buffer",
    "sgl_kernel::all_reduce",
    "sgl_kernel::get_graph_buffer_ipc_meta",
    "sgl_kernel::register_graph_buffers",
    "sgl_kernel::dispose",
    needs=TWO,
    deadline=60,
)
def test_graph_buffers() -> Launch:
    dtype, count = "bfloat16", 4104
    group, runtime = _Group(), Runtime()
    here, operators = group.here, group.operators
    first, second, x, out = (torch.empty(count, dtype=dtype_of(dtype), device="cuda") for _ in range(4))
    every: list[list[Any]] = []

    def redraw(seed: int) -> None:
        every[:] = [[_drawn(seed + n, r, dtype, count).cuda() for r in range(here.world)] for n in (0, 100)]
        first.copy_(every[0][here.rank])
        second.copy_(every[1][here.rank])

    def run() -> list[Any]:
        size = operators.meta_size.default()
        runtime.clear(group.signals[here.rank], size)  # a new object counts from zero
        here.barrier()
        handle = group.open()
        x.copy_(first)
        group.all_reduce(handle, x, out)  # loads the kernel, which a capture might not allow
        eager = out.clone()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            operators.all_reduce.default(handle, x, out, 0, 0)
        meta, offsets = operators.get_graph_buffer_ipc_meta.default(handle)
        gathered = here.exchange((list(meta), list(offsets)))
        operators.register_graph_buffers.default(handle, [g[0] for g in gathered], [g[1] for g in gathered])
        here.barrier()
        replays = []
        for values in (first, second):
            x.copy_(values)
            graph.replay()
            replays.append(out.clone())
        torch.cuda.synchronize()
        here.barrier()  # nobody closes memory that another still reads
        operators.dispose.default(handle)
        return [eager, *replays]

    def reference() -> list[Any]:
        sums = [sum(v.double() for v in values).to(values[0].dtype) for values in every]
        return [sums[0], *sums]

    return Launch(
        run=run,
        reference=reference,
        redraw=redraw,
        tolerance=rounding(dtype, roundings=2, float32_steps=2, source=_SOURCE),
        no_graph="it captures and replays by itself, and registers its buffers in between",
        keep=(group,),
    )
