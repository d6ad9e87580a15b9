"""Position encodings: learned absolute, rotary, ALiBi, T5 buckets and disentangled attention.

`PositionTables`, a part of the embeddings, holds the tables that all layers share. `LayerPositions`, a part of each
layer's attention, rotates queries and keys or adds a bias to the attention scores.

N tokens in the batch · S sequences of a grid · L its longest one · H attention heads · D dimensions per head ·
W width · R buckets of relative distances.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bothways.model.attention import AttentionPlan, Bias, GridBias, Pairwise, Take
from bothways.model.batch import Batch
from bothways.model.config import Alibi, Bucketed, Disentangled, EncoderConfig, Learned, Rotary

QueryKey = Callable[[Tensor], tuple[Tensor, Tensor]]
"""The query and key projections of a layer: (R, W) → queries and keys, (R, H, D) each."""


class Table(nn.Embedding):
    """An embedding table."""

    def reset_parameters(self) -> None:
        """Nothing on the meta device: torch would import its compiler, 1.4 of the 4 seconds of loading a model."""
        if not self.weight.is_meta:
            super().reset_parameters()


class PositionTables(nn.Module):
    """The tables that all layers share: absolute positions, relative distances, both or none."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        kind = config.positions
        rows = 0 if isinstance(kind, Rotary | Alibi) else kind.rows
        self.offset, self.skips_padding = 0, False
        if isinstance(kind, Learned):
            self.offset, self.skips_padding = kind.offset, kind.skips_padding
        self.rows = Table(rows, config.table_width) if rows else None
        self.distances = self.norm = None
        if isinstance(kind, Bucketed):
            self.distances = Table(kind.buckets, config.num_heads)
        if isinstance(kind, Disentangled):
            self.distances = Table(2 * kind.span, config.width) if kind.span else None
            self.norm = nn.LayerNorm(config.width, eps=config.norm_eps) if kind.norm else None

    def forward(self, batch: Batch) -> Tensor | None:
        """The absolute position embeddings, added to those of the tokens: (N, W)."""
        if self.rows is None:
            return None
        rows = batch.positions
        if self.skips_padding:
            rows = _rows_without_padding(batch, self.offset)
        elif self.offset:
            rows = rows + self.offset
        embeddings: Tensor = self.rows(rows)
        return embeddings

    def relative(self) -> Tensor:
        """The table of relative distances: embeddings (R, W), or for buckets the scores of each head (R, H)."""
        assert self.distances is not None
        table: Tensor = self.distances.weight
        return table if self.norm is None else self.norm(table)


def _rows_without_padding(batch: Batch, offset: int) -> Tensor:
    """The rows of RoBERTa's table: padding tokens inside a text are not counted, and have the row of their own id."""
    is_real = (batch.ids != offset - 1).long()
    before = is_real.cumsum(0) - is_real  # real tokens before each one, in the whole batch
    own = before - before[batch.first[batch.owners]]
    return torch.where(is_real > 0, own + offset, offset - 1)


class LayerPositions(nn.Module):
    """How the attention of one layer uses positions. This base class does not: absolute positions are in its input."""

    def rotate(self, q: Tensor, k: Tensor, plan: AttentionPlan) -> tuple[Tensor, Tensor]:
        """Queries and keys, rotated by their positions: (N, H, D) each."""
        return q, k

    def bias(self, q: Tensor, k: Tensor, plan: AttentionPlan, project: QueryKey) -> Bias | None:
        """The bias that is added to the attention scores. `project` is the layer's own query and key projection."""
        return None


def make_layer_positions(config: EncoderConfig, is_local: bool) -> LayerPositions:
    """The position encoding of one layer. `is_local`: the layer attends within a window only."""
    match config.positions:
        case Bucketed():
            return BucketedPositions()
        case Rotary():
            return RotaryPositions(config.positions, is_local, config.head_width)
        case Alibi():
            return AlibiPositions(config.num_heads)
        case Disentangled(is_relative=True):
            return DisentangledPositions(config, config.positions)
    return LayerPositions()


