"""Heads: small layers on top of the encoder, which map hidden states to logits.

N tokens in the batch · B sequences · M masked positions · W width · E width of the token embeddings · V vocabulary.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bothways.model.activations import ACTIVATIONS
from bothways.model.config import EncoderConfig
from bothways.model.dropout import Dropout

HALF = (torch.bfloat16, torch.float16)


def output_layer(layer: nn.Module, x: Tensor) -> Tensor:
    """The last layer before scores or vectors: in evaluation in fp32, even if its weights have 16 bits.

    In 16 bits, scores that differ in the third or fourth digit would be equal.
    """
    if isinstance(layer, nn.Linear) and layer.weight.dtype in HALF and not layer.training:
        bias = None if layer.bias is None else layer.bias.float()
        return F.linear(x.float(), layer.weight.float(), bias)
    out: Tensor = layer(x)
    return out


class Pooler(nn.Module):
    """BERT's pooler: tanh(dense(state of [CLS])). DeBERTa's has dropout before it, and GELU instead of tanh."""

    def __init__(self, config: EncoderConfig, activation: str = "tanh", dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.dense = nn.Linear(config.width, config.width)
        self.activation: Callable[[Tensor], Tensor] = ACTIVATIONS[activation]

    def forward(self, first: Tensor) -> Tensor:
        """(B, W) → (B, W)."""
        return self.activation(self.dense(self.dropout(first)))


class MaskedLMHead(nn.Module):
    """The head of masked language modelling: a hidden layer, then one output for each token of the vocabulary.

    The output matrix is tied to the token embeddings, unless the model has one of its own; the bias is its own.
    """

    def __init__(
        self,
        config: EncoderConfig,
        activation: str = "",
        *,
        dense: bool = True,
        dense_bias: bool = True,
        tied: bool = True,
        bias: bool = True,
    ) -> None:
        """`dense`: whether there is a hidden layer. NeoBERT and EuroBERT have the output matrix alone."""
        super().__init__()
        width = config.table_width
        self.dense = nn.Linear(config.width, width, bias=dense_bias) if dense else None
        self.activation: Callable[[Tensor], Tensor] = ACTIVATIONS[activation or config.activation]
        self.norm = nn.LayerNorm(width, eps=config.norm_eps, bias=config.norm_bias) if dense else None
        self.decoder = None if tied else nn.Linear(width, config.vocab_size, bias=False)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size)) if bias else None

    def forward(self, states: Tensor, embeddings: Tensor) -> Tensor:
        """Hidden states at the masked positions (M, W) and the token embeddings (V, E) → logits (M, V)."""
        x, table = states, embeddings if self.decoder is None else self.decoder.weight
        if self.dense is not None and self.norm is not None:
            x = self.norm(self.activation(self.dense(x)))
        if x.is_cuda and self.bias is not None:
            return _logits_on_gpu(x, table, self.bias)
        return F.linear(x, table, self.bias)


def _logits_on_gpu(x: Tensor, table: Tensor, bias: Tensor) -> Tensor:
    """x · tableᵀ + bias, in a form that saves 3 % of a training step of BERT-Base.

    Tensor cores need rows of a multiple of 16 bytes, so the table is padded: 30,522 tokens are no multiple. The bias
    is one more column of the table, multiplied by a 1 in x: the backward product then gives its gradient too, without
    a sum over all logits.
    """
    size, spare = len(table), -len(table) % 64
    table = F.pad(torch.cat([table, bias[:, None]], 1), (0, 7, 0, spare))
    x = F.pad(torch.cat([x, x.new_ones(len(x), 1)], 1), (0, 7))
    return F.linear(x, table.to(x.dtype))[:, :size]


class LinearHead(nn.Module):
    """Dropout and one linear layer."""

    def __init__(self, config: EncoderConfig, outputs: int, dropout: float) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.linear = nn.Linear(config.width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(…, W) → (…, outputs)."""
        return output_layer(self.linear, self.dropout(x))


class DenseHead(nn.Module):
    """A hidden layer, then a linear layer: RoBERTa's classifier, ELECTRA's discriminator, and others."""

    def __init__(
        self,
        config: EncoderConfig,
        outputs: int,
        activation: str,
        dropouts: tuple[float, float] = (0.0, 0.0),
        *,
        norm: Literal["none", "before", "between"] = "none",
        dense_bias: bool = True,
    ) -> None:
        """`dropouts`: the probabilities before the two layers. `norm`: LayerNorm before the hidden layer (DeBERTa v3)
        or after its activation (ModernBERT)."""
        super().__init__()
        self.before, self.between = (Dropout(p) for p in dropouts)
        self.dense = nn.Linear(config.width, config.width, bias=dense_bias)
        self.activation: Callable[[Tensor], Tensor] = ACTIVATIONS[activation]
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps, bias=config.norm_bias) if norm != "none" else None
        self.norm_first = norm == "before"
        self.linear = nn.Linear(config.width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(…, W) → (…, outputs)."""
        if self.norm is not None and self.norm_first:
            x = self.norm(x)
        x = self.activation(self.dense(self.before(x)))
        if self.norm is not None and not self.norm_first:
            x = self.norm(x)
        return output_layer(self.linear, self.between(x))
