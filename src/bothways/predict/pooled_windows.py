"""The vectors of texts from the pooled values and weights of their windows.

S windows · W width of the result.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.engine.sequences import Indices
from bothways.model.pooling import Partial
from bothways.predict.features import TextRecipe

Vectors = NDArray[np.float32]


def joined(rows: Vectors, counts: Indices, recipe: TextRecipe, device: torch.device) -> Vectors:
    """The vectors of texts, of which each has so many windows."""
    with torch.inference_mode():
        vectors: Vectors = (
            recipe.finish(recipe.pooling.finish(_merged(rows, counts, recipe, device))).float().cpu().numpy()
        )
    return vectors


def vector_of_windows(chunks: Iterable[tuple[Any, Vectors]], recipe: TextRecipe, device: torch.device) -> Vectors:
    """(1, W) the vector of one text, whose windows come in chunks: first of each chunk, then of all."""
    parts = []
    for _, rows in chunks:
        with torch.inference_mode():
            whole = _merged(rows, np.array([len(rows)]), recipe, device)
            parts.append(torch.cat([whole.values.flatten(1), whole.weights], 1).cpu().numpy())
    return joined(np.concatenate(parts), np.array([len(parts)]), recipe, device)


def _merged(rows: Vectors, counts: Indices, recipe: TextRecipe, device: torch.device) -> Partial:
    found: Tensor = torch.from_numpy(rows).to(device)
    modes = len(recipe.pooling.modes)
    part = Partial(found[:, :-modes].unflatten(1, (modes, -1)), found[:, -modes:])
    return recipe.pooling.merged(part, torch.from_numpy(counts).to(device))
