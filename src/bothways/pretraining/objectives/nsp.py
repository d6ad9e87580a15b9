"""Next sentence prediction: does B follow A, or does it come from another document? (BERT)"""

from dataclasses import dataclass

from torch import Tensor, nn

from bothways.errors import BothwaysError
from bothways.model.batch import Batch
from bothways.model.model import Model
from bothways.pretraining.objective import Draft, Room, Score, Target
from bothways.pretraining.objectives.mlm import NOTHING, score


@dataclass(frozen=True)
class PairSettings:
    """The `[nsp]` or `[sop]` part of a recipe."""

    short: float = 0.1
    """Share of the sequences that aim at a random shorter length, so that short texts are seen too."""

    def __post_init__(self) -> None:
        if not 0 <= self.short <= 1:
            raise BothwaysError(f"the share of short sequences must lie from 0 to 1, not {self.short}")


class NextSentence:
    """`nsp`: label 0 means that B follows A. The sampler makes the pairs (rows.py)."""

    heads: tuple[str, ...] = ("pooler", "next")
    name = "nsp"

    def parts(self, model: Model) -> None:
        return None

    def prepare(self, draft: Draft, room: Room, rate: float | None) -> None:
        follows = draft.rows.follows
        assert follows is not None
        draft.targets["follows"] = Target(follows, room.rows, NOTHING)
        draft.counts[self.name] = len(follows)

    def losses(
        self, model: Model, parts: nn.Module | None, states: Tensor, batch: Batch, targets: dict[str, Tensor]
    ) -> dict[str, Score]:
        return {self.name: score(model.logits("next", states, batch), targets["follows"])}
