"""Places in token sequences at which a masked language model is asked: for fill-mask and for sentence scores.

S sequences · M places of all sequences together · V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from bothways.engine.engine import Engine
from bothways.engine.sequences import Indices, Sequences, on_device, ragged
from bothways.model.batch import Batch

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

    def in_batch(self, batch: Batch, picked: Indices) -> tuple[Tensor, Tensor]:
        """The places of a batch, counted through it, and their tokens."""
        lengths, counts = self.sequences.lengths[picked], self.counts[picked]
        rows = ragged((np.cumsum(self.counts) - self.counts)[picked], counts)
        at = np.repeat(np.cumsum(lengths) - lengths, counts) + self.places[rows]
        device = batch.ids.device
        return on_device(at, device), on_device(self.tokens[rows].astype(np.int64), device)


def places_of(chunk: Places) -> Indices:
    """The number of places of each sequence."""
    return chunk.counts


def log_probabilities(engine: Engine) -> Callable[[Batch, Places, Indices], Tensor]:
    """For each place, the log-probability of its token: as the prediction, or as not replaced."""
    model = engine.model

    def forward(batch: Batch, chunk: Places, picked: Indices) -> Tensor:
        states = engine.states(batch)
        at, tokens = chunk.in_batch(batch, picked)
        if "masked" not in model.heads:
            return F.logsigmoid(-model.logits("replaced", states, batch)[at, 0].float())
        parts = zip(at.split(_PLACES_AT_ONCE), tokens.split(_PLACES_AT_ONCE), strict=True)
        found = [-F.cross_entropy(model.masked(states[some]).float(), own, reduction="none") for some, own in parts]
        return torch.cat(found)

    return forward


def most_probable(engine: Engine, count: int, excluded: Tensor) -> Callable[[Batch, Places, Indices], Tensor]:
    """For each place, the `count` most probable tokens: their log-probabilities, then their ids.

    `excluded`: (lists, V) the tokens that are no answer; each place has one of these lists.
    """
    model, excluded = engine.model, excluded.to(engine.device)

    def forward(batch: Batch, chunk: Places, picked: Indices) -> Tensor:
        states = engine.states(batch)
        at, lists = chunk.in_batch(batch, picked)
        found = []
        for some, own in zip(at.split(_PLACES_AT_ONCE), lists.split(_PLACES_AT_ONCE), strict=True):
            logs = model.masked(states[some]).float().log_softmax(-1)
            # After the softmax: the other tokens keep the model's own probabilities.
            best, tokens = logs.masked_fill(excluded[own], -torch.inf).topk(min(count, logs.shape[1]))
            found.append(torch.cat([best, tokens.float()], 1))
        return torch.cat(found)

    return forward
