"""A text classifier with scikit-learn's interface: fit, predict, predict_proba, score."""

import inspect
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.data.texts import read_texts_labelled
from bothways.errors import BothwaysError, StoppedError
from bothways.model.device import find_device
from bothways.predict.encode import require_several
from bothways.predict.predictor import Predictor
from bothways.progress import interactive_progress, notebook_progress
from bothways.tasks.classify import as_text
from bothways.tasks.finetune import finetune
from bothways.tasks.recipe import finetune_recipe
from bothways.text.frames import as_files, frame_kind
from bothways.train.protocol import Event
from bothways.train.report import StepProgress


class ClassifierError(BothwaysError, ValueError):
    """An error of a Classifier's input or settings: a ValueError, as scikit-learn expects."""


class NotFittedError(ClassifierError, AttributeError):
    """Raised before `fit`. Where scikit-learn is imported, it is an instance of its NotFittedError too."""


@contextmanager
def _value_errors() -> Iterator[None]:
    """Raise errors as ClassifierError."""
    try:
        yield
    except (ClassifierError, StoppedError):
        raise
    except BothwaysError as error:
        raise ClassifierError(str(error), error.code, error.value) from error


class Classifier:
    """Fine-tunes an encoder on texts, or on pairs of texts, and labels.

        classifier = Classifier("my-model").fit(texts, labels)
        classifier.predict(["What a film!"])

    The default model is the one in the box. `epochs`, `batch_size` and `lr` are by default those that the model's
    folder advises, or chosen by the model and the data. `settings` are any keys of a recipe, as in
    ["optim.layer_decay=0.9", "classify.class_weights='balanced'"]. With `out` the run is kept in that folder, and an
    interrupted one resumes.
    `device` and `dtype` are those of predictions, as in `encode`; `fit` uses a device of the same kind, in the
    precision of run.precision. With `progress`, a bar is shown in a notebook or on a terminal.
    """

    def __init__(
        self,
        model: Path | str | None = None,
        *,
        epochs: float | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        seed: int = 0,
        out: Path | str | None = None,
        settings: Sequence[str] = (),
        device: str = "auto",
        dtype: str = "auto",
        progress: bool = True,
    ) -> None:
        self.model, self.epochs, self.batch_size, self.lr, self.seed = model, epochs, batch_size, lr, seed
        self.out, self.settings, self.device, self.dtype, self.progress = out, settings, device, dtype, progress

    @_value_errors()
    def fit(self, X: Iterable[Any], y: Sequence[Any]) -> "Classifier":  # noqa: N803
        """Fine-tune on texts X with labels y.

        A text is a string, or a pair of strings; a label is a string, an integer or a boolean. X may be a table in
        memory, whose text columns are found by their usual names.
        """
        texts, given = _matched(X, y), [_label(label) for label in y]
        if len({isinstance(label, str) for label in given}) > 1:
            raise BothwaysError("some labels are strings and some are not: expected one or the other", "mixed-labels")
        self.classes_ = np.unique(given)
        names = [str(label) for label in self.classes_.tolist()]
        if len(names) == 1:
            raise BothwaysError(f"y has only one class, {names[0]!r}: expected two or more", "one-label", names[0])
        known = dict(zip(self.classes_.tolist(), names, strict=True))
        examples = [replace(as_text(text), gold=known[label]) for text, label in zip(texts, given, strict=True)]
        # `epochs` does not apply if a setting gives the length of the run in another unit.
        has_length = any(s.startswith(("run.steps", "run.minutes")) for s in self.settings)
        epochs = None if has_length else self.epochs
        recipe = finetune_recipe(
            {
                "task": "classify",
                "model": _without_none(init=None if self.model is None else str(self.model)),
                "classify": {"kind": "single"},
                "run": _without_none(
                    epochs=epochs, batch_size=self.batch_size, seed=self.seed, device=find_device(self.device).type
                ),
                "optim": _without_none(lr=self.lr),
            },
            self.settings,
        )
        with tempfile.TemporaryDirectory() as folder:
            with interactive_progress("fine-tuning", unit="steps") if self.progress else nullcontext() as bar:
                listen = StepProgress(bar) if bar is not None else _ignore
                found = finetune(recipe, self.out or folder, train=examples, dev=[], listen=[listen])
            if not found.complete:
                raise StoppedError("fit was stopped before the end: with `out`, the same call resumes", "stopped")
            self.predictor_ = Predictor.load(found.folder, device=self.device, dtype=self.dtype)
        self._columns = [self.predictor_.labels.index(name) for name in names]
        return self

    @_value_errors()
    def predict_proba(self, X: Iterable[Any]) -> NDArray[np.float64]:  # noqa: N803
        """(texts, classes) probabilities, in the order of `classes_`."""
        if not hasattr(self, "predictor_"):
            raise _not_fitted()
        X = _texts(X)  # noqa: N806
        require_several(X)
        size = len(X) if isinstance(X, Sized) else None
        with notebook_progress("predicting", size) if self.progress else nullcontext() as bar:
            texts = X if bar is None else bar.over(X)
            rows = [probabilities for _, probabilities in self.predictor_.decode_all(map(as_text, texts))]
        return np.asarray(rows, np.float64).reshape(-1, len(self._columns))[:, self._columns]

    def predict(self, X: Iterable[Any]) -> NDArray[Any]:  # noqa: N803
        """The most probable class of each text."""
        best = self.predict_proba(X).argmax(1)
        found: NDArray[Any] = self.classes_[best]
        return found

    @_value_errors()
    def score(self, X: Iterable[Any], y: Sequence[Any]) -> float:  # noqa: N803
        """Accuracy."""
        return float(np.mean(self.predict(_matched(X, y)) == np.asarray(y)))

    def __sklearn_tags__(self) -> Any:
        """scikit-learn's tags. Only scikit-learn calls this, so it is imported already."""
        utils = sys.modules["sklearn.utils"]
        return utils.Tags(
            estimator_type="classifier",
            target_tags=utils.TargetTags(required=True),
            classifier_tags=utils.ClassifierTags(),
            input_tags=utils.InputTags(string=True, two_d_array=False),
        )

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The settings by name, for scikit-learn's clone and searches."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    @_value_errors()
    def set_params(self, **settings: Any) -> "Classifier":
        known = self.get_params()
        for name, value in settings.items():
            if name not in known:
                raise BothwaysError(
                    f"a Classifier has no setting {name!r}: expected {', '.join(known)}", "unknown-setting", name
                )
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self)).parameters
        changed = [f"{name}={value!r}" for name, value in self.get_params().items() if value != defaults[name].default]
        return f"{type(self).__name__}({', '.join(changed)})"


