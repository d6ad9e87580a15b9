"""Reads texts that belong together, for sentence vectors: pairs, scored pairs, triplets, lists of negatives, NLI."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bothways.data.examples import RELATED, Related
from bothways.data.labels import number_of
from bothways.data.notes import Notes, row_error
from bothways.data.sources import (
    ROWS,
    TABLES,
    Paths,
    find_sources,
    kind_of,
    name_of,
    peek,
    read_plain,
    rows_of,
    text_of,
)
from bothways.errors import BothwaysError, name_list
from bothways.text.columns import LABELS, NEGATIVE, PAIRS, Columns, find_columns, named_like, plain_name
from bothways.text.same_text import is_blank

RELATED_PAIRS = (
    ("anchor", "positive"), ("query", "positive"), ("query", "pos"), ("query", "positives"), ("question", "answer"),
    ("title", "abstract"), ("title", "body"), ("title", "text"), ("source", "target"), ("a", "b"), ("post", "response"),
    ("问题", "答案"), ("标题", "摘要"), ("标题", "正文"), ("标题", "内容"), ("原文", "译文"),
    *PAIRS,
)  # fmt: skip
"""Usual names of a text and of one that belongs to it; the first that a table has are taken."""
_OF_TEXTS = ("类目", "分类", "类型", "category", "class", "classindex", "sentiment", "intent", "emotion", "stars",
    "rating", "情感", "情感倾向", "情感极性", "情感标签", "情绪", "星级", "意图")  # fmt: skip
_RELATIONS = tuple(name for name in map(plain_name, LABELS) if name not in _OF_TEXTS)
"""Usual names of a score or relation of two texts. A category of a question and its answer is none."""
NLI = ("entailment", "neutral", "contradiction")
_NOT_ENTAILED = ("not_entailment", "non-entailment")
_MISSING = ("", "-", "none", "nan", "na", "n/a", "null")
"""No label. "-": the annotators of NLI did not agree."""
_CHINESE = {"蕴含": "entailment", "蕴涵": "entailment", "中立": "neutral", "矛盾": "contradiction"}


@dataclass(frozen=True)
class _Roles:
    """The columns of a table."""

    anchor: str
    positive: str | None
    """None: each text belongs to itself only."""
    negatives: tuple[str, ...]
    label: str | None


def read_related(
    paths: Paths, columns: Columns | None = None, notes: Notes | None = None, alone: bool = True
) -> Iterator[Related]:
    """Stream the examples of files, in constant memory.

    A row has an anchor and a positive, which `columns` names as text and pair, or which have usual names; further
    columns with names such as negative, neg_2 or hard_negatives are negatives. A cell of positives or negatives may
    be a list. A label is a score of similarity, or a relation of natural language inference. A file with one text per
    line, or one column of texts, gives texts that belong to themselves only (SimCSE), and is refused if not `alone`.
    """
    notes = notes if notes is not None else Notes()
    for path in find_sources(paths, (*ROWS, ".txt")):
        yield from _file(path, columns or Columns(), notes, alone)


def _file(path: Path, columns: Columns, notes: Notes, alone: bool) -> Iterator[Related]:
    kind, lines = kind_of(path), read_plain(path)
    if kind not in ROWS:
        first, lines = peek(lines)
        kind = ".jsonl" if first.startswith("{") else ".tsv" if "\t" in first else ".txt"
    if kind == ".txt":
        if not alone:
            raise _no_pairs(name_of(path))
        yield from _lines(path, lines)
        return
    known: dict[tuple[str, ...], _Roles] = {}
    for where, row in rows_of(path, kind, lines, notes):
        names = tuple(row)
        if names not in known:
            known[names] = roles = find_roles(columns, names, name_of(path) if kind in TABLES else where)
            if roles.positive is None and (roles.label is not None or not alone):
                raise _no_pairs(name_of(path))
            negatives = " + ".join(roles.negatives)
            notes.took(text=roles.anchor, pair=roles.positive, negatives=negatives, label=roles.label)
        yield from _examples(row, known[names], where, notes, path.name)


def _no_pairs(name: str) -> BothwaysError:
    says = "has one text in each row, and two are compared: name the column of the second with `pair`"
    return BothwaysError(f"{name} {says}", "no-pairs", name)


def _lines(path: Path, lines: Iterable[str]) -> Iterator[Related]:
    for number, line in enumerate(lines, 1):
        if text := line.strip():
            yield Related((text, text), RELATED, f"{name_of(path)}, line {number}", path.name)


def find_roles(columns: Columns, names: Sequence[str], where: str) -> _Roles:
    """Which column is the anchor, which its positive, which are negatives, and which is the label."""
    own = {plain_name(name): name for name in names}
    negatives = tuple(named_like(names, NEGATIVE))
    if columns.text:
        found = find_columns(columns, names, where)
        if any(len(some) > 1 for some in found.texts):
            raise BothwaysError(f"{where}: a text of several columns is not supported here", "bad-input", columns.text)
        texts = [some[0] for some in found.texts]
        return _Roles(texts[0], texts[1] if len(texts) > 1 else None, negatives, found.label)
    label = find_label(columns, own, where)
    rest = {key: name for key, name in own.items() if name not in negatives and name != label}
    for first, second in RELATED_PAIRS:
        one, two = plain_name(first), plain_name(second)
        if one in rest and two in rest:
            return _Roles(rest[one], rest[two], negatives, label)
    texts = [name for key, name in rest.items() if key not in ("id", "idx", "index", "guid", "relation", "编号")]
    if len(texts) in (1, 2):
        return _Roles(texts[0], texts[1] if len(texts) == 2 else None, negatives, label)
    raise BothwaysError(
        f"{where} has the columns {name_list(names)}: name the first text with `text`, and the one that belongs to it "
        "with `pair`",
        "ambiguous-column",
        tuple(names),
    )


def find_label(columns: Columns, own: dict[str, str], where: str) -> str | None:
    """The column of the label, by name or among the usual ones."""
    if columns.label:
        if plain_name(columns.label) not in own:
            names = name_list(own.values())
            says = f"{where} has no column {columns.label!r}, which `label` names: its columns are {names}"
            raise BothwaysError(says, "no-column", columns.label)
        return own[plain_name(columns.label)]
    return next((own[name] for name in _RELATIONS if name in own), None)


def _examples(row: dict[str, Any], roles: _Roles, where: str, notes: Notes, source: str) -> Iterator[Related]:
    anchor = text_of(row[roles.anchor], where, roles.anchor)
    positives = _texts(row, roles.positive, where) if roles.positive is not None else [anchor]
    negatives = [text for name in roles.negatives for text in _texts(row, name, where) if not is_blank(text)]
    gold = RELATED if roles.label is None else _gold(row[roles.label], where)
    if isinstance(gold, float) and roles.anchor.strip().lower() == "premise":
        raise row_error(
            where, f"has the number {gold:g} for a relation: write {', '.join(NLI[:2])} or {NLI[2]}", "bad-label"
        )
    if gold is None:
        notes.add("empty-label", where)
    if not positives or any(map(is_blank, (anchor, *positives, *negatives))):
        notes.add("empty-text", where)
    for positive in positives:
        yield Related((anchor, positive, *negatives), gold, where, source)


def _texts(row: dict[str, Any], name: str, where: str) -> list[str]:
    value = row[name]
    if isinstance(value, list):
        return [text_of(one, where, name) for one in value]
    return [] if value is None else [text_of(value, where, name)]


def _gold(value: Any, where: str) -> float | str | None:
    if str(value).strip().lower() in _MISSING:
        return None
    number = float(value) if isinstance(value, int | float) else number_of(str(value).strip())
    if number is not None and math.isfinite(number):
        return number
    name = _CHINESE.get(str(value).strip(), str(value).strip().lower())
    if name not in (*NLI, *_NOT_ENTAILED):
        raise row_error(
            where,
            f"has the label {value!r}: expected a score, or one of {', '.join((*NLI, *_NOT_ENTAILED))}",
            "bad-label",
        )
    return name


# ---------------------------------------------------------------------- natural language inference


def is_inference(examples: Iterable[Related]) -> bool:
    """Whether the labels are relations of natural language inference."""
    found = {example.gold for example in examples if example.gold is not None}
    return bool(found) and found <= {*NLI, *_NOT_ENTAILED}


def from_inference(examples: Sequence[Related]) -> list[Related]:
    """Entailed hypotheses as positives of their premise, and those that contradict it as hard negatives.

    >>> rows = [Related(("a", "b"), "entailment"), Related(("a", "c"), "contradiction"), Related(("a", "d"), "neutral")]
    >>> [example.texts for example in from_inference(rows)]
    [('a', 'b', 'c')]
    """
    against: dict[str, list[str]] = {}
    for example in examples:
        if example.gold == "contradiction":
            against.setdefault(example.texts[0], []).append(example.texts[1])
    return [
        Related((*example.texts[:2], *against.get(example.texts[0], ())), RELATED, example.where, example.source)
        for example in examples
        if example.gold == "entailment"
    ]
