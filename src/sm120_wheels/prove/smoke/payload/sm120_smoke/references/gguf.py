"""GGUF's block formats: their fields drawn at random, what they stand for, and products with 8-bit activations.

Written from the layouts of ggml's block structures (ggml-common.h). Of the formats with code books (IQ...) those with
the book of 16 numbers are decoded; the others' books (256 to 2048 rows chosen by hand) are not in this repository: of
them only the layout is known, so that two operators can be compared with each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sm120_smoke.draw import redraw_bytes, redraw_uniform
from sm120_smoke.lazy import torch


@dataclass(frozen=True, kw_only=True)
class Format:
    """One block format.

    ``scale`` and ``least`` are offsets of half-precision fields in the block (``least`` -1 where there is none);
    ``span`` is the largest factor of the scale, ``least_span`` of the other, so that values stay around 1.
    """

    number: int
    elements: int
    size: int
    scale: int
    span: int
    decode: Callable[[Any, Any, Any], Any] | None = None
    """None where the code book is not known."""
    least: int = -1
    least_span: int = 1


def _halves(data: Any) -> Any:
    """Low halves of bytes, then high halves, along the last dimension."""
    return torch.cat((data & 15, data >> 4), dim=-1)


def _fifth(data: Any) -> Any:
    """32 bits of four bytes, as 0 or 16."""
    return ((data[..., None] >> torch.arange(8, device=data.device)) & 1).flatten(-2) * 16


def _q4_0(b: Any, d: Any, m: Any) -> Any:
    return (_halves(b[..., 2:18]) - 8) * d


def _q4_1(b: Any, d: Any, m: Any) -> Any:
    return _halves(b[..., 4:20]) * d + m


def _q5_0(b: Any, d: Any, m: Any) -> Any:
    return (_halves(b[..., 6:22]) + _fifth(b[..., 2:6]) - 16) * d


def _q5_1(b: Any, d: Any, m: Any) -> Any:
    return (_halves(b[..., 8:24]) + _fifth(b[..., 4:8])) * d + m


def _signed(data: Any) -> Any:
    return torch.where(data > 127, data - 256, data)


def _q8_0(b: Any, d: Any, m: Any) -> Any:
    return _signed(b[..., 2:34]) * d


def _pairs_of_bits(data: Any) -> Any:
    """``[..., 64]`` bytes as 256 two-bit numbers: for each half, four passes of 32 over the same bytes."""
    shifts = torch.arange(4, device=data.device)[:, None] * 2
    return ((data.unflatten(-1, (2, 1, 32)) >> shifts) & 3).flatten(-3)


def _q2_k(b: Any, d: Any, m: Any) -> Any:
    scales = b[..., :16].repeat_interleave(16, dim=-1)
    return (scales & 15) * _pairs_of_bits(b[..., 16:80]) * d - (scales >> 4) * m


def _q3_k(b: Any, d: Any, m: Any) -> Any:
    shifts = torch.arange(8, device=b.device)[:, None]
    high = ((b[..., None, :32] >> shifts) & 1).flatten(-2)
    low = b[..., 96:108]
    four = torch.cat((low[..., :8] & 15, low[..., :8] >> 4), dim=-1)
    two = ((low[..., None, 8:12] >> (torch.arange(4, device=b.device)[:, None] * 2)) & 3).flatten(-2)
    scales = (four + two * 16 - 32).repeat_interleave(16, dim=-1)
    return scales * (_pairs_of_bits(b[..., 32:96]) - 4 + 4 * high) * d


def _six_bits(data: Any) -> tuple[Any, Any]:
    """Eight scales and eight minima of six bits each in twelve bytes; the last four borrow the first's top bits."""
    first, second, third = data[..., :4], data[..., 4:8], data[..., 8:12]
    scales = torch.cat((first & 63, (third & 15) | ((first >> 6) << 4)), dim=-1)
    minima = torch.cat((second & 63, (third >> 4) | ((second >> 6) << 4)), dim=-1)
    return scales.repeat_interleave(32, dim=-1), minima.repeat_interleave(32, dim=-1)


def _alternating_halves(data: Any) -> Any:
    """128 bytes as 256 numbers: for each 32 bytes the low halves, then the high ones."""
    return _halves(data.unflatten(-1, (4, 32))).flatten(-2)


def _q4_k(b: Any, d: Any, m: Any) -> Any:
    scales, minima = _six_bits(b[..., 4:16])
    return scales * _alternating_halves(b[..., 16:144]) * d - minima * m


def _q5_k(b: Any, d: Any, m: Any) -> Any:
    scales, minima = _six_bits(b[..., 4:16])
    high = ((b[..., None, 16:48] >> torch.arange(8, device=b.device)[:, None]) & 1).flatten(-2)
    return scales * (_alternating_halves(b[..., 48:176]) + 16 * high) * d - minima * m


def _q6_k(b: Any, d: Any, m: Any) -> Any:
    low = b[..., :128].unflatten(-1, (2, 64))
    four = torch.cat((low & 15, low >> 4), dim=-1).flatten(-2)
    scales = _signed(b[..., 192:208]).repeat_interleave(16, dim=-1)
    return scales * (four + _pairs_of_bits(b[..., 128:192]) * 16 - 32) * d


