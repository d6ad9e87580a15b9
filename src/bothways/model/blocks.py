"""The parts an encoder is made of.

N tokens in the batch · B sequences · H heads · D per head · W width · F feed-forward width.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bothways.model.activations import ACTIVATIONS
from bothways.model.attention import AttentionPlan, Bias, Window, attend, maps
from bothways.model.batch import Batch
from bothways.model.config import EncoderConfig
from bothways.model.dropout import Dropout
from bothways.model.positions import PositionTables, Table, make_layer_positions


def make_norm(config: EncoderConfig, width: int | None = None) -> nn.LayerNorm:
    """A norm as this encoder has them."""
    return nn.LayerNorm(width or config.width, eps=config.norm_eps, bias=config.norm_bias)


class Embeddings(nn.Module):
    """token + segment + position, then norm and dropout; brought to the layers' width if they have another."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width = config.table_width
        self.tokens: nn.Embedding = Table(config.vocab_size, width)
        self.segments = Table(config.segments, width) if config.segments else None
        self.positions = PositionTables(config)
        self.norm = make_norm(config, config.width if config.project_first else width)
        self.dropout = Dropout(config.dropout)
        self.project_first = config.project_first
        self.project = nn.Linear(width, config.width, bias=not config.project_first) if config.embedding_width else None

    def forward(self, batch: Batch) -> Tensor:
        """→ (N, W)."""
        x: Tensor = self.tokens(batch.ids)
        if self.segments is not None:
            x = x + self.segments(batch.segments)
        rows = self.positions(batch.positions)
        if rows is not None:
            x = x + rows
        if self.project is not None and self.project_first:
            x = self.project(x)
        x = self.dropout(self.norm(x))
        if self.project is not None and not self.project_first:
            x = self.project(x)
        return x


class SelfAttention(nn.Module):
    """Every token's query meets the keys of all tokens of its sequence, on both sides, and takes their values."""

    def __init__(self, config: EncoderConfig, window: Window | None) -> None:
        super().__init__()
        self.num_heads, self.scale, self.window = config.num_heads, config.scale, window
        # One product instead of three.
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=config.biases == "all")
        self.out = nn.Linear(config.width, config.width, bias=config.biases != "none")
        self.dropout = config.attention_dropout
        self.query_bias = self.value_bias = None
        if config.biases == "query-value":
            self.query_bias = nn.Parameter(torch.zeros(config.width))
            self.value_bias = nn.Parameter(torch.zeros(config.width))
        self.positions = make_layer_positions(config, is_local=window is not None and not config.causal)

    def forward(self, x: Tensor, plan: AttentionPlan) -> Tensor:
        """(N, W) → (N, W)."""
        q, k, v, bias = self.project(x, plan)
        dropout = self.dropout if self.training else 0.0
        seen = attend(q, k, v, plan, scale=self.scale, window=self.window, bias=bias, dropout=dropout)
        out: Tensor = self.out(seen.flatten(1))
        return out

    def attentions(self, x: Tensor, plan: AttentionPlan) -> list[Tensor]:
        """The attention weights, for each sequence (H, its length, its length)."""
        q, k, _, bias = self.project(x, plan)
        return maps(q, k, plan.batch, scale=self.scale, window=self.window, bias=bias)

    def project(self, x: Tensor, plan: AttentionPlan) -> tuple[Tensor, Tensor, Tensor, Bias | None]:
        """Queries, keys and values, (N, H, D) each, and what is added to their scores."""
        q, k, v = self._split(x)
        if self.query_bias is not None and self.value_bias is not None:
            q, v = (y + b.unflatten(0, (self.num_heads, -1)) for y, b in ((q, self.query_bias), (v, self.value_bias)))
        q, k = self.positions.rotate(q, k, plan)
        return q, k, v, self.positions.bias(q, k, plan, lambda table: self._split(table)[:2])

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(x).unflatten(1, (3, self.num_heads, -1)).unbind(1)
        return q, k, v


class FeedForward(nn.Module):
    """Each token by itself: widen, bend, narrow."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        biased = config.biases != "none"
        self.gated = config.gated
        self.up = nn.Linear(config.width, config.ffn_width * (2 if config.gated else 1), bias=biased)
        self.activation: Callable[[Tensor], Tensor] = ACTIVATIONS[config.activation]
        self.down = nn.Linear(config.ffn_width, config.width, bias=biased)

    def forward(self, x: Tensor) -> Tensor:
        """(N, W) → (N, F) → (N, W)."""
        x = self.up(x)
        if self.gated:
            bent, gate = x.chunk(2, -1)
            x = self.activation(bent) * gate
        else:
            x = self.activation(x)
        out: Tensor = self.down(x)
        return out


class Block(nn.Module):
    """One layer: attention, then feed-forward, each added to its input; normed after (BERT) or before (ModernBERT)."""

    def __init__(self, config: EncoderConfig, window: Window | None = None, norms_input: bool = True) -> None:
        """`norms_input`: of blocks that norm first, the first has its input normed already, by the embeddings."""
        super().__init__()
        self.attention = SelfAttention(config, window)
        self.attention_norm = make_norm(config) if norms_input or not config.norm_first else None
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = make_norm(config)
        self.dropout = Dropout(config.dropout)
        self.norm_first = config.norm_first

    def forward(self, x: Tensor, plan: AttentionPlan) -> Tensor:
        """(N, W) → (N, W)."""
        if self.norm_first:
            x = x + self.dropout(self.attention(self._normed(x), plan))
            x = x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        else:
            x = self._normed(x + self.dropout(self.attention(x, plan)))
            x = self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))
        return x

    def attentions(self, x: Tensor, plan: AttentionPlan) -> list[Tensor]:
        """The attention weights that this layer uses on x."""
        return self.attention.attentions(self._normed(x) if self.norm_first else x, plan)

    def qkv(self, x: Tensor, plan: AttentionPlan) -> tuple[Tensor, Tensor, Tensor]:
        """The queries, keys and values that this layer makes of x: (N, H, D) each."""
        return self.attention.project(self._normed(x) if self.norm_first else x, plan)[:3]

    def _normed(self, x: Tensor) -> Tensor:
        normed: Tensor = x if self.attention_norm is None else self.attention_norm(x)
        return normed


class Convolution(nn.Module):
    """DeBERTa v2's: neighbouring embeddings, mixed and added to what the first layer gave."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.width, config.width, config.convolution))
        self.bias = nn.Parameter(torch.zeros(config.width))
        self.norm = make_norm(config)
        self.dropout = Dropout(config.dropout)
        self.activation: Callable[[Tensor], Tensor] = ACTIVATIONS[config.convolution_activation]

    def forward(self, embedded: Tensor, x: Tensor, batch: Batch) -> Tensor:
        """The embeddings and the first layer's output, (N, W) each → (N, W). Sequences do not see each other."""
        size, reach = self.weight.shape[-1], (self.weight.shape[-1] - 1) // 2
        place = torch.arange(len(x), device=x.device)
        owner = batch.owners
        mixed = self.bias.expand_as(x)
        for step, weight in zip(range(-reach, size - reach), self.weight.unbind(-1), strict=True):
            there = (place + step).clamp(0, len(x) - 1)
            is_near = (owner[there] == owner) & (there == place + step)
            mixed = mixed + F.linear(embedded[there] * is_near[:, None], weight)
        out: Tensor = self.norm(x + self.activation(self.dropout(mixed)))
        return out
