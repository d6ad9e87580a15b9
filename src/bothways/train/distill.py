"""What a student learns from a teacher: its guesses, its states, and how its tokens relate to each other.

Hinton et al. 2015; DistilBERT (Sanh et al. 2019); MiniLM (Wang et al. 2020, 2021).

N tokens · B sequences · L the longest · W width · R heads of relations · C classes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bothways.errors import BothwaysError, require_choice
from bothways.model.batch import Batch
from bothways.model.model import Model

_HIDDEN = -1e9  # of a place that is not there; a true infinity would make 0 · ∞ of it


@dataclass(frozen=True)
class DistillSettings:
    """The `[distill]` part of a recipe; the defaults are DistilBERT's."""

    teacher: str = ""
    """A model folder with the student's vocabulary, and for a task with its labels. Empty: there is no teacher."""
    hard: float = 2.0
    """The weight of what is learned from the data themselves …"""
    soft: float = 5.0
    """… of the teacher's guesses …"""
    cosine: float = 1.0
    """… of the direction of its last states, if both are equally wide …"""
    relations: float = 0.0
    """… and of how its queries, its keys and its values relate among themselves (MiniLM), whatever the widths."""
    temperature: float = 2.0
    """Guesses are compared as softmax(logits / temperature)."""
    over: Literal["asked", "all"] = "asked"
    """In pretraining: compare guesses where words are asked for, or at every token, as DistilBERT did: much slower."""
    relation_layer: int = 0
    """The teacher's layer whose relations are learned by the student's last; 0: its last."""
    relation_heads: int = 0
    """The number of heads into which both split their vectors for relations; 0: as many as the teacher has."""

    def __post_init__(self) -> None:
        require_choice("distill.over", self.over, ("asked", "all"))
        if min(self.hard, self.soft, self.cosine, self.relations) < 0 or not self.temperature > 0:
            raise BothwaysError("the weights in distill must be 0 or more, and distill.temperature above 0")
        if self.relation_layer < 0 or self.relation_heads < 0:
            raise BothwaysError("distill.relation_layer and distill.relation_heads must be 0 or more")
        if self.teacher and not self.weights:
            raise BothwaysError("a teacher is named, and distill.soft, distill.cosine and distill.relations are all 0")

    @property
    def weights(self) -> dict[str, float]:
        """What is learned from the teacher, by name."""
        found = {"soft": self.soft, "cosine": self.cosine, "relations": self.relations}
        return {name: weight for name, weight in found.items() if weight}


@dataclass(frozen=True)
class EncoderOutputs:
    """What the student or the teacher made of a batch."""

    states: Tensor
    """(N, W)."""
    vectors: tuple[Tensor, ...]
    """Queries, keys and values of one layer, (N, W) each; none if relations are not learned."""


