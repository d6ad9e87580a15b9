"""The settings of sentence vectors: losses, teachers, and sets with settings of their own."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

from bothways.data.examples import Related
from bothways.data.related import is_inference
from bothways.errors import BothwaysError
from bothways.model.config import EncoderConfig
from bothways.model.pooling_modes import PoolingMode
from bothways.ranges import Bounded, NotNegative, Positive, Share, Size

Loss = Literal["auto", "in-batch", "cosent", "cosine", "triplet", "softmax", "distill"]
_NEEDS = {"cosent": "scored", "cosine": "scored", "in-batch": "related", "triplet": "related", "softmax": "relations"}
"""The kind of examples that a loss needs; the others read any texts."""
LOSSES = get_args(Loss)
_MARGIN, _USUAL = 5.0, 20.0
_WITH = {
    "teachers": "embed.loss to distill",
    "guide_margin": "embed.guide",
    "margin": "embed.loss to triplet",
    "symmetric": "embed.loss to in-batch",
    "similarity": "embed.teachers",
    "translations": "embed.teachers",
    "teacher_vectors": "embed.teachers",
    "center": "embed.teachers",
    "scale": "embed.loss to in-batch or cosent",
}
"""What a setting needs to have an effect."""


@dataclass(frozen=True)
class EmbedSet(Bounded):
    """One of the `[[embed.sets]]`: a file with a loss, prompts and a weight of its own."""

    file: str = ""
    """The name of the file, without its folder."""
    loss: Loss = "auto"
    weight: NotNegative = 1.0
    """Its losses are multiplied by it."""
    query_prompt: str = ""
    document_prompt: str = ""
    translations: bool = False
    """distill: as in the `[embed]` part, for this file."""


@dataclass(frozen=True)
class EmbedSettings(Bounded):
    """The `[embed]` part of a recipe."""

    section = "embed"

    loss: Loss = "auto"
    """in-batch: each anchor is told from all other texts of the step (MNRL). cosent: pairs with a higher score become
    more similar than others. cosine: the cosine becomes the score. triplet: a positive is nearer than a negative.
    softmax: a classifier tells the relation of two texts (SBERT). distill: vectors become those of the teachers.
    auto: distill with teachers, cosent for scored pairs, else in-batch."""
    scale: Positive = _USUAL
    """Cosines are multiplied by it, in the losses in-batch and cosent: 1 / temperature."""
    symmetric: bool = False
    """in-batch: also tell each positive's anchor from all other anchors."""
    margin: NotNegative = _MARGIN
    """triplet: how much nearer the positive should be, in Euclidean distance."""
    guide: str = ""
    """Folder of a model. in-batch: texts that it finds more similar to an anchor than its positive are no negatives
    (GISTEmbed)."""
    guide_margin: float = 0.0
    """Texts that are less similar by less than this are left out too."""
    teachers: tuple[str, ...] = ()
    """Folders of models to distill from, on any texts."""
    teacher_vectors: str = ""
    """A folder where the teachers' vectors are kept, for further runs on the same texts."""
    center: Share = 0.0
    """This share of the mean of each teacher's vectors is subtracted: for teachers whose cosines are all high."""
    similarity: NotNegative = _USUAL
    """distill: the weight of the similarities of all texts of a step with each other."""
    translations: bool = False
    """distill: the texts of a row are translations of its first, which alone the teachers read; all of them learn its
    vector (Reimers and Gurevych 2020)."""
    matryoshka: tuple[Size, ...] = ()
    """Also train the first so many numbers of each vector, so that vectors can be shortened."""
    pooling: Literal["", "cls", "mean", "max"] = ""
    """How the states of tokens become a vector. By default as the model's folder says, else mean."""
    normalize: bool = True
    """Whether a new model returns vectors of length 1."""
    query_prompt: str = ""
    """Put before anchors, and saved in the folder under the name query."""
    document_prompt: str = ""
    """Put before positives and negatives, and saved under the name document."""
    sets: tuple[EmbedSet, ...] = ()
    """Files with settings of their own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        losses: set[str] = {self.loss, *(one.loss for one in self.sets)}
        self._require_used(losses)
        if "distill" in losses and not self.teachers:
            raise BothwaysError("embed.loss is distill: name a model with embed.teachers", "no-teacher")
        if self.guide and (self.symmetric or self.teachers or self.loss not in ("auto", "in-batch")):
            raise BothwaysError(
                "embed.guide works with the loss in-batch, and without embed.symmetric and embed.teachers",
                "bad-combination",
                self.loss,
            )
        if "softmax" in losses and (self.sets or self.matryoshka):
            raise BothwaysError(
                "embed.loss is softmax, which works neither with embed.sets nor with embed.matryoshka",
                "bad-combination",
                "softmax",
            )

    def _require_used(self, losses: set[str]) -> None:
        """Refuse settings that nothing would read."""
        may_be_in_batch = bool(losses & {"auto", "in-batch"})
        unused = {
            "teachers": bool(self.teachers) and not losses & {"auto", "distill"},
            "guide_margin": self.guide_margin != 0 and not self.guide,
            "margin": self.margin != _MARGIN and "triplet" not in losses,
            "symmetric": self.symmetric and not may_be_in_batch,
            "similarity": self.similarity != _USUAL and not self.teachers,
            "teacher_vectors": bool(self.teacher_vectors) and not self.teachers,
            "center": self.center > 0 and not self.teachers,
            "translations": not self.teachers and (self.translations or any(one.translations for one in self.sets)),
            "scale": self.scale != _USUAL and not losses & {"auto", "in-batch", "cosent"},
        }
        for name, is_unused in unused.items():
            if is_unused:
                raise BothwaysError(
                    f"embed.{name} has no effect with embed.loss {' and '.join(sorted(losses))}: leave it out, or set "
                    f"{_WITH[name]}",
                    "bad-combination",
                    name,
                )

    def of(self, source: str) -> EmbedSet:
        """What a file is trained with."""
        if source not in self._found:
            self._found[source] = self._of(source)
        return self._found[source]

    @cached_property
    def _found(self) -> dict[str, EmbedSet]:
        """Those asked for before: training asks for every text of every file."""
        return {}

    def _of(self, source: str) -> EmbedSet:
        usual = EmbedSet(source, self.loss, 1.0, self.query_prompt, self.document_prompt, self.translations)
        found = next((one for one in self.sets if one.file == source), usual)
        return replace(
            found,
            loss=found.loss if found.loss != "auto" else self.loss,
            query_prompt=found.query_prompt or self.query_prompt,
            document_prompt=found.document_prompt or self.document_prompt,
            translations=found.translations or self.translations,
        )


@dataclass(frozen=True)
class EmbedOptions:
    """What config.json stores for sentence vectors."""

    kind: Literal["related", "scored", "relations"] = "related"
    relations: tuple[str, ...] = ()
    """The labels of natural language inference, for the loss softmax."""
    pooling: tuple[PoolingMode, ...] = ()
    normalize: bool = True
    query_prompt: str = ""
    document_prompt: str = ""
    matryoshka: tuple[int, ...] = ()
    """The lengths to which vectors may be cut: they were trained at these lengths too."""


def by_source(examples: Iterable[Related]) -> dict[str, list[Related]]:
    """The examples of each file."""
    found: dict[str, list[Related]] = {}
    for example in examples:
        found.setdefault(example.source, []).append(example)
    return found


def require_dropout(shape: EncoderConfig, settings: EmbedSettings, examples: Iterable[Related]) -> None:
    """In-batch negatives learn from texts alone by two dropout masks, which make two views of a text (SimCSE)."""
    if shape.dropout or shape.attention_dropout:
        return
    contrasted = (some for name, some in by_source(examples).items() if loss_of(settings, name, some) == "in-batch")
    if any(len(one.texts) == 2 and one.texts[0] == one.texts[1] for some in contrasted for one in some):
        raise BothwaysError(
            "texts alone are learned from by two dropout masks (SimCSE), and this model has no dropout: set "
            "model.dropout=0.1",
            "no-dropout",
        )


def loss_of(settings: EmbedSettings, source: str, examples: Sequence[Any]) -> str:
    """The loss of a file, by its examples or targets."""
    loss = settings.of(source).loss
    if loss != "auto":
        return loss
    if settings.teachers:
        return "distill"
    return "cosent" if any(isinstance(one.gold, float) for one in examples) else "in-batch"


def kind_of(settings: EmbedSettings, source: str, examples: Sequence[Related]) -> str:
    """The kind of a file's examples; an error if they are mixed, or if the loss needs others."""
    is_scored = {isinstance(example.gold, float) for example in examples if example.gold is not None}
    where = f"{source}: " if source else ""
    if len(is_scored) > 1:
        raise BothwaysError(f"{where}some examples have a score and some have none: give one kind", "mixed-golds")
    kind = "scored" if is_scored == {True} else "related"
    loss = settings.of(source).loss
    if loss == "softmax" and is_inference(examples):
        kind = "relations"
    if _NEEDS.get(loss, kind) != kind:
        raise BothwaysError(
            f"{where}embed.loss is {loss}, which needs {_NEEDS[loss]}, and the examples are {kind}",
            "bad-combination",
            loss,
        )
    if loss == "cosine" and (high := max(abs(float(example.gold or 0.0)) for example in examples)) > 1:
        raise BothwaysError(
            f"{where}embed.loss is cosine, and a score is {high:g}: divide the scores, to at most 1, or set embed.loss "
            "to cosent",
            "out-of-range",
            high,
        )
    return kind
