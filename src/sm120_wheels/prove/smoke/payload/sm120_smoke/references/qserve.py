"""QServe's layouts (arXiv 2405.04532, 5.2): weights in the order in which a warp's matrix instruction loads them."""

from __future__ import annotations

from typing import Any

from sm120_smoke.lazy import torch


def pack(weights: Any) -> Any:
    """4-bit numbers ``[columns, depth]`` as int8 ``[columns, depth / 2]``.

    A tile has 32 columns and 32 of the depth. Column 16 a + 8 b + c and depth 16 d + 4 e + f of a tile go to its byte
    (((c 4 + e) 2 + d) 2 + b) 4 + f; a chooses the half: low for 0, high for 1.
    """
    columns, depth = weights.shape
    tile = weights.reshape(columns // 32, 2, 2, 8, depth // 32, 2, 4, 4)
    # column tile, depth tile, c, e, d, b, f, a
    ordered = tile.permute(0, 4, 3, 6, 5, 2, 7, 1)
    byte = ordered[..., 0] | (ordered[..., 1] << 4)
    return torch.where(byte > 127, byte - 256, byte).to(torch.int8).reshape(columns, depth // 2)


def lay_out(values: Any) -> Any:
    """Numbers of groups ``[columns, groups]`` as ``[groups, columns]``, 32 columns as 0, 8, 16, 24, 1, 9, ..."""
    groups = values.t()
    return groups.unflatten(1, (-1, 4, 8)).transpose(-2, -1).reshape(groups.shape)
