"""The vectors of texts from the pooled values and weights of their windows.

S windows · W width of the result.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.engine.backend import Backend
from bothways.engine.sequences import Indices
from bothways.model import arrays
from bothways.model.arrays import Array
from bothways.model.pooling import Partial
from bothways.predict.features import TextRecipe

Vectors = NDArray[np.float32]


def joined(rows: Vectors, counts: Indices, recipe: TextRecipe, backend: Backend) -> Vectors:
    """The vectors of texts, of which each has so many windows."""
    with backend.computing():
        return _fetched(recipe.finish(recipe.pooling.finish(_merged(rows, counts, recipe, backend))), backend)


def vector_of_windows(chunks: Iterable[tuple[Any, Vectors]], recipe: TextRecipe, backend: Backend) -> Vectors:
    """(1, W) the vector of one text, whose windows come in chunks: first of each chunk, then of all."""
    parts = []
    for _, rows in chunks:
        with backend.computing():
            whole = _merged(rows, np.array([len(rows)]), recipe, backend)
            parts.append(_fetched(arrays.joined([whole.values.reshape(1, -1), whole.weights]), backend))
    return joined(np.concatenate(parts), np.array([len(parts)]), recipe, backend)


def _merged(rows: Vectors, counts: Indices, recipe: TextRecipe, backend: Backend) -> Partial:
    found = backend.array(rows)
    modes = len(recipe.pooling.modes)
    part = Partial(found[:, :-modes].reshape(len(rows), modes, -1), found[:, -modes:])
    owners = np.repeat(np.arange(len(counts)), counts)
    return recipe.pooling.merged(part, backend.array(owners), backend.array(counts))


def _fetched(found: Array, backend: Backend) -> Vectors:
    rows, done = backend.fetch(found)
    if done is not None:
        done.synchronize()
    return np.asarray(rows)
