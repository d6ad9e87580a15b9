"""Sentences of CoNLL-U, the files of Universal Dependencies."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bothways.data.examples import Tagged
from bothways.data.notes import Notes
from bothways.data.words import Place, spaced
from bothways.errors import BothwaysError

COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")


@dataclass
class _Token:
    """What is written between two spaces: mostly one word, or several as in don't."""

    form: str
    glued: bool
    """Nothing stands between it and the next one."""
    last: int
    """The number of its last word."""
    words: list[str]
    tags: list[str]


def is_conllu(line: str) -> bool:
    """Whether a line that is no comment has the ten columns."""
    cells = line.split("\t")
    return len(cells) == len(COLUMNS) and cells[0].partition("-")[0].partition(".")[0].isdecimal()


def read_conllu(name: str, lines: Iterable[str], column: str, notes: Notes) -> Iterator[Tagged]:
    """The sentences with the tags of a column, upos or another of the ten."""
    if column not in COLUMNS:
        raise BothwaysError(f"{name} has no column {column!r}: the columns of CoNLL-U are {', '.join(COLUMNS)}")
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
    """One line, put to the token it belongs to."""
    if len(cells) != len(COLUMNS):
        raise BothwaysError(f"{where} has {len(cells)} columns with tabs between them: CoNLL-U has {len(COLUMNS)}")
    number, form = cells[0], cells[1]
    if "." in number:  # a word that is not in the text, only in the analysis
        return
    first, _, last = number.partition("-")
    if not (first.isdecimal() and (last.isdecimal() or "-" not in number)):
        raise BothwaysError(f"{where} begins with {number!r}: expected the number of a word, as in 3, 3-4 or 3.1")
    if last:
        tokens.append(_Token(form, _glued(cells[9]), int(last), [], []))
        return
    if not tokens or int(first) > tokens[-1].last:
        tokens.append(_Token(form, _glued(cells[9]), int(first), [], []))
    tokens[-1].words.append(form)
    tokens[-1].tags.append(cells[column])


def _glued(misc: str) -> bool:
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
        else:  # du of de and le: there is no place in the text for each
            notes.add("joined-words", where)
            words.append((first, last))
            tags.append("+".join(token.tags))
    gold = None if set(tags) == {"_"} else tuple(tags)
    return Tagged(text, tuple(words), gold, where)


def _find(text: str, tokens: list[_Token]) -> list[Place] | None:
    """Where the tokens stand in the text, one after the other with at most spaces between; None if they do not."""
    places, end = [], 0
    for token in tokens:
        first = text.find(token.form, end)
        if first < 0 or text[end:first].strip():
            return None
        end = first + len(token.form)
        places.append((first, end))
    return None if text[end:].strip() else places


def _rebuild(tokens: list[_Token]) -> tuple[str, list[Place]]:
    """The text that the tokens make, with a space after each unless it is glued to the next or both are CJK."""
    text, places = "", list[Place]()
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        places.append((len(text), len(text) + len(token.form)))
        gap = following is not None and not token.glued and spaced(token.form[-1:], following.form[:1])
        text += token.form + " " * gap
    return text, places
