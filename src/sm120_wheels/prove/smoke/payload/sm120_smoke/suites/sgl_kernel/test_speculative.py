"""Speculative decoding: trees of draft tokens built, rebuilt, and verified greedily or by sampling."""

from __future__ import annotations

import random

import pytest

from sm120_smoke.case import EXACT, Launch, case
from sm120_smoke.draw import integers, redraw_integers, tensors
from sm120_smoke.lazy import torch
from sm120_smoke.references import trees
from sm120_smoke.references.sampling import exact_probabilities

FULL, SQUARE, BITS = 0, 1, 2
"""Forms of the mask: rows with the prefix in front, rows of the tree alone, and those as bits."""


@case("sgl_kernel::build_tree_kernel_efficient")
@pytest.mark.parametrize("form", [FULL, SQUARE, BITS])
@pytest.mark.parametrize(
    ("batch", "topk", "depth", "tokens"), [(1, 2, 3, 4), (3, 4, 4, 8), (5, 8, 5, 32), (2, 3, 4, 12)]
)
def test_build_tree_kernel_efficient(form: int, batch: int, topk: int, depth: int, tokens: int) -> Launch:
    lengths = [5 + 3 * i for i in range(batch)]
    verified = torch.tensor(lengths, device="cuda")
    parents, selected = integers((batch, topk * (depth - 1) + 1), "int64"), integers((batch, tokens - 1), "int64")
    prefixes = sum(lengths) * tokens if form == FULL else 0
    bytes_of_row = 1 if tokens <= 8 else 2 if tokens <= 16 else 4
    size = batch * tokens * bytes_of_row if form == BITS else prefixes + batch * tokens * tokens
    mask = torch.zeros((size,), dtype=torch.uint8 if form == BITS else torch.bool, device="cuda")
    positions, index = integers((batch * tokens,), "int64"), integers((batch, tokens), "int64")
    child, sibling = integers((batch, tokens), "int64"), integers((batch, tokens), "int64")
    drafts: list[trees.Draft] = []

    def run() -> object:
        mask.fill_(form != BITS)  # the prefix stays as the caller filled it
        child.fill_(-1)
        sibling.fill_(-1)
        torch.ops.sgl_kernel.build_tree_kernel_efficient.default(
            parents, selected, verified, mask, positions, index, child, sibling, topk, depth, tokens, form
        )
        return mask.view(torch.uint8), positions, index, child, sibling

    def fill(seed: int) -> None:
        source = random.Random(seed)  # noqa: S311 - shapes of trees, no secrets
        drafts[:] = [trees.random_draft(source, topk, depth, tokens) for _ in range(batch)]
        parents.copy_(torch.tensor([draft.parent_list for draft in drafts]))
        selected.copy_(torch.tensor([draft.selected for draft in drafts]))

    def reference() -> object:
        found = [draft.tree for draft in drafts]
        below = trees.masks(found)
        if form == BITS:
            bits = below.int() << torch.arange(tokens, device="cuda")
            words = bits.long().sum(dim=-1)
            shifts = torch.arange(bytes_of_row, device="cuda") * 8
            expected = ((words[..., None] >> shifts) & 255).to(torch.uint8).flatten()
        elif form == SQUARE:
            expected = below.flatten().to(torch.uint8)
        else:
            whole = [
                torch.cat((torch.ones(tokens, length, dtype=torch.bool, device="cuda"), square), dim=1).flatten()
                for length, square in zip(lengths, below, strict=True)
            ]
            expected = torch.cat(whole).to(torch.uint8)
        return expected, trees.positions(found, lengths), *trees.links(found)

    return Launch(run=run, reference=reference, redraw=fill, tolerance=EXACT)


