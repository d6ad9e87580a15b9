"""Rows of Excel workbooks (.xlsx), read as a stream with openpyxl."""

import datetime
import os
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bothways.errors import BothwaysError, missing_package, name_list
from bothways.json_files import LARGEST
from bothways.text.long_text import LONGEST_LINE, line_too_long
from bothways.text.streams import Meter, note_place

_NOT_DAMAGE = (BothwaysError, MemoryError)
_SHEET = "BOTHWAYS_SHEET"
"""In the environment, so that worker processes read the same sheet."""


@contextmanager
def read_sheet(name: str | None) -> Iterator[None]:
    """Inside this block the sheet of this name is read of every workbook; None: the only one with rows."""
    before = os.environ.get(_SHEET)
    if name:
        os.environ[_SHEET] = name
    try:
        yield
    finally:
        os.environ.pop(_SHEET, None)
        os.environ |= {_SHEET: before} if before else {}


def named_sheet() -> str:
    """The name of the sheet to read; empty: the only one with rows."""
    return os.environ.get(_SHEET, "")


def excel_rows(path: Path, meter: Meter) -> Iterator[tuple[int, list[str]]]:
    """The cells of each row as text, with the number of the row; empty rows are skipped.

    A workbook with several filled sheets is refused unless `read_sheet` names one: which was meant is not known.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about styles and validations, which are not read
        book, sheet = _open(path)
    before, size = meter.bytes, path.stat().st_size
    note_place(path, 0)
    number, width = 0, 0
    try:
        for number, values in enumerate(sheet.iter_rows(values_only=True), 1):
            cells = [_text(value) for value in values]
            if any(len(cell) > LONGEST_LINE for cell in cells):
                raise line_too_long(f"a cell of {path}, row {number}")
            while cells and not cells[-1] and len(cells) > width:
                cells.pop()
            if any(cells):
                width = width or len(cells)
                yield number, [*cells, *[""] * (width - len(cells))]
            place = size * number // max(sheet.max_row or number, number)
            meter.bytes = before + place
            note_place(path, place)
        meter.bytes = before + size
    except _NOT_DAMAGE:
        raise
    except Exception as error:  # openpyxl may raise anything at a damaged workbook
        raise _damaged(path, error, number) from error
    finally:
        book.close()


def count_excel_rows(path: Path) -> int:
    """The rows that the sheet says it has: an estimate; 1 for what cannot be read."""
    try:
        book, sheet = _open(path)
    except BothwaysError:
        return 1
    try:
        return max(1, (sheet.max_row or 2) - 1)
    finally:
        book.close()


def _open(path: Path) -> tuple[Any, Any]:
    """The workbook, and the sheet that is named, or the only one that has cells."""
    openpyxl, wanted = require_openpyxl(), named_sheet()
    try:
        with zipfile.ZipFile(path) as archive:
            if any(part.file_size > LARGEST for part in archive.infolist() if "sharedStrings" in part.filename):
                says = f"{path} holds more than {LARGEST:,} bytes of texts, which are read at once: save it as .csv"
                raise BothwaysError(says, "too-long-file", path)
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
        filled = [sheet for sheet in book.worksheets if wanted or _has_cells(sheet)]
    except _NOT_DAMAGE:
        raise
    except Exception as error:
        raise _damaged(path, error, 0) from error
    if wanted:
        for sheet in book.worksheets:
            if sheet.title == wanted:
                return book, sheet
        names = [sheet.title for sheet in book.worksheets]
        book.close()
        raise BothwaysError(f"{path} has no sheet {wanted!r}: its sheets are {name_list(names)}", "no-sheet", wanted)
    if not book.worksheets:
        raise BothwaysError(f"{path} has no sheets: save it again", "damaged-file", path)
    if len(filled) > 1:
        names = [sheet.title for sheet in filled]
        book.close()
        says = f"{path} has {len(names)} sheets with rows: {name_list(names)}"
        raise BothwaysError(f"{says}: name the one to be read with `sheet`", "several-sheets", tuple(names))
    return book, (filled or book.worksheets)[0]


def _has_cells(sheet: Any) -> bool:
    return any(value is not None for row in sheet.iter_rows(values_only=True, max_row=50) for value in row)


def _text(value: Any) -> str:
    """A cell as Excel shows it in its simplest format: a whole number without a point, a date as 2024-05-01."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, datetime.datetime) and value.time() == datetime.time():
        return value.date().isoformat()
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return str(value)


def _damaged(path: Path, error: Exception, row: int) -> BothwaysError:
    reason = getattr(error, "strerror", None) or "it is damaged"
    if isinstance(error, zipfile.BadZipFile | ValueError | SyntaxError):  # ParseError is a SyntaxError
        reason = str(error).partition("\n")[0]
    return BothwaysError(f"{path} cannot be read as .xlsx after row {row}: {reason}", "damaged-file", path)


def require_openpyxl() -> Any:
    """The package, which an extra installs."""
    try:
        import openpyxl
    except ImportError:
        raise missing_package("reading .xlsx", "openpyxl") from None
    return openpyxl
