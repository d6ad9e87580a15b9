"""Questions over documents: the answers of all passages compared, each with its file and place."""

import json
import tempfile
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from bothways.data.examples import Question
from bothways.errors import BothwaysError, needs
from bothways.predict.ask_options import PASSAGES
from bothways.progress import Watch, watch_nothing
from bothways.tasks.answer import NULL, QuestionAnswering
from bothways.text.bm25 import QueryScores
from bothways.text.document_files import Passage, find_documents, is_document, read_passages, split_passages
from bothways.text.files import no_text, replace_surrogates
from bothways.text.same_text import is_blank

if TYPE_CHECKING:
    from bothways.predict.predictor import Predictor

Documents = Path | str | Iterable[Path | str] | Mapping[str, str]
"""Files, folders and patterns; or texts by name."""
Answer = dict[str, Any]
KEYS = ("answer", "score", "file", "page", "line", "start", "end", "passage", "passage_start")
"""Those of an answer."""


@dataclass(frozen=True)
class Asked:
    """The answers to a question, and what was read for them."""

    answers: list[Answer]
    documents: int
    passages: int
    read: int
    """The passages that the model has read: those with the highest BM25 scores."""
    skipped: tuple[str, ...]
    """Files of other kinds."""
    empty: tuple[str, ...]
    """Documents without text."""
    broken: tuple[str, ...] = ()
    """Why documents could not be read, or not to their end: a sentence each, which names the file."""

    def notes(self) -> list[str]:
        """What was not read, one sentence each."""
        found = []
        if self.read < self.passages:
            found.append(
                f"{self.read:,} of {self.passages:,} passages were read, those that match the words of the question "
                "best (BM25): set `passages` to read more"
            )
        if self.skipped:
            found.append(f"{_files(self.skipped)} skipped as no document, such as {self.skipped[0]}")
            if any(is_document(Path(name)) for name in self.skipped):
                found[-1] += f"; {needs('reading .pdf', 'pypdf')}"
        if self.broken:
            more = f"; {len(self.broken):,} files could not be read" if len(self.broken) > 1 else ""
            found.append(f"{self.broken[0]}{more}")
        if self.empty:
            found.append(
                f"{_files(self.empty)} without text, such as {self.empty[0]} (a scanned .pdf has only pictures)"
            )
        return found


def _files(names: tuple[str, ...]) -> str:
    return f"{len(names):,} file{'s were' if len(names) > 1 else ' was'}"


def ask(
    predictor: "Predictor",
    question: str,
    documents: Documents,
    *,
    top: int = 1,
    passages: int = PASSAGES,
    watch: Watch = watch_nothing,
) -> Asked:
    """See `Predictor.ask`."""
    task = predictor.task
    if not isinstance(task, QuestionAnswering):
        raise BothwaysError(
            f"a model for the task {predictor.name} answers no questions over documents: that needs a model for the "
            f"task {QuestionAnswering.name}",
            "no-questions",
            predictor.name,
        )
    if not isinstance(question, str) or is_blank(question):
        raise BothwaysError(f"expected a question, and {question!r} was given", "empty-text", question)
    for name, number in (("top", top), ("passages", passages)):
        if number < 1:
            raise BothwaysError(f"`{name}` is {number}: expected 1 or more", "out-of-range", number)
    broken: dict[str, BothwaysError] = {}
    names, found, skipped = _open(documents, broken)
    with tempfile.TemporaryFile() as file:
        stored, scores = _Stored(file), QueryScores(question)
        for number, passage in watch(found, "reading", names):
            stored.add(number, passage)
            scores.add(passage.text)
        if not len(scores):
            raise next(iter(broken.values()), None) or no_text(names)
        chosen = sorted(scores.best(passages)) if len(scores) > passages else range(len(scores))
        best = _best(predictor, question, watch(stored.read(chosen), "answering"), top)
    answers = [candidate.answer(names[candidate.document]) for candidate in best]
    # No answer has the score at which it wins, and so its place in the list.
    none = {**dict.fromkeys(KEYS), "answer": "", "score": 0.0 - task.config.thresholds.get(NULL, 0.0), "passage": ""}
    answers.insert(sum(one["score"] >= none["score"] for one in answers), none)
    empty = tuple(name for n, name in enumerate(names) if n not in stored.documents and name not in broken)
    return Asked(answers[:top], len(names), len(scores), len(chosen), skipped, empty, tuple(map(str, broken.values())))


