"""Scores of answers: the rules of SQuAD 1.1 and 2.0 and of CMRC 2018, each case worked out by hand."""

import math
import random
import re
import string
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bothways.scoring.answer_rules import RULES, characters, longest_run, normalise, normalise_characters
from bothways.scoring.answers import Answers
from helpers import refused


def score(gold: Sequence[str], prediction: str | None, rule: str = "words") -> list[float]:
    answers = Answers(rule)
    answers.add("q", gold, prediction)
    scores = answers.scores()
    return [scores["exact"], scores["f1"]]


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("The United States", "united states"),
        ("an apple and a pear", "apple and pear"),
        ("Theatre", "theatre"),  # not the article
        ("U.S.A.", "usa"),
        ("twenty-five", "twentyfive"),  # a hyphen is removed, not replaced
        ("A.", ""),  # punctuation goes first, so that this is an article
        ("the-end", "theend"),
        ("  two \t words\n", "two words"),
        ("“quoted”", "“quoted”"),  # ASCII punctuation only
        ("", ""),
    ],
)
def test_answers_are_normalised_as_the_official_script_does(text: str, bare: str) -> None:
    assert normalise(text) == bare


@pytest.mark.parametrize(
    ("gold", "prediction", "exact", "f1"),
    [
        (["the Eiffel Tower"], "Eiffel tower!", 1, 1),
        (["Eiffel Tower"], "Paris", 0, 0),
        (["Eiffel Tower"], "big Eiffel Tower in Paris", 0, 2 * (2 / 5) * 1 / (2 / 5 + 1)),
        (["Paris", "Eiffel Tower", "tower"], "the tower", 1, 1),  # the best of several
        (["red red blue"], "red blue blue", 0, 2 / 3),  # words count as often as they occur
        ([], "", 1, 1),
        ([], "Paris", 0, 0),
        ([], "the", 1, 1),  # nothing is left of it
        (["Paris"], "", 0, 0),
        (["Paris"], "the", 0, 0),
        (["the", "Paris"], "", 1, 0),  # a gold answer of which nothing is left is one like any other, and has no words
        (["the"], "", 1, 0),
        (["Paris"], None, 0, 0),
        ([], None, 0, 0),  # a missing prediction is not an empty one
    ],
)
def test_words(gold: list[str], prediction: str | None, exact: float, f1: float) -> None:
    assert score(gold, prediction) == pytest.approx([exact, f1])


PARTS = ["the", "a", "An", ".", "?!", "-", "Paris", "paris,", "Rome", "北京", "。", "，", "《", "大学", "1998", " ", ""]


def official_normal(text: str) -> str:
    """normalize_answer, of both scripts."""
    kept = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", kept).split())


def official_f1(gold: str, answer: str) -> float:
    """f1_score of evaluate-v1.1.py."""
    answer_tokens, gold_tokens = official_normal(answer).split(), official_normal(gold).split()
    same = sum((Counter(answer_tokens) & Counter(gold_tokens)).values())
    if same == 0:
        return 0
    precision, recall = same / len(answer_tokens), same / len(gold_tokens)
    return 2 * precision * recall / (precision + recall)


def official_1(gold: Sequence[str], answer: str) -> list[float]:
    """evaluate-v1.1.py: the best over all gold answers."""
    exact = max(official_normal(one) == official_normal(answer) for one in gold)
    return [float(exact), max(official_f1(one, answer) for one in gold)]


def official_2(gold: Sequence[str], answer: str) -> list[float]:
    """evaluate-v2.0.py: blank gold answers are left out, and none at all is the empty one."""
    gold = [one for one in gold if official_normal(one)] or [""]
    found = []
    for one in gold:
        tokens = official_normal(one).split(), official_normal(answer).split()
        found.append(float(tokens[0] == tokens[1]) if not all(tokens) else official_f1(one, answer))
    return [float(max(official_normal(one) == official_normal(answer) for one in gold)), max(found)]


def official_cmrc(gold: Sequence[str], answer: str) -> list[float]:
    """calc_em_score and calc_f1_score of cmrc2018_evaluate.py, with our units."""
    exact, f1 = 0.0, [0.0]
    for one in gold:
        exact = max(exact, float(normalise_characters(one) == normalise_characters(answer)))
        units = characters(one), characters(answer)
        if same := longest_run(*units):
            precision, recall = same / len(units[1]), same / len(units[0])
            f1.append(2 * precision * recall / (precision + recall))
    return [exact, max(f1)]


texts = st.lists(st.sampled_from(PARTS), max_size=4).map(" ".join)
questions = st.lists(st.tuples(st.lists(texts, min_size=1, max_size=3), texts), min_size=1, max_size=5)


