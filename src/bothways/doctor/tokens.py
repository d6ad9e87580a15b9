"""Data as a model will see them: tokens, windows, unknown words, answers that are too long to be given."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from bothways.data.examples import Choice
from bothways.data.words import split_words
from bothways.doctor.diagnosis import Finding, Reading, percent
from bothways.doctor.identity import short, texts_of
from bothways.doctor.survey import Spots
from bothways.engine.engine import chunks
from bothways.engine.reader import UNKNOWN
from bothways.errors import BothwaysError
from bothways.tasks.answer import QuestionAnswering, answer_tokens
from bothways.tasks.task import EncodedExample, Sample, Task, TaskConfig

UNKNOWN_WRONG = 0.10
LONG_LOOK, LONG_ANSWERS = 0.05, 0.01
"""Shares above which unknown tokens are wrong, and long rows and long answers are told of."""
_TIMED = 32
_COUNTED_ROWS = 1_000


@dataclass(frozen=True)
class Tokenized:
    """What the tokenizer made of the data."""

    reading: Reading
    findings: list[Finding]
    settings: list[str]
    """That the data ask for, as in answer.max_answer_length=50."""
    first: list[Sample]
    """The first ones of …"""
    samples: int
    """… so many that are learned from."""
    tokens: int
    """Of an epoch: windows overlap."""


@dataclass
class _Pass:
    """What is counted on the way."""

    rows: int = 0
    tokens: int = 0
    unknown: int = 0
    longest: int = 0
    where: str = ""
    beyond: int = 0
    sequences: int = 0
    words: int = 0
    word_tokens: int = 0
    samples: int = 0
    sample_tokens: int = 0
    first: list[Sample] = field(default_factory=list)
    refused: Spots = field(default_factory=Spots)
    long_answers: Spots = field(default_factory=Spots)
    answer_lengths: Counter[int] = field(default_factory=Counter)
    """In tokens."""


def tokenize(task: Task, config: TaskConfig, examples: Iterable[Any], files: Sequence[str]) -> Tokenized:
    """The labelled examples, through the task's own reader."""
    found = _Pass()
    for some in chunks(task.normalise(config, example) for example in examples if example.gold is not None):
        for item in _items(task, some, found):
            _count(task, item, found)
    reading = Reading(
        limit=task.reader.length,
        tokens=found.tokens,
        longest=found.longest,
        where=short(found.where, files),
        beyond=found.beyond,
        beyond_share=found.beyond / max(found.rows, 1),
        sequences=found.sequences,
        tokens_per_word=found.word_tokens / max(found.words, 1),
        unknown_share=found.unknown / max(found.tokens, 1),
    )
    findings, settings = list(_judge(reading, found, files)), list[str]()
    if isinstance(task, QuestionAnswering) and found.long_answers.count:
        finding, settings = _long_answers(found, task.options.max_answer_length, files)
        findings.append(finding)
    return Tokenized(reading, findings, settings, found.first, found.samples, found.sample_tokens)


def _items(task: Task, examples: Sequence[Any], found: _Pass) -> Iterator[EncodedExample]:
    """The examples, encoded; those that the reader refuses are counted and left out."""
    try:
        yield from task.encode(examples)
    except BothwaysError:
        for example in examples:
            try:
                item = task.encode([example])
            except BothwaysError:
                found.refused.add(example.where)
            else:
                yield from item


def _count(task: Task, item: EncodedExample, found: _Pass) -> None:
    encodings = [read.encoding for read in item.reads]
    longest = max(map(len, encodings))
    found.rows += 1
    found.tokens += sum(map(len, encodings))
    found.unknown += sum(encoding.ids.count(task.reader.unknown) for encoding in encodings)
    found.beyond += longest > task.reader.length
    if longest > found.longest:
        found.longest, found.where = longest, item.example.where
    samples = task.samples(item)
    found.samples += len(samples)
    found.sample_tokens += sum(map(len, samples))
    found.sequences += sum(len(sample.ids) for sample in samples)
    if len(found.first) < _TIMED:
        found.first += samples
    if found.rows <= _COUNTED_ROWS:
        found.words += _words(item.example)
        found.word_tokens += sum(source is not None for encoding in encodings for source in encoding.sources)
    if isinstance(task, QuestionAnswering) and (span := answer_tokens(item)):
        found.answer_lengths[span[1] - span[0] + 1] += 1
        if span[1] - span[0] >= task.options.max_answer_length:
            found.long_answers.add(item.example.where)


def _words(example: Any) -> int:
    """The words that the model reads; of a question with options, the text again with each."""
    counts = [len(split_words(text)) for text in texts_of(example)]
    if isinstance(example, Choice):
        return sum(counts[:2]) * len(example.options) + sum(counts[2:])
    return sum(counts)


def _judge(reading: Reading, found: _Pass, files: Sequence[str]) -> Iterator[Finding]:
    share, fertility = reading.unknown_share, f"{reading.tokens_per_word:.2f} tokens"
    says = f"{percent(share, 1)} of the tokens are unknown to this model; a word is {fertility}."
    if share > UNKNOWN:
        do = "Take a model whose vocabulary has this language and script."
        yield Finding("wrong" if share > UNKNOWN_WRONG else "look", "unknown tokens", says, do)
    else:
        yield Finding("fine", "unknown tokens", says)
    count = f"{reading.beyond:,} rows ({percent(reading.beyond, found.rows)}) have" if reading.beyond else "No row has"
    says = f"{count} more than {reading.limit} tokens; the longest has {reading.longest:,}."
    places = (reading.where,) if reading.beyond else ()
    if reading.beyond_share > LONG_LOOK:
        do = "They are read in windows, and nothing is lost; --set window.long=cut is faster and drops their ends."
        yield Finding("look", "long", says, do, reading.beyond, places)
    else:
        yield Finding("fine", "long", says, "", reading.beyond, places)
    if refused := found.refused.count:
        where = tuple(short(where, files) for where in found.refused.first)
        says = f"{refused:,} of the rows leave too little room for windows: one text of the pair fills the model."
        yield Finding("wrong", "long", says, "Shorten them, or add --set window.long=cut.", refused, where)


def _long_answers(found: _Pass, longest: int, files: Sequence[str]) -> tuple[Finding, list[str]]:
    """Answers of more tokens than the model may give, and the setting that allows 99 % of all."""
    count, total = found.long_answers.count, found.answer_lengths.total()
    places = tuple(short(where, files) for where in found.long_answers.first)
    says = (
        f"{count:,} of {total:,} answers ({percent(count, total)}) have more than {longest} tokens, too many to give."
    )
    if count <= LONG_ANSWERS * total:
        return Finding("fine", "long answers", says, "", count, places), []
    lengths = sorted(found.answer_lengths.elements())
    setting = f"answer.max_answer_length={lengths[math.ceil(0.99 * total) - 1]}"
    do = f"Allow more with --set {setting}, in which 99 % find room."
    return Finding("look", "long answers", says, do, count, places), [setting]
