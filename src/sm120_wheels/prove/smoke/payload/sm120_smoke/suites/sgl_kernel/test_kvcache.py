"""Copies of key-value cache entries between layouts. Entries are bytes: every copy must be exact.

Layouts: ``lf`` layer first, a buffer ``[token, item]`` for each layer; ``pf`` page first, ``[token, layer, item]``;
``ph`` page and head first, ``[page, head, token of page, layer, item of head]``.
"""

from __future__ import annotations

from typing import Any

import pytest

from sm120_smoke.case import EXACT, Launch, case
from sm120_smoke.draw import integers, redraw_bytes, redraw_distinct
from sm120_smoke.lazy import torch

LAYERS, SOURCES, TARGETS = 3, 640, 512
SIZES = [(1, 64), (37, 576), (511, 1024)]
"""Tokens moved, and int16 elements of an item (a multiple of 8 bytes; nothing else is asked)."""
QUOTA, WARPS = 2, 32
PAGE, HEADS = 16, 4


def _pool(*shape: int, host: bool = False) -> Any:
    if host:
        return torch.zeros(shape, dtype=torch.int16).pin_memory()
    return torch.zeros(shape, dtype=torch.int16, device="cuda")


class _Move:
    """Sources, targets and the indices between them; ``count`` is 2 for keys and values, 1 for a latent cache."""

    def __init__(
        self, source: tuple[int, ...], target: tuple[int, ...], tokens: int, *, count: int, host: bool = False
    ):
        self.sources = [_pool(*source, host=host) for _ in range(count)]
        self.drawn = [_pool(*source) for _ in range(count)]
        self.targets = [_pool(*target) for _ in range(count)]
        self.source_indices, self.target_indices = integers((tokens,), "int64"), integers((tokens,), "int64")

    def fill(self, seed: int) -> None:
        for i, (source, drawn) in enumerate(zip(self.sources, self.drawn, strict=True)):
            redraw_bytes(seed + i, drawn)
            source.copy_(drawn)
        redraw_distinct(seed + 100, SOURCES, self.source_indices)
        redraw_distinct(seed + 200, TARGETS, self.target_indices)

    def launch(self, operator: Any, expected: Any) -> Launch:
        def run() -> object:
            for target in self.targets:
                target.zero_()
            operator()
            return self.targets

        def reference() -> object:
            done = [torch.zeros_like(target) for target in self.targets]
            for drawn, target in zip(self.drawn, done, strict=True):
                expected(drawn, target, self.source_indices, self.target_indices)
            return done

        return Launch(run=run, reference=reference, redraw=self.fill, tolerance=EXACT)


def _layer_pointers(pool: Any) -> Any:
    """Addresses of the layers of a pool ``[layer, token, item]``."""
    return torch.tensor([layer.data_ptr() for layer in pool], dtype=torch.uint64, device="cuda")


def _page_head(pool: Any) -> Any:
    """A view ``[page, head, token, layer, item]`` as ``[page, token, layer, head, item]``."""
    return pool.permute(0, 2, 3, 1, 4)


@case("sgl_kernel::transfer_kv_per_layer")
@pytest.mark.parametrize("host", [False, True])
@pytest.mark.parametrize(("tokens", "item"), SIZES)
def test_transfer_kv_per_layer(tokens: int, item: int, host: bool) -> Launch:
    move = _Move((SOURCES, item), (TARGETS, item), tokens, count=2, host=host)
    key, value = move.sources
    to_key, to_value = move.targets

    def operator() -> None:
        torch.ops.sgl_kernel.transfer_kv_per_layer.default(
            key, to_key, value, to_value, move.source_indices, move.target_indices, item * 2, QUOTA, WARPS
        )

    def expected(source: Any, target: Any, a: Any, b: Any) -> None:
        target[b] = source[a]

    return move.launch(operator, expected)


@case("sgl_kernel::transfer_kv_per_layer_mla")
@pytest.mark.parametrize(("tokens", "item"), SIZES)
def test_transfer_kv_per_layer_mla(tokens: int, item: int) -> Launch:
    move = _Move((SOURCES, item), (TARGETS, item), tokens, count=1)

    def operator() -> None:
        torch.ops.sgl_kernel.transfer_kv_per_layer_mla.default(
            move.sources[0], move.targets[0], move.source_indices, move.target_indices, item * 2, QUOTA, WARPS
        )

    def expected(source: Any, target: Any, a: Any, b: Any) -> None:
        target[b] = source[a]

    return move.launch(operator, expected)


