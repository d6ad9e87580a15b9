"""Classifier with several labels and with weights, and Regressor: what they learn, and what scikit-learn makes of it."""

import pickle
import signal
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse  # type: ignore[import-untyped]
import sklearn.base  # type: ignore[import-untyped]
import sklearn.utils.estimator_checks  # type: ignore[import-untyped]
import torch
from sklearn.compose import TransformedTargetRegressor  # type: ignore[import-untyped]
from sklearn.metrics import r2_score  # type: ignore[import-untyped]
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score  # type: ignore[import-untyped]
from sklearn.preprocessing import MultiLabelBinarizer, StandardScaler  # type: ignore[import-untyped]
from sklearn.utils.class_weight import compute_class_weight  # type: ignore[import-untyped]

import bothways
from bothways.data.examples import Text
from bothways.predict.classifier import Classifier
from bothways.predict.estimator import EstimatorError
from bothways.predict.regressor import Regressor
from bothways.tasks.classify import ClassifySettings, TextClassification
from bothways.train.protocol import Event, Started, Stepped
from helpers import refused
from helpers.tasks import MULTI, NUMBERS, SINGLE, quiet, recipe_for, start, take

TEXTS = [f"the {kind} {verb}" for verb in ("runs", "sleeps", "walks", "talks") for kind in ("cat", "dog", "black tree")]
GOLDS = [[kind for kind in ("black", "cat", "runs", "tree") if kind in text] for text in TEXTS]
BITS = MultiLabelBinarizer().fit_transform(GOLDS)
NAMES = ["black", "cat", "runs", "tree"]
FAST = ["run.device=cpu", "run.save_every=999", "optim.warmup=0"]
LEARNED: dict[str, Any] = {"epochs": 60, "batch_size": 12, "lr": 1e-2}


def fast(model: Path, **settings: Any) -> Classifier:
    return Classifier(model, **{"epochs": 1, "batch_size": 12, "lr": 1e-3, "settings": FAST, **settings})


# ---------------------------------------------------------------------- several labels


FORMS: dict[str, Any] = {
    "lists": GOLDS,
    "tuples": [tuple(gold) for gold in GOLDS],
    "sets": [set(gold) for gold in GOLDS],
    "a column of lists": pd.Series(GOLDS),
    "an array": BITS,
    "an array of booleans": BITS.astype(bool),
    "lists of bits": BITS.tolist(),
    "a sparse matrix": scipy.sparse.csr_matrix(BITS),
    "pandas": pd.DataFrame(BITS, columns=NAMES),
    "polars": pl.DataFrame(BITS, schema=NAMES),
}


@pytest.mark.parametrize("form", FORMS)
def test_several_labels_come_back_as_they_were_given(form: str, base: Path) -> None:
    """Learned by heart, so that the right ones must come back."""
    y = FORMS[form]
    classifier = pickle.loads(pickle.dumps(fast(base, **LEARNED).fit(TEXTS, y)))
    found: Any = classifier.predict(TEXTS)
    is_list = "array" not in form and "bits" not in form and "matrix" not in form
    assert type(found) is (list if form in ("lists", "tuples", "sets", "a column of lists") else type(y) if is_list else np.ndarray)  # fmt: skip
    if isinstance(found, list):
        assert type(found[0]) is type(y[0])
        assert [set(row) for row in found] == [set(row) for row in GOLDS]
    else:
        assert np.array_equal(np.asarray(found), BITS)
        assert getattr(found, "dtype", None) == getattr(y, "dtype", BITS.dtype) or is_list
    if form in ("pandas", "polars"):
        assert list(classifier.predict(TEXTS).columns) == NAMES
    has_names = form in ("pandas", "polars") or isinstance(found, list)
    assert classifier.classes_.tolist() == (NAMES if has_names else [0, 1, 2, 3])
    assert classifier.predictor_.labels == (tuple(NAMES) if has_names else tuple("0123"))
    assert classifier.predict_proba(TEXTS).shape == (12, 4)
    assert classifier.score(TEXTS, y) == 1.0
    assert classifier.score(TEXTS[:2], y[1::-1] if not hasattr(y, "iloc") else y.iloc[1::-1]) == 0.0


