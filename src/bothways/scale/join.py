"""Joins parts into one file, in order and in constant memory."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bothways import atomic
from bothways.predict.vectors import beside, row_groups

_COPIED_AT_ONCE = 2**22  # bytes


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
        for table in row_groups(_tables(parts)):
            writer.write_table(table)


def _tables(parts: Sequence[Path]) -> Iterator[Any]:
    import pyarrow.parquet as pq

    for part in parts:
        with pq.ParquetFile(part) as file:
            for group in range(file.num_row_groups):
                yield file.read_row_group(group)
