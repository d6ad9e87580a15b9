"""Graphs whose weights are in a safetensors file beside them, in 16 bits, so that several graphs and models share them.

A model that changes matrices of its encoder by a product of two small ones (LoRA) stores these two.
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import safetensors.numpy
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from bothways.model.model import Model

Array = NDArray[Any]
_SMALL = 1_024
"""Tensors with fewer numbers stay in their graphs."""
_START = 8
"""Numbers by which a row is looked up."""
_RANK = 64
"""The highest rank of a change that is stored as two matrices."""
_EXACT = 1e-3
"""The largest error of such a change, relative to its largest number: about that of 16 bits."""


class Weights:
    """The weights of a model, under the names that they have in it."""

    def __init__(self, model: Model, base: "Weights | None" = None) -> None:
        """`base`: those of the encoder that this model adapts."""
        self.state: dict[str, Array] = {
            name: tensor.detach().float().cpu().numpy() for name, tensor in model.state_dict().items()
        }
        self.places: dict[bytes, list[tuple[str, int]]] = {}
        """Which rows of which tensors begin so: a graph may have a part of a matrix, such as the queries' of three."""
        for name, array in self.state.items():
            for number, row in enumerate(_rows(array)):
                self.places.setdefault(_start(row), []).append((name, number))
        self.stored: dict[str, Array] = {}
        """What the file of this model holds."""
        self.base = base

    def take_out(self, graph: onnx.ModelProto, output: str) -> list[str]:
        """Replace the large weights of a graph by references to named tensors; returns the names."""
        names = []
        for tensor in graph.graph.initializer:
            if tensor.data_type != TensorProto.FLOAT or np.prod(tensor.dims, dtype=int) < _SMALL:
                continue
            array = numpy_helper.to_array(tensor)
            name = self._name(array) or f"{output}.{tensor.name}"
            self._store(name, array)
            names.append(name)
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value=name)
        return list(dict.fromkeys(names))

    def save(self, file: Path) -> None:
        """Write what this model has of its own."""
        safetensors.numpy.save_file(dict(sorted(self.stored.items())), file)

    def _name(self, array: Array) -> str:
        """The name of a tensor, or of a matrix with the numbers of the rows that are this one."""
        for name, first in self.places.get(_start(_rows(array)[0]), ()):
            whole, last = self.state[name], first + len(array)
            if np.array_equal(whole, array):
                return name
            if whole.ndim == array.ndim == 2 and np.array_equal(part := whole[first:last], array):
                self.state[found := f"{name}.{first}-{last}"] = part
                return found
        return ""

    def _store(self, name: str, array: Array) -> None:
        theirs = self.base.state.get(name) if self.base is not None and name in self.base.stored else None
        if theirs is None or theirs.shape != array.shape:
            self.stored[name] = half(array)
        elif not np.array_equal(theirs, array):
            factors = low_rank(array - theirs)
            parts = {"": array} if factors is None else dict(zip((".up", ".down"), factors, strict=True))
            self.stored |= {name + part: half(values) for part, values in parts.items()}


def low_rank(change: Array) -> tuple[Array, Array] | None:
    """Two matrices, (out, rank) and (rank, in), whose product is `change`; None if its rank is not low.

    >>> import numpy as np
    >>> up, down = low_rank(np.outer(np.arange(6.0), np.arange(5.0)))
    >>> up.shape, down.shape, bool(np.allclose(up @ down, np.outer(np.arange(6), np.arange(5))))
    ((6, 1), (1, 5), True)
    """
    if change.ndim != 2:
        return None
    # Halko et al. 2011: the range of a matrix of low rank from its products with a few random vectors.
    random = np.random.default_rng(0).standard_normal((change.shape[1], min(_RANK, *change.shape)))
    basis, _ = np.linalg.qr(change @ random)
    left, sizes, right = np.linalg.svd(basis.T @ change, full_matrices=False)
    rank = max(int((sizes > 1e-4 * sizes[0]).sum()), 1)
    root = np.sqrt(sizes[:rank])
    up, down = basis @ left[:, :rank] * root, root[:, None] * right[:rank]
    is_smaller = up.size + down.size < change.size / 2
    is_exact = np.abs(up @ down - change).max() <= _EXACT * np.abs(change).max()
    return (up, down) if is_smaller and is_exact else None


def half(array: Array) -> Array:
    """In 16 bits, unless a number is too large for them."""
    with np.errstate(over="ignore"):
        found = array.astype(np.float16)
    return found if np.isfinite(found).all() else array.astype(np.float32)


def _rows(array: Array) -> Array:
    return array if array.ndim == 2 else array.reshape(1, -1)


def _start(row: Array) -> bytes:
    return row[:_START].tobytes()
