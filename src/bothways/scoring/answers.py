"""Metrics of extractive question answering.

N questions · K kinds of question
"""

import math
import re
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bothways.errors import BothwaysError, require_choice
from bothways.scoring.accumulator import Column, Floats, Resamplable, divide, ratio_of_sums, require_score, sum_rows
from bothways.scoring.answer_rules import RULES, Rule

CHINESE_SHARE = 0.3
_CHINESE = re.compile(r"[\u4e00-\u9fff]")


class Answers:
    """Exact match and F1 of predicted answers.

    rule "words" is SQuAD's, "characters" is CMRC 2018's, and "auto" chooses characters if at least 30 % of all
    characters of the gold answers, without white space, are Chinese (CMRC's dev set has 82 %, XQuAD's Chinese 74 %).
    An empty answer predicts that the question is unanswerable, and is right if it has no gold answer. If a question has
    none, all are scored as in SQuAD 2.0, else as in SQuAD 1.1: they differ in gold answers that normalise to nothing,
    such as "the". With a
    `threshold`, a question whose null odds exceed it counts as predicted unanswerable.
    A question without a prediction scores 0; `missing` lists their ids.

    >>> answers = Answers()
    >>> answers.add("1", ["the Eiffel Tower", "Paris"], "Eiffel tower.")
    >>> answers.add("2", [], "Rome")
    >>> scores = answers.scores()
    >>> scores["exact"], scores["has_answer_exact"], scores["no_answer_exact"]
    (0.5, 1.0, 0.0)
    """

    def __init__(self, rule: str = "auto", threshold: float | None = None):
        require_choice("rule", rule, ("auto", *RULES))
        self._rule = rule
        self._threshold = math.inf if threshold is None else threshold
        self._scored = Column(np.float64)  # exact match and F1 by each rule, as in SQuAD 1.1 and as in 2.0
        self._odds = Column(np.float64)  # nan where not given
        self._marks = Column(np.bool_)  # has a gold answer, has a prediction, is predicted unanswerable
        self._ids: set[str] = set()
        self._chinese = self._characters = 0
        self._examples = 0
        self.missing: list[str] = []

    def add(self, id: str, gold: Sequence[str], prediction: str | None, null_odds: float | None = None) -> None:
        """Add one question: its gold answers, the predicted answer or None, and the null odds.

        The null odds rate "unanswerable", as probabilities or as differences of scores; the prediction is then the
        best answer that is not empty. Give them for every predicted question or for none.
        """
        if id in self._ids:
            raise BothwaysError(f"question {id!r} was added twice: expected each id once", "repeated-id", id)
        if self._threshold < math.inf and prediction is not None and null_odds is None:
            raise BothwaysError(
                f"question {id!r} has no null odds: a threshold needs them for every prediction", "no-null-odds", id
            )
        self._ids.add(id)
        if prediction is None:
            self.missing.append(id)
        for rule in RULES:
            wanted = prediction is not None and self._rule in ("auto", rule)
            self._scored.extend(_by_version(RULES[rule], gold, prediction or "") if wanted else [0.0] * 4)
        self._odds.extend(math.nan if null_odds is None or prediction is None else null_odds)
        self._marks.extend([len(gold) > 0, prediction is not None, prediction == ""])
        for answer in gold:
            self._chinese += len(_CHINESE.findall(answer))
            self._characters += len("".join(answer.split()))
        self._examples = zlib.crc32("\0".join([id, *gold, "\n"]).encode(), self._examples)

    @property
    def rule(self) -> str:
        """The rule in use; "auto" depends on the gold answers so far."""
        if self._rule != "auto":
            return self._rule
        return "characters" if self._chinese > 0 and self._chinese >= CHINESE_SHARE * self._characters else "words"

    def scores(self) -> dict[str, float]:
        """exact and f1, also of answerable (has_answer_) and unanswerable (no_answer_) questions; the number missing.

        With null odds also best_exact and best_f1, and the thresholds best_exact_threshold and best_f1_threshold
        that reach them; an answer whose odds equal the threshold is kept. The search is that of the official script,
        which also stops between equal odds. If it is best to answer no question, the script returns 0, and so does
        this, unless 0 would keep an answer: then the threshold is just below all odds.
        """
        found = {name: self.rows(name).value() for name in self._names()}
        for name in self._names():
            if name.startswith("best_"):
                found[f"{name}_threshold"] = self._best_threshold(name)
        return {**found, "missing": float(len(self.missing))}

    def rows(self, name: str) -> Resamplable:
        """The questions and their values of one score."""
        require_score(name, self._names())
        if name.startswith("best_"):
            return self._best_rows(name)
        part, _, score = name.rpartition("answer_")
        values, (has_answer, answered, _) = self._values(score), self._flags()
        values = np.where(self._odds.values() > self._threshold, ~has_answer & answered, values)
        counted = np.ones(len(values), bool) if not part else has_answer == (part == "has_")
        pairs = np.stack([values * counted, counted], -1)
        return sum_rows(pairs, ratio_of_sums(0, 1, np.nan), self._examples)

    def _names(self) -> list[str]:
        has_answer, answered, _ = self._flags()
        parts = {"": True, "has_answer_": has_answer.any(), "no_answer_": (~has_answer).any()}
        names = [f"{part}{score}" for part, present in parts.items() if present for score in ("exact", "f1")]
        given = ~np.isnan(self._odds.values())
        if not given.any():
            return names
        if without := int((answered & ~given).sum()):
            raise BothwaysError(
                f"{without} predictions have no null odds, but others have: give them for all", "no-null-odds", without
            )
        return [*names, "best_exact", "best_f1"]

    def _flags(self) -> NDArray[np.bool_]:
        """Has a gold answer, has a prediction, is predicted unanswerable. (3, N)."""
        return self._marks.values().reshape(-1, 3).T

    def _values(self, score: str) -> Floats:
        """exact or f1 of each question by the rule in use, without a threshold. (N,)."""
        table = self._scored.values().reshape(-1, len(RULES), 2, 2)
        has_unanswerable = int((~self._flags()[0]).any())
        values: Floats = table[:, list(RULES).index(self.rule), has_unanswerable, ["exact", "f1"].index(score)]
        return values

    def _steps(self, name: str) -> tuple[NDArray[np.intp], Floats, Floats]:
        """The order of the questions by odds, the gain of keeping each answer, and the score without it."""
        has_answer, answered, empty = self._flags()
        order = np.argsort(self._odds.values(), kind="stable")  # nan, a missing prediction, comes last
        unanswered = (~has_answer & answered).astype(np.float64)
        gain = np.where(has_answer, self._values(name.removeprefix("best_")), np.where(empty, 0.0, -unanswered))
        return order, gain[order], unanswered[order]

    def _best_rows(self, name: str) -> Resamplable:
        order, gain, unanswered = self._steps(name)
        kinds = np.empty_like(order)
        kinds[order] = np.arange(len(order))

        def score(counts: Floats) -> Floats:
            kept = (counts * gain).cumsum(-1).max(-1)
            return divide(counts @ unanswered + np.maximum(kept, 0.0), counts.sum(-1))

        return Resamplable(kinds, score, self._examples)

    def _best_threshold(self, name: str) -> float:
        order, gain, unanswered = self._steps(name)
        totals = np.cumsum([unanswered.sum(), *gain])
        best = int(np.argmax(totals))
        odds = self._odds.values()[order]
        return float(odds[best - 1] if best else min(0.0, np.nextafter(odds[0], -np.inf)))


def _by_version(rule: Rule, gold: Sequence[str], prediction: str) -> list[float]:
    """Exact match and F1 as in SQuAD 1.1, then as in 2.0."""
    first = rule.score(gold, prediction)
    differs = not gold or not all(map(rule.normalise, gold))
    return [*first, *(rule.score_or_none(gold, prediction) if differs else first)]
