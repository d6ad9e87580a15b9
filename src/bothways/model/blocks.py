"""The parts an encoder is made of.

N tokens in the batch · B sequences · H heads · D per head · W width · F feed-forward width.
"""

from collections.abc import Callable

from torch import Tensor, nn

from bothways.model.activations import ACTIVATIONS
from bothways.model.attention import Bias, Plan, Window, attend, maps
from bothways.model.batch import Batch
from bothways.model.config import EncoderConfig
from bothways.model.dropout import Dropout
from bothways.model.positions import LearnedPositions, Positions


class Embeddings(nn.Module):
    """token + segment + position, then norm and dropout."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.segments = nn.Embedding(config.segments, config.width)
        self.positions: Positions = LearnedPositions(config.positions, config.width)
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.dropout = Dropout(config.dropout)

    def forward(self, batch: Batch) -> Tensor:
        """→ (N, W)."""
        x: Tensor = self.tokens(batch.ids) + self.segments(batch.segments)
        placed = self.positions.at_input(batch.positions)
        if placed is not None:
            x = x + placed
        x = self.dropout(self.norm(x))
        return x


class SelfAttention(nn.Module):
    """Every token asks (q) all tokens of its sequence, on both sides, what they hold (k) and takes it (v)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.scale = (config.width // config.heads) ** -0.5
        self.qkv = nn.Linear(config.width, 3 * config.width)  # one product instead of three
        self.out = nn.Linear(config.width, config.width)
        self.dropout = config.attention_dropout
        self.window: Window | None = (-1, 0) if config.causal else None

    def forward(self, x: Tensor, plan: Plan, positions: Positions) -> Tensor:
        """(N, W) → (N, W)."""
        q, k, v, bias = self._project(x, plan.batch, positions)
        dropout = self.dropout if self.training else 0.0
        seen = attend(q, k, v, plan, scale=self.scale, window=self.window, bias=bias, dropout=dropout)
        out: Tensor = self.out(seen.flatten(1))
        return out

    def look(self, x: Tensor, batch: Batch, positions: Positions) -> list[Tensor]:
        """The attention weights, for each sequence (H, its length, its length)."""
        q, k, _, bias = self._project(x, batch, positions)
        return maps(q, k, batch, scale=self.scale, window=self.window, bias=bias)

    def _project(self, x: Tensor, batch: Batch, positions: Positions) -> tuple[Tensor, Tensor, Tensor, Bias | None]:
        q, k, v = self.qkv(x).unflatten(1, (3, self.heads, -1)).unbind(1)  # (N, H, D) each
        q, k = positions.turn(q, k, batch.positions)
        return q, k, v, positions.bias(q, k, batch)


class FeedForward(nn.Module):
    """Each token by itself: widen, bend, narrow."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, config.hidden)
        self.activation: Callable[[Tensor], Tensor] = ACTIVATIONS[config.activation]
        self.down = nn.Linear(config.hidden, config.width)

    def forward(self, x: Tensor) -> Tensor:
        """(N, W) → (N, F) → (N, W)."""
        out: Tensor = self.down(self.activation(self.up(x)))
        return out


class Block(nn.Module):
    """One layer: attention, then feed-forward, each added to its input and normed after (BERT's post-norm)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config)
        self.attention_norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, plan: Plan, positions: Positions) -> Tensor:
        """(N, W) → (N, W)."""
        x = self.attention_norm(x + self.dropout(self.attention(x, plan, positions)))
        x = self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))
        return x

    def look(self, x: Tensor, batch: Batch, positions: Positions) -> list[Tensor]:
        """The attention weights that this layer uses on x."""
        return self.attention.look(x, batch, positions)
