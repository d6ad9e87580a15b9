"""What `Classifier` and `Regressor` share: scikit-learn's parameters, fine-tuning on texts, predictions."""

import inspect
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bothways.data.examples import Gold
from bothways.data.texts import read_texts_labelled
from bothways.errors import BothwaysError, name_list
from bothways.model.device import find_device
from bothways.predict.given_texts import require_several
from bothways.predict.predictor import Predictor
from bothways.progress import interactive_progress, notebook_progress
from bothways.tasks.classify import as_text
from bothways.tasks.finetune import finetune
from bothways.tasks.recipe import finetune_recipe
from bothways.text.columns import Columns
from bothways.text.frames import as_files, frame_columns, frame_kind
from bothways.train.protocol import Event
from bothways.train.report import StepProgress


class EstimatorError(BothwaysError, ValueError):
    """An error of an estimator's input or settings: a ValueError, as scikit-learn expects."""


class NotFittedError(EstimatorError, AttributeError):
    """Raised before `fit`. Where scikit-learn is imported, it is an instance of its NotFittedError too."""


@contextmanager
def value_errors() -> Iterator[None]:
    """Raise errors as EstimatorError."""
    try:
        yield
    except EstimatorError:
        raise
    except BothwaysError as error:
        raise EstimatorError(str(error), error.code, error.value) from error


