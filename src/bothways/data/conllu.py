"""Sentences of CoNLL-U and CoNLL-U Plus, the files of Universal Dependencies.

Tags are those of a column. Entities are read from a key of MISC: tags such as NER=B-PER, or brackets such as
Entity=(e1-person-1 … Entity=e1), as in CorefUD and GUM; or from a further column that `# global.columns` names.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bothways.data.examples import Tagged
from bothways.data.notes import Notes, row_error
from bothways.data.schemes import Span, from_spans
from bothways.data.words import Place, spaced
from bothways.errors import BothwaysError, name_list

_BRACKETS = re.compile(r"\([^()]*\)?|[^()]+\)")
COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")


@dataclass
class _Token:
    """A surface token: mostly one word, or several as in don't."""

    form: str
    no_space_after: bool
    last: int
    """The number of its last word."""
    words: list[str]
    tags: list[str]


def is_conllu(line: str) -> bool:
    """Whether a line, not a comment, has the ten columns of CoNLL-U."""
    cells = line.split("\t")
    return len(cells) == len(COLUMNS) and cells[0].partition("-")[0].partition(".")[0].isdecimal()


@dataclass
class _Layout:
    """Where the tags of a file are."""

    name: str
    asked: str
    """In lower case: the name of a column, or of a key of MISC."""
    columns: tuple[str, ...] = COLUMNS
    type_field: int = 1
    """The place of the type in brackets such as (e1-person-1."""
    found: bool = False
    """Whether a word had the key."""

    @property
    def is_entities(self) -> bool:
        """Whether the tags are entities, so that a word without one is outside of them."""
        return self.asked not in COLUMNS

    def read_comment(self, key: str, value: str) -> None:
        if key == "global.columns":
            self.columns = tuple(value.lower().split())
        elif key == "global.Entity":
            fields = value.strip().lower().split("-")
            self.type_field = next((fields.index(one) for one in ("etype", "entity", "type") if one in fields), 1)

    def cell(self, cells: list[str], column: str) -> str:
        return cells[self.columns.index(column)] if column in self.columns else "_"

    def tag(self, cells: list[str]) -> str:
        """The tag of a word."""
        if self.asked in self.columns:
            self.found, tag = True, self.cell(cells, self.asked)
            return "O" if self.is_entities and tag in ("_", "*", "-") else tag
        for part in self.cell(cells, "misc").split("|"):
            key, _, value = part.partition("=")
            if key.strip().lower() == self.asked and value:
                self.found = True
                return value
        return "O"


def read_conllu(name: str, lines: Iterable[str], column: str, notes: Notes) -> Iterator[Tagged]:
    """The sentences with the tags of a column, such as upos, or of a key of MISC, such as ner, in lower case."""
    layout = _Layout(name, column)
    text, begin, tokens, has_words = "", 0, list[_Token](), False
    for number, line in enumerate(lines, 1):
        line = line.rstrip("\r\n ")
        if line.startswith("#"):
            key, _, value = line[1:].partition("=")
            text = value.strip() if key.strip() == "text" else text
            layout.read_comment(key.strip(), value)
        elif line:
            begin, has_words = begin or number, True
            _add(line.split("\t"), layout, tokens, f"{name}, line {number}")
        if not line and tokens:
            yield _sentence(text, tokens, f"{name}, line {begin}", notes, layout)
        if not line:
            text, begin, tokens = "", 0, []
    if tokens:
        yield _sentence(text, tokens, f"{name}, line {begin}", notes, layout)
    if has_words and not layout.found:
        says = f"{name} has neither a column nor a key of MISC {column!r}: its columns are {name_list(layout.columns)}"
        raise BothwaysError(f"{says}; name another with `label`", "no-column", column)


def _add(cells: list[str], layout: _Layout, tokens: list[_Token], where: str) -> None:
    """Add one line to the token it belongs to."""
    if len(cells) != len(layout.columns):
        raise row_error(
            where,
            f"has {len(cells)} tab-separated columns: this file of CoNLL-U has {len(layout.columns)}",
            "wrong-cell-count",
        )
    number, form = layout.cell(cells, "id"), layout.cell(cells, "form")
    if "." in number:  # an empty node: a word of the analysis that is not in the text
        return
    first, _, last = number.partition("-")
    if not (first.isdecimal() and (last.isdecimal() or "-" not in number)):
        raise row_error(
            where, f"begins with {number!r}: expected the number of a word, as in 3, 3-4 or 3.1", "bad-word-id"
        )
    no_space_after = _no_space_after(layout.cell(cells, "misc"))
    if last:
        tokens.append(_Token(form, no_space_after, int(last), [], []))
        return
    if not tokens or int(first) > tokens[-1].last:
        tokens.append(_Token(form, no_space_after, int(first), [], []))
    tokens[-1].words.append(form)
    tokens[-1].tags.append(layout.tag(cells))


