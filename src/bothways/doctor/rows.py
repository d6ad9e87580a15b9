"""Faults of single rows: empty, unlabelled, damaged; tags that break their scheme; answers that are not there."""

import math
import re
from collections.abc import Iterator, Sequence
from typing import Literal

from bothways.data.notes import Notes
from bothways.data.schemes import detect, problems
from bothways.data.sources import Paths, find_sources, kind_of, peek, read_plain

# To see the tags as they are in the file: read_tagged gives them in BIO.
from bothways.data.tagged import KINDS, reader_of
from bothways.doctor.diagnosis import Finding, Severity, have, percent
from bothways.doctor.identity import short
from bothways.doctor.survey import Noted, Spots, Survey

# What the readers note, by its code: how bad it is and what to do. "": it is told elsewhere.
_NOTES: dict[str, tuple[Severity | Literal[""], str]] = {
    "empty-text": ("", ""),
    "empty-label": ("", ""),
    "answer-not-found": ("", ""),
    "broken-tags": ("", ""),
    "no-agreement": ("fine", ""),
    "wrong-cell-count": ("wrong", "Mend these lines: a tab or a comma is missing, or one too many is in a text."),
    "no-label-column": ("wrong", "Name the column with --label."),
    "mixed-tags": (
        "wrong",
        "Mend the odd tags: with one of them in the file, no entities are learned, only tags.",
    ),
    "answer-not-an-option": ("wrong", "Mend the answers: such questions are left out."),
    "answer-moved": (
        "look",
        "The nearest place is taken: see whether it is the right one.",
    ),
    "ambiguous-answer": ("fine", ""),
    "numeric-tags": ("look", "Write their names, as in B-PER, so that entities are found."),
}


def find_row_faults(task: str, survey: Survey, files: Sequence[str]) -> Iterator[Finding]:
    """What is wrong with single rows, and what the reader has noted."""
    yield from _spotted(task, survey, files)
    for what, count in survey.notes.counts.items():
        yield from _noted(survey.notes, what, count, files)
    if task == "choose" and survey.chance:
        yield _position(survey)


def _spotted(task: str, survey: Survey, files: Sequence[str]) -> Iterator[Finding]:
    rows = f"of {survey.rows:,} rows"
    unlabelled, none = survey.unlabelled, survey.unlabelled.count == survey.rows
    pairs = survey.single if task == "score" else Spots()
    faults: list[tuple[Spots, Severity, str, str, str]] = [
        (survey.empty, "wrong", "empty", "an empty text", "Fill them in or drop them."),
        (Spots() if none else unlabelled, "look", "unlabelled", "no label", "They are left out: label or drop them."),
        (survey.damaged, "look", "damaged", "the mark � of lost characters", "Make the file anew from its source."),
        (survey.same_options, "look", "options", "two equal options", "Mend them: both cannot be judged."),
        (pairs, "wrong", "pairs", "one text only", "Name the second with --pair, or say --task classify."),
    ]
    for spots, severity, what, has, do in faults:
        if spots.count:
            says = f"{spots.count:,} {rows} {have(spots.count)} {has}."
            yield Finding(severity, what, says, do, spots.count, _places(spots.first, files))
    if not survey.empty.count:
        yield Finding("fine", "empty", f"None {rows} has an empty text.")
    if none:
        do = "Name the column of the label with --label, or another task with --task."
        yield Finding("wrong", "unlabelled", f"None {rows} has a label.", do, survey.rows)
    if count := survey.lost.count:
        do = "Mend them: no place in the text can be learned."
        says = f"{count:,} answer{'s are' if count > 1 else ' is'} not in the text."
        yield Finding("wrong", "answers", says, do, count, _places(survey.lost.first, files))


def _places(where: Sequence[str], files: Sequence[str]) -> tuple[str, ...]:
    return tuple(short(one, files) for one in where)


def _noted(notes: Noted, what: str, count: int, files: Sequence[str]) -> Iterator[Finding]:
    severity, do = _NOTES.get(what, ("look", ""))
    if severity:
        says = f"{notes.sentence(what)}: {count:,}."
        yield Finding(severity, "reader", says, do, count, _places(notes.places[what], files))


def find_broken_tags(paths: Paths, column: str | None, notes: Notes, names: Sequence[str]) -> Iterator[Finding]:
    """Tags that break the scheme of their file, with the line of the word, by reading the files as they are."""
    spots, schemes = Spots(), set[str]()
    broken = "broken-tags" in notes.counts
    for path in find_sources(paths, KINDS):
        read, plain = reader_of(path, column)
        if plain:
            continue
        scheme = detect(example.gold or () for example in read(Notes()))
        schemes.add(scheme)
        in_rows = kind_of(path) in (".jsonl", ".ndjson", ".json", ".parquet") or peek(read_plain(path))[0][:1] == "{"
        for example in read(Notes()) if broken else ():
            for index, problem in problems(example.gold or (), scheme):
                word = f", word {index + 1}" if in_rows else ""
                where = short(example.where if in_rows else _lines_after(example.where, index), names)
                spots.add(f"{where}{word}: {problem}")
    schemes -= {"plain"}
    told = " and ".join(sorted(schemes))
    if spots.count:
        do = "Mend them; until then they are read as conlleval does, I after O beginning an entity."
        yield Finding(
            "wrong", "tags", f"{spots.count:,} times a tag breaks {told}.", do, spots.count, tuple(spots.first)
        )
    elif schemes:
        yield Finding("fine", "tags", f"All tags follow {told}.")


def _lines_after(where: str, count: int) -> str:
    """The place so many lines further: `a.conll, line 12` is where a sentence begins."""
    return re.sub(r"\d+$", lambda found: str(int(found[0]) + count), where)


def _position(survey: Survey) -> Finding:
    """Whether the right option stands in one place more often than chance allows."""
    total = sum(survey.names.values())
    name = max(survey.chance, key=lambda name: survey.names[name] - survey.chance[name])
    seen, expected = survey.names[name], survey.chance[name]
    deviation = (seen - expected) / math.sqrt(max(expected * (1 - expected / total), 1e-9))
    chance = percent(expected, total)
    says = f"{name.capitalize()} is right in {percent(seen, total)} of the questions; by chance in {chance}."
    if deviation > 4 and seen > 1.2 * expected:
        do = "Shuffle the options, in particular for models that read them together; here each is read by itself."
        return Finding("look", "position", says, do, seen)
    return Finding("fine", "position", says, count=seen)
