"""The examples of the tasks, one dataclass each. `gold` is None for an unlabelled example."""

from dataclasses import dataclass

from bothways.text.long_text import LongText

Gold = str | tuple[str, ...] | float
"""A label, several labels, or a number to predict."""


@dataclass(frozen=True)
class Text:
    """One text or a pair, for classification or regression."""

    texts: tuple[str, ...]
    """One or two."""
    gold: Gold | None = None
    where: str = ""
    """The file and line it came from, as in `train.tsv, line 12`."""
    weight: float = 1.0
    """How much it counts in the loss: 2 is as if it were there twice."""

    @property
    def characters(self) -> int:
        """The length of its texts, as in every example below."""
        return sum(map(len, self.texts))


@dataclass(frozen=True)
class LongInput:
    """One text of any length, to be predicted: it streams."""

    text: LongText
    where: str = ""

    @property
    def characters(self) -> int:
        return len(self.text)


@dataclass(frozen=True)
class Tagged:
    """A text with a tag for each word, for token classification."""

    text: str
    words: tuple[tuple[int, int], ...]
    """Start and end of each word in the text; in Chinese data a word is often one character."""
    gold: tuple[str, ...] | None = None
    """One tag per word: entities in BIO, whatever the scheme of the file, or plain tags such as parts of speech."""
    where: str = ""

    @property
    def characters(self) -> int:
        return len(self.text)


@dataclass(frozen=True)
class Question:
    """A question on a context that contains the answer, or does not: extractive question answering."""

    id: str
    question: str
    context: str
    gold: tuple[tuple[str, int], ...] | None = None
    """The accepted answers with their start in the context; empty for an unanswerable question."""
    where: str = ""

    @property
    def characters(self) -> int:
        return len(self.question) + len(self.context)


@dataclass(frozen=True)
class Choice:
    """A multiple-choice question, with or without a context."""

    context: str
    question: str
    options: tuple[str, ...]
    gold: int | None = None
    """The index of the right option, from 0."""
    where: str = ""

    @property
    def characters(self) -> int:
        """Those that a model reads: the context and the question with every option."""
        each = len(self.context) + len(self.question)
        return each * len(self.options) + sum(map(len, self.options))


RELATED = "related"
"""The gold of texts that belong together."""


@dataclass(frozen=True)
class Related:
    """A text, one that belongs to it, and perhaps some that do not: for sentence vectors."""

    texts: tuple[str, ...]
    """The anchor, its positive, and hard negatives."""
    gold: float | str | None = RELATED
    """RELATED; how similar the two are; or their relation in natural language inference."""
    where: str = ""
    source: str = ""
    """The name of the file that it came from."""

    @property
    def characters(self) -> int:
        return sum(map(len, self.texts))
