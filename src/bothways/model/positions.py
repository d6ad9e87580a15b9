"""How a model learns the order of its tokens.

Tables that all layers share live in `PositionTables`, a part of the embeddings. What a layer does with positions,
and the projections it does it with, live in that layer's own `LayerPositions`.

N tokens in the batch · S sequences of a grid, L its longest · H heads · D per head · W width · R buckets of distances.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bothways.model.attention import AttentionPlan, Bias, GridBias, Pairwise, Take
from bothways.model.config import Bucketed, Disentangled, EncoderConfig, Learned, Rotary

QueryKey = Callable[[Tensor], tuple[Tensor, Tensor]]
"""A layer's own projection: (R, W) → queries and keys, (R, H, D) each."""


class Table(nn.Embedding):
    """An embedding table: a learned row for each token, position, and so on."""

    def reset_parameters(self) -> None:
        """On the meta device there is nothing to draw, and torch loads its compiler for it: 1.4 of 4 seconds."""
        if not self.weight.is_meta:
            super().reset_parameters()


class PositionTables(nn.Module):
    """The learned tables that all layers share: absolute positions, relative distances, both or none."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        kind = config.positions
        rows = 0 if isinstance(kind, Rotary) else kind.rows
        self.offset = kind.offset if isinstance(kind, Learned) else 0
        self.rows = Table(rows, config.table_width) if rows else None
        self.distances = self.norm = None
        if isinstance(kind, Bucketed):
            self.distances = Table(kind.buckets, config.num_heads)
        if isinstance(kind, Disentangled):
            self.distances = Table(2 * kind.span, config.width)
            self.norm = nn.LayerNorm(config.width, eps=config.norm_eps) if kind.norm else None

    def forward(self, positions: Tensor) -> Tensor | None:
        """Added to the token embeddings: (N,) → (N, W)."""
        if self.rows is None:
            return None
        rows: Tensor = self.rows(positions + self.offset if self.offset else positions)
        return rows

    def relative(self) -> Tensor:
        """The table of relative distances: (R, W), or (R, H) if it holds the scores themselves."""
        assert self.distances is not None
        table: Tensor = self.distances.weight
        return table if self.norm is None else self.norm(table)


class LayerPositions(nn.Module):
    """What one layer does with positions: nothing, unless a subclass says otherwise."""

    def rotate(self, q: Tensor, k: Tensor, plan: AttentionPlan) -> tuple[Tensor, Tensor]:
        """Queries and keys, rotated by their positions: (N, H, D) each."""
        return q, k

    def bias(self, q: Tensor, k: Tensor, plan: AttentionPlan, project: QueryKey) -> Bias | None:
        """What is added to the attention scores."""
        return None


def make_layer_positions(config: EncoderConfig, is_local: bool) -> LayerPositions:
    """The kind that a config names. `is_local`: the layer sees a window only."""
    match config.positions:
        case Bucketed():
            return BucketedPositions()
        case Rotary(base=base, local_base=local_base):
            return RotaryPositions(local_base if is_local else base, config.width // config.num_heads)
        case Disentangled():
            return DisentangledPositions(config, config.positions)
    return LayerPositions()


# ---------------------------------------------------------------------- rotary


class RotaryPositions(LayerPositions):
    """Su et al. 2021: the halves of each query and key as points in planes, rotated by position · base^(-2i/D)."""

    def __init__(self, base: float, dim: int) -> None:
        super().__init__()
        self.base, self.dim = base, dim

    def rotate(self, q: Tensor, k: Tensor, plan: AttentionPlan) -> tuple[Tensor, Tensor]:
        if self.base not in plan.rotations:
            speeds = self.base ** -(torch.arange(0, self.dim, 2, dtype=torch.float32, device=q.device) / self.dim)
            angles = plan.batch.positions[:, None].float() * speeds  # (N, D/2), in fp32: 8,000 must differ from 8,001
            plan.rotations[self.base] = angles.cos()[:, None], angles.sin()[:, None]
        cos, sin = plan.rotations[self.base]
        return _rotated(q, cos, sin), _rotated(k, cos, sin)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


# ---------------------------------------------------------------------- buckets of distances


class BucketedPositions(LayerPositions):
    """MPNet's: T5's buckets of distances, one table of scores for all layers."""

    def bias(self, q: Tensor, k: Tensor, plan: AttentionPlan, project: QueryKey) -> GridBias:
        return _TableBias(plan.relative())


class _TableBias(GridBias):
    def __init__(self, table: Tensor) -> None:
        self.table = table
        """(R, H)."""

    def pairwise(self) -> Pairwise:
        return lambda h, i, j: self.table[t5_bucket(j - i, self.table.shape[0]), h]

    def grid(self, size: int, longest: int, take: Take) -> Tensor:
        ahead = torch.arange(2 * longest, device=self.table.device) - (longest - 1)
        each = self.table.index_select(0, t5_bucket(ahead, self.table.shape[0])).T  # (H, distances)
        # Keys side by side in memory: a GPU's fused SDPA refuses other masks.
        return _shifted(each[:, None].expand(-1, longest, -1)).contiguous()[None]


def t5_bucket(ahead: Tensor, buckets: int, far: int = 128) -> Tensor:
    """Which bucket a distance is in: half of them for each direction, near ones exact, far ones ever wider."""
    half = buckets // 2
    exact = half // 2
    distance = ahead.abs()
    wide = exact + (torch.log(distance.clamp(min=1).float() / exact) / math.log(far / exact) * (half - exact)).long()
    return torch.where(distance < exact, distance, wide.clamp(max=half - 1)) + half * (ahead > 0)


# ---------------------------------------------------------------------- disentangled


class DisentangledPositions(LayerPositions):
    """DeBERTa's: a query meets the key of its distance to a token, and a key the query of that distance.

        score(i, j) = (q_i · k_j + q_i · K[δ] + k_j · Q[δ]) · scale        δ the bucket of i - j

    K and Q are the table of distances, projected by this layer: by the layer's own query and key matrices (v3), or by
    matrices of their own (v1).
    """

    def __init__(self, config: EncoderConfig, kind: Disentangled) -> None:
        super().__init__()
        self.kind, self.scale, self.dropout, self.num_heads = kind, config.scale, config.dropout, config.num_heads
        self.key = self.query = None
        if not kind.shared and "c2p" in kind.terms:
            self.key = nn.Linear(config.width, config.width, bias=config.biases == "all")
        if not kind.shared and "p2c" in kind.terms:
            self.query = nn.Linear(config.width, config.width)

    def bias(self, q: Tensor, k: Tensor, plan: AttentionPlan, project: QueryKey) -> GridBias:
        table = F.dropout(plan.relative(), self.dropout, self.training)
        queries, keys = (
            project(table) if self.kind.shared else (self._split(self.query, table), self._split(self.key, table))
        )
        to_place = (q * self.scale, keys) if "c2p" in self.kind.terms else None
        from_place = (k * self.scale, queries) if "p2c" in self.kind.terms else None
        return _DisentangledBias(self.kind, to_place, from_place)

    def _split(self, linear: nn.Linear | None, table: Tensor) -> Tensor:
        """(R, W) → (R, H, D)."""
        rows: Tensor = table if linear is None else linear(table)
        split: Tensor = rows.unflatten(1, (self.num_heads, -1))
        return split


Pair = tuple[Tensor, Tensor]


class _DisentangledBias(GridBias):
    """Queries and the keys of distances, keys and the queries of distances: (N, H, D) and (R, H, D) each."""

    def __init__(self, kind: Disentangled, to_place: Pair | None, from_place: Pair | None) -> None:
        self.kind, self.to_place, self.from_place = kind, to_place, from_place

    def pairwise(self) -> Pairwise:
        """What each token makes of every bucket of distances is worked out once: (N, H, R)."""
        to, of = (None if p is None else torch.einsum("nhd,rhd->nhr", *p) for p in (self.to_place, self.from_place))

        def bias(h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            bucket = self._bucket(i - j)
            terms = [scores[index, h, bucket] for scores, index in ((to, i), (of, j)) if scores is not None]
            return sum(terms[1:], terms[0])

        return bias

    def grid(self, size: int, longest: int, take: Take) -> Tensor:
        # A multiple of 8 distances from 1 - L up to L and more: what a GPU's fast products want.
        ahead = torch.arange(-(-2 * longest // 8) * 8, device=self._device) - (longest - 1)
        found = []
        if self.to_place is not None:
            x, table = self.to_place
            found.append(_skewed(take(x), table.index_select(0, self._bucket(-ahead)), size))
        if self.from_place is not None:
            x, table = self.from_place
            found.append(_skewed(take(x), table.index_select(0, self._bucket(ahead)), size).transpose(-1, -2))
        return sum(found[1:], found[0])

    @property
    def _device(self) -> torch.device:
        some = self.to_place or self.from_place
        assert some is not None
        return some[0].device

    def _bucket(self, behind: Tensor) -> Tensor:
        if self.kind.far:
            behind = log_bucket(behind, self.kind.span, self.kind.far)
        return (behind + self.kind.span).clamp(0, 2 * self.kind.span - 1)


def _skewed(x: Tensor, table: Tensor, size: int) -> Tensor:
    """Each token with each other: x (S · L, H, D), and a table (P, H, D) of the distances from 1 - L on → (S, H, L, L).

    At [i, j] stands x_i · table[j - i + L - 1].
    """
    products = torch.bmm(x.transpose(0, 1), table.permute(1, 2, 0))  # (H, S · L, P)
    return _shifted(products.unflatten(1, (size, -1))).transpose(0, 1)


def _shifted(x: Tensor) -> Tensor:
    """From columns that count distances from 1 - L on to columns that count keys: (…, L, P) → (…, L, L).

    What belongs at [i, j] is in column j - i + L - 1. With the rows end to end that is place i · (P - 1) + j + L - 1:
    column j of rows that are one shorter. So no gather, whose backward would add up one by one.
    """
    longest, width = x.shape[-2:]
    flat = x.flatten(-2).narrow(-1, longest - 1, longest * (width - 1))
    shorter: Tensor = flat.unflatten(-1, (longest, width - 1))[..., :longest]
    return shorter


def log_bucket(behind: Tensor, buckets: int, far: int) -> Tensor:
    """Distances below half the buckets are their own; those up to `far` share the other half, ever wider."""
    mid = buckets // 2
    # In fp32 on both sides of the division: where the quotient is whole, a rounding would move a bucket.
    distance, farthest = behind.abs().clamp(min=mid).float(), torch.tensor((far - 1) / mid, device=behind.device)
    wide = torch.ceil(torch.log(distance / mid) / torch.log(farthest) * (mid - 1)).long() + mid
    return torch.where(behind.abs() <= mid, behind, wide * behind.sign())
