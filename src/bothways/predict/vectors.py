"""Vectors on disk: .npy, .jsonl or .parquet, streamed and written atomically."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways import atomic
from bothways.errors import BothwaysError, missing_package

VectorBlock = tuple[dict[str, Sequence[Any]], NDArray[np.float32]]
"""Some vectors (rows, width), and the fields that describe them: by name, a value for each row."""


_ROWS_AT_ONCE = 4096  # in a row group of .parquet


def write_vectors(path: Path, blocks: Iterable[VectorBlock], width: int) -> int:
    """Write vectors of `width` numbers to `path` and return how many there were.

    .jsonl and .parquet hold all fields of a row. .npy holds the vectors only; if there are more fields than the number
    of the text, they go into a second file (see `beside`).
    """
    return writer_for(path)(path, blocks, width)


def writer_for(path: Path) -> Callable[[Path, Iterable[VectorBlock], int], int]:
    """The writer for this file name."""
    writers = {".npy": _write_npy, ".jsonl": _write_jsonl, ".parquet": _write_parquet}
    if path.suffix not in writers:
        raise BothwaysError(
            f"vectors cannot be written to {path}: expected a name that ends in {', '.join(writers)}",
            "unknown-format",
            path,
        )
    if path.suffix == ".parquet":
        try:
            import pyarrow  # noqa: F401
        except ImportError:
            raise missing_package("writing .parquet", "pyarrow") from None
    return writers[path.suffix]


def beside(path: Path) -> Path:
    """The file that describes the rows of an .npy: v.npy.jsonl for v.npy."""
    return path.with_name(path.name + ".jsonl")


def _write_npy(path: Path, blocks: Iterable[VectorBlock], width: int) -> int:
    count = 0
    with ExitStack() as stack:
        matrix = stack.enter_context(atomic.new_file(path)).open("wb+")
        stack.enter_context(matrix)
        names = None
        np.lib.format.write_array_header_1_0(matrix, _header(0, width))
        for fields, vectors in blocks:
            if names is None and set(fields) - {"text"}:
                aside = stack.enter_context(atomic.new_file(beside(path)))
                names = stack.enter_context(aside.open("w", encoding="utf-8"))
            matrix.write(np.ascontiguousarray(vectors, "<f4").data)
            if names:
                names.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in _rows(fields))
            count += len(vectors)
        matrix.seek(0)  # numpy pads the header, so the number of rows can change in place
        np.lib.format.write_array_header_1_0(matrix, _header(count, width))
    return count


def _rows(fields: dict[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    return (dict(zip(fields, values, strict=True)) for values in zip(*fields.values(), strict=True))


def _header(rows: int, width: int) -> dict[str, Any]:
    return {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}


def _write_jsonl(path: Path, blocks: Iterable[VectorBlock], width: int) -> int:
    count = 0
    with atomic.new_file(path) as fresh, fresh.open("w", encoding="utf-8") as stream:
        for fields, vectors in blocks:
            for row, vector in zip(_rows(fields), vectors, strict=True):
                # The shortest decimals that round-trip to the same float32.
                numbers = [float(str(number)) for number in vector]
                stream.write(json.dumps(row | {"vector": numbers}, ensure_ascii=False) + "\n")
            count += len(vectors)
    return count


def _write_parquet(path: Path, blocks: Iterable[VectorBlock], width: int) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    count = 0

    def tables() -> Iterator[Any]:
        for fields, vectors in blocks:
            if len(vectors):  # the columns of an empty block have no type
                flat = pa.array(np.ascontiguousarray(vectors).reshape(-1), pa.float32())
                yield pa.table({**fields, "vector": pa.FixedSizeListArray.from_arrays(flat, width)})

    with atomic.new_file(path) as fresh, ExitStack() as stack:
        writer = None
        for table in row_groups(tables()):
            if writer is None:
                writer = stack.enter_context(pq.ParquetWriter(fresh, table.schema))
            writer.write_table(table)
            count += len(table)
        if writer is None:
            pq.write_table(pa.table({"vector": pa.array([], pa.list_(pa.float32(), width))}), fresh)
    return count


def row_groups(tables: Iterable[Any]) -> Iterator[Any]:
    """The rows of some tables of pyarrow in tables of equal size, which become the row groups of a file."""
    import pyarrow as pa

    held = None
    for table in tables:
        held = table if held is None else pa.concat_tables([held, table])
        while len(held) >= _ROWS_AT_ONCE:
            yield held.slice(0, _ROWS_AT_ONCE).combine_chunks()
            held = held.slice(_ROWS_AT_ONCE)
    if held is not None and len(held):
        yield held.combine_chunks()
