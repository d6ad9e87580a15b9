"""Scores of retrieval, equal to those of pytrec_eval, and V-measure, equal to that of scikit-learn."""

import math
import struct
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics  # type: ignore[import-untyped]

from bothways.scoring.clustering import Clustering
from bothways.scoring.retrieval import Retrieval, score_results
from bothways.scoring.significance import compare, interval
from helpers import refused

CUTOFFS = [1, 3, 10]
Judged = Mapping[str, int]
Results = Mapping[str, float]


def of(judged: Judged, results: Results, cutoffs: list[int] = CUTOFFS) -> dict[str, float]:
    """The scores of one query."""
    return score_results({"q": judged}, {"q": results}, cutoffs).by_query()["q"]


# ---------------------------------------------------------------------- against trec_eval


def slow(judged: Judged, results: Results) -> dict[str, float]:
    """The published definitions of trec_eval 9, one document at a time."""
    as_float = {document: struct.unpack("f", struct.pack("f", score))[0] for document, score in results.items()}
    ranked = sorted(results, key=lambda document: (as_float[document], document.encode()), reverse=True)
    grades = [max(judged.get(document, 0), 0) for document in ranked]
    ideal = sorted((grade for grade in judged.values() if grade > 0), reverse=True)
    found: dict[str, float] = {}
    for k in [*CUTOFFS, 10**6]:
        hits, precisions, gain, best, first = 0, 0.0, 0.0, 0.0, 0.0
        for rank, grade in enumerate(grades[:k], 1):
            gain += grade / math.log2(rank + 1)
            if grade:
                hits += 1
                precisions += hits / rank
                first = first or 1 / rank
        for rank, grade in enumerate(ideal[:k], 1):
            best += grade / math.log2(rank + 1)
        found[f"ndcg@{k}"], found[f"mrr@{k}"] = gain / best if best else 0.0, first
        found[f"map@{k}"] = precisions / len(ideal) if ideal else 0.0
        found[f"recall@{k}"], found[f"precision@{k}"] = hits / len(ideal) if ideal else 0.0, hits / k
    found["map"] = found[f"map@{10**6}"]
    return {name: value for name, value in found.items() if not name.endswith(f"@{10**6}")}


def example() -> tuple[dict[str, dict[str, int]], dict[str, dict[str, float]]]:
    """Six queries by arithmetic: many ties, differences that 32 bits lose, negative grades, ids beyond ASCII."""
    ids = [f"d{i}" for i in range(18)] + ["é", "中文", "😀", "\uffee", "10", "9"]
    judged = {f"q{q}": {ids[(5 * q + 7 * i) % 24]: (q + i * i) % 5 - 1 for i in range(9)} for q in range(4)}
    results = {f"q{q}": {ids[(q + 5 * i) % 24]: ((3 * q + 7 * i) % 4) / 3 for i in range(20)} for q in range(4)}
    results["q2"] = {document: 1 + 1e-9 * place for place, document in enumerate(results["q2"])}
    results["q3"] = {document: score / 10 - place for place, (document, score) in enumerate(results["q3"].items())}
    judged["q4"], results["q4"] = {"d1": 0, "d2": -1}, {"d1": 1.0, "d3": 0.5}
    judged["q5"], results["q5"] = {"d1": 1, "d2": 3}, {}
    return judged, results


MEASURES = ["ndcg_cut_1", "ndcg_cut_3", "ndcg_cut_10", "recip_rank", "map_cut_1", "map_cut_3", "map_cut_10",
            "recall_1", "recall_3", "recall_10", "P_1", "P_3", "P_10", "map"]  # fmt: skip