@case("sgl_kernel::transfer_kv_per_layer_pf_lf")
@pytest.mark.parametrize("host", [False, True])
@pytest.mark.parametrize(("tokens", "item"), SIZES)
def test_transfer_kv_per_layer_pf_lf(tokens: int, item: int, host: bool) -> Launch:
    move = _Move((SOURCES, LAYERS, item), (TARGETS, item), tokens, count=2, host=host)
    key, value = move.sources
    to_key, to_value = move.targets

    def operator() -> None:
        indices = move.source_indices, move.target_indices
        torch.ops.sgl_kernel.transfer_kv_per_layer_pf_lf.default(
            # The target is one layer's buffer: its layers lie 0 bytes apart.
            key,
            to_key,
            value,
            to_value,
            *indices,
            1,
            item * 2,
            LAYERS * item * 2,
            QUOTA,
            WARPS,
        )

    def expected(source: Any, target: Any, a: Any, b: Any) -> None:
        target[b] = source[a, 1]

    return move.launch(operator, expected)


@case("sgl_kernel::transfer_kv_per_layer_mla_pf_lf")
@pytest.mark.parametrize(("tokens", "item"), SIZES)
def test_transfer_kv_per_layer_mla_pf_lf(tokens: int, item: int) -> Launch:
    move = _Move((SOURCES, LAYERS, item), (TARGETS, item), tokens, count=1)

    def operator() -> None:
        indices = move.source_indices, move.target_indices
        torch.ops.sgl_kernel.transfer_kv_per_layer_mla_pf_lf.default(
            move.sources[0], move.targets[0], *indices, 2, item * 2, LAYERS * item * 2, QUOTA, WARPS
        )

    def expected(source: Any, target: Any, a: Any, b: Any) -> None:
        target[b] = source[a, 2]

    return move.launch(operator, expected)


