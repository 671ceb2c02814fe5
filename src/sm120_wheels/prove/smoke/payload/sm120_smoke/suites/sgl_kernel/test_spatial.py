"""Streams that own a part of the GPU's multiprocessors (green contexts)."""

from __future__ import annotations

import importlib

import pytest

from sm120_smoke.case import Launch, NotRun, Tolerance, case
from sm120_smoke.draw import redraw, tensors
from sm120_smoke.lazy import torch


@case("sgl_kernel::create_greenctx_stream_by_value")
@pytest.mark.parametrize("multiprocessors", [(16, 32)])
def test_create_greenctx_stream_by_value(multiprocessors: tuple[int, int]) -> Launch:
    try:
        importlib.import_module("sgl_kernel.spatial_ops")
    except ImportError as error:
        raise NotRun(f"the extension spatial_ops cannot be loaded: {error}") from error
    device = torch.cuda.current_device()
    if sum(multiprocessors) > torch.cuda.get_device_properties(device).multi_processor_count:
        raise NotRun(f"the GPU has fewer than {sum(multiprocessors)} multiprocessors")
    x, first, second = tensors("float32", (4099,), (4099,), (4099,))

    def run() -> object:
        *handles, got_first, got_second = torch.ops.sgl_kernel.create_greenctx_stream_by_value.default(
            *multiprocessors, device
        )
        # Numbers are rounded up to what the hardware can split; the second part gets what the first leaves.
        if got_first < multiprocessors[0] or got_second < 1:
            raise AssertionError(f"asked for {multiprocessors} multiprocessors, got {got_first} and {got_second}")
        current = torch.cuda.current_stream()
        for handle, out in zip(handles, (first, second), strict=True):
            stream = torch.cuda.ExternalStream(handle, device=torch.device("cuda", device))
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                torch.mul(x, 2.0, out=out)
            current.wait_stream(stream)
        return first, second

    return Launch(
        run=run,
        reference=lambda: (x * 2.0, x * 2.0),
        redraw=lambda seed: redraw(seed, x),
        tolerance=Tolerance(source="doubling is exact"),
        no_graph="it creates contexts and streams, which belong to the host",
    )