# Made with pytrec_eval 0.5, which holds trec_eval 9.0.8, by
#   cuts = {f"{name}.1,3,10" for name in ("ndcg_cut", "map_cut", "recall", "P")}
#   found = pytrec_eval.RelevanceEvaluator(judged, {*cuts, "recip_rank", "map"}).evaluate(results)
#   {query: [found[query][name] for name in MEASURES] for query in found}
# where judged, results = example().
PYTREC_EVAL: dict[str, list[float]] = {
    "q0": [1.0, 0.4692787260227565, 0.5413996682199069, 1.0, 0.25, 0.25, 0.35,
           0.25, 0.25, 0.5, 1.0, 0.3333333333333333, 0.2, 0.3941176470588235],
    "q1": [0.0, 0.2960819109658652, 0.2960819109658652, 0.5, 0.0, 0.16666666666666666, 0.16666666666666666,
           0.0, 0.3333333333333333, 0.3333333333333333, 0.0, 0.3333333333333333, 0.1, 0.26374269005847956],
    "q2": [0.0, 0.0, 0.12421371338458446, 0.125, 0.0, 0.0, 0.025,
           0.0, 0.0, 0.2, 0.0, 0.0, 0.1, 0.15751748251748252],
    "q3": [0.0, 0.0, 0.24533655499677395, 0.2, 0.0, 0.0, 0.091005291005291,
           0.0, 0.0, 0.3333333333333333, 0.0, 0.0, 0.3, 0.2500703000703],
    "q4": [0.0] * 14,
    "q5": [0.0] * 14,
}  # fmt: skip


OURS = {"ndcg_cut": "ndcg@", "map_cut": "map@", "recall": "recall@", "P": "precision@", "": ""}


def ours(measure: str) -> str:
    """Our name of a measure of pytrec_eval."""
    kind, _, last = measure.rpartition("_")
    return OURS[kind] + last


def expected(query: str) -> dict[str, float]:
    """The scores of pytrec_eval under our names. Its reciprocal rank has no cutoff: BEIR and MTEB cut it like this."""
    theirs = dict(zip(MEASURES, PYTREC_EVAL[query], strict=True))
    first = theirs.pop("recip_rank")
    cut = {f"mrr@{k}": first if first * k > 1 - 1e-9 else 0.0 for k in CUTOFFS}
    return {ours(measure): value for measure, value in theirs.items()} | cut


@pytest.mark.parametrize("query", PYTREC_EVAL)
def test_each_score_is_that_of_pytrec_eval(query: str) -> None:
    judged, results = example()
    assert of(judged[query], results[query]) == pytest.approx(expected(query), abs=1e-12)
    assert slow(judged[query], results[query]) == pytest.approx(expected(query), abs=1e-12)


def test_means_are_over_all_judged_queries() -> None:
    judged, results = example()
    scorer = score_results(judged, {**results, "nobody asked": {"d1": 1.0}}, CUTOFFS)
    every = [expected(query) for query in judged]
    means = {name: sum(one[name] for one in every) / len(every) for name in every[0]}
    assert scorer.scores() == pytest.approx(means, abs=1e-12)
    assert list(scorer.by_query()) == list(judged)
    assert (scorer.without_relevant, scorer.without_results) == (1, 1)


IDS = st.sampled_from([*"abAB019é中😀\uffee", "aa", "a0", "10"])
SCORES = (
    st.sampled_from([0.0, -0.0, 0.5, 1.0, 1.0 + 1e-9, 1.0 - 1e-9, 1e-46, 1e300, 1e39, math.inf, -math.inf])
    | st.floats(width=32, allow_nan=False)
    | st.integers(-2, 2)
)


def as_32_bits(score: float) -> float:
    """Struct refuses what is too large for 32 bits, and C makes it infinite."""
    return math.copysign(math.inf, score) if abs(score) > 3.5e38 else score


@settings(max_examples=300)
@given(
    judged=st.dictionaries(IDS, st.integers(-1, 4), min_size=1, max_size=12),
    results=st.dictionaries(IDS, SCORES, max_size=14),
)
def test_any_query_scores_as_by_the_definitions(judged: dict[str, int], results: dict[str, float]) -> None:
    reference = slow(judged, {document: as_32_bits(score) for document, score in results.items()})
    assert of(judged, results) == pytest.approx(reference, abs=1e-12)


