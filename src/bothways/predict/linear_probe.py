"""A linear probe: logistic regression on vectors, fitted to convergence. It has no randomness.

N vectors · C classes · W width · P rows of weights: C, or 1 for two classes
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.errors import BothwaysError
from bothways.progress import Watch, watch_nothing

_AT_ONCE = 8_192
"""Vectors that are in 64 bits at a time."""
_ROUNDS, _STEPS = 100, 20
_FLAT = 1e-8
"""The largest slope at which the minimum counts as found."""
_NOISE = 1e-13
"""A round that lowers the loss by a smaller share of it is the last one."""


@dataclass(frozen=True, eq=False)
class LinearProbe:
    """A fitted probe."""

    weight: Tensor
    """(P, W) in 64 bits."""
    bias: Tensor
    """(P,)."""

    def probabilities(self, vectors: NDArray[np.float32]) -> NDArray[np.float64]:
        """The probability of each class. (N, W) → (N, C)."""
        parts = [_logits(some, self.weight, self.bias).softmax(1) for some in _parts(vectors)]
        found: NDArray[np.float64] = torch.cat(parts).numpy()
        return found


def fit_probe(
    vectors: NDArray[np.float32],
    labels: NDArray[np.int64],
    classes: int,
    *,
    c: float = 1.0,
    watch: Watch = watch_nothing,
) -> LinearProbe:
    """Logistic regression with an L2 penalty. vectors: (N, W), labels: (N,) class indices, each class at least once.

    It minimises `c` times the sum of the losses plus half the squared weights, without the bias: that of scikit-learn,
    also for two classes.

    >>> probe = fit_probe(np.array([[-1], [1], [2]], np.float32), np.array([0, 1, 1]), 2)
    >>> probe.probabilities(np.array([[-3], [3]], np.float32)).argmax(1).tolist()
    [0, 1]
    """
    if classes < 2 or len(np.unique(labels)) != classes:
        found = len(np.unique(labels))
        raise BothwaysError(f"{found} classes have examples: expected two or more, each with some", "bad-labels", found)
    rows = classes if classes > 2 else 1
    weight = torch.zeros((rows, vectors.shape[1]), dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(rows, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weight, bias],
        max_iter=_STEPS,
        history_size=20,
        tolerance_grad=_FLAT,
        tolerance_change=1e-14,
        line_search_fn="strong_wolfe",
    )
    gold = torch.from_numpy(np.asarray(labels, np.int64))

    def loss() -> float:
        return _loss(vectors, gold, weight, bias, c)

    before = float("inf")
    for _ in watch(range(_ROUNDS), "fitting the probe"):
        now = float(optimizer.step(loss))  # the loss before this round
        if before - now <= _NOISE * now:
            break
        before = now
        if all(part.grad is not None and float(part.grad.abs().max()) <= _FLAT for part in (weight, bias)):
            break
    return LinearProbe(weight.detach(), bias.detach())


def _loss(vectors: NDArray[np.float32], gold: Tensor, weight: Tensor, bias: Tensor, c: float) -> float:
    """The mean loss with its penalty; the gradients are left in `weight` and `bias`."""
    count = len(vectors)
    weight.grad, bias.grad = weight.detach() / (c * count), torch.zeros_like(bias)
    total = float((weight.detach() ** 2).sum()) / (2 * c * count)
    begin = 0
    with torch.no_grad():
        for some in _parts(vectors):
            mine = gold[begin : begin + len(some), None]
            begin += len(some)
            logs = _logits(some, weight, bias).log_softmax(1)
            total -= float(logs.gather(1, mine).sum()) / count
            slopes = logs.exp().scatter_add_(1, mine, torch.full(mine.shape, -1.0, dtype=torch.float64))
            slopes = slopes[:, -len(weight) :] / count
            weight.grad += slopes.T @ some
            bias.grad += slopes.sum(0)
    return total


def _logits(some: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Of two classes the first has the logit 0. (N, W) → (N, C)."""
    logits = some @ weight.T + bias
    return torch.cat([torch.zeros_like(logits), logits], 1) if len(weight) == 1 else logits


def _parts(vectors: NDArray[np.float32]) -> Iterator[Tensor]:
    """Some vectors at a time, in 64 bits."""
    for begin in range(0, len(vectors), _AT_ONCE):
        yield torch.from_numpy(vectors[begin : begin + _AT_ONCE].astype(np.float64))
