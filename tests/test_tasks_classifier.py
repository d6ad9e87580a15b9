"""Classifier: scikit-learn takes it for one of its own."""

import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.base  # type: ignore[import-untyped]
from sklearn.metrics import accuracy_score  # type: ignore[import-untyped]
from sklearn.model_selection import (  # type: ignore[import-untyped]
    GridSearchCV,
    StratifiedKFold,
    cross_val_score,
)

import bothways
from bothways.errors import BothwaysError
from bothways.model import box
from bothways.predict.classifier import Classifier
from bothways.predict.predictor import Predictor
from bothways.tasks.recipe import read_finetune_recipe
from test_tasks import base

__all__ = ["base"]

TEXTS = [f"the {kind} {verb}" for verb in ("runs", "sleeps", "walks", "talks") for kind in ("cat", "dog", "black tree")]
KINDS = ["cat", "dog", "tree"] * 4
FAST = ["run.device=cpu", "run.save_every=999", "optim.warmup=0"]


def fast(model: Path, **settings: Any) -> Classifier:
    return Classifier(model, **{"epochs": 1, "batch": 6, "lr": 1e-3, "settings": FAST, **settings})


def test_settings_are_kept_cloned_and_changed(base: Path) -> None:
    first = fast(base, seed=7)
    assert first.get_params() == {"model": base, "epochs": 1, "batch": 6, "lr": 1e-3, "seed": 7, "out": None, "settings": FAST}  # fmt: skip
    second = sklearn.base.clone(first)
    assert second is not first
    assert second.get_params() == first.get_params()
    assert second.set_params(lr=5e-5, epochs=2).get_params() == {**first.get_params(), "lr": 5e-5, "epochs": 2}
    assert first.lr == 1e-3
    with pytest.raises(BothwaysError, match="no setting 'colour'"):
        first.set_params(colour="red")


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
    (advised / "finetune.toml").write_text("[optim]\nlr = 4e-4\n[run]\nepochs = 1\nbatch = 3\n")
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
    assert found["none"] == (3e-5, 3, 0, 32)
    monkeypatch.setattr(box, "BOX", tmp_path / "box")
    shutil.copytree(advised, tmp_path / "box/reader")
    Classifier(out=tmp_path / "boxed", settings=FAST).fit(TEXTS, KINDS)
    assert read_finetune_recipe(tmp_path / "boxed/recipe.toml").model.init == str(tmp_path / "box/reader")


@pytest.mark.parametrize(
    ("texts", "labels", "told"),
    [
        ("good", list("good"), "several texts were expected"),
        (["a", "b"], [None, "x"], "for each text, and None was given"),
        (["a", "b"], np.array([float("nan"), 1.0]), "for each text, and nan was given"),
        (["a", "b"], [["x"], ["y", "z"]], r"for each text, and \['x'\] was given"),
        (["a", "b"], np.array([[1, 0], [1, 1]]), r"for each text, and array\(\[1, 0\]\) was given"),
        (["a", "b"], [1, "1"], "some labels are strings and some are not"),
        (["a", "b"], [0.5, 1.0], "0.5 is a number and no class"),
        (["a", "b"], ["x"], "2 texts were given and 1 labels"),
    ],
)
def test_what_cannot_be_learned_is_told(texts: Any, labels: Any, told: str, base: Path) -> None:
    with pytest.raises(BothwaysError, match=told):
        fast(base).fit(texts, labels)


def test_texts_come_in_many_forms(base: Path) -> None:
    pairs = np.array([["the cat", "the dog"], ["a tree", "the cat"]] * 3)
    classifier = fast(base).fit((tuple(pair) for pair in pairs), [0, 1] * 3)
    assert (classifier.predict(pairs) == classifier.predict([tuple(pair) for pair in pairs])).all()
    with pytest.raises(BothwaysError, match="several texts were expected"):
        classifier.predict("the cat")
    with pytest.raises(BothwaysError, match="6 texts were given and 2 labels"):
        classifier.score(pairs, [0, 1])


def test_it_is_a_classifier_to_scikit_learn(base: Path) -> None:
    assert sklearn.base.is_classifier(fast(base))


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
    classifier = fast(base, epochs=20, batch=12, lr=1e-2).fit(TEXTS, labels)
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
    with pytest.raises(BothwaysError, match="did you mean"):
        fast(base, settings=["classify.smothing=0.3"]).fit(TEXTS, KINDS)


@pytest.mark.parametrize(
    ("texts", "labels", "said"),
    [
        (TEXTS, KINDS[:3], "12 texts were given and 3 labels"),
        (TEXTS, ["cat"] * 12, "all rows have the label 'cat'"),
        ([], [], "nothing to train on"),
        ([7, 8], ["a", "b"], "text"),
        ([("a", "b", "c"), ("d", "e", "f")], ["a", "b"], "text"),
    ],
)
def test_what_cannot_be_learned_is_refused_in_one_sentence(texts: Any, labels: Any, said: str, base: Path) -> None:
    with pytest.raises(BothwaysError, match=said) as caught:
        fast(base).fit(texts, labels)
    assert "\n" not in str(caught.value)


def test_it_must_learn_before_it_answers(base: Path) -> None:
    for ask in (fast(base).predict, fast(base).predict_proba):
        with pytest.raises(BothwaysError, match="call fit first"):
            ask(TEXTS)
