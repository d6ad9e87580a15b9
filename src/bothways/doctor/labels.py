"""The labels of data: how many of each, whether some are rare, misspelt, unknown, or no labels at all."""

import math
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations

from bothways.data.examples import Gold
from bothways.data.labels import label_kind, names_of, number_of
from bothways.doctor.diagnosis import Finding, Share
from bothways.doctor.identity import short
from bothways.doctor.survey import KEEP, Survey
from bothways.tasks.tag import is_entities

UNBALANCED = 10
"""So many times as many rows of the commonest label as of the rarest are too many to say nothing."""
_RARE = 20
"""A label is a misspelling only if it is so many times as rare as what it looks like."""
_SLIPS = 5
"""… and, where one letter differs, if there are at most so many of it."""
_FEW_NAMES = 20
"""More labels than this that are whole numbers may be amounts."""
_COMPARED = 500
"""Of more labels the commonest and the rarest are compared: each with each takes a second."""
_BINS = 5

Counts = Mapping[str, int]


def kind_of_data(task: str, survey: Survey) -> str:
    """single, multi or regression for texts; entities or plain for tags; else nothing."""
    match task:
        case "classify" | "score" if survey.golds:
            are_numbers = task == "score" and all(_number(gold) is not None for gold in survey.golds)
            return "regression" if are_numbers else label_kind(survey.golds)
        case "tag":
            return "entities" if is_entities(list(survey.names)) else "plain"
    return ""


def count_labels(task: str, kind: str, survey: Survey) -> dict[str, int]:
    """How often each label, type of entities, tag, or place comes; of numbers, how many are in each fifth."""
    if kind == "entities":
        return {name[2:]: count for name, count in sorted(survey.names.items()) if name.startswith("B-")}
    if kind == "regression":
        numbers = [(_number(gold), count) for gold, count in survey.golds.items()]
        return _fifths([(number, count) for number, count in numbers if number is not None])
    if task not in ("classify", "score"):
        return dict(sorted(survey.names.items()))
    counts: dict[str, int] = {}
    for gold, count in survey.golds.items():
        for name in names_of(gold):
            counts[name] = counts.get(name, 0) + count
    return counts


def shares(counts: Counts, task: str, kind: str, labelled: int) -> tuple[Share, ...]:
    """The commonest first; fifths of numbers and places of options in their own order."""
    whole = sum(counts.values()) if task == "tag" else labelled
    ordered = counts.items() if task == "choose" or kind == "regression" else _by_count(counts)
    return tuple(Share(name, count, count / max(whole, 1)) for name, count in ordered)


def find_label_faults(
    task: str, kind: str, survey: Survey, files: Sequence[str], column: str = ""
) -> Iterator[Finding]:
    """What is odd about the labels of training data, which stand in this column."""
    odd = list(find_no_numbers(task, kind, survey, files))
    yield from odd
    counts = count_labels(task, kind, survey)
    if kind in ("regression", "") or not counts or odd:
        return
    labelled = survey.rows - survey.unlabelled.count
    what = {"entities": "types of entities", "plain": "tags"}.get(kind, "labels")
    if kind == "single" and len(counts) == 1:
        says = f"All rows have the label {next(iter(counts))!r}: there is nothing to tell apart."
        yield Finding("wrong", "labels", says, "Add rows with other labels, or name the right column with --label.")
    elif kind == "single" and len(counts) > max(labelled / 2, KEEP):
        says = f"There are {len(counts):,} different labels in {labelled:,} rows."
        yield Finding("wrong", "labels", says, "Name the right column with --label.", len(counts))
    else:
        yield _balance(kind, what, counts)
        yield from _typos(kind, counts, survey, files)
        if kind == "single":
            yield from _amounts(counts, column)
            yield from _several(counts)


