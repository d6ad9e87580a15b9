"""Text classification: one label, several labels, or a number, for a text or a pair of texts.

B sequences · C labels.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from bothways.data.examples import LongInput, Text
from bothways.data.findings import MAX_PLACES, DataCounts, Finding
from bothways.data.label_checks import check_balance, check_known, check_missing, check_spelling, listed
from bothways.data.label_meaning import check_meaning
from bothways.data.labels import LabelKind, as_kind, as_number, label_kind, label_names, names_of
from bothways.data.notes import Notes
from bothways.data.several_labels import evident_separator
from bothways.data.sources import ROWS, find_sources, first_rows
from bothways.data.texts import find_indicators, read_any_inputs, read_texts_labelled
from bothways.engine.reader import WindowSettings
from bothways.engine.sequences import Indices
from bothways.errors import BothwaysError, name_list, require_choice
from bothways.lazy import Tensor, torch
from bothways.model.batch import Batch
from bothways.model.facts import ModelFacts
from bothways.model.identify import nameless
from bothways.ranges import Bounded, NotNegative, Probability, Range
from bothways.scoring.classification import Classes
from bothways.scoring.many_labels import ManyLabels
from bothways.scoring.regression import Regression
from bothways.tasks.losses import binary_cross_entropy, binary_imitation, cross_entropy
from bothways.tasks.task import EncodedExample, Outputs, Reconsidered, Sample, Targets, TaskConfig
from bothways.tasks.text_task import (
    NUMBER,
    TextTask,
    finite_number,
    mean_of_windows,
    named_activation,
    not_numbers,
    number_finding,
)
from bothways.tasks.text_task import as_text as as_text
from bothways.text.columns import Columns, is_usual_label
from bothways.text.streams import STDIN
from bothways.train.soft_targets import soft_distance

if TYPE_CHECKING:
    from bothways.model.model import Model

_PROBLEMS: dict[LabelKind, str] = {
    "single": "single_label_classification",
    "multi": "multi_label_classification",
    "regression": "regression",
}
_BALANCED = ("classify.class_weights=balanced", "classify.metric=macro_f1")
_ADVICE: dict[str, tuple[str, tuple[str, ...]]] = {
    "single": (
        f"Set {_BALANCED[0]} to weight them, and {_BALANCED[1]} to select the model; or add rows with rare labels.",
        _BALANCED,
    ),
    "multi": (f"If the rare ones matter, set {_BALANCED[0]} to weight them, and look at macro_f1.", ()),
}
"""What to do if labels of this kind are unbalanced, and the settings that the next command gets."""


@dataclass(frozen=True)
class ClassifySettings(Bounded):
    """The `[classify]` part of a recipe."""

    section = "classify"

    kind: Literal["auto", LabelKind] = "auto"
    """One label per row, several, or a number; auto: decided from the data."""
    separator: str = ""
    """With kind multi: what separates the labels of a cell, such as |. By default found in the data."""
    tune_thresholds: bool = True
    """Several labels: choose the threshold of each by F1 on the development data; else all are 0.5."""
    label_smoothing: Probability = 0.0
    """Label smoothing: the share of the target that is spread over all labels."""
    focal_gamma: NotNegative = 0.0
    """Focal loss: rows whose gold label has probability p are weighted by (1 - p) to this power."""
    class_weights: Literal["none", "balanced"] | dict[str, NotNegative] = "none"
    """The weight of each label in the loss; balanced: inversely proportional to its frequency."""
    metric: str = ""
    """The score by which the best model is chosen, such as matthews or macro_f1, if not the default."""


@dataclass(frozen=True)
class ClassifyOptions(Bounded):
    """What config.json stores for a classifier."""

    section = "bothways"

    kind: LabelKind = "single"
    texts: Annotated[int, Range(0, 2)] = 0
    """Texts per example, one or two; 0: unknown, or both occur."""
    separator: str = ""
    """As in `ClassifySettings`, for files to evaluate on."""


class TextClassification(TextTask):
    """Sentiment, topics, natural language inference, paraphrases, similarity."""

    name = "classify"
    title = "text classification"
    aliases = ("text-classification", "sequence-classification", "regression")
    Settings = ClassifySettings
    Options = ClassifyOptions

    @classmethod
    def read(cls, files: Sequence[str], columns: Columns, notes: Notes, known: Any = None) -> Iterator[Text]:
        # "joy|awe" is two labels only if the user sets the kind to multi.
        if known is None or known.kind != "multi":
            return read_texts_labelled(files, columns, "auto", notes)
        return read_texts_labelled(files, columns, "multi", notes, known.separator)

    @classmethod
    def read_inputs(cls, file: str, columns: Columns, notes: Notes) -> Iterator[Text | LongInput]:
        return read_any_inputs(file, replace(columns, reads_label=False), notes)

    def known_columns(self, files: Sequence[str], columns: Columns) -> Columns:
        """Of several labels, the columns that have their names, if there is no column of labels."""
        if self.options.kind != "multi" or columns.label is not None or str(STDIN) in files:
            return columns
        first = {name for row in first_rows(find_sources(files, ROWS)[0])[:1] if isinstance(row, dict) for name in row}
        usual = any(is_usual_label(name) for name in first - set(self.labels))
        return columns if usual or not first >= set(self.labels) else replace(columns, label="+".join(self.labels))

    @classmethod
    def parse(cls, given: Any) -> Text:
        return as_text(given)

    @classmethod
    def plan(
        cls, settings: ClassifySettings, window: WindowSettings, examples: Sequence[Text], max_length: int
    ) -> tuple[TaskConfig, tuple[str, ...]]:
        kind = settings.kind if settings.kind != "auto" else label_kind(example.gold for example in examples)
        if settings.kind == "auto" and kind == "single":
            _require_one_label(examples)
        labels = NUMBER if kind == "regression" else label_names(as_kind(example, kind) for example in examples)
        if kind == "single" and len(labels) < 2:
            raise BothwaysError(f"all rows have the label {labels[0]!r}: expected two or more", "one-label", labels[0])
        if not labels:
            raise BothwaysError("none of the training examples has a label: there is nothing to learn", "no-labels")
        counts = {len(example.texts) for example in examples}
        separator = settings.separator if kind == "multi" else ""
        options = ClassifyOptions(kind, counts.pop() if len(counts) == 1 else 0, separator)
        return TaskConfig(cls.name, window, options=options), labels

    @classmethod
    def normalise(cls, config: TaskConfig, example: Text) -> Text:
        return as_kind(example, config.options.kind)

    @classmethod
    def hf_config(cls, config: TaskConfig) -> dict[str, Any]:
        return {"problem_type": _PROBLEMS[config.options.kind]}

    @classmethod
    def infer(cls, model: ModelFacts) -> TaskConfig | None:
        """None for a single output that is no plain number: a score, such as a reranker's."""
        problem = model.config.hf_config.get("problem_type")
        kind: LabelKind = next((kind for kind, theirs in _PROBLEMS.items() if theirs == problem), "single")
        is_number = kind == "regression" and named_activation(model.config.hf_config) is None
        if len(model.config.labels) == 1 and not is_number:
            return None
        return TaskConfig(cls.name, options=ClassifyOptions(kind))

    def __init__(
        self,
        model: ModelFacts,
        config: TaskConfig,
        settings: ClassifySettings | None = None,
        train: Sequence[Text] = (),
    ) -> None:
        super().__init__(model, config, settings)
        self.number = {name: i for i, name in enumerate(self.labels)}
        if self.labels == nameless(len(self.labels)):  # then the data have numbers
            self.number |= {str(i): i for i in range(len(self.labels))}
        self.texts_wanted = self.options.texts
        self.weights = self._weights(train)
        usual = {"single": "accuracy", "multi": "micro_f1", "regression": "spearman"}[self.options.kind]
        self.metric = self.settings.metric or usual
        require_choice("classify.metric", self.metric, tuple(self.new_scores().scores()))
        self.has_probabilities = self.options.kind != "regression"
        self.errors_title = "Largest errors" if self.options.kind == "regression" else "Most confident errors"

    def _weights(self, train: Sequence[Text]) -> NDArray[np.float32]:
        wanted = self.settings.class_weights
        if wanted == "none":
            return np.ones(len(self.labels), np.float32)
        if isinstance(wanted, dict):
            if unknown := set(wanted) - set(self.labels):
                names = ", ".join(sorted(unknown))
                raise BothwaysError(
                    f"classify.class_weights names {names}, but no row has this label", "unknown-label", names
                )
            return np.array([wanted.get(name, 1.0) for name in self.labels], np.float32)
        counts = np.zeros(len(self.labels))
        for example in train:
            for name in dict.fromkeys(names_of(example.gold) if example.gold is not None else ()):
                counts[self.number[name]] += example.weight
        return np.asarray(counts.mean() / np.where(counts > 0, counts, 1), np.float32)

    def gold(self, example: Text) -> Any:
        if self.options.kind == "regression":
            return as_number(example)
        names = example.gold if isinstance(example.gold, tuple) else (example.gold,)
        if unknown := [name for name in names if name not in self.number]:
            raise BothwaysError(
                f"{example.where} has the label {unknown[0]!r}, but this model knows {name_list(self.labels)}: "
                "rename it, or fine-tune a model with it",
                "unknown-label",
                unknown[0],
            )
        numbers = [self.number[str(name)] for name in names]
        return numbers[0] if self.options.kind == "single" else np.isin(np.arange(len(self.labels)), numbers)

    def collate(self, samples: Sequence[Sample], batch: Batch) -> tuple[dict[str, Tensor], float]:
        golds, shares = zip(*(sample.target for sample in samples), strict=True)
        share = np.array(shares, np.float32)
        if self.options.kind == "single":
            gold = torch.tensor(golds)
            weight = share * self.weights[gold.numpy()]
            return {"gold": gold, "weight": torch.from_numpy(weight)}, float(weight.sum())
        gold = torch.from_numpy(np.array(golds, np.float32))
        return {"gold": gold, "weight": torch.from_numpy(share)}, float(share.sum())

    def loss(self, model: "Model", states: Tensor, batch: Batch, targets: Targets) -> Tensor:
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

    def predictions(self, outputs: Outputs, counts: Indices) -> NDArray[np.float64]:
        """(texts, C) probabilities, or numbers. The logits of a long text's windows are averaged."""
        logits = mean_of_windows(outputs, counts)
        if self.options.kind == "regression":
            return logits
        logits /= self.config.temperature
        # One label: softmax. Several: a sigmoid for each.
        is_single = self.options.kind == "single"
        against = np.logaddexp.reduce(logits, 1, keepdims=True) if is_single else np.logaddexp(logits, 0)
        probabilities: NDArray[np.float64] = np.exp(logits - against)
        return probabilities

    def answer(self, item: EncodedExample, decoded: NDArray[np.float64], top: int = 1) -> Any:
        """{"label", "score"}; for several labels, and with top > 1, a list of these, the most probable first."""
        if self.options.kind != "multi" and top == 1:
            best = int(decoded.argmax())
            return {"label": self.labels[best], "score": float(decoded[best])}
        order = np.argsort(-decoded, kind="stable")
        found = [{"label": self.labels[i], "score": float(decoded[i])} for i in order]
        if self.options.kind == "multi" and top == 1:
            return [one for one in found if one["score"] >= self.threshold(str(one["label"]))]
        return found[:top]

    def threshold(self, label: str) -> float:
        return self.config.thresholds.get(label, 0.5)

    def tune(self, scores: Any) -> Any:
        if self.options.kind != "multi" or not self.settings.tune_thresholds:
            return scores
        self.config = replace(self.config, thresholds=scores.tuned_thresholds())
        return scores.rescored(self.config.thresholds)

    def calibration(self, item: EncodedExample, decoded: NDArray[np.float64]) -> tuple[NDArray[np.float64], int] | None:
        if self.options.kind != "single":
            return None
        return np.log(np.maximum(decoded, 1e-30)), self.gold(item.example)

    def new_scores(self) -> Classes | ManyLabels | Regression:
        if self.options.kind == "regression":
            return Regression()
        if self.options.kind == "single":
            return Classes(self.labels)
        return ManyLabels(self.labels, [self.threshold(label) for label in self.labels])

    def error(self, item: EncodedExample, decoded: NDArray[np.float64]) -> float:
        """The probability of a wrong label; of several labels, the largest error of a wrong decision."""
        gold = self.gold(item.example)
        if self.options.kind == "single":
            best = int(decoded.argmax())
            return 0.0 if best == gold else float(decoded[best])
        errors = np.abs(decoded - gold)
        if self.options.kind == "multi":
            errors *= (decoded >= [self.threshold(label) for label in self.labels]) != gold
        return float(errors.max())

    def count(self, scores: Any, item: EncodedExample, decoded: NDArray[np.float64]) -> None:
        gold = self.gold(item.example)
        scores.add([gold], decoded if self.options.kind == "regression" else [decoded])

    # ------------------------------------------------------------------ checks of labelled data

    @classmethod
    def reconsider(cls, counts: DataCounts) -> Reconsidered | None:
        """Cells such as joy|awe, and a column of 0 and 1 for each label, are several labels."""
        if not counts.labelled and counts.columns.label is None:
            if not (columns := find_indicators(counts.files, counts.columns)):
                return None
            says = f"There is no column of labels, but {len(columns):,} of 0 and 1: {listed(columns)}. Each is a label."
            finding = Finding("ok", "several labels", says, "Leave those out of `label` that are none.")
            return Reconsidered(cls.Settings(), "+".join(columns), finding)
        if not counts.golds or cls.data_kind(counts) != "single":
            return None
        names = cls.label_counts(counts, "single")
        if not (mark := evident_separator(names)):
            return None
        joined = [name for name in names if mark in name]
        says = f"{len(joined):,} different cells hold several labels, separated by {mark!r}, as in {joined[0]!r}."
        do = "If each is one label, set classify.kind=single."
        wanted = ("classify.kind=multi", f"classify.separator={mark}")
        finding = Finding("ok", "several labels", says, do, len(joined), settings=wanted)
        return Reconsidered(cls.Settings(kind="multi", separator=mark), "", finding)

    @classmethod
    def check_rows(cls, counts: DataCounts, kind: str) -> Iterator[Finding]:
        """Labels that are not numbers where nearly all others are quantities."""
        odd = not_numbers(counts)
        quantities = any(number % 1 for gold in counts.golds if (number := finite_number(gold)))
        few = sum(odd.values()) < counts.golds.total() / 10
        if odd and kind != "multi" and (any(isinstance(gold, float) for gold in odd) or (quantities and few)):
            yield number_finding(counts, odd)

    @classmethod
    def check_labels(cls, counts: DataCounts, kind: str) -> Iterator[Finding]:
        names = cls.label_counts(counts, kind)
        if kind == "regression" or not names:
            return
        if kind == "multi" and (none := counts.golds[()]):
            says = f"{none:,} of {counts.labelled:,} texts have none of the labels, and are learned as such."
            yield Finding("ok", "labels", says, "If nobody has labelled some of them yet, leave those out.", none)
        if kind == "single" and len(names) == 1:
            says = f"All rows have the label {next(iter(names))!r}: there is nothing to learn."
            yield Finding("error", "labels", says, "Add rows with other labels, or name the right column with `label`.")
        elif kind == "single" and len(names) > max(counts.labelled / 2, MAX_PLACES):
            says = f"There are {len(names):,} different labels in {counts.labelled:,} rows."
            yield Finding("error", "labels", says, "Name the right column with `label`.", len(names))
        else:
            yield check_balance(names, "labels", *_ADVICE[kind])
            yield from check_spelling(names, counts)
            yield from check_missing(names, counts)
            if kind == "single":
                yield from check_meaning(names, counts)

    @classmethod
    def check_dev(cls, train: DataCounts, dev: DataCounts, kind: str) -> Iterator[Finding]:
        if kind == "regression":
            return
        if (other := cls.data_kind(dev)) != kind:
            says = f"The labels of the development data are of the kind {other}, those of the training data {kind}."
            yield Finding("error", "unknown labels", says, "Write both files in the same way.")
        else:
            yield check_known(cls.label_counts(train, kind), cls.label_counts(dev, kind), dev)


def _require_one_label(examples: Sequence[Text]) -> None:
    """Refuse cells that look like several labels: as one name each, they would be learned wrongly."""
    names = Counter(example.gold for example in examples if isinstance(example.gold, str))
    if mark := evident_separator(names):
        joined = next(name for name in names if mark in name)
        raise BothwaysError(
            f"cells such as {joined!r} look like several labels, separated by {mark}: set classify.kind=multi, or "
            "classify.kind=single if each is one label",
            "several-labels",
            joined,
        )
