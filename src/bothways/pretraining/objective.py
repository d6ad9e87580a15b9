"""The contract of an objective: it changes what the model reads, and computes losses on the model's output.

Objectives combine: each one changes the batch after those before it. One file in objectives/ for each.
N tokens · B sequences · M predicted tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from bothways.model.batch import Batch
from bothways.model.config import EncoderConfig, ModelConfig
from bothways.model.encoder import Activations
from bothways.model.model import Model
from bothways.pretraining.sampler import RawSequences, SamplingKind
from bothways.pretraining.select import Selection
from bothways.pretraining.shards import Numbers
from bothways.text.tokenizer import Tokenizer


class ModelPart(Protocol):
    """The `[model]` part of a recipe."""

    @property
    def init(self) -> str: ...
    @property
    def family(self) -> str: ...
    @property
    def causal(self) -> bool: ...


class Recipe(Protocol):
    """The parts of a recipe that an objective may read."""

    @property
    def objectives(self) -> tuple[str, ...]: ...
    @property
    def settings(self) -> dict[str, Any]: ...
    @property
    def model(self) -> ModelPart: ...


@dataclass(frozen=True)
class Capacity:
    """The most that one batch can hold. With static shapes, every batch is padded to it."""

    tokens: int
    sequences: int
    length: int
    even: bool = False
    """Every sequence has the full length, so real and padding sequences together are always `sequences`."""

    @property
    def rows(self) -> int:
        """Number of sequences with padding: enough to hold every padding token, however few are real."""
        return self.sequences if self.even else self.sequences + -(-self.tokens // self.length)


@dataclass(frozen=True)
class Target:
    """An input of an objective's loss: one number for each predicted token or sequence."""

    values: Numbers
    most: int
    """The largest number of values: static shapes are padded to it."""
    filler: int
    """The padding value; no loss reads it."""


@dataclass
class BatchBuilder:
    """A batch that objectives are still changing."""

    rows: RawSequences
    ids: Numbers
    """(N,) what the model will read."""
    targets: dict[str, Target] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    """Number of terms of each loss."""
    selection: Selection | None = None


@dataclass(frozen=True)
class MaskingVocabulary:
    """The ids that masking needs."""

    mask: int
    ordinary: Numbers
    """Every id of a word or a subword piece: random replacements are drawn from these."""

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "MaskingVocabulary | None":
        """None if the vocabulary has no mask token."""
        if tokenizer.mask is None:
            return None
        ordinary = sorted(set(range(tokenizer.size)) - tokenizer.wordless_ids)
        return cls(tokenizer.id(tokenizer.mask), np.array(ordinary))


@dataclass(frozen=True)
class LossTerm:
    """One loss over a batch: the sum of its terms; for accuracy also logits and labels, if any."""

    loss: Tensor
    logits: Tensor = field(default_factory=lambda: torch.tensor(0.0))
    labels: Tensor = field(default_factory=lambda: torch.tensor(0))

    @property
    def correct(self) -> Tensor:
        """Number of correct predictions; nan without labels."""
        if not self.labels.ndim:
            return torch.full_like(self.loss, torch.nan)
        return (self.logits.argmax(-1) == self.labels).sum()


Terms = dict[str, LossTerm]
"""By name; each has a count in `BatchBuilder.counts` and a weight in `Objective.loss_weights`."""
Weights = dict[str, Tensor]


@dataclass(frozen=True)
class NoSettings:
    """An objective without settings."""


