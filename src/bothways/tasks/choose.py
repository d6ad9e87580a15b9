"""Multiple choice: which of several options answers the question?

B sequences · O options of all examples together · G examples.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bothways.data.examples import Choice
from bothways.data.findings import DataCounts, Finding, cut, normal, percent
from bothways.data.multiple_choice import OPTIONS, read_choices
from bothways.data.notes import Notes
from bothways.engine.reader import WindowSettings
from bothways.engine.sequences import Indices
from bothways.errors import BothwaysError
from bothways.lazy import Tensor, torch
from bothways.model.batch import Batch
from bothways.scoring.ranking import Accuracy
from bothways.tasks.answer import named_pair
from bothways.tasks.losses import grouped_cross_entropy, grouped_imitation
from bothways.tasks.task import EncodedChunk, EncodedExample, Outputs, Sample, Targets, Task, TaskConfig
from bothways.tasks.text_task import mean_of_windows
from bothways.text.columns import Columns, in_english
from bothways.text.same_text import is_blank

if TYPE_CHECKING:
    from bothways.model.model import Model

_ENDING = re.compile(r"(?:ending|option|choice)_?\d")


class MultipleChoice(Task):
    """SWAG, RACE, DREAM, C3: the model reads each option after the context and the question, and scores it."""

    name = "choose"
    title = "multiple choice"
    aliases = ("multiple-choice",)
    golds = "answers"
    head = "choice"
    needs_offsets = False
    metric = "accuracy"
    errors_title = "Most confident errors"

    @classmethod
    def read(cls, files: Sequence[str], columns: Columns, notes: Notes, known: Any = None) -> Iterator[Choice]:
        return read_choices(files, notes, columns)

    @classmethod
    def read_inputs(cls, file: str, columns: Columns, notes: Notes) -> Iterator[Choice]:
        return read_choices([file], notes, replace(columns, label=None))

    @classmethod
    def parse(cls, given: Any) -> Choice:
        question, options = named_pair(given, ("question", "options"))
        if not isinstance(options, list | tuple) or not options or not all(isinstance(o, str) for o in options):
            raise BothwaysError(f"expected a list of texts as options, and {options!r} was given", "bad-input", options)
        context = given.get("context", "") if isinstance(given, Mapping) else ""
        return Choice(context, question, tuple(options))

    @classmethod
    def plan(
        cls, settings: Any, window: WindowSettings, examples: Sequence[Choice], max_length: int
    ) -> tuple[TaskConfig, tuple[str, ...]]:
        return TaskConfig(cls.name, window), ()

    def encode(self, examples: Sequence[Choice], before: int = 0) -> EncodedChunk:
        pairs = [_pair(example, option) for example in examples for option in example.options]
        sizes = np.array([len(example.options) for example in examples], np.int64)
        return EncodedChunk(examples, self.reader(pairs, before), sizes)

    def samples(self, item: EncodedExample) -> list[Sample]:
        """All options together, since they are compared with each other."""
        options = [number for number, read in enumerate(item.reads) for _ in read.views]
        return [Sample.of(item.views, (options, item.example.gold))]

    def collate(self, samples: Sequence[Sample], batch: Batch) -> tuple[dict[str, Tensor], float]:
        option: list[int] = []  # of each sequence, counted through the batch
        group: list[int] = []  # of each option
        right: list[int] = []  # of each group
        for number, sample in enumerate(samples):
            options, gold = sample.target
            right.append(len(group) + gold)
            option += [len(group) + o for o in options]
            group += [number] * (max(options) + 1)
        share = 1 / np.bincount(option)[option]
        targets = {"option": option, "group": group, "right": right}
        tensors = {name: torch.tensor(value) for name, value in targets.items()}
        return {**tensors, "share": torch.from_numpy(share.astype(np.float32))}, float(len(samples))

    def loss(self, model: "Model", states: Tensor, batch: Batch, targets: Targets) -> Tensor:
        options = _options(self.outputs(model, states, batch), targets)
        return grouped_cross_entropy(options, targets["group"], targets["right"])

    def imitation(self, own: Tensor, taught: Tensor, targets: Targets, temperature: float) -> Tensor:
        ours, theirs = (_options(outputs, targets) for outputs in (own, taught))
        return grouped_imitation(ours, theirs, targets["group"], len(targets["right"]), temperature)

    def outputs(self, model: "Model", states: Tensor, batch: Batch) -> Tensor:
        return model.logits("choice", states, batch)

    def decode(self, item: EncodedExample, outputs: Sequence[Outputs]) -> NDArray[np.float64]:
        """The probability of each option; the scores of a long text's windows are averaged."""
        windows = np.array([len(read.views) for read in item.reads])
        return next(self._decoded(np.asarray(outputs), windows, np.array([len(item.reads)])))

    def decode_chunk(self, items: EncodedChunk, outputs: Outputs) -> Iterable[NDArray[np.float64]]:
        if items.sizes is None or not len(items):
            return ()
        return self._decoded(outputs, items.reads.counts, items.sizes)

    def _decoded(self, outputs: Outputs, windows: Indices, sizes: Indices) -> Iterator[NDArray[np.float64]]:
        """For questions with so many options, which have so many windows."""
        logits = mean_of_windows(outputs, windows)[:, 0] / self.config.temperature
        ends = np.cumsum(sizes)
        totals = np.logaddexp.reduceat(logits, ends - sizes)
        probabilities = np.exp(logits - np.repeat(totals, sizes))
        return (probabilities[start:end] for start, end in zip((ends - sizes).tolist(), ends.tolist(), strict=True))

    def answer(self, item: EncodedExample, decoded: NDArray[np.float64], top: int = 1) -> Any:
        """{"label": the number of the option, "answer": its text, "score"}."""
        order = np.argsort(-decoded, kind="stable")
        options = item.example.options
        found = [{"label": int(i), "answer": options[i], "score": float(decoded[i])} for i in order]
        return found[0] if top == 1 else found[:top]

    @classmethod
    def shown_texts(cls, example: Any) -> Sequence[str]:
        return (example.question,)

    def new_scores(self) -> Accuracy:
        return Accuracy()

    def error(self, item: EncodedExample, decoded: NDArray[np.float64]) -> float:
        """The probability of a wrong option."""
        best = int(decoded.argmax())
        return 0.0 if best == item.example.gold else float(decoded[best])

    def count(self, scores: Any, item: EncodedExample, decoded: NDArray[np.float64]) -> None:
        scores.add([int(decoded.argmax()) == item.example.gold])

    # ------------------------------------------------------------------ checks of labelled data

    @classmethod
    def looks_like(cls, path: Path, rows: Sequence[Any]) -> bool:
        return any(map(_holds_options, rows))

    @classmethod
    def texts_of(cls, example: Choice) -> Sequence[str]:
        """The order of the options does not matter."""
        return (example.question, example.context, *sorted(example.options))

    @classmethod
    def texts_read(cls, example: Choice) -> Sequence[str]:
        return [text for option in example.options for text in _pair(example, option)]

    @classmethod
    def is_empty(cls, example: Choice) -> bool:
        return is_blank(example.context + example.question) or any(map(is_blank, example.options))

    @classmethod
    def shared_text(cls, example: Choice) -> str:
        return example.context

    @classmethod
    def gold_key(cls, example: Choice) -> str | None:
        return None if example.gold is None else normal(example.options[example.gold])

    @classmethod
    def shown_gold(cls, example: Choice) -> str:
        return "" if example.gold is None else cut(example.options[example.gold], 40)

    @classmethod
    def survey(cls, example: Choice, counts: DataCounts) -> None:
        size = len(example.options)
        counts.measure("options of a question", size, example.where)
        if example.context:
            counts.measure("characters in a text", len(example.context), example.where)
        if len({normal(option) for option in example.options}) < size:
            counts.fault("options", example.where)
        if example.gold is not None:
            counts.names[f"option {example.gold + 1}"] += 1
            for name in (f"option {number + 1}" for number in range(size)):
                counts.expected[name] = counts.expected.get(name, 0.0) + 1 / size

    @classmethod
    def label_counts(cls, counts: DataCounts, kind: str) -> dict[str, int]:
        """The number of the correct option."""
        return dict(sorted(counts.names.items(), key=lambda item: (len(item[0]), item[0])))

    @classmethod
    def exemplars(cls, counts: DataCounts) -> list[Choice]:
        return [Choice("", "", (), 0)]

    @classmethod
    def check_rows(cls, counts: DataCounts, kind: str) -> Iterator[Finding]:
        do = "Correct them: the model cannot tell which of the two is meant."
        yield from counts.rows_with("options", "warning", "two equal options", do)

    @classmethod
    def check_labels(cls, counts: DataCounts, kind: str) -> Iterator[Finding]:
        """Whether the correct option has one number more often than by chance."""
        if not counts.expected:
            return
        total = counts.names.total()
        name = max(counts.expected, key=lambda name: counts.names[name] - counts.expected[name])
        seen, expected = counts.names[name], counts.expected[name]
        deviation = (seen - expected) / math.sqrt(max(expected * (1 - expected / total), 1e-9))
        by_chance = percent(expected, total)
        says = f"{name.capitalize()} is correct in {percent(seen, total)} of the questions; by chance in {by_chance}."
        if deviation > 4 and seen > 1.2 * expected:
            do = "Shuffle the options, above all for models that read them together; bothways reads each by itself."
            yield Finding("warning", "position", says, do, seen)
        else:
            yield Finding("ok", "position", says, count=seen)


def _holds_options(value: Any) -> bool:
    """Whether a value is DREAM's, RACE's, CommonsenseQA's, or a row with options."""
    match value := in_english(value):
        case [list(), list(), *_] | {"article": _, "questions": list(), "options": list()}:
            return True
        case {"question": {"choices": _}}:
            return True
        case dict() if "answers" not in value:  # SQuAD's key
            listed = any(isinstance(value.get(name), list | dict) for name in OPTIONS)
            return listed or sum(bool(_ENDING.fullmatch(str(name))) for name in value) > 1
    return False


def _options(outputs: Tensor, targets: Targets) -> Tensor:
    """One score per option, the mean over its windows: (B, 1) → (O,)."""
    each = outputs[:, 0].float() * targets["share"]
    return each.new_zeros(len(targets["group"])).index_add(0, targets["option"], each)


def _pair(example: Choice, option: str) -> tuple[str, str]:
    """The context, then the question with the option; without a context, the question and the option."""
    if not example.context:
        return example.question, option
    return example.context, f"{example.question} {option}".strip()
