"""Small copies of vectors that find candidates fast: 8 bits or 1 bit for each number. Candidates are scored again.

N rows · W width · Q queries · K candidates.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.search.npy import NpyWriter, read_npy
from bothways.search.products import release
from bothways.search.search_options import Quantize

Vectors = NDArray[np.float32]
Rows = NDArray[np.int64]

_AT_ONCE = 2**25  # bytes of fp32 vectors
_WORD = 64  # bits that are compared at once
CODES, RANGES = "codes.npy", "ranges.npy"


def best_rows(scores: NDArray[Any], k: int) -> Rows:
    """The places of the k greatest scores, best first; of equal scores the lower place comes first. scores: (N,).

    >>> best_rows(np.array([1.0, 3.0, 3.0, 2.0]), 2).tolist()
    [1, 2]
    """
    if k < len(scores):
        threshold = np.partition(scores, len(scores) - k)[len(scores) - k]
        places = np.flatnonzero(scores >= threshold)
    else:
        places = np.arange(len(scores))
    found: Rows = places[np.argsort(-scores[places], kind="stable")][:k]
    return found


def _blocks(rows: int, width: int) -> Iterator[slice]:
    step = max(1, _AT_ONCE // (4 * width))
    return (slice(first, min(first + step, rows)) for first in range(0, rows, step))


# ---------------------------------------------------------------------- writing


def write_codes(folder: Path, vectors: Vectors, kind: Quantize) -> None:
    """Write the codes of vectors (N, W), and the ranges that they depend on, in bounded memory."""
    width = vectors.shape[1]
    ranges = _largest(vectors) / 127 if kind == "int8" else _mean(vectors)
    np.save(folder / RANGES, ranges.astype(np.float32))
    dtype, columns = (np.int8, width) if kind == "int8" else (np.uint64, -(-width // _WORD))
    with NpyWriter(folder / CODES, dtype, columns) as codes:
        for block in _blocks(*vectors.shape):
            some = vectors[block]
            codes.add(_int8(some, ranges) if kind == "int8" else _bits(some, ranges))
            release(vectors)


def _largest(vectors: Vectors) -> NDArray[np.float64]:
    """The greatest size of each dimension, and 1 for a dimension that is always 0. (W,)."""
    largest = np.zeros(vectors.shape[1])
    for block in _blocks(*vectors.shape):
        largest = np.maximum(largest, np.abs(vectors[block]).max(0, initial=0))
        release(vectors)
    return np.where(largest > 0, largest, 1.0)


def _mean(vectors: Vectors) -> NDArray[np.float64]:
    """The mean of each dimension. Vectors of many models share a direction, and without it the bits differ more."""
    total = np.zeros(vectors.shape[1])
    for block in _blocks(*vectors.shape):
        total += vectors[block].sum(0, dtype=np.float64)
        release(vectors)
    return total / max(1, len(vectors))


def _int8(vectors: Vectors, steps: NDArray[Any]) -> NDArray[np.int8]:
    codes: NDArray[np.int8] = np.rint(vectors / steps).clip(-127, 127).astype(np.int8)
    return codes


def _bits(vectors: Vectors, mean: NDArray[Any]) -> NDArray[np.uint64]:
    """The signs of the vectors without their mean. (N, W) → (N, W / 64)."""
    bits = np.packbits(vectors > mean.astype(np.float32), axis=1)
    padded = np.zeros((len(bits), -(-vectors.shape[1] // _WORD) * 8), np.uint8)
    padded[:, : bits.shape[1]] = bits
    return padded.view(np.uint64)


# ---------------------------------------------------------------------- searching


class Codes:
    """The codes of a segment, memory-mapped."""

    def __init__(self, folder: Path) -> None:
        self.codes: NDArray[Any] = read_npy(folder / CODES, [np.int8, np.uint64], None, None)
        self.ranges: NDArray[np.float32] = read_npy(folder / RANGES, [np.float32], None)
        self.kind: Quantize = "int8" if self.codes.dtype == np.int8 else "binary"

    def candidates(self, queries: Vectors, k: int) -> list[Rows]:
        """For each query (Q, W) the k rows that are nearest by their codes."""
        if self.kind == "int8":
            scaled = queries * self.ranges
            return self._best(len(queries), k, lambda block: scaled @ block.astype(np.float32).T)
        bits = _bits(queries, self.ranges)
        return self._best(len(queries), k, lambda block: -_hamming(bits, block))

    def _best(self, queries: int, k: int, score: Callable[[NDArray[Any]], NDArray[Any]]) -> list[Rows]:
        """`score`: codes of some rows → their scores for each query."""
        rows = [np.zeros(0, np.int64) for _ in range(queries)]
        scores: list[NDArray[Any]] = [np.zeros(0) for _ in range(queries)]
        for block in _blocks(len(self.codes), len(self.ranges)):
            for query, found in enumerate(score(self.codes[block])):
                both = np.concatenate([scores[query], found])
                kept = best_rows(both, k)
                numbers = np.concatenate([rows[query], np.arange(block.start, block.stop)])
                rows[query], scores[query] = numbers[kept], both[kept]
        return rows


def _hamming(queries: NDArray[np.uint64], block: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The number of bits in which they differ. (Q, words), (N, words) → (Q, N)."""
    return np.stack([np.bitwise_count(block ^ query).sum(1, dtype=np.int64) for query in queries])
