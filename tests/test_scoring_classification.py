"""Scores of classes, labels and numbers: what scikit-learn and scipy say, in whatever batches they come."""

import itertools
import math
import warnings
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]
from sklearn import metrics  # type: ignore[import-untyped]

from bothways.scoring.classification import Classes
from bothways.scoring.many_labels import ManyLabels
from bothways.scoring.regression import Regression
from helpers import refused

Array = NDArray[Any]
SEEDS = st.integers(0, 2**32 - 1)
CUTS = st.lists(st.integers(0, 60), max_size=4)


def softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def random_classes(seed: int, rows: int, size: int) -> tuple[Array, Array]:
    """Gold and probabilities in which some classes never occur and some are never predicted."""
    draws = np.random.default_rng(seed)
    some = draws.integers(1, size + 1)
    gold = draws.integers(0, some, rows)
    logits = draws.normal(size=(rows, size)) * draws.choice([0.1, 1.0, 10.0])
    logits[:, draws.integers(0, size)] -= draws.choice([0.0, 50.0])
    logits[np.arange(rows), gold] += draws.choice([0.0, 2.0])
    return gold, softmax(logits)


def labels(size: int) -> list[str]:
    return [f"label {i}" for i in range(size)]


def added(scorer: Any, cuts: list[int], *columns: Array) -> Any:
    """The accumulator after the rows came in batches cut at these places, empty ones among them."""
    ends = [0, *sorted(cuts), len(columns[0])]
    for start, end in itertools.pairwise(ends):
        scorer.add(*(column[start:end] for column in columns))
    return scorer