@case("sgl_kernel::transfer_kv_per_layer_ph_lf")
@pytest.mark.parametrize(("tokens", "item"), SIZES)
def test_transfer_kv_per_layer_ph_lf(tokens: int, item: int) -> Launch:
    part = item // HEADS
    move = _Move((SOURCES // PAGE, HEADS, PAGE, LAYERS, part), (TARGETS, item), tokens, count=2)
    key, value = move.sources
    to_key, to_value = move.targets

    def operator() -> None:
        indices = move.source_indices, move.target_indices
        sizes = item * 2, LAYERS * item * 2
        torch.ops.sgl_kernel.transfer_kv_per_layer_ph_lf.default(
            key, to_key, value, to_value, *indices, 1, *sizes, PAGE, HEADS, QUOTA, WARPS
        )

    def expected(source: Any, target: Any, a: Any, b: Any) -> None:
        target[b] = _page_head(source)[a // PAGE, a % PAGE, 1].reshape(-1, item)

    return move.launch(operator, expected)


@case("sgl_kernel::transfer_kv_all_layer")
@pytest.mark.parametrize(("tokens", "item"), SIZES)
def test_transfer_kv_all_layer(tokens: int, item: int) -> Launch:
    move = _Move((LAYERS, SOURCES, item), (LAYERS, TARGETS, item), tokens, count=2)
    key, value = map(_layer_pointers, move.sources)
    to_key, to_value = map(_layer_pointers, move.targets)

    def operator() -> None:
        indices = move.source_indices, move.target_indices
        torch.ops.sgl_kernel.transfer_kv_all_layer.default(
            key, to_key, value, to_value, *indices, item * 2, LAYERS, QUOTA, WARPS
        )

    def expected(source: Any, target: Any, a: Any, b: Any) -> None:
        target[:, b] = source[:, a]

    return move.launch(operator, expected)


@case("sgl_kernel::transfer_kv_all_layer_mla")
@pytest.mark.parametrize(("tokens", "item"), SIZES)
def test_transfer_kv_all_layer_mla(tokens: int, item: int) -> Launch:
    move = _Move((LAYERS, SOURCES, item), (LAYERS, TARGETS, item), tokens, count=1)
    source_layers, target_layers = _layer_pointers(move.sources[0]), _layer_pointers(move.targets[0])

    def operator() -> None:
        indices = move.source_indices, move.target_indices
        torch.ops.sgl_kernel.transfer_kv_all_layer_mla.default(
            source_layers, target_layers, *indices, item * 2, LAYERS, QUOTA, WARPS
        )

    def expected(source: Any, target: Any, a: Any, b: Any) -> None:
        target[:, b] = source[:, a]

    return move.launch(operator, expected)


@case("sgl_kernel::transfer_kv_all_layer_lf_pf")
@pytest.mark.parametrize(("tokens", "item"), SIZES)
def test_transfer_kv_all_layer_lf_pf(tokens: int, item: int) -> Launch:
    move = _Move((LAYERS, SOURCES, item), (TARGETS, LAYERS, item), tokens, count=2)
    key, value = map(_layer_pointers, move.sources)
    to_key, to_value = move.targets

    def operator() -> None:
        indices = move.source_indices, move.target_indices
        torch.ops.sgl_kernel.transfer_kv_all_layer_lf_pf.default(
            key, to_key, value, to_value, *indices, item * 2, LAYERS * item * 2, LAYERS, QUOTA, WARPS
        )

    def expected(source: Any, target: Any, a: Any, b: Any) -> None:
        target[b] = source[:, a].transpose(0, 1)

    return move.launch(operator, expected)


@case("sgl_kernel::transfer_kv_all_layer_mla_lf_pf")
@pytest.mark.parametrize(("tokens", "item"), SIZES)
def test_transfer_kv_all_layer_mla_lf_pf(tokens: int, item: int) -> Launch:
    move = _Move((LAYERS, SOURCES, item), (TARGETS, LAYERS, item), tokens, count=1)
    layers = _layer_pointers(move.sources[0])

    def operator() -> None:
        indices = move.source_indices, move.target_indices
        torch.ops.sgl_kernel.transfer_kv_all_layer_mla_lf_pf.default(
            layers, move.targets[0], *indices, item * 2, LAYERS * item * 2, LAYERS, QUOTA, WARPS
        )

    def expected(source: Any, target: Any, a: Any, b: Any) -> None:
        target[b] = source[:, a].transpose(0, 1)

    return move.launch(operator, expected)


@case("sgl_kernel::transfer_kv_all_layer_lf_ph")
@pytest.mark.parametrize(("tokens", "item"), SIZES)
def test_transfer_kv_all_layer_lf_ph(tokens: int, item: int) -> Launch:
    part = item // HEADS
    move = _Move((LAYERS, SOURCES, item), (TARGETS // PAGE, HEADS, PAGE, LAYERS, part), tokens, count=2)
    key, value = map(_layer_pointers, move.sources)
    to_key, to_value = move.targets

    def operator() -> None:
        indices = move.source_indices, move.target_indices
        sizes = item * 2, LAYERS * item * 2
        torch.ops.sgl_kernel.transfer_kv_all_layer_lf_ph.default(
            key, to_key, value, to_value, *indices, *sizes, LAYERS, PAGE, HEADS, QUOTA, WARPS
        )

    def expected(source: Any, target: Any, a: Any, b: Any) -> None:
        moved = source[:, a].transpose(0, 1).reshape(-1, LAYERS, HEADS, part)
        _page_head(target)[b // PAGE, b % PAGE] = moved

    return move.launch(operator, expected)


#: Whether it is a latent cache, and how many pages are moved.
DIRECT = [(False, 5), (True, 5), (False, 0)]
READ_ON_HOST = "the operator copies the indices to the host and makes one copy of each run of them"


class _Pages:
    """Whole pages moved by the copy engine; indices name each token, page by page."""

    def __init__(self, pages: int):
        self.pages = [integers((pages,), "int64") for _ in range(2)]
        self.indices = [integers((pages * PAGE,), "int64") for _ in range(2)]

    def fill(self, seed: int, sources: int, targets: int) -> None:
        for i, high in enumerate((sources, targets)):
            redraw_distinct(seed + 100 * i + 100, high, self.pages[i])
            token = torch.arange(PAGE, device=self.pages[i].device)
            self.indices[i].copy_((self.pages[i][:, None] * PAGE + token).flatten())


@case("sgl_kernel::transfer_kv_direct")
@pytest.mark.parametrize("pages", [1, 7, 0])
def test_transfer_kv_direct(pages: int) -> Launch:
    sources = [_pool(SOURCES, 192) for _ in range(LAYERS)]
    targets = [_pool(TARGETS, 192) for _ in range(LAYERS)]
    chosen = _Pages(pages)

    def run() -> object:
        for target in targets:
            target.zero_()
        torch.ops.sgl_kernel.transfer_kv_direct.default(sources, targets, *chosen.indices, PAGE)
        return targets

    def fill(seed: int) -> None:
        redraw_bytes(seed, *sources)
        chosen.fill(seed, SOURCES // PAGE, TARGETS // PAGE)

    def reference() -> object:
        done = [torch.zeros_like(target) for target in targets]
        for source, target in zip(sources, done, strict=True):
            target[chosen.indices[1]] = source[chosen.indices[0]]
        return done

    return Launch(run=run, reference=reference, redraw=fill, tolerance=EXACT, no_graph=READ_ON_HOST, empty=pages == 0)


def _on_a_stream(operator: Any) -> None:
    """On a stream of its own: cudaMemcpyBatchAsync refuses the legacy default stream (CUDA Runtime API, Memory)."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        operator()
    torch.cuda.current_stream().wait_stream(stream)


@case("sgl_kernel::transfer_kv_per_layer_direct_pf_lf")
@pytest.mark.parametrize(("latent", "pages"), DIRECT)
def test_transfer_kv_per_layer_direct_pf_lf(latent: bool, pages: int) -> Launch:
    count = 1 if latent else 2
    shape = (SOURCES // PAGE, LAYERS, PAGE, 192)
    sources, drawn = [_pool(*shape, host=True) for _ in range(count)], [_pool(*shape) for _ in range(count)]
    targets = [_pool(TARGETS, 192) for _ in range(count)]
    chosen = _Pages(pages)

    def run() -> object:
        for target in targets:
            target.zero_()
        _on_a_stream(
            lambda: torch.ops.sgl_kernel.transfer_kv_per_layer_direct_pf_lf.default(
                sources, targets, *chosen.indices, 1, PAGE
            )
        )
        return targets

    def fill(seed: int) -> None:
        redraw_bytes(seed, *drawn)
        for source, values in zip(sources, drawn, strict=True):
            source.copy_(values)
        chosen.fill(seed, SOURCES // PAGE, TARGETS // PAGE)

    def reference() -> object:
        done = [torch.zeros_like(target) for target in targets]
        for source, target in zip(drawn, done, strict=True):
            target[chosen.indices[1]] = source[chosen.pages[0], 1].flatten(0, 1)
        return done

    return Launch(run=run, reference=reference, redraw=fill, tolerance=EXACT, no_graph=READ_ON_HOST, empty=pages == 0)


@case("sgl_kernel::transfer_kv_all_layer_direct_lf_pf")
@pytest.mark.parametrize(("latent", "pages"), DIRECT)
def test_transfer_kv_all_layer_direct_lf_pf(latent: bool, pages: int) -> Launch:
    count = 1 if latent else 2
    sources = [_pool(SOURCES, 192) for _ in range(count * LAYERS)]
    targets = [_pool(TARGETS // PAGE, LAYERS, PAGE, 192, host=True) for _ in range(count)]
    chosen = _Pages(pages)

    def run() -> object:
        for target in targets:
            target.zero_()
        _on_a_stream(
            lambda: torch.ops.sgl_kernel.transfer_kv_all_layer_direct_lf_pf.default(
                sources, targets, *chosen.indices, PAGE
            )
        )
        torch.cuda.synchronize()
        return [target.cuda() for target in targets]

    def fill(seed: int) -> None:
        redraw_bytes(seed, *sources)
        chosen.fill(seed, SOURCES // PAGE, TARGETS // PAGE)

    def reference() -> object:
        done = []
        for i, target in enumerate(targets):
            moved = torch.zeros(target.shape, dtype=target.dtype, device="cuda")
            for layer in range(LAYERS):
                source = sources[i * LAYERS + layer]
                moved[chosen.pages[1], layer] = source.unflatten(0, (-1, PAGE))[chosen.pages[0]]
            done.append(moved)
        return done

    return Launch(run=run, reference=reference, redraw=fill, tolerance=EXACT, no_graph=READ_ON_HOST, empty=pages == 0)
