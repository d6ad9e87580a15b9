"""The layers of an encoder: embeddings, self-attention, feed-forward network.

N tokens in the batch · B sequences · H attention heads · D dimensions per head · W width · F feed-forward width.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bothways.model.activations import ACTIVATIONS
from bothways.model.attention import AttentionPlan, Bias, GridBias, Pairwise, Window, attend, attention_weights
from bothways.model.batch import Batch
from bothways.model.config import EncoderConfig
from bothways.model.dropout import Dropout
from bothways.model.positions import PositionTables, Table, make_layer_positions


def make_norm(config: EncoderConfig, width: int | None = None) -> nn.LayerNorm | nn.RMSNorm:
    """A LayerNorm or RMSNorm with the eps and the bias setting of this encoder."""
    width = width or config.width
    if config.norm == "rms":
        return nn.RMSNorm(width, eps=config.norm_eps)
    return nn.LayerNorm(width, eps=config.norm_eps, bias=config.norm_bias)


class Embeddings(nn.Module):
    """token + segment + position embeddings, then LayerNorm and dropout.

    If the embeddings are narrower than the layers (ALBERT, ELECTRA), a linear layer projects them to the layers' width.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width = config.table_width
        self.tokens: nn.Embedding = Table(config.vocab_size, width)
        self.segments = Table(config.segments, width) if config.segments else None
        self.tasks = Table(config.tasks, width) if config.tasks else None
        self.positions = PositionTables(config)
        self.norm = (
            make_norm(config, config.width if config.project_first else width) if config.embedding_norm else None
        )
        self.dropout = Dropout(config.dropout)
        self.project_first = config.project_first
        self.project = nn.Linear(width, config.width, bias=not config.project_first) if config.embedding_width else None

    def forward(self, batch: Batch) -> Tensor:
        """→ (N, W)."""
        x: Tensor = self.tokens(batch.ids)
        if self.segments is not None:
            x = x + self.segments(batch.segments)
        position_embeddings = self.positions(batch)
        if position_embeddings is not None:
            x = x + position_embeddings
        if self.tasks is not None:
            x = x + self.tasks.weight[0]
        if self.project is not None and self.project_first:
            x = self.project(x)
        x = self.dropout(x if self.norm is None else self.norm(x))
        if self.project is not None and not self.project_first:
            x = self.project(x)
        return x


