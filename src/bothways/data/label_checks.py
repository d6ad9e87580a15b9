"""Checks of label names: imbalance, likely misspellings, labels of the development data that training lacks."""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations

from bothways.data.findings import MAX_PLACES, DataCounts, Finding

UNBALANCED = 10
"""Warn if the most frequent label has more than this many times the rows of the rarest."""
_RARE = 20
"""A label is a misspelling only if the label that it resembles is this many times as frequent."""
_SLIPS = 5
"""A label that differs in one letter is a misspelling only if it occurs at most this often."""
_COMPARED = 500
"""With more labels, only the most frequent and the rarest are compared: all pairs of 500 take a second."""

_MISSING = re.compile(
    r"n/?a|#n/?a|nan|<na>|null|nil|-+|\?+|\.+|missing|unlabell?ed|not labell?ed|to ?do|tbd|"
    "空|[无無][标標][签籤]|[未待][标標][注註记記]|缺失",
    re.IGNORECASE,
)
"""What people and programs write where there is no label."""

Counts = Mapping[str, int]


def by_count(counts: Counts) -> dict[str, int]:
    """The most frequent label first."""
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def check_balance(counts: Counts, what: str, do: str, settings: tuple[str, ...] = ()) -> Finding:
    """The most frequent label against the rarest. `do` and `settings`: advice for unbalanced data.

    With advice, misspellings and names such as N/A do not count as rare labels: they are to be corrected, not weighted.
    """
    odd = {rare for rare, _, _ in misspellings(counts)} | {*missing(counts)} if do else set()
    ordered = [(name, count) for name, count in by_count(counts).items() if name not in odd]
    (most, many), (least, few) = ordered[0], ordered[-1]
    ratio = many / few
    says = f"{least!r} occurs {few:,} times and {most!r} {many:,} times, {ratio:.1f} times as often."
    if few == many:
        says = f"each occurs {many:,} times."
    if ratio <= UNBALANCED or not do:
        return Finding("ok", "balance", f"{len(ordered):,} {what}: {says}", count=few)
    return Finding("warning", "balance", says, do, few, settings=settings)


def missing(counts: Counts) -> list[str]:
    """The labels that stand for none, unless all do."""
    found = [name for name in counts if _MISSING.fullmatch(name)]
    return found if len(found) < len(counts) else []


def check_missing(counts: Counts, data: DataCounts) -> Iterator[Finding]:
    """Labels such as N/A, which would be learned like others."""
    for name in missing(counts):
        yield Finding(
            "warning",
            "missing labels",
            f"{name!r} ({counts[name]:,} times) looks like a missing label, and would be learned as one more label.",
            "Empty these cells, so that the rows are left out; or rename the label if it is one.",
            counts[name],
            data.label_places({name: counts[name]}),
        )


def check_spelling(counts: Counts, data: DataCounts) -> Iterator[Finding]:
    """Labels that may be misspellings of others."""
    for rare, usual, how in misspellings(counts):
        yield Finding(
            "warning" if how == "one letter" else "error",
            "typos",
            f"{rare!r} ({counts[rare]:,} times) and {usual!r} ({counts[usual]:,} times) differ only in {how}.",
            f"Write {usual!r} in all of them if they mean the same.",
            counts[rare],
            tuple(f"{where} ({rare})" for where in data.short(data.places.get(rare, []))),
        )


def misspellings(counts: Counts) -> Iterator[tuple[str, str, str]]:
    """Labels that may be misspellings, the labels that they resemble, and how the two differ."""
    ordered = list(by_count(counts))
    some = ordered if len(ordered) <= _COMPARED else ordered[: _COMPARED // 2] + ordered[-_COMPARED // 2 :]
    for one, other in combinations(some, 2):
        rare, usual = sorted((one, other), key=lambda name: (counts[name], name))
        how = alike(rare, usual)
        few, many = counts[rare], counts[usual]
        same = rare.casefold() == usual.casefold() or "".join(rare.split()) == "".join(usual.split())
        is_slip = many >= _RARE * few and (how != "one letter" or few <= _SLIPS)
        # In small data one against ten is enough to ask.
        is_slip = is_slip or (few == 1 and many >= 10)
        if how and (same or is_slip):
            yield rare, usual, how


def check_known(known: Counts, found: Counts, dev: DataCounts) -> Finding:
    """Labels of the development data that the training data do not have."""
    unknown = {name: count for name, count in found.items() if name not in known}
    if not unknown:
        return Finding("ok", "unknown labels", "The training data have all labels of the development data.")
    rows = sum(unknown.values())
    names = "1 label" if len(unknown) == 1 else f"{len(unknown):,} labels"
    says = f"{names} of the development data, in {rows:,} rows, not in the training data: {listed(list(unknown))}."
    do = "Add such rows to the training data, or remove them from the development data."
    return Finding("error", "unknown labels", says, do, rows, dev.label_places(unknown))


def alike(one: str, other: str) -> str:
    """How two names that may be the same differ: in case, space or punctuation, or in one letter; "" if they are not.

    >>> alike("Spam", "spam"), alike("体育。", "体育"), alike("positive", "postive"), alike("good", "poor")
    ('case, white space or punctuation', 'case, white space or punctuation', 'one letter', '')
    """
    if _bare(one) and _bare(one) == _bare(other):
        return "case, white space or punctuation"
    return "one letter" if min(len(one), len(other)) >= 4 and _one_letter(one, other) else ""


@lru_cache(maxsize=2 * _COMPARED)
def _bare(name: str) -> str:
    """Letters and digits, with the + and # of C++ and C#; "" for a number, since -1 is not 1."""
    if re.fullmatch(r"[-+\d.,\s]*", name):
        return ""
    kept = (c for c in unicodedata.normalize("NFKC", name).casefold() if not c.isspace())
    return "".join(c for c in kept if c == "#" or unicodedata.category(c)[0] != "P")


def _one_letter(one: str, other: str) -> bool:
    """Whether one letter was inserted, dropped or changed; digits differ on purpose."""
    if abs(len(one) - len(other)) > 1:
        return False
    start = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    left, right = one[start:], other[start:]
    longer, shorter = (left, right) if len(left) >= len(right) else (right, left)
    differ = longer[:1] + (shorter[:1] if len(left) == len(right) else "")
    rest = shorter[1:] if len(left) == len(right) else shorter
    return longer[1:] == rest and all(letter.isalpha() for letter in differ)


def listed(names: Sequence[str]) -> str:
    """The first names, and the number of the others."""
    some = [repr(name) for name in names[:MAX_PLACES]]
    return ", ".join(some) + (f" and {len(names) - MAX_PLACES:,} more" if len(names) > MAX_PLACES else "")
