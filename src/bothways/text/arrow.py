"""Rows of Apache Arrow data: .parquet and .arrow files, and the folders that Hugging Face `datasets` saves."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bothways.errors import BothwaysError, missing_package, name_list
from bothways.json_files import read_json_file
from bothways.text.frames import frame_rows, is_frame, require_unrepeated
from bothways.text.long_text import LONGEST_LINE, line_too_long
from bothways.text.streams import Meter, note_place

ChooseColumns = Callable[[list[str]], list[str] | None]
"""The names of all columns → those to read; None: all."""
STATE, SPLITS = "state.json", "dataset_dict.json"
_ROWS = 64
"""Rows that are read at a time."""


def dataset_folder(path: Path) -> Path | None:
    """The folder with the rows of a saved data set: this one, or that of its only split; None if it is another folder.

    A data set with several splits is refused: each is a folder that can be named.
    """
    if not path.is_dir():
        return None
    if (path / STATE).is_file():
        return path
    if not (path / SPLITS).is_file():
        return None
    splits = [str(name) for name in read_part(path / SPLITS).get("splits", [])]
    if len(splits) != 1:
        says = f"{path} is a data set with the splits {name_list(splits)}: name one of them"
        raise BothwaysError(f"{says}, as in {path / splits[0]}" if splits else says, "several-splits", tuple(splits))
    return dataset_folder(path / splits[0])


def data_files(path: Path) -> list[Path]:
    """The files that hold the rows of a .parquet or .arrow file, or of a saved data set."""
    folder = dataset_folder(path)
    if folder is None:
        return [path]
    state = read_part(folder / STATE)
    if state.get("_indices_data_files"):
        says = f"{folder} is a selection of rows of another data set: save it again with a newer version of datasets"
        raise BothwaysError(says, "unknown-layout", folder)
    return [folder / str(file["filename"]) for file in state.get("_data_files") or []]


def read_part(file: Path) -> dict[str, Any]:
    """What a .json file of a saved data set says."""
    try:
        found = read_json_file(file)
    except BothwaysError as error:
        raise BothwaysError(str(error), "damaged-file", file) from error
    return found if isinstance(found, dict) else {}


def arrow_rows(path: Path, meter: Meter, choose: ChooseColumns = lambda names: None) -> Iterator[dict[str, Any]]:
    """The rows of a .parquet or .arrow file, or of a saved data set.

    Numbers of classes are replaced by the names that `datasets` saved with them.
    """
    if is_frame(path):
        yield from frame_rows(path)
        return
    for file in data_files(path):
        done = 0
        try:
            with _opened(file) as (schema, count, batches):
                require_unrepeated(schema.names, str(file))
                names = choose(list(schema.names))
                classes = {name: own for name, own in class_names(schema).items() if names is None or name in names}
                before, size = meter.bytes, file.stat().st_size
                note_place(path, 0)
                for batch in batches(names):
                    for row in batch.to_pylist():
                        if any(isinstance(cell, str) and len(cell) > LONGEST_LINE for cell in row.values()):
                            raise line_too_long(f"a cell after row {done} of {file}")
                        yield _named(row, classes)
                    done += len(batch)
                    place = size * done // max(count, 1)  # estimated from the share of rows: other columns are not read
                    meter.bytes = before + place
                    note_place(path, place)
        except (pyarrow().ArrowException, OSError, UnicodeDecodeError) as error:
            kind, reason = file.suffix.lower(), str(error).partition("\n")[0]
            raise BothwaysError(
                f"{file} cannot be read as {kind} after row {done}: {reason}", "damaged-file", file
            ) from error


def count_rows(path: Path) -> int:
    """How many rows there are; 1 for what cannot be read, of which the reader says why."""
    total = 0
    try:
        for file in data_files(path):
            with _opened(file) as (_, count, _):
                total += count
    except (pyarrow().ArrowException, OSError, BothwaysError):
        return 1
    return total


Batches = Callable[[Sequence[str] | None], Iterator[Any]]


@contextmanager
def _opened(file: Path) -> Iterator[tuple[Any, int, Batches]]:
    """The schema of a file, the number of its rows, and a function that reads some columns in batches."""
    arrow = pyarrow()
    if file.suffix.lower() == ".parquet":
        # Read page by page: 5 MB in memory for a row group of 400 MB, instead of all of it.
        with arrow.parquet.ParquetFile(file, buffer_size=2**20, pre_buffer=False) as parquet:
            yield (
                parquet.schema_arrow,
                parquet.metadata.num_rows,
                lambda names: parquet.iter_batches(batch_size=_ROWS, columns=names, use_threads=False),
            )
        return
    with arrow.memory_map(str(file)) as source:
        table = _mapped(arrow, source)
        yield table.schema, table.num_rows, lambda names: _slices(table if names is None else table.select(names))


def _mapped(arrow: Any, source: Any) -> Any:
    """A .arrow file as a table whose values stay on disk: a stream, as `datasets` writes, or a file with an index."""
    try:
        return arrow.ipc.open_stream(source).read_all()
    except arrow.ArrowInvalid:
        source.seek(0)
        return arrow.ipc.open_file(source).read_all()


def _slices(table: Any) -> Iterator[Any]:
    for start in range(0, len(table), _ROWS):
        yield table.slice(start, _ROWS)


# ---------------------------------------------------------------------- names of classes


def class_names(schema: Any) -> dict[str, list[str]]:
    """The names of the classes of each column of numbers, as `datasets` stores them in the schema."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: found for name in schema.names if (found := _names(features.get(name)))}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


def _names(feature: Any) -> list[str]:
    """The names of a class, or of a list of classes."""
    if isinstance(feature, list) and len(feature) == 1:
        return _names(feature[0])
    if not isinstance(feature, Mapping):
        return []
    if feature.get("_type") == "ClassLabel":
        return [str(name) for name in feature.get("names") or []]
    return _names(feature.get("feature"))


def _named(row: dict[str, Any], classes: Mapping[str, list[str]]) -> dict[str, Any]:
    for column, names in classes.items():
        row[column] = _name(row[column], names)
    return row


def _name(value: Any, names: list[str]) -> Any:
    if isinstance(value, list):
        return [_name(one, names) for one in value]
    if value == -1:  # how `datasets` writes that there is no label
        return None
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else value


def pyarrow() -> Any:
    """The package, which an extra installs."""
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError:
        raise missing_package("reading .parquet and .arrow", "pyarrow") from None
    return pyarrow