def judged(gold: Array, probabilities: Array) -> dict[str, float]:
    """What scikit-learn says of the same."""
    size = probabilities.shape[1]
    predicted = probabilities.argmax(1)
    every = list(range(size))
    options = {"zero_division": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes that are absent, which is what is asked here
        found = {
            "accuracy": metrics.accuracy_score(gold, predicted),
            "macro_f1": metrics.f1_score(gold, predicted, average="macro", **options),
            "micro_f1": metrics.f1_score(gold, predicted, average="micro", **options),
            "weighted_f1": metrics.f1_score(gold, predicted, average="weighted", **options),
            "matthews": metrics.matthews_corrcoef(gold, predicted),
            "negative_log_likelihood": metrics.log_loss(gold, probabilities, labels=every) if size > 1 else 0.0,
            "brier": ((probabilities - np.eye(size)[gold]) ** 2).sum(1).mean() / (2 if size == 2 else 1),
            "calibration_error": naive_calibration_error(gold, probabilities),
        }
        if size == 2:
            found["positive_f1"] = metrics.f1_score(gold, predicted, pos_label=1, **options)
            found["brier"] = metrics.brier_score_loss(gold, probabilities[:, 1], pos_label=1)
    return found


def naive_calibration_error(gold: Array, probabilities: Array) -> float:
    sure, right = probabilities.max(1), probabilities.argmax(1) == gold
    total = 0.0
    for i in range(15):
        inside = (sure > i / 15) & (sure <= (i + 1) / 15)
        if inside.any():
            total += inside.mean() * abs(right[inside].mean() - sure[inside].mean())
    return total


@settings(max_examples=50)
@given(seed=SEEDS, rows=st.integers(1, 60), size=st.integers(1, 6), cuts=CUTS)
def test_classes_are_scored_as_scikit_learn_does(seed: int, rows: int, size: int, cuts: list[int]) -> None:
    gold, probabilities = random_classes(seed, rows, size)
    scores = added(Classes(labels(size)), cuts, gold, probabilities).scores()
    expected = judged(gold, probabilities)
    assert scores.keys() == expected.keys()
    for name, value in expected.items():
        assert scores[name] == pytest.approx(value, rel=1e-6, abs=2e-6), name


@settings(max_examples=40)
@given(seed=SEEDS, rows=st.integers(0, 60), size=st.integers(1, 6), cuts=CUTS)
def test_each_class_and_the_table_are_as_scikit_learn_has_them(
    seed: int, rows: int, size: int, cuts: list[int]
) -> None:
    gold, probabilities = random_classes(seed, rows, size)
    whole, parts = (
        added(Classes(labels(size)), [], gold, probabilities),
        added(Classes(labels(size)), cuts, gold, probabilities),
    )
    assert repr(whole.scores()) == repr(parts.scores()), "the same numbers whatever the batches"
    assert repr(whole.reliability()) == repr(parts.reliability())
    every = list(range(size))
    if not rows:
        assert not parts.confusion().any()
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = metrics.confusion_matrix(gold, probabilities.argmax(1), labels=every)
        columns = metrics.precision_recall_fscore_support(gold, probabilities.argmax(1), labels=every, zero_division=0)
    assert (parts.confusion() == table).all()
    for i, (name, detail) in enumerate(parts.per_class().items()):
        assert name == f"label {i}"
        assert [detail.precision, detail.recall, detail.f1, detail.support] == pytest.approx([c[i] for c in columns])


def test_without_a_row_every_score_is_nan_and_nothing_warns() -> None:
    classes, many, numbers = Classes(["a", "b"]), ManyLabels(["a"]), Regression()
    classes.add([], [])
    many.add([], [])
    numbers.add([], [])
    for scorer in (classes, many, numbers):
        assert all(math.isnan(value) for value in scorer.scores().values())
    assert classes.confusion().tolist() == [[0, 0], [0, 0]]
    assert classes.per_class()["a"].f1 == many.per_label()["a"].f1 == 0
    assert classes.reliability()[3].count == 0
    assert math.isnan(classes.reliability()[3].accuracy)


def test_a_model_that_always_says_the_same_has_no_correlation() -> None:
    classes = Classes(["no", "yes"])
    classes.add([0, 1, 1, 0], [[0.9, 0.1]] * 4)
    scores = classes.scores()
    assert scores["matthews"] == 0
    assert scores["positive_f1"] == 0
    assert scores["accuracy"] == 0.5
    numbers = Regression()
    numbers.add([1.0, 2.0, 4.0], [0.1, 0.1, 0.1])
    assert numbers.scores()["pearson"] == numbers.scores()["spearman"] == 0


def test_one_class_alone_is_always_right() -> None:
    classes = Classes(["only"])
    classes.add([0, 0], [[1.0], [1.0]])
    expected = {"accuracy": 1.0, "macro_f1": 1.0, "micro_f1": 1.0, "weighted_f1": 1.0, "matthews": 0.0}
    assert classes.scores() == {**expected, "negative_log_likelihood": 0.0, "calibration_error": 0.0, "brier": 0.0}


def test_a_certain_error_costs_much_but_not_everything() -> None:
    classes = Classes(["no", "yes"])
    classes.add([1], [[1.0, 0.0]])
    assert classes.scores()["negative_log_likelihood"] == pytest.approx(
        metrics.log_loss([1], [[1.0, 0.0]], labels=[0, 1])
    )
    assert classes.scores()["brier"] == 1


def test_of_equal_probabilities_the_first_is_predicted() -> None:
    classes = Classes(["a", "b", "c"])
    classes.add([0, 1], [[0.4, 0.4, 0.2], [0.2, 0.4, 0.4]])
    assert classes.scores()["accuracy"] == 1


def test_a_row_costs_a_few_bytes_however_many_classes_there_are() -> None:
    classes = Classes(labels(200))
    gold, probabilities = random_classes(1, 500, 200)
    classes.add(gold, probabilities)
    held = sum(len(value._bytes) for value in vars(classes).values() if hasattr(value, "_bytes"))
    assert held <= 16 * 500


@pytest.mark.parametrize(
    ("gold", "probabilities", "code"),
    [
        ([0, 2], [[0.5, 0.5], [0.5, 0.5]], "out-of-range"),
        ([-1], [[0.5, 0.5]], "out-of-range"),
        ([0.5], [[0.5, 0.5]], "out-of-range"),
        ([0], [[3.0, -1.0]], "not-probabilities"),
        ([0], [[1.5, -0.5]], "not-probabilities"),
        ([0], [[float("nan"), 0.5]], "not-probabilities"),
        ([0], [[0.5, 0.3, 0.2]], "shape-mismatch"),
        ([0, 1], [[0.5, 0.5]], "shape-mismatch"),
    ],
)
def test_what_is_no_probability_or_class_is_refused(gold: Any, probabilities: Any, code: str) -> None:
    with refused(code):
        Classes(["a", "b"]).add(gold, probabilities)


def test_labels_are_named_once() -> None:
    with refused("bad-labels", ("a", "a")):
        Classes(["a", "a"])
    with refused("bad-labels", ()):
        ManyLabels([])


@settings(max_examples=30)
@given(seed=SEEDS, rows=st.integers(1, 60), size=st.integers(1, 11), cuts=CUTS, exactly=st.sampled_from([0, 50, 1000]))
def test_many_labels_are_scored_as_scikit_learn_does(
    seed: int, rows: int, size: int, cuts: list[int], exactly: int
) -> None:
    with mock.patch("bothways.scoring.many_labels._MOST_EXACT", exactly):
        many_labels_are_scored(seed, rows, size, cuts)


def many_labels_are_scored(seed: int, rows: int, size: int, cuts: list[int]) -> None:
    draws = np.random.default_rng(seed)
    gold = (draws.random((rows, size)) < draws.random(size)).astype(int)
    # On a grid of log-odds, so that the histogram loses nothing and equal scores abound.
    odds = np.round(draws.normal(size=(rows, size)) * 2 + gold, 1)
    scores, thresholds = 1 / (1 + np.exp(-odds)), draws.choice([0.3, 0.5, 0.8], size)
    many = added(ManyLabels(labels(size), thresholds), cuts, gold, scores)
    predicted = (scores >= thresholds).astype(int)
    options = {"zero_division": 0, "labels": list(range(size))} if size > 1 else {"zero_division": 0}
    found = many.scores()
    for average in ("micro", "macro"):
        expected = metrics.f1_score(gold, predicted, average=average if size > 1 else "binary", **options)
        assert found[f"{average}_f1"] == pytest.approx(expected)
    assert found["exact_match"] == pytest.approx((gold == predicted).all(1).mean())
    precisions = []
    for i, (name, value) in enumerate(many.average_precisions().items()):
        if gold[:, i].any():
            precisions.append(metrics.average_precision_score(gold[:, i], scores[:, i]))
            assert value == pytest.approx(precisions[-1]), name
        else:
            assert math.isnan(value)
    assert found["macro_average_precision"] == pytest.approx(
        np.mean(precisions) if precisions else math.nan, nan_ok=True
    )
    columns = [
        f(gold[:, i], predicted[:, i], zero_division=0)
        for i in range(size)
        for f in (metrics.precision_score, metrics.recall_score, metrics.f1_score)
    ]
    details = many.per_label().values()
    assert [v for d in details for v in (d.precision, d.recall, d.f1)] == pytest.approx(columns)
    assert [d.support for d in details] == gold.sum(0).tolist()


@pytest.mark.parametrize(("exactly", "off"), [(0, 0.005), (10**6, 1e-12)])
def test_average_precision_keeps_scores_apart_that_a_plain_histogram_would_not(
    exactly: int, off: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rare labels live at probabilities of a thousandth and less."""
    monkeypatch.setattr("bothways.scoring.many_labels._MOST_EXACT", exactly)
    draws = np.random.default_rng(0)
    odds = draws.normal(-8, 1, 2000)
    gold = draws.random(2000) < 1 / (1 + np.exp(-(odds + 6) * 3))
    scores = 1 / (1 + np.exp(-odds))
    many = ManyLabels(["rare"])
    many.add(gold[:, None], scores[:, None])
    assert many.average_precisions()["rare"] == pytest.approx(metrics.average_precision_score(gold, scores), abs=off)


def test_certain_scores_of_labels_are_counted_without_a_warning() -> None:
    many = ManyLabels(["a", "b"])
    many.add([[1, 0], [0, 1]], [[1.0, 0.0], [0.0, 1.0]])
    assert many.scores() == {"micro_f1": 1, "macro_f1": 1, "exact_match": 1, "macro_average_precision": 1}


@pytest.mark.parametrize(
    ("gold", "scores", "code"),
    [
        ([[1, 0]], [[2.0, -3.0]], "not-probabilities"),
        ([[1, 0]], [[0.5, float("nan")]], "not-probabilities"),
        ([[2, 0]], [[0.5, 0.5]], "out-of-range"),
        ([[1]], [[0.5]], "shape-mismatch"),
        ([1, 0], [0.5, 0.5], "shape-mismatch"),
    ],
)
def test_what_is_no_label_is_refused(gold: Any, scores: Any, code: str) -> None:
    with refused(code):
        ManyLabels(["a", "b"]).add(gold, scores)


def test_thresholds_are_one_or_one_for_each_label() -> None:
    with refused("shape-mismatch", (3,)):
        ManyLabels(["a", "b"], [0.1, 0.2, 0.3])


@settings(max_examples=50)
@given(seed=SEEDS, rows=st.integers(2, 60), digits=st.integers(0, 3), cuts=CUTS)
def test_numbers_are_scored_as_scipy_does(seed: int, rows: int, digits: int, cuts: list[int]) -> None:
    draws = np.random.default_rng(seed)
    gold = np.round(draws.normal(size=rows) * 2 + 1000 * draws.integers(2), digits)  # few digits: ties
    predicted = np.round(gold * draws.choice([-1, 0.01, 1]) + draws.normal(size=rows), digits)
    scores = added(Regression(), cuts, gold, predicted).scores()
    assert scores["mean_squared_error"] == pytest.approx(metrics.mean_squared_error(gold, predicted))
    assert scores["mean_absolute_error"] == pytest.approx(metrics.mean_absolute_error(gold, predicted))
    if len(set(gold)) > 1 and len(set(predicted)) > 1:
        assert scores["pearson"] == pytest.approx(stats.pearsonr(gold, predicted).statistic, abs=1e-9)
        assert scores["spearman"] == pytest.approx(stats.spearmanr(gold, predicted).statistic, abs=1e-9)
    else:
        assert scores["pearson"] == scores["spearman"] == 0
    assert scores == added(Regression(), [], gold, predicted).scores()


def test_what_is_no_number_is_refused() -> None:
    with refused("not-finite"):
        Regression().add([1.0], [float("nan")])
    with refused("shape-mismatch", ((2,), (1,))):
        Regression().add([1.0, 2.0], [1.0])


@pytest.mark.parametrize("seed", range(4))
def test_thresholds_are_the_best_there_are(seed: int) -> None:
    """No threshold at all gives a label a higher F1 by scikit-learn, where scores differ by more than a bin."""
    draws = np.random.default_rng(seed)
    gold = draws.random((300, 3)) < [0.5, 0.1, 0.02]
    scores = 1 / (1 + np.exp(-draws.normal(gold * 2.0 - [0, 3, -1], 1.0).round(1) - 0.003))
    many = ManyLabels(["a", "b", "c"])
    many.add(gold, scores)
    for column, (name, threshold) in enumerate(many.best_thresholds().items()):
        assert name == "abc"[column]
        truth, chances = gold[:, column], scores[:, column]
        best = max(metrics.f1_score(truth, chances >= cut) for cut in chances)
        assert metrics.f1_score(truth, chances >= threshold) >= best - 1e-12


def test_a_label_without_gold_keeps_the_usual_threshold() -> None:
    many = ManyLabels(["a", "b"])
    many.add([[1, 0], [0, 0]], [[0.2, 0.9], [0.1, 0.8]])
    assert many.best_thresholds()["b"] == 0.5
    assert 0.1 < many.best_thresholds()["a"] <= 0.2


def test_a_threshold_lies_half_way_so_that_rounding_moves_no_text() -> None:
    many = ManyLabels(["a"])
    many.add([[1], [1], [0]], [[0.9], [0.8], [0.2]])
    assert many.best_thresholds() == {"a": pytest.approx(0.5)}