def test_joined_labels_are_not_learned_as_one_class_without_a_word(base: Path) -> None:
    joined = ["|".join(gold) for gold in GOLDS]
    with pytest.warns(UserWarning, match=r"'cat\|runs' look like several, separated by \|"):
        assert "black|runs|tree" in fast(base).fit(TEXTS, joined).classes_
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fast(base).fit(TEXTS, ["Paris, France", "Lyon, France", "R/D"] * 4)


def test_probabilities_are_those_of_the_labels(base: Path) -> None:
    classifier = fast(base).fit(TEXTS, GOLDS)
    chances = classifier.predict_proba(TEXTS)
    for text, row in zip(TEXTS, chances, strict=True):
        by_name = {one["label"]: one["score"] for one in classifier.predictor_(text, top=4)}
        assert row == pytest.approx([by_name[name] for name in NAMES])
    assert classifier.predict(TEXTS) == [[n for n, p in zip(NAMES, row, strict=True) if p >= 0.5] for row in chances]


def test_a_label_that_no_text_has_is_never_predicted(base: Path) -> None:
    """As in a fold of a cross-validation that lacks a rare label."""
    bits = np.column_stack([BITS[:, :1], np.zeros(12, int), BITS[:, 1:]])
    classifier = fast(base, class_weight={1: 2.0, 2: 3.0}).fit(TEXTS, bits)
    assert classifier.predict_proba(TEXTS).shape == (12, 5)
    assert (classifier.predict_proba(TEXTS)[:, 1] == 0).all()
    assert (classifier.predict(TEXTS)[:, 1] == 0).all()


@pytest.mark.filterwarnings("ignore:no label was predicted")  # after one epoch
def test_scikit_learn_s_searches_take_several_labels(base: Path) -> None:
    classifier, folds = fast(base, epochs=20, lr=1e-2), KFold(2)
    scores = cross_val_score(classifier, np.array(TEXTS), BITS, cv=folds, error_score="raise")
    by_hand = [
        sklearn.base.clone(classifier).fit(np.array(TEXTS)[one], BITS[one]).score(np.array(TEXTS)[other], BITS[other])
        for one, other in folds.split(TEXTS)
    ]
    assert scores.tolist() == by_hand
    search = GridSearchCV(fast(base), {"epochs": [1, 20]}, scoring="f1_micro", cv=folds, error_score="raise")
    assert search.fit(TEXTS, BITS).predict(TEXTS).shape == BITS.shape
    weighted = GridSearchCV(fast(base), {"class_weight": [None, "balanced"]}, cv=folds, error_score="raise")
    assert weighted.fit(TEXTS, BITS, sample_weight=np.arange(12.0)).predict_proba(TEXTS).shape == (12, 4)


