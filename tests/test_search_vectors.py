"""Faster ways to candidates: their recall against exact search, and scores that are exact."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bothways.engine.reader import Tally
from bothways.search.dense import nearest_documents
from bothways.search.npy import NpyWriter
from bothways.search.quantize import Codes, best_rows, write_codes
from bothways.search.segment import DocumentBlock, Faster, Segment, line_of, write_segment

ROWS, WIDTH, QUERIES, K = 4_000, 96, 40, 10
CPU = torch.device("cpu")


def unit(vectors: Any) -> Any:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def random_vectors(rows: int, seed: int) -> Any:
    return unit(np.random.default_rng(seed).normal(size=(rows, WIDTH)))


def clustered_vectors(rows: int, seed: int) -> Any:
    """A hundred clusters around a common direction, as sentence vectors are; with some dimensions louder."""
    draws, fixed = np.random.default_rng(seed), np.random.default_rng(100)
    centres = fixed.normal(size=(100, WIDTH)) + 2 * fixed.normal(size=WIDTH)
    loud = np.exp(fixed.normal(size=WIDTH))
    return unit((centres[draws.integers(100, size=rows)] + 0.5 * draws.normal(size=(rows, WIDTH))) * loud)


DATA = {"random": random_vectors, "clustered": clustered_vectors}


def segment_of(folder: Path, vectors: Any, faster: Faster = Faster(), deleted: tuple[int, ...] = ()) -> Segment:  # noqa: B008
    """A document for each vector."""
    count = len(vectors)
    passages = np.stack([np.arange(count), np.zeros(count, np.int64), np.ones(count, np.int64)], 1)
    block = DocumentBlock(
        [line_of(str(i), "x") for i in range(count)], np.arange(count, dtype=np.uint64), passages, vectors
    )
    write_segment(folder, [block], vectors.shape[1], Tally(), faster)
    return Segment(folder, deleted)


def found(
    segments: list[Segment], queries: Any, *, is_exact: bool = False, k: int = K
) -> list[list[tuple[int, float]]]:
    ranked = nearest_documents(segments, queries, k, is_exact=is_exact, device=CPU)
    return [[(each.document, each.score) for each in one] for one in ranked]


WAYS = {"int8": Faster("int8"), "binary": Faster("binary"), "graph": Faster(graph=True)}
LEAST_RECALL = {
    ("int8", "random"): 0.99,
    ("int8", "clustered"): 0.99,
    ("binary", "random"): 0.7,
    ("binary", "clustered"): 0.99,
    ("graph", "random"): 0.9,
    ("graph", "clustered"): 0.95,  # built by several threads, which make another graph each time
}
"""Recall at 10 that the documentation names, among 4,000 vectors of 96 numbers."""


@pytest.mark.parametrize(("way", "data"), LEAST_RECALL)
def test_recall_and_exact_scores(way: str, data: str, tmp_path: Path) -> None:
    vectors, queries = DATA[data](ROWS, 1), DATA[data](QUERIES, 2)
    segment = segment_of(tmp_path / "s", vectors, WAYS[way])
    exact, fast = found([segment], queries, is_exact=True), found([segment], queries)
    scores = (queries.astype(np.float64) @ vectors.T.astype(np.float64)).astype(np.float32)
    hits = 0
    for query in range(QUERIES):
        assert [row for row, _ in exact[query]] == best_rows(scores[query], K).tolist()
        assert all(score == pytest.approx(float(scores[query, row]), abs=1e-7) for row, score in fast[query])
        assert fast[query] == sorted(fast[query], key=lambda hit: (-hit[1], hit[0]))
        hits += len(set(exact[query]) & set(fast[query]))
    assert hits / (QUERIES * K) >= LEAST_RECALL[way, data]


@pytest.mark.parametrize("way", [None, *WAYS])
def test_deleted_documents_never_come(way: str | None, tmp_path: Path) -> None:
    """Even if they are all but a few, so that many more candidates are needed."""
    vectors, queries = random_vectors(1_000, 1), random_vectors(5, 2)
    kept = [3, 500, 501, 998]
    gone = tuple(i for i in range(1_000) if i not in kept)
    segment = segment_of(tmp_path / "s", vectors, WAYS[way] if way else Faster(), gone)
    for one in found([segment], queries):
        assert sorted(row for row, _ in one) == kept


def test_segments_are_searched_as_one(tmp_path: Path) -> None:
    vectors, queries = clustered_vectors(999, 1), clustered_vectors(7, 2)
    whole = found([segment_of(tmp_path / "w", vectors)], queries)
    parts = [
        segment_of(tmp_path / str(i), vectors[i : i + 333], WAYS["int8"] if i else Faster()) for i in (0, 333, 666)
    ]
    empty = segment_of(tmp_path / "empty", vectors[:0])
    assert found([empty, *parts], queries, is_exact=True) == whole
    assert found([*parts, empty], queries) == whole
    assert found([empty], queries) == [[]] * 7


def test_codes_are_the_same_in_blocks_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, queries = clustered_vectors(500, 1), clustered_vectors(6, 2)
    for kind in ("int8", "binary"):
        answers = []
        for size in (2**25, 4 * WIDTH * 7):
            monkeypatch.setattr("bothways.search.quantize._AT_ONCE", size)
            folder = tmp_path / f"{kind}{size}"
            folder.mkdir()
            write_codes(folder, vectors, kind)
            answers.append([rows.tolist() for rows in Codes(folder).candidates(queries, 20)])
        assert answers[0] == answers[1]


def test_int8_steps_are_of_each_dimension(tmp_path: Path) -> None:
    """A dimension a thousand times smaller keeps its 8 bits, and one that is always 0 stays 0."""
    vectors = random_vectors(200, 1) * np.where(np.arange(WIDTH) % 2, 1.0, 1e-3).astype(np.float32)
    vectors[:, 5] = 0
    write_codes(tmp_path, vectors, "int8")
    codes = Codes(tmp_path)
    back = codes.codes * codes.ranges
    assert np.abs(back - vectors).max(0) == pytest.approx(np.abs(vectors).max(0) / 254, rel=0.6)
    assert not back[:, 5].any()


def test_hamming_distances_of_signs(tmp_path: Path) -> None:
    vectors = random_vectors(300, 3)[:, :70]  # not a multiple of 64
    write_codes(tmp_path, vectors, "binary")
    codes, centred = Codes(tmp_path), vectors > vectors.mean(0, dtype=np.float64).astype(np.float32)
    distances = (centred[:4, None] != centred[None]).sum(2)
    for rows, expected in zip(codes.candidates(vectors[:4], 25), distances, strict=True):
        assert rows.tolist() == best_rows(-expected, 25).tolist()


def test_arrays_that_grow_on_disk(tmp_path: Path) -> None:
    with NpyWriter(tmp_path / "a.npy", np.float32, 3) as matrix, NpyWriter(tmp_path / "b.npy", np.uint64) as numbers:
        for rows in (0, 2, 100_000, 1):
            matrix.add(np.full((rows, 3), rows))
            numbers.add(np.full(rows, 2**63 + rows, np.uint64))
    loaded = np.load(tmp_path / "a.npy", mmap_mode="r")
    assert (loaded.shape, loaded.dtype) == ((100_003, 3), np.float32)
    assert loaded[:, 1].tolist() == [2] * 2 + [100_000] * 100_000 + [1]
    assert np.load(tmp_path / "b.npy")[-1] == 2**63 + 1
    with NpyWriter(tmp_path / "c.npy", np.float32, 3):
        pass
    assert np.load(tmp_path / "c.npy", mmap_mode="r").shape == (0, 3)
