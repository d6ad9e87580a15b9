"""A regressor on texts with scikit-learn's interface: fit, predict, score."""

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.errors import BothwaysError
from bothways.predict.estimator import TextEstimator, checked_weights, matched, targets_of, value_errors
from bothways.text.columns import Columns


class Regressor(TextEstimator):
    """Fine-tunes an encoder on texts, or on pairs of texts, and numbers.

        regressor = Regressor("my-model").fit(pairs, similarities)
        regressor.predict([("a cat", "the cat")])

    The settings are those of `Classifier`. Numbers are learned as they are, by the mean squared error: for numbers far
    from 0 to 5, scikit-learn's TransformedTargetRegressor scales them.
    """

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
    ) -> "Regressor":
        """Fine-tune on texts X with numbers y. The other arguments: as in `Classifier.fit`."""
        y, self._table = targets_of(X, y, label), Columns(text or None, pair or None)
        texts = matched(X, y, type(self).__name__, self._table)
        self._train(texts, _numbers(y).tolist(), sample_weight, {"kind": "regression"})
        return self

    @value_errors()
    def predict(self, X: Iterable[Any]) -> NDArray[np.float64]:  # noqa: N803
        """(texts,) numbers."""
        return self._decoded(X)[:, 0]

    @value_errors()
    def score(self, X: Iterable[Any], y: Any, sample_weight: Any = None) -> float:  # noqa: N803
        """R², the coefficient of determination; nan for fewer than two texts."""
        texts = self._matched(X, y)
        weights, gold = np.array(checked_weights(sample_weight, len(texts))), _numbers(y)
        if len(gold) < 2:
            return float("nan")
        errors = float((weights * (gold - self.predict(texts)) ** 2).sum())
        total = float((weights * (gold - np.average(gold, weights=weights)) ** 2).sum())
        return 1 - errors / total if total else float(errors == 0)

    def __sklearn_tags__(self) -> Any:
        """scikit-learn's tags. Only scikit-learn calls this, so it is imported already."""
        utils = sys.modules["sklearn.utils"]
        return utils.Tags(
            estimator_type="regressor",
            target_tags=utils.TargetTags(required=True),
            regressor_tags=utils.RegressorTags(),
            input_tags=utils.InputTags(string=True, two_d_array=False),
        )


def _numbers(y: Any) -> NDArray[np.float64]:
    try:
        found = np.asarray(y, np.float64)
    except (TypeError, ValueError):
        raise BothwaysError("y has labels that are no numbers: a Classifier learns names", "bad-label") from None
    if found.ndim != 1 or not np.isfinite(found).all():
        raise BothwaysError("y has missing or infinite numbers, or several per text: expected one each", "bad-label")
    return found
