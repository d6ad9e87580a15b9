"""Next sentence prediction: does B follow A, or does it come from another document? (BERT)"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from bothways.model.batch import Batch
from bothways.model.encoder import Activations
from bothways.model.model import Model
from bothways.pretraining.objective import BatchBuilder, Capacity, Objective, Recipe, Target, Terms
from bothways.pretraining.objectives.mlm import IGNORE_INDEX, cross_entropy
from bothways.pretraining.sampler import SamplingKind
from bothways.pretraining.shards import Numbers
from bothways.ranges import Bounded, Share
from bothways.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class PairSettings(Bounded):
    """The `[nsp]` or `[sop]` part of a recipe."""

    section = "nsp and sop"

    short: Share = 0.1
    """Share of the sequences with a random shorter target length, so that the model also sees short texts."""


class NextSentencePrediction(Objective):
    """`nsp`: label 0 means that B follows A. The sampler makes the pairs."""

    name = "nsp"
    Settings = PairSettings
    requires = ("mlm",)
    excludes = ("sop", "rtd")
    sampling: ClassVar[SamplingKind | None] = "next"
    heads: tuple[str, ...] = ("pooler", "next")

    def __init__(self, settings: PairSettings | None = None) -> None:
        self.short = (settings or PairSettings()).short

    @classmethod
    def make(cls, recipe: Recipe, tokenizer: Tokenizer, others: Mapping[str, Objective]) -> Objective:
        return cls(recipe.settings[cls.name])

    def prepare(
        self, builder: BatchBuilder, capacity: Capacity, rate: float | None, predicted: Numbers | None = None
    ) -> None:
        labels = builder.rows.pair_labels
        assert labels is not None
        builder.targets["pair_labels"] = Target(labels, capacity.rows, IGNORE_INDEX)
        builder.counts[self.name] = len(labels)

    def losses(
        self, model: Model, part: nn.Module | None, states: Tensor, seen: Activations, batch: Batch,
        targets: dict[str, Tensor],
    ) -> Terms:  # fmt: skip
        return {self.name: cross_entropy(model.logits("next", states, batch), targets["pair_labels"])}
