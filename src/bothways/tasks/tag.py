"""Token classification: named entities, parts of speech. Words in, words out.

N tokens in the batch · M words that are asked for · C tags.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from bothways.data.columns import Columns
from bothways.data.examples import Tagged
from bothways.data.notes import Notes
from bothways.data.sources import kind_of
from bothways.data.tagged import holds_texts, read_sentences, read_tagged, require_tags
from bothways.data.texts import read_texts_labelled
from bothways.data.words import join_words, split_words
from bothways.engine.reader import WindowSettings
from bothways.errors import BothwaysError
from bothways.model.batch import Batch
from bothways.model.model import Model
from bothways.scoring.entities import Entities, Tags, entities
from bothways.tasks.task import EncodedExample, Outputs, Sample, Targets, Task, TaskConfig
from bothways.text.files import STDIN, read_texts, require_files
from bothways.text.streams import peek_stdin
from bothways.train.distill import soft_distance

OUTSIDE = "O"
_NEVER = -1e9


def tag_names(golds: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """The labels of a tagger: for entities O and then B- and I- of every type, else the tags as they are, sorted."""
    seen = sorted({tag for gold in golds for tag in gold})
    if not is_entities(seen):
        return tuple(seen)
    types = sorted({tag[2:] for tag in seen if tag != OUTSIDE})
    return (OUTSIDE, *(f"{place}-{kind}" for kind in types for place in "BI"))


def is_entities(tags: Sequence[str]) -> bool:
    """Whether tags are BIO, and not plain ones."""
    return OUTSIDE in tags and all(tag == OUTSIDE or tag[:2] in ("B-", "I-") for tag in tags)


class TokenClassification(Task):
    """Named entities by BIO, always valid ones, or plain tags."""

    name = "tag"
    aliases = ("ner", "token-classification", "pos")
    head = "token"
    per_token = True
    has_ranking = False
    columns = ("label",)

    @classmethod
    def read(cls, files: Sequence[str], columns: Columns, notes: Notes, known: Any = None) -> Iterator[Tagged]:
        cls.refuse_columns(columns)
        require_tags(files)
        return read_tagged(files, columns.label, notes)

    @classmethod
    def read_inputs(cls, file: str, columns: Columns, notes: Notes) -> Iterator[Tagged]:
        """As `read`, but lines of .txt and standard input are plain texts; on standard input, lines of JSON are rows."""
        path = Path(file)
        is_table = holds_texts(path) or (kind_of(path) == ".tsv" and bool(columns.text))  # who names a column means one
        cls.refuse_columns(replace(columns, text=None) if is_table else columns)
        if path == STDIN and peek_stdin().startswith("{"):
            return read_sentences(path, notes)
        if path == STDIN or ".txt" in path.suffixes:
            return map(cls.parse, read_texts(require_files([path])[0]))
        if is_table:
            rows = read_texts_labelled(file, Columns(columns.text), notes=notes)
            return (cls.parse(example.texts[0]) for example in rows)
        return read_tagged(file, columns.label, notes)

    @classmethod
    def parse(cls, given: Any) -> Tagged:
        if isinstance(given, str):
            return Tagged(given, tuple(split_words(given)))
        if not isinstance(given, Sequence) or not all(isinstance(word, str) for word in given):
            raise BothwaysError(f"a text or a tuple of words was expected, and {given!r} was given", "bad-input", given)
        return Tagged(*join_words(given))

    @classmethod
    def plan(
        cls, settings: Any, window: WindowSettings, examples: Sequence[Tagged], max_length: int
    ) -> tuple[TaskConfig, tuple[str, ...]]:
        return TaskConfig(cls.name, window), tag_names([e.gold for e in examples if e.gold is not None])

    def __init__(self, model: Model, config: TaskConfig, settings: Any = None, golds: Sequence[Any] = ()) -> None:
        super().__init__(model, config)
        self.number = {name: i for i, name in enumerate(self.labels)}
        self.has_entities = is_entities(self.labels)
        self.metric = "f1" if self.has_entities else "accuracy"
        self.steps = _transitions(self.labels) if self.has_entities else None

    def encode(self, examples: Sequence[Tagged]) -> list[EncodedExample]:
        reads = self.reader.by_words([example.text for example in examples], [example.words for example in examples])
        return [EncodedExample(example, [read]) for example, read in zip(examples, reads, strict=True)]

    def samples(self, item: EncodedExample) -> list[Sample]:
        """Every window, with the words that are its own."""
        if unknown := [tag for tag in item.example.gold if tag not in self.number]:
            raise BothwaysError(
                f"{item.example.where} has the tag {unknown[0]!r}, and this model knows {', '.join(self.labels)}"
            )
        gold = np.array([self.number[tag] for tag in item.example.gold])
        first = first_tokens(item)
        samples = []
        for view in item.views:
            words = np.flatnonzero((first >= view.window.own) & (first < view.window.own_end))
            if len(words):
                samples.append(Sample.of([view], (first[words] - view.shift, gold[words])))
        return samples

    def collate(self, samples: Sequence[Sample], batch: Batch) -> tuple[dict[str, Tensor], float]:
        starts = batch.cu_seqlens.tolist()
        at = np.concatenate([sample.target[0] + start for sample, start in zip(samples, starts, strict=False)])
        gold = np.concatenate([sample.target[1] for sample in samples])
        return {"at": torch.from_numpy(at), "gold": torch.from_numpy(gold)}, float(len(at))

    def loss(self, model: Model, states: Tensor, batch: Batch, targets: Targets) -> Tensor:
        logits = model.logits("token", states[targets["at"]], batch)
        return F.cross_entropy(logits.float(), targets["gold"], reduction="sum")

    def imitation(self, own: Tensor, taught: Tensor, targets: Targets, temperature: float) -> Tensor:
        return soft_distance(own[targets["at"]], taught[targets["at"]], temperature).sum()

    def outputs(self, model: Model, states: Tensor, batch: Batch) -> Tensor:
        return model.logits("token", states, batch)

    def decode(self, item: EncodedExample, outputs: Sequence[Outputs]) -> tuple[list[int], NDArray[np.float64]]:
        """A tag for each word, and how likely each is by itself.

        Words that the tokenizer drops are outside; where the tags have no outside, all are as likely.
        """
        first = first_tokens(item)
        logits = np.zeros((len(first), len(self.labels)))
        if OUTSIDE in self.number:
            logits[:, self.number[OUTSIDE]] = 10.0
        for view, rows in zip(item.views, outputs, strict=True):
            words = np.flatnonzero((first >= view.window.own) & (first < view.window.own_end))
            logits[words] = rows[first[words] - view.shift]
        logits /= self.config.temperature
        logs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        tags = logs.argmax(1).tolist() if self.steps is None else _best_path(logs, self.steps)
        return tags, np.exp(logs[np.arange(len(tags)), tags])

    def answer(self, item: EncodedExample, decoded: tuple[list[int], NDArray[np.float64]], top: int = 1) -> Any:
        """Entities as {"entity_group", "score", "word", "start", "end"}; plain tags as {"entity", …} for each word."""
        tags, chances = [self.labels[i] for i in decoded[0]], decoded[1]
        text, words = item.example.text, item.example.words
        found = []
        if not self.has_entities:
            for tag, chance, (start, end) in zip(tags, chances, words, strict=True):
                found.append(
                    {"entity": tag, "score": float(chance), "word": text[start:end], "start": start, "end": end}
                )
            return found
        for kind, first, last in entities(tags):
            start, end = words[first][0], words[last - 1][1]
            score = float(np.mean(chances[first:last]))
            found.append({"entity_group": kind, "score": score, "word": text[start:end], "start": start, "end": end})
        return found

    def new_scores(self) -> Entities | Tags:
        return Entities() if self.has_entities else Tags()

    def error(self, item: EncodedExample, decoded: tuple[list[int], NDArray[np.float64]]) -> float:
        return float(sum(self.labels[i] != tag for i, tag in zip(decoded[0], item.example.gold, strict=True)))

    def count(self, scores: Any, item: EncodedExample, decoded: tuple[list[int], NDArray[np.float64]]) -> None:
        scores.add(item.example.gold, [self.labels[i] for i in decoded[0]])


def first_tokens(item: EncodedExample) -> NDArray[np.int64]:
    """For each word, the token of the encoding that begins it, or -1 if the tokenizer has dropped it."""
    read = item.reads[0]
    offsets = read.places()
    words = np.array(item.example.words).reshape(-1, 2)
    if not len(offsets) or not len(words):
        return np.full(len(words), -1)
    # The token in which the word's first character lies; if it lies in none, the next one, if that is in the word.
    place = np.searchsorted(offsets[:, 0], words[:, 0], "right") - 1
    place += (place < 0) | (offsets[np.maximum(place, 0), 1] <= words[:, 0])
    inside = (place < len(offsets)) & (offsets[np.minimum(place, len(offsets) - 1), 0] < words[:, 1])
    return np.where(inside, place + read.inside.start, -1)


def _transitions(labels: Sequence[str]) -> NDArray[np.float64]:
    """(C + 1, C): 0 if the second tag may follow the first, and very little if not. The last row is the beginning.

    A type that has no B- (others train such taggers) begins with I-.
    """
    free = [not tag.startswith("I-") or f"B-{tag[2:]}" not in labels for tag in labels]
    allowed = [
        [is_free or (last != OUTSIDE and last[2:] == tag[2:]) for tag, is_free in zip(labels, free, strict=True)]
        for last in (*labels, OUTSIDE)
    ]
    return np.where(allowed, 0.0, _NEVER)


def _best_path(logs: NDArray[np.float64], steps: NDArray[np.float64]) -> list[int]:
    """The likeliest sequence of tags in which every step is allowed (Viterbi)."""
    if not len(logs):
        return []
    best = logs[0] + steps[-1]
    came = []
    for row in logs[1:]:
        through = best[:, None] + steps[:-1]
        came.append(through.argmax(0))
        best = through.max(0) + row
    path = [int(best.argmax())]
    for back in reversed(came):
        path.append(int(back[path[-1]]))
    return path[::-1]
