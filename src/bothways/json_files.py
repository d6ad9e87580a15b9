"""JSON that others wrote: files of bounded size, and errors in plain words."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bothways.errors import BothwaysError

LARGEST = 2**28
"""Bytes of a file that is read at once: the largest tokenizer.json have 35 MB."""


def require_plain_files(folder: Path) -> None:
    """Refuse a folder in which a pipe or a device stands for a file: to read it might never end."""
    for path in _files(folder):
        if path.exists() and not path.is_file() and not path.is_dir():
            raise BothwaysError(f"{path} is a pipe or a device: expected a file", "not-a-file", path)


def _files(folder: Path) -> Iterator[Path]:
    try:
        yield from sorted(folder.iterdir())
    except OSError:  # what opens the folder next says why
        return


def read_small(path: Path) -> bytes:
    """The content of a file that is read as a whole."""
    if path.exists() and not path.is_file():
        raise BothwaysError(f"{path} is no file: expected one of JSON", "not-a-file", path)
    with path.open("rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        says = f"{path} has more than {LARGEST:,} bytes: expected a file of settings"
        raise BothwaysError(says, "too-long-file", path)
    return content


def read_json_file(path: Path) -> Any:
    """The value in a JSON file of settings."""
    try:
        return json.loads(read_small(path).decode("utf-8-sig"))
    except OSError as error:
        raise BothwaysError(f"{path} cannot be read: {error.strerror or error}", "unreadable-file", path) from error
    except (ValueError, RecursionError) as error:
        raise BothwaysError(f"{path} is not JSON: {json_problem(error)}", "not-json", path) from error


def parse_row(text: str, where: str) -> Any:
    """The JSON value of a row of data. A field that an object names twice is refused: one value would be lost."""
    try:
        value = json.loads(text)
        if not _has_each_field_once(text, value):  # the hook is four times as slow
            json.loads(text, object_pairs_hook=_unrepeated)
        return value
    except _RepeatedFieldError as error:
        says = f"{where} names the field {error.args[0]!r} twice in one object: remove one"
        raise BothwaysError(says, "repeated-column", error.args[0]) from error
    except (ValueError, RecursionError) as error:
        raise BothwaysError(f"{where} is not JSON: {json_problem(error)}", "not-json", where) from error


def _has_each_field_once(text: str, value: Any) -> bool:
    """Whether a look at the text tells it: a row without objects in it has as many colons after quotes as fields."""
    return isinstance(value, dict) and text.count('":') == len(value) and not re.search(r'"\s+:', text)


class _RepeatedFieldError(Exception):
    """An object has a field of this name twice."""


def _unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        seen = set[str]()
        for name, _ in pairs:
            if name in seen:
                raise _RepeatedFieldError(name)
            seen.add(name)
    return row


def json_problem(error: Exception) -> str:
    """Why something cannot be read as JSON, in plain words.

    >>> try:
    ...     json.loads("[" * 100_000)
    ... except RecursionError as error:
    ...     print(json_problem(error))
    it is nested too deeply
    """
    match error:
        case RecursionError():
            return "it is nested too deeply"
        case UnicodeDecodeError():
            return f"it is not UTF-8 at byte {error.start}"
        case json.JSONDecodeError():
            return str(error) if error.doc.strip() else "it is empty"
        case OSError():
            return error.strerror or str(error)
    if "integer string conversion" in str(error):
        return f"it has a number of more than {sys.get_int_max_str_digits():,} digits"
    return str(error)
