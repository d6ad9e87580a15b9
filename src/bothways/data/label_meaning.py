"""Checks of what the labels of texts mean: quantities, several in one cell, or a column for each."""

from collections.abc import Iterator, Mapping

from bothways.data.findings import DataCounts, Finding
from bothways.data.several_labels import MARKS, joined_names, yes_or_no
from bothways.data.sources import ROWS, find_sources, first_rows
from bothways.data.texts import find_indicators
from bothways.text.columns import is_usual_label

_MANY_NAMES = 20
"""More labels than this that are whole numbers may be quantities."""


def check_meaning(names: Mapping[str, int], counts: DataCounts) -> Iterator[Finding]:
    """Labels that were read as one name for each text, and may be something else."""
    yield from _quantities(names, counts)
    yield from _several(names)
    yield from _neighbours(names, counts)


def _quantities(names: Mapping[str, int], counts: DataCounts) -> Iterator[Finding]:
    """Many whole numbers, or some in a column of scores."""
    column = counts.columns.label or _label_column(counts.files[0])
    enough = 2 if any(word in column.lower() for word in ("score", "similarity")) else _MANY_NAMES
    if len(names) > enough and all(name.isdecimal() for name in names):
        says = f"The {len(names):,} labels are whole numbers, from {min(map(int, names))} to {max(map(int, names))}."
        do = "They are read as names; if they are quantities, set classify.kind=regression."
        yield Finding("warning", "labels", says, do, len(names))


def _label_column(file: str) -> str:
    """The column with the labels; "" if that is not certain."""
    rows = [row for row in first_rows(find_sources(file, ROWS)[0])[:1] if isinstance(row, dict)]
    found = [name for row in rows for name in row if is_usual_label(name)]
    return found[0] if len(found) == 1 else ""


def _neighbours(names: Mapping[str, int], counts: DataCounts) -> Iterator[Finding]:
    """One column of 0 and 1 was taken for the label by its name, and there are others."""
    if counts.columns.label or any(yes_or_no(name) is None for name in names):
        return
    taken, columns = _label_column(counts.files[0]), find_indicators(counts.files, counts.columns)
    if taken in columns:
        others = [name for name in columns if name != taken]
        says = f"The label {taken} is 0 or 1, and so {'is' if len(others) == 1 else 'are'} {', '.join(others[:5])}."
        do = f"If each of these columns is a label, name them all: `label` {'+'.join(columns)}."
        yield Finding("warning", "labels", says, do, len(others))


def _several(names: Mapping[str, int]) -> Iterator[Finding]:
    """Cells such as joy|awe, where joy is a label too."""
    for mark in MARKS:
        if joined := joined_names(names, mark):
            look = "1 label looks" if len(joined) == 1 else f"{len(joined):,} labels look"
            says = f"{look} like several in one cell, as in {joined[0]!r}."
            do = f"If they are several, separated by {mark}, set classify.kind=multi."
            yield Finding("warning", "labels", says, do, len(joined))
            return