def mean_scores(rule: str, asked: Sequence[tuple[Sequence[str], str]]) -> list[float]:
    answers = Answers(rule)
    for number, (gold, answer) in enumerate(asked):
        answers.add(str(number), gold, answer)
    return [answers.scores()[name] for name in ("exact", "f1")]


@given(questions, st.booleans(), texts)
@example([(["the"], "a")], False, "")
@example([(["the", "Paris"], ".")], True, "Rome")
def test_golds_that_normalise_to_nothing_count_as_in_the_script_of_their_data(
    asked: list[tuple[list[str], str]], has_unanswerable: bool, to_nothing: str
) -> None:
    """The script of SQuAD 2.0 if some question has no answer, else that of 1.1."""
    every = [*asked, *([([], to_nothing)] if has_unanswerable else [])]
    official = official_2 if has_unanswerable else official_1
    wanted = [sum(column) / len(every) for column in zip(*(official(*one) for one in every), strict=True)]
    assert mean_scores("words", every) == pytest.approx(wanted)
    if not has_unanswerable:
        wanted = [sum(column) / len(every) for column in zip(*(official_cmrc(*one) for one in every), strict=True)]
        assert mean_scores("characters", every) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("gold", "prediction", "exact", "f1"),
    [
        (["红楼梦"], "《红楼梦》", 1, 1),
        (["北京大学"], "北京", 0, 2 * 1 * 0.5 / 1.5),
        (["北京的大学"], "北京大学", 0, 2 * (2 / 4) * (2 / 5) / (2 / 4 + 2 / 5)),  # a run: 北京 or 大学, not both
        (["1998年"], "1998 年", 0, 1),  # the white space counts in one and not in the other
        (["BERT模型"], "bert模型。", 1, 1),
        (["3,000米"], "3,000", 0, 2 / 3),  # a number is one unit
        (["上海", "浦东新区"], "浦东", 0, 2 / 3),
        (["上海"], "", 0, 0),
        ([], "", 1, 1),
        ([], "上海", 0, 0),
        (["等等……"], "等等", 0, 2 * (2 / 2) * (2 / 3) / (1 + 2 / 3)),  # the script's list misses this sign; here a word
    ],
)
def test_characters(gold: list[str], prediction: str, exact: float, f1: float) -> None:
    assert score(gold, prediction, "characters") == pytest.approx([exact, f1])


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("它在New York的U.S. Bank。", ["它", "在", "new", "york", "的", "u.s.", "bank"]),
        ("共1,234.5元, 约30%", ["共", "1,234.5", "元", ",", "约", "30", "%"]),
        ("Queen's (1990) don't.", ["queen", "'s", "(", "1990", ")", "do", "n't", "."]),
        ("A-B:C", ["abc"]),  # the script removes these and joins what they held apart
        ("wait... ok", ["wait", "...", "ok"]),
        ("in Corp.的", ["in", "corp", ".", "的"]),
    ],
)
def test_what_counts_as_a_character(text: str, units: list[str]) -> None:
    assert characters(text) == units


@given(st.text("abc", max_size=8), st.text("abc", max_size=8))
def test_the_longest_run_is_the_longest(first: str, second: str) -> None:
    pieces = [first[i:j] for i in range(len(first)) for j in range(i + 1, len(first) + 1)]
    assert longest_run(first, second) == max((len(piece) for piece in pieces if piece in second), default=0)


def test_the_rule_follows_the_gold_answers_unless_it_is_given() -> None:
    mixed = Answers()
    mixed.add("1", ["in 1998"], "1998")
    assert mixed.rule == "words"
    mixed.add("2", ["北京大学和清华大学"], "北京大学")
    assert mixed.rule == "characters"
    fixed = Answers("words")
    fixed.add("2", ["北京大学和清华大学"], "北京大学")
    assert fixed.rule == "words"
    by_hand = Answers("characters")
    by_hand.add("1", ["in 1998"], "1998")
    by_hand.add("2", ["北京大学和清华大学"], "北京大学")
    assert mixed.scores() == by_hand.scores(), "earlier questions are scored by the rule that the whole set calls for"
    assert Answers().rule == "words"
    with refused("unknown-choice", "letters"):
        Answers("letters")


def test_questions_with_and_without_answer_are_scored_apart() -> None:
    answers = Answers()
    for i, (gold, prediction) in enumerate(
        [(["Paris"], "Paris"), (["Rome"], "in Rome"), (["Oslo"], ""), ([], ""), ([], "Bonn"), ([], None)]
    ):
        answers.add(str(i), gold, prediction)
    assert answers.missing == ["5"]
    assert answers.scores() == {
        "exact": pytest.approx(2 / 6),
        "f1": pytest.approx((1 + 2 / 3 + 1) / 6),
        "has_answer_exact": pytest.approx(1 / 3),
        "has_answer_f1": pytest.approx((1 + 2 / 3) / 3),
        "no_answer_exact": pytest.approx(1 / 3),
        "no_answer_f1": pytest.approx(1 / 3),
        "missing": 1,
    }