class SelfAttention(nn.Module):
    """Multi-head self-attention (Vaswani et al. 2017), bidirectional: a token attends to tokens on both sides.

    SelfAttention(x) = concat(head_1, …, head_H) W_O        head_h = softmax(Q_h K_hᵀ · scale + bias) V_h
    """

    def __init__(self, config: EncoderConfig, window: Window | None) -> None:
        super().__init__()
        self.num_heads, self.scale, self.window = config.num_heads, config.scale, window
        self.kv_heads, self.head_width = config.kv_heads, config.head_width
        # W_Q, W_K and W_V are stacked, so that one matrix product computes all three.
        self.qkv = nn.Linear(config.width, sum(config.qkv_widths), bias="key" in config.biases)
        self.out = nn.Linear(config.width, config.width, bias="out" in config.biases)
        self.dropout = config.attention_dropout
        self.query_bias = self.value_bias = None
        if "query" in config.biases and "key" not in config.biases:
            self.query_bias = nn.Parameter(torch.zeros(config.width))
            self.value_bias = nn.Parameter(torch.zeros(config.qkv_widths[2]))
        self.positions = make_layer_positions(config, is_local=window is not None and not config.causal)

    def forward(self, x: Tensor, plan: AttentionPlan) -> Tensor:
        """(N, W) → (N, W)."""
        q, k, v, bias = self.project(x, plan)
        dropout = self.dropout if self.training else 0.0
        heads = attend(q, k, v, plan, scale=self.scale, window=self.window, bias=bias, dropout=dropout)
        out: Tensor = self.out(heads.flatten(1))
        return out

    def attentions(self, x: Tensor, plan: AttentionPlan) -> list[Tensor]:
        """The attention weights of each sequence: (H, length, length)."""
        q, k, _, bias = self.project(x, plan)
        return attention_weights(q, k, plan.batch, scale=self.scale, window=self.window, bias=bias)

    def project(self, x: Tensor, plan: AttentionPlan) -> tuple[Tensor, Tensor, Tensor, Bias | None]:
        """Queries, keys and values, (N, H, D) each, and the position bias of their attention scores, if any."""
        q, k, v = self._project(x)
        if self.query_bias is not None and self.value_bias is not None:
            q, v = (y + b.unflatten(0, (-1, self.head_width)) for y, b in ((q, self.query_bias), (v, self.value_bias)))
        q, k = self.positions.rotate(q, k, plan)
        if self.kv_heads < self.num_heads:  # grouped-query attention: neighbouring queries share keys and values
            k, v = (y.repeat_interleave(self.num_heads // self.kv_heads, 1) for y in (k, v))
        bias = self.positions.bias(q, k, plan, lambda table: self._project(table)[:2])
        return q, k, v, bias if plan.batch.attended is None else _only_attended(bias, plan.batch.attended)

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heads = self.qkv(x).unflatten(1, (-1, self.head_width))
        if self.kv_heads == self.num_heads:
            q, k, v = heads.unflatten(1, (3, -1)).unbind(1)
        else:
            q, k, v = heads.split([self.num_heads, self.kv_heads, self.kv_heads], 1)
        return q, k, v


def _only_attended(bias: Bias | None, attended: Tensor) -> Pairwise:
    """The bias of attention scores with -inf for keys that no token attends to. attended: (N,)."""
    before = bias.pairwise() if isinstance(bias, GridBias) else bias
    hidden = torch.zeros_like(attended, dtype=torch.float32).masked_fill(~attended, float("-inf"))

    def biased(h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return hidden[j] if before is None else before(h, i, j) + hidden[j]

    return biased


class FeedForward(nn.Module):
    """Position-wise feed-forward network: down(activation(up(x))).

    Gated (GLU, Shazeer 2020): down(activation(a) · b), where a and b are the halves of up(x), or b and a.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.gated = config.gated
        self.up = nn.Linear(config.width, config.ffn_width * (2 if config.gated else 1), bias="up" in config.biases)
        self.activation: Callable[[Tensor], Tensor] = ACTIVATIONS[config.activation]
        self.down = nn.Linear(config.ffn_width, config.width, bias="down" in config.biases)

    def forward(self, x: Tensor) -> Tensor:
        """(N, W) → (N, F) → (N, W)."""
        x = self.up(x)
        if self.gated:
            a, b = x.chunk(2, -1)
            x = self.activation(a) * b if self.gated == "first" else a * self.activation(b)
        else:
            x = self.activation(x)
        out: Tensor = self.down(x)
        return out


class Block(nn.Module):
    """One Transformer layer: self-attention and feed-forward, each with a residual connection and a LayerNorm.

    post-norm (BERT)            x = LayerNorm(x + Sublayer(x))
    pre-norm (ModernBERT)       x = x + Sublayer(LayerNorm(x))
    """

    def __init__(self, config: EncoderConfig, window: Window | None = None, has_attention_norm: bool = True) -> None:
        super().__init__()
        self.attention = SelfAttention(config, window)
        self.attention_norm = make_norm(config) if has_attention_norm else None
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = make_norm(config)
        self.dropout = Dropout(config.dropout)
        self.norm_first = config.norm_first

    def forward(self, x: Tensor, plan: AttentionPlan) -> Tensor:
        """(N, W) → (N, W)."""
        if self.norm_first:
            x = x + self.dropout(self.attention(self._norm_attention(x), plan))
            x = x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        else:
            x = self._norm_attention(x + self.dropout(self.attention(x, plan)))
            x = self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))
        return x

    def attentions(self, x: Tensor, plan: AttentionPlan) -> list[Tensor]:
        """The attention weights of this layer for the input x, for each sequence (H, length, length)."""
        return self.attention.attentions(self._norm_attention(x) if self.norm_first else x, plan)

    def qkv(self, x: Tensor, plan: AttentionPlan) -> tuple[Tensor, Tensor, Tensor]:
        """The queries, keys and values of this layer for the input x: (N, H, D) each."""
        return self.attention.project(self._norm_attention(x) if self.norm_first else x, plan)[:3]

    def _norm_attention(self, x: Tensor) -> Tensor:
        normed: Tensor = x if self.attention_norm is None else self.attention_norm(x)
        return normed


class Convolution(nn.Module):
    """The convolution of DeBERTa v2: over the embeddings, added to the output of the first layer."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.width, config.width, config.convolution))
        self.bias = nn.Parameter(torch.zeros(config.width))
        self.norm = make_norm(config)
        self.dropout = Dropout(config.dropout)
        self.activation: Callable[[Tensor], Tensor] = ACTIVATIONS[config.convolution_activation]

    def forward(self, embedded: Tensor, x: Tensor, batch: Batch) -> Tensor:
        """The embeddings and the output of the first layer, (N, W) each → (N, W).

        Written as a sum over the kernel's offsets, so that the sequences of a packed batch stay separate.
        """
        size, reach = self.weight.shape[-1], (self.weight.shape[-1] - 1) // 2
        token = torch.arange(len(x), device=x.device)
        owner = batch.owners
        convolved = self.bias.expand_as(x)
        for offset, weight in zip(range(-reach, size - reach), self.weight.unbind(-1), strict=True):
            neighbour = (token + offset).clamp(0, len(x) - 1)
            is_inside = (owner[neighbour] == owner) & (neighbour == token + offset)
            convolved = convolved + F.linear(embedded[neighbour] * is_inside[:, None], weight)
        out: Tensor = self.norm(x + self.activation(self.dropout(convolved)))
        return out
