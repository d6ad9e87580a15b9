"""Texts as the user gives them: lists, columns, tables in memory."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bothways.errors import BothwaysError
from bothways.text.files import read_texts
from bothways.text.frames import as_files, frame_kind


def texts_of(given: Any, text: str | None = None) -> Any:
    """The texts of a table in memory: the column `text`, or the one with a usual name. Anything else as it is."""
    if not frame_kind(given):
        return given
    with as_files(given) as (name,):
        return list(read_texts(Path(name), text))


def require_several(texts: Iterable[Any]) -> None:
    """Refuse a single string, which is an iterable of letters, a table, which is one of names, and what is none."""
    if frame_kind(texts):
        raise BothwaysError(
            "a list of texts was expected, and a table was given: give one of its columns", "bad-input", type(texts)
        )
    if not isinstance(texts, Iterable):
        raise BothwaysError(f"a list of texts was expected, and {texts!r} was given", "bad-input", texts)
    if isinstance(texts, str):
        raise BothwaysError(
            "a list of texts was expected, and one string was given: put it in a list", "bad-input", texts
        )
