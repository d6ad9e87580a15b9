"""Groups of similar texts, each with a name and its most typical texts."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.errors import BothwaysError, require_range
from bothways.model.device import Device, Precision
from bothways.predict.encode_options import Long
from bothways.predict.given_texts import texts_of
from bothways.predict.roles import RoleEncoder
from bothways.predict.source import AnyModel, open_source
from bothways.progress import Watch, watch_nothing
from bothways.search.communities import Grouping, communities, k_means
from bothways.search.pairs import require_texts
from bothways.search.products import BUDGET, Matrix, release
from bothways.search.text_vectors import given_vectors, stored_vectors
from bothways.search.topic_words import topic_words

THRESHOLD, MIN_SIZE = 0.75, 3
_WORDS = 3
_ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class Group:
    """Similar texts."""

    name: str
    """The words that tell this group from the others."""
    rows: list[int]
    """The numbers of its texts, counted from 0: the nearest to the centre first."""
    scores: list[float]
    """The cosine of each with the centre."""

    def __len__(self) -> int:
        return len(self.rows)


def cluster(
    texts: Any,
    model: AnyModel = None,
    *,
    text: str | None = None,
    threshold: float | None = None,
    min_size: int | None = None,
    k: int | None = None,
    seed: int = 0,
    vectors: Matrix | None = None,
    long: Long = "error",
    device: Device | None = None,
    dtype: Precision | None = None,
    budget: int = BUDGET,
    watch: Watch = watch_nothing,
) -> list[Group]:
    """Groups of similar texts, the largest first, each with a name from its own words.

    By default a group is a text and all others whose cosine with it is at least `threshold` (0.75), taken from the
    densest on; groups of fewer than `min_size` (3) texts are left out. With `k` all texts are divided into k groups
    (spherical k-means); `seed` chooses the first centroids. `vectors` are those of the texts, if they are known.
    `budget` bounds the memory in bytes, beside the texts. Of a table `text` names the column of the texts. For the rest
    see `encode`.
    """
    texts = texts_of(texts, text)
    require_texts(texts, vectors)
    if k is not None and (threshold is not None or min_size is not None):
        raise BothwaysError(
            "`k` was given with `threshold` or `min_size`: k-means has neither, so drop `k` or the others",
            "bad-combination",
            k,
        )
    limit = THRESHOLD if threshold is None else threshold
    smallest = MIN_SIZE if min_size is None else min_size
    require_range("`threshold`", limit, -1 <= limit <= 1, "between -1 and 1")
    require_range("`min_size`", smallest, smallest >= 1, "at least 1")
    require_range("`k`", k, k is None or 1 <= k <= max(len(texts), 1), f"between 1 and {len(texts):,}, the texts")
    if not len(texts):
        return []
    if vectors is not None:
        opened = given_vectors(vectors, np.arange(len(texts)))
    else:
        opened = stored_vectors(texts, RoleEncoder(open_source(model, None, device, dtype), long=long), watch)
    with opened as matrix:
        if k is None:
            found = communities(matrix, limit, smallest, device, budget, watch)
        else:
            found = k_means(matrix, k, seed, device, budget, watch)
        names = topic_words(texts, found.labels, _WORDS)
        scores = _centre_scores(matrix, found)
    rows = np.lexsort((np.arange(len(texts)), -scores, found.labels))
    rows = rows[found.labels[rows] >= 0]
    parts = np.split(rows, np.flatnonzero(np.diff(found.labels[rows])) + 1) if len(rows) else []
    return [Group(", ".join(names[found.labels[part[0]]]), part.tolist(), scores[part].tolist()) for part in parts]


def _centre_scores(matrix: Matrix, found: Grouping) -> NDArray[np.float32]:
    """The cosine of each row with the centre of its group; 0 for rows in no group."""
    scores = np.zeros(len(matrix), np.float32)
    for begin in range(0, len(matrix), _ROWS_AT_ONCE):
        labels = found.labels[begin : begin + _ROWS_AT_ONCE]
        inside = np.flatnonzero(labels >= 0)
        block = np.array(matrix[begin : begin + _ROWS_AT_ONCE], np.float64)[inside]
        scores[begin + inside] = (block * found.centres[labels[inside]]).sum(1)
        release(matrix)
    return scores
