"""Places in token sequences at which a masked language model is asked: for fill-mask and for sentence scores.

S sequences · M places of all sequences together · V vocabulary.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.engine.engine import Engine
from bothways.engine.sequences import Indices, Sequences, ragged
from bothways.model import arrays
from bothways.model.arrays import Array

_PLACES_AT_ONCE = 8_192
"""Each has a number for every token of the vocabulary: more at once would take gigabytes."""


@dataclass(frozen=True)
class Places:
    """Sequences, and the places in them that are asked about."""

    sequences: Sequences
    counts: Indices
    """(S,) the number of places of each sequence."""
    places: Indices
    """(M,) the position of each in its own sequence."""
    tokens: Indices
    """(M,) the token that is scored at each place; for `most_probable` the number of its list of excluded tokens."""

    def in_batch(self, picked: Indices) -> tuple[Indices, Indices]:
        """The places of a batch, counted through it, and their tokens."""
        lengths, counts = self.sequences.lengths[picked], self.counts[picked]
        rows = ragged((np.cumsum(self.counts) - self.counts)[picked], counts)
        at: Indices = np.repeat(np.cumsum(lengths) - lengths, counts) + self.places[rows]
        return at, self.tokens[rows].astype(np.int64)


def places_of(chunk: Places) -> Indices:
    """The number of places of each sequence."""
    return chunk.counts


def log_probabilities(engine: Engine) -> Callable[[Any, Places, Indices], Array]:
    """For each place, the log-probability of its token: as the prediction, or as not replaced."""
    array = engine.backend.array

    def forward(batch: Any, chunk: Places, picked: Indices) -> Array:
        at, tokens = chunk.in_batch(picked)
        if "masked" not in engine.model.heads:
            return arrays.log_sigmoid(-engine.calls.replaced(batch)[array(at)])
        logits_at, found = engine.calls.masked(batch), []
        for part in _parts(len(at)):
            logs = arrays.log_softmax(logits_at(array(at[part])))
            found.append(logs[array(np.arange(len(logs))), array(tokens[part])])
        return arrays.joined(found, 0)

    return forward


def most_probable(engine: Engine, count: int, excluded: NDArray[np.bool_]) -> Callable[[Any, Places, Indices], Array]:
    """For each place, the `count` most probable tokens: their log-probabilities, then their ids.

    `excluded`: (lists, V) the tokens that are no answer; each place has one of these lists.
    """
    array = engine.backend.array
    never = array(excluded)

    def forward(batch: Any, chunk: Places, picked: Indices) -> Array:
        at, lists = chunk.in_batch(picked)
        logits_at, found = engine.calls.masked(batch), []
        for part in _parts(len(at)):
            logs = arrays.log_softmax(logits_at(array(at[part])))
            # After the softmax: the other tokens keep the model's own probabilities.
            logs[never[array(lists[part])]] = -np.inf
            best, tokens = arrays.largest(logs, count)
            found.append(arrays.joined([best, arrays.to_fp32(tokens)]))
        return arrays.joined(found, 0)

    return forward


def _parts(places: int) -> Iterator[slice]:
    return (slice(first, first + _PLACES_AT_ONCE) for first in range(0, max(places, 1), _PLACES_AT_ONCE))