# ---------------------------------------------------------------------- rotary


class RotaryPositions(LayerPositions):
    """Rotary position embeddings (RoPE, Su et al. 2021).

    Dimensions i and i + D/2 of each query and key (or 2i and 2i + 1, if `adjacent`) are a point in a plane, rotated by
    position / factor · base^(-2i/D). A score then depends on the distance between its two tokens only.
    """

    def __init__(self, kind: Rotary, is_local: bool, dim: int) -> None:
        super().__init__()
        self.base, self.dim = kind.local_base if is_local else kind.base, dim
        self.factor, self.adjacent = kind.factor, kind.adjacent
        self.dtype = torch.float64 if kind.in_64_bits else torch.float32

    def rotate(self, q: Tensor, k: Tensor, plan: AttentionPlan) -> tuple[Tensor, Tensor]:
        if self.base not in plan.rotations:
            exponents = torch.arange(0, self.dim, 2, dtype=self.dtype, device=q.device) / self.dim
            # Not base ** -x, which is rounded differently: the output would differ by 2e-4 at 900 tokens.
            frequencies = 1.0 / self.base**exponents
            # (N, D/2), not in 16 bits, which cannot tell 8,000 from 8,001.
            angles = plan.batch.positions[:, None].to(self.dtype) * (frequencies / self.factor)
            plan.rotations[self.base] = angles.cos().float()[:, None], angles.sin().float()[:, None]
        cos, sin = plan.rotations[self.base]
        rotate = _rotate_adjacent if self.adjacent else _rotate
        return rotate(q, cos, sin), rotate(k, cos, sin)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        a, b = x.float().chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)
    found = torch.empty_like(x)
    _write_rotated(x.chunk(2, -1), cos, sin, found.chunk(2, -1))
    return found


def _rotate_adjacent(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2).to(x.dtype)
    found = torch.empty_like(x)
    _write_rotated((x[..., ::2], x[..., 1::2]), cos, sin, (found[..., ::2], found[..., 1::2]))
    return found


def _write_rotated(x: Sequence[Tensor], cos: Tensor, sin: Tensor, into: Sequence[Tensor]) -> None:
    """The same with less memory traffic, for inference: nothing is copied to fp32 as a whole."""
    a, b = x
    if a.dtype != torch.float32:  # in half the passes, with one rounding less
        torch.addcmul(a * cos, b, sin, value=-1, out=into[0])
        torch.addcmul(b * cos, a, sin, out=into[1])
        return
    into[0].copy_((a * cos).sub_(b * sin))
    into[1].copy_((b * cos).add_(a * sin))


# ---------------------------------------------------------------------- ALiBi


