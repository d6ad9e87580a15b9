"""Pseudo-perplexity: each token is predicted from all the others (Salazar et al. 2020)."""

import math
from collections.abc import Iterator

import numpy as np

from bothways.hash_rng import Keys
from bothways.pretraining.loader import Loader, collate
from bothways.pretraining.objective import BatchBuilder, Capacity
from bothways.pretraining.sampler import RawSequences
from bothways.pretraining.select import Selection
from bothways.pretraining.shards import Numbers
from bothways.train.protocol import Forward
from bothways.train.ranks import Ranks

TOKENS = 1_000
"""Number of predicted tokens, each at the cost of a sequence; fewer if the evaluation has fewer sequences."""


def pseudo_perplexity(
    loader: Loader, forward: Forward, capacity: Capacity, ranks: Ranks, tokens: int = TOKENS
) -> float:
    """exp of the mean loss over about the first `tokens` held-out tokens, each masked alone."""
    loss = count = 0.0
    for (rows, predicted), counted in ranks.share(_chunks(loader, capacity, tokens)):
        builder, masked = _one_by_one(rows, predicted)
        for objective in loader.objectives:
            objective.prepare(builder, capacity, loader.rate, masked)
        loss += counted * float(forward(collate(builder, capacity if loader.static_shapes else None))[0])
        count += counted * len(predicted)
    total, terms = ranks.sum([loss, count])
    return math.exp(min(total / max(terms, 1), 700.0))


def _chunks(loader: Loader, capacity: Capacity, tokens: int) -> Iterator[tuple[RawSequences, Numbers]]:
    """A sequence, and tokens of it to predict: at most as many as copies of the sequence fit into a batch."""
    seen = 0
    for number in range(loader.mixture.size):
        rows = loader.mixture.build(loader.mixture.plan(np.array([number])))
        predicted = np.flatnonzero(~rows.special)
        bounds = [
            bound for one in loader.objectives if (bound := one.max_predictions(capacity, loader.rate)) is not None
        ]
        most = max(1, min(capacity.sequences, capacity.tokens // len(rows.ids), *bounds))
        for start in range(0, len(predicted), most):
            yield rows, predicted[start : start + most]
        seen += len(predicted)
        if seen >= tokens:
            return


def _one_by_one(rows: RawSequences, predicted: Numbers) -> tuple[BatchBuilder, Numbers]:
    """One copy of the sequence for each predicted token, and the token to mask in each copy."""
    copies, length = len(predicted), len(rows.ids)
    keys: Keys = np.repeat(rows.keys, copies)
    pair_labels = None if rows.pair_labels is None else np.repeat(rows.pair_labels, copies)
    many = RawSequences(
        np.tile(rows.ids, copies),
        np.tile(rows.segments, copies),
        np.arange(copies + 1) * length,
        np.tile(rows.word_starts, copies),
        np.tile(rows.special, copies),
        keys,
        pair_labels,
    )
    place = np.arange(copies) * length + predicted
    return BatchBuilder(many, many.ids, selection=Selection(place, place + 1)), place