@case("sgl_kernel::reconstruct_indices_from_tree_mask")
@pytest.mark.parametrize(("batch", "tokens"), [(1, 5), (3, 8), (5, 31), (2, 64)])
def test_reconstruct_indices_from_tree_mask(batch: int, tokens: int) -> Launch:
    lengths = [4 + 7 * i for i in range(batch)]
    verified = torch.tensor(lengths, device="cuda")
    mask = torch.zeros((batch * tokens * tokens,), dtype=torch.bool, device="cuda")
    positions, index = integers((batch * tokens,), "int64"), integers((batch, tokens), "int64")
    child, sibling = integers((batch, tokens), "int64"), integers((batch, tokens), "int64")
    drawn: list[trees.Tree] = []

    def run() -> object:
        torch.ops.sgl_kernel.reconstruct_indices_from_tree_mask.default(
            mask, verified, positions, index, child, sibling, batch, tokens
        )
        return positions, index, child, sibling

    def fill(seed: int) -> None:
        drawn[:] = trees.random_trees(seed, batch, tokens)
        mask.copy_(trees.masks(drawn).flatten())

    return Launch(
        run=run,
        reference=lambda: (trees.positions(drawn, lengths), *trees.links(drawn)),
        redraw=fill,
        tolerance=EXACT,
    )


@case("sgl_kernel::verify_tree_greedy")
@pytest.mark.parametrize(("batch", "tokens", "steps"), [(1, 2, 2), (5, 8, 4), (33, 16, 6)])
def test_verify_tree_greedy(batch: int, tokens: int, steps: int) -> Launch:
    words, targets = integers((batch, tokens), "int64"), integers((batch, tokens), "int64")
    index, child, sibling = (integers((batch, tokens), "int64") for _ in range(3))
    predictions, accepted, counts = integers((batch * tokens,)), integers((batch, steps)), integers((batch,))
    drawn: list[trees.Tree] = []

    def run() -> object:
        predictions.fill_(-1)
        accepted.fill_(-1)
        torch.ops.sgl_kernel.verify_tree_greedy.default(
            predictions, accepted, counts, words, index, child, sibling, targets
        )
        return predictions, accepted, counts

    def fill(seed: int) -> None:
        drawn[:] = trees.random_trees(seed, batch, tokens)
        for target, source in zip((index, child, sibling), trees.links(drawn), strict=True):
            target.copy_(source)
        redraw_integers(seed + 100, 0, 3, words, targets)  # few words: many drafts are right

    def reference() -> object:
        drafted, wanted = words.cpu(), targets.cpu()
        paths = [
            trees.walk(tree, steps - 1, lambda above, below, row=row: drafted[row, below] == wanted[row, above])
            for row, tree in enumerate(drawn)
        ]
        last = [int(wanted[row, path[-1]]) for row, path in enumerate(paths)]
        return trees.accepted(paths, last, drafted, tokens, steps)

    return Launch(run=run, reference=reference, redraw=fill, tolerance=EXACT)


@case("sgl_kernel::tree_speculative_sampling_target_only")
@pytest.mark.parametrize(
    ("batch", "tokens", "steps", "vocabulary", "single", "total"),
    [(1, 2, 2, 37, 1.0, 1.0), (5, 8, 4, 128, 1.0, 1.0), (17, 16, 5, 4099, 0.5, 0.75), (3, 6, 4, 32000, 1.0, 1.0)],
)
def test_tree_speculative_sampling_target_only(
    batch: int, tokens: int, steps: int, vocabulary: int, single: float, total: float
) -> Launch:
    """Probabilities are multiples of 2^-20 and the random numbers of 2^-10, so that sums and comparisons are exact."""
    words = integers((batch, tokens), "int64")
    index, child, sibling = (integers((batch, tokens), "int64") for _ in range(3))
    predictions, accepted, counts = integers((batch * tokens,)), integers((batch, steps)), integers((batch,))
    target, drafted = tensors("float32", (batch, tokens, vocabulary), (batch, tokens, vocabulary))
    coins, last_coins = tensors("float32", (batch, tokens), (batch,))
    drawn: list[trees.Tree] = []

    def run() -> object:
        predictions.fill_(-1)
        accepted.fill_(-1)
        drafted.zero_()  # the operator notes in it what it refused
        torch.ops.sgl_kernel.tree_speculative_sampling_target_only.default(
            predictions,
            accepted,
            counts,
            words,
            index,
            child,
            sibling,
            coins,
            last_coins,
            target,
            drafted,
            single,
            total,
            True,
        )
        return predictions, accepted, counts

    def fill(seed: int) -> None:
        drawn[:] = trees.random_trees(seed, batch, tokens)
        for tensor, source in zip((index, child, sibling), trees.links(drawn), strict=True):
            tensor.copy_(source)
        generator = torch.Generator(device="cuda").manual_seed(seed)
        logits = torch.randn(target.shape, generator=generator, device="cuda") * 3.0
        target.copy_(exact_probabilities(logits))
        # Likely words, so that about half of the drafts are accepted, and no word twice among a token's children.
        likely = target.topk(min(tokens, vocabulary), dim=-1).indices
        for row, tree in enumerate(drawn):
            for token in range(tokens):
                for place, below in enumerate(tree.children(token)):
                    words[row, below] = likely[row, token, place]
        for tensor in (coins, last_coins):
            odd = torch.randint(0, 512, tensor.shape, generator=generator, device="cuda") * 2 + 1
            tensor.copy_(odd / 1024.0)

    def reference() -> object:
        return _sampled(drawn, words, coins, last_coins, target, (single, total), steps)

    return Launch(run=run, reference=reference, redraw=fill, tolerance=EXACT)


