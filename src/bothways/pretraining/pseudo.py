"""Pseudo-perplexity: how surprised a model is by each token when it sees all the others (Salazar et al. 2020)."""

import math
from collections.abc import Iterator

import numpy as np

from bothways.hash_rng import Keys
from bothways.pretraining.loader import Loader, collate
from bothways.pretraining.objective import Draft, Room
from bothways.pretraining.sampler import RawSequences
from bothways.pretraining.select import Selection
from bothways.pretraining.shards import Numbers
from bothways.train.protocol import Forward
from bothways.train.ranks import Ranks

TOKENS = 1_000
"""Predicted one by one, each at the cost of a sequence; fewer where the evaluation has fewer sequences than that."""


def pseudo_perplexity(loader: Loader, forward: Forward, room: Room, ranks: Ranks, tokens: int = TOKENS) -> float:
    """exp of the mean loss over the first `tokens` held-out tokens or a few more, each masked alone."""
    loss = count = 0.0
    for (rows, asked), counted in ranks.share(_questions(loader, room, tokens)):
        draft, masked = _one_by_one(rows, asked)
        for objective in loader.objectives:
            objective.prepare(draft, room, loader.rate, masked)
        loss += counted * float(forward(collate(draft, room if loader.static_shapes else None))[0])
        count += counted * len(asked)
    total, terms = ranks.sum([loss, count])
    return math.exp(min(total / max(terms, 1), 700.0))


def _questions(loader: Loader, room: Room, tokens: int) -> Iterator[tuple[RawSequences, Numbers]]:
    """Sequences, and as many of their tokens to be asked for as copies of the sequence fit into a batch."""
    seen = 0
    for number in range(loader.mixture.size):
        rows = loader.mixture.build(loader.mixture.plan(np.array([number])))
        asked = np.flatnonzero(~rows.special)
        bounds = [bound for one in loader.objectives if (bound := one.most_asked(room, loader.rate)) is not None]
        most = max(1, min(room.sequences, room.tokens // len(rows.ids), *bounds))
        for start in range(0, len(asked), most):
            yield rows, asked[start : start + most]
        seen += len(asked)
        if seen >= tokens:
            return


def _one_by_one(rows: RawSequences, asked: Numbers) -> tuple[Draft, Numbers]:
    """As many copies of one sequence as tokens are asked for, and which token is to be masked in each."""
    copies, length = len(asked), len(rows.ids)
    keys: Keys = np.repeat(rows.keys, copies)
    follows = None if rows.follows is None else np.repeat(rows.follows, copies)
    many = RawSequences(
        np.tile(rows.ids, copies),
        np.tile(rows.segments, copies),
        np.arange(copies + 1) * length,
        np.tile(rows.words, copies),
        np.tile(rows.special, copies),
        keys,
        follows,
    )
    place = np.arange(copies) * length + asked
    return Draft(many, many.ids, selection=Selection(place, place + 1)), place