@settings(max_examples=50)
@given(
    seed=st.integers(0, 10**6),
    levels=st.sampled_from([1, 2, 5, 1000]),
    size=st.integers(1, 60),
    depth=st.integers(1, 80),
)
def test_long_rankings_score_as_by_the_definitions(seed: int, levels: int, size: int, depth: int) -> None:
    generator = np.random.default_rng(seed)
    ids = [f"文{i}" for i in range(100)]
    judged = {ids[i]: int(generator.integers(0, 4)) for i in generator.choice(100, size, replace=False)}
    results = {ids[i]: int(generator.integers(levels)) / levels for i in generator.choice(100, depth, replace=False)}
    assert of(judged, results) == pytest.approx(slow(judged, results), abs=1e-12)


# ---------------------------------------------------------------------- by hand


def test_a_ranking_to_check_by_hand() -> None:
    """Relevant documents at ranks 2 and 4 of four, and one that was not retrieved."""
    found = of({"b": 3, "d": 1, "lost": 2, "a": 0}, {"a": 0.9, "b": 0.8, "c": 0.7, "d": 0.6}, [1, 2, 4, 8])
    ideal = 3 + 2 / math.log2(3) + 1 / 2
    assert found == pytest.approx(
        {
            "ndcg@1": 0,
            "ndcg@2": 3 / math.log2(3) / (3 + 2 / math.log2(3)),
            "ndcg@4": (3 / math.log2(3) + 1 / math.log2(5)) / ideal,
            "ndcg@8": (3 / math.log2(3) + 1 / math.log2(5)) / ideal,
            "mrr@1": 0, "mrr@2": 1 / 2, "mrr@4": 1 / 2, "mrr@8": 1 / 2,
            "map@1": 0, "map@2": (1 / 2) / 3, "map@4": (1 / 2 + 2 / 4) / 3, "map@8": (1 / 2 + 2 / 4) / 3,
            "recall@1": 0, "recall@2": 1 / 3, "recall@4": 2 / 3, "recall@8": 2 / 3,
            "precision@1": 0, "precision@2": 1 / 2, "precision@4": 2 / 4, "precision@8": 2 / 8,
            "map": (1 / 2 + 2 / 4) / 3,
        },
        abs=1e-15,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("results", "rank"),
    [
        ({"x": 0.5, "a": 0.5}, 1),  # the larger id comes first
        ({"x": 0.5, "z": 0.5}, 2),
        ({"x": 0.5, "😀": 0.5, "中": 0.5}, 3),
        ({"x": 1.0 + 1e-9, "z": 1.0}, 2),  # equal in 32 bits
        ({"x": 1.0 + 1e-6, "z": 1.0}, 1),
        ({"x": 0.0, "z": -0.0}, 2),
        ({"x": -1, "z": -2}, 1),
    ],
)
def test_equal_scores_are_ordered_by_id(results: Results, rank: int) -> None:
    for given_in in (results, dict(reversed([*results.items()]))):
        assert of({"x": 1}, given_in, [10])["mrr@10"] == 1 / rank


def test_a_query_without_results_counts_as_zero() -> None:
    """The mean of pytrec_eval's output would be 1 here: it does not have the second query."""
    scorer = score_results({"a": {"d": 1}, "b": {"d": 1}}, {"a": {"d": 0.5}}, [10])
    assert scorer.scores()["ndcg@10"] == scorer.scores()["map"] == 0.5
    assert scorer.without_results == 1
    assert set(scorer.by_query()["b"].values()) == {0.0}


def test_cutoffs_are_sorted_and_named_once() -> None:
    assert list(of({"d": 1}, {}, [3, 1, 3])) == ["ndcg@1", "ndcg@3", "mrr@1", "mrr@3", "map@1", "map@3",
                                                "recall@1", "recall@3", "precision@1", "precision@3", "map"]  # fmt: skip


