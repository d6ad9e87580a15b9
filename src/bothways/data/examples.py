"""What the tasks learn from and are asked: one dataclass each. `gold` is None where nobody has labelled it."""

from dataclasses import dataclass

Gold = str | tuple[str, ...] | float
"""A label's name, the names of several labels, or a number."""


@dataclass(frozen=True)
class Text:
    """One text or a pair, to classify or to score."""

    texts: tuple[str, ...]
    """One or two."""
    gold: Gold | None = None
    where: str = ""
    """The file and line it came from, as in `train.tsv, line 12`."""


@dataclass(frozen=True)
class Tagged:
    """A text whose words carry tags."""

    text: str
    words: tuple[tuple[int, int], ...]
    """Where each word begins and ends in the text; in Chinese data a word is often one character."""
    gold: tuple[str, ...] | None = None
    """A tag for each word: entities in BIO whatever the file's scheme was, or plain ones such as parts of speech."""
    where: str = ""


@dataclass(frozen=True)
class Question:
    """A question on a text that holds the answer, or does not."""

    id: str
    question: str
    context: str
    gold: tuple[tuple[str, int], ...] | None = None
    """The accepted answers with the place in the context where each begins; empty if it has none."""
    where: str = ""


@dataclass(frozen=True)
class Choice:
    """A question, perhaps on a text, with several answers of which one is right."""

    context: str
    question: str
    options: tuple[str, ...]
    gold: int | None = None
    """The number of the right one, from 0."""
    where: str = ""