def _sampled(
    drawn: list[trees.Tree],
    words: object,
    coins: object,
    last_coins: object,
    target: object,
    thresholds: tuple[float, float],
    steps: int,
) -> object:
    """A child is taken where the coin of the last taken token is below the sum of the probabilities tried so far.

    Then the next word is drawn from what is left of the last token's probabilities without the refused words (all of
    them after a full path), by the last coin.
    """
    single, total = thresholds
    drafted, coin, final = words.cpu(), coins.cpu().double(), last_coins.cpu().double()  # type: ignore[attr-defined]
    probabilities = target.double()  # type: ignore[attr-defined]
    paths, last = [], []
    for row, tree in enumerate(drawn):
        path = [0]
        refused: list[int] = []
        while len(path) < steps:
            token, tried, refused, taken = path[-1], 0.0, [], -1
            for child in tree.children(token):
                chance = float(probabilities[row, token, drafted[row, child]])
                tried += chance
                if float(coin[row, token]) <= tried / total or chance >= single:
                    taken = child
                    break
                refused.append(int(drafted[row, child]))
            if taken < 0:
                break
            path.append(taken)
        left = probabilities[row, path[-1]].clone()
        if len(path) < steps:
            left[refused] = 0.0
        sums = left.cumsum(0)
        above = (sums > float(final[row]) * float(sums[-1])).nonzero()
        last.append(int(above[0]) if len(above) else int(left.nonzero()[-1]))
        paths.append(path)
    return trees.accepted(paths, last, drafted, len(drawn[0].parents), steps)


@case("sgl_kernel::segment_packbits")
@pytest.mark.parametrize("lengths", [(1,), (8, 3, 17), (1000, 1, 64, 4099, 7)])
def test_segment_packbits(lengths: tuple[int, ...]) -> Launch:
    starts = torch.tensor([0, *lengths]).cumsum(0).int().cuda()
    sizes = [(length + 7) // 8 for length in lengths]
    packed_starts = torch.tensor([0, *sizes]).cumsum(0).int().cuda()
    bits = torch.zeros((sum(lengths),), dtype=torch.bool, device="cuda")
    drawn, out = integers((sum(lengths),)), integers((sum(sizes),), "uint8")

    def run() -> object:
        stream = torch.cuda.current_stream().cuda_stream
        torch.ops.sgl_kernel.segment_packbits.default(bits, starts, packed_starts, out, len(lengths), stream)
        return out

    def fill(seed: int) -> None:
        redraw_integers(seed, 0, 2, drawn)
        bits.copy_(drawn.bool())

    def reference() -> object:
        packed = []
        for part in bits.split(list(lengths)):
            padded = torch.nn.functional.pad(part.int(), (0, -len(part) % 8)).reshape(-1, 8)
            packed.append((padded << torch.arange(8, device="cuda")).sum(dim=-1))
        return torch.cat(packed).to(torch.uint8)

    return Launch(run=run, reference=reference, redraw=fill, tolerance=EXACT, may_be_zero=lengths == (1,))
