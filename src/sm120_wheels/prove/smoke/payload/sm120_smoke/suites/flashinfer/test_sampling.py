"""flashinfer's sampling. What is drawn is compared by its frequencies, and by what must never be drawn.

The probability of the r-th most likely of a row falls as ``0.8 ** r``, in an order of its own for each row, so
that float32 sums cannot move the places where top-k, top-p and min-p cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from sm120_smoke.case import EXACT, Launch, Tolerance, case
from sm120_smoke.draw import redraw, tensors
from sm120_smoke.lazy import torch
from sm120_smoke.tolerance import rounding

ROWS, CLASSES = 8192, 509
K, P, MIN_P = 8, 0.9, 0.1
#: How many are kept. top-p: 1 - 0.8**10 = 0.893 < P <= 0.914 = 1 - 0.8**11. min-p: 0.8**10 = 0.107 >= MIN_P.
KEPT = {"top_p": 11, "top_k": K, "min_p": 11, "top_k_top_p": K, "plain": CLASSES}
_SUM = rounding("float32", float32_steps=64, source="float32 sums of a row, one division")


class _Rows:
    """Probabilities of each row, and how likely each of its classes is among the others."""

    def __init__(self, rows: int = ROWS, classes: int = CLASSES) -> None:
        self.probs, self.logits = tensors("float32", *[(rows, classes)] * 2)
        self.rank = torch.empty((rows, classes), dtype=torch.int64, device="cuda")
        falling = torch.pow(torch.tensor(0.8, dtype=torch.float64), torch.arange(classes, dtype=torch.float64)).cuda()
        self.by_rank = falling / falling.sum()
        self.seed, self.offset = (torch.empty(1, dtype=torch.int64, device="cuda") for _ in range(2))

    def redraw(self, seed: int) -> None:
        generator = torch.Generator(device="cuda").manual_seed(seed)
        keys = torch.rand(self.rank.shape, generator=generator, device="cuda")
        self.rank.copy_(keys.argsort(dim=1))
        self.probs.copy_(self.by_rank[self.rank])
        self.logits.copy_(self.rank * math.log(0.8))
        self.seed.fill_(12345 + seed)
        self.offset.fill_(64 * seed)

    def frequencies(self, samples: Any, kept: int) -> list[Any]:
        """How often each rank was drawn (of those that may be), and how often anything else was."""
        given = samples.long()
        inside = (given >= 0) & (given < self.by_rank.numel())  # what is no class at all must not be looked up
        drawn = self.rank.gather(1, torch.where(inside, given, 0).view(-1, 1)).view(-1)
        share = torch.zeros(self.by_rank.shape, dtype=torch.float64, device="cuda")
        share.scatter_add_(0, drawn, inside.double() / drawn.numel())
        return [share[:kept], (share[kept:].sum() + (~inside).double().mean()).view(1)]

    def expected(self, kept: int) -> list[Any]:
        wanted = self.by_rank[:kept] / self.by_rank[:kept].sum()
        return [wanted, torch.zeros(1, dtype=torch.float64, device="cuda")]


def _tolerances(draws: int) -> list[Tolerance]:
    deviation = 0.5 / math.sqrt(draws)
    source = f"six standard deviations of a frequency in {draws} independent draws, at its largest"
    return [Tolerance(absolute=6 * deviation, source=source), EXACT]


Sample = Callable[[Any, _Rows], Any]
SAMPLES: dict[str, tuple[str, Sample]] = {
    "sampling_from_probs": ("plain", lambda s, r: s.sampling_from_probs(r.probs, seed=r.seed, offset=r.offset)),
    "sampling_from_logits": ("plain", lambda s, r: s.sampling_from_logits(r.logits, seed=r.seed, offset=r.offset)),
    "top_p_sampling_from_probs": (
        "top_p",
        lambda s, r: s.top_p_sampling_from_probs(r.probs, P, seed=r.seed, offset=r.offset),
    ),
    "top_k_sampling_from_probs": (
        "top_k",
        lambda s, r: s.top_k_sampling_from_probs(r.probs, K, seed=r.seed, offset=r.offset),
    ),
    "min_p_sampling_from_probs": (
        "min_p",
        lambda s, r: s.min_p_sampling_from_probs(r.probs, MIN_P, seed=r.seed, offset=r.offset),
    ),
    "top_k_top_p_sampling_from_probs": (
        "top_k_top_p",
        lambda s, r: s.top_k_top_p_sampling_from_probs(
            r.probs, K, P, filter_apply_order="joint", seed=r.seed, offset=r.offset
        ),
    ),
}


@case("flashinfer.sampling::{name}")
@pytest.mark.parametrize("name", list(SAMPLES))
def test_sampling(name: str) -> Launch:
    import flashinfer

    rows = _Rows()
    kind, sample = SAMPLES[name]
    kept = KEPT[kind]
    return Launch(
        run=lambda: rows.frequencies(sample(flashinfer.sampling, rows), kept),
        reference=lambda: rows.expected(kept),
        redraw=rows.redraw,
        tolerance=_tolerances(ROWS),
        may_be_zero=False,
    )


@case("flashinfer.sampling::softmax")
@pytest.mark.parametrize("temperature", [1.0, 0.5, "each"])
@pytest.mark.parametrize(("rows", "classes"), [(1, 17), (33, 5003), (2, 151936)])
def test_softmax(temperature: float | str, rows: int, classes: int) -> Launch:
    import flashinfer

    (x,) = tensors("float32", (rows, classes))
    each = torch.linspace(0.5, 2.0, rows, device="cuda") if temperature == "each" else None
    given = each if each is not None else temperature

    def reference() -> Any:
        divided = x.double() / (each.double()[:, None] if each is not None else temperature)
        return torch.softmax(divided, dim=1).float()

    return Launch(
        run=lambda: flashinfer.sampling.softmax(x, temperature=given),
        reference=reference,
        redraw=lambda seed: redraw(seed, x, scale=3.0),
        tolerance=Tolerance(
            relative=2.0**-14,
            absolute=2.0**-24,
            source="ex2.approx of differences up to 50 (2**-22 for each unit), a float32 sum of a row",
        ),
    )


def _masked(rows: _Rows, kept: int) -> Any:
    return torch.where(rows.rank < kept, rows.probs.double(), 0.0)


@case("flashinfer.sampling::{kind}_renorm_probs")
@pytest.mark.parametrize("kind", ["top_p", "top_k"])
@pytest.mark.parametrize(("count", "classes"), [(1, 509), (37, 5003)])
def test_renorm(kind: str, count: int, classes: int) -> Launch:
    import flashinfer

    rows = _Rows(count, classes)
    limit: float | int = P if kind == "top_p" else K

    def reference() -> Any:
        kept = _masked(rows, KEPT[kind])
        return (kept / kept.sum(1, keepdim=True)).float()

    return Launch(
        run=lambda: getattr(flashinfer.sampling, f"{kind}_renorm_probs")(rows.probs, limit),
        reference=reference,
        redraw=rows.redraw,
        tolerance=_SUM,
    )


@case("flashinfer.sampling::top_k_mask_logits")
@pytest.mark.parametrize(("count", "classes"), [(1, 509), (37, 5003)])
def test_top_k_mask_logits(count: int, classes: int) -> Launch:
    import flashinfer

    rows = _Rows(count, classes)
    return Launch(
        run=lambda: flashinfer.sampling.top_k_mask_logits(rows.logits, K),
        reference=lambda: torch.where(rows.rank < K, rows.logits, float("-inf")),
        redraw=rows.redraw,
        tolerance=EXACT,
    )


@case("flashinfer.sampling::chain_speculative_sampling")
@pytest.mark.parametrize(("batch", "tokens", "classes"), [(1, 1, 64), (19, 4, 1031)])
def test_chain_speculative_sampling(batch: int, tokens: int, classes: int) -> Launch:
    """Nothing is left to chance: every second request agrees with its draft, the others with none of it."""
    import flashinfer

    draft, target = tensors("float32", (batch, tokens, classes), (batch, tokens + 1, classes))
    ids, wanted = (torch.empty((batch, n), dtype=torch.int64, device="cuda") for n in (tokens, tokens + 1))
    draft_ids = torch.empty((batch, tokens), dtype=torch.int32, device="cuda")
    agrees = (torch.arange(batch, device="cuda") % 2 == 0)[:, None]
    seed_, offset = (torch.ones(1, dtype=torch.int64, device="cuda") for _ in range(2))

    def draw(seed: int) -> None:
        generator = torch.Generator(device="cuda").manual_seed(seed)
        ids.copy_(torch.randint(0, classes, ids.shape, generator=generator, device="cuda"))
        other = (ids + 1 + torch.randint(0, classes - 2, ids.shape, generator=generator, device="cuda")) % classes
        wanted[:, :tokens].copy_(torch.where(agrees, ids, other))
        wanted[:, tokens].copy_(torch.randint(0, classes, (batch,), generator=generator, device="cuda"))
        draft_ids.copy_(ids)
        draft.copy_(torch.nn.functional.one_hot(ids, classes))
        target.copy_(torch.nn.functional.one_hot(wanted, classes))

    def run() -> list[Any]:
        found, _, emitted = flashinfer.sampling.chain_speculative_sampling(
            draft, draft_ids, target, seed=seed_, offset=offset
        )
        return [found, emitted]

    def reference() -> list[Any]:
        stopped = torch.full_like(wanted, -1)
        stopped[:, 0] = wanted[:, 0]
        found = torch.where(agrees, wanted, stopped)
        return [found.int(), torch.where(agrees[:, 0], tokens, 0).int()]

    return Launch(run=run, reference=reference, redraw=draw, tolerance=EXACT)
