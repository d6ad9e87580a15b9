"""Predictions as rows of a table: the columns of the input, and the answers after them."""

import csv
import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from bothways import atomic
from bothways.data.examples import LongInput, Question
from bothways.data.notes import Notes
from bothways.data.sources import read_plain, rows_of, values_of
from bothways.errors import BothwaysError, name_list
from bothways.predict.predictor import Predictor, answer_columns
from bothways.tasks.tag import has_words
from bothways.tasks.task import EncodedExample, Task
from bothways.text.columns import Columns, names_without_header
from bothways.text.long_text import line_too_long
from bothways.text.streams import name_of
from bothways.text.tables import TABLES, kind_of

NUMBER, WINDOWS, CUT = "input_row", "windows", "cut"
"""Columns of every result: the number of the row in its file, the sequences it was read in, whether it was cut."""
_WITH_COLUMNS = (".jsonl", ".ndjson", *TABLES)
_AT_ONCE = 1_024

Row = dict[str, Any]


def inputs_with_rows(
    predictor: Predictor, file: str, columns: Columns, notes: Notes, keep: Sequence[str] | None = None
) -> Iterator[tuple[Any, Row]]:
    """The examples of a file, each with the columns of its row; of a file without columns, with its texts.

    `keep`: only these columns. An example and its row are known by their place in the file; of several examples in a
    row, as in CLUE's layout, each has its own texts.
    """
    path, task = Path(file), predictor.task
    examples = task.read_inputs(file, columns, notes)
    if (kind := kind_of(path)) not in _WITH_COLUMNS or (predictor.name == "tag" and has_words(path, columns)):
        held = _json_rows(path) if kind == ".json" else {}
        if keep and not held:
            raise BothwaysError(f"{name_of(path)} has no columns to keep", "no-column", keep[0])
        for example in examples:
            row = held.get(example.where) or _texts(task, example)
            yield example, row if keep is None else _kept(row, keep, example.where)
        return
    rows = rows_of(path, kind, read_plain(path), Notes(), partial(names_without_header, columns))
    where, row = "", Row()
    for example in examples:
        while not f"{example.where}, ".startswith(f"{where}, "):
            where, row = next(rows)
        own = row if where == example.where else _texts(task, example)
        yield example, own if keep is None else _kept(own, keep, where)


def _json_rows(path: Path) -> dict[str, Row]:
    """The rows of a .json file, which is read whole, by their places. Those of SQuAD are no places of examples."""
    return {where: value for where, value in values_of(path, ".json", read_plain(path)) if isinstance(value, dict)}


def _texts(task: Task, example: Any) -> Row:
    if isinstance(example, LongInput):
        raise line_too_long(example.where)  # the text is a column of the answer
    if isinstance(example, Question):
        return {"id": example.id, "question": example.question, "context": example.context}
    texts = task.shown_texts(example)
    names = ("text", "text_pair", *(f"text_{n}" for n in range(3, len(texts) + 1)))
    return dict(zip(names, texts, strict=False))


def _kept(row: Row, keep: Sequence[str], where: str) -> Row:
    if missing := [name for name in keep if name not in row]:
        raise BothwaysError(
            f"{where} has no column {missing[0]!r}, which `keep` names: its columns are {name_list(row)}",
            "no-column",
            missing[0],
        )
    return {name: row[name] for name in keep}


