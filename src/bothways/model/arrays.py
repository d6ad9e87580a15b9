"""The few operations that answers need of tensors of torch and of arrays of numpy, in the library that made them.

Everything else that is done with the results of a model (indexing, arithmetic) is written in the same way for both.

C rows · B groups of consecutive rows · W width · V numbers to choose from.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bothways.lazy import torch

Array = Any
"""A tensor of torch, or an array of numpy."""


def is_numpy(array: Array) -> bool:
    return isinstance(array, np.ndarray)


def to_fp32(array: Array) -> Array:
    return array.astype(np.float32, copy=False) if is_numpy(array) else array.float()


def stacked(parts: Sequence[Array]) -> Array:
    """(B, …) each → (B, parts, …)."""
    return np.stack(parts, 1) if is_numpy(parts[0]) else torch.stack(list(parts), 1)


def joined(parts: Sequence[Array], axis: int = 1) -> Array:
    return np.concatenate(parts, axis) if is_numpy(parts[0]) else torch.cat(list(parts), axis)


def sums(rows: Array, owners: Array, counts: Array) -> Array:
    """(C, W) → (B, W): the sum of the rows of each group. `owners`: (C,) the group of each; `counts`: (B,) their sizes.

    >>> import numpy as np
    >>> sums(np.array([[1.0], [2.0], [4.0]]), np.array([0, 0, 2]), np.array([2, 0, 1])).tolist()
    [[3.0], [0.0], [4.0]]
    """
    if is_numpy(rows):
        return _reduced(np.add, rows, counts, 0)
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return rows.new_zeros(len(counts), rows.shape[1]).index_add(0, owners, rows)
    # In a fixed order: atomic additions on a GPU give other last digits each time.
    return torch.segment_reduce(rows, "sum", lengths=counts.long(), axis=0, unsafe=True)


def maxima(rows: Array, owners: Array, counts: Array) -> Array:
    """(C, W) → (B, W): the largest numbers of each group; -inf if it has no rows."""
    if is_numpy(rows):
        return _reduced(np.maximum, rows, counts, -np.inf)
    empty = rows.new_full((len(counts), rows.shape[1]), -torch.inf)
    return empty.scatter_reduce(0, owners[:, None].expand_as(rows), rows, "amax")


def _reduced(combine: np.ufunc, rows: Array, counts: Array, nothing: float) -> Array:
    found = np.full((len(counts), rows.shape[1]), nothing, rows.dtype)
    if (filled := counts > 0).any():
        # Empty groups begin where the next one does: without them, each group ends where the next begins.
        found[filled] = combine.reduceat(rows, (np.cumsum(counts) - counts)[filled], axis=0)
    return found


def log_softmax(logits: Array) -> Array:
    """(C, V) log-probabilities in fp32."""
    if not is_numpy(logits):
        return logits.float().log_softmax(-1)
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def log_sigmoid(logits: Array) -> Array:
    return -np.logaddexp(0, -logits) if is_numpy(logits) else torch.nn.functional.logsigmoid(logits)


def largest(values: Array, count: int) -> tuple[Array, Array]:
    """(C, V) → the `count` largest numbers of each row, the largest first, and their places: (C, count) each."""
    count = min(count, values.shape[1])
    if not is_numpy(values):
        best, places = values.topk(count)
        return best, places
    places = np.argpartition(-values, count - 1, axis=1)[:, :count]
    found = np.take_along_axis(values, places, 1)
    order = np.argsort(-found, axis=1, kind="stable")
    return np.take_along_axis(found, order, 1), np.take_along_axis(places, order, 1)
