"""flashinfer's fused operators for diffusion transformers, which its norm module holds."""

from __future__ import annotations

from typing import Any

import pytest

from sm120_smoke.case import EXACT, Launch, Tolerance, case
from sm120_smoke.draw import dtype_of, redraw, tensors
from sm120_smoke.lazy import torch
from sm120_smoke.references import flashinfer_math as math
from sm120_smoke.tolerance import UNIT, rounding

EPS = 1e-6
#: The only size the kernel is written for (WAN 2.2 5B).
HIDDEN = 3072
MODES = ["gate_residual_layernorm_gamma_beta", "gate_residual_layernorm_scale_shift", "residual_layernorm_scale_shift"]
_SOURCE = "one rounding to bfloat16; float32 sums over 3072, E[x^2] - E[x]^2, rsqrt, three products"


class _Dit:
    """The inputs of one of the three forms; gate, scale and shift are parts of one tensor, six rows apart."""

    def __init__(self, mode: str, batch: int, rows: int, *, biased: bool) -> None:
        self.x, self.residual = tensors("bfloat16", *[(batch, rows, HIDDEN)] * 2)
        (self.together,) = tensors("bfloat16", (batch, rows, 6, HIDDEN))
        self.gate, self.scale, self.shift = (self.together.chunk(6, dim=2)[i].squeeze(2) for i in (0, 3, 5))
        self.vectors = dict(zip(("gate", "scale", "shift"), tensors("float32", *[(HIDDEN,)] * 3), strict=True))
        self.gamma, self.beta = tensors("float32", (HIDDEN,), (HIDDEN,))
        self.gated, self.scaled, self.biased = mode.startswith("gate"), mode.endswith("scale_shift"), biased

    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        given = [self.residual, self.gate] if self.gated else []
        given += [self.scale, self.shift] if self.scaled else [self.gamma, self.beta]
        used = [*(["gate"] if self.gated else []), *(["scale", "shift"] if self.scaled else [])]
        named = {f"{name}_bias": self.vectors[name] for name in used} if self.biased else {}
        return [self.x, *given], named if self.gated else {**named, "residual": self.residual}

    def _with_bias(self, name: str) -> Any:
        value = getattr(self, name).double()
        return value + self.vectors[name].double() if self.biased else value

    def expected(self) -> list[Any]:
        added = self.x.double() * (self._with_bias("gate") if self.gated else 1.0)
        total = self.residual.double() + added
        ones, zeros = torch.ones(HIDDEN, device="cuda"), torch.zeros(HIDDEN, device="cuda")
        if self.scaled:
            normed = math.layernorm(total, ones, zeros, EPS)
            normed = normed * (1.0 + self._with_bias("scale")) + self._with_bias("shift")
        else:
            normed = math.layernorm(total, self.gamma, self.beta, EPS)
        return [total.to(torch.bfloat16), normed.to(torch.bfloat16)]

    def redraw(self, seed: int) -> None:
        redraw(seed, self.x, self.residual, self.together, self.gamma, self.beta, *self.vectors.values())


def _launch(mode: str, inputs: _Dit) -> Launch:
    import flashinfer

    given, named = inputs.arguments()
    function = getattr(flashinfer.norm, f"fused_dit_{mode}")
    return Launch(
        run=lambda: list(function(*given, epsilon=EPS, **named)),
        reference=inputs.expected,
        redraw=inputs.redraw,
        tolerance=rounding("bfloat16", roundings=2, float32_steps=64, scale=16.0, source=_SOURCE),
    )


@case("flashinfer.norm::fused_dit_layernorm")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("batch", "rows"), [(1, 1), (3, 7), (2, 1027)])
def test_fused_dit_layernorm(mode: str, batch: int, rows: int) -> Launch:
    return _launch(mode, _Dit(mode, batch, rows, biased=True))


@case("flashinfer.norm::fused_dit_layernorm")
def test_fused_dit_layernorm_without_biases() -> Launch:
    """They are optional by the documentation."""
    return _launch(MODES[1], _Dit(MODES[1], 1, 7, biased=False))