class AlibiPositions(LayerPositions):
    """Attention with linear biases (Press et al. 2022) in both directions: -slope · |i - j| is added to the scores.

    The slopes of 8 heads are 1/2, 1/4, … 1/256. Numbers of heads between two powers of two take the slopes of the lower
    one, and then every second slope of the higher one.
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads

    def bias(self, q: Tensor, k: Tensor, plan: AttentionPlan, project: QueryKey) -> GridBias:
        return _LinearBias(torch.tensor(alibi_slopes(self.num_heads), device=q.device))


class _LinearBias(GridBias):
    def __init__(self, slopes: Tensor) -> None:
        self.slopes = slopes
        """(H,)."""

    def pairwise(self) -> Pairwise:
        return lambda h, i, j: -self.slopes[h] * (i - j).abs()

    def grid(self, size: int, longest: int, take: Take) -> Tensor:
        place = torch.arange(longest, device=self.slopes.device)
        return (-self.slopes[:, None, None] * (place[:, None] - place).abs())[None]


def alibi_slopes(num_heads: int) -> list[float]:
    """The slope of each head.

    >>> alibi_slopes(6)
    [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]
    """
    lower = 2 ** int(math.log2(num_heads))
    slopes = [2 ** (-8 * (h + 1) / lower) for h in range(lower)]
    finer = [2 ** (-4 * (h + 1) / lower) for h in range(0, 2 * lower, 2)]
    return slopes + finer[: num_heads - lower]


# ---------------------------------------------------------------------- T5 buckets


class BucketedPositions(LayerPositions):
    """The relative position bias of T5 and MPNet: a learned score per head and bucket of distances, for all layers."""

    def bias(self, q: Tensor, k: Tensor, plan: AttentionPlan, project: QueryKey) -> GridBias:
        return _TableBias(plan.relative())


class _TableBias(GridBias):
    def __init__(self, table: Tensor) -> None:
        self.table = table
        """(R, H)."""

    def pairwise(self) -> Pairwise:
        return lambda h, i, j: self.table[t5_bucket(j - i, self.table.shape[0]), h]

    def grid(self, size: int, longest: int, take: Take) -> Tensor:
        distances = torch.arange(2 * longest, device=self.table.device) - (longest - 1)
        scores = self.table.index_select(0, t5_bucket(distances, self.table.shape[0])).T  # (H, distances)
        # Contiguous: a GPU's fused SDPA refuses masks whose last dimension is not.
        return _distances_to_keys(scores[:, None].expand(-1, longest, -1)).contiguous()[None]


def t5_bucket(distance: Tensor, buckets: int, far: int = 128) -> Tensor:
    """The bucket of the distance j - i from query i to key j (Raffel et al. 2020).

    Each direction has half of the buckets. Of these, one half is for single distances, from 0 on; the other half covers
    the distances up to `far` in logarithmic steps.
    """
    half = buckets // 2
    exact = half // 2
    size = distance.abs()
    wide = exact + (torch.log(size.clamp(min=1).float() / exact) / math.log(far / exact) * (half - exact)).long()
    return torch.where(size < exact, size, wide.clamp(max=half - 1)) + half * (distance > 0)


# ---------------------------------------------------------------------- disentangled attention


class DisentangledPositions(LayerPositions):
    """The disentangled attention of DeBERTa (He et al. 2020): content-to-position and position-to-content terms.

        score(i, j) = (q_i · k_j + q_i · K[δ] + k_j · Q[δ]) · scale

    δ is the bucket of the distance i - j. K and Q are the keys and queries of the relative distances: the table of
    distance embeddings, projected by the layer's own query and key matrices (v3) or by separate ones (v1).
    """

    def __init__(self, config: EncoderConfig, kind: Disentangled) -> None:
        super().__init__()
        self.kind, self.scale, self.dropout, self.num_heads = kind, config.scale, config.dropout, config.num_heads
        self.key = self.query = None
        if not kind.shared and "c2p" in kind.terms:
            self.key = nn.Linear(config.width, config.width, bias="key" in config.biases)
        if not kind.shared and "p2c" in kind.terms:
            self.query = nn.Linear(config.width, config.width)

    def bias(self, q: Tensor, k: Tensor, plan: AttentionPlan, project: QueryKey) -> GridBias:
        table = F.dropout(plan.relative(), self.dropout, self.training)
        queries, keys = (
            project(table) if self.kind.shared else (self._split(self.query, table), self._split(self.key, table))
        )
        c2p = (q * self.scale, keys) if "c2p" in self.kind.terms else None
        p2c = (k * self.scale, queries) if "p2c" in self.kind.terms else None
        return _DisentangledBias(self.kind, c2p, p2c)

    def _split(self, linear: nn.Linear | None, table: Tensor) -> Tensor:
        """(R, W) → (R, H, D)."""
        rows: Tensor = table if linear is None else linear(table)
        split: Tensor = rows.unflatten(1, (self.num_heads, -1))
        return split


Pair = tuple[Tensor, Tensor]


class _DisentangledBias(GridBias):
    """c2p: queries of tokens and keys of distances; p2c: keys of tokens and queries of distances.

    Each is a pair of (N, H, D) and (R, H, D).
    """

    def __init__(self, kind: Disentangled, c2p: Pair | None, p2c: Pair | None) -> None:
        self.kind, self.c2p, self.p2c = kind, c2p, p2c

    def pairwise(self) -> Pairwise:
        """The products of every token with every bucket are computed once: (N, H, R)."""
        c2p, p2c = (None if p is None else torch.einsum("nhd,rhd->nhr", *p) for p in (self.c2p, self.p2c))

        def bias(h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            bucket = self._bucket(i - j)
            terms = [scores[index, h, bucket] for scores, index in ((c2p, i), (p2c, j)) if scores is not None]
            return sum(terms[1:], terms[0])

        return bias

    def grid(self, size: int, longest: int, take: Take) -> Tensor:
        # Distances j - i from 1 - L on: 2L of them, rounded up to a multiple of 8, which tensor cores need.
        distances = torch.arange(-(-2 * longest // 8) * 8, device=self._device) - (longest - 1)
        terms = []
        if self.c2p is not None:
            x, table = self.c2p
            terms.append(_distance_scores(take(x), table.index_select(0, self._bucket(-distances)), size))
        if self.p2c is not None:
            x, table = self.p2c
            scores = _distance_scores(take(x), table.index_select(0, self._bucket(distances)), size)
            terms.append(scores.transpose(-1, -2))
        return sum(terms[1:], terms[0])

    @property
    def _device(self) -> torch.device:
        pair = self.c2p or self.p2c
        assert pair is not None
        return pair[0].device

    def _bucket(self, distance: Tensor) -> Tensor:
        """The row of the table for the distance i - j."""
        if self.kind.far:
            distance = log_bucket(distance, self.kind.span, self.kind.far)
        return (distance + self.kind.span).clamp(0, 2 * self.kind.span - 1)


def _distance_scores(x: Tensor, table: Tensor, size: int) -> Tensor:
    """Products of tokens (S · L, H, D) with a table (P, H, D) of the distances 1 - L, 2 - L, … → (S, H, L, L).

    The score at [i, j] is x_i · table[j - i + L - 1].
    """
    products = torch.bmm(x.transpose(0, 1), table.permute(1, 2, 0))  # (H, S · L, P)
    return _distances_to_keys(products.unflatten(1, (size, -1))).transpose(0, 1)


def _distances_to_keys(x: Tensor) -> Tensor:
    """From one column per distance, 1 - L, 2 - L, …, to one column per key: (…, L, P) → (…, L, L).

    The entry for [i, j] is in column j - i + L - 1 of row i. In the flattened rows that is index
    i · (P - 1) + j + L - 1: column j of rows that are one shorter. A view, as the backward pass of a gather is slow.
    """
    longest, width = x.shape[-2:]
    flat = x.flatten(-2).narrow(-1, longest - 1, longest * (width - 1))
    keys: Tensor = flat.unflatten(-1, (longest, width - 1))[..., :longest]
    return keys


def log_bucket(distance: Tensor, buckets: int, far: int) -> Tensor:
    """The signed bucket of a distance (DeBERTa v2).

    Distances up to half of the buckets have one each; those up to `far` share the other half in logarithmic steps.
    """
    mid = buckets // 2
    # Both logarithms in fp32, as in the original: where the quotient is whole, rounding would change the bucket.
    size, farthest = distance.abs().clamp(min=mid).float(), torch.tensor((far - 1) / mid, device=distance.device)
    wide = torch.ceil(torch.log(size / mid) / torch.log(farthest) * (mid - 1)).long() + mid
    return torch.where(distance.abs() <= mid, distance, wide * distance.sign())
