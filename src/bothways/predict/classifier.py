"""A text classifier with scikit-learn's interface: fit, predict, predict_proba, score."""

import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bothways.data.labels import names_of
from bothways.errors import BothwaysError, require_choice
from bothways.predict.estimator import TextEstimator, checked_weights, matched, targets_of, value_errors
from bothways.predict.label_targets import read_targets, warn_of_several
from bothways.text.columns import Columns


class Classifier(TextEstimator):
    """Fine-tunes an encoder on texts, or on pairs of texts, and labels.

        classifier = Classifier("my-model").fit(texts, labels)
        classifier.predict(["What a film!"])

    The default model is the included model en. `epochs`, `batch_size` and `lr` are by default those of the model's
    finetune.toml, or else chosen by the model and the data. `class_weight`: the weight of each label in the loss, by
    label, or "balanced", as in scikit-learn. `settings` are any keys of a recipe, as in ["optim.layer_decay=0.9"]. With
    `out` the run is kept in that folder, and an interrupted one resumes. `device` and `dtype` are those of predictions,
    as in `encode`; `fit` uses a device of the same kind, in the precision of run.precision. With `progress`, a bar is
    shown in a notebook or on a terminal.
    """

    def __init__(
        self,
        model: Path | str | None = None,
        *,
        epochs: float | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        seed: int = 0,
        class_weight: Mapping[Any, float] | Literal["balanced"] | None = None,
        out: Path | str | None = None,
        settings: Sequence[str] = (),
        device: str = "auto",
        dtype: str = "auto",
        progress: bool = True,
    ) -> None:
        super().__init__(
            model,
            epochs=epochs,
            batch_size=batch_size,
            lr=lr,
            seed=seed,
            out=out,
            settings=settings,
            device=device,
            dtype=dtype,
            progress=progress,
        )
        self.class_weight = class_weight

    @value_errors()
    def fit(
        self,
        X: Iterable[Any],  # noqa: N803
        y: Any = None,
        sample_weight: Any = None,
        *,
        text: str = "",
        pair: str = "",
        label: str = "",
    ) -> "Classifier":
        """Fine-tune on texts X with labels y.

        A text is a string, or a pair of strings; a label is a string, an integer or a boolean. X may be a table in
        memory, whose text columns are found by their usual names, or named by `text` and `pair`; `label` names its
        column of labels, or with `joy+awe` columns of 0 and 1, instead of y. Several labels per text: y is a list of
        lists or sets, an array of zeros and ones with a column for each label, or a DataFrame of such columns. The loss
        of a step is the mean over its texts, weighted by `sample_weight`: a weight of 2 is as if the text were there
        twice.
        """
        y, self._table = targets_of(X, y, label), Columns(text or None, pair or None)
        texts = matched(X, y, type(self).__name__, self._table)
        weights = checked_weights(sample_weight, len(texts))
        targets, golds = read_targets(y)
        present = {name for gold, weight in zip(golds, weights, strict=True) if weight for name in names_of(gold)}
        if not present:
            raise BothwaysError("no text has a label: expected at least one label in y", "no-labels")
        if targets.form == "single" and len(present) == 1:
            (name,) = present
            raise BothwaysError(f"y has only one class, {name!r}: expected two or more", "one-label", name)
        if targets.form == "single":
            warn_of_several(golds)
        settings: dict[str, Any] = {"kind": "single" if targets.form == "single" else "multi"}
        if self.class_weight is not None:
            settings["class_weights"] = self._class_weights(targets.classes.tolist(), present)
        self._train(texts, golds, weights, settings)
        self.classes_, self._targets = targets.classes, targets
        known = {name: number for number, name in enumerate(self.predictor_.labels)}
        self._columns = [known.get(name, -1) for name in targets.names]
        return self

    def _class_weights(self, classes: Sequence[Any], present: set[str]) -> dict[str, float] | str:
        """The setting of a recipe. `present`: the labels that the model gets, which may lack some of a fold."""
        given = self.class_weight
        if not isinstance(given, Mapping):
            require_choice("class_weight", given, ("balanced",))
            return "balanced"
        if unknown := [label for label in given if label not in classes]:
            raise BothwaysError(
                f"class_weight names {unknown[0]!r}, but no text has this label", "unknown-label", unknown[0]
            )
        return {str(label): float(given[label]) for label in classes if label in given and str(label) in present}

    @value_errors()
    def predict_proba(self, X: Iterable[Any]) -> NDArray[np.float64]:  # noqa: N803
        """(texts, classes) probabilities, in the order of `classes_`; 0 of a label that no text had in `fit`.

        They add up to 1, unless there are several labels per text.
        """
        decoded = self._decoded(X)
        return np.hstack([decoded, np.zeros((len(decoded), 1))])[:, self._columns]

    @value_errors()
    def predict(self, X: Iterable[Any]) -> Any:  # noqa: N803
        """The most probable class of each text. Multi-label: all labels above their thresholds, in the form of y."""
        found, is_empty = self._predicted(X)
        if is_empty:
            warnings.warn(
                f"no label was predicted for any of {len(found):,} texts: none is as probable as its threshold, see "
                "predict_proba",
                stacklevel=3,
            )
        return found

    def _predicted(self, texts: Iterable[Any]) -> tuple[Any, bool]:
        """The labels of texts, and whether there are none at all: of one text alone that is plain to see."""
        probabilities = self.predict_proba(texts)
        if self._targets.form == "single":
            return self.classes_[probabilities.argmax(1)], False
        task: Any = self.predictor_.task
        thresholds = np.array([task.threshold(name) for name in self._targets.names])
        chosen = (probabilities >= thresholds) & (np.array(self._columns) >= 0)
        return self._targets.like_given(chosen), len(chosen) > 1 and not chosen.any()

    @value_errors()
    def score(self, X: Iterable[Any], y: Any, sample_weight: Any = None) -> float:  # noqa: N803
        """Accuracy: the share of texts whose label, or whose set of labels, is predicted."""
        texts = self._matched(X, y)
        weights = checked_weights(sample_weight, len(texts))
        predicted, _ = self._predicted(texts)  # raises before fit
        return float(np.average(self._targets.are_equal(predicted, y), weights=weights))

    def __sklearn_tags__(self) -> Any:
        """scikit-learn's tags. Only scikit-learn calls this, so it is imported already."""
        utils = sys.modules["sklearn.utils"]
        return utils.Tags(
            estimator_type="classifier",
            target_tags=utils.TargetTags(required=True),
            classifier_tags=utils.ClassifierTags(multi_label=True),
            input_tags=utils.InputTags(string=True, two_d_array=False),
        )
