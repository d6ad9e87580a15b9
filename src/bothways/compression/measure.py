"""Scores and speeds of models on development data."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from bothways.model.card_text import CARD
from bothways.predict.predictor import Predictor
from bothways.progress import Watch
from bothways.scoring.accumulator import Accumulator

_ROUNDS = 5
_SECONDS = 0.5
"""One pass of the original over the texts that are timed takes about this long."""


class Measure:
    """The original, and the development data on which others are compared with it. All answer on the CPU."""

    def __init__(self, original: Predictor, examples: Sequence[Any], watch: Watch) -> None:
        self.original, self.examples, self.watch = original, examples, watch
        began = perf_counter()
        self.scores = self.count(original)
        seconds = (perf_counter() - began) / len(examples)
        self.metric = original.task.metric
        self.original_score = self.scores.scores()[self.metric]
        self.timed = examples[: max(1, min(len(examples), int(_SECONDS / seconds)))]

    def count(self, predictor: Predictor) -> Accumulator:
        """The scores of a model."""
        found = predictor.task.new_scores()
        for item, decoded in predictor.decode_all(self.watch(self.examples, "scoring")):
            predictor.task.count(found, item, decoded)
        return found

    def score(self, predictor: Predictor) -> float:
        """The main score of a model."""
        return self.count(predictor).scores()[self.metric]

    def speed(self, predictor: Predictor) -> tuple[float, float]:
        """Texts per second, and the multiple of the original's: medians of passes in turns, as other work on the
        machine slows both."""
        self._seconds(predictor)
        rounds = [(self._seconds(self.original), self._seconds(predictor)) for _ in range(_ROUNDS)]
        rate = len(self.timed) / statistics.median(own for _, own in rounds)
        return rate, statistics.median(before / own for before, own in rounds)

    def _seconds(self, predictor: Predictor) -> float:
        began = perf_counter()
        for _ in predictor.decode_all(self.timed):
            pass
        return perf_counter() - began


def size_of(folder: Path) -> int:
    """The bytes of all files in a folder but its card."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and file.name != CARD)
