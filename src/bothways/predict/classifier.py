"""A text classifier in the manner of scikit-learn: fit, predict, predict_proba, score."""

import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.errors import BothwaysError
from bothways.predict.encode import require_several
from bothways.predict.predictor import Predictor
from bothways.tasks.classify import as_text
from bothways.tasks.finetune import finetune
from bothways.tasks.recipe import finetune_recipe

_SETTINGS = ("model", "epochs", "batch", "lr", "seed", "out", "settings")


class Classifier:
    """Fine-tunes an encoder on texts, or on pairs of them, and labels.

        classifier = Classifier("my-model").fit(texts, labels)
        classifier.predict(["What a film!"])

    Without a model it is the one in the box. Epochs, batch and lr are as the model's folder advises, unless said; where
    it has no advice, three epochs of 32 with a rate of 3e-5.
    `settings` are any keys of a recipe, as in ["optim.layer_decay=0.9", "classify.class_weights='balanced'"]. With `out` the
    run is kept there, and goes on where it stopped.
    """

    def __init__(
        self,
        model: Path | str | None = None,
        *,
        epochs: float | None = None,
        batch: int | None = None,
        lr: float | None = None,
        seed: int = 0,
        out: Path | str | None = None,
        settings: Sequence[str] = (),
    ) -> None:
        self.model, self.epochs, self.batch, self.lr, self.seed = model, epochs, batch, lr, seed
        self.out, self.settings = out, settings

    def fit(self, texts: Iterable[Any], labels: Sequence[Any]) -> "Classifier":
        """Learn. A text is a string, or a pair of strings; a label anything that prints as its name."""
        texts, given = _matched(texts, labels), [_label(label) for label in labels]
        if len({isinstance(label, str) for label in given}) > 1:
            raise BothwaysError("some labels are strings and some are not: expected one or the other")
        self.classes_ = np.unique(given)
        names = [str(label) for label in self.classes_.tolist()]
        known = dict(zip(self.classes_.tolist(), names, strict=True))
        examples = [replace(as_text(text), gold=known[label]) for text, label in zip(texts, given, strict=True)]
        # Whoever sets another length of the run does not mean so many epochs.
        has_length = any(s.startswith(("run.steps", "run.minutes")) for s in self.settings)
        epochs = None if has_length else self.epochs
        recipe = finetune_recipe(
            {
                "task": "classify",
                "model": _said(init=None if self.model is None else str(self.model)),
                "classify": {"kind": "single"},
                "run": _said(epochs=epochs, batch=self.batch, seed=self.seed),
                "optim": _said(lr=self.lr),
            },
            self.settings,
        )
        with tempfile.TemporaryDirectory() as folder:
            found = finetune(recipe, self.out or folder, train=examples, dev=[])
            self.predictor_ = Predictor.load(found.folder)
        self._order = [self.predictor_.labels.index(name) for name in names]
        return self

    def predict_proba(self, texts: Iterable[Any]) -> NDArray[np.float64]:
        """(texts, classes) in the order of `classes_`."""
        self._require_fit()
        require_several(texts)
        rows = [decision for _, decision in self.predictor_.decode_all(map(as_text, texts))]
        return np.asarray(rows, np.float64).reshape(-1, len(self._order))[:, self._order]

    def predict(self, texts: Iterable[Any]) -> NDArray[Any]:
        """The likeliest class of each text."""
        self._require_fit()
        found: NDArray[Any] = self.classes_[self.predict_proba(texts).argmax(1)]
        return found

    def score(self, texts: Iterable[Any], labels: Sequence[Any]) -> float:
        """The share of texts that get their label."""
        return float(np.mean(self.predict(_matched(texts, labels)) == np.asarray(labels)))

    def _require_fit(self) -> None:
        if not hasattr(self, "predictor_"):
            raise BothwaysError("this classifier has learned nothing yet: call fit first")

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn asks of estimators since 1.6; nobody else does, so it is loaded when this is called."""
        utils = sys.modules["sklearn.utils"]
        return utils.Tags(
            estimator_type="classifier",
            target_tags=utils.TargetTags(required=True),
            classifier_tags=utils.ClassifierTags(),
            input_tags=utils.InputTags(string=True, two_d_array=False),
        )

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The settings by name: scikit-learn clones and searches with them."""
        return {name: getattr(self, name) for name in _SETTINGS}

    def set_params(self, **settings: Any) -> "Classifier":
        for name, value in settings.items():
            if name not in _SETTINGS:
                raise BothwaysError(f"a Classifier has no setting {name!r}: expected {', '.join(_SETTINGS)}")
            setattr(self, name, value)
        return self


def _said(**settings: Any) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


def _matched(texts: Iterable[Any], labels: Sequence[Any]) -> list[Any]:
    """The texts, which are as many as the labels."""
    require_several(texts)
    found = list(texts)
    if len(found) != len(labels):
        raise BothwaysError(f"{len(found)} texts were given and {len(labels)} labels: expected as many of both")
    return found


def _label(label: Any) -> Any:
    """As Python has it, whichever array it comes from."""
    label = label.item() if isinstance(label, np.generic) else label
    if label is None or isinstance(label, list | tuple | np.ndarray) or label != label:
        raise BothwaysError(f"a label was expected for each text, and {label!r} was given")
    if isinstance(label, float) and not label.is_integer():
        raise BothwaysError(f"{label} is a number and no class: finetune learns numbers, with classify.kind=regression")
    return label
