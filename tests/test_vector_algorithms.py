"""Logistic regression, k-means and streaming search on plain vectors, against scikit-learn and full sorting."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans  # type: ignore[import-untyped]
from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]

from bothways.predict import kmeans as kmeans_module
from bothways.predict import linear_probe
from bothways.predict.kmeans import kmeans
from bothways.predict.linear_probe import fit_probe
from bothways.scoring.averages import MeanOverGroups, MeanOverRuns
from bothways.scoring.clustering import Clustering
from bothways.scoring.significance import compare, interval
from bothways.search.top_documents import TopDocuments
from helpers import refused


def blobs(classes: int, each: int = 60, width: int = 12, seed: int = 0) -> tuple[Any, Any]:
    """Clouds that overlap."""
    draws = np.random.default_rng(seed)
    centres = draws.normal(size=(classes, width))
    labels = np.repeat(np.arange(classes), each + np.arange(classes) * 7)
    return (centres[labels] + draws.normal(size=(len(labels), width))).astype(np.float32), labels


# ---------------------------------------------------------------------- the probe


@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("c", [0.01, 1.0, 30.0])
def test_the_probe_is_the_logistic_regression_of_scikit_learn(classes: int, c: float) -> None:
    vectors, labels = blobs(classes)
    probe = fit_probe(vectors, labels, classes, c=c)
    judge = LogisticRegression(C=c, solver="newton-cholesky", tol=1e-10, max_iter=1_000).fit(
        vectors.astype(np.float64), labels
    )
    assert np.abs(probe.weight.numpy() - judge.coef_).max() < 1e-4 * max(c, 1)
    unseen = blobs(classes, seed=1)[0]
    assert np.abs(probe.probabilities(unseen) - judge.predict_proba(unseen.astype(np.float64))).max() < 1e-4


def test_the_probe_is_the_same_in_parts_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, labels = blobs(3)
    whole, again = fit_probe(vectors, labels, 3), fit_probe(vectors, labels, 3)
    assert (whole.weight == again.weight).all()
    monkeypatch.setattr(linear_probe, "_AT_ONCE", 17)
    assert float((fit_probe(vectors, labels, 3).weight - whole.weight).abs().max()) < 1e-6


def test_the_probe_needs_two_classes_with_examples() -> None:
    vectors, labels = blobs(2)
    for classes in (1, 3):
        with refused("bad-labels", 2):
            fit_probe(vectors, labels, classes)


# ---------------------------------------------------------------------- k-means


def test_kmeans_ends_where_that_of_scikit_learn_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, _ = blobs(4)
    first = np.random.default_rng(3).choice(len(vectors), 4, replace=False).tolist()
    monkeypatch.setattr(kmeans_module, "first_centres", lambda *_: first)
    judge = KMeans(4, init=vectors[first], n_init=1, max_iter=300, tol=0.0, algorithm="lloyd").fit(vectors)
    assert (kmeans(vectors, 4) == judge.labels_).all()
    monkeypatch.setattr(kmeans_module, "_AT_ONCE", 40)
    assert (kmeans(vectors, 4) == judge.labels_).all()


def test_kmeans_depends_on_the_seed_only() -> None:
    vectors, labels = blobs(5, each=30, width=3)
    found = [kmeans(vectors, 5, seed) for seed in (0, 0, 1, 2, 3)]
    assert (found[0] == found[1]).all()
    assert any((one != found[0]).any() for one in found[2:])
    spread = vectors * 0.01 + np.eye(5, 3, dtype=np.float32)[labels] * 50 + (labels[:, None] * 20).astype(np.float32)
    apart = [kmeans(spread, 5, seed) for seed in range(5)]
    assert all(len({tuple(pair) for pair in zip(labels.tolist(), one.tolist(), strict=True)}) == 5 for one in apart)


@settings(max_examples=60)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.data())
def test_every_cluster_of_kmeans_has_a_vector(values: list[int], data: st.DataObject) -> None:
    """Also where there are fewer different vectors than clusters."""
    vectors = np.array(values, np.float32)[:, None]
    clusters = data.draw(st.integers(1, len(values)))
    assert set(kmeans(vectors, clusters, seed=len(values)).tolist()) == set(range(clusters))


def test_kmeans_refuses_more_clusters_than_vectors() -> None:
    with refused("out-of-range", 3):
        kmeans(np.zeros((2, 2), np.float32), 3)


# ---------------------------------------------------------------------- means of clusterings


def runs(seeds: range) -> tuple[list[Clustering], list[float]]:
    draws, gold = np.random.default_rng(0), ["a", "b", "c"] * 20
    found = [Clustering() for _ in seeds]
    for one in found:
        noise = draws.random(60) < 0.3
        one.add(gold, np.where(noise, draws.integers(0, 3, 60), np.arange(60) % 3).tolist())
    return found, [one.scores()["v_measure"] for one in found]


def test_the_mean_over_runs() -> None:
    found, values = runs(range(4))
    mean = MeanOverRuns(found)
    assert abs(mean.scores()["v_measure"] - np.mean(values)) < 1e-12
    assert abs(mean.rows("v_measure").value() - np.mean(values)) < 1e-12
    assert interval(MeanOverRuns([found[0]] * 3), "v_measure") == pytest.approx(interval(found[0], "v_measure"))
    assert compare(mean, MeanOverRuns(found[::-1]), "v_measure").difference == pytest.approx(0)


def test_the_mean_over_groups() -> None:
    found, values = runs(range(4))
    mean = MeanOverGroups(found)
    assert mean.rows("v_measure").value() == pytest.approx(np.mean(values)) == mean.scores()["v_measure"]
    low, high = interval(mean, "v_measure")
    assert min(values) <= low <= np.mean(values) <= high <= max(values)
    with refused("different-examples"):
        compare(mean, MeanOverGroups(found[:3]), "v_measure")


# ---------------------------------------------------------------------- streaming search


@settings(max_examples=80)
@given(st.data())
def test_the_best_documents_are_those_of_a_full_sort(data: st.DataObject) -> None:
    """In blocks of any size; of equal scores the larger ids are kept."""
    numbers = data.draw(st.lists(st.tuples(st.integers(-2, 2), st.integers(-1, 2)), min_size=1, max_size=25))
    names = data.draw(st.permutations([f"d{i}" if i % 3 else f"文{i}" for i in range(len(numbers))]))
    k, block = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 9))
    similarity = data.draw(st.sampled_from(["dot", "euclidean", "manhattan"]))
    queries, documents = np.array([[1, 0], [1, -1], [0, 2]], np.float32), np.array(numbers, np.float32)
    found = TopDocuments(queries, k, similarity, "cpu")
    for first in range(0, len(names), block):
        found.add(names[first : first + block], documents[first : first + block])
    for number, query in enumerate(queries):
        gaps = query - documents
        scores = {
            "dot": documents @ query,
            "euclidean": -np.sqrt((gaps**2).sum(1)),
            "manhattan": -np.abs(gaps).sum(1),
        }[similarity]
        expected = sorted(zip(scores.tolist(), names, strict=True), reverse=True)[:k]
        ids, values = found.of(number)
        assert sorted(zip(np.round(values, 5), ids, strict=True), reverse=True) == [
            (round(score, 5), name) for score, name in expected
        ]
    assert len(found) == len(names)


def test_memory_does_not_grow_with_the_corpus() -> None:
    """Of a block no more is kept than the best, whatever came before."""
    draws = np.random.default_rng(0)
    found = TopDocuments(draws.normal(size=(5, 4)).astype(np.float32), 3, "cosine", "cpu")
    for block in range(6):
        found.add([f"{block}-{i}" for i in range(50)], draws.normal(size=(50, 4)).astype(np.float32))
        held = [value for value in vars(found).values() if isinstance(value, np.ndarray)]
        assert sum(array.nbytes for array in held) == 5 * 4 * 4 + 5 * 3 * (4 + 8)