def _open(
    documents: Documents, broken: dict[str, BothwaysError]
) -> tuple[list[str], Iterator[tuple[int, Passage]], tuple[str, ...]]:
    """The names of the documents, their passages with the number of the document, and the names of skipped files.

    A file that cannot be read, or not to its end, ends nothing: its error is added to `broken`, by its name.
    """
    if isinstance(documents, Mapping):
        texts = list(documents.values())
        for text in texts:
            if not isinstance(text, str):
                raise BothwaysError(f"expected texts by name, and {text!r} was given as a text", "bad-input", text)
        parts = (split_passages([replace_surrogates(text)]) for text in texts)
        return list(documents), _numbered(parts), ()
    found = find_documents([documents] if isinstance(documents, str | Path) else documents)
    return (
        list(map(str, found.files)),
        _numbered(_readable(file, broken) for file in found.files),
        tuple(map(str, found.skipped)),
    )


def _readable(file: Path, broken: dict[str, BothwaysError]) -> Iterator[Passage]:
    """The passages of a file, up to where it cannot be read."""
    try:
        yield from read_passages(file)
    except BothwaysError as error:
        broken[str(file)] = error
    except OSError as error:
        broken[str(file)] = BothwaysError(f"{file} cannot be read: {error.strerror}", "unreadable-file", file)


def _numbered(documents: Iterable[Iterable[Passage]]) -> Iterator[tuple[int, Passage]]:
    return ((number, passage) for number, passages in enumerate(documents) for passage in passages)


class _Stored:
    """Passages in a file: each document is read once, and memory holds 8 bytes for each passage."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._places, self._end = file, array("q"), 0
        self.documents: set[int] = set()
        """The documents that have a passage."""

    def add(self, document: int, passage: Passage) -> None:
        self.documents.add(document)
        self._places.append(self._end)
        row = json.dumps([document, passage.text, passage.start, passage.lines, passage.page])
        self._end += self._file.write(row.encode() + b"\n")

    def read(self, numbers: Iterable[int]) -> Iterator[tuple[int, Passage]]:
        for number in numbers:
            self._file.seek(self._places[number])
            document, text, start, lines, page = json.loads(self._file.readline())
            yield document, Passage(text, start, tuple(lines), page)


@dataclass(frozen=True)
class _Candidate:
    """A span of a passage."""

    score: float
    document: int
    passage: Passage
    start: int
    end: int
    """In the passage."""

    def answer(self, name: str) -> Answer:
        passage = self.passage
        line = passage.lines[passage.text.count("\n", 0, self.start)] if passage.lines else None
        text, start, end = passage.text[self.start : self.end], passage.start + self.start, passage.start + self.end
        values = (text, self.score, name, passage.page, line, start, end, passage.text, passage.start)
        return dict(zip(KEYS, values, strict=True))


def _best(predictor: "Predictor", question: str, passages: Iterable[tuple[int, Passage]], top: int) -> list[_Candidate]:
    """The best spans of all passages; of equal ones the first."""
    waiting: deque[tuple[int, Passage]] = deque()

    def examples() -> Iterator[Question]:
        for document, passage in passages:
            waiting.append((document, passage))
            yield Question("", question, passage.text)

    best: list[_Candidate] = []
    for _, decoded in predictor.decode_all(examples()):
        document, passage = waiting.popleft()
        for start, end, score in decoded.ranked(top):
            best.append(_Candidate(score - decoded.null, document, passage, start, end))
        best = sorted(best, key=lambda candidate: -candidate.score)[:top]
    return best