def find_unknown_labels(task: str, kind: str, train: Survey, dev: Survey, files: Sequence[str]) -> Iterator[Finding]:
    """Labels of the development data that nothing in the training data teaches."""
    if kind in ("regression", ""):
        return
    kind_of_dev = kind_of_data(task, dev)
    if task == "classify" and kind_of_dev != kind:
        says = f"The labels of --dev are of the kind {kind_of_dev}, those of the training data {kind}."
        yield Finding("wrong", "unknown labels", says, "Write both files in the same way.")
        return
    known, met = count_labels(task, kind, train), count_labels(task, kind, dev)
    unknown = {name: count for name, count in met.items() if name not in known}
    if not unknown:
        yield Finding("fine", "unknown labels", "The training data have all labels of --dev.")
        return
    rows = sum(unknown.values())
    spots = dev.places if kind != "entities" else {name: dev.places.get(f"B-{name}", []) for name in unknown}
    places = [f"{short(where, files)} ({name})" for name in unknown for where in spots.get(name, [])[:1]][:KEEP]
    names = "1 label" if len(unknown) == 1 else f"{len(unknown):,} labels"
    says = f"{names} of --dev, in {rows:,} rows, not in the training data: {_listed(list(unknown))}."
    do = "Add such rows to the training data, or take them out of --dev."
    yield Finding("wrong", "unknown labels", says, do, rows, tuple(places))


def alike(one: str, other: str) -> str:
    """How two names differ if they may be the same one: in case, space or punctuation, or in one letter; else nothing.

    >>> alike("Spam", "spam"), alike("体育。", "体育"), alike("positive", "postive"), alike("good", "poor")
    ('case, white space or punctuation', 'case, white space or punctuation', 'one letter', '')
    """
    if _bare(one) and _bare(one) == _bare(other):
        return "case, white space or punctuation"
    return "one letter" if min(len(one), len(other)) >= 4 and _one_letter(one, other) else ""


def _balance(kind: str, what: str, counts: Counts) -> Finding:
    ordered = _by_count(counts)
    (most, many), (least, few) = ordered[0], ordered[-1]
    ratio = many / few
    says = f"{least!r} comes {few:,} times and {most!r} {many:,} times, {ratio:.1f} times as often."
    if len(counts) == 1 or few == many:
        says = f"each comes {many:,} times."
    if ratio <= UNBALANCED or kind == "plain":
        return Finding("fine", "balance", f"{len(counts):,} {what}: {says}", count=few)
    advice = {
        "single": "Weigh them with --set classify.class_weights=balanced, and choose the best model with "
        "--set classify.metric=macro_f1; or find more rows of the rare ones.",
        "multi": "If the rare ones matter, weigh them with --set classify.class_weights=balanced and look at macro_f1.",
    }
    return Finding(
        "look", "balance", says, advice.get(kind, "Find more of the rare ones, or expect less of them."), few
    )