class TextEstimator:
    """An encoder that is fine-tuned on texts by `fit`. Constructors only store, as scikit-learn wants it."""

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

    _table = Columns()
    """The columns of a table that were named in `fit`, for predictions from other tables."""

    def _matched(self, texts: Iterable[Any], labels: Any) -> list[Any]:
        """The texts to score, with a label each."""
        return matched(texts, labels, type(self).__name__, self._table if frame_kind(texts) else Columns())

    def _train(
        self, texts: Sequence[Any], golds: Sequence[Gold], sample_weight: Any, settings: Mapping[str, Any]
    ) -> None:
        """Fine-tune on texts with golds. `settings`: the [classify] part of the recipe."""
        weights = checked_weights(sample_weight, len(texts))
        examples = [
            replace(as_text(text), gold=gold, weight=weight)
            for text, gold, weight in zip(texts, golds, weights, strict=True)
            if weight > 0  # as if it were not there
        ]
        # `epochs` does not apply if a setting gives the length of the run in another unit.
        has_length = any(s.startswith(("run.steps", "run.minutes")) for s in self.settings)
        recipe = finetune_recipe(
            {
                "task": "classify",
                "model": _without_none(init=None if self.model is None else str(self.model)),
                "classify": dict(settings),
                "run": _without_none(
                    epochs=None if has_length else self.epochs,
                    batch_size=self.batch_size,
                    seed=self.seed,
                    device=find_device(self.device).type,
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
                # Not an error: scikit-learn's searches would go on with the next fit.
                raise KeyboardInterrupt("fit was stopped before the end: with `out`, the same call resumes")
            self.predictor_ = Predictor.load(found.folder, device=self.device, dtype=self.dtype)

    def _decoded(self, texts: Iterable[Any]) -> NDArray[np.float64]:
        """(texts, labels) probabilities or numbers, in the order of the model's labels."""
        if not hasattr(self, "predictor_"):
            raise _not_fitted(type(self).__name__)
        texts = _texts(texts, self._table if frame_kind(texts) else Columns())
        require_several(texts)
        size = len(texts) if isinstance(texts, Sized) else None
        with notebook_progress("predicting", size) if self.progress else nullcontext() as bar:
            given = texts if bar is None else bar.over(texts)
            rows = [row for _, row in self.predictor_.decode_all(map(as_text, given))]
        return np.asarray(rows, np.float64).reshape(-1, len(self.predictor_.labels))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The settings by name, for scikit-learn's clone and searches."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    @value_errors()
    def set_params(self, **settings: Any) -> Self:
        known = self.get_params()
        for name, value in settings.items():
            if name not in known:
                raise BothwaysError(
                    f"a {type(self).__name__} has no setting {name!r}: expected {name_list(known)}",
                    "unknown-setting",
                    name,
                )
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self)).parameters
        changed = [f"{name}={value!r}" for name, value in self.get_params().items() if value != defaults[name].default]
        return f"{type(self).__name__}({', '.join(changed)})"


def matched(texts: Iterable[Any], labels: Any, name: str, columns: Columns) -> list[Any]:
    """The texts, if there is a label for each. `name`: that of the estimator; `columns`: those of a table."""
    texts = _texts(texts, columns)
    require_several(texts)
    found = list(texts)
    if labels is None:  # scikit-learn looks for these words
        raise BothwaysError(f"{name} requires y to be passed, but the target y is None", "no-labels")
    rows = labels.shape[0] if hasattr(labels, "shape") and labels.shape else len(labels)  # a sparse matrix has no len
    if len(found) != rows:
        raise BothwaysError(
            f"{len(found)} texts and {rows} labels were given: expected one label for each text",
            "length-mismatch",
            (len(found), rows),
        )
    if not found:
        raise BothwaysError("no texts were given: expected at least one", "no-data")
    return found


def checked_weights(sample_weight: Any, count: int) -> list[float]:
    """The weight of each row; 1 if none are given."""
    if sample_weight is None:
        return [1.0] * count
    weights = np.asarray(sample_weight, np.float64)
    if weights.shape != (count,):
        raise BothwaysError(
            f"sample_weight has the shape {weights.shape}: expected one weight for each of {count} texts",
            "shape-mismatch",
            weights.shape,
        )
    if not (np.isfinite(weights) & (weights >= 0)).all():
        raise BothwaysError("sample_weight has a negative or infinite number: expected 0 or more", "out-of-range")
    if not weights.any():  # scikit-learn looks for these words
        raise BothwaysError("Sample weights must contain at least one non-zero number", "no-data")
    return [float(weight) for weight in weights]


def _ignore(event: Event) -> None:
    """A listener in place of a notebook's progress bar."""


def _without_none(**settings: Any) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


def _not_fitted(name: str) -> NotFittedError:
    theirs = sys.modules.get("sklearn.exceptions")
    kind: Any = NotFittedError
    if theirs is not None:  # made here, so it must say how to unpickle it: joblib sends errors between processes
        bases, reduce = (NotFittedError, theirs.NotFittedError), {"__reduce__": lambda self: (_not_fitted, (name,))}
        kind = type("NotFittedError", bases, reduce)
    error: NotFittedError = kind(f"this {name} is not fitted yet: call fit first", "not-fitted")
    return error


def _texts(given: Any, columns: Columns) -> Any:
    """The texts or pairs of a table in memory; anything else as it is."""
    if not frame_kind(given):
        if columns != Columns():
            raise BothwaysError("`text`, `pair` and `label` name columns of a table, and none was given", "no-table")
        return given
    with as_files(given) as names:
        rows = read_texts_labelled(names, Columns(columns.text, columns.pair, reads_label=False))
        return [row.texts[0] if len(row.texts) == 1 else row.texts for row in rows]


def targets_of(texts: Any, y: Any, label: str) -> Any:
    """The targets: y, or the column `label` of a table of texts; `joy+awe` names columns of 0 and 1."""
    if not label:
        return y
    if y is not None:
        raise BothwaysError("the labels were given twice, as y and by `label`: leave one out", "bad-combination", label)
    kind, names = frame_kind(texts), frame_columns(texts) if frame_kind(texts) else ()
    if label not in names and "+" in label:
        several = label.split("+")
        columns = [list(targets_of(texts, None, name)) for name in several]
        if kind in ("pandas", "polars"):
            return texts[several]
        return [[name for name, yes in zip(several, row, strict=True) if yes] for row in zip(*columns, strict=True)]
    if label not in names:
        says = f"there is no column {label!r}, which `label` names: the columns are {name_list(names) or 'none'}"
        raise BothwaysError(says, "no-column", label)
    found = texts[label]
    return found.to_pylist() if hasattr(found, "to_pylist") else found if hasattr(found, "to_numpy") else list(found)
