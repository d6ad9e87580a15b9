"""Losses of knowledge distillation: a teacher's predictions, hidden states and self-attention relations.

Hinton et al. 2015; DistilBERT (Sanh et al. 2019); MiniLM (Wang et al. 2020, 2021).

N tokens · B sequences · L the longest · W width · R relation heads · C classes.
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
from bothways.ranges import Bounded, Count, NotNegative, Positive

_MASKED = -1e9  # the score of a padding position; a true infinity would give 0 · ∞ = nan


@dataclass(frozen=True)
class DistillSettings(Bounded):
    """The `[distill]` part of a recipe; the defaults are DistilBERT's."""

    section = "distill"

    teacher: str = ""
    """A model folder with the student's vocabulary and, for a task, its labels. Empty: no distillation."""
    hard: NotNegative = 2.0
    """Weight of the losses on the data themselves."""
    soft: NotNegative = 5.0
    """Weight of the loss on the teacher's predictions (soft targets)."""
    cosine: NotNegative = 1.0
    """Weight of the cosine loss on the last hidden states; both models must have the same width."""
    relations: NotNegative = 0.0
    """Weight of the loss on query, key and value relations (MiniLM), for models of any width."""
    temperature: Positive = 2.0
    """Predictions are compared as softmax(logits / temperature)."""
    over: Literal["asked", "all"] = "asked"
    """In pretraining: compare predictions at masked tokens ("asked"), or at all as in DistilBERT, much slower."""
    relation_layer: Count = 0
    """The teacher's layer whose relations the student's last layer learns; 0: the last."""
    relation_heads: Count = 0
    """Number of relation heads; 0: the teacher's number of attention heads."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("distill.over", self.over, ("asked", "all"))
        if self.teacher and not self.weights:
            raise BothwaysError(
                "distill.teacher is set, but distill.soft, distill.cosine and distill.relations are all 0: set one of "
                "them above 0",
                "nothing-to-learn",
                self.teacher,
            )

    @property
    def weights(self) -> dict[str, float]:
        """The losses that compare with the teacher, by name, with their weights."""
        found = {"soft": self.soft, "cosine": self.cosine, "relations": self.relations}
        return {name: weight for name, weight in found.items() if weight}


@dataclass(frozen=True)
class EncoderOutputs:
    """What the distillation losses read of the student or the teacher."""

    states: Tensor
    """(N, W)."""
    vectors: tuple[Tensor, ...]
    """Queries, keys and values of one layer, (N, W) each; empty without the relation loss."""


class Teacher:
    """A frozen model. Not a module, so that it is neither trained nor saved with the student."""

    def __init__(self, model: Model, settings: DistillSettings, student: Model) -> None:
        self.model, self.settings = model.eval().requires_grad_(False), settings
        own, taught = student.config.encoder, model.config.encoder
        self.num_heads = settings.relation_heads or taught.num_heads
        self.layer = settings.relation_layer or taught.layers
        if student.tokenizer and (not model.tokenizer or model.tokenizer.fingerprint != student.tokenizer.fingerprint):
            raise BothwaysError(
                "the teacher's vocabulary differs from the student's: both must read the same tokens",
                "other-tokenizer",
                settings.teacher,
            )
        if taught.max_length < own.max_length:
            raise BothwaysError(
                f"the teacher reads {taught.max_length} tokens and the student {own.max_length}: take a teacher that "
                "reads as many",
                "too-long",
                (own.max_length, taught.max_length),
            )
        if settings.cosine and own.width != taught.width:
            raise BothwaysError(
                f"distill.cosine needs equal widths, not {own.width} and {taught.width}: set distill.cosine to 0, and "
                "distill.relations above 0 to learn from the teacher's layers",
                "shape-mismatch",
                (own.width, taught.width),
            )
        if settings.relations and self.layer > taught.layers:
            raise BothwaysError(
                f"distill.relation_layer is {self.layer}, but the teacher has {taught.layers} layers",
                "no-such-layer",
                self.layer,
            )
        if settings.relations and (own.width % self.num_heads or taught.width % self.num_heads):
            raise BothwaysError(
                f"the widths {own.width} and {taught.width} cannot both be split into {self.num_heads} heads: set "
                "distill.relation_heads",
                "shape-mismatch",
                (own.width, taught.width),
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
        """The losses on hidden states and relations: sums over the tokens, each with its weight in `counts` (N,)."""
        found: dict[str, Tensor] = {}
        if self.settings.cosine:
            found["cosine"] = (cosine_distance(student.states, taught.states) * counts).sum()
        if self.settings.relations:
            found["relations"] = relation_distance(student.vectors, taught.vectors, batch, self.num_heads, counts)
        return found


class StudentModule(nn.Module):
    """A module with frozen models that follow it to its device and precision."""

    frozen: tuple[Model, ...] = ()

    def _apply(self, change: Callable[..., Any], recurse: bool = True) -> "StudentModule":
        for model in self.frozen:
            model._apply(change)  # type: ignore[no-untyped-call]
        super()._apply(change, recurse)  # type: ignore[no-untyped-call]
        return self


# ---------------------------------------------------------------------- losses


def cosine_distance(states: Tensor, taught: Tensor) -> Tensor:
    """1 - cosine of each token's two hidden states: (N, W) → (N,)."""
    return 1 - F.cosine_similarity(states.float(), taught.float(), dim=-1)


def relation_distance(
    own: tuple[Tensor, ...], taught: tuple[Tensor, ...], batch: Batch, heads: int, counts: Tensor
) -> Tensor:
    """KL between teacher's and student's softmax(x xᵀ / √d), for x the queries, the keys and the values (MiniLM):
    the mean over the three and over heads, the sum over tokens."""
    position = torch.arange(batch.max_seqlen, device=batch.cu_seqlens.device)
    is_real = position < batch.lengths[:, None]
    rows = torch.where(is_real, batch.cu_seqlens[:-1, None] + position, 0)  # (B, L)
    total = torch.zeros((), device=counts.device)
    for mine, other in zip(own, taught, strict=True):
        student, teacher = (_relations(x, rows, is_real, heads) for x in (mine, other))
        total = total + ((teacher.exp() * (teacher - student)).sum(-1).mean(1) * counts[rows] * is_real).sum()
    return total / len(own)


def _relations(x: Tensor, rows: Tensor, is_real: Tensor, heads: int) -> Tensor:
    """(N, W) → log softmax(x xᵀ / √d) within each sequence, (B, R, L, L)."""
    split = x.float()[rows].unflatten(-1, (heads, -1)).transpose(1, 2)  # (B, R, L, d)
    scores: Tensor = split @ split.mT / split.shape[-1] ** 0.5
    return scores.masked_fill(~is_real[:, None, None, :], _MASKED).log_softmax(-1)
