"""The answer to a question, as a piece of a text, or that the text has none.

N tokens in the batch · B sequences · L tokens of a window.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.data.examples import Question
from bothways.errors import BothwaysError
from bothways.model.batch import Batch
from bothways.model.model import Model
from bothways.scoring.answers import Answers
from bothways.tasks.folder import task_config
from bothways.tasks.losses import grouped_cross_entropy
from bothways.tasks.reading import Read, Reader, View
from bothways.tasks.task import Item, Outputs, Sample

NULL = "null"


@dataclass(frozen=True)
class AnswerSettings:
    """The `[answer]` part of a recipe."""

    longest: int = 30
    """An answer has at most so many tokens."""

    def __post_init__(self) -> None:
        if self.longest < 1:
            raise BothwaysError(f"answer.longest must be 1 or more, not {self.longest}")


@dataclass(frozen=True)
class Found:
    """What a text answers to a question."""

    answers: list[tuple[int, int, float]]
    """The best pieces of the text, from character to character, with the chance of each; none overlaps a better."""
    none: float
    """The chance that the text has no answer."""
    margin: float
    """By how much no answer scores above the best one."""


class Answer:
    """Extractive question answering: SQuAD 1.1 and 2.0, CMRC."""

    head = "span"
    per_token = True

    def __init__(self, model: Model, settings: AnswerSettings | None = None) -> None:
        assert model.tokenizer is not None
        self.config, self.settings = task_config(model), settings or AnswerSettings()
        self.goal = "best_f1" if NULL in self.config.thresholds else "f1"
        self.reader = Reader(model.tokenizer, model.config.encoder.limit, self.config.window, "second")

    def items(self, examples: Sequence[Question]) -> list[Item]:
        reads = self.reader([(example.question, example.context) for example in examples])
        return [Item(example, [read]) for example, read in zip(examples, reads, strict=True)]

    def samples(self, item: Item) -> list[Sample]:
        """Every window; where the answer is not whole in it, [CLS] is the target, as in BERT."""
        span = answer_tokens(item)
        return [Sample.of([view], _inside(view, span)) for view in item.views]

    def collate(self, samples: Sequence[Sample], batch: Batch) -> tuple[dict[str, Tensor], float]:
        starts = batch.cu[:-1].long()
        first, last = torch.tensor([sample.target for sample in samples]).T
        owner = torch.repeat_interleave(torch.arange(batch.size), batch.lengths)
        # Half each, so that the loss is the mean of both ends.
        return {"first": starts + first, "last": starts + last, "owner": owner}, 2.0 * len(samples)

    def loss(self, model: Model, states: Tensor, batch: Batch, targets: Mapping[str, Tensor]) -> Tensor:
        first, last = self.outputs(model, states, batch).unbind(1)
        owner = targets["owner"]
        return grouped_cross_entropy(first, owner, targets["first"]) + grouped_cross_entropy(
            last, owner, targets["last"]
        )

    def outputs(self, model: Model, states: Tensor, batch: Batch) -> Tensor:
        return model.logits("span", states, batch)

    def decide(self, item: Item, outputs: Sequence[Outputs]) -> Found:
        """The best spans of all windows, a window answering for those that begin in its own part."""
        scores, places, null = [], [], np.inf
        for view, rows in zip(item.views, outputs, strict=True):
            logits: NDArray[np.float64] = rows.astype(np.float64) / self.config.temperature
            null = min(null, logits[0].sum())
            own, found = self._spans(view, logits)
            scores.append(found)
            places.append(own)
        flat = np.concatenate([found.ravel() for found in scores])
        everything = np.logaddexp.reduce(np.append(flat, null))
        best = self._best(item.reads[0], scores, places)
        answers = [(start, end, float(np.exp(score - everything))) for start, end, score in best]
        top = best[0][2] if best else -np.inf
        return Found(answers, float(np.exp(null - everything)), float(null - top))

    def _spans(self, view: View, rows: NDArray[np.float64]) -> tuple[int, NDArray[np.float64]]:
        """The first token that is the window's own, and the score of every span that begins there or later:
        (own tokens, longest), by how many tokens it has more than one."""
        window, longest = view.window, self.settings.longest
        first = rows[window.own - view.shift : window.own_end - view.shift, 0]
        last = rows[window.own - view.shift : window.end - view.shift, 1]
        ends = np.concatenate([last, np.full(longest, -np.inf)])
        table = np.lib.stride_tricks.sliding_window_view(ends, longest)[: len(first)]
        return window.own, first[:, None] + table

    def _best(
        self, read: Read, scores: Sequence[NDArray[np.float64]], places: Sequence[int], count: int = 20
    ) -> list[tuple[int, int, float]]:
        """The best spans in characters with their scores, none overlapping a better one."""
        candidates = []
        for place, table in zip(places, scores, strict=True):
            flat = table.ravel()
            if not len(flat):
                continue
            for i in np.argpartition(-flat, min(4 * count, len(flat) - 1))[: 4 * count]:
                if flat[i] > -np.inf:
                    token, more = divmod(int(i), table.shape[1])
                    candidates.append((float(flat[i]), place + token, place + token + more))
        offsets = read.encoding.offsets
        found: list[tuple[int, int, float]] = []
        for score, first, last in sorted(candidates, key=lambda c: (-c[0], c[1], c[2])):
            start, end = offsets[first][0], offsets[last][1]
            if end > start and all(end <= s or start >= e for s, e, _ in found):
                found.append((start, end, score))
            if len(found) == count:
                break
        return found

    def present(self, item: Item, decision: Found, top: int = 1) -> Any:
        """{"score", "start", "end", "answer"}; no answer is an empty one. With top > 1 a list, the likeliest first."""
        context = item.example.context
        listed = [
            {"score": chance, "start": start, "end": end, "answer": context[start:end]}
            for start, end, chance in decision.answers
        ]
        nothing = {"score": decision.none, "start": 0, "end": 0, "answer": ""}
        if self.answers_none(decision):
            listed.insert(0, nothing)
        elif NULL in self.config.thresholds:
            listed.append(nothing)
        return listed[0] if top == 1 else listed[:top]

    def answers_none(self, decision: Found) -> bool:
        """Whether "no answer" wins. A model that was never taught of questions without one always answers."""
        if not decision.answers:
            return True
        return NULL in self.config.thresholds and decision.margin > self.config.thresholds[NULL]

    def text(self, item: Item, decision: Found) -> str:
        """The best answer itself, whatever the threshold says."""
        start, end, _ = decision.answers[0] if decision.answers else (0, 0, 0.0)
        text: str = item.example.context[start:end]
        return text

    def judge(self) -> Answers:
        return Answers(threshold=self.config.thresholds.get(NULL))

    def wrongness(self, item: Item, decision: Found) -> float:
        """How likely it was, if it was not among the gold answers."""
        right = {(start, start + len(text)) for text, start in item.example.gold}
        if self.answers_none(decision):
            return decision.none if right else 0.0
        start, end, chance = decision.answers[0]
        return 0.0 if (start, end) in right else chance

    def mark(self, judge: Any, item: Item, decision: Found) -> None:
        gold = [text for text, _ in item.example.gold]
        judge.add(item.example.id, gold, self.text(item, decision), decision.margin)


def answer_tokens(item: Item) -> tuple[int, int] | None:
    """The first and last token, in the encoding, of the first answer that can be found; None if there is none."""
    read = item.reads[0]
    offsets = np.array(read.encoding.offsets).reshape(-1, 2)[read.inside.start : read.inside.stop]
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
