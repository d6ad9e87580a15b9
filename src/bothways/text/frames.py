"""Tables in memory, read as files are: pandas and polars DataFrames, `datasets.Dataset`, pyarrow tables.

None of these packages is imported: an object says what it is by its type.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any

from bothways.errors import BothwaysError, name_list

_KINDS = {
    ("pandas", "DataFrame"): "pandas",
    ("polars", "DataFrame"): "polars",
    ("datasets", "Dataset"): "datasets",
    ("pyarrow", "Table"): "pyarrow",
}
_REFUSED = {
    ("datasets", "DatasetDict"): "a data set with several splits: pass one of them, as in data['train']",
    ("polars", "LazyFrame"): "a LazyFrame: call collect first",
}
_ROWS = 1_024
"""Rows of a pyarrow table that become Python values at a time."""


@dataclass(frozen=True)
class _Held:
    table: Any
    name: str


_held: dict[str, _Held] = {}
_numbers = itertools.count(1)


def frame_kind(given: Any) -> str:
    """pandas, polars, datasets or pyarrow; empty for what is no table in memory."""
    for kind in type(given).__mro__:
        module = kind.__module__.partition(".")[0]
        if says := _REFUSED.get((module, kind.__name__)):
            raise BothwaysError(f"{type(given).__name__} is {says}", "not-a-table", type(given).__name__)
        if found := _KINDS.get((module, kind.__name__)):
            return found
    return ""


@contextmanager
def as_files(given: Any, name: str = "the table") -> Iterator[list[str]]:
    """The names of files: those given, or that of a table in memory, by which it is read while the block is open."""
    if not frame_kind(given):
        yield [str(given)] if isinstance(given, str | Path) else [str(file) for file in given]
        return
    key = f"<table {next(_numbers)}>"
    _held[key] = _Held(given, name)
    try:
        yield [key]
    finally:
        del _held[key]


def is_frame(path: Path | str) -> bool:
    """Whether this is the name of a table in memory."""
    return str(path) in _held


def frame_name(path: Path | str) -> str:
    """The name of a table in messages."""
    return _held[str(path)].name


def frame_rows(path: Path | str) -> Iterator[dict[str, Any]]:
    """The rows of a table in memory. Missing values are None, and numbers of classes are the names of the classes."""
    return rows_of_frame(_held[str(path)].table)


def rows_of_frame(table: Any) -> Iterator[dict[str, Any]]:
    """The rows of a table, each a dictionary of plain Python values."""
    names = frame_columns(table)
    match frame_kind(table):
        case "pandas":
            columns = [_whole(table.iloc[:, place]) for place in range(len(names))]
            yield from (dict(zip(names, map(_plain, row), strict=True)) for row in zip(*columns, strict=True))
        case "polars":
            yield from table.iter_rows(named=True)
        case "datasets":
            classes = {name: found for name, own in table.features.items() if (found := _classes(own))}
            yield from ({name: _named(value, classes.get(name)) for name, value in row.items()} for row in table)
        case _:
            for batch in table.to_batches(max_chunksize=_ROWS):
                yield from batch.to_pylist()


def frame_columns(table: Any) -> list[str]:
    """The names of a table's columns."""
    names = table.column_names if frame_kind(table) in ("datasets", "pyarrow") else table.columns
    found = [str(name) for name in names]
    require_unrepeated(found, "the table")
    return found


def require_unrepeated(names: Sequence[str], where: str) -> None:
    """Refuse two columns of one name, of which one would be lost."""
    if len(set(names)) < len(names):
        raise BothwaysError(f"{where} has two columns of one name: {name_list(names)}", "repeated-column", names)


def with_columns(table: Any, added: Mapping[str, Sequence[Any]]) -> Any:
    """A table of the same kind with more columns; the table itself stays as it is."""
    if taken := [name for name in added if name in frame_columns(table)]:
        raise BothwaysError(
            f"the table already has a column {taken[0]!r}, which the predictions would overwrite: rename it",
            "repeated-column",
            taken[0],
        )
    match frame_kind(table):
        case "pandas":
            # As objects: pandas would turn lists of one length into something else.
            return table.assign(**{name: _series(table, values) for name, values in added.items()})
        case "polars":
            return table.hstack([type(table[:, 0])(name, list(values)) for name, values in added.items()])
        case "datasets":
            for name, values in added.items():
                table = table.add_column(name, list(values))
            return table
        case _:
            for name, values in added.items():
                table = table.append_column(name, [list(values)])
            return table


def _series(table: Any, values: Sequence[Any]) -> Any:
    kind = "object" if any(isinstance(value, list | dict) for value in values) else None
    return type(table.iloc[:, 0])(list(values), index=table.index, dtype=kind)


def not_a_text(value: Any) -> BothwaysError:
    """The error for one of several texts that is none; of a column it may be a missing value."""
    is_nan = isinstance(value, float) and isnan(value)
    is_missing = value is None or is_nan or type(value).__name__ in ("NAType", "NaTType")
    advice = ": fill missing texts, as in column.fillna('')" if is_missing else ""
    return BothwaysError(f"a text was expected, and {value!r} was given{advice}", "bad-input", value)


def _whole(column: Any) -> Any:
    """A column of whole numbers that became floats because some are missing, as whole numbers again."""
    if column.dtype.kind != "f" or not column.hasnans:
        return column
    known = column.dropna()
    return column.astype("Int64") if len(known) and bool((known % 1 == 0).all()) else column


def _plain(value: Any) -> Any:
    """A cell as a plain Python value. NaN, NaT and pandas.NA, which equal nothing, are missing."""
    if hasattr(value, "tolist"):  # of numpy: a number, or an array
        value = value.tolist()
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(one) for one in (sorted(value, key=str) if isinstance(value, set | frozenset) else value)]
    if isinstance(value, str | dict | bool | int):
        return value
    try:
        return value if bool(value == value) else None
    except (TypeError, ValueError):  # pandas.NA is neither true nor false
        return None


def _classes(feature: Any) -> Sequence[str] | None:
    """The names of a class, or of a list of classes."""
    while (names := getattr(feature, "names", None)) is None and feature is not None:
        feature = feature[0] if isinstance(feature, list) and feature else getattr(feature, "feature", None)
    return names


def _named(value: Any, classes: Sequence[str] | None) -> Any:
    if classes is None or value is None:
        return value
    if isinstance(value, list):
        return [_named(one, classes) for one in value]
    return classes[value] if 0 <= value < len(classes) else None