def test_a_signal_ends_a_search(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only the fit in which it comes, of which scikit-learn would say that it failed."""
    fits = []

    def interrupt(event: Event) -> None:
        if isinstance(event, Started):
            fits.append(event)
        elif isinstance(event, Stepped) and event.step == 1:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("bothways.predict.estimator.StepProgress", lambda bar: interrupt)
    search = GridSearchCV(fast(base, epochs=9), {"lr": [1e-3, 1e-2]}, cv=KFold(2))
    with pytest.raises(KeyboardInterrupt):
        search.fit(TEXTS, BITS)
    assert len(fits) == 1


def test_tags_tell_what_they_are() -> None:
    assert sklearn.base.is_classifier(Classifier())
    assert not sklearn.base.is_regressor(Classifier())
    assert sklearn.utils.get_tags(Classifier()).classifier_tags.multi_label
    assert sklearn.base.is_regressor(Regressor())
    assert not sklearn.base.is_classifier(Regressor())


# ---------------------------------------------------------------------- weights


def repeated(examples: Sequence[Text], weights: Sequence[int]) -> list[Text]:
    return [example for example, weight in zip(examples, weights, strict=True) for _ in range(weight)]


CASES: dict[str, tuple[list[Text], dict[str, Any]]] = {
    "single": (SINGLE, {}),
    "smoothed and balanced": (SINGLE, {"label_smoothing": 0.1, "class_weights": "balanced"}),
    "several": (MULTI, {}),
    "several, balanced": (MULTI, {"class_weights": "balanced", "focal_gamma": 1.0}),
    "several, weighted": (MULTI, {"class_weights": {"joy": 3.0}}),
    "numbers": (NUMBERS, {}),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("micro_tokens", [8, 4096])
def test_whole_weights_are_repeated_texts(name: str, micro_tokens: int, base: Path) -> None:
    """In the loss and in every gradient, in whatever parts a step is computed."""
    examples, settings = CASES[name]
    weights = [2, 1, 3, 4, 1]
    weighted = [replace(example, weight=float(weight)) for example, weight in zip(examples, weights, strict=True)]
    found = []
    for rows in (weighted, repeated(examples, weights), examples):
        recipe = recipe_for("classify", base, settings=ClassifySettings(**settings), run=quiet(micro_tokens=micro_tokens))  # fmt: skip
        work = start(recipe, rows)
        loss = take(work)
        found.append((loss, torch.cat([p.grad.flatten() for p in work.module.parameters() if p.grad is not None])))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    assert torch.allclose(found[0][1], found[1][1], rtol=1e-4, atol=1e-6 * float(found[1][1].abs().max()))
    assert not torch.allclose(found[0][1], found[2][1], rtol=1e-2)  # else weights would not matter


def test_fitting_with_weights_is_fitting_with_copies(base: Path) -> None:
    """0 is as if the text were not there; a step with all texts, so that both have the same steps."""
    kinds, weights = ["cat", "dog", "tree"] * 4, [0, 1, 2, 3] * 3
    one = fast(base, epochs=4, batch_size=99).fit(TEXTS, kinds, sample_weight=weights)
    copies = [(t, k) for t, k, w in zip(TEXTS, kinds, weights, strict=True) for _ in range(w)]
    other = fast(base, epochs=4, batch_size=99).fit(*map(list, zip(*copies, strict=True)))
    plain = fast(base, epochs=4, batch_size=99).fit(TEXTS, kinds)
    assert np.allclose(one.predict_proba(TEXTS), other.predict_proba(TEXTS), atol=1e-4)
    assert not np.allclose(one.predict_proba(TEXTS), plain.predict_proba(TEXTS), atol=1e-3)
    assert one.score(TEXTS, kinds, sample_weight=weights) == pytest.approx(
        other.score([t for t, _ in copies], [k for _, k in copies])
    )


def test_balanced_is_what_scikit_learn_calls_balanced(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds, weights = np.array(list("aaaaaabbbbcc")), np.array([1.0, 2, 3, 1, 1, 1, 0.5, 0.5, 0.25, 1, 1, 4])
    seen: list[Any] = []
    keep = TextClassification._weights

    def weights_of(self: TextClassification, train: Sequence[Text]) -> Any:
        seen.append(keep(self, train))
        return seen[-1]

    monkeypatch.setattr(TextClassification, "_weights", weights_of)
    for sample_weight in (None, weights):
        seen.clear()
        fast(base, class_weight="balanced").fit(TEXTS, kinds, sample_weight)
        theirs = compute_class_weight(
            "balanced",
            classes=np.unique(kinds),
            y=kinds,
            **({} if sample_weight is None else {"sample_weight": weights}),
        )
        assert seen[0] == pytest.approx(theirs)
    seen.clear()
    fast(base, class_weight={"b": 3, "c": 0.5}).fit(TEXTS, kinds)
    assert seen[0].tolist() == [1.0, 3.0, 0.5]
    seen.clear()
    fast(base, class_weight={0: 2}).fit(TEXTS, np.array([0.0, 1.0] * 6))
    assert seen[0].tolist() == [2.0, 1.0]


def test_class_weight_is_the_weight_of_its_texts(base: Path) -> None:
    kinds = ["cat", "dog", "tree"] * 4
    by_class = fast(base, class_weight={"cat": 3.0}).fit(TEXTS, kinds).predict_proba(TEXTS)
    by_text = fast(base).fit(TEXTS, kinds, [3.0, 1.0, 1.0] * 4).predict_proba(TEXTS)
    assert np.allclose(by_class, by_text, atol=1e-5)
    several = fast(base, class_weight={"cat": 9.0}, epochs=5, lr=3e-3)
    plain = fast(base, epochs=5, lr=3e-3).fit(TEXTS, GOLDS).predict_proba(TEXTS)
    assert several.fit(TEXTS, GOLDS).predict_proba(TEXTS)[:, 1].mean() > plain[:, 1].mean() + 0.01


@pytest.mark.parametrize(
    ("settings", "weights", "code"),
    [
        ({"class_weight": "even"}, None, "unknown-choice"),
        ({"class_weight": {"bird": 2.0}}, None, "unknown-label"),
        ({}, [1.0, -1.0] * 6, "out-of-range"),
        ({}, [1.0, float("nan")] * 6, "out-of-range"),
        ({}, [1.0], "shape-mismatch"),
        ({}, [0.0] * 12, "no-data"),
        ({}, [1.0, 0.0, 0.0] * 4, "one-label"),
    ],
)
def test_bad_weights_are_value_errors(settings: dict[str, Any], weights: Any, code: str, base: Path) -> None:
    with pytest.raises(EstimatorError, match=r"\w") as caught:
        fast(base, **settings).fit(TEXTS, ["cat", "dog", "tree"] * 4, weights)
    assert isinstance(caught.value, ValueError)
    assert caught.value.code == code


# ---------------------------------------------------------------------- numbers


def test_a_regressor_learns_numbers(base: Path) -> None:
    y = np.linspace(-1, 2, 12)
    regressor = Regressor(base, settings=FAST, **LEARNED).fit(TEXTS, y)
    found = regressor.predict(TEXTS)
    assert found.shape == (12,)
    assert np.abs(found - y).mean() < 0.3
    weights = np.arange(12.0)
    assert regressor.score(TEXTS, y) == pytest.approx(r2_score(y, found))
    assert regressor.score(TEXTS, y, weights) == pytest.approx(r2_score(y, found, sample_weight=weights))
    assert regressor.predict([]).shape == (0,)
    again = pickle.loads(pickle.dumps(regressor))
    assert np.array_equal(again.predict(TEXTS), found)
    assert bothways.Regressor is Regressor


def test_a_regressor_in_scikit_learn(base: Path) -> None:
    y = np.linspace(1_000, 5_000, 12)
    scaled = TransformedTargetRegressor(Regressor(base, settings=FAST, **LEARNED), transformer=StandardScaler())
    assert scaled.fit(np.array(TEXTS), y).score(np.array(TEXTS), y) > 0.5
    plain = Regressor(base, epochs=1, settings=FAST)
    assert len(cross_val_score(plain, np.array(TEXTS), y, cv=2, error_score="raise")) == 2
    for name in (
        "check_estimator_cloneable", "check_estimator_repr", "check_estimators_unfitted", "check_get_params_invariance",
        "check_no_attributes_set_in_init", "check_parameters_default_constructible", "check_requires_y_none",
        "check_set_params", "check_supervised_y_no_nan", "check_valid_tag_types",
    ):  # fmt: skip
        getattr(sklearn.utils.estimator_checks, name)("Regressor", Regressor())


@pytest.mark.parametrize("y", [["a", "b"], [1.0, float("nan")], [[1.0, 2.0], [3.0, 4.0]], [float("inf"), 0.0]], ids=str)
def test_what_is_no_number_is_refused(y: Any, base: Path) -> None:
    with refused("bad-label"):
        Regressor(base, settings=FAST).fit(["a", "b"], y)
