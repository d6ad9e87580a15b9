"""Names for groups of texts, from their own words: class-based tf-idf.

A word is a run of letters and digits; of Chinese text, two neighbouring characters.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable

import numpy as np

from bothways.search.products import Rows

_RUNS = re.compile(r"[\u3400-\u9fff]+|[^\W_\u3400-\u9fff]+(?:['’][^\W_\u3400-\u9fff]+)*")
_MIN_RATIO = 3
"""How much more frequent a word must be in a group than outside to name it."""


def words_of(text: str) -> set[str]:
    """The words of a text, in lower case.

    >>> sorted(words_of("The cat's 猫在睡觉 3D"))
    ['3d', "cat's", 'the', '在睡', '猫在', '睡觉']
    """
    found: set[str] = set()
    for run in _RUNS.findall(text.lower()):
        is_chinese = "\u3400" <= run[0] <= "\u9fff"
        found.update([run[i : i + 2] for i in range(max(1, len(run) - 1))] if is_chinese else [run])
    return found


def topic_words(texts: Iterable[str], labels: Rows, count: int) -> list[list[str]]:
    """For each group, its most telling words, the best first. `labels`: the group of each text, -1 for none.

    A word counts once for each text. Its weight is its frequency in the group times log(1 + A / f), where f is its
    frequency in all texts and A the mean number of words of a group.
    """
    groups = int(labels.max(initial=-1)) + 1
    inside: list[Counter[str]] = [Counter() for _ in range(groups)]
    everywhere: Counter[str] = Counter()
    for text, label in zip(texts, labels.tolist(), strict=True):
        words = words_of(text)
        everywhere.update(words)
        if label >= 0:
            inside[label].update(words)
    sizes = np.bincount(labels[labels >= 0], minlength=groups).tolist()
    mean = sum(everywhere.values()) / max(groups, 1)
    return [_best(own, size, everywhere, len(labels), mean, count) for own, size in zip(inside, sizes, strict=True)]


def _best(own: Counter[str], size: int, everywhere: Counter[str], texts: int, mean: float, count: int) -> list[str]:
    def weight(word: str) -> float:
        return own[word] * math.log1p(mean / everywhere[word])

    ranked = sorted(own, key=lambda word: (-weight(word), word))
    telling = [
        word for word in ranked if own[word] * (texts - size) >= _MIN_RATIO * (everywhere[word] - own[word]) * size
    ]
    return (telling or ranked)[:count]
