"""Token classification: named entities, parts of speech. The first token of each word decides.

N tokens in the batch · C tags.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bothways.data.brat import ANN
from bothways.data.examples import Tagged
from bothways.data.findings import DataCounts, Finding, Share, Spots, short
from bothways.data.label_checks import by_count, check_balance, check_known, check_spelling
from bothways.data.notes import Notes
from bothways.data.schemes import Span, detect, is_begin, parse, problems, type_of
from bothways.data.sources import BINARY, ROWS, find_sources, kind_of, peek, read_plain
from bothways.data.spans import find_field
from bothways.data.tagged import (
    KINDS,
    ROW_KINDS,
    WORDS,
    holds_texts,
    read_sentences,
    read_tagged,
    reader_of,
    require_tags,
)
from bothways.data.texts import read_texts_labelled
from bothways.data.words import join_words, split_words
from bothways.engine.reader import WindowSettings
from bothways.engine.sequences import Indices
from bothways.errors import BothwaysError, name_list
from bothways.lazy import F, Tensor, torch
from bothways.model.batch import Batch
from bothways.model.facts import ModelFacts
from bothways.scoring.entities import Entities, Tags, entities
from bothways.tasks.tag_paths import OUTSIDE, best_paths, transitions
from bothways.tasks.task import EncodedChunk, EncodedExample, Outputs, Sample, Targets, Task, TaskConfig
from bothways.tasks.word_tokens import first_tokens, first_tokens_of
from bothways.text.columns import Columns
from bothways.text.files import STDIN, find_files, read_texts
from bothways.text.streams import peek_stdin
from bothways.train.soft_targets import soft_distance

if TYPE_CHECKING:
    from bothways.model.model import Model

Decoded = tuple[list[int], NDArray[np.float64]]
"""A tag for each word, and its probability."""
_COLUMNS = tuple(kind for kind in KINDS if kind not in (*ROW_KINDS, *ROWS, ".txt"))


def tag_names(golds: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """The labels of a tagger: for entities O, then B- and I- of every type; else the sorted tags."""
    seen = sorted({tag for gold in golds for tag in gold})
    if not is_entities(seen):
        return tuple(seen)
    types = sorted({tag[1:] for tag in seen if tag != OUTSIDE})
    return (OUTSIDE, *(f"{place}{kind}" for kind in types for place in "BI"))


def is_entities(tags: Sequence[str]) -> bool:
    """Whether tags are BIO, not plain ones. Where every word is one of them, as in Chinese word segmentation, O is
    missing, and the types may be.

    >>> [is_entities(tags) for tags in (["B-PER", "O"], ["B-NOUN", "I-NOUN"], ["B", "I"], ["NOUN", "O"])]
    [True, True, True, False]
    """
    inside = {tag for tag in tags if tag != OUTSIDE}
    has_both = {tag[:1] for tag in inside} == {"B", "I"}
    is_typed = all(tag[:2] in ("B-", "I-") for tag in inside)
    return inside == {"B", "I"} or (is_typed and (has_both or OUTSIDE in tags))


def _has_texts(path: Path, columns: Columns) -> bool:
    """Whether a file to predict has a text a row; that of a column which the user names is one."""
    is_named = bool(columns.text) and (path == STDIN or kind_of(path) in ROWS)
    return is_named or (path != STDIN and holds_texts(path, columns.text))


def has_words(path: Path, columns: Columns) -> bool:
    """Whether a table to predict has a word a row, with its tag, and a sentence up to an empty line."""
    return kind_of(path) == ".tsv" and not _has_texts(path, columns)


class TokenClassification(Task):
    """Named entities as valid BIO sequences, or plain tags."""

    name = "tag"
    title = "token classification, NER"
    aliases = ("ner", "token-classification", "pos")
    golds = "tags"
    head = "token"
    per_token = True
    has_ranking = False
    max_texts = 1  # two would be two words of one text
    columns = ("label",)
    marked_field = "text"
    list_column = "entities"
    errors_title = "Sentences with the most wrong tags"

    @classmethod
    def read(cls, files: Sequence[str], columns: Columns, notes: Notes, known: Any = None) -> Iterator[Tagged]:
        cls.refuse_columns(columns)
        require_tags(files)
        return read_tagged(files, columns.label, notes)

    @classmethod
    def read_inputs(cls, file: str, columns: Columns, notes: Notes) -> Iterator[Tagged]:
        """As `read`, but .txt and standard input hold a plain text per line; standard input may also hold JSON rows."""
        path = Path(file)
        is_table = _has_texts(path, columns)
        cls.refuse_columns(replace(columns, text=None) if is_table else columns)
        if path == STDIN and not is_table and peek_stdin().startswith("{"):
            return read_sentences(path, notes)
        if (path == STDIN and not is_table) or ".txt" in path.suffixes:
            return (cls.parse(text) for one in find_files([path]) for text in read_texts(one))
        if is_table:
            rows = read_texts_labelled(file, Columns(columns.text, reads_label=False), notes=notes)
            return (replace(cls.parse(example.texts[0]), where=example.where) for example in rows)
        return read_tagged(file, columns.label, notes)

    @classmethod
    def parse(cls, given: Any) -> Tagged:
        if isinstance(given, str):
            return Tagged(given, tuple(split_words(given)))
        if not isinstance(given, Sequence) or not all(isinstance(word, str) for word in given):
            raise BothwaysError(f"expected a text or a tuple of words, and {given!r} was given", "bad-input", given)
        return Tagged(*join_words(given))

    @classmethod
    def plan(
        cls, settings: Any, window: WindowSettings, examples: Sequence[Tagged], max_length: int
    ) -> tuple[TaskConfig, tuple[str, ...]]:
        labels = tag_names([e.gold for e in examples if e.gold is not None])
        if not labels:
            raise BothwaysError("no word of the training data has a tag: there is nothing to learn", "no-labels")
        return TaskConfig(cls.name, window), labels

    def __init__(self, model: ModelFacts, config: TaskConfig, settings: Any = None, train: Sequence[Any] = ()) -> None:
        super().__init__(model, config)
        self.number = {name: i for i, name in enumerate(self.labels)}
        self.has_entities = is_entities(self.labels)
        self.metric = "f1" if self.has_entities else "accuracy"
        self.steps = transitions(self.labels) if self.has_entities else None

    def encode(self, examples: Sequence[Tagged], before: int = 0) -> EncodedChunk:
        texts, words = [example.text for example in examples], [example.words for example in examples]
        return EncodedChunk(examples, self.reader.by_words(texts, words, before))

    def samples(self, item: EncodedExample) -> list[Sample]:
        """One sample per window, with the words that it predicts."""
        if unknown := [tag for tag in item.example.gold if tag not in self.number]:
            raise BothwaysError(
                f"{item.example.where} has the tag {unknown[0]!r}, but this model knows {name_list(self.labels)}: "
                "rename it, or fine-tune a model with it",
                "unknown-label",
                unknown[0],
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

    def loss(self, model: "Model", states: Tensor, batch: Batch, targets: Targets) -> Tensor:
        logits = model.logits("token", states[targets["at"]], batch)
        return F.cross_entropy(logits.float(), targets["gold"], reduction="sum")

    def imitation(self, own: Tensor, taught: Tensor, targets: Targets, temperature: float) -> Tensor:
        return soft_distance(own[targets["at"]], taught[targets["at"]], temperature).sum()

    def outputs(self, model: "Model", states: Tensor, batch: Batch) -> Tensor:
        return model.logits("token", states, batch)

    def decode(self, item: EncodedExample, outputs: Sequence[Outputs]) -> Decoded:
        """A tag for each word, and its probability.

        Words that the tokenizer drops get O; if there is no O, all tags are equally probable.
        """
        first = first_tokens(item)
        logits = self._unread(len(first))
        for view, rows in zip(item.views, outputs, strict=True):
            words = np.flatnonzero((first >= view.window.own) & (first < view.window.own_end))
            logits[words] = rows[first[words] - view.shift]
        return next(self._decoded(logits, np.array([len(first)])))

    def decode_chunk(self, items: EncodedChunk, outputs: Outputs) -> Iterable[Decoded]:
        if items.reads.has_windows or items.reads.views:
            return super().decode_chunk(items, outputs)
        first, counts = first_tokens_of(items)
        logits = self._unread(len(first))
        is_read = first >= 0
        rows = np.repeat(items.sequences.starts, counts)[is_read] + first[is_read]
        logits[is_read] = outputs[rows]
        return self._decoded(logits, counts)

    def _unread(self, words: int) -> NDArray[np.float64]:
        """Logits of words that the tokenizer drops."""
        logits = np.zeros((words, len(self.labels)))
        if OUTSIDE in self.number:
            logits[:, self.number[OUTSIDE]] = 10.0
        return logits

    def _decoded(self, logits: NDArray[np.float64], counts: Indices) -> Iterator[Decoded]:
        """The tags of several texts, from the logits of all their words."""
        logits = logits / self.config.temperature
        logs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        tags: Indices = logs.argmax(1) if self.steps is None else best_paths(logs, self.steps, counts)
        probabilities = np.exp(logs[np.arange(len(tags)), tags])
        ends = np.cumsum(counts)
        for start, end in zip((ends - counts).tolist(), ends.tolist(), strict=True):
            yield tags[start:end].tolist(), probabilities[start:end]

    def answer(self, item: EncodedExample, decoded: Decoded, top: int = 1) -> Any:
        """The entities as {"entity_group", "score", "word", "start", "end"}; of plain tags one such dict per word."""
        tags, probabilities = [self.labels[i] for i in decoded[0]], decoded[1].tolist()
        text, words = item.example.text, item.example.words
        found = []
        for kind, first, last in self._spans(tags):
            start, end = words[first][0], words[last - 1][1]
            score = sum(probabilities[first:last]) / (last - first)
            found.append({"entity_group": kind, "score": score, "word": text[start:end], "start": start, "end": end})
        return found

    def gold_answer(self, example: Tagged) -> Any:
        return [
            {"entity_group": kind, "word": example.text[start:end], "start": start, "end": end}
            for kind, first, last in self._spans(example.gold or ())
            for start, end in [(example.words[first][0], example.words[last - 1][1])]
        ]

    def _spans(self, tags: Sequence[str]) -> list[Span]:
        return entities(tags) if self.has_entities else [(tag, i, i + 1) for i, tag in enumerate(tags)]

    @classmethod
    def shown_part(cls, answer: Mapping[str, Any]) -> str:
        return f"{answer['word']}/{answer['entity_group']} {answer['score']:.3f}"

    def new_scores(self) -> Entities | Tags:
        return Entities() if self.has_entities else Tags()

    def error(self, item: EncodedExample, decoded: Decoded) -> float:
        """The number of words with a wrong tag."""
        return float(sum(self.labels[i] != tag for i, tag in zip(decoded[0], item.example.gold, strict=True)))

    def count(self, scores: Any, item: EncodedExample, decoded: Decoded) -> None:
        scores.add(item.example.gold, [self.labels[i] for i in decoded[0]])

    # ------------------------------------------------------------------ checks of labelled data

    @classmethod
    def looks_like(cls, path: Path, rows: Sequence[Any]) -> bool:
        kind = kind_of(path)
        if kind in (*_COLUMNS, ANN) or (kind not in (*ROW_KINDS, ".csv", *BINARY) and _is_columns(read_plain(path))):
            return True
        return any(isinstance(row, dict) and _holds_tags(row) for row in rows)

    @classmethod
    def texts_of(cls, example: Tagged) -> Sequence[str]:
        return (example.text,)

    @classmethod
    def gold_key(cls, example: Tagged) -> str | None:
        return None if example.gold is None else "\x1f".join(example.gold)

    @classmethod
    def survey(cls, example: Tagged, counts: DataCounts) -> None:
        counts.measure("words in a sentence", len(example.words), example.where)
        tags = example.gold or ()
        counts.names.update(tags)
        counts.place({*tags, *(type_of(tag) for tag in tags if is_begin(tag))}, example.where)

    @classmethod
    def data_kind(cls, counts: DataCounts) -> str:
        return "entities" if is_entities(list(counts.names)) else "plain"

    @classmethod
    def label_counts(cls, counts: DataCounts, kind: str) -> dict[str, int]:
        """The tags, or the types of the entities."""
        if kind == "plain":
            return by_count(counts.names)
        return by_count({type_of(tag): count for tag, count in counts.names.items() if is_begin(tag)})

    @classmethod
    def label_shares(cls, counts: DataCounts, kind: str) -> tuple[Share, ...]:
        found = cls.label_counts(counts, kind)
        return tuple(Share(name, count, count / sum(found.values())) for name, count in found.items())

    @classmethod
    def exemplars(cls, counts: DataCounts) -> list[Tagged]:
        return [Tagged("", (), tuple(counts.names))]

    @classmethod
    def check_rows(cls, counts: DataCounts, kind: str) -> Iterator[Finding]:
        """Tags that break the scheme of their file, with the line of the word: `read` converts them to BIO."""
        spots, schemes = Spots(), set[str]()
        for path in find_sources(counts.files, KINDS):
            read, plain = reader_of(path, counts.columns.label)
            if plain:
                continue
            scheme = detect(example.gold or () for example in read(Notes()))
            schemes |= {scheme} - {"plain"}
            in_rows = kind_of(path) in ROW_KINDS or peek(read_plain(path))[0][:1] == "{"
            for example in read(Notes()) if "broken-tags" in counts.notes.counts else ():
                for index, problem in problems(example.gold or (), scheme):
                    word = f", word {index + 1}" if in_rows else ""
                    where = example.where if in_rows else _lines_after(example.where, index)
                    spots.add(f"{short(where, counts.files)}{word}: {problem}")
        names = " and ".join(sorted(schemes))
        if spots.count:
            do = "Correct them; until then they are read as conlleval does: I after O begins an entity."
            says = f"{spots.count:,} tag{'s' * (spots.count > 1)} break{'s' * (spots.count == 1)} {names}."
            yield Finding("error", "tags", says, do, spots.count, tuple(spots.first))
        elif schemes:
            yield Finding("ok", "tags", f"All tags follow {names}.")

    @classmethod
    def check_labels(cls, counts: DataCounts, kind: str) -> Iterator[Finding]:
        """Only entity types: parts of speech are never balanced, and many of their names differ by one letter."""
        names, is_plain = cls.label_counts(counts, kind), kind == "plain"
        if names:
            do = "" if is_plain else "Add examples of the rare ones, or expect lower scores for them."
            yield check_balance(names, "tags" if is_plain else "entity types", do)
            yield from () if is_plain else check_spelling(names, counts)

    @classmethod
    def check_dev(cls, train: DataCounts, dev: DataCounts, kind: str) -> Iterator[Finding]:
        yield check_known(cls.label_counts(train, kind), cls.label_counts(dev, kind), dev)


def _holds_tags(row: dict[Any, Any]) -> bool:
    """Whether a row has a list of words, or a text with the places of entities."""
    if any(isinstance(row.get(name), list) for name in WORDS):
        return True
    field = find_field(row) if isinstance(row.get("text"), str) else None
    return field is not None and any(map(_is_place, row[field]))


def _is_place(value: Any) -> bool:
    match value:
        case [int(), int(), str()] | {"start": int()} | {"start_offset": int()}:
            return True
    return False


def _is_columns(lines: Iterable[str]) -> bool:
    """Words with entity tags in columns: each line ends with a tag, and blank lines separate sentences."""
    tags, widths = list[str](), set[int]()
    for line in islice(lines, 200):
        cells = line.split()
        if cells and not line.startswith(("#", "-DOCSTART-")):
            tags.append(cells[-1])
            widths.add(len(cells))
            if len(widths) > 1 or len(cells) < 2 or not parse(tags[-1]):
                return False
    letters = {tag[0] for tag in tags}
    are_words = "B" in letters and not letters.isdisjoint("IEML")  # in word segmentation no tag is O
    return len(tags) > 1 and (OUTSIDE in tags or are_words)


def _lines_after(where: str, count: int) -> str:
    """The place this many lines further: `a.conll, line 12` is where a sentence begins."""
    return re.sub(r"\d+$", lambda found: str(int(found[0]) + count), where)
