"""Answers with their texts, for people: marked texts, and lists that notebooks show."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bothways import atomic
from bothways.errors import BothwaysError
from bothways.marked_text import PAGE_END, Colours, MarkedText, html_table, marks_of, page_start
from bothways.tasks.tag import is_entities
from bothways.tasks.task import Task

if TYPE_CHECKING:
    from bothways.predict.predictor import Predictor

SHOWN, _CHARACTERS = 20, 200
"""What a notebook shows at most: answers of a list, characters of a text in a table."""


def require_marks(task: type[Task]) -> None:
    """Refuse a task whose answers have no place in a text."""
    if not task.marked_field:
        raise BothwaysError(
            f"a model for the task {task.name} marks nothing in a text: `show` and `html` are for entities, tags and "
            "answers to questions",
            "nothing-to-mark",
            task.name,
        )


def marked(task: type[Task], fields: Mapping[str, Any], answer: Any) -> MarkedText:
    """The text of an example, given by its fields, with the answer marked in it."""
    marks = tuple(mark for mark in marks_of(answer) if mark.end > mark.start)
    title = fields[task.marked_title] if task.marked_title else ""
    return MarkedText(fields[task.marked_field], marks, title if marks or not title else f"{title} (no answer)")


def marked_pair(task: type[Task], labels: Sequence[str], error: Mapping[str, Any]) -> tuple[MarkedText, MarkedText]:
    """The gold and the predicted marks of an entry of `Evaluation.worst`, near the places where they differ.

    Of plain tags, which every word has, only those that differ are marked.
    """
    text, (gold, found) = error[task.marked_field], (marks_of(error[name]) for name in ("gold", "answer"))
    wrong = {mark for mark in {*gold} ^ {*found} if mark.end > mark.start}
    if labels and not is_entities(labels):
        gold, found = (tuple(mark for mark in marks if mark in wrong) for marks in (gold, found))
    shown = [MarkedText(text, marks) for marks in (gold, found)]
    first, second = (
        MarkedText(_without_place(error[name]), ()) if task.marked_title and not one.kept() else one.near(wrong)
        for name, one in zip(("gold", "answer"), shown, strict=True)
    )
    return first, second


def _without_place(answer: Any) -> str:
    """An answer that is nowhere in the text: none, or one that the data have wrongly."""
    answer = answer[0] if isinstance(answer, list | tuple) and answer else answer
    text = answer.get("answer", "") if isinstance(answer, Mapping) else ""
    return f"{text} (not in the text)" if text else "(no answer)"


def error_text(error: Mapping[str, Any]) -> str:
    """The texts of an entry of `Evaluation.worst` on one line."""
    texts = error.get("texts") or (error.get("question", ""), error.get("context", ""))
    return _cut(" | ".join(" ".join(text.split()) for text in texts if text))


def shown_number(value: float) -> str:
    """
    >>> shown_number(1200), shown_number(0.5)
    ('1,200', '0.5000')
    """
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


def write_page(path: Path, predictor: "Predictor", answers: Iterable[tuple[Any, Any]]) -> None:
    """Write a self-contained HTML page of examples with their answers, while they come."""
    task, colours = type(predictor.task), Colours(predictor.labels)
    with atomic.new_file(path) as fresh, fresh.open("w", encoding="utf-8", errors="replace") as page:
        page.write(page_start(path.stem, colours))
        for example, answer in answers:
            page.write(f"<article>{marked(task, vars(example), answer).html(colours)}</article>\n")
        page.write(PAGE_END)


@dataclass(frozen=True)
class _View:
    """What a notebook shows of a list of answers: the texts of the first ones."""

    task: type[Task]
    labels: tuple[str, ...]
    examples: tuple[Any, ...]
    answers: tuple[Any, ...]
    """Of the same examples."""
    count: int
    is_one: bool
    """Whether the list is the answer to one input."""

    def html(self, now: Sequence[Any]) -> str | None:
        """None if the list has been changed since, so that its texts are no longer known."""
        first = now if self.is_one else now[:SHOWN]
        if len(now) != self.count or any(a is not b for a, b in zip(first, self.answers, strict=True)):
            return None
        answers = (list(now),) if self.is_one else self.answers
        if self.task.marked_field:
            colours = Colours(self.labels)
            pairs = zip(self.examples, answers, strict=True)
            shown = "".join(marked(self.task, vars(one), answer).html(colours) for one, answer in pairs)
        else:
            rows = [
                (*(_cut(text) for text in self.task.shown_texts(one)), self.task.shown(answer))
                for one, answer in zip(self.examples, answers, strict=True)
            ]
            shown = html_table((), rows)
        more = 0 if self.is_one else self.count - len(self.examples)
        return shown + (f"<p>… and {more:,} more</p>" if more else "")


class Answers(list[Any]):
    """Answers to several inputs, or the entities of one text. It is a list; notebooks show it with the texts."""

    def __init__(self, answers: Iterable[Any] = (), view: _View | None = None) -> None:
        super().__init__(answers)
        self._view = view

    def _repr_html_(self) -> str | None:
        return None if self._view is None else self._view.html(self)


def shown_answers(task: Task, examples: Sequence[Any], answers: list[Any], is_one: bool) -> Answers:
    """The answers as a list that notebooks show. `examples`: those of the first answers, or of the only one."""
    kept = tuple(answers if is_one else answers[:SHOWN])
    return Answers(answers, _View(type(task), tuple(task.labels), tuple(examples[:SHOWN]), kept, len(answers), is_one))


def _cut(text: str) -> str:
    return text if len(text) <= _CHARACTERS else text[: _CHARACTERS - 1] + "…"
