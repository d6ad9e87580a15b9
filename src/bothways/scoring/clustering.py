"""V-measure of clusters against gold labels.

N examples · K cells of the table of labels and clusters that are not empty
"""

import zlib
from collections.abc import Hashable, Sequence

import numpy as np

from bothways.scoring.accumulator import (
    Column,
    Floats,
    Ints,
    Resamplable,
    divide,
    group_sums,
    require_score,
    shape_error,
)

_NAMES = ["v_measure", "homogeneity", "completeness"]


class Clustering:
    """Homogeneity, completeness and V-measure (Rosenberg and Hirschberg, 2007).

    Homogeneity is 1 if each cluster holds examples of one label, completeness is 1 if each label is in one cluster, and
    V-measure is their harmonic mean. The names of the clusters do not matter.

    >>> clustering = Clustering()
    >>> clustering.add(["体育", "体育", "财经", "财经"], [1, 1, 0, 2])
    >>> {name: round(score, 3) for name, score in clustering.scores().items()}
    {'v_measure': 0.8, 'homogeneity': 1.0, 'completeness': 0.667}
    """

    def __init__(self) -> None:
        self._gold, self._found = Column(np.int64), Column(np.int64)
        self._labels: dict[Hashable, int] = {}
        self._clusters: dict[Hashable, int] = {}
        self._examples = 0

    def add(self, gold: Sequence[Hashable], clusters: Sequence[Hashable]) -> None:
        """Add a batch of examples, each with its label and its cluster: names or numbers."""
        if len(gold) != len(clusters):
            raise shape_error((len(gold),), "clusters", (len(clusters),), "a label and a cluster for each example")
        self._gold.extend([self._labels.setdefault(label, len(self._labels)) for label in gold])
        self._found.extend([self._clusters.setdefault(cluster, len(self._clusters)) for cluster in clusters])
        named = "".join(f"{label}\0" for label in gold)
        self._examples = zlib.crc32(named.encode(errors="surrogatepass"), self._examples)

    def scores(self) -> dict[str, float]:
        """v_measure, homogeneity, completeness."""
        return {name: self.rows(name).value() for name in _NAMES}

    def rows(self, name: str) -> Resamplable:
        """The examples; those of one label in one cluster are of one kind."""
        require_score(name, _NAMES)
        width = max(len(self._clusters), 1)
        cells, kinds = np.unique(self._gold.values() * width + self._found.values(), return_inverse=True)
        labels, clusters = cells // width, cells % width

        def score(counts: Floats) -> Floats:
            homogeneity = _explained(counts, labels, clusters)
            completeness = _explained(counts, clusters, labels)
            if name == "v_measure":
                return divide(2 * homogeneity * completeness, homogeneity + completeness)
            return homogeneity if name == "homogeneity" else completeness

        return Resamplable(kinds.reshape(-1), score, self._examples)


def _explained(counts: Floats, wanted: Ints, given: Ints) -> Floats:
    """The share of the entropy of one grouping that the other explains: 1 - H(wanted | given) / H(wanted).

    It is 1 where there is nothing to explain. counts: (..., K) examples in each cell; wanted, given: (K,) its groups.
    """
    total = counts.sum(-1, keepdims=True)
    of_given = group_sums(counts, given, int(given.max()) + 1)[..., given]
    unexplained = -(counts / total * _log(divide(counts, of_given))).sum(-1)
    shares = group_sums(counts, wanted, int(wanted.max()) + 1) / total
    entropy = -(shares * _log(shares)).sum(-1)
    explained: Floats = np.clip(1 - divide(unexplained, entropy), 0.0, 1.0)  # rounding may leave it
    return explained


def _log(shares: Floats) -> Floats:
    """The logarithm; 0 for an empty cell, which adds nothing to an entropy."""
    logarithms: Floats = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    return logarithms