@pytest.mark.parametrize(
    ("judged", "documents", "scores", "code"),
    [
        ({"a": 1}, ["a"], [math.nan], "not-finite"),
        ({"a": 1}, ["a", "a"], [1.0, 0.5], "repeated-id"),
        ({"a": 1}, ["a", "b"], [1.0], "shape-mismatch"),
        ({"a": 0.5}, ["a"], [1.0], "bad-relevance"),
        ({"a": 2**40}, ["a"], [1.0], "bad-relevance"),
        ({}, ["a"], [1.0], "unjudged"),
    ],
)
def test_what_cannot_be_scored_is_refused(judged: Any, documents: list[str], scores: list[float], code: str) -> None:
    scorer = Retrieval()
    with refused(code):
        scorer.add("q", judged, documents, scores)
    assert math.isnan(scorer.scores()["map"]), "nothing was added"


def test_each_query_is_added_once() -> None:
    scorer = Retrieval()
    scorer.add("q", {"a": cast(int, np.int64(1))}, ["a"], np.array([1.0], np.float16))
    with refused("repeated-id", "q"):
        scorer.add("q", {"a": 1}, ["a"], [1.0])
    assert scorer.scores()["mrr@1"] == 1
    for cutoffs in ([0, 10], []):
        with refused("out-of-range", cutoffs):
            Retrieval(cutoffs)


def test_two_models_are_compared_on_their_queries() -> None:
    """Whatever the order of judgements and results; other judgements are other examples."""
    judged = {f"q{i}": {"a": 1, "b": 2, "c": i % 3} for i in range(50)}
    good = {query: {"a": 2.0, "b": 3.0, "x": 1.0} for query in judged}
    bad = {query: {"x": 3.0, "b": 1.0} for query in judged}
    turned = {query: dict(reversed(of_query.items())) for query, of_query in judged.items()}
    first, second = score_results(judged, good), score_results(turned, bad)
    found = compare(first, second, "ndcg@10", rounds=100)
    assert 0 < found.low <= found.difference == pytest.approx(first.scores()["ndcg@10"] - second.scores()["ndcg@10"])
    low, high = interval(first, "ndcg@10", rounds=100)
    assert low < first.scores()["ndcg@10"] < high
    with refused("different-examples"):
        compare(first, score_results({**judged, "q0": {"a": 2, "b": 2, "c": 0}}, good), "ndcg@10")


# ---------------------------------------------------------------------- clusters


@settings(max_examples=200)
@given(
    pairs=st.lists(st.tuples(st.integers(0, 4), st.integers(-1, 5)), min_size=1, max_size=60),
    cut=st.integers(0, 60),
)
def test_clusters_are_scored_as_scikit_learn_does(pairs: list[tuple[int, int]], cut: int) -> None:
    gold, found = [label for label, _ in pairs], [cluster for _, cluster in pairs]
    scorer = Clustering()
    for part in (slice(None, cut), slice(cut, None)):
        scorer.add([f"类{label}" for label in gold[part]], found[part])
    homogeneity, completeness, v_measure = metrics.homogeneity_completeness_v_measure(gold, found)
    theirs = {"v_measure": v_measure, "homogeneity": homogeneity, "completeness": completeness}
    assert scorer.scores() == pytest.approx(theirs, abs=1e-12)


def test_many_clusters_are_scored_as_scikit_learn_does() -> None:
    generator = np.random.default_rng(0)
    gold = generator.integers(0, 20, 5000)
    found = np.where(generator.random(5000) < 0.6, gold, generator.integers(0, 30, 5000))
    scorer = Clustering()
    scorer.add(gold.tolist(), found.tolist())
    assert scorer.scores()["v_measure"] == pytest.approx(metrics.v_measure_score(gold, found), abs=1e-12)


def test_clusters_to_check_by_hand() -> None:
    """Pure clusters, one label in two of them: one of two bits is lost for half of the examples."""
    scorer = Clustering()
    assert all(math.isnan(value) for value in scorer.scores().values())
    scorer.add(["a", "a", "b", "b"], ["x", "x", "y", "z"])
    assert scorer.scores() == pytest.approx({"v_measure": 0.8, "homogeneity": 1.0, "completeness": 2 / 3})
    with refused("shape-mismatch"):
        scorer.add(["a"], [])
