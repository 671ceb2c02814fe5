"""flashinfer's selections of the largest, whose order is its own: results are sorted before they are compared."""

from __future__ import annotations

import os
from typing import Any

import pytest

from sm120_smoke.case import EXACT, Launch, Needs, NotRun, case
from sm120_smoke.draw import redraw, tensors
from sm120_smoke.lazy import torch

SHAPES = [(1, 200, 7), (5, 4099, 64), (3, 32768, 2048)]
#: Which operator answers a call with these settings, and what it asks first; SM120 and Hopper GPUs have both.
ALGORITHMS = [("radix", True, ""), ("cub", False, "_workspace_size")]
_FILTERED_BYTES = 128 << 10


def _choose(algorithm: str) -> None:
    """cub only where it is asked for; the other follows from ``deterministic``. Put back after the case."""
    if algorithm == "cub":
        os.environ["FLASHINFER_TOPK_ALGO"] = "cub"
    else:
        os.environ.pop("FLASHINFER_TOPK_ALGO", None)


@case("flashinfer.topk::{algorithm}_topk", "flashinfer.topk::{algorithm}_topk{first}")
@pytest.mark.parametrize(("algorithm", "deterministic", "first"), ALGORITHMS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("rows", "length", "k"), SHAPES)
def test_top_k(algorithm: str, deterministic: bool, first: str, dtype: str, rows: int, length: int, k: int) -> Launch:
    """Equal values may be chosen in any way: what is at the given places must be the largest."""
    import flashinfer

    _choose(algorithm)
    (x,) = tensors(dtype, (rows, length))

    def run() -> list[Any]:
        values, places = flashinfer.top_k(x, k, deterministic=deterministic)
        different = torch.sort(places, dim=1).values.diff(dim=1).ne(0).all(dim=1)  # no place twice
        inside = ((places >= 0) & (places < length)).all(dim=1)  # what is no place must not be looked up
        return [
            torch.sort(values, dim=1, descending=True).values,
            torch.sort(x.gather(1, places.clamp(0, length - 1)), dim=1, descending=True).values,
            different & inside,
        ]

    def reference() -> list[Any]:
        largest = torch.topk(x, k, dim=1).values
        return [largest, largest, torch.ones(rows, dtype=torch.bool, device="cuda")]

    return Launch(run=run, reference=reference, redraw=lambda seed: redraw(seed, x), tolerance=EXACT)


class _Ragged:
    """Scores, of which only the first ``lengths`` of each row count, all different."""

    def __init__(self, rows: int, length: int, k: int) -> None:
        self.rows, self.length, self.k = rows, length, k
        (self.scores,) = tensors("float32", (rows, length))
        lengths = [max(1, length - 31 * i) for i in range(rows)]
        lengths[-1] = min(lengths[-1], k // 2 + 1)  # fewer than are asked for
        self.lengths = torch.tensor(lengths, dtype=torch.int32, device="cuda")

    def redraw(self, seed: int) -> None:
        generator = torch.Generator(device="cuda").manual_seed(seed)
        for row in self.scores:
            row.copy_(torch.randperm(self.length, generator=generator, device="cuda"))

    def chosen(self) -> tuple[Any, Any]:
        """Places of the largest of each row, and which of them there are."""
        places = torch.arange(self.length, device="cuda").expand(self.rows, -1)
        masked = self.scores.masked_fill(places >= self.lengths[:, None], float("-inf"))
        values, found = torch.topk(masked, self.k, dim=1)
        return found, torch.isfinite(values)


@case("flashinfer.topk::{algorithm}_topk_ragged_transform", "flashinfer.topk::{algorithm}_topk_ragged_transform{first}")
@pytest.mark.parametrize(("algorithm", "deterministic", "first"), ALGORITHMS)
@pytest.mark.parametrize(("rows", "length", "k"), SHAPES)
def test_ragged(algorithm: str, deterministic: bool, first: str, rows: int, length: int, k: int) -> Launch:
    import flashinfer

    _choose(algorithm)
    ragged = _Ragged(rows, length, k)
    offsets = torch.arange(rows, dtype=torch.int32, device="cuda") * length

    def run() -> Any:
        places = flashinfer.top_k_ragged_transform(
            ragged.scores, offsets, ragged.lengths, k, deterministic=deterministic
        )
        return torch.sort(places, dim=1).values

    def reference() -> Any:
        found, there = ragged.chosen()
        return torch.sort(torch.where(there, found + offsets[:, None], -1).int(), dim=1).values

    return Launch(run=run, reference=reference, redraw=ragged.redraw, tolerance=EXACT)


@case(
    "flashinfer.topk::{algorithm}_topk_page_table_transform",
    "flashinfer.topk::{algorithm}_topk_page_table_transform{first}",
)
@pytest.mark.parametrize(("algorithm", "deterministic", "first"), ALGORITHMS)
@pytest.mark.parametrize(("rows", "length", "k"), SHAPES)
def test_page_table(algorithm: str, deterministic: bool, first: str, rows: int, length: int, k: int) -> Launch:
    import flashinfer

    _choose(algorithm)
    ragged = _Ragged(rows, length, k)
    table = torch.empty((rows, length), dtype=torch.int32, device="cuda")

    def draw(seed: int) -> None:
        ragged.redraw(seed)
        generator = torch.Generator(device="cuda").manual_seed(seed + 1000)
        table.copy_(torch.randperm(rows * length, generator=generator, device="cuda").view(rows, length))

    def run() -> Any:
        pages = flashinfer.top_k_page_table_transform(
            ragged.scores, table, ragged.lengths, k, deterministic=deterministic
        )
        return torch.sort(pages, dim=1).values

    def reference() -> Any:
        found, there = ragged.chosen()
        return torch.sort(torch.where(there, table.gather(1, found), -1).int(), dim=1).values

    return Launch(run=run, reference=reference, redraw=draw, tolerance=EXACT)


@case("flashinfer.topk::can_implement_filtered_topk")
def test_can_implement_filtered_topk() -> Launch:
    """Asks whether a block of 128 KiB of shared memory fits on a multiprocessor; launches nothing."""
    import flashinfer

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return Launch(
        run=lambda: flashinfer.topk.can_implement_filtered_topk(),
        reference=lambda: bool(properties.shared_memory_per_multiprocessor >= _FILTERED_BYTES),
        redraw=lambda seed: None,
        tolerance=EXACT,
        no_graph="it answers on the host",
        may_be_zero=True,
    )


@case(
    "flashinfer.topk::fast_topk_clusters_exact",
    "flashinfer.topk::fast_topk_clusters_exact_ragged_transform",
    "flashinfer.topk::fast_topk_clusters_exact_page_table_transform",
    needs=Needs(capability=((10, 0), (10, 3)), why="flashinfer chooses them on compute capability 10 only"),
)
def test_clusters() -> Launch:
    raise NotRun("no case is written for compute capability 10: nobody here has such a GPU")