class Teacher:
    """A model that is only looked at. Not a module, so that it is no part of what is trained and saved."""

    def __init__(self, model: Model, settings: DistillSettings, student: Model) -> None:
        self.model, self.settings = model.eval().requires_grad_(False), settings
        here, there = student.config.encoder, model.config.encoder
        self.num_heads = settings.relation_heads or there.num_heads
        self.layer = settings.relation_layer or there.layers
        if student.tokenizer and (not model.tokenizer or model.tokenizer.fingerprint != student.tokenizer.fingerprint):
            raise BothwaysError("the teacher has another vocabulary than the student, and must read what it reads")
        if there.max_length < here.max_length:
            raise BothwaysError(f"the teacher reads {there.max_length} tokens, and the student {here.max_length}")
        if settings.cosine and here.width != there.width:
            raise BothwaysError(
                f"states of {here.width} and {there.width} numbers cannot be compared: set distill.cosine to 0, "
                "and distill.relations above 0 to learn from the teacher's inside all the same"
            )
        if settings.relations and self.layer > there.layers:
            raise BothwaysError(f"distill.relation_layer is {self.layer}, and the teacher has {there.layers} layers")
        if settings.relations and (here.width % self.num_heads or there.width % self.num_heads):
            raise BothwaysError(
                f"widths of {here.width} and {there.width} do not both split into {self.num_heads} heads"
            )

    def student_outputs(self, student: Model, batch: Batch) -> EncoderOutputs:
        return self._outputs(student, batch, student.config.encoder.layers)

    @torch.no_grad()
    def outputs(self, batch: Batch) -> EncoderOutputs:
        return self._outputs(self.model, batch, self.layer)

    def _outputs(self, model: Model, batch: Batch, layer: int) -> EncoderOutputs:
        last = model.config.encoder.layers
        seen = model.encoder.activations(batch, hidden_states=[last], qkv=[layer] if self.settings.relations else ())
        return EncoderOutputs(seen.hidden_states[last], tuple(x.flatten(1) for x in seen.qkv.get(layer, ())))

    def inside(
        self, student: EncoderOutputs, taught: EncoderOutputs, batch: Batch, counts: Tensor
    ) -> dict[str, Tensor]:
        """How far their insides are apart: sums over the tokens, each of which counts (N,) so much."""
        found: dict[str, Tensor] = {}
        if self.settings.cosine:
            found["cosine"] = (cosine_distance(student.states, taught.states) * counts).sum()
        if self.settings.relations:
            found["relations"] = relation_distance(student.vectors, taught.vectors, batch, self.num_heads, counts)
        return found


class StudentModule(nn.Module):
    """A module with frozen models beside it, which go with it to its device and its precision."""

    frozen: tuple[Model, ...] = ()

    def _apply(self, change: Callable[..., Any], recurse: bool = True) -> "StudentModule":
        for model in self.frozen:
            model._apply(change)  # type: ignore[no-untyped-call]
        super()._apply(change, recurse)  # type: ignore[no-untyped-call]
        return self


# ---------------------------------------------------------------------- how far apart


def soft_distance(logits: Tensor, taught: Tensor, temperature: float) -> Tensor:
    """KL(teacher ‖ student) of each row, times T², so that the gradient does not shrink with T. (…, C) → (…)."""
    own, other = ((x.float() / temperature).log_softmax(-1) for x in (logits, taught))
    return (other.exp() * (other - own)).sum(-1) * temperature**2


def cosine_distance(states: Tensor, taught: Tensor) -> Tensor:
    """1 - cos of each token's two states: (N, W) → (N,)."""
    return 1 - F.cosine_similarity(states.float(), taught.float(), dim=-1)


def relation_distance(
    own: tuple[Tensor, ...], taught: tuple[Tensor, ...], batch: Batch, heads: int, counts: Tensor
) -> Tensor:
    """How differently tokens look at each other: KL between softmax(x xᵀ / √d) of both, for x the queries, the keys
    and the values, the mean over these and over heads, the sum over tokens."""
    place = torch.arange(batch.max_seqlen, device=batch.cu_seqlens.device)
    is_real = place < batch.lengths[:, None]
    rows = torch.where(is_real, batch.cu_seqlens[:-1, None] + place, 0)  # (B, L)
    total = torch.zeros((), device=counts.device)
    for mine, other in zip(own, taught, strict=True):
        here, there = (_relations(x, rows, is_real, heads) for x in (mine, other))
        total = total + ((there.exp() * (there - here)).sum(-1).mean(1) * counts[rows] * is_real).sum()
    return total / len(own)


def _relations(x: Tensor, rows: Tensor, is_real: Tensor, heads: int) -> Tensor:
    """(N, W) → the logarithms of softmax(x xᵀ / √d) within each sequence, (B, R, L, L)."""
    split = x.float()[rows].unflatten(-1, (heads, -1)).transpose(1, 2)  # (B, R, L, d)
    scores: Tensor = split @ split.mT / split.shape[-1] ** 0.5
    return scores.masked_fill(~is_real[:, None, None, :], _HIDDEN).log_softmax(-1)
