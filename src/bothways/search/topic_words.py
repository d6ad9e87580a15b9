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
_FUNCTION_WORDS = """
a about after again all almost also although always am an and another any anyone anything are as at be because
been before being both but by can can't cannot could couldn't did didn't do does doesn't doing don't done each
either else ever every everyone everything few for from get gets getting give given go goes going got had has
hasn't have haven't he her here hers him his how however i i'd i'll i'm i've if in into is isn't it it's its
itself just let lot many may me might more most much must my myself never no nobody none nor not nothing now
of off on once one only or other others our ours out over own quite rather really same she should shouldn't
since so some somebody someone something still such than that that's the their theirs them then there there's
these they they're thing things this those though through to too two under until up us very was wasn't we
we're we've well were weren't what when where whether which while who whom whose why will with within without
won't would wouldn't yet you you're you've your yours
一个 一些 一样 一点 一下 一直 一次 一种 不是 不会 不能 不过 不但 不要 点儿 有点 有些 没有
还是 还有 还要 这个 这些 这样 这里 这么 那个 那些 那样 那么 哪个 什么 怎么 多少 我们 我的
你们 你的 他们 他的 她的 它的 它们 自己 大家 因为 所以 但是 可是 可以 就是 只是 都是 也是
而且 如果 虽然 然后 已经 非常 比较 真的 时候 对于 关于 以及 或者 由于 之后 之前 其中 其他
很多 太多
"""
_NO_NAMES = frozenset(_FUNCTION_WORDS.split())
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
    frequency in all texts and A the mean number of words of a group. Function words name only what has no others.
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

    ranked = sorted(own.keys() - _NO_NAMES or own, key=lambda word: (-weight(word), word))
    telling = [
        word for word in ranked if own[word] * (texts - size) >= _MIN_RATIO * (everywhere[word] - own[word]) * size
    ]
    return (telling or ranked)[:count]
