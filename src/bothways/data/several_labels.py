"""How files write several labels of one text: list cells, cells such as joy|awe, or a column of 0 and 1 per label."""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bothways.data.notes import row_error
from bothways.errors import BothwaysError

MARKS = "|;,、；，"
"""What stands between the labels of a cell, in the order in which they are tried: the first are rare in names."""
_FEW_IN_NAMES = "|、；"
"""Marks that names hardly contain."""
_SLASH = "/"
"""In a name such as sci-fi/fantasy as often as between labels: only if parts are labels by themselves too."""
_MOST = 0.8
"""Share of the cells with a mark whose parts must all recur."""
_ITEM = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|-?\d+""")
_LIST = re.compile(rf"\[\s*(?:(?:{_ITEM.pattern})(?:(?:\s*,\s*|\s+)(?:{_ITEM.pattern}))*\s*,?)?\s*\]")
"""As Python, JSON and numpy write a list of names: ['joy', 'awe'], ["joy"], [], [2 6]."""
_FLAG = re.compile(
    r"(.*[_ ])?(id|flag(ged)?|unclear)"
    r"|((is|has|was|in)[_ ])?(verified|valid|checked|reviewed|test|train|dev|split|fold|deleted|removed|duplicated?|"
    r"archived|active|public|private|anonymous|read|unread|sampled?|edited|new|images?|urls?|links?|reply|retweet|media|"
    r"attachments?|bot|admin|member|premium|subscribed|weekend|是否.*|已.*)",
    re.IGNORECASE,
)
"""Columns of 0 and 1 that tell something of the row, not of its text: is_verified, example_very_unclear."""
_YES_OR_NO = {"0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}


def list_cell(cell: str, where: str) -> list[str] | None:
    """The labels of a cell that is a list; None if it is none.

    >>> list_cell("['joy', 'awe']", ""), list_cell('["joy"]', ""), list_cell("[]", ""), list_cell("joy", "")
    (['joy', 'awe'], ['joy'], [], None)
    """
    cell = cell.strip()
    if not (cell.startswith("[") and cell.endswith("]")):
        return None
    if _LIST.fullmatch(cell):
        return [str(ast.literal_eval(item)) for item in _ITEM.findall(cell)]
    if any(mark in cell for mark in "'\",|;"):  # else a name in brackets
        raise row_error(where, f"has the label {cell}: expected a list such as ['joy', 'awe']", "bad-label")
    return None


def split_cell(cell: str, separator: str) -> tuple[str, ...]:
    """The labels of a cell, of which an empty one has none.

    >>> split_cell("joy | awe", "|"), split_cell("", "|"), split_cell("joy", "")
    (('joy', 'awe'), (), ('joy',))
    """
    parts = cell.split(separator) if separator else [cell]
    return tuple(part for part in map(str.strip, parts) if part)


def find_separator(cells: Iterable[str]) -> str:
    """What separates the labels of these cells, each of which has any number; "" if each has at most one.

    A mark is taken if no label then looks like several by another mark.

    >>> find_separator(["joy", "joy;awe"]), find_separator(["Comedy, dark|Drama", "Drama"]), find_separator(["joy"])
    (';', '|', '')
    """
    distinct = set(cells)
    present = [mark for mark in MARKS if any(mark in cell for cell in distinct)]
    for mark in present:
        names = {name for cell in distinct for name in split_cell(cell, mark)}
        if not any(joined_names(names, other) for other in present if other != mark):
            return mark
    if present:
        raise BothwaysError(
            f"the labels may be separated by {' or '.join(present)}: name the right one with classify.separator",
            "ambiguous-separator",
            tuple(present),
        )
    return evident_separator(dict.fromkeys(distinct, 1))  # a slash, or none


def joined_names(names: Iterable[str], mark: str) -> list[str]:
    """The names that contain the mark, and a part of which is a name too."""
    known = set(names)
    return [name for name in names if mark in name and any(part in known for part in split_cell(name, mark))]


def evident_separator(names: Mapping[str, int]) -> str:
    """What separates several labels in cells that were read as names; "" if they do not look like several.

    Nearly all cells must consist of parts that other cells have too: "Paris, France" and "Lyon, France" are two names.
    Of | 、 and ； most parts must be, since names hardly contain them; of a cell with / one must be a label by itself,
    no number.

    >>> evident_separator({"joy": 3, "awe": 2, "joy|awe": 1}), evident_separator({"Paris, France": 4, "France": 2})
    ('|', '')
    >>> evident_separator({"喜、爱": 1, "喜、惊": 1, "爱": 2}), evident_separator({"食品、饮料": 5, "饮料、酒水": 5})
    ('、', '')
    """
    marks: tuple[str, ...] = (*MARKS, _SLASH)
    for mark in marks:
        cells = [split_cell(name, mark) for name in names if mark in name]
        if not cells:
            continue
        seen = Counter(part for name in names for part in set(split_cell(name, mark)))
        alone = {part for part in seen if part in names and not part.isdecimal()} if mark == _SLASH else seen.keys()
        parts = {part for cell in cells for part in cell}
        whole = sum(all(seen[part] > 1 for part in cell) and not alone.isdisjoint(cell) for cell in cells)
        recur = sum(seen[part] > 1 for part in parts)
        if whole >= _MOST * len(cells) or (mark in _FEW_IN_NAMES and 2 * recur >= len(parts)):
            return mark
    return ""


def indicated(row: Mapping[str, Any], columns: Sequence[str], where: str) -> tuple[str, ...] | None:
    """The labels of a row in which each has a column of 0 and 1; None if one of these is missing."""
    found = []
    for name in columns:
        if is_missing(row[name]):
            return None
        if (yes := yes_or_no(row[name])) is None:
            says = f"has {row[name]!r} in the column {name}: expected 0 or 1, since `label` names several columns"
            raise row_error(where, says, "not-zero-or-one")
        if yes:
            found.append(name)
    return tuple(found)


def is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip()) or value != value


def yes_or_no(value: Any) -> bool | None:
    """The meaning of 0, 1, true or false; None of anything else."""
    return _YES_OR_NO.get(str(value).strip().lower())


def indicator_columns(rows: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Neighbouring columns that hold only 0 and 1, at least once each of both; none if there are not two such columns.

    Of several groups the largest is taken. A column with the name of a flag, such as is_verified, is no label.

    >>> indicator_columns([{"text": "a", "joy": "1", "awe": "0"}, {"text": "b", "joy": "0", "awe": "1"}])
    ('joy', 'awe')
    """
    seen: dict[str, set[bool | None]] = {}
    for row in rows:
        for name, value in row.items():
            values = seen.setdefault(name, set())
            if not is_missing(value) and None not in values:
                values.add(yes_or_no(value))
    groups: list[list[str]] = [[]]
    for name, values in seen.items():
        if values == {False, True} and not _FLAG.fullmatch(name.strip()):
            groups[-1].append(name)
        elif groups[-1]:
            groups.append([])
    found = max(groups, key=len)
    return tuple(found) if len(found) > 1 else ()


def require_names(values: Sequence[Any], where: str) -> None:
    """Refuse a list such as [0, 1, 0], which has a number for each label and no names."""
    if len(set(map(str, values))) < len(values) and all(yes_or_no(value) is not None for value in values):
        says = f"has the label {list(values)}, which names none: expected a list of names, or a column for each label"
        raise row_error(where, says, "one-hot-list")
