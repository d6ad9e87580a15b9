"""Sentences of CoNLL-U, the files of Universal Dependencies."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bothways.data.examples import Tagged
from bothways.data.notes import Notes, row_error
from bothways.data.words import Place, spaced
from bothways.errors import BothwaysError

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


def read_conllu(name: str, lines: Iterable[str], column: str, notes: Notes) -> Iterator[Tagged]:
    """The sentences with the tags of one of the ten columns, such as upos."""
    if column not in COLUMNS:
        raise BothwaysError(
            f"{name} has no column {column!r}: the columns of CoNLL-U are {', '.join(COLUMNS)}", "no-column", column
        )
    text, begin, tokens = "", 0, list[_Token]()
    for number, line in enumerate(lines, 1):
        line = line.rstrip("\r\n ")
        if line.startswith("#"):
            key, _, value = line[1:].partition("=")
            text = value.strip() if key.strip() == "text" else text
        elif line:
            begin = begin or number
            _add(line.split("\t"), COLUMNS.index(column), tokens, f"{name}, line {number}")
        if not line and tokens:
            yield _sentence(text, tokens, f"{name}, line {begin}", notes)
        if not line:
            text, begin, tokens = "", 0, []
    if tokens:
        yield _sentence(text, tokens, f"{name}, line {begin}", notes)


def _add(cells: list[str], column: int, tokens: list[_Token], where: str) -> None:
    """Add one line to the token it belongs to."""
    if len(cells) != len(COLUMNS):
        raise row_error(
            where, f"has {len(cells)} tab-separated columns: CoNLL-U has {len(COLUMNS)}", "wrong-cell-count"
        )
    number, form = cells[0], cells[1]
    if "." in number:  # an empty node: a word of the analysis that is not in the text
        return
    first, _, last = number.partition("-")
    if not (first.isdecimal() and (last.isdecimal() or "-" not in number)):
        raise row_error(
            where, f"begins with {number!r}: expected the number of a word, as in 3, 3-4 or 3.1", "bad-word-id"
        )
    if last:
        tokens.append(_Token(form, _no_space_after(cells[9]), int(last), [], []))
        return
    if not tokens or int(first) > tokens[-1].last:
        tokens.append(_Token(form, _no_space_after(cells[9]), int(first), [], []))
    tokens[-1].words.append(form)
    tokens[-1].tags.append(cells[column])


def _no_space_after(misc: str) -> bool:
    return "SpaceAfter=No" in misc.split("|")


def _sentence(text: str, tokens: list[_Token], where: str, notes: Notes) -> Tagged:
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
            tags.append("+".join(token.tags))
    gold = None if set(tags) == {"_"} else tuple(tags)
    return Tagged(text, tuple(words), gold, where)


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
