"""Checks that hold for every task: faulty rows, the reader's notes, duplicates, conflicts, leakage."""

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bothways.data.findings import MAX_PLACES, DataCounts, Finding, Severity, have, percent, short
from bothways.doctor.hashes import Hashes, Rows, among, contradictions, repeats
from bothways.doctor.survey import Row, Survey

_MANY_COPIES = 0.005
"""Warn if more than this share of the rows are duplicates."""
_FEW, _MANY_CONFLICTS, _MANY_LEAKS = 0.001, 0.01, 0.05
"""Conflicts and leaks up to the first share do no harm; above the others they are errors. CoLA as published has 0.3 %
and 1.3 %, CoNLL-2003 0.2 % and 2.3 %."""
_MIX = np.uint64(0x9E3779B97F4A7C15)

# The reader's notes by code: severity, and what to do. "": another check reports it.
_NOTES: dict[str, tuple[Severity | Literal[""], str]] = {
    "empty-text": ("", ""),
    "empty-label": ("", ""),
    "answer-not-found": ("", ""),
    "broken-tags": ("", ""),
    "no-agreement": ("ok", ""),
    "wrong-cell-count": ("error", "Correct these lines: a tab or a comma is missing, or a text has one too many."),
    "no-label-column": ("error", "Name the column with `label`."),
    "mixed-tags": ("error", "Correct the odd tags: with one of them in the file, only tags are learned, no entities."),
    "answer-not-an-option": ("error", "Correct the answers: such questions are left out."),
    "answer-moved": ("warning", "The nearest place is taken: check that it is the right one."),
    "ambiguous-answer": ("ok", ""),
    "numeric-tags": ("warning", "Write their names, as in B-PER, so that entities are found."),
}


def check_rows(counts: DataCounts) -> Iterator[Finding]:
    """Empty, unlabelled and damaged rows, and what the reader noted."""
    yield from counts.rows_with("empty", "error", "an empty text", "Fill them in or drop them.")
    if "empty" not in counts.faults:
        yield Finding("ok", "empty", f"None of {counts.rows:,} rows has an empty text.")
    if counts.labelled:
        do = "They are left out: label or drop them."
        yield from counts.rows_with("unlabelled", "warning", "no label", do)
    else:
        do = "Name the column of the label with `label`, or another task with `task`."
        yield Finding("error", "unlabelled", f"None of {counts.rows:,} rows has a label.", do, counts.rows)
    do = "Make the file again from its source."
    yield from counts.rows_with("damaged", "warning", "the replacement character � for lost text", do)
    for code, count in counts.notes.counts.items():
        severity, do = _NOTES.get(code, ("warning", ""))
        if severity:
            places = counts.short(counts.notes.places[code].first)
            yield Finding(severity, "reader", f"{counts.notes.sentence(code)}: {count:,}.", do, count, places)


def find_copies(survey: Survey) -> Finding:
    """Rows with the text of an earlier row, whatever its white space and case."""
    copies, firsts = repeats(survey.text_hashes)
    if not len(copies):
        return Finding("ok", "duplicates", f"No text occurs twice in {survey.rows:,} rows.")
    longer_first = np.argsort(survey.is_short[copies], kind="stable")
    copies, firsts = copies[longer_first], firsts[longer_first]
    longer = int((~survey.is_short[copies]).sum())
    severity: Severity = "warning" if longer > _MANY_COPIES * survey.rows else "ok"
    pairs = list(zip(copies[:MAX_PLACES].tolist(), firsts[:MAX_PLACES].tolist(), strict=True))
    rows = survey.show(row for pair in pairs for row in pair)
    places = []
    for copy, first in pairs:
        copy_at, first_at = survey.short([rows[copy].where, rows[first].where])
        places.append(f"{copy_at} repeats {first_at}: {rows[copy].text}")
    count = f"{len(copies):,} of {survey.rows:,} rows ({percent(len(copies), survey.rows)}) {have(len(copies))}"
    says = f"{count} the text of an earlier row{_few_words(len(copies) - longer)}."
    do = "Drop them if they should not count several times." if severity == "warning" else ""
    return Finding(severity, "duplicates", says, do, len(copies), tuple(places))


