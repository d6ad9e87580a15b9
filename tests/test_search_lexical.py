"""BM25 by bm25s and by its formula, and its fusion with other rankings."""

import math
import random
from collections import Counter
from pathlib import Path

import bm25s
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothways.search.fuse import mean_of_scaled
from bothways.search.lexical import METHOD, Lexical, best_passage
from bothways.text.bm25 import K1, B, QueryScores, tokens

WORDS = ["cat", "dog", "house", "the", "北京", "上海", "大学", "runs"]


def corpus(count: int = 60) -> list[str]:
    draws = random.Random(1)
    return [" ".join(draws.choices(WORDS, k=draws.randint(0, 9))) for _ in range(count)]


def by_formula(texts: list[str], query: str) -> list[float]:
    """Lucene's BM25, written out."""
    documents = [tokens(text) for text in texts]
    mean = sum(map(len, documents)) / len(documents)
    frequencies = Counter(token for document in documents for token in set(document))
    scores = []
    for document in documents:
        counts, score = Counter(document), 0.0
        for token in tokens(query):
            seen = frequencies[token]
            idf = math.log(1 + (len(documents) - seen + 0.5) / (seen + 0.5))
            score += idf * counts[token] / (counts[token] + K1 * (1 - B + B * len(document) / mean))
        scores.append(score)
    return scores


@pytest.mark.parametrize("query", ["cat", "the cat runs", "北京大学", "上", "cat cat 北京 unknown"])
def test_scores_are_those_of_the_formula_and_of_bm25s(query: str, tmp_path: Path) -> None:
    texts = corpus()
    index = Lexical.build((2 * i, text) for i, text in enumerate(texts))
    expected = by_formula(texts, query)
    judge = bm25s.BM25(method=METHOD, k1=K1, b=B)
    judge.index([tokens(text) for text in texts], show_progress=False)
    theirs = judge.get_scores(tokens(query))
    index.save(tmp_path, 3)
    opened = Lexical.open(tmp_path, 3)
    assert opened is not None
    for lexical in (index, opened):
        documents, scores = lexical.top(query, 100)
        assert dict(zip(documents, scores, strict=True)) == pytest.approx(
            {2 * i: score for i, score in enumerate(expected) if score > 0}, rel=1e-5
        )
        assert scores == pytest.approx([float(theirs[i // 2]) for i in documents], rel=1e-5)
        assert scores == sorted(scores, reverse=True)
        assert lexical.top(query, 3) == (documents[:3], scores[:3])
    assert Lexical.open(tmp_path, 4) is None
    streamed = QueryScores(query)
    for text in texts:
        streamed.add(text)
    assert streamed.values().tolist() == pytest.approx(expected, rel=1e-12)
    ranked = sorted(range(len(texts)), key=lambda i: (-round(expected[i], 9), i))
    assert streamed.best(5) == ranked[:5]


def test_chinese_words_are_found_as_pairs() -> None:
    """A word is found where it stands; a document that has its characters apart comes after it."""
    index = Lexical.build(enumerate(["南方的京剧", "他住在南京", "京南有一条河", "he lives there"]))
    assert index.top("南京", 9)[0] == [1, 0, 2]
    assert index.top("住", 9)[0] == [1]


def test_tokens() -> None:
    assert tokens("Größe, ＡＢＣ-12 e_f") == ["größe", "abc", "12", "e", "f"]
    assert tokens("用BERT搜索") == ["用", "bert", "搜", "索", "搜索"]
    assert tokens("ひらがな") == ["ひ", "ら", "が", "な", "ひら", "らが", "がな"]
    assert tokens(" \n…!") == []


def test_documents_without_words(tmp_path: Path) -> None:
    index = Lexical.build([(0, ""), (1, "!")])
    assert index.top("cat", 5) == ([], [])
    index.save(tmp_path, 1)
    opened = Lexical.open(tmp_path, 1)
    assert opened is not None
    assert opened.top("cat", 5) == ([], [])
    assert Lexical.build([(0, "cat")]).top("dog", 5) == ([], [])


def test_the_passage_with_most_words_of_the_query() -> None:
    passages = ["the dog", "a cat and a cat", "the cat", "a dog and the cat and the dog"]
    assert best_passage("the cat", passages) == 3
    assert best_passage("cat", passages) == 1
    assert best_passage("house", passages) == 0


SCORED = st.dictionaries(st.integers(0, 20), st.floats(-100, 100, width=32), max_size=8)


@given(st.lists(st.tuples(SCORED, st.booleans()), min_size=1, max_size=4))
def test_fusion_is_the_mean_of_scaled_scores(given: list[tuple[dict[int, float], bool]]) -> None:
    """`given`: rankings, and whether the score of their last item becomes 0, or that of one in the middle."""
    rankings = [sorted(scores.items(), key=lambda item: -item[1]) for scores, _ in given]
    lowest = [None if is_last or not scores else sorted(scores.values())[len(scores) // 2] for scores, is_last in given]
    expected: dict[int, float] = dict.fromkeys((item for scores, _ in given for item in scores), 0.0)
    for (scores, _), low in zip(given, lowest, strict=True):
        low = min(scores.values(), default=0.0) if low is None else low
        high = max(scores.values(), default=0.0)
        for item, score in scores.items():
            expected[item] += max((score - low) / (high - low) if high > low else float(score >= low), 0.0) / len(given)
    found = mean_of_scaled(rankings, lowest)
    assert dict(found) == pytest.approx(expected)
    assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
    assert all(0 <= score <= 1 + 1e-9 for score in expected.values())


def test_equal_fused_scores_keep_the_order_of_the_first_ranking() -> None:
    assert mean_of_scaled([[(4, 2.0), (1, 2.0)], []], [None, None]) == [(4, 0.5), (1, 0.5)]
    assert [item for item, _ in mean_of_scaled([[(4, 2.0), (1, 1.0)], [(1, 9.0), (4, 3.0)]], [None, None])] == [4, 1]
