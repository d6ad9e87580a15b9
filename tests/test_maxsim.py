"""Greedy matching of packed token vectors, against a plain double loop."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bothways.model.maxsim import PackedTexts, _by_lengths, max_similarities, maxsim, maxsim_both
from helpers import DEVICES, refused

WIDTH = 6


def texts_of(lengths: list[int], seed: int, *, device: str = "cpu", weighted: bool = False) -> PackedTexts:
    draws = torch.Generator().manual_seed(seed)
    vectors = torch.randn(sum(lengths), WIDTH, generator=draws).to(device)
    weights = torch.rand(sum(lengths), generator=draws).to(device) if weighted else None
    return PackedTexts(vectors, np.array(lengths, np.int64), weights)


def one(texts: PackedTexts, number: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """The vectors of a text, and the weights of its tokens."""
    start, length = int(texts.lengths[:number].sum()), int(texts.lengths[number])
    weights = torch.ones(len(texts.vectors)) if texts.weights is None else texts.weights
    part = slice(start, start + length)
    return texts.vectors[part].double().cpu().numpy(), weights[part].double().cpu().numpy()


def plain_maxima(left: PackedTexts, right: PackedTexts, pairs: Any) -> tuple[list[list[float]], list[list[float]]]:
    """Every token with every token, one product at a time."""
    found: tuple[list[list[float]], list[list[float]]] = ([], [])
    for i, j in pairs:
        x, y = one(left, i)[0], one(right, j)[0]
        products = [[float(sum(a * b)) for b in y] for a in x]
        found[0].append([max(row, default=0.0) for row in products])
        found[1].append([max((row[k] for row in products), default=0.0) for k in range(len(y))])
    return found


def plain_sums(left: PackedTexts, right: PackedTexts, pairs: Any) -> list[list[float]]:
    of_left, of_right = plain_maxima(left, right, pairs)
    return [
        [float(np.dot(a, one(left, i)[1])), float(np.dot(b, one(right, j)[1]))]
        for a, b, (i, j) in zip(of_left, of_right, pairs, strict=True)
    ]


def all_pairs(left: PackedTexts, right: PackedTexts) -> NDArray[np.int64]:
    return np.array([(i, j) for i in range(len(left.lengths)) for j in range(len(right.lengths))], np.int64)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("budget", [None, 1, 100, 1000])
def test_equals_a_double_loop(device: str, weighted: bool, budget: int | None) -> None:
    left = texts_of([3, 1, 12, 7, 30], 1, device=device, weighted=weighted)
    right = texts_of([5, 17, 1, 2], 2, device=device, weighted=weighted)
    pairs = all_pairs(left, right)[::-1].copy()
    expected = plain_sums(left, right, pairs)
    assert np.abs(maxsim_both(left, right, pairs, budget=budget).cpu().numpy() - expected).max() < 1e-4
    assert np.abs(maxsim(left, right, pairs, budget=budget).cpu().numpy() - np.array(expected)[:, 0]).max() < 1e-4
    maxima = max_similarities(left, right, pairs, budget=budget)
    of_left, of_right = plain_maxima(left, right, pairs)
    assert np.abs(maxima.left.cpu().numpy() - np.concatenate(of_left)).max() < 1e-5
    assert np.abs(maxima.right.cpu().numpy() - np.concatenate(of_right)).max() < 1e-5


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=6),
    st.lists(st.integers(0, 40), min_size=1, max_size=6),
    st.integers(1, 5000),
    st.randoms(use_true_random=False),
)
def test_any_lengths_and_budgets(first: list[int], second: list[int], budget: int, draws: Any) -> None:
    """Empty texts and repeated pairs too."""
    left, right = texts_of(first, 1, weighted=True), texts_of(second, 2)
    pairs = np.array([(draws.randrange(len(first)), draws.randrange(len(second))) for _ in range(9)], np.int64)
    found = maxsim_both(left, right, pairs, budget=budget).numpy()
    assert np.abs(found - plain_sums(left, right, pairs)).max() < 1e-4


def test_similarities_below_zero_are_kept() -> None:
    """Padding has no similarity of its own that could be the maximum."""
    left = PackedTexts(torch.tensor([[1.0], [2.0], [3.0]]), np.array([1, 2]))
    right = PackedTexts(torch.tensor([[-1.0], [-2.0], [-0.5]]), np.array([1, 2]))
    found = maxsim_both(left, right, np.array([[0, 0], [1, 1]]))
    assert found.tolist() == [[-1.0, -1.0], [-1.0 - 1.5, -4.0 - 1.0]]


def test_one_query_against_many_documents() -> None:
    queries = texts_of([4, 9], 1).normalised()
    documents = texts_of([3, 50, 8, 1, 21, 30] * 20, 2).normalised()
    pairs = np.stack([np.full(120, 1), np.arange(120)], 1)
    found = maxsim(queries, documents, pairs)
    query = queries.vectors[4:]
    for document, score in enumerate(found.tolist()):
        vectors = torch.from_numpy(one(documents, document)[0]).float()
        assert abs(score - float((query @ vectors.T).amax(1).sum())) < 1e-5


def test_16_bit_vectors_are_multiplied_in_fp32() -> None:
    """A product of 16-bit numbers is exact in fp32; a sum in 16 bits would be off by a hundredth."""
    left, right = texts_of([20, 30], 1), texts_of([25, 6], 2)
    left, right = (PackedTexts(texts.vectors.bfloat16(), texts.lengths) for texts in (left, right))
    pairs = all_pairs(left, right)
    found = maxsim_both(left, right, pairs)
    assert found.dtype == torch.float32
    assert np.abs(found.numpy() - plain_sums(left, right, pairs)).max() < 1e-4


def test_normalised_products_are_cosines() -> None:
    left = texts_of([5], 1).normalised()
    found = max_similarities(left, left, np.array([[0, 0]]))
    assert torch.allclose(found.left, torch.ones(5))


def test_groups_keep_to_the_budget_and_hold_every_pair_once() -> None:
    lengths = np.random.default_rng(0).integers(1, 300, (2000, 2))
    groups = list(_by_lengths(lengths, 16, 50_000))
    assert sorted(np.concatenate(groups).tolist()) == list(range(2000))
    padded = used = 0
    for group in groups:
        a, b = lengths[group].max(0)
        assert len(group) == 1 or len(group) * (a * b + (a + b) * 16) <= 50_000
        padded, used = padded + len(group) * a * b, used + int(lengths[group].prod(1).sum())
    assert padded < 1.3 * used


def test_cu_seqlens_are_lengths() -> None:
    texts = PackedTexts.from_cu_seqlens(torch.randn(5, 2), torch.tensor([0, 2, 2, 5], dtype=torch.int32))
    assert texts.lengths.tolist() == [2, 0, 3]


def test_no_pairs() -> None:
    texts = texts_of([2], 1)
    assert maxsim(texts, texts, np.zeros((0, 2), np.int64)).shape == (0,)
    assert maxsim_both(texts, texts, np.zeros((0, 2), np.int64)).shape == (0, 2)


def test_wrong_lengths_are_refused() -> None:
    with refused("length-mismatch", (3, 2)):
        PackedTexts(torch.zeros(2, 4), np.array([3]))
