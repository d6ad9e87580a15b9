"""Reads multiple-choice questions: RACE, DREAM, C3, SWAG, CommonsenseQA, and similar rows."""

import re
from collections.abc import Iterator
from string import ascii_uppercase
from typing import Any

from bothways.data.examples import Choice
from bothways.data.notes import Notes, row_error
from bothways.data.questions import Parts, by_names
from bothways.data.sources import ROWS, TABLES, Paths, find_sources, open_json, rows_of, text_of, values_of
from bothways.errors import BothwaysError, name_list
from bothways.text.columns import Columns, in_english
from bothways.text.files import replace_surrogates

CONTEXTS = ("context", "article", "passage", "paragraph", "ctx", "premise", "sent1", "startphrase")
QUESTIONS = ("question", "question_stem", "sent2", "query")
OPTIONS = ("options", "choices", "endings", "choice", "candidates")
GOLDS = ("label", "answer", "answerKey", "gold", "correct")
_USUAL_COLUMNS = Columns()
_PARTS: Parts = (("text", "question", QUESTIONS), ("pair", "context", CONTEXTS))
_ENDING = re.compile(r"(?:ending|option|choice)_?(\d)")


def read_choices(paths: Paths, notes: Notes | None = None, columns: Columns = _USUAL_COLUMNS) -> Iterator[Choice]:
    """Stream the questions of the files with their options.

    The gold answer may be a number from 0, a letter, or the text of the option. RACE is a folder of .txt files that
    hold JSON: pass the folder. Of rows with other names, `columns` names those of the question (text), the context
    (pair) and the gold answer (label); options have their usual names.
    """
    notes = notes if notes is not None else Notes()
    gold = "label" if (columns.label or "").lower() == "label" else "answer"  # under which a "2" means other things
    for path in find_sources(paths, (*ROWS, ".txt")):
        kind, lines = open_json(path)
        rows = rows_of(path, kind, lines, notes) if kind in TABLES else values_of(path, kind, lines)
        for where, value in rows:
            if not columns.are_usual:
                value = by_names(value, columns, where, (*_PARTS, ("label", gold, GOLDS)))
                notes.took(text=columns.text, pair=columns.pair, label=columns.label)
            yield from _value(value, where, notes)


def _value(value: Any, where: str, notes: Notes) -> Iterator[Choice]:
    match value:
        case [list(turns), list(questions), *_] if all(isinstance(item, dict) for item in questions):
            context = "\n".join(text_of(turn, where, "its text") for turn in turns)
            for number, item in enumerate(questions, 1):
                yield _row({**item, "context": context}, f"{where}, question {number}", notes)
        case {"article": article, "questions": list(questions), "options": list(options)}:
            answers = value.get("answers") or [None] * len(questions)
            counts = [len(questions), len(options), len(answers)]
            if len(set(counts)) > 1:
                says = f"{where} has {counts[0]} questions, options for {counts[1]}, answers for {counts[2]}"
                raise BothwaysError(says, "count-mismatch", tuple(counts))
            for number, (question, texts, answer) in enumerate(zip(questions, options, answers, strict=True), 1):
                lettered = {"label": ascii_uppercase, "text": texts}
                row = {"article": article, "question": question, "options": lettered, "answer": answer}
                yield _row(row, f"{where}, question {number}", notes)
        case dict():
            yield _row(value, where, notes)
        case _:
            raise row_error(where, "is neither an object nor a list of a text and its questions", "unknown-layout")


def _row(row: dict[str, Any], where: str, notes: Notes) -> Choice:
    """One question. In CommonsenseQA `question` is an object that contains the choices."""
    row = in_english(row)
    if isinstance(row.get("question"), dict):
        stem = row["question"]
        row = {**row, "question": stem.get("stem"), "choices": stem.get("choices")}
    options, letters = _options(row, where)
    context, question = _first(row, CONTEXTS), _first(row, QUESTIONS)
    return Choice(
        text_of(row.get(context), where, context) if context else "",
        text_of(row.get(question), where, question) if question else "",
        options,
        _gold(row, options, letters, where, notes),
        where,
    )


def _first(row: dict[str, Any], names: tuple[str, ...]) -> str:
    return next((name for name in names if row.get(name) is not None), "")


def _options(row: dict[str, Any], where: str) -> tuple[tuple[str, ...], list[str]]:
    """The options, and their letters or numbers in the file, if any."""
    value = next((row[name] for name in OPTIONS if isinstance(row.get(name), list | dict)), None)
    if value is None:
        columns = sorted(name for name in row if _ENDING.fullmatch(name))
        value = [row[name] for name in columns]
    if isinstance(value, dict):  # Hugging Face's object of lists
        value = [{"text": t, "label": n} for t, n in zip(value.get("text", []), value.get("label", []), strict=False)]
    letters = [str(option["label"]) for option in value if isinstance(option, dict) and "label" in option]
    texts: list[Any] = [option.get("text") if isinstance(option, dict) else option for option in value]
    if len(texts) < 2 or not all(isinstance(text, str) for text in texts):
        wanted = f"one of {', '.join(OPTIONS)}, or ending0, ending1 … was expected"
        says = f"has no list of two or more options: its fields are {name_list(row)}, and {wanted}"
        raise row_error(where, says, "no-options")
    return tuple(map(replace_surrogates, texts)), letters


def _gold(row: dict[str, Any], options: tuple[str, ...], letters: list[str], where: str, notes: Notes) -> int | None:
    """The index of the right option."""
    name = _first(row, GOLDS)
    answer = row[name] if name else ""
    if answer == "":
        return None
    numbers = [str(number) for number in range(len(options))]
    ways = [letters, [option.strip() for option in options], list(ascii_uppercase[: len(options)]), numbers]
    if name == "label" or isinstance(answer, int):  # under `answer`, "2" may be the text of an option
        ways.insert(0, numbers)
    for names in ways:
        if str(answer).strip() in names:
            return names.index(str(answer).strip())
    notes.add("answer-not-an-option", where, answer)
    return None
