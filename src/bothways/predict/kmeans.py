"""k-means on vectors, the same for the same seed.

N vectors · K clusters · W width
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.errors import require_range

MAX_ROUNDS = 300
_AT_ONCE = 2**24
"""Distances that are computed at a time."""


def kmeans(vectors: NDArray[np.float32], clusters: int, seed: int = 0) -> NDArray[np.int64]:
    """The cluster of each vector, from 0 to `clusters` - 1. vectors: (N, W) → (N,).

    Lloyd's algorithm from centres drawn by k-means++ with this seed, until no vector changes its cluster or for 300
    rounds. A cluster that becomes empty gets the vector that is farthest from its centre.

    >>> points = np.array([[0, 0], [0, 1], [9, 9], [9, 8]], np.float32)
    >>> found = kmeans(points, 2)
    >>> found[0] == found[1], found[1] == found[2], found[2] == found[3]
    (np.True_, np.False_, np.True_)
    """
    require_range("clusters", clusters, 1 <= clusters <= len(vectors), f"from 1 to {len(vectors)}, one for each vector")
    points = torch.from_numpy(np.ascontiguousarray(vectors, np.float32))
    centres = points[first_centres(points, clusters, np.random.default_rng(seed))]
    owners = torch.full((len(points),), -1)
    for _ in range(MAX_ROUNDS):
        distances, nearest = _nearest(points, centres)
        _fill_empty(distances, nearest, clusters)
        if torch.equal(nearest, owners):
            break
        owners = nearest
        sums = torch.zeros_like(centres).index_add_(0, owners, points)
        centres = sums / torch.bincount(owners, minlength=clusters)[:, None]
    return owners.numpy()


def first_centres(points: Tensor, clusters: int, generator: np.random.Generator) -> list[int]:
    """k-means++ (Arthur and Vassilvitskii, 2007): each next one with a probability by its squared distance."""
    chosen = [int(generator.integers(len(points)))]
    distances = _squared(points, points[chosen]).reshape(-1).double().numpy()
    while len(chosen) < clusters:
        total = distances.sum()
        # If all others are equal to a centre, any vector that is not chosen will do.
        chances = distances / total if total > 0 else np.isin(np.arange(len(points)), chosen, invert=True).astype(float)
        chosen.append(int(generator.choice(len(points), p=chances / chances.sum())))
        new = _squared(points, points[chosen[-1:]]).reshape(-1).double().numpy()
        distances = np.minimum(distances, new)
        distances[chosen] = 0
    return chosen


def _nearest(points: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """The squared distance of each vector to its nearest centre, and which that is; the first of equal ones."""
    rows = max(1, _AT_ONCE // len(centres))
    found = [_squared(some, centres).min(1) for some in points.split(rows)]
    return torch.cat([one.values for one in found]), torch.cat([one.indices for one in found])


def _squared(points: Tensor, centres: Tensor) -> Tensor:
    """Squared distances. (N, W), (K, W) → (N, K)."""
    products = points @ centres.T
    lengths = (points**2).sum(1, keepdim=True) + (centres**2).sum(1)
    return (lengths - 2 * products).clamp(min=0)


def _fill_empty(distances: Tensor, nearest: Tensor, clusters: int) -> None:
    """Give each empty cluster the vector that is farthest from its centre, of a cluster with several."""
    counts = torch.bincount(nearest, minlength=clusters)
    order = iter(torch.argsort(distances, descending=True, stable=True).tolist())
    for empty in (counts == 0).nonzero().reshape(-1).tolist():
        farthest = next(place for place in order if counts[nearest[place]] > 1)
        counts[nearest[farthest]] -= 1
        counts[empty] += 1
        nearest[farthest] = empty
