"""The span boundary objective: predict a masked token from the two tokens around its span (SpanBERT).

    y = f(x[start - 1], x[end], p[place in the span])        f: two layers of norm(gelu(linear))

It predicts the tokens that `mlm` selected, and adds its loss to that of `mlm`. As in the published SpanBERT, the head
is not part of a model folder; checkpoints keep it beside the model.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bothways.model.batch import Batch
from bothways.model.encoder import Activations
from bothways.model.model import Model
from bothways.pretraining.objective import BatchBuilder, Capacity, Objective, Target, Terms
from bothways.pretraining.objectives.mlm import cross_entropy
from bothways.pretraining.shards import Numbers

_PLACES = 200  # width of the position embeddings, as in SpanBERT
_LONGEST = 64  # number of position embeddings; later tokens of a span share the last one


class BoundaryHead(nn.Module):
    """The hidden states at both boundaries of a span, and the position in it → a vector for the vocabulary logits."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.places = nn.Embedding(_LONGEST, _PLACES)
        self.first = nn.Linear(2 * width + _PLACES, width)
        self.first_norm = nn.LayerNorm(width, eps=eps)
        self.second = nn.Linear(width, width)
        self.second_norm = nn.LayerNorm(width, eps=eps)

    def forward(self, left: Tensor, right: Tensor, place: Tensor) -> Tensor:
        """(M, W), (M, W), (M,) → (M, W)."""
        x = torch.cat([left, right, self.places(place).to(left.dtype)], -1)
        x = self.first_norm(F.gelu(self.first(x)))
        out: Tensor = self.second_norm(F.gelu(self.second(x)))
        return out


class SpanBoundaryObjective(Objective):
    """`sbo`."""

    name = "sbo"
    requires = ("mlm",)
    excludes = ("rtd",)
    heads: tuple[str, ...] = ("masked",)

    def attach(self, model: Model) -> BoundaryHead:
        return BoundaryHead(model.config.encoder.width, model.config.encoder.norm_eps)

    def prepare(
        self, builder: BatchBuilder, capacity: Capacity, rate: float | None, predicted: Numbers | None = None
    ) -> None:
        chosen = builder.selection
        assert chosen is not None
        most = builder.targets["predicted"].most
        left, right = chosen.start[chosen.unit] - 1, chosen.end[chosen.unit]
        place = (chosen.tokens - chosen.start[chosen.unit]).clip(max=_LONGEST - 1)
        values = {"left": left, "right": right, "place": place}
        builder.targets |= {name: Target(value, most, 0) for name, value in values.items()}
        builder.counts[self.name] = len(left)

    def losses(
        self, model: Model, part: nn.Module | None, states: Tensor, seen: Activations, batch: Batch,
        targets: dict[str, Tensor],
    ) -> Terms:  # fmt: skip
        assert part is not None
        between = part(states[targets["left"]], states[targets["right"]], targets["place"])
        # The token table and its bias are those of the masked language modelling head.
        logits = F.linear(between, model.encoder.embeddings.tokens.weight, model.heads["masked"].bias)  # type: ignore[arg-type]
        return {self.name: cross_entropy(logits, targets["labels"])}
