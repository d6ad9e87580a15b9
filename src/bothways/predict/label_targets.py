"""The targets y of a classifier: one label per text, or several in any form that scikit-learn's users have.

n texts · L labels
"""

import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bothways.data.examples import Gold
from bothways.data.several_labels import evident_separator, list_cell
from bothways.errors import BothwaysError
from bothways.text.frames import frame_columns, frame_kind

_ROWS = (list, tuple, set, frozenset, np.ndarray)


@dataclass(frozen=True, eq=False)
class LabelTargets:
    """The labels of texts, and how they were given, without the texts themselves: see `like_given`."""

    classes: NDArray[Any]
    """The labels, in the order of the columns of probabilities."""
    form: Literal["single", "array", "rows", "pandas", "polars"]
    like: Any = None
    """The dtype of an array, the type of a row, an empty table."""

    @property
    def names(self) -> list[str]:
        """The labels as a model has them."""
        return [str(label) for label in self.classes.tolist()]

    def like_given(self, chosen: NDArray[np.bool_]) -> Any:
        """Several labels, in the form in which y was given. chosen: (n, L)."""
        if self.form == "rows":
            labels = self.classes.tolist()
            return [self.like(label for label, yes in zip(labels, row, strict=True) if yes) for row in chosen.tolist()]
        if self.form == "array":
            return chosen.astype(self.like)
        dtype = self.like.to_numpy().dtype
        bits = chosen.astype(np.int64 if dtype.kind == "O" else dtype)
        return type(self.like)(bits, **{"columns" if self.form == "pandas" else "schema": list(self.like.columns)})

    def are_equal(self, predicted: Any, y: Any) -> NDArray[np.bool_]:
        """(n,) Whether the labels of each text are the same, both in the form of y."""
        if self.form == "single":
            return np.asarray(predicted == np.asarray(y))
        if self.form == "rows":
            rows = zip(predicted, _with_lists(y), strict=True)
            return np.array([set(map(str, one)) == set(map(str, other)) for one, other in rows], bool)
        return np.asarray((_matrix(predicted) == _matrix(y)).all(1))


def read_targets(y: Any) -> tuple[LabelTargets, list[Gold]]:
    """The form of y, and the names of the labels of each text: one, or a tuple of several."""
    if hasattr(y, "toarray"):
        y = _matrix(y)
    if (kind := frame_kind(y)) in ("pandas", "polars"):
        return _indicators(_matrix(y), np.array(frame_columns(y)), "pandas" if kind == "pandas" else "polars", y[:0])
    if isinstance(y, np.ndarray) and y.ndim > 1:
        return _indicators(y, None, "array", y.dtype)
    rows = _with_lists(y)
    if any(isinstance(row, _ROWS) for row in rows):
        return _several(rows)
    labels = [_label(row) for row in rows]
    targets = LabelTargets(_classes(labels), "single")
    names = dict(zip(targets.classes.tolist(), targets.names, strict=True))
    return targets, [names[label] for label in labels]


def warn_of_several(golds: Sequence[Gold]) -> None:
    """Warn if labels such as joy|awe look like several: each is learned as one class."""
    names = Counter(str(gold) for gold in golds)
    if mark := evident_separator(names):
        joined = next(name for name in names if mark in name)
        says = f"labels such as {joined!r} look like several, separated by {mark}, and each is learned as one class"
        advice = f"if they are several, pass lists: [label.split({mark!r}) for label in y]"
        warnings.warn(f"{says}: {advice}", stacklevel=2)


def _with_lists(y: Iterable[Any]) -> list[Any]:
    """The rows of y. Cells such as `['joy', 'awe']`, in which tables write lists, are lists, as in files."""
    rows = list(y)
    if not all(isinstance(row, str) for row in rows):
        return rows
    lists = [list_cell(row, f"y, row {number}") for number, row in enumerate(rows, 1)]
    if all(found is None for found in lists):
        return rows
    return [row if found is None and row else found or [] for row, found in zip(rows, lists, strict=True)]


def _matrix(y: Any) -> NDArray[Any]:
    """(n, L) zeros and ones: of a table, of a sparse matrix of scipy, of lists."""
    return np.asarray(y.to_numpy() if frame_kind(y) else y.toarray() if hasattr(y, "toarray") else y)


def _several(rows: Sequence[Any]) -> tuple[LabelTargets, list[Gold]]:
    """Lists or sets of labels; lists of zeros and ones of one length are an array, as in scikit-learn."""
    if odd := [row for row in rows if not isinstance(row, _ROWS)]:
        raise BothwaysError(
            f"some texts have a list of labels, and one has {odd[0]!r}: expected a list for each", "bad-label", odd[0]
        )
    sizes = {len(row) for row in rows}
    in_order = not any(isinstance(row, set | frozenset) for row in rows)
    if in_order and len(sizes) == 1 and min(sizes) > 1 and all(_is_bit(part) for row in rows for part in row):
        array = np.asarray(rows)
        return _indicators(array, None, "array", array.dtype)
    golds = [[_label(part) for part in row] for row in rows]
    targets = LabelTargets(_classes(part for row in golds for part in row), "rows", _row_type(rows[0]))
    return targets, [tuple(dict.fromkeys(map(str, row))) for row in golds]


def _row_type(row: Any) -> type:
    return list if isinstance(row, np.ndarray) else type(row)


def _indicators(
    matrix: NDArray[Any], classes: NDArray[Any] | None, form: Literal["array", "pandas", "polars"], like: Any
) -> tuple[LabelTargets, list[Gold]]:
    """A column of 0 and 1 for each label. matrix: (n, L)."""
    if matrix.ndim != 2 or matrix.shape[1] < 2 or not all(map(_is_bit, matrix.reshape(-1).tolist())):
        raise BothwaysError(
            f"y has the shape {matrix.shape}: expected one label for each text, or two columns or more of 0 and 1",
            "bad-label",
            matrix.shape,
        )
    targets = LabelTargets(np.arange(matrix.shape[1]) if classes is None else classes, form, like)
    names = targets.names
    return targets, [tuple(names[i] for i in np.flatnonzero(row)) for row in matrix.astype(np.float64)]


def _is_bit(value: Any) -> bool:
    return not isinstance(value, str) and value is not None and bool(np.ndim(value) == 0 and value in (0, 1))


def _classes(labels: Iterable[Any]) -> NDArray[Any]:
    given = list(labels)
    if len({isinstance(label, str) for label in given}) > 1:
        raise BothwaysError("some labels are strings and some are not: expected one or the other", "mixed-labels")
    return np.unique(given) if given else np.array([], np.str_)


def _label(label: Any) -> Any:
    """The label as a plain Python value."""
    label = label.item() if isinstance(label, np.generic) else label
    if label is None or isinstance(label, _ROWS) or label != label:
        raise BothwaysError(f"one label was expected for each text, and {label!r} was given", "bad-label", label)
    if isinstance(label, float) and not label.is_integer():
        raise BothwaysError(
            f"Unknown label type: {label} is a fraction, not a class; a Regressor learns numbers", "bad-label", label
        )
    return label
