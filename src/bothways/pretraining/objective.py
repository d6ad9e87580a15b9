"""The contract of an objective: it changes what the model reads, and says how wrong the model was.

Objectives add up: each gets the draft that those before it made. One file in objectives/ each.
N tokens · B sequences · M asked for.
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
    """What an objective may know of the recipe that it is in."""

    @property
    def objectives(self) -> tuple[str, ...]: ...
    @property
    def settings(self) -> dict[str, Any]: ...
    @property
    def model(self) -> ModelPart: ...


@dataclass(frozen=True)
class Room:
    """The most that one batch can hold. The compiler wants every batch to have the same shape, so fillers fill it."""

    tokens: int
    sequences: int
    length: int
    even: bool = False
    """Every sequence has the full length, so real ones and fillers together are always `sequences`."""

    @property
    def rows(self) -> int:
        """Sequences with fillers: enough of them to hold every token that is left, however few are real."""
        return self.sequences if self.even else self.sequences + -(-self.tokens // self.length)


@dataclass(frozen=True)
class Target:
    """What an objective needs to compute its loss: one number for each asked token or sequence."""

    values: Numbers
    most: int
    """How many there can be."""
    filler: int
    """What stands in the places that are left; no loss reads it."""


@dataclass
class Draft:
    """A batch in the making."""

    rows: RawSequences
    ids: Numbers
    """(N,) what the model will read."""
    targets: dict[str, Target] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    """By loss, how many terms it sums up."""
    selection: Selection | None = None


@dataclass(frozen=True)
class MaskingVocabulary:
    """The facts about a vocabulary that masking needs."""

    mask: int
    ordinary: Numbers
    """Every id that is a word or a piece of one: what a random replacement is drawn from."""

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "MaskingVocabulary | None":
        """None if the vocabulary has no mask token."""
        if tokenizer.mask is None:
            return None
        ordinary = sorted(set(range(tokenizer.size)) - tokenizer.wordless_ids)
        return cls(tokenizer.id(tokenizer.mask), np.array(ordinary))


@dataclass(frozen=True)
class LossTerm:
    """One loss over a batch: the sum of its terms; for evaluation also the predictions and the labels, if any."""

    loss: Tensor
    logits: Tensor = field(default_factory=lambda: torch.tensor(0.0))
    wanted: Tensor = field(default_factory=lambda: torch.tensor(0))

    @property
    def right(self) -> Tensor:
        """How many predictions are right; nan if nothing was predicted."""
        if not self.wanted.ndim:
            return torch.full_like(self.loss, torch.nan)
        return (self.logits.argmax(-1) == self.wanted).sum()


Terms = dict[str, LossTerm]
"""By name; each name has a count in the draft and a weight in `Objective.loss_weights`."""
Weights = dict[str, Tensor]


@dataclass(frozen=True)
class NoSettings:
    """An objective without settings."""


class Objective:
    """A subclass overrides what it needs. What is not overridden does nothing."""

    name: ClassVar[str]
    Settings: ClassVar[type] = NoSettings
    """A dataclass: the part of a recipe that is called as the objective."""
    stands_alone: ClassVar[bool] = False
    """Whether it can train a left-to-right model, or an adapter, for which nothing else may be trained."""
    requires: ClassVar[tuple[str, ...]] = ("mlm",)
    """Other objectives that must be in the recipe …"""
    excludes: ClassVar[tuple[str, ...]] = ()
    """… and those that must not."""
    sampling: ClassVar[SamplingKind | None] = None
    """How text becomes sequences, if this objective decides it."""
    heads: tuple[str, ...] = ()
    """The heads of the model that it trains."""
    short: float = 0.0
    """Share of the sequences with a random shorter target length."""
    static: int = 0
    """The number of sets of masks that take turns; 0: new masks in every epoch."""
    scales_others: float = 1.0
    """By which the weights of the other objectives' losses are multiplied."""
    qkv_layers: tuple[int, ...] = ()
    """Layers of the model whose queries, keys and values its losses read."""
    tallies: int = 0
    """How many numbers `tally` counts."""
    frozen: Model | None = None
    """A model that goes with the trained one to its device, and is not trained."""
    wraps: ClassVar[str] = ""
    """Another objective that this one owns and runs itself."""

    # ------------------------------------------------------------------ the recipe

    @classmethod
    def is_on(cls, recipe: Recipe) -> bool:
        """Whether a recipe asks for it."""
        return cls.name in recipe.objectives

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        """Refuse a recipe in which it cannot take part."""

    @classmethod
    def resolve(cls, recipe: Recipe) -> Any:
        """Its settings, with what they leave open found beside the model to go on from."""
        return recipe.settings[cls.name]

    @classmethod
    def make(cls, recipe: Recipe, tokenizer: Tokenizer, others: Mapping[str, "Objective"]) -> "Objective":
        """The objective of a recipe; `others` are those made before it."""
        return cls()

    @property
    def loss_weights(self) -> dict[str, float]:
        """Its losses by name, and the weight of each."""
        return {self.name: 1.0}

    # ------------------------------------------------------------------ the model

    def attach(self, model: Model) -> nn.Module | None:
        """Called once with the model to be trained. Returns what is trained beside it, with weights yet to be drawn."""
        return None

    def start(self, model: Model, part: nn.Module | None) -> None:
        """Called when the weights of `part` are drawn: to share some with the model, or to load others."""

    # ------------------------------------------------------------------ data

    def prepare(self, draft: Draft, room: Room, rate: float | None, asked: Numbers | None = None) -> None:
        """Change the draft's ids and add targets and counts. In numpy, on the CPU, ahead of time.

        `rate` is the masking rate of this phase, if it differs from the objective's own. `asked`: ask for just these
        tokens, instead of choosing some.
        """

    def most_asked(self, room: Room, rate: float | None) -> int | None:
        """How many tokens one batch can be asked for; None if it asks for none."""
        return None

    # ------------------------------------------------------------------ losses

    def before(
        self, part: nn.Module | None, batch: Batch, targets: dict[str, Tensor], is_training: bool
    ) -> tuple[Batch, dict[str, Tensor], Terms]:
        """What the model will read instead of the batch, and losses that are known before it does."""
        return batch, targets, {}

    def losses(
        self, model: Model, part: nn.Module | None, states: Tensor, seen: Activations, batch: Batch,
        targets: dict[str, Tensor],
    ) -> Terms:  # fmt: skip
        """The losses over the model's last states (N, W). `seen` holds what `qkv_layers` asks for."""
        raise NotImplementedError

    def tally(self, terms: Terms) -> Tensor:
        """(tallies,) what is counted in evaluation beside losses and right predictions."""
        return torch.empty(0)

    def rates(self, tally: Sequence[float], counts: Mapping[str, float]) -> dict[str, float]:
        """Scores by name, from the sums of tallies and of the losses' counts."""
        return {}

    def flops(self, shape: EncoderConfig, length: int, rate: float | None) -> float:
        """Floating-point operations of one training step for one token, beside those of the model's layers."""
        return 0.0

    # ------------------------------------------------------------------ folders

    def folder_config(self, config: ModelConfig) -> ModelConfig:
        """The config of the folder that the model is saved to."""
        return config

    def to_folder(self, own: Weights, parts: Weights) -> None:
        """Move weights for which the model's folder has no place from `own` to `parts`."""

    def from_folder(self, own: Weights, parts: Weights) -> None:
        """The reverse of `to_folder`."""

    def other_models(self, part: nn.Module | None, own: Weights, parts: Weights) -> dict[str, Model]:
        """Models to be saved beside the model, by the name of their folder."""
        return {}
