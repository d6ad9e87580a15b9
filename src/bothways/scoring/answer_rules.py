"""Exact match and F1 of an answer: SQuAD's rule on words, CMRC 2018's on characters.

Each compares an answer with one gold answer; the best of several counts. They follow the official scripts,
evaluate-v1.1.py, evaluate-v2.0.py and cmrc2018_evaluate.py, with one exception: CMRC's tokenizes what is not Chinese
with NLTK, and this module with a regular expression. On CMRC's dev and trial sets and on XQuAD's Chinese, with answers
shifted by a few characters, the scores of both are equal.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")

# The official list also has "……": as two characters it never equals one, and so is never removed.
_CHINESE_PUNCTUATION = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
_ENDINGS = re.compile(r"(?<=[^\s'])('(?:s|m|d|ll|re|ve)?|n't)(?![^\W\u4e00-\u9fa5])")
_PIECES = re.compile(
    r"""[\u4e00-\u9fa5]                                   # each Chinese character
      | \.{2,} | [][(){}<>;@#$%&?!"‘«»„] | ,(?!\d)    # punctuation; no comma within 1,000
      | \.(?=[])}>"']*\s*(?:$|[\u4e00-\u9fa5]))           # the last full stop
      | (?:[^][(){}<>;@#$%&?!"‘«»„,.\s\u4e00-\u9fa5] | ,(?=\d) | \.(?!\.|[])}>"']*\s*(?:$|[\u4e00-\u9fa5])))+
    """,
    re.VERBOSE,
)


def normalise(answer: str) -> str:
    """An answer as SQuAD compares it: in lower case, without punctuation, articles and extra white space.

    >>> normalise("  The  Dog's, a bone! ")
    'dogs bone'
    """
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def normalise_characters(answer: str) -> str:
    """An answer as CMRC compares it: in lower case, without punctuation, mostly Chinese.

    >>> normalise_characters("《红楼梦》，BERT")
    '红楼梦bert'
    """
    return answer.lower().strip().translate(_CHINESE_PUNCTUATION)


def characters(answer: str) -> list[str]:
    """The units that CMRC counts: each Chinese character, and the words between them.

    >>> characters("1998年，New York")
    ['1998', '年', 'new', 'york']
    """
    return _PIECES.findall(_ENDINGS.sub(r" \1", normalise_characters(answer)))


def f1_of_words(gold: str, answer: str) -> float:
    """F1 of the common words, with multiplicity."""
    of_gold, of_answer = normalise(gold).split(), normalise(answer).split()
    return _f1(sum((Counter(of_gold) & Counter(of_answer)).values()), len(of_gold), len(of_answer))


def f1_of_characters(gold: str, answer: str) -> float:
    """F1 of the longest common substring, which CMRC's script calls a subsequence."""
    of_gold, of_answer = characters(gold), characters(answer)
    return _f1(longest_run(of_gold, of_answer), len(of_gold), len(of_answer))


def longest_run(first: Sequence[str], second: Sequence[str]) -> int:
    """The length of the longest common substring.

    >>> longest_run("abcde", "xbcye")
    2
    """
    longest, ends = 0, [0] * (len(second) + 1)
    for one in first:
        ends = [0, *(ends[i] + 1 if one == other else 0 for i, other in enumerate(second))]
        longest = max(longest, *ends)
    return longest


def _f1(same: int, gold: int, answer: int) -> float:
    if not same:
        return 0.0
    precision, recall = same / answer, same / gold
    return 2 * precision * recall / (precision + recall)


@dataclass(frozen=True)
class Rule:
    """How answers are compared: their normalisation and their F1."""

    normalise: Callable[[str], str]
    f1: Callable[[str, str], float]

    def score(self, gold: Sequence[str], answer: str) -> tuple[bool, float]:
        """Exact match and the best F1 over the gold answers, as in SQuAD 1.1 and CMRC.

        A gold answer that normalises to nothing, such as "the", is one like any other: its F1 is 0.
        """
        normal = self.normalise(answer)
        exact = any(self.normalise(one) == normal for one in gold)
        return exact, max((self.f1(one, answer) for one in gold), default=0.0)

    def score_or_none(self, gold: Sequence[str], answer: str) -> tuple[bool, float]:
        """The same as in SQuAD 2.0, where a question may have no answer: then only an empty answer is right.

        A gold answer that normalises to nothing does not count.
        """
        gold = [one for one in gold if self.normalise(one)]
        if gold:
            return self.score(gold, answer)
        empty = not self.normalise(answer)
        return empty, float(empty)


RULES = {"words": Rule(normalise, f1_of_words), "characters": Rule(normalise_characters, f1_of_characters)}
