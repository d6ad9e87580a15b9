"""Reads entities marked by character offsets, as doccano, Prodigy, Label Studio, spaCy and brat write them."""

from collections.abc import Sequence
from typing import Any

from bothways.data.examples import Tagged
from bothways.data.exports import is_regions
from bothways.data.notes import Notes, row_error
from bothways.data.schemes import Span, from_spans
from bothways.data.sources import text_of
from bothways.data.words import Place, split_words
from bothways.printable import counted

FIELDS = ("spans", "label", "labels", "entities")
_STARTS = ("start", "start_offset")
_ENDS = ("end", "end_offset")
_TYPES = ("label", "type")


def read_spans(row: dict[str, Any], field: str | None, where: str, notes: Notes) -> Tagged | None:
    """One row with a text and the offsets of its entities; None if Prodigy's annotator did not accept it.

    The words are the tokens of the row if it has some, else those of `split_words`: they never depend on the entities,
    because an unlabelled text must be split in the same way. An entity that ends inside a word is widened to it.
    """
    if row.get("answer") in ("reject", "ignore") and not notes.whole:
        notes.add("rejected-annotation", where)
        return None
    text = text_of(row.get("text"), where, "text")
    values = None if field is None else row[field]
    if not isinstance(values, list | None):
        raise row_error(where, f"has no list of entities in {field}", "no-entities")
    entities = None if values is None else _entities(values, text, where)
    tokens = row.get("tokens")
    words = _tokens(tokens, text, where) if tokens else split_words(text)
    gold = None if entities is None else from_spans(_on_words(entities, words, where, notes), len(words))
    return Tagged(text, tuple(words), gold, where)


def find_field(row: dict[str, Any]) -> str | None:
    """The field that holds the entities: the first that has some, else the first list, else None.

    Label Studio's may have any name.
    """
    lists = [name for name in FIELDS if isinstance(row.get(name), list)]
    lists += [name for name, value in row.items() if name not in FIELDS and is_regions(value)]
    return next((name for name in lists if row[name]), lists[0] if lists else None)


def _tokens(tokens: Any, text: str, where: str) -> list[Place]:
    try:
        places = [(token["start"], token["end"]) for token in tokens]
    except (TypeError, KeyError):
        raise row_error(where, "has tokens without a start and an end: expected Prodigy's", "bad-tokens") from None
    if any(not 0 <= first < last <= len(text) for first, last in places):
        raise row_error(where, f"has a token outside of its text of {len(text)} characters", "bad-tokens")
    return places


def _entities(values: Sequence[Any], text: str, where: str) -> list[Span]:
    """The entities with their offsets, in order; an error if two overlap."""
    found = (_region(value, text, where) if is_regions([value]) else _entity(value, where) for value in values)
    entities = sorted(found, key=lambda entity: entity[1:])
    end, length = 0, len(text)
    for kind, first, last in entities:
        if not 0 <= first < last <= length:
            says = f"has a {kind} from {first} to {last}, and its text has {length} characters"
            raise row_error(where, says, "bad-entity")
        if first < end:
            says = f"has entities that overlap at character {first}: one tag per word cannot mark both, so remove one"
            raise row_error(where, says, "overlapping-entities")
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
    says = f"has the entity {value!r}: expected [start, end, type], or an object with start, end, label"
    raise row_error(where, says, "bad-entity")


def _region(value: dict[str, Any], text: str, where: str) -> Span:
    """A region of Label Studio, which counts the places of some texts in UTF-16, where an emoji is two."""
    labels, place, shown = value["labels"], value.get("globalOffsets") or value, value.get("text")
    if not isinstance(labels, list) or len(labels) != 1:
        count = counted(len(labels), "label")
        says = f"has the region {shown!r} with {count}: one tag per word needs one, so remove the others"
        raise row_error(where, says, "bad-entity")
    kind, start, end = _entity({**place, "label": labels[0]}, where)
    if not isinstance(shown, str) or text[start:end] == shown:
        return kind, start, end
    units = text.encode("utf-16-le", "surrogatepass")
    first, last = (len(units[: 2 * at].decode("utf-16-le", "ignore")) for at in (start, end))
    if text[first:last] != shown and text[first:last].split() != shown.split():
        says = f"has the region {shown[:40]!r} from {start} to {end}, where its text has {text[start:end][:40]!r}"
        raise row_error(where, f"{says}: mark it again", "bad-entity")
    return kind, first, last


def _on_words(entities: list[Span], words: Sequence[Place], where: str, notes: Notes) -> list[Span]:
    """The entities with word indices instead of character offsets."""
    found: list[Span] = []
    taken = 0  # the end of the words that earlier entities cover
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
