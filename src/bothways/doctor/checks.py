"""Rows against each other: copies, texts with two golds, and rows of the development data that are trained on."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.doctor.diagnosis import Finding, Severity, have, percent
from bothways.doctor.identity import Named, name_rows, short
from bothways.doctor.survey import KEEP, Hashes, Survey

MANY_COPIES = 0.005
"""The share of the rows above which copies are worth a look."""
FEW, MANY_CONFLICTS, MANY_LEAKS = 0.001, 0.01, 0.05
"""Up to the first share conflicts and leaks do no harm; from the others on they are wrong. CoLA as published has 0.3 %
and 1.3 %, CoNLL-2003 0.2 % and 2.3 %."""
_MIX = np.uint64(0x9E3779B97F4A7C15)

Rows = NDArray[np.int64]
Read = Callable[[], Iterable[Any]]
"""Reads the examples from the beginning, each time it is called."""


def find_copies(survey: Survey, read: Read, files: Sequence[str]) -> Finding:
    """Rows whose text an earlier row has, whatever its white space and case."""
    copies, firsts = repeats(survey.texts)
    if not len(copies):
        return Finding("fine", "duplicates", f"No text comes twice in {survey.rows:,} rows.")
    by_weight = np.argsort(survey.is_short[copies], kind="stable")  # those that tell something first
    copies, firsts = copies[by_weight], firsts[by_weight]
    telling = int((~survey.is_short[copies]).sum())
    severity: Severity = "look" if telling > MANY_COPIES * survey.rows else "fine"
    named = name_rows(read(), [*copies[:KEEP].tolist(), *firsts[:KEEP].tolist()])
    places = [
        f"{short(named[copy].where, files)} repeats {short(named[first].where, files)}: {named[copy].text}"
        for copy, first in zip(copies[:KEEP].tolist(), firsts[:KEEP].tolist(), strict=True)
    ]
    count = f"{len(copies):,} of {survey.rows:,} rows ({percent(len(copies), survey.rows)}) {have(len(copies))}"
    says = f"{count} the text of an earlier row{_shorts(len(copies) - telling)}."
    do = "Drop them if they were not meant to count several times." if severity == "look" else ""
    return Finding(severity, "duplicates", says, do, len(copies), tuple(places))


def find_conflicts(survey: Survey, read: Read, files: Sequence[str], task: str, kind: str) -> Finding:
    """Texts that come again with another gold."""
    rows, pairs = contradictions(survey.texts, survey.marks)
    word = {"tag": "tags", "answer": "answers", "choose": "answers"}.get(task, "labels")
    word = "numbers" if kind == "regression" else word
    if not len(rows):
        return Finding("fine", "conflicts", f"No text has two different {word}.")
    named = name_rows(read(), [row for pair in pairs for row in pair])
    places = [_against(named[first], named[second], files) for first, second in pairs]
    share = len(rows) / survey.rows
    # Annotators differ in numbers and in sets of labels, and a model can learn what they mean together.
    loose = kind in ("regression", "multi")
    severity: Severity = "fine" if share <= (MANY_CONFLICTS if loose else FEW) else "look"
    severity = "wrong" if share > MANY_CONFLICTS and not loose else severity
    says = f"{len(rows):,} rows ({percent(len(rows), survey.rows)}) have a text that comes again with different {word}."
    do = f"Decide on the {word}, or leave these rows out: no model can learn both." if severity != "fine" else ""
    return Finding(severity, "conflicts", says, do, len(rows), tuple(places))


def find_leaks(train: Survey, dev: Survey, reads: tuple[Read, Read], files: Sequence[str]) -> list[Finding]:
    """Rows of the development data whose text is in the training data, and texts on which both ask questions."""
    known = np.isin(dev.texts, train.texts[train.texts != 0])
    leaked = np.flatnonzero(known)
    if not len(leaked):
        found = [Finding("fine", "leakage", f"None of the {dev.rows:,} rows of --dev has a text of the training data.")]
    else:
        found = [_leak(train, dev, leaked, reads, files)]
    shared = int((np.isin(dev.groups, train.groups) & ~known).sum()) if len(dev.groups) else 0
    if shared > MANY_CONFLICTS * dev.rows:
        share = percent(shared, dev.rows)
        says = f"{shared:,} other questions of --dev ({share}) are asked on texts of the training data."
        do = "Split by text rather than by question, if the model is to meet new texts."
        found.append(Finding("look", "shared texts", says, do, shared))
    return found


def _leak(train: Survey, dev: Survey, leaked: Rows, reads: tuple[Read, Read], files: Sequence[str]) -> Finding:
    torn = int((~np.isin(_paired(dev)[leaked], _paired(train)) & (dev.marks[leaked] != 0)).sum())
    telling = int((~dev.is_short[leaked]).sum())
    share = telling / dev.rows
    severity: Severity = "wrong" if share > MANY_LEAKS else "look" if share > FEW else "fine"
    first = leaked[np.argsort(dev.is_short[leaked], kind="stable")][:KEEP].tolist()
    homes = [int(np.flatnonzero(train.texts == dev.texts[row])[0]) for row in first]
    there, here = name_rows(reads[0](), homes), name_rows(reads[1](), first)
    places = [_against(here[row], there[home], files) for row, home in zip(first, homes, strict=True)]
    gold = f"{torn:,} of them with another gold there" if torn else "with the same gold"
    count = f"{len(leaked):,} of the {dev.rows:,} rows of --dev ({percent(len(leaked), dev.rows)}) {have(len(leaked))}"
    says = f"{count} a text of the training data, {gold}{_shorts(len(leaked) - telling)}."
    do = "Take them out of one of the two files: scores on them show memory, not skill." if severity != "fine" else ""
    return Finding(severity, "leakage", says, do, len(leaked), tuple(places))


def repeats(texts: Hashes) -> tuple[Rows, Rows]:
    """The rows that repeat an earlier one, in order, and the first row with the same text of each.

    >>> [rows.tolist() for rows in repeats(np.array([7, 5, 7, 0, 0, 7], np.uint64))]
    [[2, 5], [0, 0]]
    """
    order = np.argsort(texts, kind="stable")
    sorted_texts = texts[order]
    begins = np.ones(len(texts), bool)
    begins[1:] = sorted_texts[1:] != sorted_texts[:-1]
    begin = np.maximum.accumulate(np.where(begins, np.arange(len(texts)), 0))
    later = ~begins & (sorted_texts != 0)
    copies, firsts = order[later], order[begin[later]]
    by_row = np.argsort(copies)
    return copies[by_row], firsts[by_row]


def contradictions(texts: Hashes, marks: Hashes) -> tuple[Rows, list[tuple[int, int]]]:
    """The rows whose text has several golds, and of the first such texts two rows that differ.

    >>> rows, pairs = contradictions(np.array([7, 5, 7, 7], np.uint64), np.array([1, 1, 1, 2], np.uint64))
    >>> rows.tolist(), pairs
    ([0, 2, 3], [(0, 3)])
    """
    told = np.flatnonzero((texts != 0) & (marks != 0))
    order = told[np.lexsort((marks[told], texts[told]))]
    same = texts[order][1:] == texts[order][:-1]
    torn = np.unique(texts[order][1:][same & (marks[order][1:] != marks[order][:-1])])
    rows = told[np.isin(texts[told], torn)]
    pairs = []
    for text in list(dict.fromkeys(texts[rows].tolist()))[:KEEP]:
        some = rows[texts[rows] == text]
        pairs.append((int(some[0]), int(some[marks[some] != marks[some[0]]][0])))
    return rows, pairs


def _paired(survey: Survey) -> Hashes:
    """Text and gold in eight bytes."""
    mixed: Hashes = survey.texts * _MIX ^ survey.marks
    return mixed


def _against(one: Named, other: Named, files: Sequence[str]) -> str:
    golds = [f" ({named.gold})" if one.gold != other.gold else "" for named in (one, other)]
    return f"{short(one.where, files)}{golds[0]} and {short(other.where, files)}{golds[1]}: {one.text}"


def _shorts(count: int) -> str:
    return f"; {count:,} are of a few words only" if count else ""
