"""What the tasks on a text or a pair of texts share: inputs, samples, and the checks of their labels.

B sequences.
"""

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bothways.data.examples import Gold, Text
from bothways.data.findings import DataCounts, Finding
from bothways.data.label_checks import by_count, listed
from bothways.data.labels import label_kind, names_of, number_of
from bothways.engine.sequences import Indices
from bothways.errors import BothwaysError
from bothways.lazy import Tensor
from bothways.model.batch import Batch
from bothways.tasks.task import EncodedChunk, EncodedExample, Outputs, Sample, Task

if TYPE_CHECKING:
    from bothways.model.model import Model

NUMBER = ("score",)
"""The labels of a new head whose only output is a number: its name is free."""
CROSS_ENCODER_KEYS = ("sentence_transformers", "sbert_ce_default_activation_function")
"""Keys of config.json with which sentence-transformers names a cross-encoder's activation: since 4.0, and before."""
_BINS = 5
"""Intervals into which numbers are counted."""


class TextTask(Task):
    """A task whose examples are `Text` and whose head reads the whole sequence."""

    head = "sequence"
    needs_offsets = False
    ambiguous_kinds = ("regression", "multi")
    texts_wanted: int = 0
    """Texts that every example must have; 0: one or two."""

    def encode(self, examples: Sequence[Text], before: int = 0) -> EncodedChunk:
        for example in examples:
            self.require_texts(len(example.texts), example.where)
        return EncodedChunk(examples, self.reader([example.texts for example in examples], before))

    def require_texts(self, count: int, where: str) -> None:
        """Refuse an example with so many texts if this model reads another number."""
        if self.texts_wanted and count != self.texts_wanted:
            has, wants = ("one text", "pairs") if self.texts_wanted == 2 else ("two texts", "single texts")
            raise BothwaysError(
                f"{where or 'an input'} has {has}, but this model reads {wants}", "wrong-text-count", where
            )

    def gold(self, example: Text) -> Any:
        """The gold in numbers."""
        raise NotImplementedError

    def check(self, example: Text) -> None:
        self.gold(example)

    def samples(self, item: EncodedExample) -> list[Sample]:
        """One sample per window; all windows of a text together have its weight."""
        gold, weight = self.gold(item.example), item.example.weight
        return [Sample.of([view], (gold, weight / len(item.views))) for view in item.views]

    def outputs(self, model: "Model", states: Tensor, batch: Batch) -> Tensor:
        return model.logits(self.head, states, batch)

    @abstractmethod
    def predictions(self, outputs: Outputs, counts: Indices) -> Any:
        """(texts, …) predictions from the outputs (windows, …), of which each text has so many."""

    def decode(self, item: EncodedExample, outputs: Sequence[Outputs]) -> Any:
        return self.predictions(np.asarray(outputs), np.array([len(outputs)]))[0]

    def decode_chunk(self, items: EncodedChunk, outputs: Outputs) -> Iterable[Any]:
        return iter(self.predictions(outputs, items.counts)) if len(items) else ()

    # ------------------------------------------------------------------ checks of labelled data

    @classmethod
    def gold_key(cls, example: Text) -> str | None:
        """5.000 equals 5.0, and several labels are equal in any order."""
        return None if example.gold is None else "\x1f".join(sorted(map(_as_number, names_of(example.gold))))

    @classmethod
    def shown_gold(cls, example: Text) -> str:
        return "" if example.gold is None else ", ".join(names_of(example.gold)) or "no label"

    @classmethod
    def survey(cls, example: Text, counts: DataCounts) -> None:
        counts.measure("characters in a text", sum(map(len, example.texts)), example.where)
        if isinstance(example.gold, tuple):
            counts.measure("labels of a text", len(set(example.gold)), example.where)
        if example.gold is not None:
            counts.golds[example.gold] += 1
            counts.place(names_of(example.gold), example.where)

    @classmethod
    def data_kind(cls, counts: DataCounts) -> str:
        return label_kind(counts.golds) if counts.golds else ""

    @classmethod
    def label_counts(cls, counts: DataCounts, kind: str) -> dict[str, int]:
        """The labels; numbers are counted in five intervals."""
        if kind == "regression":
            return intervals(counts.golds)
        names: Counter[str] = Counter()
        for gold, count in counts.golds.items():
            names.update(dict.fromkeys(names_of(gold), count))
        return by_count(names)

    @classmethod
    def exemplars(cls, counts: DataCounts) -> list[Text]:
        return [Text((), gold) for gold in counts.golds]