def _no_space_after(misc: str) -> bool:
    return "SpaceAfter=No" in misc.split("|")


def _sentence(text: str, tokens: list[_Token], where: str, notes: Notes, layout: _Layout) -> Tagged:
    places = _find(text, tokens) if text else None
    if places is None:
        if text:
            notes.add("text-mismatch", where)
        text, places = _rebuild(tokens)
    words: list[Place] = []
    tags: list[str] = []
    for token, (first, last) in zip(tokens, places, strict=True):
        lengths = [len(word) for word in token.words]
        if "".join(token.words).lower() == token.form.lower() and sum(lengths) == last - first:
            for length, tag in zip(lengths, token.tags, strict=True):
                words.append((first, first + length))
                tags.append(tag)
                first += length
        else:  # French du is de and le: neither has its own characters in the text
            notes.add("joined-words", where)
            words.append((first, last))
            tags.append("+".join(token.tags) if not layout.is_entities else _joined(token.tags))
    if layout.is_entities and any("(" in tag or ")" in tag for tag in tags):
        tags = _from_brackets(tags, layout.type_field, where, notes)
    gold = None if set(tags) == {"_"} else tuple(tags)
    return Tagged(text, tuple(words), gold, where)


def _joined(tags: list[str]) -> str:
    """The entity tag of words that are written as one: brackets of all, or the first tag that is not O."""
    inside = [tag for tag in tags if tag != "O"]
    return "".join(inside) if any(_BRACKETS.search(tag) for tag in inside) else next(iter(inside), "O")


def _from_brackets(values: list[str], type_field: int, where: str, notes: Notes) -> list[str]:
    """BIO tags of entities that open and close in brackets. Of nested ones the outermost is taken; others are noted."""
    opened: list[tuple[str, str, int]] = []  # id, type, first word
    found: list[Span] = []
    for index, value in enumerate(values):
        for bracket in _BRACKETS.findall(value):
            fields = bracket.strip("()").split("-")
            if bracket.startswith("("):
                if len(fields) <= type_field:
                    says = f"has the entity {bracket!r} without a type: expected an id and a type, as in (e1-person"
                    raise row_error(where, says, "bad-entity")
                opened.append((fields[0], fields[type_field], index))
            if bracket.endswith(")"):
                own = next((i for i in reversed(range(len(opened))) if opened[i][0] == fields[0]), None)
                if own is None:
                    raise row_error(where, f"closes the entity {fields[0]!r}, which is not open", "bad-entity")
                _, kind, first = opened.pop(own)
                found.append((kind, first, index + 1))
    if opened:
        raise row_error(where, f"does not close the entity {opened[0][0]!r}", "bad-entity")
    outer: list[Span] = []
    for span in sorted(found, key=lambda span: (span[1], -span[2])):
        if outer and span[1] < outer[-1][2]:
            notes.add("overlapping-entity", where)
        else:
            outer.append(span)
    return list(from_spans(outer, len(values)))


def _find(text: str, tokens: list[_Token]) -> list[Place] | None:
    """The spans of the tokens in the text, with at most spaces between them; None if the text does not contain them."""
    places, end = [], 0
    for token in tokens:
        first = text.find(token.form, end)
        if first < 0 or text[end:first].strip():
            return None
        end = first + len(token.form)
        places.append((first, end))
    return None if text[end:].strip() else places


def _rebuild(tokens: list[_Token]) -> tuple[str, list[Place]]:
    """The text of the tokens, with a space after each unless it has SpaceAfter=No or stands between CJK characters."""
    text, places = "", list[Place]()
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        places.append((len(text), len(text) + len(token.form)))
        gap = following is not None and not token.no_space_after and spaced(token.form[-1:], following.form[:1])
        text += token.form + " " * gap
    return text, places
