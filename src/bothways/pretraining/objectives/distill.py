"""Distillation: a student learns from what a trained model makes of the same text. See model/distill.py."""

import numpy as np
from torch import Tensor, nn

from bothways.model.batch import Batch
from bothways.model.distill import Seen, Teacher, soft_distance
from bothways.model.model import Model
from bothways.pretraining.objective import Draft, Room, Score, Target


class Distillation:
    """On when a recipe names a teacher."""

    heads: tuple[str, ...] = ("masked",)

    def __init__(self, teacher: Teacher) -> None:
        self.teacher = teacher
        self.over_all = teacher.settings.over == "all"

    def parts(self, model: Model) -> None:
        return None

    def prepare(self, draft: Draft, room: Room, rate: float | None) -> None:
        """Every token is looked at, and those asked for are guessed."""
        tokens = len(draft.ids)
        draft.targets["is_token"] = Target(np.ones(tokens, np.int64), room.tokens, 0)
        counts = {"soft": tokens if self.over_all else draft.counts["mlm"], "cosine": tokens, "relations": tokens}
        draft.counts |= {name: counts[name] for name in self.teacher.settings.weights}

    def losses(
        self, model: Model, parts: nn.Module | None, states: Tensor, batch: Batch, targets: dict[str, Tensor]
    ) -> dict[str, Score]:
        """`targets` holds the student's vectors as `q`, `k` and `v` if relations are learned."""
        taught, is_token = self.teacher.show(batch), targets["is_token"]
        found: dict[str, Score] = {}
        if self.teacher.settings.soft:
            asked, counts = targets["asked"], (targets["words"] >= 0).long()
            own_states, other_states = (x if self.over_all else x[asked] for x in (states, taught.states))
            counts = is_token if self.over_all else counts
            own, other = model.masked(own_states), self.teacher.model.masked(other_states)
            each = soft_distance(own, other, self.teacher.settings.temperature) * counts
            found["soft"] = Score(each.sum(), own.detach(), other.argmax(-1).masked_fill(counts == 0, -1))
        seen = Seen(states, tuple(targets[name] for name in ("q", "k", "v") if name in targets))
        inside = self.teacher.inside(seen, taught, batch, is_token)
        return found | {name: Score(loss) for name, loss in inside.items()}