#: The numbers of IQ4's codes (kvalues_iq4nl).
_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def _iq4(data: Any) -> Any:
    return torch.tensor(_IQ4, device=data.device)[_halves(data).long()]


def _iq4_nl(b: Any, d: Any, m: Any) -> Any:
    return _iq4(b[..., 2:18]) * d


def _iq4_xs(b: Any, d: Any, m: Any) -> Any:
    low = torch.stack((b[..., 4:8] & 15, b[..., 4:8] >> 4), dim=-1).flatten(-2)
    shifts = torch.arange(8, device=b.device) * 2
    high = ((b[..., 2:3] + 256 * b[..., 3:4]) >> shifts) & 3
    scales = (low + 16 * high - 32).repeat_interleave(32, dim=-1)
    return scales * _iq4(b[..., 8:136].unflatten(-1, (8, 16))).flatten(-2) * d


FORMATS = {
    "q4_0": Format(number=2, elements=32, size=18, scale=0, span=8, decode=_q4_0),
    "q4_1": Format(number=3, elements=32, size=20, scale=0, span=15, decode=_q4_1, least=2),
    "q5_0": Format(number=6, elements=32, size=22, scale=0, span=16, decode=_q5_0),
    "q5_1": Format(number=7, elements=32, size=24, scale=0, span=31, decode=_q5_1, least=2),
    "q8_0": Format(number=8, elements=32, size=34, scale=0, span=128, decode=_q8_0),
    "q2_k": Format(number=10, elements=256, size=84, scale=80, span=45, decode=_q2_k, least=82, least_span=15),
    "q3_k": Format(number=11, elements=256, size=110, scale=108, span=128, decode=_q3_k),
    "q4_k": Format(number=12, elements=256, size=144, scale=0, span=945, decode=_q4_k, least=2, least_span=63),
    "q5_k": Format(number=13, elements=256, size=176, scale=0, span=1953, decode=_q5_k, least=2, least_span=63),
    "q6_k": Format(number=14, elements=256, size=210, scale=208, span=4096, decode=_q6_k),
    "iq4_nl": Format(number=20, elements=32, size=18, scale=0, span=127, decode=_iq4_nl),
    "iq4_xs": Format(number=23, elements=256, size=136, scale=0, span=4064, decode=_iq4_xs),
}

#: Their code books are not known here. The scale of iq1_m is spread over its block: see :func:`_spread`.
CODE_BOOKS = {
    "iq2_xxs": Format(number=16, elements=256, size=66, scale=0, span=167),
    "iq2_xs": Format(number=17, elements=256, size=74, scale=0, span=167),
    "iq3_xxs": Format(number=18, elements=256, size=98, scale=0, span=481),
    "iq1_s": Format(number=19, elements=256, size=50, scale=0, span=17),
    "iq3_s": Format(number=21, elements=256, size=110, scale=0, span=465),
    "iq2_s": Format(number=22, elements=256, size=82, scale=0, span=167),
    "iq1_m": Format(number=29, elements=256, size=56, scale=-1, span=17),
}
_IQ1_M = 29


def _spread(blocks: Any, field: Any) -> None:
    """iq1_m: four bits of the scale, lowest first, are the high bits of each second of the last eight bytes."""
    bits = field.view(torch.int16).int()
    for place in range(4):
        byte = blocks[..., 49 + 2 * place]
        byte.copy_((byte & 15) + (((bits >> 4 * place) & 15) * 16).to(torch.uint8))


def set_scale(form: Format, data: Any, field: Any) -> None:
    """Give each block of a format of :data:`CODE_BOOKS` its half-precision scale."""
    blocks = data.unflatten(-1, (-1, form.size))
    if form.number == _IQ1_M:
        _spread(blocks, field)
    else:
        blocks[..., form.scale : form.scale + 2] = field[..., None].view(torch.uint8)


def redraw_blocks(seed: int, form: Format, data: Any) -> None:
    """Random blocks into bytes ``[..., bytes of a row]``, their scales so that values lie around 1."""
    redraw_bytes(seed, data)
    blocks = data.unflatten(-1, (-1, form.size))
    for place, span in ((form.scale, form.span), (form.least, form.least_span)):
        if place >= 0:
            field = torch.empty(blocks.shape[:-1], dtype=torch.float16, device="cuda")
            redraw_uniform(seed + place + 1, 0.5 / span, 1.0 / span, field)
            blocks[..., place : place + 2] = field[..., None].view(torch.uint8)


def dequantize(form: Format, data: Any) -> Any:
    """The numbers of bytes ``[..., bytes of a row]``, in float64."""
    blocks = data.unflatten(-1, (-1, form.size))

    def field(place: int) -> Any:
        if place < 0:
            return None
        return blocks[..., place : place + 2].contiguous().view(torch.float16).double()

    if form.decode is None:
        raise NotImplementedError("the code book is not known")
    return form.decode(blocks.int(), field(form.scale), field(form.least)).flatten(-2)


def eight_bits(x: Any) -> Any:
    """Activations as the products take them (Q8_1): 32 at a time, over their largest / 127, the scale kept in half."""
    groups = x.float().unflatten(-1, (-1, 32))
    scale = groups.abs().amax(dim=-1, keepdim=True) / 127
    ratio = groups / scale
    return ((ratio.abs() + 0.5).floor() * ratio.sign() * scale.half().float()).flatten(-2).double()