def predicted_rows(
    predictor: Predictor,
    inputs: Iterable[tuple[Any, Row]],
    *,
    top: int = 1,
    probabilities: bool = False,
    first: int = 0,
    notes: Notes | None = None,
) -> Iterator[Row]:
    """The rows with their answers. `first`: the number of the first row, counted from 0."""
    if probabilities and not predictor.task.has_probabilities:
        raise BothwaysError(
            f"a model for the task {predictor.name} has no probability for each label: leave `probabilities` out",
            "no-probabilities",
            predictor.name,
        )
    predictor.require_top(top)
    waiting: deque[Row] = deque()

    def examples() -> Iterator[Any]:
        for example, row in inputs:
            waiting.append(row)
            yield example

    for number, (item, decoded) in enumerate(predictor.decode_all(examples(), first), first + 1):
        row = waiting.popleft()
        found = predictor.task.answer(item, decoded, top)
        note_without_label(predictor, item.example, found, notes)
        answer = answer_columns(found, predictor.task.list_column)
        if probabilities:
            shares = zip(predictor.labels, decoded.tolist(), strict=True)
            answer |= {f"probability_{label}": share for label, share in shares}
        yield _joined(row, {NUMBER: number, **answer, **_reading(item)})


def note_without_label(predictor: Predictor, example: Any, answer: Any, notes: Notes | None) -> None:
    """Note a text of a file for which none of several labels was predicted."""
    if notes is not None and answer == [] and not predictor.task.list_column and example.where:
        notes.add("no-label-predicted", example.where)


def _reading(item: EncodedExample) -> Row:
    return {WINDOWS: item.windows, CUT: item.is_cut}


def _joined(row: Row, answer: Row) -> Row:
    if taken := [name for name in answer if name in row]:
        raise BothwaysError(
            f"the input has a column {taken[0]!r}, which predictions have too: rename it, or leave it out with `keep`",
            "repeated-column",
            taken[0],
        )
    number = answer.pop(NUMBER)
    return {NUMBER: number, **row, **answer}


# ---------------------------------------------------------------------- files


def write_rows(path: Path, rows: Iterable[Row]) -> int:
    """Write rows as JSON lines, and return how many there were."""
    count = 0
    with atomic.new_file(path) as fresh, fresh.open("w", encoding="utf-8") as stream:
        for row in rows:
            stream.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")
            count += 1
    return count


def _rows(parts: Sequence[Path]) -> Iterator[Row]:
    for part in parts:
        with part.open(encoding="utf-8") as lines:
            yield from map(json.loads, lines)


def _names(parts: Sequence[Path]) -> list[str]:
    """The columns of all rows, in the order in which they come; of no rows the one that every row has."""
    found: dict[str, None] = {}
    for row in _rows(parts):
        if not found.keys() >= row.keys():
            found |= dict.fromkeys(row)
    return list(found) or [NUMBER]


def join_csv(parts: Sequence[Path], out: Path, bom: bool = False) -> None:
    """Parts of JSON lines → .csv, in constant memory. `bom`: it begins with a byte order mark."""
    names = _names(parts)
    with atomic.new_file(out) as fresh, fresh.open("w", encoding="utf-8-sig" if bom else "utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, names, restval="")
        writer.writeheader()
        for row in _rows(parts):
            writer.writerow({name: _cell(value) for name, value in row.items()})


def _cell(value: Any) -> Any:
    """A list or a dictionary as JSON; a missing value as an empty cell."""
    if isinstance(value, list | dict | bool):
        return json.dumps(value, ensure_ascii=False)
    return "" if value is None else value


def join_parquet(parts: Sequence[Path], out: Path) -> None:
    """Parts of JSON lines → .parquet, in constant memory: in two passes, the types of all rows first."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def tables(schema: Any = None) -> Iterator[Any]:
        rows = _rows(parts)
        while some := list(islice(rows, _AT_ONCE)):
            yield pa.Table.from_pylist(some if schema else _with_all(some), schema=schema)

    schema = pa.schema([])
    for table in tables():
        schema = pa.unify_schemas([schema, table.schema], promote_options="permissive")
    schema = schema if len(schema) else pa.schema([(NUMBER, pa.int64())])
    with atomic.new_file(out) as fresh, pq.ParquetWriter(fresh, schema) as writer:
        for table in tables(schema):
            writer.write_table(table)


def _with_all(rows: list[Row]) -> list[Row]:
    """pyarrow takes the columns of the first row for those of all."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in names} for row in rows]
