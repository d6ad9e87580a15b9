"""Scores of rankings."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics  # type: ignore[import-untyped]

from bothways.scoring.ranking import Accuracy, Ranking, ScoredPairs
from bothways.scoring.regression import Regression
from helpers import refused

QUERY = st.lists(st.integers(0, 3), min_size=2, max_size=12)


def of(gold: Any, scores: Any, k: int = 10, missed: Any = ()) -> dict[str, float]:
    ranking = Ranking(k)
    ranking.add(gold, scores, missed)
    return {name.split("@")[0]: value for name, value in ranking.scores().items()}


@settings(max_examples=100)
@given(gold=QUERY, seed=st.integers(0, 1000), k=st.integers(1, 14))
def test_rankings_are_scored_as_scikit_learn_does(gold: list[int], seed: int, k: int) -> None:
    scores = np.random.default_rng(seed).permutation(len(gold)) / 7.0  # all different
    relevant = np.array(gold) > 0
    found = of(gold, scores, k)
    if not relevant.any():
        assert all(math.isnan(value) for value in found.values())
        return
    order = np.argsort(-scores)
    assert found["ndcg"] == pytest.approx(metrics.ndcg_score([gold], [scores], k=k))
    assert found["map"] == pytest.approx(metrics.average_precision_score(relevant, scores))
    assert found["recall"] == pytest.approx(relevant[order][:k].sum() / relevant.sum())
    assert found["accuracy"] == relevant[order[0]]
    first = int(np.flatnonzero(relevant[order])[0]) + 1
    assert found["mrr"] == (pytest.approx(1 / first) if first <= k else 0)


@settings(max_examples=40)
@given(gold=st.lists(st.integers(0, 2), min_size=2, max_size=5).filter(any), data=st.data())
def test_equal_scores_count_as_the_worst_order_of_them(gold: list[int], data: st.DataObject) -> None:
    scores = data.draw(st.lists(st.integers(0, 2), min_size=len(gold), max_size=len(gold)))
    found = of(gold, scores, k=3)
    nudges = itertools.permutations(np.arange(len(gold)) / 10)
    every = [of(gold, np.array(scores) + np.array(nudge), k=3) for nudge in nudges]
    for name, value in found.items():
        assert value == pytest.approx(min(one[name] for one in every)), name


def test_what_was_not_retrieved_counts_against_the_ranking() -> None:
    found = of([1, 0], [2.0, 1.0], missed=[1, 1])
    assert found["recall"] == found["map"] == pytest.approx(1 / 3)
    assert found["ndcg"] == pytest.approx(1 / (1 + 1 / math.log2(3) + 1 / 2))
    assert found["mrr"] == found["accuracy"] == 1
    assert of([], [], missed=[1])["mrr"] == 0


def test_queries_are_averaged_and_those_without_relevant_documents_left_out() -> None:
    ranking = Ranking(k=2)
    ranking.add([1, 0], [1.0, 0.0])
    ranking.add([0, 0, 1], [3.0, 2.0, 1.0])
    ranking.add([0, 0], [1.0, 0.0])
    assert ranking.without_relevant == 1
    assert ranking.scores() == {
        "mrr@2": 0.5,
        "ndcg@2": 0.5,
        "map": pytest.approx((1 + 1 / 3) / 2),
        "recall@2": 0.5,
        "accuracy@1": 0.5,
    }


@pytest.mark.parametrize(
    ("gold", "scores", "code"),
    [([1], [float("nan")], "out-of-range"), ([-1], [1.0], "out-of-range"), ([1, 0], [1.0], "shape-mismatch")],
)
def test_what_is_no_ranking_is_refused(gold: Any, scores: Any, code: str) -> None:
    with refused(code):
        Ranking().add(gold, scores)
    with refused("out-of-range", 0):
        Ranking(0)


def test_right_or_wrong() -> None:
    right = Accuracy()
    assert math.isnan(right.scores()["accuracy"])
    right.add([True, False])
    right.add(np.array([True]))
    right.add([])
    assert right.scores() == {"accuracy": pytest.approx(2 / 3)}


def test_pairs_are_ranked_where_a_first_text_has_several() -> None:
    """As if each query had been ranked by itself; a query with one text alone says nothing of ranking."""
    rows = [("b", 0.0, 0.9), ("a", 1.0, 0.2), ("中", 0.5, 0.3), ("b", 1.0, 0.8), ("a", 0.0, 0.1), ("alone", 1.0, 0.5)]
    pairs, ranking, numbers = ScoredPairs(), Ranking(), Regression()
    for first, gold, predicted in rows:
        pairs.add_pair(first, gold, predicted)
        numbers.add([gold], [predicted])
    assert numbers.scores().items() <= pairs.scores().items()
    for query in ("a", "b"):
        mine = [(gold, predicted) for first, gold, predicted in rows if first == query]
        ranking.add([gold for gold, _ in mine], [predicted for _, predicted in mine])
    assert ranking.scores().items() <= pairs.scores().items()
    assert pairs.scores()["mrr@10"] == 0.75
    assert pairs.rows("mrr@10").value() == 0.75
    assert pairs.rows("spearman").value() == numbers.scores()["spearman"]


def test_pairs_without_repeated_texts_have_no_ranking() -> None:
    pairs = ScoredPairs()
    pairs.add_pair("a", 1.0, 0.5)
    pairs.add_pair("b", 0.0, 0.5)
    assert set(pairs.scores()) == set(Regression().scores())