def _ignore(event: Event) -> None:
    """A listener in place of a notebook's progress bar."""


def _without_none(**settings: Any) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


def _not_fitted() -> NotFittedError:
    theirs = sys.modules.get("sklearn.exceptions")
    kind: Any = NotFittedError
    if theirs is not None:  # made here, so it must say how to unpickle it: joblib sends errors between processes
        bases, reduce = (NotFittedError, theirs.NotFittedError), {"__reduce__": lambda self: (_not_fitted, ())}
        kind = type("NotFittedError", bases, reduce)
    error: NotFittedError = kind("this Classifier is not fitted yet: call fit first", "not-fitted")
    return error


def _matched(texts: Iterable[Any], labels: Sequence[Any]) -> list[Any]:
    """The texts, if there is a label for each."""
    texts = _texts(texts)
    require_several(texts)
    found = list(texts)
    if labels is None:  # scikit-learn looks for these words
        raise BothwaysError("Classifier requires y to be passed, but the target y is None", "no-labels")
    if len(found) != len(labels):
        raise BothwaysError(
            f"{len(found)} texts and {len(labels)} labels were given: expected one label for each text",
            "length-mismatch",
            (len(found), len(labels)),
        )
    if not found:
        raise BothwaysError("no texts were given: expected at least one", "no-data")
    return found


def _texts(given: Any) -> Any:
    """The texts or pairs of a table in memory; anything else as it is."""
    if not frame_kind(given):
        return given
    with as_files(given) as names:
        return [row.texts[0] if len(row.texts) == 1 else row.texts for row in read_texts_labelled(names)]


def _label(label: Any) -> Any:
    """The label as a plain Python value."""
    label = label.item() if isinstance(label, np.generic) else label
    if label is None or isinstance(label, list | tuple | np.ndarray) or label != label:
        raise BothwaysError(f"one label was expected for each text, and {label!r} was given", "bad-label", label)
    if isinstance(label, float) and not label.is_integer():
        raise BothwaysError(
            f"Unknown label type: {label} is a fraction, not a class; for numbers, use finetune with "
            "classify.kind=regression",
            "bad-label",
            label,
        )
    return label
