"""Classifier: scikit-learn takes it for one of its own."""

import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.base  # type: ignore[import-untyped]
import sklearn.utils.estimator_checks  # type: ignore[import-untyped]
from sklearn.exceptions import NotFittedError  # type: ignore[import-untyped]
from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]
from sklearn.metrics import accuracy_score  # type: ignore[import-untyped]
from sklearn.model_selection import (  # type: ignore[import-untyped]
    GridSearchCV,
    StratifiedKFold,
    cross_val_score,
)
from sklearn.pipeline import make_pipeline  # type: ignore[import-untyped]
from sklearn.preprocessing import FunctionTransformer  # type: ignore[import-untyped]

import bothways
from bothways.errors import BothwaysError
from bothways.model import box
from bothways.predict.classifier import Classifier
from bothways.predict.predictor import Predictor
from bothways.tasks.recipe import read_finetune_recipe
from helpers import refused

TEXTS = [f"the {kind} {verb}" for verb in ("runs", "sleeps", "walks", "talks") for kind in ("cat", "dog", "black tree")]
KINDS = ["cat", "dog", "tree"] * 4
FAST = ["run.device=cpu", "run.save_every=999", "optim.warmup=0"]


def fast(model: Path, **settings: Any) -> Classifier:
    return Classifier(model, **{"epochs": 1, "batch_size": 6, "lr": 1e-3, "settings": FAST, **settings})


def test_settings_are_kept_cloned_and_changed(base: Path) -> None:
    first = fast(base, seed=7)
    own = {"model": base, "epochs": 1, "batch_size": 6, "lr": 1e-3, "seed": 7, "out": None, "settings": FAST}
    own |= {"class_weight": None}
    assert first.get_params() == {**own, "device": "auto", "dtype": "auto", "progress": True}
    second = sklearn.base.clone(first)
    assert second is not first
    assert second.get_params() == first.get_params()
    assert second.set_params(lr=5e-5, epochs=2).get_params() == {**first.get_params(), "lr": 5e-5, "epochs": 2}
    assert first.lr == 1e-3
    with refused("unknown-setting", "colour"):
        first.set_params(colour="red")


def test_repr_shows_what_was_set() -> None:
    assert repr(Classifier()) == "Classifier()"
    changed = Classifier("m", lr=1e-3, settings=["run.steps=2"])
    assert repr(changed) == "Classifier(model='m', lr=0.001, settings=['run.steps=2'])"


def test_what_it_learned_can_be_kept(base: Path, tmp_path: Path) -> None:
    """By pickle, as scikit-learn's users keep theirs, and as a folder."""
    learned = fast(base).fit(TEXTS, [KINDS.index(kind) for kind in KINDS])
    expected = learned.predict_proba(TEXTS)
    again = pickle.loads(pickle.dumps(learned))
    assert again.classes_.tolist() == [0, 1, 2]
    assert np.array_equal(again.predict_proba(TEXTS), expected)
    bothways.save(learned.predictor_.model, tmp_path / "model")
    found = Predictor.load(tmp_path / "model")(TEXTS)
    assert [int(answer["label"]) for answer in found] == expected.argmax(1).tolist()


