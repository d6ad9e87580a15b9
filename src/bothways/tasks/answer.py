"""Extractive question answering: the answer is a span of the text, or the text has none.

N tokens in the batch · B sequences · L tokens of a window.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.data.columns import Columns
from bothways.data.examples import Question
from bothways.data.notes import Notes
from bothways.data.questions import read_questions
from bothways.engine.reader import Read, View, WindowSettings
from bothways.errors import BothwaysError
from bothways.model.batch import Batch
from bothways.model.model import Model
from bothways.scoring.answers import Answers
from bothways.tasks.losses import grouped_cross_entropy, grouped_imitation
from bothways.tasks.task import EncodedExample, Outputs, Sample, Targets, Task, TaskConfig

NULL = "null"


@dataclass(frozen=True)
class AnswerSettings:
    """The `[answer]` part of a recipe."""

    max_answer_length: int = 30
    """Tokens of the longest answer."""

    def __post_init__(self) -> None:
        if self.max_answer_length < 1:
            raise BothwaysError(f"answer.max_answer_length must be 1 or more, not {self.max_answer_length}")


@dataclass(frozen=True)
class SpanScores:
    """What a text answers to a question: the score of every span that can be an answer."""

    read: Read
    starts: list[int]
    """For each window, the first token of the encoding that is its own."""
    tables: list[NDArray[np.float64]]
    """For each window (own tokens, longest): the score of the span that begins there and has so many tokens more."""
    null: float
    """The score of no answer …"""
    may_be_none: bool
    """… which takes its share of the chances only from a model that was taught of questions without one."""

    def best(self, count: int = 1) -> list[tuple[int, int, float]]:
        """The best pieces of the text, from character to character, with the chance of each; none overlaps a better."""
        offsets, left = self.read.encoding.offsets, [table.copy() for table in self.tables]
        found: list[tuple[int, int, float]] = []
        while len(found) < count:
            top = max(range(len(left)), key=lambda w: left[w].max(initial=-np.inf))
            score = left[top].max(initial=-np.inf)
            if score == -np.inf:
                break
            token, more = divmod(int(left[top].argmax()), left[top].shape[1])
            first = self.starts[top] + token
            start, end = offsets[first][0], offsets[first + more][1]
            if end > start:
                found.append((start, end, float(np.exp(score - self.everything))))
            for table, begin in zip(left, self.starts, strict=True):  # what shares a token with it is out
                firsts = begin + np.arange(len(table))[:, None]
                lasts = firsts + np.arange(table.shape[1])
                table[(firsts <= first + more) & (lasts >= first)] = -np.inf
        return found

    @cached_property
    def everything(self) -> float:
        """The logarithm of what all that may be answered adds up to."""
        none = [self.null] if self.has_none else []
        return float(np.logaddexp.reduce(np.concatenate([none, *(table.ravel() for table in self.tables)])))

    @property
    def has_none(self) -> bool:
        """Whether no answer is one of those that may be given; it is the only one where there are no spans."""
        return self.may_be_none or self.margin == np.inf

    @property
    def none(self) -> float:
        """The chance that the text has no answer."""
        return float(np.exp(self.null - self.everything)) if self.has_none else 0.0

    @property
    def margin(self) -> float:
        """By how much no answer scores above the best one."""
        return self.null - max(float(table.max(initial=-np.inf)) for table in self.tables)


class QuestionAnswering(Task):
    """SQuAD 1.1 and 2.0, CMRC."""

    name = "answer"
    aliases = ("qa", "question-answering", "extractive-qa")
    head = "span"
    per_token = True
    columns = ()
    pair_part = "second"
    epochs = 2
    Settings = AnswerSettings
    Options = AnswerSettings

    @classmethod
    def read(cls, files: Sequence[str], columns: Columns, notes: Notes, known: Any = None) -> Iterator[Question]:
        cls.refuse_columns(columns)
        return read_questions(files, notes)

    @classmethod
    def parse(cls, given: Any) -> Question:
        question, context = named_pair(given, ("question", "context"))
        if not isinstance(context, str):
            raise BothwaysError(
                f"the context was expected to be a text, and {context!r} was given", "bad-input", context
            )
        return Question("", question, context)

    @classmethod
    def plan(
        cls, settings: AnswerSettings, window: WindowSettings, examples: Sequence[Question], max_length: int
    ) -> tuple[TaskConfig, tuple[str, ...]]:
        window = window if window.length else replace(window, length=min(384, max_length))
        has_none = any(example.gold is not None and not example.gold for example in examples)
        return TaskConfig(cls.name, window, thresholds={NULL: 0.0} if has_none else {}, options=settings), ()

    @classmethod
    def tuned(cls, config: TaskConfig, scores: Mapping[str, float]) -> TaskConfig:
        if NULL not in config.thresholds or "best_f1_threshold" not in scores:
            return config
        return replace(config, thresholds={NULL: scores["best_f1_threshold"]})

    def __init__(self, model: Model, config: TaskConfig, settings: Any = None, golds: Sequence[Any] = ()) -> None:
        super().__init__(model, config)
        self.metric = "best_f1" if NULL in config.thresholds else "f1"

    def encode(self, examples: Sequence[Question]) -> list[EncodedExample]:
        reads = self.reader([(example.question, example.context) for example in examples])
        return [EncodedExample(example, [read]) for example, read in zip(examples, reads, strict=True)]

    def samples(self, item: EncodedExample) -> list[Sample]:
        """Every window; where the answer is not whole in it, [CLS] is the target, as in BERT.

        An answer that is nowhere in the text is not learned from.
        """
        if item.example.gold and all(place < 0 for _, place in item.example.gold):
            return []
        span = answer_tokens(item)
        return [Sample.of([view], _inside(view, span)) for view in item.views]

    def collate(self, samples: Sequence[Sample], batch: Batch) -> tuple[dict[str, Tensor], float]:
        starts = batch.cu_seqlens[:-1].long()
        first, last = torch.tensor([sample.target for sample in samples]).T
        owner = torch.repeat_interleave(torch.arange(batch.size), batch.lengths)
        # Half each, so that the loss is the mean of both ends.
        return {"first": starts + first, "last": starts + last, "owner": owner}, 2.0 * len(samples)

    def loss(self, model: Model, states: Tensor, batch: Batch, targets: Targets) -> Tensor:
        first, last = self.outputs(model, states, batch).unbind(1)
        owner = targets["owner"]
        return grouped_cross_entropy(first, owner, targets["first"]) + grouped_cross_entropy(
            last, owner, targets["last"]
        )

    def imitation(self, own: Tensor, taught: Tensor, targets: Targets, temperature: float) -> Tensor:
        owner, groups = targets["owner"], len(targets["first"])
        ends = [grouped_imitation(own[:, i], taught[:, i], owner, groups, temperature) for i in (0, 1)]
        return ends[0] + ends[1]

    def outputs(self, model: Model, states: Tensor, batch: Batch) -> Tensor:
        return model.logits("span", states, batch)

    def decode(self, item: EncodedExample, outputs: Sequence[Outputs]) -> SpanScores:
        """All spans of all windows, a window answering for those that begin in its own part."""
        starts, tables, null = [], [], np.inf
        for view, rows in zip(item.views, outputs, strict=True):
            logits: NDArray[np.float64] = rows.astype(np.float64) / self.config.temperature
            null = min(null, float(logits[0].sum()))
            starts.append(view.window.own)
            tables.append(self._spans(view, logits))
        return SpanScores(item.reads[0], starts, tables, null, NULL in self.config.thresholds)

    def _spans(self, view: View, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """(own tokens, longest), as in Found."""
        window, longest = view.window, self.options.max_answer_length
        first = rows[window.own - view.shift : window.own_end - view.shift, 0]
        last = rows[window.own - view.shift : window.end - view.shift, 1]
        ends = np.concatenate([last, np.full(longest, -np.inf)])
        table: NDArray[np.float64] = np.lib.stride_tricks.sliding_window_view(ends, longest)[: len(first)]
        return first[:, None] + table

    def answer(self, item: EncodedExample, decoded: SpanScores, top: int = 1) -> Any:
        """{"score", "start", "end", "answer"}; no answer is an empty one. With top > 1 a list, the likeliest first."""
        context = item.example.context
        listed = [
            {"score": chance, "start": start, "end": end, "answer": context[start:end]}
            for start, end, chance in decoded.best(top)
        ]
        nothing = {"score": decoded.none, "start": 0, "end": 0, "answer": ""}
        if self.answers_none(decoded):
            listed.insert(0, nothing)
        elif NULL in self.config.thresholds:
            listed.append(nothing)
        return listed[0] if top == 1 else listed[:top]

    def answers_none(self, decoded: SpanScores) -> bool:
        """Whether "no answer" wins. A model that was never taught of questions without one always answers."""
        if decoded.margin == np.inf:
            return True
        return NULL in self.config.thresholds and decoded.margin > self.config.thresholds[NULL]

    def text(self, item: EncodedExample, decoded: SpanScores) -> str:
        """The best answer itself, whatever the threshold says."""
        start, end, _ = next(iter(decoded.best()), (0, 0, 0.0))
        text: str = item.example.context[start:end]
        return text

    def new_scores(self) -> Answers:
        return Answers(threshold=self.config.thresholds.get(NULL))

    def error(self, item: EncodedExample, decoded: SpanScores) -> float:
        """How likely it was, if it was not among the gold answers."""
        right = {(start, start + len(text)) for text, start in item.example.gold}
        if self.answers_none(decoded):
            return decoded.none if right else 0.0
        start, end, chance = next(iter(decoded.best()), (0, 0, 0.0))
        return 0.0 if (start, end) in right else chance

    def count(self, scores: Any, item: EncodedExample, decoded: SpanScores) -> None:
        gold = [text for text, _ in item.example.gold]
        scores.add(item.example.id, gold, self.text(item, decoded), decoded.margin)


def answer_tokens(item: EncodedExample) -> tuple[int, int] | None:
    """The first and last token, in the encoding, of the first answer that can be found; None if there is none."""
    read = item.reads[0]
    offsets = read.places()
    for text, start in item.example.gold or ():
        end = start + len(text)
        if start < 0 or not text or not len(offsets):
            continue
        first = int(np.searchsorted(offsets[:, 1], start, "right"))
        last = int(np.searchsorted(offsets[:, 0], end, "left")) - 1
        if first <= last:
            return first + read.inside.start, last + read.inside.start
    return None


def _inside(view: View, span: tuple[int, int] | None) -> tuple[int, int]:
    """The span within the window's sequence; (0, 0), which is [CLS], if it is not all there."""
    if span is None or span[0] < view.window.start or span[1] >= view.window.end:
        return 0, 0
    return span[0] - view.shift, span[1] - view.shift


def named_pair(given: Any, names: tuple[str, str]) -> tuple[Any, Any]:
    """The two values of a pair, or of a dictionary with these keys."""
    if isinstance(given, Mapping) and all(name in given for name in names):
        given = given[names[0]], given[names[1]]
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str):
        return given
    wanted = " and ".join(names)
    raise BothwaysError(
        f"a pair of {wanted}, or a dictionary, was expected, and {given!r} was given", "bad-input", given
    )
