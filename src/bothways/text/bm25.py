"""What BM25 counts, and the scores of a stream of texts for one query. The index of a corpus is search/lexical.py."""

import re
import unicodedata
from array import array
from collections import Counter

import numpy as np
from numpy.typing import NDArray

# Lucene's constants, so that scores are those that Elasticsearch and OpenSearch users know.
K1, B = 1.2, 0.75

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
_PARTS = re.compile(rf"([{_CJK}]+)|([^\W_{_CJK}]+)")


def tokens(text: str) -> list[str]:
    """What BM25 counts: words in lower case; of Chinese, Japanese and Korean, characters and pairs of neighbours.

    These scripts have no spaces between words. Most words have two characters, so pairs find them without a dictionary
    that could divide a document and a query differently; characters find the words of one.

    >>> tokens("The Cat's 北京市")
    ['the', 'cat', 's', '北', '京', '市', '北京', '京市']
    """
    found: list[str] = []
    for match in _PARTS.finditer(unicodedata.normalize("NFKC", text).lower()):
        run, word = match.groups()
        if word:
            found.append(word)
        else:
            found += run
            found += map(str.__add__, run, run[1:])
    return found


class QueryScores:
    """BM25 of texts that stream, for one query. Of each text only the counts of the query's words are held.

    >>> scores = QueryScores("the cat")
    >>> for text in ("The dog runs.", "The cat and the dog.", "Snow."):
    ...     scores.add(text)
    >>> scores.best(2)
    [1, 0]
    """

    def __init__(self, query: str) -> None:
        self._words = Counter(tokens(query))
        self._lengths, self._counts = array("i"), array("i")

    def __len__(self) -> int:
        return len(self._lengths)

    def add(self, text: str) -> None:
        found = Counter(tokens(text))
        self._lengths.append(found.total())
        self._counts.extend(found[word] for word in self._words)

    def values(self) -> NDArray[np.float64]:
        """The score of each text, in Lucene's form."""
        lengths = np.array(self._lengths, np.float64)
        counts = np.array(self._counts, np.float64).reshape(len(lengths), len(self._words))
        having = (counts > 0).sum(0)
        idf = np.log1p((len(lengths) - having + 0.5) / (having + 0.5))
        average = lengths.sum() / max(len(lengths), 1) or 1.0
        share = counts / (counts + (K1 * (1 - B + B * lengths / average))[:, None])
        scores: NDArray[np.float64] = share @ (idf * np.array(list(self._words.values()), np.float64))
        return scores

    def best(self, count: int) -> list[int]:
        """The numbers of the best texts, the best first; of equal ones the earlier is better."""
        found: list[int] = np.argsort(-self.values(), kind="stable")[:count].tolist()
        return found
