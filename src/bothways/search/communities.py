"""Groups of similar vectors: communities around dense centres, or spherical k-means. Rows have length 1.

Both read a memory-mapped matrix in blocks, and keep a few numbers for each row.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from bothways.model.device import Device
from bothways.predict.kmeans import first_centres
from bothways.progress import Watch
from bothways.search.nearest import nearest_blocks
from bothways.search.products import (
    Matrix,
    Rows,
    block_of,
    compute_device,
    is_at_least,
    pairs_at_once,
    release,
    square_side,
)

_CENTRES_AT_ONCE = 256
_SAMPLE = 32
"""Rows for each centre from which k-means chooses its first centres."""
_ROUNDS = 50


@dataclass(frozen=True)
class Grouping:
    """The group of each row, and where its middle is."""

    labels: Rows
    """Numbered from 0, the largest group first; -1 for rows in no group."""
    centres: Matrix
    """(groups, width): of length 1."""


# ---------------------------------------------------------------------- communities


def communities(
    matrix: Matrix, threshold: float, min_size: int, device: Device | None, budget: int, watch: Watch
) -> Grouping:
    """Groups of rows whose cosine with their centre is at least `threshold`.

    The row with the most neighbours takes all of them, then the one with the most among those that are left, and so
    on. A group of fewer than `min_size` is dissolved.
    """
    counts = _count_neighbours(matrix, threshold, device, budget, watch)
    labels: Rows = np.full(len(matrix), -1)
    found: list[int] = []
    for centre, near in _dense_first(matrix, counts, labels, threshold, min_size, device, budget, watch):
        free = near[labels[near] < 0]
        if labels[centre] < 0 and len(free) >= min_size:
            labels[free] = len(found)
            found.append(centre)
    return _by_size(labels, np.array(matrix[np.array(found, np.int64)], np.float32))


def _count_neighbours(matrix: Matrix, threshold: float, device: Device | None, budget: int, watch: Watch) -> Rows:
    """The number of rows near each row, itself included."""
    where, side, pairs = compute_device(device), *_sizes(matrix, budget)
    counts: Rows = np.zeros(len(matrix), np.int64)
    starts = list(range(0, len(matrix), side))
    for begin, other in watch([(a, b) for a in starts for b in starts if a <= b], "comparing"):
        left = block_of(where, matrix, slice(begin, begin + side))
        right = left if other == begin else block_of(where, matrix, slice(other, other + side))
        found = is_at_least(left, right, threshold, pairs)
        counts[begin : begin + side] += found.sum(1).cpu().numpy()
        if other != begin:
            counts[other : other + side] += found.sum(0).cpu().numpy()
    return counts


def _sizes(matrix: Matrix, budget: int) -> tuple[int, int]:
    return square_side(matrix.shape[1], budget), pairs_at_once(matrix.shape[1], budget)


def _dense_first(
    matrix: Matrix,
    counts: Rows,
    labels: Rows,
    threshold: float,
    min_size: int,
    device: Device | None,
    budget: int,
    watch: Watch,
) -> Iterator[tuple[int, Rows]]:
    """Rows that may be centres, the one with most neighbours first, each with its neighbours.

    `labels` is read as it grows: a row that is in a group meanwhile is no centre.
    """
    order = np.argsort(-counts, kind="stable")
    order = order[counts[order] >= min_size]
    room = max(1, budget // 64)  # neighbours that are held at a time
    for begin in watch(range(0, len(order), _CENTRES_AT_ONCE), "grouping"):
        rows = order[begin : begin + _CENTRES_AT_ONCE]
        rows = rows[labels[rows] < 0]
        while len(rows):
            some = max(1, int(np.searchsorted(np.cumsum(counts[rows]), room, "right")))
            yield from zip(
                rows[:some].tolist(), _neighbours(matrix, rows[:some], threshold, device, budget), strict=True
            )
            rows = rows[some:]
            rows = rows[labels[rows] < 0]


def _neighbours(matrix: Matrix, rows: Rows, threshold: float, device: Device | None, budget: int) -> list[Rows]:
    """The neighbours of each of some rows, in order."""
    where, side, pairs = compute_device(device), *_sizes(matrix, budget)
    left, found = block_of(where, matrix, rows), []
    for begin in range(0, len(matrix), side):
        right = block_of(where, matrix, slice(begin, begin + side))
        found.append(is_at_least(left, right, threshold, pairs).nonzero().cpu().numpy() + np.array([0, begin]))
    both = np.concatenate(found)
    both = both[np.argsort(both[:, 0], kind="stable")]
    return np.split(both[:, 1], np.cumsum(np.bincount(both[:, 0], minlength=len(rows)))[:-1])


def _by_size(labels: Rows, centres: Matrix) -> Grouping:
    """The same groups, numbered by their size."""
    sizes = np.bincount(labels[labels >= 0], minlength=len(centres))
    order = np.argsort(-sizes, kind="stable")
    numbers = np.append(np.argsort(order, kind="stable"), -1)
    return Grouping(numbers[labels], centres[order])


# ---------------------------------------------------------------------- k-means


def k_means(matrix: Matrix, k: int, seed: int, device: Device | None, budget: int, watch: Watch) -> Grouping:
    """k groups, each row in that of the nearest centre (spherical k-means, first centres by k-means++)."""
    generator = np.random.default_rng(seed)
    centres = _first_centres(matrix, k, generator)
    labels: Rows = np.full(len(matrix), -1)
    for _ in watch(range(_ROUNDS), "grouping"):
        fresh = np.concatenate(
            [rows[:, 0] for _, rows in nearest_blocks(matrix, centres, 1, budget=budget, device=device)]
        )
        if np.array_equal(fresh, labels):
            break
        labels = fresh
        centres = _means(matrix, labels, centres)
    return _by_size(labels, centres)


def _first_centres(matrix: Matrix, k: int, generator: np.random.Generator) -> NDArray[np.float32]:
    """k rows of a sample. The squared distance of rows of length 1 is 2 - 2 · cosine."""
    size = min(len(matrix), max(_SAMPLE * k, 1024))
    picked = np.sort(generator.choice(len(matrix), size, replace=False))
    sample = np.array(matrix[picked], np.float32)
    return sample[first_centres(torch.from_numpy(sample), k, generator)]


def _means(matrix: Matrix, labels: Rows, centres: NDArray[np.float32]) -> NDArray[np.float32]:
    """The direction of the mean of each group; an empty group keeps its centre."""
    sums = np.zeros(centres.shape, np.float64)
    for begin in range(0, len(matrix), 4096):
        np.add.at(sums, labels[begin : begin + 4096], np.array(matrix[begin : begin + 4096], np.float64))
        release(matrix)
    lengths = np.sqrt(np.square(sums).sum(1, keepdims=True))
    return np.where(lengths > 1e-12, sums / np.maximum(lengths, 1e-12), centres).astype(np.float32)
