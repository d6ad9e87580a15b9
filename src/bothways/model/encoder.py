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
from bothways.model.attention import Backend, Plan, Window, choose, make_plan
from bothways.model.batch import Batch
from bothways.model.blocks import Block, Convolution, Embeddings, make_norm
from bothways.model.config import EncoderConfig


@dataclass(frozen=True)
class Look:
    """What was seen inside: layer 0 is the embeddings, layer n the output of the n-th block."""

    hidden: dict[int, Tensor]
    """By layer, (N, W)."""
    maps: dict[int, list[Tensor]]
    """By layer from 1 on, the attention weights of each sequence: (H, its length, its length)."""
    vectors: dict[int, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict)
    """By layer from 1 on, queries, keys and values: (N, H, D) each."""


class Encoder(nn.Module):
    """Tokens in, one vector for each token out, every token having seen all of its sequence.

    >>> from bothways.model.batch import Batch
    >>> from bothways.model.config import EncoderConfig
    >>> encoder = Encoder(EncoderConfig(vocabulary=200, width=32, layers=2, heads=2, hidden=64))
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
        self.recompute = False
        """Activation checkpointing: keep only each layer's input for the backward pass, and compute it again."""

    def forward(self, batch: Batch) -> Tensor:
        """The last layer's states: (N, W)."""
        x, plan = self._start(batch)
        embedded = x
        for layer in range(1, self.config.layers + 1):
            x = self._through(layer, x, plan, embedded)
        return x

    def decode(self, batch: Batch, places: Tensor) -> Tensor:
        """DeBERTa's enhanced mask decoder: the states before the last layer, where each token stands (N, W) added to
        what it asks with, through the last layer twice. (N, W)."""
        x, plan = self._start(batch)
        embedded = x
        for layer in range(1, self.config.layers):
            x = self._through(layer, x, plan, embedded)
        asks = x + places
        for _ in range(2):
            asks = self._block(self.config.layers)(x, plan, self.embeddings.positions, asks)
        return asks if self.norm is None else self.norm(asks)

    def look(
        self, batch: Batch, hidden: Collection[int] = (), maps: Collection[int] = (), vectors: Collection[int] = ()
    ) -> Look:
        """Hidden states, attention maps and their vectors of the layers asked for; later layers are not computed.

        A map is computed beside the usual pass, for its layer alone: asking for it changes no state.
        """
        self._check_layers(hidden, lowest=0)
        self._check_layers({*maps, *vectors}, lowest=1)
        x, plan = self._start(batch)
        states = {0: x} if 0 in hidden else {}
        seen, projected, embedded = {}, {}, x
        for layer in range(1, max((0, *hidden, *maps, *vectors)) + 1):
            if layer in maps:
                seen[layer] = self._block(layer).look(x, plan, self.embeddings.positions)
            if layer in vectors:
                projected[layer] = self._block(layer).vectors(x, plan, self.embeddings.positions)
            x = self._through(layer, x, plan, embedded)
            if layer in hidden:
                states[layer] = x
        return Look(states, seen, projected)

    def _start(self, batch: Batch) -> tuple[Tensor, Plan]:
        x = self.embeddings(batch)
        kind = x.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        backend = choose(
            self.backend,
            device=kind,
            dtype=dtype,
            is_even=batch.is_even,
            window=self.config.causal or any(self.config.windows),
            bias=self.embeddings.positions.has_bias,
            dropout=self.training and self.config.attention_dropout > 0,
        )
        return x, make_plan(batch, backend)

    def _block(self, layer: int) -> Block:
        """The block of a layer, counted from 1."""
        block = self.blocks[self.config.order[layer - 1] if self.config.order else layer - 1]
        assert isinstance(block, Block)
        return block

    def _through(self, layer: int, x: Tensor, plan: Plan, embedded: Tensor) -> Tensor:
        """What a layer, counted from 1, makes of x; the last one with the norm at the end."""
        block, positions = self._block(layer), self.embeddings.positions
        if self.recompute and self.training:
            x = checkpoint(block, x, plan, positions, use_reentrant=False)
        else:
            x = block(x, plan, positions)
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
    layer = config.order.index(block) if config.order else block
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
