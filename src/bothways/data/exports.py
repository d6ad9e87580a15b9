"""Exports of annotation tools as plain rows: Label Studio (JSON, JSON-MIN), and the training JSON of spaCy 2 and 3.

A row has a `text`, with `entities` (their places and types), a `label`, or both; or `tokens` with a list of tags.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bothways.data.notes import Notes, row_error
from bothways.errors import BothwaysError
from bothways.text.columns import find_text

Item = tuple[str, Any]
"""The place of a JSON value, such as `export.json, item 3`, and the value."""
_COLUMNS = {
    "labels": "entities",
    "hypertextlabels": "entities",
    "choices": "label",
    "rating": "label",
    "number": "label",
}
"""By type of a Label Studio result: the column for its values."""
_VALUES = ("choices", "rating", "number")


def plain_rows(items: Sequence[Item], notes: Notes) -> Iterator[Item]:
    """The items of a .json file, with those of a known tool as plain rows; all others as they are."""
    if items and all(_is_task(value) for _, value in items):
        yield from _label_studio([(where, value) for where, value in items], notes)
    elif items and all(isinstance(value, dict) and "annotation_id" in value for _, value in items):
        yield from _json_min(items)
    else:
        for where, value in items:
            yield from plain_row(where, value)


def plain_row(where: str, value: Any) -> Iterator[Item]:
    """One JSON value: of spaCy's training data as rows, else as it is."""
    match value:
        case [str(text), dict(marks)] if {"entities", "cats"} & marks.keys():
            entities = {"entities": marks["entities"]} if "entities" in marks else {}
            yield where, {"text": text, **entities, **_categories(where, marks.get("cats"))}
        case {"paragraphs": [{"sentences": _}, *_] as paragraphs}:
            for number, paragraph in enumerate(paragraphs, 1):
                yield from _paragraph(f"{where}, paragraph {number}", paragraph)
        case _:
            yield where, value


# ---------------------------------------------------------------------- spaCy


def label_of(categories: Mapping[str, Any]) -> str | list[str]:
    """The categories of a text that are true: one as a name, else as a list. An error if one is no number."""
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in categories.values()):
        raise TypeError("categories without numbers")
    found = [name for name, value in categories.items() if value >= 0.5]
    return found[0] if len(found) == 1 else found


def _categories(where: str, cats: Any) -> dict[str, Any]:
    try:
        if isinstance(cats, list):  # of spaCy 2's paragraphs
            cats = {one["label"]: one["value"] for one in cats}
        return {"label": label_of(cats)} if cats else {}
    except (AttributeError, KeyError, TypeError) as error:
        says = "has cats that are not categories with a number from 0 to 1 each"
        raise row_error(where, says, "unknown-layout") from error


def _paragraph(where: str, paragraph: Any) -> Iterator[Item]:
    """A paragraph of spaCy 2: its text if it has categories, else its sentences, with their entities or tags."""
    try:
        if paragraph.get("cats"):
            yield where, {"text": paragraph["raw"], **_categories(where, paragraph["cats"])}
            return
        for number, sentence in enumerate(paragraph["sentences"], 1):
            row: dict[str, Any] = {"tokens": [token["orth"] for token in sentence["tokens"]]}
            for name in ("ner", "tag"):
                tags = [token.get(name, "-") for token in sentence["tokens"]]
                if set(tags) - {"-", ""}:
                    row[name] = ["O" if tag == "-" else tag for tag in tags]
            yield f"{where}, sentence {number}", row
    except (AttributeError, KeyError, TypeError) as error:
        says = "is not in spaCy's layout: expected sentences with tokens and their orth"
        raise row_error(where, says, "unknown-layout") from error


# ---------------------------------------------------------------------- Label Studio


def _is_task(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("data"), dict) and isinstance(_given(value), list)


def _given(task: Mapping[str, Any]) -> Any:
    return task.get("annotations", task.get("completions"))


def _label_studio(tasks: Sequence[Item], notes: Notes) -> Iterator[Item]:
    """One row for each task, with what was annotated in its first annotation that was not cancelled."""
    results = [(where, task, _results(where, task, notes)) for where, task in tasks]
    kinds: dict[str, str] = {}  # by name of a control: its type
    for where, _, found in results:
        for one in found or ():
            kind = str(one.get("type", "")).lower()
            if kind in _COLUMNS:
                kinds.setdefault(str(one.get("from_name")), kind)
            else:
                notes.add("unread-annotation", where, kind or "no type")
    keys = {key for _, task, _ in results for key in task["data"]}
    columns = {name: _column(name, kinds, keys) for name in kinds}
    for where, task, found in results:
        number = {"id": task["id"]} if "id" in task else {}  # to find the task again
        row = number | _with_text(task["data"])
        if found is not None:
            for name, kind in kinds.items():
                own = [one["value"] for one in found if str(one.get("from_name")) == name and "value" in one]
                row[columns[name]] = own if _COLUMNS[kind] == "entities" else _choice(own)
        yield where, row


def _results(where: str, task: Mapping[str, Any], notes: Notes) -> list[dict[str, Any]] | None:
    """What was annotated in a task; None if nothing was."""
    done = [one for one in _given(task) if isinstance(one, dict) and not one.get("was_cancelled")]
    if not done:
        return None
    if len(done) > 1:
        notes.add("several-annotations", where)
    chosen = next((one for one in done if one.get("ground_truth")), done[0])
    found = chosen.get("result")
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise row_error(
            where, "has an annotation without a list under result: export it again as JSON", "unknown-layout"
        )
    return found


def _column(name: str, kinds: Mapping[str, str], keys: set[str]) -> str:
    """`entities` or `label`, or the name of the control where that is not clear."""
    column = _COLUMNS[kinds[name]]
    same = [other for other, kind in kinds.items() if _COLUMNS[kind] == column]
    return column if len(same) == 1 and column not in keys else name


def _with_text(data: Mapping[str, Any]) -> dict[str, Any]:
    """The data of a task, with the text under `text` where it is clear which one it is."""
    texts = [str(key) for key, value in data.items() if isinstance(value, str)]
    try:
        (found,) = texts if len(texts) == 1 else find_text(None, texts, "")
    except (BothwaysError, ValueError):
        return dict(data)
    return {"text" if key == found else key: value for key, value in data.items()}


def _choice(values: Sequence[Mapping[str, Any]]) -> Any:
    """A chosen name, several as a list, or a number; None if nothing was chosen."""
    found = [one for value in values for name in _VALUES if name in value for one in _listed(value[name])]
    return found[0] if len(found) == 1 else found or None


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [float(value)]


def _json_min(items: Sequence[Item]) -> Iterator[Item]:
    """JSON-MIN leaves out the list of a text without entities: it gets an empty one.

    The list has the name of its control; if there is one such list, it is found under `entities` too.
    """
    marked = sorted({key for _, row in items for key, value in row.items() if is_regions(value)})
    for where, row in items:
        lists = {key: row.get(key, []) for key in marked}
        yield where, {**({"entities": lists[marked[0]]} if len(marked) == 1 else {}), **row, **lists}


def is_regions(value: Any) -> bool:
    """Whether a value is a list of Label Studio's marked regions."""
    return isinstance(value, list) and bool(value) and all(isinstance(v, dict) and "labels" in v for v in value)
