"""The nearest rows: as a full sort finds them, whatever the blocks."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bothways.errors import BothwaysError
from bothways.search.nearest import nearest, nearest_blocks, plan_blocks
from bothways.search.products import BUDGET


def full_sort(
    queries: NDArray[np.floating], corpus: NDArray[np.floating], k: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """All scores in float64, rounded, by score and then by row."""
    scores = np.stack([(corpus.astype(np.float64) * query.astype(np.float64)).sum(1) for query in queries])
    scores = scores.astype(np.float32)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, order, 1), order


def random(rows: int, width: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)


@pytest.mark.parametrize("budget", [1, 20_000, 300_000, BUDGET])
@pytest.mark.parametrize("k", [1, 7, 40])
def test_the_answer_is_that_of_a_full_sort(budget: int, k: int) -> None:
    queries, corpus = random(23, 48), random(100 if budget == 1 else 500, 48, 1)  # 1: a block for each product
    scores, rows = nearest(queries, corpus, k, budget=budget, device="cpu")
    expected = full_sort(queries, corpus, k)
    np.testing.assert_array_equal(rows, expected[1])
    np.testing.assert_array_equal(scores, expected[0])
    assert scores.dtype == np.float32
    assert rows.dtype == np.int64


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 9),
    st.integers(1, 60),
    st.integers(1, 12),
    st.integers(1, 80),
    st.integers(1, 5),
    st.sampled_from([1, 3_000, 30_000, BUDGET]),
    st.integers(0, 2**32 - 1),
)
def test_ties_go_to_the_lower_row(
    queries: int, rows: int, width: int, k: int, kinds: int, budget: int, seed: int
) -> None:
    """Rows drawn from few kinds are equal many times over; all numbers have rounding errors."""
    pool, draw = random(kinds, width, seed), np.random.default_rng(seed)
    asked, corpus = pool[draw.integers(0, kinds, queries)], pool[draw.integers(0, kinds, rows)]
    scores, found = nearest(asked, corpus, k, budget=budget, device="cpu")
    expected = full_sort(asked, corpus, k)
    np.testing.assert_array_equal(found, expected[1])
    np.testing.assert_array_equal(scores, expected[0])


def test_rows_that_come_in_ascending_order_of_score() -> None:
    """Every block brings better answers than all before it."""
    corpus = np.linspace(0.1, 1, 3000, dtype=np.float32)[:, None] * np.ones((1, 4), np.float32)
    scores, rows = nearest(np.ones((3, 4), np.float32), corpus, 5, budget=60_000, device="cpu")
    assert rows.tolist() == [[2999, 2998, 2997, 2996, 2995]] * 3
    assert (np.diff(scores) < 0).all()


def test_scores_below_zero_are_answers_too() -> None:
    scores, rows = nearest(np.ones((1, 2)), np.array([[-1.0, -2], [-1, -1]]), 5, device="cpu")
    assert rows.tolist() == [[1, 0]]
    assert scores.tolist() == [[-2, -3]]


def test_fewer_rows_than_asked_for() -> None:
    scores, rows = nearest(random(3, 8), random(2, 8, 1), 10, device="cpu")
    assert scores.shape == rows.shape == (3, 2)
    assert np.sort(rows, axis=1).tolist() == [[0, 1]] * 3


def test_no_queries_and_no_rows() -> None:
    assert [part.shape for part in nearest(random(0, 8), random(4, 8), 3, device="cpu")] == [(0, 3), (0, 3)]
    assert [part.shape for part in nearest(random(2, 8), random(0, 8), 3, device="cpu")] == [(2, 0), (2, 0)]


def test_a_memory_mapped_matrix_of_half_precision(tmp_path: Path) -> None:
    corpus = random(300, 16).astype(np.float16)
    np.save(tmp_path / "corpus.npy", corpus)
    mapped = np.load(tmp_path / "corpus.npy", mmap_mode="r")
    queries = random(4, 16, 1)
    scores, rows = nearest(queries, mapped, 6, budget=20_000, device="cpu")
    expected = full_sort(queries, corpus, 6)
    np.testing.assert_array_equal(rows, expected[1])
    np.testing.assert_array_equal(scores, expected[0])


def test_a_lower_precision_of_products_changes_no_answer() -> None:
    """Candidates are found with a wider margin, and scored in float64 as before."""
    queries, corpus = random(8, 64), random(400, 64, 1)
    expected = full_sort(queries, corpus, 9)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        scores, rows = nearest(queries, corpus, 9, budget=100_000, device="cpu")
    finally:
        torch.set_float32_matmul_precision(before)
    np.testing.assert_array_equal(rows, expected[1])
    np.testing.assert_array_equal(scores, expected[0])


def test_answers_stream_in_the_order_of_the_queries() -> None:
    queries, corpus = random(50, 8), random(30, 8, 1)
    blocks = list(nearest_blocks(queries, corpus, 2, budget=2_000, device="cpu"))
    assert len(blocks) > 1
    np.testing.assert_array_equal(np.concatenate([rows for _, rows in blocks]), full_sort(queries, corpus, 2)[1])


@pytest.mark.parametrize("queries", [1, 100, 10**6])
@pytest.mark.parametrize("width", [1, 384, 4096])
@pytest.mark.parametrize("k", [0, 1, 100])
def test_blocks_fit_the_budget(queries: int, width: int, k: int) -> None:
    plan = plan_blocks(queries, width, k, BUDGET)
    used = 8 * plan.queries * width + 36 * plan.queries * k + 24 * plan.pairs * width
    used += plan.rows * (12 * width + 24 * plan.queries)
    assert BUDGET // 8 < used <= BUDGET


@pytest.mark.parametrize(
    ("queries", "corpus", "k", "code"),
    [
        (random(2, 3), random(2, 4), 1, "bad-shape"),
        (random(2, 3)[0], random(2, 3), 1, "bad-shape"),
        (random(2, 3), random(2, 3), 0, "out-of-range"),
        (random(2, 3), np.full((2, 3), np.nan, np.float32), 1, "not-finite"),
        (np.full((2, 3), np.inf, np.float32), random(2, 3), 1, "not-finite"),
    ],
)
def test_what_cannot_be_searched(queries: NDArray[np.float32], corpus: NDArray[np.float32], k: int, code: str) -> None:
    with pytest.raises(BothwaysError) as error:
        nearest(queries, corpus, k, device="cpu")
    assert error.value.code == code


@pytest.mark.parametrize("budget", [1, 20_000, 300_000, BUDGET])
def test_scores_may_have_a_limit(budget: int) -> None:
    queries, corpus = random(12, 16), np.tile(random(100, 16, 1), (3, 1))
    limits = np.linspace(-9, 9, 12).astype(np.float32)
    blocks = list(nearest_blocks(queries, corpus, 7, at_most=limits, budget=budget, device="cpu"))
    scores, rows = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    everything, order = full_sort(queries, corpus, len(corpus))
    for i, limit in enumerate(limits):
        low = everything[i] <= limit
        expected = order[i][low][:7].tolist()
        assert rows[i].tolist() == expected + [-1] * (7 - len(expected))
        assert (scores[i][: len(expected)] <= limit).all()
        assert np.isneginf(scores[i][len(expected) :]).all()