def find_conflicts(survey: Survey, kind: str) -> Finding:
    """Equal texts with different golds."""
    rows, pairs = contradictions(survey.text_hashes, survey.gold_hashes, MAX_PLACES)
    name = survey.task.golds
    if not len(rows):
        return Finding("ok", "conflicts", f"No text has two different {name}.")
    shown = survey.show(row for pair in pairs for row in pair)
    places = [_both(shown[first], shown[second], survey.files) for first, second in pairs]
    share = len(rows) / survey.rows
    may_differ = kind in survey.task.ambiguous_kinds
    severity: Severity = "ok" if share <= (_MANY_CONFLICTS if may_differ else _FEW) else "warning"
    severity = "error" if share > _MANY_CONFLICTS and not may_differ else severity
    says = f"{len(rows):,} rows ({percent(len(rows), survey.rows)}) have a text that occurs with different {name}."
    do = f"Decide on the {name}, or drop these rows: no model can learn both." if severity != "ok" else ""
    return Finding(severity, "conflicts", says, do, len(rows), tuple(places))


def find_leaks(train: Survey, dev: Survey) -> Iterator[Finding]:
    """Development rows whose texts, whose shared text, or one of whose sentences is in the training data.

    Case, white space and punctuation do not matter, nor the order of a pair.
    """
    known = among(dev.loose_hashes, train.loose_hashes)
    leaked = np.flatnonzero(known)
    if len(leaked):
        yield _leak(train, dev, leaked)
    else:
        yield Finding("ok", "leakage", f"None of the {dev.rows:,} development rows has a text of the training data.")
    if len(dev.shared_hashes):
        in_train = among(dev.shared_hashes, train.shared_hashes)
        shared = int((in_train & ~known).sum())
        if shared > _MANY_CONFLICTS * dev.rows:
            says = (
                f"{shared:,} more development rows ({percent(shared, dev.rows)}) ask about a text of the training data."
            )
            do = "Split by text, not by question, if the model is to read new texts."
            yield Finding("warning", "shared texts", says, do, shared)
    yield from _shared_sentences(train, dev, known)


def _shared_sentences(train: Survey, dev: Survey, leaked: NDArray[np.bool_]) -> Iterator[Finding]:
    """Sentences of development pairs that stand in training pairs, beside those of rows that leak as a whole."""
    sentences, owners = dev.sentence_hashes
    rows = owners.astype(np.int64)
    shared = among(sentences, train.sentence_hashes[0]) & ~leaked[rows]
    count, total = len(np.unique(sentences[shared])), len(np.unique(sentences))
    if count <= _MANY_CONFLICTS * total:
        return
    found = np.unique(rows[shared])
    shown = dev.show(found[:MAX_PLACES].tolist())
    places = tuple(f"{short(row.where, (*train.files, *dev.files))}: {row.text}" for row in shown.values())
    says = (
        f"{count:,} of {total:,} sentences of the development pairs ({percent(count, total)}), in {len(found):,} more "
        "rows, stand in pairs of the training data."
    )
    do = "Remove them from the training data if scores are to show skill on new sentences."
    yield Finding("warning", "shared sentences", says, do, count, places)


def _leak(train: Survey, dev: Survey, leaked: Rows) -> Finding:
    differ = ~among(_text_and_gold(dev)[leaked], _text_and_gold(train)) & (dev.gold_hashes[leaked] != 0)
    longer = int((~dev.is_short[leaked]).sum())
    share = longer / dev.rows
    severity: Severity = "error" if share > _MANY_LEAKS else "warning" if share > _FEW else "ok"
    first = leaked[np.argsort(dev.is_short[leaked], kind="stable")][:MAX_PLACES].tolist()
    origins = [int(np.flatnonzero(train.loose_hashes == dev.loose_hashes[row])[0]) for row in first]
    in_train, in_dev = train.show(origins), dev.show(first)
    files = (*train.files, *dev.files)
    places = [_both(in_dev[row], in_train[origin], files) for row, origin in zip(first, origins, strict=True)]
    gold = f"{differ.sum():,} of them with another gold there" if differ.any() else "with the same gold"
    count = f"{len(leaked):,} of {dev.rows:,} development rows ({percent(len(leaked), dev.rows)}) {have(len(leaked))}"
    says = f"{count} a text of the training data, {gold}{_few_words(len(leaked) - longer)}."
    do = "Remove them from one of the two: scores on them show memory, not skill." if severity != "ok" else ""
    return Finding(severity, "leakage", says, do, len(leaked), tuple(places))


def _text_and_gold(survey: Survey) -> Hashes:
    """One hash for both."""
    mixed: Hashes = survey.loose_hashes * _MIX ^ survey.gold_hashes
    return mixed


def _both(one: Row, other: Row, files: Sequence[str]) -> str:
    golds = [f" ({row.gold})" if one.gold != other.gold else "" for row in (one, other)]
    return f"{short(one.where, files)}{golds[0]} and {short(other.where, files)}{golds[1]}: {one.text}"


def _few_words(count: int) -> str:
    return f"; {count:,} of them {have(count)} only a few words" if count else ""
