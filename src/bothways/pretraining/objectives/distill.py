"""Knowledge distillation: a student learns from a teacher's output on the same text. See train/distill.py."""

from collections.abc import Mapping

import numpy as np
from torch import Tensor, nn

from bothways.errors import BothwaysError
from bothways.model.batch import Batch
from bothways.model.encoder import Activations
from bothways.model.load import load
from bothways.model.model import Model
from bothways.pretraining.objective import BatchBuilder, Capacity, LossTerm, Objective, Recipe, Target, Terms
from bothways.pretraining.shards import Numbers
from bothways.text.tokenizer import Tokenizer
from bothways.train.distill import DistillSettings, EncoderOutputs, Teacher
from bothways.train.soft_targets import soft_distance


class Distillation(Objective):
    """On when a recipe names a teacher."""

    name = "distill"
    Settings = DistillSettings
    requires = ("mlm",)
    excludes = ("rtd",)
    heads: tuple[str, ...] = ("masked",)

    def __init__(self, settings: DistillSettings) -> None:
        self.settings, self.scales_others = settings, settings.hard
        self.over_all = settings.over == "all"

    @classmethod
    def is_on(cls, recipe: Recipe) -> bool:
        return bool(recipe.settings[cls.name].teacher)

    @classmethod
    def make(cls, recipe: Recipe, tokenizer: Tokenizer, others: Mapping[str, Objective]) -> "Distillation":
        return cls(recipe.settings[cls.name])

    @property
    def loss_weights(self) -> dict[str, float]:
        return self.settings.weights

    def attach(self, model: Model) -> None:
        taught = load(self.settings.teacher)
        if self.settings.soft and "masked" not in taught.heads:
            raise BothwaysError(
                f"{self.settings.teacher} has no masked language modelling head, so it has no predictions to learn "
                f"from: set distill.soft to 0",
                "teacher-without-head",
                self.settings.teacher,
            )
        self.teacher = Teacher(taught, self.settings, model)
        self.frozen = self.teacher.model
        self.qkv_layers = (model.config.encoder.layers,) if self.settings.relations else ()

    def prepare(
        self, builder: BatchBuilder, capacity: Capacity, rate: float | None, predicted: Numbers | None = None
    ) -> None:
        """Hidden states are compared at every token, predictions at the masked tokens (or at all)."""
        tokens = len(builder.ids)
        builder.targets["is_token"] = Target(np.ones(tokens, np.int64), capacity.tokens, 0)
        counts = {"soft": tokens if self.over_all else builder.counts["mlm"], "cosine": tokens, "relations": tokens}
        builder.counts |= {name: counts[name] for name in self.settings.weights}

    def losses(
        self, model: Model, part: nn.Module | None, states: Tensor, seen: Activations, batch: Batch,
        targets: dict[str, Tensor],
    ) -> Terms:  # fmt: skip
        taught, is_token = self.teacher.outputs(batch), targets["is_token"]
        found: Terms = {}
        if self.settings.soft:
            counts = is_token if self.over_all else (targets["labels"] >= 0).long()
            own_states, other_states = (
                x if self.over_all else x[targets["predicted"]] for x in (states, taught.states)
            )
            own, other = model.masked(own_states), self.teacher.model.masked(other_states)
            each = soft_distance(own, other, self.settings.temperature) * counts
            found["soft"] = LossTerm(each.sum(), own.detach(), other.argmax(-1).masked_fill(counts == 0, -1))
        qkv = [x.flatten(1) for layer in self.qkv_layers for x in seen.qkv[layer]]
        inside = self.teacher.inside(EncoderOutputs(states, tuple(qkv)), taught, batch, is_token)
        return found | {name: LossTerm(loss) for name, loss in inside.items()}
