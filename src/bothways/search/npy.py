"""Writes .npy files by blocks of rows, whose number need not be known before, and reads them."""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from bothways.errors import BothwaysError


class NpyWriter:
    """A matrix that grows on disk. The path is inside a folder that appears as a whole."""

    def __init__(self, path: Path, dtype: DTypeLike, columns: int = 0) -> None:
        """`columns`: 0 for an array of numbers, which has no second dimension."""
        self.dtype, self._columns, self.rows = np.dtype(dtype).newbyteorder("<"), columns, 0
        self._file = path.open("wb+")
        self._header()

    def __enter__(self) -> "NpyWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._file:
            if kind is None:
                self._file.seek(0)  # numpy pads the header, so the number of rows can change in place
                self._header()

    def add(self, rows: NDArray[Any]) -> None:
        """Append rows."""
        self._file.write(np.ascontiguousarray(rows, self.dtype).data)
        self.rows += len(rows)

    def _header(self) -> None:
        shape = (self.rows, self._columns) if self._columns else (self.rows,)
        header = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, header)


def damaged(path: Path) -> BothwaysError:
    """The error about a file of an index that cannot be read."""
    return BothwaysError(f"{path} is damaged: build the index again", "damaged-file", path)


def read_npy(path: Path, kinds: Sequence[Any], *shape: int | None) -> NDArray[Any]:
    """The array in a file, memory-mapped; an error if it has another type or shape. None in `shape`: any number."""
    try:
        found: NDArray[Any] = np.load(path, mmap_mode="r")
    except Exception as error:  # numpy raises errors of many kinds at a damaged file
        raise damaged(path) from error
    if found.dtype not in kinds or found.ndim != len(shape):
        raise damaged(path)
    if any(wanted not in (None, size) for wanted, size in zip(shape, found.shape, strict=True)):
        raise damaged(path)
    return found
