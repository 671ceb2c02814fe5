"""Trees of draft tokens for speculative decoding: random ones, and what the operators should make of them.

In Python, on the host: the trees are small, and each is walked token by token.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from sm120_smoke.lazy import torch


@dataclass(frozen=True, kw_only=True)
class Tree:
    """Parents of the tokens of one draft; token 0 is the root, with parent -1. Parents come before their children."""

    parents: tuple[int, ...]

    def depth(self, token: int) -> int:
        """Steps from the root."""
        return 0 if token == 0 else 1 + self.depth(self.parents[token])

    def line(self, token: int) -> list[int]:
        """The token and all above it."""
        return [token] if token == 0 else [token, *self.line(self.parents[token])]

    def children(self, token: int) -> list[int]:
        """In order of number."""
        return [i for i, parent in enumerate(self.parents) if parent == token]

    def first_child(self, token: int) -> int:
        """-1 where there is none."""
        return min(self.children(token), default=-1)

    def next_sibling(self, token: int) -> int:
        """The next child of the same parent, -1 where there is none."""
        if token == 0:
            return -1
        return min((i for i in self.children(self.parents[token]) if i > token), default=-1)


def random_trees(seed: int, batch: int, tokens: int) -> list[Tree]:
    """Trees of random shape."""
    source = random.Random(seed)  # noqa: S311 - shapes of trees, no secrets
    return [Tree(parents=(-1, *(source.randrange(i) for i in range(1, tokens)))) for _ in range(batch)]


def links(trees: list[Tree]) -> tuple[Any, Any, Any]:
    """Index of each token in the batch, first children and next siblings: ``[batch, tokens]``, int64, on the GPU."""
    tokens = len(trees[0].parents)
    index = torch.arange(len(trees) * tokens, device="cuda").reshape(len(trees), tokens)
    child = [[tree.first_child(i) for i in range(tokens)] for tree in trees]
    sibling = [[tree.next_sibling(i) for i in range(tokens)] for tree in trees]
    return index, torch.tensor(child, device="cuda"), torch.tensor(sibling, device="cuda")


def masks(trees: list[Tree]) -> Any:
    """``[batch, tokens, tokens]``: whether a token (row) stands below, or is, another (column)."""
    tokens = len(trees[0].parents)
    rows = [[[column in tree.line(row) for column in range(tokens)] for row in range(tokens)] for tree in trees]
    return torch.tensor(rows, device="cuda")


def positions(trees: list[Tree], lengths: list[int]) -> Any:
    """The place of each token in its sequence: the prefix's length plus its depth. Flat, int64."""
    found = [
        length + tree.depth(i) for tree, length in zip(trees, lengths, strict=True) for i in range(tree_size(tree))
    ]
    return torch.tensor(found, device="cuda")


def tree_size(tree: Tree) -> int:
    """Tokens, the root included."""
    return len(tree.parents)


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A tree as EAGLE's draft gives it, and the same as :class:`Tree`.

    Candidates are numbered level by level: ``topk`` below the root, then ``topk`` below each of the ``topk`` candidates
    that the last level kept. ``parent_list[1 + j]`` is the j-th kept candidate; candidate c hangs below
    ``parent_list[c // topk]``, or the root where that is 0. ``selected`` are the numbers of the tokens, rising.
    """

    parent_list: tuple[int, ...]
    selected: tuple[int, ...]
    tree: Tree


def random_draft(source: random.Random, topk: int, depth: int, tokens: int) -> Draft:
    """A draft with ``tokens`` tokens, the root included, each with its parent among them."""
    parent_list = [-1, *range(topk)]
    start = topk
    for _ in range(2, depth):
        parent_list.extend(sorted(source.sample(range(start, start + topk * topk), topk)))
        start += topk * topk
    parent_list = parent_list[: topk * (depth - 1) + 1]

    candidates = range(len(parent_list) * topk)
    above = {c: (parent_list[c // topk] if c // topk else -1) for c in candidates}
    chosen: set[int] = set()
    while len(chosen) < tokens - 1:
        open_ones = [c for c in candidates if c not in chosen and (above[c] < 0 or above[c] in chosen)]
        chosen.add(source.choice(open_ones))
    selected = sorted(chosen)
    number = {-1: 0, **{c: i + 1 for i, c in enumerate(selected)}}
    parents = (-1, *(number[above[c]] for c in selected))
    return Draft(parent_list=tuple(parent_list), selected=tuple(selected), tree=Tree(parents=parents))


def walk(tree: Tree, most: int, accepts: Any) -> list[int]:
    """Tokens accepted one below the other, at most ``most``: the first child that ``accepts(parent, child)``."""
    path = [0]
    while len(path) <= most:
        child = tree.first_child(path[-1])
        while child != -1 and not accepts(path[-1], child):
            child = tree.next_sibling(child)
        if child == -1:
            break
        path.append(child)
    return path


def accepted(paths: list[list[int]], last: list[int], words: Any, tokens: int, steps: int) -> tuple[Any, Any, Any]:
    """Predictions, accepted indices and their counts, as the operators lay them out; -1 where they write nothing.

    Each accepted token predicts the next one's word; ``last`` is the word after the last.
    """
    predictions = torch.full((len(paths) * tokens,), -1, dtype=torch.int32)
    indices = torch.full((len(paths), steps), -1, dtype=torch.int32)
    for row, path in enumerate(paths):
        for place, token in enumerate(path):
            indices[row, place] = row * tokens + token
            word = int(words[row, path[place + 1]]) if place + 1 < len(path) else last[row]
            predictions[row * tokens + token] = word
    counts = torch.tensor([len(path) - 1 for path in paths], dtype=torch.int32)
    return predictions.cuda(), indices.cuda(), counts.cuda()