def named_activation(hf_config: Mapping[str, Any]) -> str | None:
    """The activation that sentence-transformers applies to the logits, as its keys of config.json name it."""
    new, old = (hf_config.get(key) for key in CROSS_ENCODER_KEYS)
    found = new["activation_fn"] if isinstance(new, Mapping) and "activation_fn" in new else old
    return None if found is None else str(found)


def mean_of_windows(outputs: Outputs, counts: Indices) -> NDArray[np.float64]:
    """(windows, …) → (texts, …): the mean over the windows of each text."""
    found: NDArray[np.float64] = np.add.reduceat(outputs.astype(np.float64), np.cumsum(counts) - counts)
    return found / counts.reshape(-1, *(1,) * (outputs.ndim - 1))


def as_text(given: Any) -> Text:
    """A text or a pair of texts as an example."""
    if isinstance(given, str):
        return Text((given,))
    if isinstance(given, Mapping):
        if unknown := [str(name) for name in given if name not in ("text", "text_pair")]:
            raise BothwaysError(
                f"an input has the key {unknown[0]!r}: expected text, and text_pair for a second text",
                "bad-input",
                given,
            )
        given = (given["text"], given["text_pair"]) if "text_pair" in given else given.get("text")
    texts = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Sequence | np.ndarray) else ()
    if not all(isinstance(text, str) for text in texts) or len(texts) not in (1, 2):
        raise BothwaysError(f"expected a text or a pair of texts, and {given!r} was given", "bad-input", given)
    return Text(texts)


def finite_number(gold: Gold) -> float | None:
    """The number that a label is or spells; None if it is none, or not finite."""
    number = number_of(gold)
    return number if number is not None and math.isfinite(number) else None


def not_numbers(counts: DataCounts) -> dict[Gold, int]:
    """The golds that are not finite numbers, with their frequency."""
    return {gold: count for gold, count in counts.golds.items() if finite_number(gold) is None}


def number_finding(counts: DataCounts, odd: Mapping[Gold, int]) -> Finding:
    """The error about golds that should be numbers."""
    rows, names = sum(odd.values()), [", ".join(names_of(gold)) for gold in odd]
    what = "finite number" if any(isinstance(gold, float) for gold in odd) else "number"
    are = f"1 label is not a {what}" if rows == 1 else f"{rows:,} labels are not {what}s"
    says = f"{are}: {listed(names)}."
    return Finding("error", "labels", says, "Write numbers, as in the other rows.", rows, counts.label_places(names))


def _as_number(name: str) -> str:
    try:
        return repr(float(name))
    except ValueError:
        return name


def intervals(golds: Mapping[Gold, int]) -> dict[str, int]:
    """How many numbers are in each of five intervals."""
    numbers = [(number, count) for gold, count in golds.items() if (number := finite_number(gold)) is not None]
    if not numbers:
        return {}
    low, high = min(numbers)[0], max(numbers)[0]
    step = high / _BINS - low / _BINS or 1.0  # the difference of the largest floats is infinite
    names = [f"{low + i * step:.4g} to {low + (i + 1) * step:.4g}" for i in range(_BINS if high > low else 1)]
    found = dict.fromkeys(names, 0)
    for number, count in numbers:
        found[names[min(int((number - low) / step), len(names) - 1)]] += count
    return found