class Objective:
    """Base class: a subclass overrides what it needs; the defaults do nothing."""

    name: ClassVar[str]
    Settings: ClassVar[type] = NoSettings
    """A frozen dataclass: the part of a recipe that has the objective's name."""
    stands_alone: ClassVar[bool] = False
    """Whether it can train a left-to-right model or a LoRA adapter. Other objectives cannot."""
    requires: ClassVar[tuple[str, ...]] = ()
    """Other objectives that must be in the recipe."""
    excludes: ClassVar[tuple[str, ...]] = ()
    """Other objectives that must not be in the recipe."""
    sampling: ClassVar[SamplingKind | None] = None
    """How text becomes sequences, if this objective decides it."""
    heads: tuple[str, ...] = ()
    """The heads of the model that it trains."""
    short: float = 0.0
    """Share of the sequences with a random shorter target length."""
    static: int = 0
    """Number of mask sets that take turns; 0: new masks in every epoch."""
    scales_others: float = 1.0
    """Factor for the loss weights of all other objectives."""
    qkv_layers: tuple[int, ...] = ()
    """Layers of the model whose queries, keys and values its losses read."""
    tallies: int = 0
    """Length of the vector that `tally` returns."""
    frozen: Model | None = None
    """A model that is not trained but follows the trained one to its device."""
    wraps: ClassVar[str] = ""
    """The name of another objective that this one runs itself."""

    # ------------------------------------------------------------------ the recipe

    @classmethod
    def is_on(cls, recipe: Recipe) -> bool:
        """Whether a recipe uses it."""
        return cls.name in recipe.objectives

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        """Raise BothwaysError for a recipe that it cannot work with."""

    @classmethod
    def resolve(cls, recipe: Recipe) -> Any:
        """Its settings, completed from the files beside model.init."""
        return recipe.settings[cls.name]

    @classmethod
    def make(cls, recipe: Recipe, tokenizer: Tokenizer, others: Mapping[str, "Objective"]) -> "Objective":
        """The objective of a recipe; `others` are those made before it."""
        return cls()

    @property
    def loss_weights(self) -> dict[str, float]:
        """The weight of each of its losses, by name."""
        return {self.name: 1.0}

    # ------------------------------------------------------------------ the model

    def attach(self, model: Model) -> nn.Module | None:
        """Called once with the model to train. Returns a module to train beside it, which is initialised afterwards."""
        return None

    def start(self, model: Model, part: nn.Module | None) -> None:
        """Called after `part` is initialised: to share weights with the model, or to load some."""

    # ------------------------------------------------------------------ data

    def prepare(
        self, builder: BatchBuilder, capacity: Capacity, rate: float | None, predicted: Numbers | None = None
    ) -> None:
        """Change the batch's ids and add targets and counts. Runs in numpy on the CPU, prefetched.

        `rate` is the masking rate of this phase, if it differs from the objective's own. `predicted`: mask exactly
        these tokens instead of a random choice.
        """

    def max_predictions(self, capacity: Capacity, rate: float | None) -> int | None:
        """The largest number of predicted tokens in one batch; None if it predicts no tokens."""
        return None

    # ------------------------------------------------------------------ losses

    def before(
        self, part: nn.Module | None, batch: Batch, targets: dict[str, Tensor], is_training: bool
    ) -> tuple[Batch, dict[str, Tensor], Terms]:
        """What the model reads instead of the batch, and losses that are known before it runs."""
        return batch, targets, {}

    def losses(
        self, model: Model, part: nn.Module | None, states: Tensor, seen: Activations, batch: Batch,
        targets: dict[str, Tensor],
    ) -> Terms:  # fmt: skip
        """The losses on the last hidden states (N, W). `seen` holds queries, keys and values of `qkv_layers`."""
        raise NotImplementedError

    def tally(self, terms: Terms) -> Tensor:
        """(tallies,) what evaluation sums up beside losses and correct predictions."""
        return torch.empty(0)

    def rates(self, tally: Sequence[float], counts: Mapping[str, float]) -> dict[str, float]:
        """Scores by name, from the summed tally and the losses' counts."""
        return {}

    def flops(self, shape: EncoderConfig, length: int, rate: float | None) -> float:
        """Floating-point operations of a training step per token, beside those of the model's layers."""
        return 0.0

    # ------------------------------------------------------------------ folders

    def folder_config(self, config: ModelConfig) -> ModelConfig:
        """The config that the model is saved with."""
        return config

    def to_folder(self, own: Weights, parts: Weights) -> None:
        """Move weights that the model folder cannot hold from `own` to `parts`."""

    def from_folder(self, own: Weights, parts: Weights) -> None:
        """The reverse of `to_folder`."""

    def other_models(self, part: nn.Module | None, own: Weights, parts: Weights) -> dict[str, Model]:
        """Models to save beside the model, by folder name."""
        return {}