def test_what_is_not_said_is_as_the_model_advises(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    advised = tmp_path / "model"
    shutil.copytree(base, advised)
    (advised / "finetune.toml").write_text("[optim]\nlr = 4e-4\n[run]\nepochs = 1\nbatch_size = 3\n")
    plans = {}
    for name, classifier in {
        "advised": Classifier(advised, settings=FAST),
        "said": fast(advised, epochs=0.5),
        "steps": fast(advised, settings=[*FAST, "run.steps=2"]),
        "none": Classifier(base, settings=FAST),
    }.items():
        classifier.set_params(out=tmp_path / name).fit(TEXTS, KINDS)
        plans[name] = read_finetune_recipe(tmp_path / name / "recipe.toml")
    found = {
        name: (plan.optim.lr, plan.run.epochs, plan.run.steps, plan.run.batch_size) for name, plan in plans.items()
    }
    assert found["advised"] == (4e-4, 1, 0, 3)
    assert found["said"] == (1e-3, 0.5, 0, 6)
    assert found["steps"] == (1e-3, 0, 2, 6)
    assert found["none"] == (5e-4, 10, 0, 16)  # a narrow model, twelve texts
    monkeypatch.setattr(box, "BOX", tmp_path / "box")
    shutil.copytree(advised, tmp_path / "box/en")
    Classifier(out=tmp_path / "boxed", settings=FAST).fit(TEXTS, KINDS)
    assert read_finetune_recipe(tmp_path / "boxed/recipe.toml").model.init == str(tmp_path / "box/en")


@pytest.mark.parametrize(
    ("texts", "labels", "code"),
    [
        ("good", list("good"), "bad-input"),
        ([7, 8], ["a", "b"], "bad-input"),
        ([("a", "b", "c"), ("d", "e", "f")], ["a", "b"], "bad-input"),
        (["a", "b"], [None, "x"], "bad-label"),
        (["a", "b"], np.array([float("nan"), 1.0]), "bad-label"),
        (["a", "b"], [["x"], "y"], "bad-label"),
        (["a", "b"], [["x"], ["y", None]], "bad-label"),
        (["a", "b"], [["x"], ["y", 1]], "mixed-labels"),
        (["a", "b"], [[], []], "no-labels"),
        (["a", "b"], np.array([[1, 0], [1, 2]]), "bad-label"),
        (["a", "b"], np.array([[1], [0]]), "bad-label"),
        (["a", "b"], np.zeros((2, 3)), "no-labels"),
        (["a", "b"], pd.DataFrame({"x": [0, 1], "y": [1, None]}), "bad-label"),
        (["a", "b"], [0.5, 1.0], "bad-label"),
        (["a", "b"], [1, "1"], "mixed-labels"),
        (["a", "b"], ["x"], "length-mismatch"),
        (["a", "b"], None, "no-labels"),
        (TEXTS, KINDS[:3], "length-mismatch"),
        (TEXTS, ["cat"] * 12, "one-label"),
        ([], [], "no-data"),
    ],
)
def test_bad_texts_and_labels_are_value_errors(texts: Any, labels: Any, code: str, base: Path) -> None:
    with pytest.raises(ValueError, match=r"\w") as caught:
        fast(base).fit(texts, labels)
    assert isinstance(caught.value, BothwaysError)
    assert caught.value.code == code
    assert "\n" not in str(caught.value)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again), again.code) == (type(caught.value), str(caught.value), code)


def test_texts_come_in_many_forms(base: Path) -> None:
    pairs = np.array([["the cat", "the dog"], ["a tree", "the cat"]] * 3)
    classifier = fast(base).fit((tuple(pair) for pair in pairs), [0, 1] * 3)
    assert (classifier.predict(pairs) == classifier.predict([tuple(pair) for pair in pairs])).all()
    for bad in ("the cat", [7]):
        with refused("bad-input"):
            classifier.predict(bad)
    with refused("length-mismatch", (6, 2)):
        classifier.score(pairs, [0, 1])


def test_it_is_a_classifier_to_scikit_learn(base: Path) -> None:
    assert sklearn.base.is_classifier(fast(base))


# Checks that use no data.
WITHOUT_DATA = [
    "check_decision_proba_consistency",
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimator_sparse_tag",
    "check_estimator_tags_renamed",
    "check_estimators_partial_fit_n_features",
    "check_estimators_unfitted",
    "check_fit1d",
    "check_get_params_invariance",
    "check_mixin_order",
    "check_n_features_in_after_fitting",
    "check_no_attributes_set_in_init",
    "check_non_transformer_estimators_n_iter",
    "check_parameters_default_constructible",
    "check_requires_y_none",
    "check_set_params",
    "check_supervised_y_no_nan",
    "check_valid_tag_types",
]
# Checks that fit on tables of numbers, which a subclass turns into texts.
WITH_NUMBERS = [
    "check_all_zero_sample_weights_error",
    "check_classifiers_classes",
    "check_classifiers_multilabel_output_format_predict",
    "check_classifiers_multilabel_output_format_predict_proba",
    "check_classifiers_multilabel_representation_invariance",
    "check_classifiers_one_label",
    "check_classifiers_one_label_sample_weights",
    "check_classifiers_regression_target",
    "check_dict_unchanged",
    "check_dont_overwrite_parameters",
    "check_dtype_object",
    "check_estimators_dtypes",
    "check_estimators_fit_returns_self",
    "check_estimators_overwrite_params",
    "check_estimators_pickle",
    "check_f_contiguous_array_estimator",
    "check_fit2d_1feature",
    "check_fit2d_1sample",
    "check_fit_check_is_fitted",
    "check_fit_idempotent",
    "check_fit_score_takes_y",
    "check_methods_sample_order_invariance",
    "check_methods_subset_invariance",
    "check_pipeline_consistency",
    "check_positive_only_tag_during_fit",
    "check_readonly_memmap_input",
    "check_sample_weights_list",
    "check_sample_weights_not_overwritten",
    "check_sample_weights_pandas_series",
    "check_sample_weights_shape",
]
# Checks of what texts do not have, with the reason.
NOT_APPLICABLE = {
    "check_array_api_input": "texts are not arrays of numbers",
    "check_array_api_mixed_inputs": "texts are not arrays of numbers",
    "check_array_api_same_namespace": "texts are not arrays of numbers",
    "check_class_weight_balanced_linear_classifier": "there are no coefficients",
    "check_class_weight_classifiers": "asks for an accuracy on numbers, whose digits are no features",
    "check_classifier_data_not_an_array": "texts and labels must be iterable",
    "check_classifiers_train": "asks for an accuracy on numbers, whose digits are no features",
    "check_complex_data": "there are no complex texts",
    "check_estimator_sparse_array": "there are no sparse texts",
    "check_estimator_sparse_matrix": "there are no sparse texts",
    "check_estimators_empty_data_messages": "there is no number of features",
    "check_estimators_nan_inf": "there are no texts that are nan or inf",
    "check_fit2d_predict1d": "there is no number of dimensions",
    "check_n_features_in": "there is no number of features",
    "check_sample_weight_equivalence_on_dense_data": "equal but for rounding: a test below",
    "check_sample_weight_equivalence_on_sparse_data": "there are no sparse texts",
    "check_sample_weights_not_an_array": "texts and labels must be iterable",
    "check_sparsify_coefficients": "there are no coefficients",
    "check_supervised_y_2d": "a column of labels is refused, not flattened with a warning",
}