def test_parts_without_questions_have_no_score() -> None:
    answers = Answers()
    assert math.isnan(answers.scores()["f1"])
    answers.add("1", ["Paris"], "Paris")
    assert set(answers.scores()) == {"exact", "f1", "has_answer_exact", "has_answer_f1", "missing"}


def test_the_best_threshold_by_hand() -> None:
    answers = Answers()
    #    odds                    keeping this answer adds
    rows = [
        (-3.0, ["Paris"], "Paris"),  # 1
        (-2.0, [], "Rome"),  # -1
        (-1.0, ["Oslo now"], "Oslo"),  # exact 0, f1 2/3
        (0.5, ["Bonn"], "Bonn"),  # 1
        (2.0, [], "Riga"),  # -1
        (3.0, [], ""),  # 0: it says so itself
    ]
    for i, (odds, gold, prediction) in enumerate(rows):
        answers.add(str(i), gold, prediction, odds)
    scores = answers.scores()
    # From 3 for saying nothing at all: exact 4, 3, 3, 4, 3, 3: the first 4 wins. F1 4, 3, 3.67, 4.67, 3.67, 3.67.
    assert [scores["best_exact"], scores["best_exact_threshold"]] == pytest.approx([4 / 6, -3.0])
    assert [scores["best_f1"], scores["best_f1_threshold"]] == pytest.approx([(3 + 5 / 3) / 6, 0.5])
    assert scores["exact"] == pytest.approx(3 / 6), "without a threshold the predictions count as they are"


def test_where_silence_is_best_the_threshold_is_zero() -> None:
    answers = Answers()
    answers.add("1", [], "Rome", 4.0)
    answers.add("2", ["Oslo"], "Rome", 5.0)
    scores = answers.scores()
    assert (scores["best_f1"], scores["best_f1_threshold"]) == (0.5, 0.0)


QUESTION = st.tuples(st.sampled_from([[], ["a b"], ["b", "c d"]]), st.sampled_from(["", "b", "a b", "x", None]))


@settings(max_examples=60)
@given(st.lists(QUESTION, min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_the_best_threshold_is_as_good_as_any(
    questions: list[tuple[list[str], str | None]], chance: random.Random
) -> None:
    """Every threshold is tried by scoring with it; odds differ, for within equal ones the official search looks too."""
    odds = chance.sample(range(-50, 50), len(questions))

    def scored(threshold: float | None) -> dict[str, float]:
        answers = Answers("words", threshold)
        for i, ((gold, prediction), odd) in enumerate(zip(questions, odds, strict=True)):
            answers.add(str(i), gold, prediction, odd)
        return answers.scores()

    best = scored(None)
    if all(prediction is None for _, prediction in questions):
        assert "best_f1" not in best
        return
    for score_name in ("exact", "f1"):
        reached = [scored(threshold)[score_name] for threshold in [-99, *odds]]
        assert best[f"best_{score_name}"] == pytest.approx(max(reached))
        threshold = best[f"best_{score_name}_threshold"]
        assert scored(threshold)[score_name] == pytest.approx(max(reached))


def test_a_threshold_turns_answers_into_none_only_above_it() -> None:
    answers = Answers(threshold=1.0)
    answers.add("1", ["Paris"], "Paris", 1.0)
    answers.add("2", ["Rome"], "Rome", 1.1)
    answers.add("3", [], "Oslo", 1.1)
    assert answers.scores()["has_answer_exact"] == 0.5
    assert answers.scores()["no_answer_exact"] == 1


def test_a_threshold_needs_odds() -> None:
    answers = Answers(threshold=0.0)
    answers.add("1", ["Paris"], None)
    with refused("no-null-odds", "2"):
        answers.add("2", ["Paris"], "Paris")


def test_odds_are_given_for_all_or_none() -> None:
    answers = Answers()
    answers.add("1", ["Paris"], "Paris", 1.0)
    answers.add("2", ["Rome"], None)
    assert "best_f1" in answers.scores(), "a missing prediction needs none"
    answers.add("3", ["Rome"], "Rome")
    with refused("no-null-odds", 1):
        answers.scores()


def test_a_question_counts_once() -> None:
    answers = Answers()
    answers.add("1", ["Paris"], "Paris")
    with refused("repeated-id", "1"):
        answers.add("1", ["Paris"], "Paris")


@given(st.lists(st.text("ab 的京.", max_size=5), max_size=3), st.text("ab 的京.", max_size=6))
def test_an_exact_answer_has_the_whole_f1_and_none_has_more(gold: list[str], prediction: str) -> None:
    exact, f1 = RULES["words"].score_or_none(gold, prediction)
    assert 0 <= f1 <= 1 + 1e-12
    assert not exact or f1 == pytest.approx(1)
