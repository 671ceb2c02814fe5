"""A paged cache for a batch of requests, its pages in no order: what several suites write into."""

from __future__ import annotations

from typing import Any

from sm120_smoke.lazy import torch


class Paged:
    """``lengths`` tokens for each request, all of them appended, on pages of ``page_size`` tokens."""

    def __init__(self, lengths: tuple[int, ...], page_size: int) -> None:
        pages = [-(-length // page_size) for length in lengths]
        self.page_size, self.tokens, self.pages = page_size, sum(lengths), sum(pages) + 2  # two are nobody's
        generator = torch.Generator().manual_seed(7)
        order = torch.randperm(self.pages, generator=generator)[: sum(pages)]
        starts = [sum(pages[:i]) for i in range(len(pages) + 1)]
        last = [length - (count - 1) * page_size for length, count in zip(lengths, pages, strict=True)]
        self.indices, self.indptr, self.last_page_len = _int32(order.tolist()), _int32(starts), _int32(last)
        self.batch_indices = _int32([i for i, length in enumerate(lengths) for _ in range(length)])
        self.positions = _int32([p for length in lengths for p in range(length)])
        firsts = [starts[i] for i, n in enumerate(lengths) for _ in range(n)]
        page = torch.tensor(firsts, dtype=torch.int64) + self._page_of_position()
        self._page = order[page].cuda()
        self._slot = self.positions.long() % page_size

    def _page_of_position(self) -> Any:
        return self.positions.cpu().long() // self.page_size

    def put(self, cache: Any, rows: Any, *, layout: str = "NHD") -> Any:
        """A copy of a cache with the tokens' rows in their places."""
        copy = cache.clone()
        places = copy.transpose(1, 2) if layout == "HND" else copy
        # Bytes, so that what the cache held before is copied whatever it was.
        if copy.element_size() == 1:
            places.view(torch.uint8)[self._page, self._slot] = rows.to(copy.dtype).view(torch.uint8)
        else:
            places[self._page, self._slot] = rows.to(copy.dtype)
        return copy


def _int32(values: list[int]) -> Any:
    return torch.tensor(values, dtype=torch.int32, device="cuda")