class OfNumbers(Classifier):
    """Reads rows of numbers as texts, so that scikit-learn can check it with its own data."""

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, **columns: Any) -> Classifier:  # noqa: N803
        return super().fit(as_texts(X), y, sample_weight)

    def predict_proba(self, X: Any) -> Any:  # noqa: N803
        return super().predict_proba(as_texts(X))


def as_texts(rows: Any) -> list[str]:
    return [" ".join(f"{value:.1f}" for value in row[:4]) for row in np.asarray(rows)]


def sklearn_check(name: str) -> Any:
    found = getattr(sklearn.utils.estimator_checks, name, None)
    return found or pytest.skip(f"this scikit-learn has no {name}")


def test_every_check_of_a_classifier_is_run_or_has_a_reason() -> None:
    checks = sklearn.utils.estimator_checks.estimator_checks_generator(LogisticRegression())
    names = {getattr(check, "func", check).__name__ for _, check in checks}
    assert names - {*WITHOUT_DATA, *WITH_NUMBERS, *NOT_APPLICABLE} == set()
    assert len({*WITHOUT_DATA, *WITH_NUMBERS, *NOT_APPLICABLE}) == len(WITHOUT_DATA + WITH_NUMBERS) + len(
        NOT_APPLICABLE
    )


@pytest.mark.parametrize("name", WITHOUT_DATA)
def test_scikit_learn_finds_nothing_wrong(name: str) -> None:
    sklearn_check(name)("Classifier", Classifier())


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_NUMBERS)
def test_scikit_learn_finds_nothing_wrong_with_what_it_learns(name: str, base: Path) -> None:
    sklearn_check(name)("Classifier", OfNumbers(base, settings=["run.steps=1", "run.device=cpu", "optim.warmup=0"]))


def test_it_works_in_a_pipeline(base: Path) -> None:
    def lower(texts: list[str]) -> list[str]:
        return [text.lower() for text in texts]

    pipeline = make_pipeline(FunctionTransformer(lower), fast(base)).fit([text.upper() for text in TEXTS], KINDS)
    expected = fast(base).fit(TEXTS, KINDS)
    assert np.array_equal(pipeline.predict_proba([text.upper() for text in TEXTS]), expected.predict_proba(TEXTS))
    assert pipeline.set_params(classifier__lr=0.5)[-1].lr == 0.5
    assert pipeline.classes_.tolist() == ["cat", "dog", "tree"]


def folded(classifier: Classifier) -> list[float]:
    """What it scores on each half after learning the other, by hand."""
    texts, kinds = np.array(TEXTS), np.array(KINDS)
    halves = StratifiedKFold(2).split(texts, kinds)
    return [
        sklearn.base.clone(classifier).fit(texts[one], kinds[one]).score(texts[other], kinds[other])
        for one, other in halves
    ]


def test_it_can_be_cross_validated(base: Path) -> None:
    classifier = fast(base, epochs=10, lr=1e-2)
    scores = cross_val_score(classifier, np.array(TEXTS), KINDS, cv=StratifiedKFold(2), error_score="raise")
    assert scores.tolist() == folded(classifier)


def test_it_can_be_searched_over(base: Path) -> None:
    rates = [1e-9, 1e-2]
    search = GridSearchCV(fast(base, epochs=10), {"lr": rates}, cv=StratifiedKFold(2), error_score="raise")
    search.fit(TEXTS, KINDS)
    by_hand = [np.mean(folded(fast(base, epochs=10, lr=rate))) for rate in rates]
    assert search.cv_results_["mean_test_score"].tolist() == by_hand
    assert by_hand[0] < by_hand[1]  # else it would not matter which rate was taken
    assert search.best_params_ == {"lr": 1e-2}
    assert search.predict(TEXTS).tolist() == fast(base, epochs=10, lr=1e-2).fit(TEXTS, KINDS).predict(TEXTS).tolist()


