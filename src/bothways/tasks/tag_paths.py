"""Sequences of tags that are valid: I-PER stands only after B-PER or I-PER.

C tags · S texts.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bothways.engine.sequences import Indices, ragged

OUTSIDE = "O"
_NEVER = -1e9


def transitions(labels: Sequence[str]) -> NDArray[np.float64]:
    """(C + 1, C): 0 if the second tag may follow the first, else -1e9. The last row is the beginning.

    A type without B-, as some published taggers have, begins with I-.
    """
    free = [tag[:1] != "I" or f"B{tag[1:]}" not in labels for tag in labels]
    allowed = [
        [is_free or (last != OUTSIDE and last[1:] == tag[1:]) for tag, is_free in zip(labels, free, strict=True)]
        for last in (*labels, OUTSIDE)
    ]
    return np.where(allowed, 0.0, _NEVER)


def best_paths(logs: NDArray[np.float64], steps: NDArray[np.float64], counts: Indices) -> Indices:
    """The most probable valid sequence of tags of each text, one text after the other.

    `logs`: (words, C) log-probabilities of all texts. `steps`: see `transitions`. `counts`: (S,) words of each text.
    """
    tags: Indices = logs.argmax(1)
    starts = np.cumsum(counts) - counts
    before = np.concatenate([[0], tags])[:-1]
    before[starts[counts > 0]] = len(steps) - 1  # the beginning
    # If the most probable tag of every word may stand there, the sequence is the best one.
    wrong = np.unique(np.searchsorted(starts + counts, np.flatnonzero(steps[before, tags] < 0), "right"))
    wrong = wrong[np.argsort(-counts[wrong], kind="stable")]
    if len(wrong):
        rows = ragged(starts[wrong], counts[wrong])
        tags[rows] = _viterbi(logs[rows], steps, counts[wrong])
    return tags


def _viterbi(logs: NDArray[np.float64], steps: NDArray[np.float64], counts: Indices) -> Indices:
    """The best sequences of texts, the longest text first. All texts take a step together."""
    starts = np.cumsum(counts) - counts
    best = logs[starts] + steps[-1]
    came: list[NDArray[np.int64]] = []
    for word in range(1, int(counts[0])):
        running = int(np.searchsorted(-counts, -word))  # the texts that have this word
        through = best[:running, :, None] + steps[:-1]
        came.append(through.argmax(1))
        best[:running] = through.max(1) + logs[starts[:running] + word]
    tags, last = np.empty(len(logs), np.int64), best.argmax(1)
    for word in range(int(counts[0]) - 1, 0, -1):
        back = came[word - 1]
        tags[starts[: len(back)] + word] = last[: len(back)]
        last[: len(back)] = back[np.arange(len(back)), last[: len(back)]]
    tags[starts] = last
    return tags
