"""Scores that are means: over several runs on the same examples, or over several groups of examples.

R runs · N examples · K kinds of example
"""

import zlib
from collections.abc import Sequence

import numpy as np

from bothways.scoring.accumulator import Accumulator, Floats, Resamplable, group_sums, mean_rows


class MeanOverRuns:
    """The mean score of several runs on the same examples, such as clusterings with several seeds.

    The bootstrap draws the same examples for all runs.

    >>> from bothways.scoring.clustering import Clustering
    >>> runs = [Clustering(), Clustering()]
    >>> runs[0].add(["a", "a", "b", "b"], [0, 0, 1, 1])
    >>> runs[1].add(["a", "a", "b", "b"], [0, 1, 0, 1])
    >>> MeanOverRuns(runs).scores()["v_measure"]
    0.5
    """

    def __init__(self, runs: Sequence[Accumulator]) -> None:
        self._runs = list(runs)

    def scores(self) -> dict[str, float]:
        """Each score of the runs, as their mean."""
        found = [run.scores() for run in self._runs]
        return {name: float(np.mean([one[name] for one in found])) for name in found[0]}

    def rows(self, name: str) -> Resamplable:
        """The examples; two are of one kind if they are so in all runs."""
        parts = [run.rows(name) for run in self._runs]
        cells, kinds = np.unique(np.stack([part.kinds for part in parts]), axis=1, return_inverse=True)  # (R, K), (N,)

        def score(counts: Floats) -> Floats:
            found = [
                part.score(group_sums(counts, of_run, int(part.kinds.max()) + 1))
                for part, of_run in zip(parts, cells, strict=True)
            ]
            mean: Floats = np.mean(found, axis=0)
            return mean

        return Resamplable(kinds.reshape(-1), score, parts[0].examples)


class MeanOverGroups:
    """The mean score of several groups of examples, each scored by itself. The bootstrap draws groups."""

    def __init__(self, groups: Sequence[Accumulator]) -> None:
        self._groups = list(groups)

    def scores(self) -> dict[str, float]:
        """Each score of the groups, as their mean."""
        return MeanOverRuns(self._groups).scores()

    def rows(self, name: str) -> Resamplable:
        """The groups, each with its value of the score."""
        parts = [group.rows(name) for group in self._groups]
        examples = zlib.crc32(np.array([part.examples for part in parts], np.int64).tobytes())
        return mean_rows(np.array([part.value() for part in parts]), examples)
