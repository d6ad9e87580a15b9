"""Inner products of rows of large matrices, in blocks that fit a budget of memory.

P rows of a block · R rows of another · W width.

Matrix products differ in their last bits from one block size to another. So they only find candidates, with a margin
for their rounding errors; each candidate is then scored again in one fixed way, which decides.
"""

import math
import mmap
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.errors import BothwaysError
from bothways.model.device import Device, find_device

BUDGET = 256 * 2**20
"""Bytes of memory for blocks of vectors and scores."""
BYTES_PER_SCORE = 24  # a product, whether it is a candidate, its place, its final score
_INPUT_ROUNDING = {"highest": 0.0, "high": 2.0**-10, "medium": 2.0**-7}
"""Of factors, by `torch.get_float32_matmul_precision()`."""

Matrix = NDArray[np.floating]
Rows = NDArray[np.int64]


def compute_device(device: Device | None) -> torch.device:
    """The device that compares vectors: on an Apple GPU, which has no float64, the CPU beside it."""
    found = find_device("auto" if device is None else device)
    return torch.device("cpu") if found.type == "mps" else found


@dataclass(frozen=True)
class VectorBlock:
    """Some rows of a matrix on a device in fp32, and the greatest of their lengths."""

    vectors: Tensor
    longest: Tensor


def block_of(device: torch.device, matrix: Matrix, rows: slice | Rows) -> VectorBlock:
    """Some rows of a matrix, copied to a device."""
    part = np.array(matrix[rows], np.float32, order="C")  # a copy: torch refuses read-only maps
    release(matrix)
    vectors = torch.from_numpy(part).to(device)
    lengths = torch.linalg.vector_norm(vectors, dim=1)
    if not bool(lengths.isfinite().all()):
        place = int((~lengths.isfinite()).nonzero()[0])
        row = place + (rows.start or 0) if isinstance(rows, slice) else int(rows[place])
        raise BothwaysError(f"vector {row:,} holds NaN or infinity: expected finite numbers", "not-finite", row)
    return VectorBlock(vectors, lengths.max() if len(lengths) else lengths.sum())


def release(matrix: NDArray[Any]) -> None:
    """Give the pages of a memory-mapped file that were read back to the system, so that memory stays flat."""
    mapped = getattr(matrix, "_mmap", None)
    # Other modes may hold changes in memory.
    if isinstance(mapped, mmap.mmap) and getattr(matrix, "mode", "") == "r" and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


def square_side(width: int, budget: int) -> int:
    """Rows of two blocks whose products with each other fit the budget."""
    side = math.isqrt(budget // 4 // BYTES_PER_SCORE)
    return max(1, min(side, budget // 4 // (24 * width or 1)))


def pairs_at_once(width: int, budget: int) -> int:
    """Pairs that `exact_scores` computes at a time."""
    return max(1, budget // 8 // (24 * width or 1))


def rounding_bound(left: VectorBlock, right: VectorBlock) -> Tensor:
    """By how much an entry of their matrix product in fp32 may differ from the exact one."""
    width = left.vectors.shape[1]
    unit = _INPUT_ROUNDING[torch.get_float32_matmul_precision()] + (width + 2) * 2.0**-23
    return left.longest * right.longest * unit


def exact_scores(left: Tensor, right: Tensor, places: Tensor, at_once: int) -> Tensor:
    """Inner products of rows of left and right, at places (pairs, 2): in float64, rounded once, whatever the blocks."""
    found = []
    for begin in range(0, len(places), at_once):
        one, other = places[begin : begin + at_once].T
        found.append((left[one].double() * right[other].double()).sum(1).float())
    return torch.cat(found) if found else left.new_zeros(0)


def is_at_least(left: VectorBlock, right: VectorBlock, bound: float, at_once: int) -> Tensor:
    """(P, R) where the exact score is at least `bound`."""
    products, margin = left.vectors @ right.vectors.T, rounding_bound(left, right)
    found = products >= bound
    unsure = ((products - bound).abs() <= margin).nonzero()
    if len(unsure):
        found[unsure[:, 0], unsure[:, 1]] = exact_scores(left.vectors, right.vectors, unsure, at_once) >= bound
    return found
