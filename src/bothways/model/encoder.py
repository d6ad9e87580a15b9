"""The Transformer encoder of BERT (Devlin et al. 2018).

N tokens in the batch · B sequences · H attention heads · D dimensions per head · W width (hidden size).

    embeddings   x = LayerNorm(token + segment + position)
    each layer   x = LayerNorm(x + SelfAttention(x))
                 x = LayerNorm(x + FeedForward(x))

The models that came after BERT differ from it in details: each detail is a field of EncoderConfig.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bothways.errors import BothwaysError
from bothways.lazy import fill
from bothways.model.attention import AttentionPlan, Backend, Window, choose, make_plan
from bothways.model.batch import Batch
from bothways.model.blocks import Block, Convolution, Embeddings, make_norm
from bothways.model.config import EncoderConfig

fill()


@dataclass(frozen=True)
class Activations:
    """Intermediate results by layer. Layer 0 is the embeddings, layer n the output of the n-th layer."""

    hidden_states: dict[int, Tensor]
    """(N, W) for each layer."""
    attentions: dict[int, list[Tensor]]
    """For each layer from 1 on, the attention weights of each sequence: (H, length, length)."""
    qkv: dict[int, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict)
    """For each layer from 1 on, the queries, keys and values: (N, H, D) each."""


class Encoder(nn.Module):
    """Maps each token to a contextual vector: every token attends to all tokens of its sequence, on both sides.

    >>> from bothways.model.batch import Batch
    >>> from bothways.model.config import EncoderConfig
    >>> encoder = Encoder(EncoderConfig(vocab_size=200, width=32, layers=2, num_heads=2, ffn_width=64))
    >>> encoder(Batch.pack([[101, 7, 102], [101, 102]])).shape
    torch.Size([5, 32])
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.blocks = nn.ModuleList(
            Block(config, _window(config, n), n > 0 or config.first_norm) for n in range(config.blocks)
        )
        self.convolution = Convolution(config) if config.convolution else None
        self.norm = make_norm(config) if config.final_norm else None
        self.backend: Backend = "auto"
        """The attention backend: see attention.py."""
        self.gradient_checkpointing = False
        """Store only each layer's input for the backward pass and recompute the rest: less memory, more compute."""

    def forward(self, batch: Batch) -> Tensor:
        """The hidden states of the last layer: (N, W)."""
        x, plan = self._embed(batch)
        embedded = x
        for layer in range(1, self.config.layers + 1):
            x = self._apply_layer(layer, x, plan, embedded)
        return x

    def activations(
        self,
        batch: Batch,
        *,
        hidden_states: Collection[int] = (),
        attentions: Collection[int] = (),
        qkv: Collection[int] = (),
    ) -> Activations:
        """Hidden states, attention weights, and queries, keys and values of the given layers.

        Layers above the highest one given are not computed. Attention weights are computed in addition to the normal
        forward pass, so the hidden states are the same with and without them.
        """
        self._check_layers(hidden_states, lowest=0)
        self._check_layers({*attentions, *qkv}, lowest=1)
        x, plan = self._embed(batch)
        found = Activations({0: x} if 0 in hidden_states else {}, {}, {})
        embedded = x
        for layer in range(1, max((0, *hidden_states, *attentions, *qkv)) + 1):
            if layer in attentions:
                found.attentions[layer] = self._block(layer).attentions(x, plan)
            if layer in qkv:
                found.qkv[layer] = self._block(layer).qkv(x, plan)
            x = self._apply_layer(layer, x, plan, embedded)
            if layer in hidden_states:
                found.hidden_states[layer] = x
        return found

    def _embed(self, batch: Batch) -> tuple[Tensor, AttentionPlan]:
        """The embeddings (N, W), and the attention plan that all layers share."""
        x = self.embeddings(batch)
        device = x.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
        backend = choose(
            self.backend,
            device=device,
            dtype=dtype,
            is_even=batch.is_even,
            window=self.config.causal or any(self.config.windows),
            bias=self.config.has_score_bias or batch.attended is not None,
            dropout=self.training and self.config.attention_dropout > 0,
        )
        return x, make_plan(batch, backend, self.embeddings.positions.relative)

    def _block(self, layer: int) -> Block:
        """The block of a layer, counted from 1."""
        block = self.blocks[self.config.layer_map[layer - 1] if self.config.layer_map else layer - 1]
        assert isinstance(block, Block)
        return block

    def _apply_layer(self, layer: int, x: Tensor, plan: AttentionPlan, embedded: Tensor) -> Tensor:
        """The output of a layer, counted from 1. A final norm is part of the last layer."""
        block = self._block(layer)
        if self.gradient_checkpointing and self.training:
            x = checkpoint(block, x, plan, use_reentrant=False)
        else:
            x = block(x, plan)
        if layer == 1 and self.convolution is not None:
            x = self.convolution(embedded, x, plan.batch)
        if layer == self.config.layers and self.norm is not None:
            x = self.norm(x)
        return x

    def _check_layers(self, layers: Collection[int], lowest: int) -> None:
        for layer in layers:
            if not lowest <= layer <= self.config.layers:
                raise BothwaysError(
                    f"there is no layer {layer}: expected {lowest} to {self.config.layers}", "no-such-layer", layer
                )


def _window(config: EncoderConfig, block: int) -> Window | None:
    """The attention window of a block, counted from 0."""
    if config.causal:
        return (-1, 0)
    layer = config.layer_map.index(block) if config.layer_map else block
    reach = config.windows[layer] if config.windows else 0
    return (reach, reach) if reach else None


def initialise(module: nn.Module, std: float, generator: torch.Generator | None = None) -> None:
    """Initialise weights as BERT does: normal, truncated at two standard deviations; biases 0, LayerNorm weights 1.

    All initialisation happens here. The same generator state gives the same weights.
    """
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif isinstance(part, nn.LayerNorm | nn.RMSNorm):
                nn.init.ones_(parameter)
            else:
                _truncated_normal(parameter.data, std, generator)


def _truncated_normal(x: Tensor, std: float, generator: torch.Generator | None) -> None:
    """Values beyond two standard deviations are drawn again. Seven times as fast as nn.init.trunc_normal_."""
    x.normal_(0, std, generator=generator)
    flat = x.view(-1)
    far = (flat.abs() > 2 * std).nonzero()[:, 0]
    while len(far):
        flat[far] = flat.new_empty(len(far)).normal_(0, std, generator=generator)
        far = far[flat[far].abs() > 2 * std]