def _typos(kind: str, counts: Counts, survey: Survey, files: Sequence[str]) -> Iterator[Finding]:
    """Names that may be misspellings of others. Of parts of speech many differ by one letter, so none is."""
    found = []
    ordered = [name for name, _ in _by_count(counts)]
    some = ordered if len(ordered) <= _COMPARED else ordered[: _COMPARED // 2] + ordered[-_COMPARED // 2 :]
    for one, other in combinations(some, 2):
        rare, usual = sorted((one, other), key=lambda name: (counts[name], name))
        how = alike(rare, usual)
        few, many = counts[rare], counts[usual]
        same = rare.casefold() == usual.casefold() or "".join(rare.split()) == "".join(usual.split())
        is_slip = many >= _RARE * few and (how != "one letter" or few <= _SLIPS)
        # A handful of rows shows no ratio: one against ten is enough to ask.
        is_slip = is_slip or (few == 1 and many >= 10)
        if how and kind != "plain" and (same or is_slip):
            found.append((rare, usual, how))
    for rare, usual, how in found:
        spots = survey.places.get(rare if kind != "entities" else f"B-{rare}", [])
        says = f"{rare!r} ({counts[rare]:,} times) and {usual!r} ({counts[usual]:,} times) differ in {how} only."
        places = tuple(f"{short(where, files)} ({rare})" for where in spots)
        yield Finding(
            "look" if how == "one letter" else "wrong",
            "typos",
            says,
            f"Write {usual!r} in all of them if they mean the same.",
            counts[rare],
            places,
        )


def find_no_numbers(task: str, kind: str, survey: Survey, files: Sequence[str]) -> Iterator[Finding]:
    """Labels that are no numbers, where score needs them, or where nearly all others are amounts."""
    if task not in ("classify", "score") or kind == "multi":
        return
    numbers = {gold: _number(gold) for gold in survey.golds}
    odd = {gold: count for gold, count in survey.golds.items() if numbers[gold] is None}
    rows = sum(odd.values())
    amounts = any(number % 1 for number in numbers.values() if number)
    endless = any(isinstance(gold, float) for gold in odd)
    if rows and (task == "score" or endless or (amounts and rows < survey.golds.total() / 10)):
        what = f"no {'finite ' * endless}number"
        are = f"1 label is {what}" if rows == 1 else f"{rows:,} labels are {what}s"
        says = f"{are}: {_listed([str(gold) for gold in odd])}."
        places = [f"{short(where, files)} ({gold})" for gold in odd for where in survey.places.get(str(gold), [])[:1]]
        yield Finding(
            "wrong", "labels", says, "Write numbers, as the other rows have them.", rows, tuple(places[:KEEP])
        )


def _number(gold: Gold) -> float | None:
    number = number_of(gold)
    return number if number is not None and math.isfinite(number) else None


def _amounts(counts: Counts, column: str) -> Iterator[Finding]:
    few = 2 if any(word in column.lower() for word in ("score", "similarity")) else _FEW_NAMES
    if len(counts) > few and all(name.isdecimal() for name in counts):
        says = f"The {len(counts):,} labels are whole numbers, from {min(map(int, counts))} to {max(map(int, counts))}."
        do = "They are taken as names; if they are amounts, add --set classify.kind=regression."
        yield Finding("look", "labels", says, do, len(counts))


def _several(counts: Counts) -> Iterator[Finding]:
    """Cells such as joy|awe, where joy is a label too."""
    for mark in "|;,":
        joined = [name for name in counts if mark in name and any(p.strip() in counts for p in name.split(mark))]
        if joined:
            look = "1 label looks" if len(joined) == 1 else f"{len(joined):,} labels look"
            says = f"{look} like several in one cell, as in {joined[0]!r}."
            do = "If they are several, write .jsonl in which the label of a row is a list."
            if mark != ";":  # which no reader parts
                do = "If they are several, add --set classify.kind=multi."
            yield Finding("look", "labels", says, do, len(joined))
            return


def _by_count(counts: Counts) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _fifths(numbers: Sequence[tuple[float, int]]) -> dict[str, int]:
    if not numbers:
        return {}
    low, high = min(numbers)[0], max(numbers)[0]
    step = (high - low) / _BINS or 1.0
    names = [f"{low + i * step:.4g} to {low + (i + 1) * step:.4g}" for i in range(_BINS if high > low else 1)]
    found = dict.fromkeys(names, 0)
    for number, count in numbers:
        found[names[min(int((number - low) / step), len(names) - 1)]] += count
    return found


@lru_cache(maxsize=2 * _COMPARED)
def _bare(name: str) -> str:
    """Letters and digits, with the + and # of C++ and C#; of a number nothing, for -1 is not 1."""
    if re.fullmatch(r"[-+\d.,\s]*", name):
        return ""
    kept = (c for c in unicodedata.normalize("NFKC", name).casefold() if not c.isspace())
    return "".join(c for c in kept if c == "#" or unicodedata.category(c)[0] != "P")


def _one_letter(one: str, other: str) -> bool:
    """Whether one letter was put in, left out or changed; digits are meant to differ."""
    if abs(len(one) - len(other)) > 1:
        return False
    start = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    left, right = one[start:], other[start:]
    longer, shorter = (left, right) if len(left) >= len(right) else (right, left)
    differ = longer[:1] + (shorter[:1] if len(left) == len(right) else "")
    rest = shorter[1:] if len(left) == len(right) else shorter
    return longer[1:] == rest and all(letter.isalpha() for letter in differ)


def _listed(names: Sequence[str]) -> str:
    some = [repr(name) for name in names[:KEEP]]
    return ", ".join(some) + (f" and {len(names) - KEEP:,} more" if len(names) > KEEP else "")
