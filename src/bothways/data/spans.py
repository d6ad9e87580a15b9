"""Entities marked by places in a text, as doccano and Prodigy write them."""

from collections.abc import Sequence
from typing import Any

from bothways.data.examples import Tagged
from bothways.data.notes import Notes
from bothways.data.schemes import Span, from_spans
from bothways.data.sources import text_of
from bothways.data.words import Place, split_words
from bothways.errors import BothwaysError

FIELDS = ("spans", "label", "labels", "entities")
_STARTS = ("start", "start_offset")
_ENDS = ("end", "end_offset")
_TYPES = ("label", "type")


def read_spans(row: dict[str, Any], field: str | None, where: str, notes: Notes) -> Tagged | None:
    """One row with a text and the places of entities in it; None for one that Prodigy's annotator did not accept.

    Words are those of the row if it has tokens with places, else those of `split_words`, whatever the entities are: a
    text is cut in the same way where nobody knows them. An entity that ends inside a word is widened to it.
    """
    if row.get("answer") in ("reject", "ignore") and not notes.whole:
        notes.add("rejected-annotation", where)
        return None
    text = text_of(row.get("text"), where, "text")
    values = None if field is None else row[field]
    if not isinstance(values, list | None):
        raise BothwaysError(f"{where} has no list of entities in {field}")
    entities = None if values is None else _entities(values, len(text), where)
    tokens = row.get("tokens")
    words = _tokens(tokens, text, where) if tokens else split_words(text)
    gold = None if entities is None else from_spans(_on_words(entities, words, where, notes), len(words))
    return Tagged(text, tuple(words), gold, where)


def find_field(row: dict[str, Any]) -> str | None:
    """The field that holds the entities, or None: the first that has some, or the first."""
    lists = [name for name in FIELDS if isinstance(row.get(name), list)]
    return next((name for name in lists if row[name]), lists[0] if lists else None)


def _tokens(tokens: Any, text: str, where: str) -> list[Place]:
    try:
        places = [(token["start"], token["end"]) for token in tokens]
    except (TypeError, KeyError):
        raise BothwaysError(f"{where} has tokens without a start and an end: expected Prodigy's") from None
    if any(not 0 <= first < last <= len(text) for first, last in places):
        raise BothwaysError(f"{where} has a token outside of its text of {len(text)} characters")
    return places


def _entities(values: Sequence[Any], length: int, where: str) -> list[Span]:
    """The entities with their places in the text, in order; overlapping ones are an error."""
    entities = sorted((_entity(value, where) for value in values), key=lambda entity: entity[1:])
    end = 0
    for kind, first, last in entities:
        if not 0 <= first < last <= length:
            raise BothwaysError(f"{where} has a {kind} from {first} to {last}, and its text has {length} characters")
        if first < end:
            raise BothwaysError(f"{where} has entities that overlap at character {first}: tags cannot hold both")
        end = last
    return entities


def _entity(value: Any, where: str) -> Span:
    """[start, end, type], or an object with these."""
    if isinstance(value, dict):
        parts = [next((value[name] for name in names if name in value), None) for names in (_STARTS, _ENDS, _TYPES)]
    else:
        parts = list(value) if isinstance(value, list | tuple) else []
    match parts:
        case [int(first), int(last), str(kind)]:
            return kind, first, last
    raise BothwaysError(
        f"{where} has the entity {value!r}: expected [start, end, type], or an object with start, end, label"
    )


def _on_words(entities: list[Span], words: Sequence[Place], where: str, notes: Notes) -> list[Span]:
    """The entities with the numbers of their words."""
    found: list[Span] = []
    taken = 0  # words that belong to the entities before
    for kind, start, end in entities:
        inside = [index for index, (first, last) in enumerate(words) if first < end and start < last]
        if not inside:
            notes.add("empty-entity", where)
        elif inside[0] < taken:
            notes.add("overlapping-entity", where)
        else:
            if words[inside[0]][0] < start or end < words[inside[-1]][1]:
                notes.add("widened-entity", where)
            taken = inside[-1] + 1
            found.append((kind, inside[0], taken))
    return found
