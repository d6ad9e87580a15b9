"""The seam where a model learns the order of its tokens.

N tokens in the batch · S sequences of a grid, L its longest · H heads · D per head · W width · R buckets of distances.
"""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bothways.model.attention import Bias, GridBias, Plan
from bothways.model.config import Bucketed, Disentangled, EncoderConfig, Learned, Rotary

if TYPE_CHECKING:
    from bothways.model.blocks import SelfAttention


class Positions(nn.Module):
    """A kind of position overrides the hooks it needs; the encoder calls all three."""

    has_bias = False
    """Whether `bias` gives one: not every attention backend can add it."""

    def at_input(self, positions: Tensor) -> Tensor | None:
        """Added to the token embeddings: (N,) → (N, W)."""
        return None

    def turn(self, q: Tensor, k: Tensor, plan: Plan, is_local: bool) -> tuple[Tensor, Tensor]:
        """Queries and keys, turned by their positions: (N, H, D) each."""
        return q, k

    def bias(self, q: Tensor, k: Tensor, layer: "SelfAttention") -> Bias | None:
        """What is added to the attention scores in this layer."""
        return None


def make_positions(config: EncoderConfig) -> Positions:
    """The kind that a config names."""
    match config.positions:
        case Bucketed():
            return BucketedPositions(config.positions, config.table_width, config.heads)
        case Learned():
            return LearnedPositions(config.positions, config.table_width)
        case Rotary():
            return RotaryPositions(config.positions, config.width // config.heads)
        case Disentangled():
            return DisentangledPositions(config, config.positions)


class LearnedPositions(Positions):
    """BERT's: one learned row for each place, added at the input."""

    def __init__(self, config: Learned, width: int) -> None:
        super().__init__()
        self.rows = nn.Embedding(config.rows, width)
        self.offset = config.offset

    def at_input(self, positions: Tensor) -> Tensor:
        rows: Tensor = self.rows(positions + self.offset if self.offset else positions)
        return rows


# ---------------------------------------------------------------------- rotary


class RotaryPositions(Positions):
    """Su et al. 2021: the halves of each query and key as points in planes, turned by position · base^(-2i/D)."""

    def __init__(self, config: Rotary, dim: int) -> None:
        super().__init__()
        self.config, self.dim = config, dim

    def turn(self, q: Tensor, k: Tensor, plan: Plan, is_local: bool) -> tuple[Tensor, Tensor]:
        base = self.config.local_base if is_local else self.config.base
        if base not in plan.turns:
            speeds = base ** -(torch.arange(0, self.dim, 2, dtype=torch.float32, device=q.device) / self.dim)
            angles = plan.batch.positions[:, None].float() * speeds  # (N, D/2), in fp32: 8,000 must differ from 8,001
            plan.turns[base] = angles.cos()[:, None], angles.sin()[:, None]
        cos, sin = plan.turns[base]
        return _turned(q, cos, sin), _turned(k, cos, sin)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


# ---------------------------------------------------------------------- buckets of distances


class BucketedPositions(LearnedPositions):
    """MPNet's: learned rows at the input, and T5's buckets, one table for all layers."""

    has_bias = True

    def __init__(self, config: Bucketed, width: int, heads: int) -> None:
        super().__init__(config, width)
        self.distances = nn.Embedding(config.buckets, heads)

    def bias(self, q: Tensor, k: Tensor, layer: "SelfAttention") -> Bias:
        return _TableBias(self.distances.weight)


class _TableBias(GridBias):
    def __init__(self, table: Tensor) -> None:
        self.table = table
        """(R, H)."""

    def __call__(self, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self.table[t5_bucket(j - i, self.table.shape[0]), h]

    def grid(self, rows: Tensor) -> Tensor:
        place = torch.arange(rows.shape[1], device=rows.device)
        # The table on its side, so that keys lie side by side in memory: a GPU's fused SDPA refuses other masks.
        return self.table.T[:, t5_bucket(place[None, :] - place[:, None], self.table.shape[0])][None]


def t5_bucket(ahead: Tensor, buckets: int, far: int = 128) -> Tensor:
    """Which bucket a distance is in: half of them for each direction, near ones exact, far ones ever wider."""
    half = buckets // 2
    exact = half // 2
    distance = ahead.abs()
    wide = exact + (torch.log(distance.clamp(min=1).float() / exact) / math.log(far / exact) * (half - exact)).long()
    return torch.where(distance < exact, distance, wide.clamp(max=half - 1)) + half * (ahead > 0)


# ---------------------------------------------------------------------- disentangled


class DisentangledPositions(Positions):
    """DeBERTa's: a query meets the key of its distance to a token, and a key the query of that distance.

        score(i, j) = (q_i · k_j + q_i · K[δ] + k_j · Q[δ]) · scale        δ the bucket of i - j

    K and Q are the table of distances, projected by each layer.
    """

    has_bias = True

    def __init__(self, config: EncoderConfig, kind: Disentangled) -> None:
        super().__init__()
        self.kind, self.scale, self.dropout = kind, config.scale, config.dropout
        self.rows = nn.Embedding(kind.rows, config.table_width) if kind.rows else None
        self.distances = nn.Embedding(2 * kind.span, config.width)
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps) if kind.norm else None

    def at_input(self, positions: Tensor) -> Tensor | None:
        return None if self.rows is None else self.rows(positions)

    def bias(self, q: Tensor, k: Tensor, layer: "SelfAttention") -> Bias:
        table = self.distances.weight if self.norm is None else self.norm(self.distances.weight)
        table = F.dropout(table, self.dropout, self.training)
        keys, queries = layer.distances(table)  # (R, H, D) each
        to_place = torch.einsum("nhd,rhd->nhr", q * self.scale, keys) if "c2p" in self.kind.terms else None
        from_place = torch.einsum("nhd,rhd->nhr", k * self.scale, queries) if "p2c" in self.kind.terms else None
        return _DisentangledBias(self.kind, to_place, from_place)


class _DisentangledBias(GridBias):
    """What each token's query, and each token's key, makes of every bucket of distances: (N, H, R)."""

    def __init__(self, kind: Disentangled, to_place: Tensor | None, from_place: Tensor | None) -> None:
        self.kind, self.to_place, self.from_place = kind, to_place, from_place

    def __call__(self, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        bucket = self._bucket(i - j)
        terms = [to[index, h, bucket] for to, index in ((self.to_place, i), (self.from_place, j)) if to is not None]
        return sum(terms[1:], terms[0])

    def grid(self, rows: Tensor) -> Tensor:
        place = torch.arange(rows.shape[1], device=rows.device)
        bucket = self._bucket(place[:, None] - place[None, :])  # query × key
        found = []
        if self.to_place is not None:
            found.append(_gathered(self.to_place, rows, bucket))
        if self.from_place is not None:
            found.append(_gathered(self.from_place, rows, bucket.T).transpose(-1, -2))
        return sum(found[1:], found[0])

    def _bucket(self, behind: Tensor) -> Tensor:
        if self.kind.far:
            behind = log_bucket(behind, self.kind.span, self.kind.far)
        return (behind + self.kind.span).clamp(0, 2 * self.kind.span - 1)


def _gathered(scores: Tensor, rows: Tensor, bucket: Tensor) -> Tensor:
    """(N, H, R) → for the tokens of a grid (S, H, L, L). A gather: its backward is much faster than an index's."""
    picked = scores[rows].transpose(1, 2)  # (S, H, L, R)
    return picked.gather(-1, bucket.expand(*picked.shape[:2], *bucket.shape))


def log_bucket(behind: Tensor, buckets: int, far: int) -> Tensor:
    """Distances below half the buckets are their own; those up to `far` share the other half, ever wider."""
    mid = buckets // 2
    # In fp32 on both sides of the division: where the quotient is whole, a rounding would move a bucket.
    distance, farthest = behind.abs().clamp(min=mid).float(), torch.tensor((far - 1) / mid, device=behind.device)
    wide = torch.ceil(torch.log(distance / mid) / torch.log(farthest) * (mid - 1)).long() + mid
    return torch.where(behind.abs() <= mid, behind, wide * behind.sign())
