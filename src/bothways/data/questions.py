"""Reads extractive question answering: SQuAD 1.1 and 2.0, CMRC 2018, and rows of JSON or tables."""

import itertools
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from bothways.data.examples import Question
from bothways.data.notes import Notes, row_error
from bothways.data.sources import ROWS, WITH_HEADER, Paths, find_sources, open_json, rows_of, text_of, values_of
from bothways.errors import name_list
from bothways.text.columns import Columns, in_english, named_column, names_without_header
from bothways.text.files import replace_surrogates

_USUAL_COLUMNS = Columns()
Parts = tuple[tuple[str, str, tuple[str, ...]], ...]
_PARTS: Parts = (
    ("text", "question", ()),
    ("pair", "context", ()),
    ("label", "answers", ("answer", "answer_start", "is_impossible")),
)
"""For each of `Columns`: what it is of a question, and the usual fields that it stands for."""


def read_questions(paths: Paths, notes: Notes | None = None, columns: Columns = _USUAL_COLUMNS) -> Iterator[Question]:
    """Stream the questions of the files; a file in SQuAD's layout is held in memory.

    Of rows with other names, `columns` names those of the question (text), the context (pair) and the answers (label).
    An answer that is not at its offset gets the nearest place in the context that has it, or -1 if there is none.
    Both are noted.
    """
    notes = notes if notes is not None else Notes()
    seen: set[str] = set()
    for path in find_sources(paths, ROWS):
        kind, lines = open_json(path)
        named = partial(names_without_header, columns)
        values = rows_of(path, kind, lines, notes, named) if kind in WITH_HEADER else values_of(path, kind, lines)
        for where, value in values:
            if not columns.are_usual:
                value = by_names(value, columns, where, _PARTS)
                notes.took(text=columns.text, pair=columns.pair, label=columns.label)
            for question in _value(value, where, notes):
                if question.id in seen:
                    notes.add("repeated-question-id", question.where, question.id)
                    number = next(n for n in itertools.count(2) if f"{question.id} ({n})" not in seen)
                    question = replace(question, id=f"{question.id} ({number})")
                seen.add(question.id)
                yield question


def by_names(row: Any, columns: Columns, where: str, parts: Parts) -> Any:
    """A row with the usual names for the columns that the user names."""
    found = dict(in_english(row)) if isinstance(row, dict) else {}
    for argument, part, others in parts:
        if name := getattr(columns, argument):
            own = named_column(name, list(row) if isinstance(row, dict) else (), where, argument)
            found = {key: value for key, value in found.items() if key not in (own, *others)} | {part: row[own]}
    return found


def _value(value: Any, where: str, notes: Notes) -> Iterator[Question]:
    """The questions of a row, of a SQuAD file, or of one of its articles."""
    value = in_english(value)
    match value:
        case {"question": _, "context": _}:
            name = str(value.get("id", where))
            yield _question(value, value["context"], name, where, notes)
        case {"paragraphs": list()}:
            yield from _article(value, where, notes)
        case {"context_text": _, "qas": list()}:
            yield from _clue(value, where, notes)
        case {"data": list(articles)}:
            for number, article in enumerate(articles, 1):
                yield from _article(article, f"{where}, article {number}", notes)
        case _:
            has = name_list(value) if isinstance(value, dict) else type(value).__name__
            wanted = (
                "SQuAD's data with paragraphs and qas, CLUE's context_text and qas, or question, context and answers, "
                "which `text`, `pair` and `label` may name"
            )
            raise row_error(where, f"is not in a known layout: it has {has}; expected {wanted}", "unknown-layout")


def _article(article: Any, where: str, notes: Notes) -> Iterator[Question]:
    try:
        for paragraph in article["paragraphs"]:
            for item in paragraph["qas"]:
                place = f"{where}, question {item['id']}"
                yield _question(item, paragraph["context"], str(item["id"]), place, notes)
    except (KeyError, TypeError) as error:
        wanted = "paragraphs with a context and qas, each with an id and a question"
        says = f"is not in SQuAD's layout: expected {wanted}"
        raise row_error(where, says, "unknown-layout") from error


