"""Extractive question answering: the answer is a span of the context, or the context has none.

N tokens in the batch · B sequences · L tokens of a window.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bothways.data.examples import Question
from bothways.data.findings import DataCounts, Finding, Severity, cut, percent
from bothways.data.notes import Notes
from bothways.data.questions import read_questions
from bothways.data.words import split_words
from bothways.engine.reader import WindowSettings
from bothways.engine.reads import Reads, View
from bothways.engine.sequences import Indices
from bothways.errors import BothwaysError
from bothways.lazy import Tensor, torch
from bothways.model.batch import Batch
from bothways.model.facts import ModelFacts
from bothways.ranges import Bounded, Size
from bothways.scoring.answers import Answers
from bothways.tasks.losses import grouped_cross_entropy, grouped_imitation
from bothways.tasks.spans import SpanScores, span_scores
from bothways.tasks.task import EncodedChunk, EncodedExample, Outputs, Sample, Targets, Task, TaskConfig
from bothways.text.columns import Columns, in_english

if TYPE_CHECKING:
    from bothways.model.model import Model

NULL = "null"
_LONG_ANSWERS = 0.01
"""Warn if more than this share of the answers is longer than the model may give."""
_TOKENS = "tokens in an answer"


@dataclass(frozen=True)
class AnswerSettings(Bounded):
    """The `[answer]` part of a recipe."""

    section = "answer"

    max_answer_length: Size = 30
    """The longest answer in tokens."""


class QuestionAnswering(Task):
    """SQuAD 1.1 and 2.0, CMRC."""

    name = "answer"
    title = "extractive question answering"
    aliases = ("qa", "question-answering", "extractive-qa")
    golds = "answers"
    head = "span"
    per_token = True
    pair_part = "second"
    epochs = 2
    marked_field, marked_title = "context", "question"
    errors_title = "Most confident errors"
    Settings = AnswerSettings
    Options = AnswerSettings

    @classmethod
    def read(cls, files: Sequence[str], columns: Columns, notes: Notes, known: Any = None) -> Iterator[Question]:
        return read_questions(files, notes, columns)

    @classmethod
    def read_inputs(cls, file: str, columns: Columns, notes: Notes) -> Iterator[Question]:
        return read_questions([file], notes, replace(columns, label=None))

    @classmethod
    def parse(cls, given: Any) -> Question:
        question, context = named_pair(given, ("question", "context"))
        if not isinstance(context, str):
            raise BothwaysError(f"expected a text as context, and {context!r} was given", "bad-input", context)
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

    def __init__(self, model: ModelFacts, config: TaskConfig, settings: Any = None, train: Sequence[Any] = ()) -> None:
        super().__init__(model, config)
        self.metric = "best_f1" if NULL in config.thresholds else "f1"

    def encode(self, examples: Sequence[Question], before: int = 0) -> EncodedChunk:
        pairs = [(example.question, example.context) for example in examples]
        return EncodedChunk(examples, self.reader(pairs, before))

    def samples(self, item: EncodedExample) -> list[Sample]:
        """One sample per window; if it does not hold the whole answer, [CLS] is the target, as in BERT.

        A question whose answer is not in the context gives none.
        """
        if item.example.gold and all(place < 0 for _, place in item.example.gold):
            return []
        span = answer_tokens(item)
        return [Sample.of([view], _inside(view, span)) for view in item.views]

    def collate(self, samples: Sequence[Sample], batch: Batch) -> tuple[dict[str, Tensor], float]:
        starts = batch.cu_seqlens[:-1].long()
        first, last = torch.tensor([sample.target for sample in samples]).T
        owner = torch.repeat_interleave(torch.arange(batch.size), batch.lengths)
        # Divided by two, so that the loss is the mean of both ends.
        return {"first": starts + first, "last": starts + last, "owner": owner}, 2.0 * len(samples)

    def loss(self, model: "Model", states: Tensor, batch: Batch, targets: Targets) -> Tensor:
        first, last = self.outputs(model, states, batch).unbind(1)
        owner = targets["owner"]
        return grouped_cross_entropy(first, owner, targets["first"]) + grouped_cross_entropy(
            last, owner, targets["last"]
        )

    def imitation(self, own: Tensor, taught: Tensor, targets: Targets, temperature: float) -> Tensor:
        owner, groups = targets["owner"], len(targets["first"])
        ends = [grouped_imitation(own[:, i], taught[:, i], owner, groups, temperature) for i in (0, 1)]
        return ends[0] + ends[1]

    def outputs(self, model: "Model", states: Tensor, batch: Batch) -> Tensor:
        return model.logits("span", states, batch)

    def decode(self, item: EncodedExample, outputs: Sequence[Outputs]) -> SpanScores:
        """All spans of all windows; a window scores those that begin in the part that it predicts."""
        return self._decoded(item.source, np.array([item.first]), np.concatenate(outputs))[0]

    def decode_chunk(self, items: EncodedChunk, outputs: Outputs) -> Iterable[SpanScores]:
        return self._decoded(items.reads, np.arange(len(items)), outputs)

    def _decoded(self, reads: Reads, numbers: Indices, rows: Outputs) -> list[SpanScores]:
        """The spans of several contexts, from the logits of all their windows."""
        logits, longest = rows.astype(np.float64) / self.config.temperature, self.options.max_answer_length
        return span_scores(reads, numbers, logits, longest, may_be_none=NULL in self.config.thresholds)

    def answer(self, item: EncodedExample, decoded: SpanScores, top: int = 1) -> Any:
        """{"score", "start", "end", "answer"}; no answer is "". With top > 1 a list, the most probable first."""
        context = item.example.context
        listed = [
            {"score": p, "start": start, "end": end, "answer": context[start:end]}
            for start, end, p in decoded.best(top)
        ]
        nothing = {"score": decoded.none, "start": 0, "end": 0, "answer": ""}
        if self.answers_none(decoded):
            listed.insert(0, nothing)
        elif NULL in self.config.thresholds:
            listed.append(nothing)
        return listed[0] if top == 1 else listed[:top]

    def gold_answer(self, example: Question) -> Any:
        found = [{"start": start, "end": start + len(text), "answer": text} for text, start in example.gold or ()]
        return [one for i, one in enumerate(found) if one not in found[:i]]  # annotators often agree

    def answers_none(self, decoded: SpanScores) -> bool:
        """Whether no answer wins. A model trained only on questions with an answer always gives one."""
        if decoded.margin == np.inf:
            return True
        return NULL in self.config.thresholds and decoded.margin > self.config.thresholds[NULL]

    def text(self, item: EncodedExample, decoded: SpanScores) -> str:
        """The best span, whatever the threshold."""
        start, end, _ = next(iter(decoded.best()), (0, 0, 0.0))
        text: str = item.example.context[start:end]
        return text

    @classmethod
    def shown_texts(cls, example: Any) -> Sequence[str]:
        return (example.question,)

    @classmethod
    def shown_part(cls, answer: Mapping[str, Any]) -> str:
        return super().shown_part(answer if answer.get("answer", True) else {**answer, "answer": "no answer"})

    def new_scores(self) -> Answers:
        return Answers(threshold=self.config.thresholds.get(NULL))

    def error(self, item: EncodedExample, decoded: SpanScores) -> float:
        """The probability of the answer, if it is not a gold answer."""
        right = {(start, start + len(text)) for text, start in item.example.gold}
        if self.answers_none(decoded):
            return decoded.none if right else 0.0
        start, end, p = next(iter(decoded.best()), (0, 0, 0.0))
        return 0.0 if (start, end) in right else p

    def count(self, scores: Any, item: EncodedExample, decoded: SpanScores) -> None:
        gold = [text for text, _ in item.example.gold]
        scores.add(item.example.id, gold, self.text(item, decoded), decoded.margin)

    # ------------------------------------------------------------------ checks of labelled data

    @classmethod
    def looks_like(cls, path: Path, rows: Sequence[Any]) -> bool:
        return any(map(_holds_question, rows))

    @classmethod
    def texts_of(cls, example: Question) -> Sequence[str]:
        return (example.question, example.context)

    @classmethod
    def shared_text(cls, example: Question) -> str:
        return example.context

    @classmethod
    def gold_key(cls, example: Question) -> str | None:
        """Whether there is an answer: a question may have several correct ones."""
        return None if example.gold is None else "an answer" if example.gold else "no answer"

    @classmethod
    def shown_gold(cls, example: Question) -> str:
        return cut(example.gold[0][0], 40) if example.gold else "" if example.gold is None else "no answer"

    @classmethod
    def survey(cls, example: Question, counts: DataCounts) -> None:
        super().survey(example, counts)
        counts.measure("words in a question", len(split_words(example.question)), example.where)
        counts.measure("characters in a text", len(example.context), example.where)
        for text, start in example.gold or ():
            counts.measure("characters in an answer", len(text), example.where)
            if start < 0:
                counts.fault("answers", f"{example.where} ({cut(text, 40)!r})")

    @classmethod
    def exemplars(cls, counts: DataCounts) -> list[Question]:
        return [Question("", "", "", (("", 0),) if name == "an answer" else ()) for name in counts.names]

    @classmethod
    def check_rows(cls, counts: DataCounts, kind: str) -> Iterator[Finding]:
        if spots := counts.faults.get("answers"):
            says = f"{spots.count:,} answer{'s are' if spots.count > 1 else ' is'} not in the context."
            do = "Correct them: no span can be learned."
            # Development data are scored by the text of the answer.
            severity: Severity = "warning" if counts.is_dev else "error"
            yield Finding(severity, "answers", says, do, spots.count, counts.short(spots.first))

    def survey_tokens(self, item: EncodedExample, counts: DataCounts) -> None:
        if span := answer_tokens(item):
            length = span[1] - span[0] + 1
            counts.measure(_TOKENS, length, item.example.where)
            if length > self.options.max_answer_length:
                counts.fault("long answers", item.example.where)

    def check_tokens(self, counts: DataCounts) -> Iterator[Finding]:
        """Answers with more tokens than the model may give, and the setting that allows 99 % of all."""
        if not (spots := counts.faults.get("long answers")):
            return
        lengths, longest = counts.lengths[_TOKENS].values, self.options.max_answer_length
        count, total = spots.count, lengths.total()
        says = f"{count:,} of {total:,} answers ({percent(count, total)}) have more than {longest} tokens, the maximum."
        if count > _LONG_ANSWERS * total:
            enough = sorted(lengths.elements())[math.ceil(0.99 * total) - 1]
            settings = (f"answer.max_answer_length={enough}",)
            do = f"Set {settings[0]}, which is enough for 99 % of them."
            yield Finding("warning", "long answers", says, do, count, counts.short(spots.first), settings)
        else:
            yield Finding("ok", "long answers", says, "", count, counts.short(spots.first))


def _holds_question(value: Any) -> bool:
    """Whether a value is SQuAD's, CMRC's, or a row with a question, a context and an answer."""
    match in_english(value):
        case {"paragraphs": list()} | {"data": list()} | {"context_text": str(), "qas": list()}:
            return True
        case {"question": str(), "context": str(), "answers": _} | {"question": _, "context": _, "answer": _}:
            return True
    return False


def answer_tokens(item: EncodedExample) -> tuple[int, int] | None:
    """The first and last token of the first gold answer that is in the context; None if there is none."""
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
    """The span in the window's sequence; (0, 0), which is [CLS], if the window does not hold all of it."""
    if span is None or span[0] < view.window.start or span[1] >= view.window.end:
        return 0, 0
    return span[0] - view.shift, span[1] - view.shift


def named_pair(given: Any, names: tuple[str, str]) -> tuple[Any, Any]:
    """The values of a pair, or of a dictionary with these keys."""
    if isinstance(given, Mapping) and all(name in given for name in names):
        given = given[names[0]], given[names[1]]
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str):
        return given
    wanted = " and ".join(names)
    raise BothwaysError(f"expected a pair of {wanted}, or a dictionary, and {given!r} was given", "bad-input", given)
