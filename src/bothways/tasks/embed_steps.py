"""Which examples of sentence vectors are compared with each other in a step.

B examples · D documents.
"""

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from bothways.tasks.task import Sample

_PATIENCE = 4
"""A step ends early if so many times its examples repeat a text of it."""


def without_repeats(samples: Sequence[Sample], order: Sequence[int], batch: int) -> Iterator[NDArray[np.int64]]:
    """Steps of at most `batch` samples: what repeats an anchor or a positive of its step waits for the next one.

    In the last step texts may be repeated; they are then hidden from each other.
    """
    waiting = deque(order)
    while waiting:
        step: list[int] = []
        postponed: list[int] = []
        seen: set[int] = set()
        while waiting and len(step) < batch and len(postponed) < _PATIENCE * batch:
            i = waiting.popleft()
            keys = samples[i].target.keys[:2]
            if seen.isdisjoint(keys):
                step.append(i)
                seen.update(keys)
            else:
                postponed.append(i)
        waiting.extendleft(reversed(postponed))
        yield np.array(step)
        if 0 < len(waiting) < batch:
            yield np.array(waiting)
            return


def repeats(
    samples: Sequence[Sample], anchors: NDArray[np.int64], documents: NDArray[np.int64], positives: NDArray[np.int64]
) -> NDArray[np.bool_] | None:
    """(B, D) the documents that are not negatives of an anchor: equal to it, to its positive, or to another positive
    of an equal anchor. None if there are none."""
    keys = np.array([key for sample in samples for key in sample.target.keys], np.int64)
    own, others = keys[anchors], keys[documents]
    if len(np.unique(keys)) == len(keys):
        return None
    hidden: NDArray[np.bool_] = (others == own[:, None]) | (others == others[positives][:, None])
    same_anchor = own[:, None] == own
    hidden[:, positives] |= same_anchor
    hidden[np.arange(len(own)), positives] = False
    return hidden