def _clue(paragraph: Any, where: str, notes: Notes) -> Iterator[Question]:
    """A context of CMRC 2018 with its questions in CLUE's layout, where answers have no offset."""
    try:
        for item in paragraph["qas"]:
            name = str(item["query_id"])
            row = {"question": item["query_text"], "answers": item.get("answers")}
            yield _question(row, paragraph["context_text"], name, f"{where}, question {name}", notes)
    except (KeyError, TypeError, AttributeError) as error:
        wanted = "context_text and qas, each with query_id, query_text and answers"
        says = f"is not in CLUE's layout ({type(error).__name__} {error}): expected {wanted}"
        raise row_error(where, says, "unknown-layout") from error


def _question(item: dict[str, Any], context: Any, name: str, where: str, notes: Notes) -> Question:
    context = text_of(context, where, "context")
    question = text_of(item["question"], where, "question")
    if not (question.strip() and context.strip()):
        notes.add("empty-text", where)
    gold: tuple[tuple[str, int], ...] | None = None
    given = item.get("answers", item.get("answer"))
    if isinstance(given, str):
        given = _parse_cell(given, item.get("answer_start"))
    impossible = item.get("is_impossible")
    if impossible.lower() in ("true", "yes", "1") if isinstance(impossible, str) else impossible:
        gold = ()
    elif given is not None:
        answers = _answers(given, where)
        gold = tuple((text, _locate(text, start, context, where, notes)) for text, start in answers)
    return Question(name, question, context, gold, where)


def _answers(value: Any, where: str) -> list[tuple[str, int | None]]:
    """The answers and their offsets, from a list of objects or of texts, or from an object of lists."""
    if isinstance(value, dict) and isinstance(texts := value.get("text", []), list | tuple):
        starts = value.get("answer_start", [None] * len(texts))
        if not isinstance(starts, list | tuple) or len(starts) != len(texts):
            raise row_error(where, f"has {len(texts)} answers and not as many offsets: {starts!r}", "count-mismatch")
        value = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
    elif isinstance(value, dict):
        value = [value]
    if not isinstance(value, list | tuple):
        raise row_error(where, f"has the answers {value!r}: expected a text, or a list", "bad-answer")
    found = [answer if isinstance(answer, dict) else {"text": answer} for answer in value]
    for answer in found:
        if not isinstance(answer.get("text"), str) or not isinstance(answer.get("answer_start"), int | None):
            raise row_error(where, f"has the answer {answer!r}: expected a text and its offset", "bad-answer")
    return [(replace_surrogates(answer["text"]), answer.get("answer_start")) for answer in found]


def _parse_cell(text: str, start: Any) -> Any:
    """The answers of a cell of a table, with the cell of the offset: None if empty, else JSON, or one answer."""
    if text.startswith(("{", "[{", '["')):  # [1] is a text
        with suppress(ValueError):
            return json.loads(text)
    if isinstance(start, str):
        with suppress(ValueError):  # pandas writes 3.0 where other rows have none
            start = int(float(start)) if start.strip() else None
    return {"text": text, "answer_start": start} if text else None


def _locate(text: str, start: int | None, context: str, where: str, notes: Notes) -> int:
    """Where the answer begins: at its offset, or at the nearest place that has it; -1 if there is none."""
    if start is not None and start >= 0 and context.startswith(text, start):
        return start
    if start is None and text in context:
        if context.count(text) > 1:
            notes.add("ambiguous-answer", where, text)
        return context.find(text)
    wanted = start if start is not None and start >= 0 else 0
    left, right = context.rfind(text, 0, wanted + len(text)), context.find(text, wanted)
    places = [place for place in (left, right) if place >= 0]
    if not places:
        notes.add("answer-not-found", where, text)
        return -1
    notes.add("answer-moved", where, text)
    return min(places, key=lambda place: abs(place - wanted))
