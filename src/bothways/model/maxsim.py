"""Greedy matching of token vectors: the maximum similarity of each token of a text over the tokens of another text.

BERTScore and late interaction (ColBERT) are sums of these maxima. Texts are packed, and pairs of similar lengths are
matched together, so that little is computed for padding and memory does not grow with the number of pairs.

N tokens of all texts · S texts · P pairs · G pairs of a group · A, B tokens of its longest left and right text ·
D dimensions of a vector.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from bothways.errors import BothwaysError

Indices = NDArray[np.int64]
NUMBERS_AT_ONCE = {"cpu": 2**21, "cuda": 2**27}
"""Default budget of a group, by device: its similarities and the vectors that they are computed from."""
_STEPS = 4
"""Lengths are rounded up to one of so many steps between two powers of 2: padding is a quarter of a side at most."""
_SHORTEST = 8
"""Shorter texts are padded to this: groups of very few pairs cost more than the padding."""


@dataclass(frozen=True)
class PackedTexts:
    """The token vectors of S texts, one text after the other."""

    vectors: Tensor
    """(N, D), in any precision. Similarities are computed in fp32."""
    lengths: Indices
    """(S,) tokens of each text."""
    weights: Tensor | None = None
    """(N,) the weight of each token in a sum; None: 1 each."""

    def __post_init__(self) -> None:
        if (total := int(self.lengths.sum())) != len(self.vectors):
            raise BothwaysError(
                f"the lengths add up to {total} tokens, and there are {len(self.vectors)} vectors",
                "length-mismatch",
                (total, len(self.vectors)),
            )

    @classmethod
    def from_cu_seqlens(cls, vectors: Tensor, cu_seqlens: Tensor, weights: Tensor | None = None) -> "PackedTexts":
        """From the ends of the texts, (S + 1,) beginning with 0, as in a packed batch."""
        return cls(vectors, cu_seqlens.long().diff().cpu().numpy(), weights)

    def normalised(self) -> "PackedTexts":
        """With vectors of length 1, in fp32: their products are cosine similarities."""
        return replace(self, vectors=F.normalize(self.vectors.float(), dim=1))

    @cached_property
    def places(self) -> tuple[Tensor, Tensor]:
        """(S,) each, on the device of the vectors: the first token of each text, and its number of tokens."""
        lengths = torch.from_numpy(self.lengths).to(self.vectors.device)
        return lengths.cumsum(0) - lengths, lengths

    def rows(self, texts: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """(G, size) the tokens of these texts, and whether each belongs to its text.

        A text is padded with its own last token. A token that occurs twice changes no maximum, so that nothing needs a
        mask before the maxima are added up.
        """
        starts, lengths = (place[texts].unsqueeze(1) for place in self.places)
        offsets = torch.arange(size, device=starts.device)
        return starts + torch.minimum(offsets, lengths - 1), offsets < lengths

    def sums(self, maxima: Tensor, rows: Tensor, is_own: Tensor) -> Tensor:
        """(G,) the weighted sums of the maxima of texts, (G, size), without their padding."""
        weighted = maxima if self.weights is None else maxima * self.weights[rows]
        return weighted.where(is_own, 0.0).sum(1)


@dataclass(frozen=True)
class Maxima:
    """For each pair, in order, the maximum similarity of each token over the tokens of the other text."""

    left: Tensor
    """One for each token of the left text of each pair."""
    right: Tensor
    """One for each token of the right text of each pair."""


def maxsim(left: PackedTexts, right: PackedTexts, pairs: Indices, *, budget: int | None = None) -> Tensor:
    """The sum over the tokens of a left text of their maximum similarity with the tokens of a right text: (P,).

    `pairs` are numbers of a left and a right text, (P, 2). Late interaction is `maxsim` of queries and documents: one
    query is ranked against all documents by the pairs (0, 0), (0, 1), (0, 2) …. The sum is 0 if either text is empty.

    >>> query = PackedTexts(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), np.array([2]))
    >>> documents = PackedTexts(torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]]), np.array([1, 2]))
    >>> [round(score, 3) for score in maxsim(query, documents, np.array([[0, 0], [0, 1]])).tolist()]
    [1.0, 1.6]
    """
    found = torch.zeros(len(pairs), device=left.vectors.device)
    with torch.inference_mode():
        for group in _groups(left, right, pairs, budget):
            best = torch.cat([part.amax(2) for part in group.similarities()], 1)
            found[group.picked] = left.sums(best, group.left_rows, group.is_left)
    return found


def maxsim_both(left: PackedTexts, right: PackedTexts, pairs: Indices, *, budget: int | None = None) -> Tensor:
    """`maxsim` of each pair from left to right and from right to left: (P, 2). Similarities are computed once."""
    found = torch.zeros(len(pairs), 2, device=left.vectors.device)
    with torch.inference_mode():
        for group in _groups(left, right, pairs, budget):
            of_left, of_right = group.maxima()
            found[group.picked, 0] = left.sums(of_left, group.left_rows, group.is_left)
            found[group.picked, 1] = right.sums(of_right, group.right_rows, group.is_right)
    return found


def max_similarities(left: PackedTexts, right: PackedTexts, pairs: Indices, *, budget: int | None = None) -> Maxima:
    """The maximum similarity of every single token of each pair, both ways. It is 0 where the other text is empty."""
    sides = []
    for texts, numbers in ((left, pairs[:, 0]), (right, pairs[:, 1])):
        lengths = torch.from_numpy(texts.lengths[numbers]).to(left.vectors.device)
        sides.append((torch.zeros(int(lengths.sum()), device=lengths.device), lengths.cumsum(0) - lengths))
    with torch.inference_mode():
        for group in _groups(left, right, pairs, budget):
            for (found, starts), maxima, is_own in zip(sides, group.maxima(), group.own, strict=True):
                places = starts[group.picked].unsqueeze(1) + torch.arange(maxima.shape[1], device=found.device)
                found[places[is_own]] = maxima[is_own]
    return Maxima(sides[0][0], sides[1][0])


@dataclass(frozen=True)
class _Group:
    """Pairs of texts of similar lengths. Rows are tokens of the packed texts, padded: (G, A) and (G, B)."""

    left: PackedTexts
    right: PackedTexts
    picked: Tensor
    """(G,) the numbers of the pairs."""
    left_rows: Tensor
    is_left: Tensor
    """(G, A) whether a row is a token of its text, and no padding."""
    right_rows: Tensor
    is_right: Tensor
    step: int
    """Tokens of left texts that are compared at once."""

    @property
    def own(self) -> tuple[Tensor, Tensor]:
        return self.is_left, self.is_right

    def similarities(self) -> Iterator[Tensor]:
        """The similarities of all left tokens with all right tokens, some left ones at a time: (G, ≤ A, B) in fp32."""
        others = _gathered(self.right, self.right_rows).transpose(1, 2)
        for rows in self.left_rows.split(self.step, 1):
            yield _gathered(self.left, rows) @ others

    def maxima(self) -> tuple[Tensor, Tensor]:
        """The maximum similarities of the left tokens, (G, A), and of the right tokens, (G, B)."""
        of_left, of_right = [], None
        for part in self.similarities():
            of_left.append(part.amax(2))
            best = part.amax(1)
            of_right = best if of_right is None else torch.maximum(of_right, best)
        assert of_right is not None  # no text of a group is empty
        return torch.cat(of_left, 1), of_right


def _gathered(texts: PackedTexts, rows: Tensor) -> Tensor:
    """The vectors of these tokens: (G, size, D) in fp32."""
    return texts.vectors.index_select(0, rows.flatten()).view(*rows.shape, -1).float()


def _groups(left: PackedTexts, right: PackedTexts, pairs: Indices, budget: int | None) -> Iterator[_Group]:
    """The pairs without those of an empty text, in groups of similar lengths that keep to the budget."""
    device, width = left.vectors.device, left.vectors.shape[1]
    budget = budget or NUMBERS_AT_ONCE.get(device.type, NUMBERS_AT_ONCE["cpu"])
    lengths = np.stack([left.lengths[pairs[:, 0]], right.lengths[pairs[:, 1]]], 1)
    for picked in _by_lengths(lengths, width, budget):
        numbers, (a, b) = torch.from_numpy(pairs[picked]).to(device), lengths[picked].max(0).tolist()
        left_rows, is_left = left.rows(numbers[:, 0], a)
        right_rows, is_right = right.rows(numbers[:, 1], b)
        step = max(1, budget // (len(picked) * (b + width)))
        yield _Group(left, right, torch.from_numpy(picked).to(device), left_rows, is_left, right_rows, is_right, step)


def _by_lengths(lengths: Indices, width: int, budget: int) -> Iterator[Indices]:
    """Numbers of pairs whose texts have similar lengths, (P, 2): groups of at most `budget` numbers, or of one pair."""
    rounded = _rounded_up(lengths)
    order = np.lexsort((rounded[:, 1], rounded[:, 0]))
    order = order[lengths[order].min(1) > 0]
    ends = np.flatnonzero((np.diff(rounded[order], axis=0) != 0).any(1)) + 1
    for run in np.split(order, ends):
        if not len(run):
            continue
        a, b = lengths[run].max(0).tolist()
        size = max(1, budget // (a * b + (a + b) * width))
        for first in range(0, len(run), size):
            yield run[first : first + size]


def _rounded_up(lengths: Indices) -> Indices:
    lengths = np.maximum(lengths, _SHORTEST)
    steps = np.maximum(2 ** np.floor(np.log2(lengths)).astype(np.int64) // _STEPS, 1)
    rounded: Indices = -(-lengths // steps) * steps
    return rounded
