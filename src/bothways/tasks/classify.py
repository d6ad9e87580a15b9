"""Text classification: one label, several labels, or a number, for a text or a pair of texts.

B sequences · C labels.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.data.columns import Columns
from bothways.data.examples import Text
from bothways.data.labels import LabelKind, as_kind, as_number, label_kind, label_names
from bothways.data.notes import Notes
from bothways.data.texts import read_texts_labelled
from bothways.engine.reader import WindowSettings
from bothways.errors import BothwaysError, require_choice
from bothways.model.batch import Batch
from bothways.model.checkpoint import nameless
from bothways.model.model import Model
from bothways.scoring.classification import Classes
from bothways.scoring.many_labels import ManyLabels
from bothways.scoring.regression import Regression
from bothways.tasks.losses import binary_cross_entropy, binary_imitation, cross_entropy
from bothways.tasks.task import EncodedExample, Outputs, Sample, Targets, Task, TaskConfig
from bothways.train.distill import soft_distance

_PROBLEMS: dict[LabelKind, str] = {
    "single": "single_label_classification",
    "multi": "multi_label_classification",
    "regression": "regression",
}


@dataclass(frozen=True)
class ClassifySettings:
    """The `[classify]` part of a recipe."""

    kind: Literal["auto", LabelKind] = "auto"
    """One label each, several, or a number; auto: as the data show."""
    label_smoothing: float = 0.0
    """The share of the gold that is spread over all labels."""
    focal_gamma: float = 0.0
    """Focal loss: rows that are right with probability p are weighted by (1 - p) to this power."""
    class_weights: Literal["none", "balanced"] | dict[str, float] = "none"
    """The weight of each label in the loss; balanced: in inverse proportion to its frequency."""
    metric: str = ""
    """The score by which the best model is chosen, such as matthews or macro_f1, if not the default."""

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1 or self.focal_gamma < 0:
            raise BothwaysError(
                "classify.label_smoothing is a number from 0 up to 1, and classify.focal_gamma is 0 or more"
            )


@dataclass(frozen=True)
class ClassifyOptions:
    """What a folder says of its classifier."""

    kind: LabelKind = "single"
    texts: int = 0
    """How many texts an example has, one or two; 0: not known, or both occurred."""


class TextClassification(Task):
    """Sentiment, topics, inference, paraphrase, similarity."""

    name = "classify"
    aliases = ("text-classification", "sequence-classification", "regression")
    head = "sequence"
    Settings = ClassifySettings
    Options = ClassifyOptions

    @classmethod
    def read(cls, files: Sequence[str], columns: Columns, notes: Notes, known: Any = None) -> Iterator[Text]:
        # "joy|awe" is two labels only where somebody says that there may be several.
        several: Literal["multi", "auto"] = "multi" if known is not None and known.kind == "multi" else "auto"
        return read_texts_labelled(files, columns, several, notes)

    @classmethod
    def parse(cls, given: Any) -> Text:
        return as_text(given)

    @classmethod
    def plan(
        cls, settings: ClassifySettings, window: WindowSettings, examples: Sequence[Text], max_length: int
    ) -> tuple[TaskConfig, tuple[str, ...]]:
        kind = settings.kind if settings.kind != "auto" else label_kind(example.gold for example in examples)
        labels = ("score",) if kind == "regression" else label_names(as_kind(example, kind) for example in examples)
        if kind == "single" and len(labels) < 2:
            raise BothwaysError(f"all rows have the label {labels[0]!r}: expected two or more", "one-label", labels[0])
        counts = {len(example.texts) for example in examples}
        options = ClassifyOptions(kind, counts.pop() if len(counts) == 1 else 0)
        return TaskConfig(cls.name, window, options=options), labels

    @classmethod
    def normalise(cls, config: TaskConfig, example: Text) -> Text:
        return as_kind(example, config.options.kind)

    @classmethod
    def hf_config(cls, config: TaskConfig) -> dict[str, Any]:
        return {"problem_type": _PROBLEMS[config.options.kind]}

    @classmethod
    def infer(cls, model: Model) -> TaskConfig:
        problem = model.config.hf_config.get("problem_type")
        named = [kind for kind, theirs in _PROBLEMS.items() if theirs == problem]
        # One output of no type is the logit of a yes, as in transformers' pipeline.
        kind = named[0] if named else "multi" if len(model.config.labels) == 1 else "single"
        return TaskConfig(cls.name, options=ClassifyOptions(kind))

    def __init__(
        self, model: Model, config: TaskConfig, settings: ClassifySettings | None = None, golds: Sequence[Any] = ()
    ) -> None:
        super().__init__(model, config, settings)
        self.number = {name: i for i, name in enumerate(self.labels)}
        if self.labels == nameless(len(self.labels)):  # the data then have numbers
            self.number |= {str(i): i for i in range(len(self.labels))}
        self.weights = self._weights(golds)
        usual = {"single": "accuracy", "multi": "micro_f1", "regression": "spearman"}[self.options.kind]
        self.metric = self.settings.metric or usual
        require_choice("classify.metric", self.metric, tuple(self.new_scores().scores()))

    def _weights(self, golds: Sequence[Any]) -> NDArray[np.float32]:
        wanted = self.settings.class_weights
        if wanted == "none":
            return np.ones(len(self.labels), np.float32)
        if isinstance(wanted, dict):
            if unknown := set(wanted) - set(self.labels):
                raise BothwaysError(
                    f"classify.class_weights names {', '.join(sorted(unknown))}, which no row is labelled with"
                )
            return np.array([wanted.get(name, 1.0) for name in self.labels], np.float32)
        counts = np.zeros(len(self.labels))
        for gold in golds:
            for name in gold if isinstance(gold, tuple) else (gold,):
                counts[self.number[name]] += 1
        return np.asarray(counts.mean() / np.maximum(counts, 1), np.float32)

    # ------------------------------------------------------------------ in

    def encode(self, examples: Sequence[Text]) -> list[EncodedExample]:
        for example in examples:
            if self.options.texts and len(example.texts) != self.options.texts:
                has, wants = ("one text", "pairs") if self.options.texts == 2 else ("two texts", "single texts")
                raise BothwaysError(f"{example.where or 'an input'} has {has}, and this model reads {wants}")
        reads = self.reader([example.texts for example in examples])
        return [EncodedExample(example, [read]) for example, read in zip(examples, reads, strict=True)]

    def gold(self, example: Text) -> Any:
        """The gold in numbers."""
        if self.options.kind == "regression":
            return as_number(example)
        names = example.gold if isinstance(example.gold, tuple) else (example.gold,)
        if unknown := [name for name in names if name not in self.number]:
            raise BothwaysError(
                f"{example.where} has the label {unknown[0]!r}, and this model knows {', '.join(self.labels)}"
            )
        numbers = [self.number[str(name)] for name in names]
        return numbers[0] if self.options.kind == "single" else np.isin(np.arange(len(self.labels)), numbers)

    def check(self, example: Text) -> None:
        self.gold(example)

    def samples(self, item: EncodedExample) -> list[Sample]:
        """Every window of a long text, all together counting as one."""
        gold = self.gold(item.example)
        return [Sample.of([view], (gold, 1 / len(item.views))) for view in item.views]

    def collate(self, samples: Sequence[Sample], batch: Batch) -> tuple[dict[str, Tensor], float]:
        golds, shares = zip(*(sample.target for sample in samples), strict=True)
        share = np.array(shares, np.float32)
        if self.options.kind == "single":
            gold = torch.tensor(golds)
            weight = share * self.weights[gold.numpy()]
            return {"gold": gold, "weight": torch.from_numpy(weight)}, float(weight.sum())
        gold = torch.from_numpy(np.array(golds, np.float32))
        return {"gold": gold, "weight": torch.from_numpy(share)}, float(share.sum())

    # ------------------------------------------------------------------ out

    def loss(self, model: Model, states: Tensor, batch: Batch, targets: Targets) -> Tensor:
        logits, gold, weight = self.outputs(model, states, batch), targets["gold"], targets["weight"]
        if self.options.kind == "single":
            return cross_entropy(logits, gold, weight, self.settings.label_smoothing, self.settings.focal_gamma)
        if self.options.kind == "regression":
            return ((logits[:, 0].float() - gold) ** 2 * weight).sum()
        smooth = self.settings.label_smoothing
        each = torch.as_tensor(self.weights, device=gold.device) * gold + (1 - gold)
        gold = gold * (1 - smooth) + smooth / 2
        return binary_cross_entropy(logits, gold, each * weight[:, None] / len(self.labels), self.settings.focal_gamma)

    def imitation(self, own: Tensor, taught: Tensor, targets: Targets, temperature: float) -> Tensor:
        weight = targets["weight"]
        if self.options.kind == "single":
            return (soft_distance(own, taught, temperature) * weight).sum()
        if self.options.kind == "regression":
            return ((own[:, 0].float() - taught[:, 0].float()) ** 2 * weight).sum()
        return binary_imitation(own, taught, weight[:, None] / len(self.labels), temperature)

    def outputs(self, model: Model, states: Tensor, batch: Batch) -> Tensor:
        return model.logits("sequence", states, batch)

    def decode(self, item: EncodedExample, outputs: Sequence[Outputs]) -> NDArray[np.float64]:
        """(C,) probabilities, or the number itself. The windows of a long text are averaged."""
        logits: NDArray[np.float64] = np.mean(np.asarray(outputs, np.float64), 0)
        if self.options.kind == "regression":
            return logits
        logits /= self.config.temperature
        # One label: the chances of all add up to 1. Several: each label against its absence.
        against = np.logaddexp.reduce(logits) if self.options.kind == "single" else np.logaddexp(logits, 0)
        chances: NDArray[np.float64] = np.exp(logits - against)
        return chances

    def answer(self, item: EncodedExample, decoded: NDArray[np.float64], top: int = 1) -> Any:
        """{"label", "score"}; of several labels, and with top > 1, a list of them, the likeliest first."""
        order = np.argsort(-decoded, kind="stable")
        found = [{"label": self.labels[i], "score": float(decoded[i])} for i in order]
        if self.options.kind == "multi" and top == 1:
            return [one for one in found if one["score"] >= self.threshold(str(one["label"]))]
        return found[0] if top == 1 else found[:top]

    def threshold(self, label: str) -> float:
        return self.config.thresholds.get(label, 0.5)

    def new_scores(self) -> Classes | ManyLabels | Regression:
        if self.options.kind == "regression":
            return Regression()
        if self.options.kind == "single":
            return Classes(self.labels)
        return ManyLabels(self.labels, [self.threshold(label) for label in self.labels])

    def error(self, item: EncodedExample, decoded: NDArray[np.float64]) -> float:
        gold = self.gold(item.example)
        if self.options.kind == "single":
            return 1 - float(decoded[gold])
        return float(np.abs(decoded - gold).max())

    def count(self, scores: Any, item: EncodedExample, decoded: NDArray[np.float64]) -> None:
        gold = self.gold(item.example)
        scores.add([gold], decoded if self.options.kind == "regression" else [decoded])


def as_text(given: Any, needs_two: bool = False) -> Text:
    """A text or a pair of them as an example."""
    if isinstance(given, Mapping):
        given = (given["text"], given["text_pair"]) if "text_pair" in given else given.get("text")
    texts = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Sequence | np.ndarray) else ()
    if not all(isinstance(text, str) for text in texts) or len(texts) not in ((2,) if needs_two else (1, 2)):
        wanted = "a pair of texts" if needs_two else "a text or a pair of texts"
        raise BothwaysError(f"{wanted} was expected, and {given!r} was given", "bad-input", given)
    return Text(texts)
