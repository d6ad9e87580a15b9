"""Vectors on disk: .npy, .jsonl or .parquet, streamed and written atomically."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways import atomic
from bothways.errors import BothwaysError

VectorRow = tuple[dict[str, Any], NDArray[np.float32]]
"""The fields that describe a vector, and the vector."""

_ROWS_AT_ONCE = 4096


def write_vectors(path: Path, rows: Iterable[VectorRow], width: int) -> int:
    """Write rows of `width` numbers to `path` and return how many there were.

    .jsonl and .parquet hold all fields of a row. .npy holds the vectors only; if there are more fields than the number
    of the text, they go into a second file (see `beside`).
    """
    return writer_for(path)(path, rows, width)


def writer_for(path: Path) -> Callable[[Path, Iterable[VectorRow], int], int]:
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
            raise BothwaysError(
                "writing .parquet needs pyarrow: pip install 'bothways[parquet]'", "missing-package", "pyarrow"
            ) from None
    return writers[path.suffix]


def beside(path: Path) -> Path:
    """The file that describes the rows of an .npy: v.npy.jsonl for v.npy."""
    return path.with_name(path.name + ".jsonl")


def _write_npy(path: Path, rows: Iterable[VectorRow], width: int) -> int:
    count = 0
    with ExitStack() as stack:
        matrix = stack.enter_context(atomic.new_file(path)).open("wb+")
        stack.enter_context(matrix)
        names = None
        np.lib.format.write_array_header_1_0(matrix, _header(0, width))
        for fields, vector in rows:
            if count == 0 and set(fields) - {"text"}:
                aside = stack.enter_context(atomic.new_file(beside(path)))
                names = stack.enter_context(aside.open("w", encoding="utf-8"))
            matrix.write(np.ascontiguousarray(vector, np.float32).tobytes())
            if names:
                names.write(json.dumps(fields, ensure_ascii=False) + "\n")
            count += 1
        matrix.seek(0)  # numpy pads the header, so the number of rows can change in place
        np.lib.format.write_array_header_1_0(matrix, _header(count, width))
    return count


def _header(rows: int, width: int) -> dict[str, Any]:
    return {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}


def _write_jsonl(path: Path, rows: Iterable[VectorRow], width: int) -> int:
    count = 0
    with atomic.new_file(path) as fresh, fresh.open("w", encoding="utf-8") as stream:
        for fields, vector in rows:
            # The shortest decimals that round-trip to the same float32.
            numbers = [float(str(number)) for number in vector]
            stream.write(json.dumps(fields | {"vector": numbers}, ensure_ascii=False) + "\n")
            count += 1
    return count


def _write_parquet(path: Path, rows: Iterable[VectorRow], width: int) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    count = 0
    stream: Iterator[VectorRow] = iter(rows)
    with atomic.new_file(path) as fresh, ExitStack() as stack:
        writer = None
        while some := list(islice(stream, _ROWS_AT_ONCE)):
            flat = pa.array(np.concatenate([vector for _, vector in some]), pa.float32())
            columns = {name: [fields[name] for fields, _ in some] for name in some[0][0]}
            table = pa.table(columns | {"vector": pa.FixedSizeListArray.from_arrays(flat, width)})
            if writer is None:
                writer = stack.enter_context(pq.ParquetWriter(fresh, table.schema))
            writer.write_table(table)
            count += len(some)
        if writer is None:
            pq.write_table(pa.table({"vector": pa.array([], pa.list_(pa.float32(), width))}), fresh)
    return count