@pytest.mark.parametrize(
    "labels",
    [
        ["B", "a", "中"] * 4,
        [10, 9, 2] * 4,
        [True, False, True] * 4,
        np.array([1.0, -1.0, 2.0] * 4),
    ],
    ids=["strings", "integers", "booleans", "an array of numbers"],
)
def test_labels_come_back_as_they_were_given(labels: Any, base: Path) -> None:
    """Learned by heart, so that the right one must come back, in the right type and column."""
    classifier = fast(base, epochs=20, batch_size=12, lr=1e-2).fit(TEXTS, labels)
    wanted = np.asarray(labels)
    found = classifier.predict(TEXTS)
    assert found.dtype == wanted.dtype
    assert found.tolist() == wanted.tolist()
    assert classifier.classes_.tolist() == np.unique(wanted).tolist()
    chances = classifier.predict_proba(TEXTS)
    assert chances.sum(1) == pytest.approx(np.ones(12))
    assert classifier.classes_[chances.argmax(1)].tolist() == wanted.tolist()
    assert classifier.score(TEXTS, labels) == accuracy_score(wanted, found) == 1.0


@pytest.mark.parametrize("labels", [["10", "9", "2"], [10, 9, 2], ["b", "B", "a"]], ids=str)
def test_columns_follow_the_classes_and_not_the_folder(labels: list[Any], base: Path) -> None:
    """As text "10" comes before "9", which is what numpy says of text; a folder has numbers in their own order."""
    classifier = fast(base).fit(TEXTS, labels * 4)
    predictor: Predictor = classifier.predictor_
    for text, row in zip(TEXTS, classifier.predict_proba(TEXTS), strict=True):
        by_name = {one["label"]: one["score"] for one in predictor(text, top=3)}
        assert row == pytest.approx([by_name[str(label)] for label in classifier.classes_])


def test_pairs_and_empty_lists(base: Path) -> None:
    pairs = [(text, "the house") for text in TEXTS]
    classifier = fast(base).fit(pairs, KINDS)
    assert classifier.predict(pairs).shape == (12,)
    assert classifier.predict([list(pair) for pair in pairs]).tolist() == classifier.predict(pairs).tolist()
    assert classifier.predict([]).shape == (0,)
    assert classifier.predict_proba([]).shape == (0, 3)


def test_the_same_seed_gives_the_same_answers(base: Path) -> None:
    one, two, other = (fast(base, seed=seed).fit(TEXTS, KINDS).predict_proba(TEXTS) for seed in (1, 1, 2))
    assert np.array_equal(one, two)
    assert not np.array_equal(one, other)


def test_a_kept_run_is_a_folder_like_any_other(base: Path, tmp_path: Path) -> None:
    classifier = fast(base, out=tmp_path / "run").fit(TEXTS, KINDS)
    predictor = Predictor.load(tmp_path / "run/model")
    assert [one["label"] for one in predictor(TEXTS)] == classifier.predict(TEXTS).tolist()
    again = fast(base, out=tmp_path / "run").fit(TEXTS, KINDS)
    assert np.array_equal(again.predict_proba(TEXTS), classifier.predict_proba(TEXTS))


def test_settings_of_a_recipe_reach_the_run(base: Path) -> None:
    plain = fast(base).fit(TEXTS, KINDS).predict_proba(TEXTS)
    told = fast(base, settings=[*FAST, "classify.label_smoothing=0.3"]).fit(TEXTS, KINDS).predict_proba(TEXTS)
    assert not np.allclose(plain, told)
    with refused("unknown-key", names=r"classify\.smothing"):
        fast(base, settings=["classify.smothing=0.3"]).fit(TEXTS, KINDS)


def test_before_fit_it_raises_what_scikit_learn_expects(base: Path) -> None:
    for ask in (fast(base).predict, fast(base).predict_proba, lambda texts: fast(base).score(texts, KINDS)):
        with pytest.raises(NotFittedError) as caught:
            ask(TEXTS)
        assert isinstance(caught.value, BothwaysError)
        assert caught.value.code == "not-fitted"
        again = pickle.loads(pickle.dumps(caught.value))  # as joblib sends it from another process
        assert isinstance(again, NotFittedError)
        assert (again.code, str(again)) == ("not-fitted", str(caught.value))


def test_scikit_learn_is_not_imported() -> None:
    """Before fit there is an error of the same bases without it."""
    code = (
        "import sys, bothways\n"
        "try: bothways.Classifier().predict(['a'])\n"
        "except bothways.BothwaysError as error: print(error.code, isinstance(error, (ValueError, AttributeError)))\n"
        "print('sklearn' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120)
    assert done.stdout == "not-fitted True\nFalse\n"
