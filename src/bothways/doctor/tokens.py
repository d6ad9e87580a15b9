"""The data as a model reads them: tokens, windows, unknown tokens."""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from bothways.data.findings import DataCounts, Finding, percent, short
from bothways.data.words import split_words
from bothways.doctor.data_report import Reading
from bothways.engine.chunks import chunks
from bothways.engine.reader import UNKNOWN
from bothways.errors import BothwaysError
from bothways.tasks.task import EncodedExample, Sample, Task, TaskConfig

_UNKNOWN_ERROR, _MANY_LONG = 0.10, 0.05
"""Unknown tokens above this share are an error; long rows above this share give a warning."""
_TIMED = 32
_COUNTED_ROWS = 1_000
_NAMED = 5
"""Unknown characters that are shown, the most frequent first."""
_MOSTLY = 0.8
_DO = "If they are words, use a model whose vocabulary covers this language and script."
_DO_IN_CHINESE = (
    "Traditional and rare characters are the usual reason: convert the texts to simplified ones (OpenCC, for example), "
    "or use a model that knows them."
)
_DO_WITH_SYMBOLS = (
    "They are emoji and other symbols. If the labels depend on them, add them to the vocabulary (bothways vocab "
    "extend); otherwise leave them."
)


@dataclass(frozen=True)
class Tokenized:
    """The result of tokenizing the training data."""

    reading: Reading
    findings: list[Finding]
    first: list[Sample]
    """The first samples, to time a few steps with."""
    samples: int
    """Samples of an epoch."""
    tokens: int
    """Tokens of an epoch: windows overlap."""


@dataclass
class _Pass:
    """What one pass counts."""

    counts: DataCounts
    """What the task counts, and the rows that the reader refuses."""
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
    strange: Counter[str] = field(default_factory=Counter)
    """Characters that are no token, of the rows with unknown tokens."""


def tokenize(task: Task, config: TaskConfig, examples: Iterable[Any], files: Sequence[str]) -> Tokenized:
    """Encode the labelled examples as training does, and count."""
    found = _Pass(DataCounts(files))
    for some in chunks(task.normalise(config, example) for example in examples if example.gold is not None):
        for item in _encode(task, some, found):
            _count(task, item, found)
    reading = Reading(
        limit=task.reader.length,
        tokens=found.tokens,
        longest=found.longest,
        where=short(found.where, files),
        beyond=found.beyond,
        beyond_share=found.beyond / max(found.counts.rows, 1),
        sequences=found.sequences,
        tokens_per_word=found.word_tokens / max(found.words, 1),
        unknown_share=found.unknown / max(found.tokens, 1),
    )
    findings = [*_check(reading, found.counts, found.strange), *task.check_tokens(found.counts)]
    return Tokenized(reading, findings, found.first, found.samples, found.sample_tokens)


def _encode(task: Task, examples: Sequence[Any], found: _Pass) -> Iterator[EncodedExample]:
    """The encoded examples; those that the reader refuses are counted and left out."""
    try:
        yield from task.encode(examples)
    except BothwaysError:
        for example in examples:
            try:
                item = task.encode([example])
            except BothwaysError:
                found.counts.fault("long", example.where)
            else:
                yield from item


def _count(task: Task, item: EncodedExample, found: _Pass) -> None:
    longest = max(map(len, item.reads))
    found.counts.rows += 1
    found.tokens += sum(map(len, item.reads))
    unknown = sum(int((read.ids == task.reader.unknown).sum()) for read in item.reads)
    found.unknown += unknown
    if unknown and found.counts.rows <= _COUNTED_ROWS:
        found.strange.update(_strange(task, "".join(task.texts_read(item.example))))
    found.beyond += longest > task.reader.length
    if longest > found.longest:
        found.longest, found.where = longest, item.example.where
    samples = task.samples(item)
    found.samples += len(samples)
    found.sample_tokens += sum(map(len, samples))
    found.sequences += sum(len(sample.ids) for sample in samples)
    if len(found.first) < _TIMED:
        found.first += samples
    if found.counts.rows <= _COUNTED_ROWS:
        found.words += sum(len(split_words(text)) for text in task.texts_read(item.example))
        found.word_tokens += sum(read.in_texts for read in item.reads)
    task.survey_tokens(item, found.counts)


def _strange(task: Task, text: str) -> Counter[str]:
    """The characters of a text that are unknown by themselves."""
    counts = Counter(text)
    encodings = task.reader.tokenizer.batch(list(counts), has_offsets=False)
    return Counter(
        {one: counts[one] for one, found in zip(counts, encodings, strict=True) if task.reader.unknown in found.ids}
    )


def _check(reading: Reading, counts: DataCounts, strange: Counter[str]) -> Iterator[Finding]:
    share = reading.unknown_share
    says = f"{percent(share, 1)} of the tokens are unknown; {reading.tokens_per_word:.2f} tokens per word."
    if share > UNKNOWN:
        symbols = sum(count for one, count in strange.items() if unicodedata.category(one)[0] in "SCM")
        chinese = sum(count for one, count in strange.items() if "\u3400" <= one <= "\u9fff")
        has_only_symbols = bool(strange) and symbols >= _MOSTLY * strange.total()
        if strange:
            shown = " ".join(f"{one} ({count:,} times)" for one, count in strange.most_common(_NAMED))
            says = f"{says[:-1]}. Unknown characters: {shown}."
        is_chinese = chinese > strange.total() / 2
        do = _DO_WITH_SYMBOLS if has_only_symbols else _DO_IN_CHINESE if is_chinese else _DO
        is_error = share > _UNKNOWN_ERROR and not has_only_symbols
        yield Finding("error" if is_error else "warning", "unknown tokens", says, do)
    else:
        yield Finding("ok", "unknown tokens", says)
    rows = f"{reading.beyond:,} rows ({percent(reading.beyond, counts.rows)}) have" if reading.beyond else "No row has"
    says = f"{rows} more than {reading.limit} tokens; the longest has {reading.longest:,}."
    places = (reading.where,) if reading.beyond else ()
    if reading.beyond_share > _MANY_LONG:
        do = "They are read in windows, and nothing is lost; window.long=cut is faster and drops their ends."
        yield Finding("warning", "long", says, do, reading.beyond, places)
    else:
        yield Finding("ok", "long", says, "", reading.beyond, places)
    if refused := counts.faults.get("long"):
        says = f"{refused.count:,} rows leave too little room for windows: one text alone is too long."
        do = "Shorten them, or set window.long=cut."
        yield Finding("error", "long", says, do, refused.count, counts.short(refused.first))
