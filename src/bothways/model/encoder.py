"""The encoder, whole.

N tokens in the batch · B sequences · H heads · W width.

    embeddings = norm(token + segment + position)
    each layer   x = norm(x + attention(x))
                 x = norm(x + feed_forward(x))

Its successors differ in details, each a field of EncoderConfig.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bothways.errors import BothwaysError
from bothways.model.attention import AttentionPlan, Backend, Window, choose, make_plan
from bothways.model.batch import Batch
from bothways.model.blocks import Block, Convolution, Embeddings, make_norm
from bothways.model.config import EncoderConfig


@dataclass(frozen=True)
class Activations:
    """What was computed inside: layer 0 is the embeddings, layer n the output of the n-th block."""

    hidden_states: dict[int, Tensor]
    """By layer, (N, W)."""
    attentions: dict[int, list[Tensor]]
    """By layer from 1 on, the attention weights of each sequence: (H, its length, its length)."""
    qkv: dict[int, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict)
    """By layer from 1 on, queries, keys and values: (N, H, D) each."""


class Encoder(nn.Module):
    """Tokens in, one vector for each token out, every token having seen all of its sequence.

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
        self.blocks = nn.ModuleList(Block(config, _window(config, n), n > 0) for n in range(config.blocks))
        self.convolution = Convolution(config) if config.convolution else None
        self.norm = make_norm(config) if config.norm_first else None
        self.backend: Backend = "auto"
        """Which attention computes: see attention.py."""
        self.gradient_checkpointing = False
        """Keep only each layer's input for the backward pass, and compute the rest again: less memory, more work."""

    def forward(self, batch: Batch) -> Tensor:
        """The last layer's states: (N, W)."""
        x, plan = self._start(batch)
        embedded = x
        for layer in range(1, self.config.layers + 1):
            x = self._through(layer, x, plan, embedded)
        return x

    def activations(
        self,
        batch: Batch,
        *,
        hidden_states: Collection[int] = (),
        attentions: Collection[int] = (),
        qkv: Collection[int] = (),
    ) -> Activations:
        """Hidden states, attention weights, and queries, keys and values of the layers asked for.

        Later layers are not computed. Attention weights are computed beside the usual pass, for their layer alone:
        asking for them changes no state.
        """
        self._check_layers(hidden_states, lowest=0)
        self._check_layers({*attentions, *qkv}, lowest=1)
        x, plan = self._start(batch)
        found = Activations({0: x} if 0 in hidden_states else {}, {}, {})
        embedded = x
        for layer in range(1, max((0, *hidden_states, *attentions, *qkv)) + 1):
            if layer in attentions:
                found.attentions[layer] = self._block(layer).attentions(x, plan)
            if layer in qkv:
                found.qkv[layer] = self._block(layer).qkv(x, plan)
            x = self._through(layer, x, plan, embedded)
            if layer in hidden_states:
                found.hidden_states[layer] = x
        return found

    def _start(self, batch: Batch) -> tuple[Tensor, AttentionPlan]:
        x = self.embeddings(batch)
        kind = x.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        backend = choose(
            self.backend,
            device=kind,
            dtype=dtype,
            is_even=batch.is_even,
            window=self.config.causal or any(self.config.windows),
            bias=self.config.has_score_bias,
            dropout=self.training and self.config.attention_dropout > 0,
        )
        return x, make_plan(batch, backend, self.embeddings.positions.relative)

    def _block(self, layer: int) -> Block:
        """The block of a layer, counted from 1."""
        block = self.blocks[self.config.layer_map[layer - 1] if self.config.layer_map else layer - 1]
        assert isinstance(block, Block)
        return block

    def _through(self, layer: int, x: Tensor, plan: AttentionPlan, embedded: Tensor) -> Tensor:
        """What a layer, counted from 1, makes of x; the last one with the norm at the end."""
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

    def _check_layers(self, asked: Collection[int], lowest: int) -> None:
        for layer in asked:
            if not lowest <= layer <= self.config.layers:
                raise BothwaysError(f"there is no layer {layer}: this model has {lowest} to {self.config.layers}")


def _window(config: EncoderConfig, block: int) -> Window | None:
    if config.causal:
        return (-1, 0)
    layer = config.layer_map.index(block) if config.layer_map else block
    reach = config.windows[layer] if config.windows else 0
    return (reach, reach) if reach else None


def initialise(module: nn.Module, std: float, generator: torch.Generator | None = None) -> None:
    """Fresh weights as BERT drew them: normal, cut at two standard deviations; biases 0, norms 1.

    The one place where weights are made. The draw is a function of the generator alone.
    """
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif isinstance(part, nn.LayerNorm):
                nn.init.ones_(parameter)
            else:
                _draw(parameter.data, std, generator)


def _draw(x: Tensor, std: float, generator: torch.Generator | None) -> None:
    """Normal numbers; those beyond two standard deviations are drawn again. Seven times as fast as trunc_normal_."""
    x.normal_(0, std, generator=generator)
    flat = x.view(-1)
    far = (flat.abs() > 2 * std).nonzero()[:, 0]
    while len(far):
        flat[far] = flat.new_empty(len(far)).normal_(0, std, generator=generator)
        far = far[flat[far].abs() > 2 * std]