@case("flashinfer.norm::fused_qk_rmsnorm_rope")
@pytest.mark.parametrize("output", ["bfloat16", "float8_e4m3fn"])
@pytest.mark.parametrize("interleave", [True, False])
@pytest.mark.parametrize(
    ("dim", "channels", "heads", "normed", "yarn"),
    [
        (128, (44, 42, 42), (3, 3, 3), True, (1.0, 0.0, 0.0, 1.0)),
        (64, (16, 24, 24), (24, 8, 5), True, (4.0, 2.0, 9.0, 1.1)),
        (256, (64, 96, 96), (1, 1, 2), False, (1.0, 0.0, 0.0, 1.0)),
    ],
)
def test_fused_qk_rmsnorm_rope(
    output: str,
    interleave: bool,
    dim: int,
    channels: tuple[int, int, int],
    heads: tuple[int, int, int],
    normed: bool,
    yarn: tuple[float, float, float, float],
) -> Launch:
    """The norm is over all heads of a token together. ``yarn`` is factor, low, high and the gain of sine and cosine."""
    import flashinfer

    grid, batch, base = (3, 5, 7), 2, 10000.0
    count, tokens = sum(heads), grid[0] * grid[1] * grid[2]
    qkv, q_weight, k_weight = tensors("bfloat16", (batch, tokens, count * dim), (heads[0] * dim,), (heads[1] * dim,))
    outs = [torch.empty(batch, tokens, n, dim, dtype=dtype_of(output), device="cuda") for n in heads]
    eight, gain, v_gain = output != "bfloat16", 0.5, 0.75
    angle = math.rope3d(grid, channels, base, yarn[:3]).repeat(batch, 1)
    cosine, sine = angle.cos() * yarn[3], angle.sin() * yarn[3]

    def run() -> list[Any]:
        flashinfer.norm.fused_qk_rmsnorm_rope(
            qkv,
            q_weight,
            k_weight,
            **dict(zip(("ppf", "pph", "ppw"), grid, strict=True)),
            **dict(zip((f"num_{axis}_channels" for axis in ("frame", "height", "width")), channels, strict=True)),
            **dict(zip((f"num_heads_{part}" for part in "qkv"), heads, strict=True)),
            head_dim=dim,
            eps=EPS,
            base=base,
            interleave=interleave,
            **dict(zip(("factor", "low", "high", "attention_factor"), yarn, strict=True)),
            is_qk_norm=normed,
            output_fp8=eight,
            output_quant_scale=gain,
            v_quant_scale=v_gain,
            **dict(zip(("q_out", "k_out", "v_out"), outs, strict=True)),
        )
        return outs

    def turned(part: Any, weight: Any) -> Any:
        wide = math.rmsnorm(part, weight, EPS) if normed else part.double()
        if normed and not eight:
            wide = wide.to(torch.bfloat16).double()  # as the operators that it fuses would give it
        rows = math.rotate(wide.reshape(batch * tokens, -1, dim), cosine, sine, interleave=interleave)
        return rows.reshape(batch, tokens, -1, dim)

    def reference() -> list[Any]:
        q, k, v = qkv.split([n * dim for n in heads], dim=-1)
        parts = [turned(q, q_weight), turned(k, k_weight)]
        values = v.reshape(batch, tokens, -1, dim)
        if eight:
            fp8 = dtype_of(output)
            return [*(math.to_fp8(part * gain, fp8) for part in parts), math.to_fp8(values.double() * v_gain, fp8)]
        return [*(part.to(torch.bfloat16) for part in parts), values]

    return Launch(
        run=run,
        reference=reference,
        redraw=lambda seed: redraw(seed, qkv, q_weight, k_weight),
        tolerance=_turned_tolerance(output),
    )


def _turned_tolerance(output: str) -> list[Tolerance]:
    if output == "bfloat16":
        source = "roundings to bfloat16; __sincosf within 2**-18 for angles up to 7; share: the norm rounds on"
        turned = Tolerance(relative=2 * UNIT[output], absolute=2.0**-14, share=0.002, source=source)
        return [turned, turned, EXACT]
    source = "float32 noise beside a tie rounds to the neighbour: one step of e4m3, on few elements"
    eight = Tolerance(relative=2.5 * UNIT[output], absolute=2.0**-8, source=source)
    return [eight, eight, EXACT]
