"""Equal and unequal hashes among many, a part of them at a time: the memory of sorting does not grow with the file."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]
Rows = NDArray[np.int64]

AT_A_TIME = 1_000_000


def repeats(texts: Hashes) -> tuple[Rows, Rows]:
    """The rows that repeat an earlier one, in order, and the first row with the text of each. 0 is no text.

    >>> [rows.tolist() for rows in repeats(np.array([7, 5, 7, 0, 0, 7], np.uint64))]
    [[2, 5], [0, 0]]
    """
    found = [(np.empty(0, np.int64), np.empty(0, np.int64))]
    for rows in _parts(texts):
        order = rows[np.argsort(texts[rows], kind="stable")]
        begins = _first_of_each(texts[order])
        begin = np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))
        found.append((order[~begins], order[begin[~begins]]))
    copies, firsts = (np.concatenate(some) for some in zip(*found, strict=True))
    by_row = np.argsort(copies)
    return copies[by_row], firsts[by_row]


def contradictions(texts: Hashes, golds: Hashes, most: int) -> tuple[Rows, list[tuple[int, int]]]:
    """The rows whose text has several golds, and two rows that differ for each of the first `most` such texts.

    >>> rows, pairs = contradictions(np.array([7, 5, 7, 7], np.uint64), np.array([1, 1, 1, 2], np.uint64), 3)
    >>> rows.tolist(), pairs
    ([0, 2, 3], [(0, 3)])
    """
    found = [np.empty(0, np.int64)]
    for part in _parts(texts):
        labelled = part[golds[part] != 0]
        order = labelled[np.lexsort((golds[labelled], texts[labelled]))]
        same = ~_first_of_each(texts[order])[1:]
        differing = texts[order][1:][same & (golds[order][1:] != golds[order][:-1])]
        found.append(labelled[np.isin(texts[labelled], differing)])
    rows = np.sort(np.concatenate(found))
    pairs = []
    for text in list(dict.fromkeys(texts[rows].tolist()))[:most]:
        some = rows[texts[rows] == text]
        pairs.append((int(some[0]), int(some[golds[some] != golds[some[0]]][0])))
    return rows, pairs


def among(some: Hashes, others: Hashes) -> NDArray[np.bool_]:
    """Which of some occur among others. 0 does not.

    >>> among(np.array([7, 5, 0], np.uint64), np.array([5, 0, 3], np.uint64)).tolist()
    [False, True, False]
    """
    found = np.zeros(len(some), bool)
    count = _count(max(len(some), len(others)))
    for part in range(count):
        rows = _rows_of(some, part, count)
        found[rows] = np.isin(some[rows], others[_rows_of(others, part, count)])
    return found


def _parts(hashes: Hashes) -> Iterator[Rows]:
    """The rows in parts, in order within each: equal hashes are in one part."""
    count = _count(len(hashes))
    return (_rows_of(hashes, part, count) for part in range(count))


def _count(rows: int) -> int:
    return rows // AT_A_TIME + 1


def _rows_of(hashes: Hashes, part: int, count: int) -> Rows:
    chosen = [
        begin + np.flatnonzero((some % np.uint64(count) == part) & (some != 0))
        for begin in range(0, len(hashes), AT_A_TIME)
        for some in [hashes[begin : begin + AT_A_TIME]]
    ]
    return np.concatenate([np.empty(0, np.int64), *chosen])


def _first_of_each(values: Hashes) -> NDArray[np.bool_]:
    """Which of sorted values differ from the one before."""
    return np.concatenate([np.ones(min(len(values), 1), bool), values[1:] != values[:-1]])
