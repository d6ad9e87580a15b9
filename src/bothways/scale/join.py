"""Joins parts into one file, in order and in constant memory."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bothways import atomic
from bothways.predict.vectors import beside

_COPIED_AT_ONCE = 2**22  # bytes
_ROWS_AT_ONCE = 4096  # a row group of .parquet, as one process writes them


def join_lines(parts: Sequence[Path], out: Path) -> None:
    """Parts of lines → a file of lines."""
    with atomic.new_file(out) as fresh, fresh.open("wb") as target:
        for part in parts:
            _copy(part, target)


def join_vectors(parts: Sequence[Path], rows: int, width: int, out: Path) -> None:
    """Parts of vectors → .npy, .jsonl or .parquet, as the name of `out` says."""
    if out.suffix == ".npy":
        _join_npy(parts, rows, width, out)
    elif out.suffix == ".parquet":
        _join_parquet(parts, out)
    else:
        join_lines(parts, out)


def _join_npy(parts: Sequence[Path], rows: int, width: int, out: Path) -> None:
    with ExitStack() as stack:
        target = stack.enter_context(stack.enter_context(atomic.new_file(out)).open("wb"))
        header = {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
        np.lib.format.write_array_header_1_0(target, header)
        for part in parts:
            _copy(part, target, skip=_data_start(part))
        if beside(parts[0]).exists():
            join_lines([beside(part) for part in parts], beside(out))


def _data_start(path: Path) -> int:
    with path.open("rb") as stream:
        np.lib.format.read_magic(stream)
        np.lib.format.read_array_header_1_0(stream)
        return stream.tell()


def _copy(part: Path, target: BinaryIO, skip: int = 0) -> None:
    with part.open("rb") as stream:
        stream.seek(skip)
        shutil.copyfileobj(stream, target, _COPIED_AT_ONCE)


def _join_parquet(parts: Sequence[Path], out: Path) -> None:
    import pyarrow.parquet as pq

    with atomic.new_file(out) as fresh, pq.ParquetWriter(fresh, pq.read_schema(parts[0])) as writer:
        for table in _row_groups(parts):
            writer.write_table(table)


def _row_groups(parts: Sequence[Path]) -> Iterator[Any]:
    """The rows of the parts, cut as if they were one stream."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    held = None
    for part in parts:
        with pq.ParquetFile(part) as file:
            for group in range(file.num_row_groups):
                table = file.read_row_group(group)
                held = table if held is None else pa.concat_tables([held, table])
                while len(held) >= _ROWS_AT_ONCE:
                    yield held.slice(0, _ROWS_AT_ONCE).combine_chunks()
                    held = held.slice(_ROWS_AT_ONCE)
    if held is not None and len(held):
        yield held.combine_chunks()
