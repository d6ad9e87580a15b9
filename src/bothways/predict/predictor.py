"""Predictions of a fine-tuned model: texts in, answers in the format of Hugging Face pipelines out."""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from bothways.data.examples import Choice, Question, Related, Tagged, Text
from bothways.data.notes import Notes
from bothways.engine.engine import Engine
from bothways.engine.reader import Tally
from bothways.errors import BothwaysError, require_choice
from bothways.model.box import boxed_name, boxed_tasks
from bothways.model.device import Device, Precision
from bothways.model.opened import AnsweringModel, open_model
from bothways.predict.ask import Documents, ask
from bothways.predict.ask_options import PASSAGES
from bothways.predict.display import SHOWN, Answers, shown_answers
from bothways.predict.encode import warn_of_losses
from bothways.predict.encode_options import Long
from bothways.progress import notebook_progress
from bothways.tasks.answering import decode_all
from bothways.tasks.registry import make_task, task_config, with_config
from bothways.tasks.task import EncodedExample
from bothways.text.columns import Columns
from bothways.text.frames import as_files, frame_kind, with_columns

_SINGLE = (str, bytes, tuple, Mapping)
"""Iterables that are one input."""


class Predictor:
    """Inference with a fine-tuned model, as the pipelines of transformers. Thread-safe.

    One input gives one prediction. A list, or any other iterable of inputs (an array, a pandas column, a generator),
    gives a list of predictions. So a list of words is several texts, and a tuple of words is one:

    | task     | an input                                       | a prediction                                       |
    |----------|------------------------------------------------|----------------------------------------------------|
    | classify | a text, or (text, text)                        | {"label", "score"}; a list for multi-label models |
    | score    | (text, text); of another library also a text   | {"label", "score"}                                 |
    | tag      | a text, or a tuple of words                    | [{"entity_group", "score", "word", "start", "end"}]|
    | answer   | {"question", "context"}, or (question, context)| {"score", "start", "end", "answer"}                |
    | choose   | {"question", "options", "context"}             | {"label", "answer", "score"}                       |

    A table in memory (a DataFrame of pandas or polars, a Dataset, a pyarrow table) gives a table of the same kind with
    all its columns and, after them, `predicted_label` and `predicted_score`, or whatever the keys of a prediction are;
    entities are in `predicted_entities`. Its text columns are found by their usual names, as in files.

    Predictions are plain dicts in lists. A notebook shows the lists with their texts, and entities in colours.
    """

    def __init__(
        self, model: AnsweringModel, *, device: Device = "auto", dtype: Precision = "auto", long: Long | None = None
    ) -> None:
        """`device` and `dtype`: as in `encode`. `long`: how to handle texts longer than the model's maximum length.

        By default as the model's folder says.
        """
        if model is None or isinstance(model, Path | str):
            raise BothwaysError(
                f"a model was expected, and {model!r} was given: Predictor.load opens a folder", "bad-input", model
            )
        self.engine = Engine(model, device=device, dtype=dtype)
        self.model = self.engine.model
        if long is not None:
            require_choice("`long`", long, get_args(Long))
            config = task_config(self.model)
            self.model = with_config(self.model, replace(config, window=replace(config.window, long=long)))
        self.name = task_config(self.model).task
        self.task = make_task(self.model)
        self.task.reader.long_setting = "`long`"

    @classmethod
    def load(
        cls,
        folder: Path | str,
        *,
        base: Path | str | None = None,
        device: Device = "auto",
        dtype: Precision = "auto",
        long: Long | None = None,
    ) -> "Predictor":
        """From a folder of `finetune`, or one of transformers with a head for a task. `base`: as in `bothways.load`."""
        try:
            return cls(open_model(folder, base), device=device, dtype=dtype, long=long)
        except BothwaysError as error:
            encoder = boxed_name(folder) if error.code == "no-task-head" else None
            if encoder is None or not (tasks := boxed_tasks(encoder)):
                raise
            says = f"the included model {encoder} answers with one of its tasks: {', '.join(tasks)}"
            says += f" (--task NAME, in Python bothways.boxed(NAME, {encoder!r}))"
            raise BothwaysError(says, error.code, error.value) from error

    def __repr__(self) -> str:
        names = ", ".join(self.labels[:8]) + (f", … ({len(self.labels)} labels)" if len(self.labels) > 8 else "")
        return f"Predictor({self.name}: {names or self.task.title})\n  {self.model!r}"

    @property
    def labels(self) -> tuple[str, ...]:
        labels: tuple[str, ...] = self.model.config.labels
        return labels

    @property
    def tally(self) -> Tally:
        """Counts of the texts so far: how many were read in windows, how many were cut."""
        return self.task.reader.tally

    def __call__(self, inputs: Any, *, top: int = 1, text: str = "", pair: str = "") -> Any:
        """The answer to one input, or a list of answers to many. With top > 1: the `top` best answers to each input.

        `text` and `pair` name the columns of a table. Warns if texts were cut; `stream` counts them in `tally`.
        """
        if frame_kind(inputs):
            return self._table(inputs, top, Columns(text or None, pair or None))
        lost, is_one = self.tally.cut, not isinstance(inputs, Iterable) or isinstance(inputs, _SINGLE)
        if is_one:
            found = self._listed([inputs], top)
        else:
            with notebook_progress("predicting", len(inputs) if isinstance(inputs, Sized) else None) as bar:
                found = self._listed(bar.over(inputs), top)
        if self.tally.cut > lost:
            warn_of_losses(self.tally)
        return found[0] if is_one else found

    def _table(self, table: Any, top: int, columns: Columns) -> Any:
        """The table with the answers to its rows. Warns of odd rows, such as those without a text."""
        lost, notes = self.tally.cut, Notes(whole=True)
        with as_files(table) as (name,), notebook_progress("predicting", len(table)) as bar:
            examples = self.task.read_inputs(name, columns, notes)
            found = [
                answer_columns(answer, self.task.list_column) for _, answer in self.answers(bar.over(examples), top=top)
            ]
        if self.tally.cut > lost:
            warn_of_losses(self.tally)
        if notes:
            warnings.warn(str(notes), stacklevel=3)
        names = found[0] if found else ()
        return with_columns(table, {name: [row[name] for row in found] for name in names})

    def _listed(self, inputs: Iterable[Any], top: int) -> Answers:
        """All answers, in lists that notebooks show with their texts."""
        first, found = list[Any](), list[Any]()
        for example, answer in self.answers(map(self.example, inputs), top=top):
            if len(found) < SHOWN:
                first.append(example)
            if self.task.marked_field and isinstance(answer, list):
                answer = shown_answers(self.task, [example], answer, is_one=True)
            found.append(answer)
        return shown_answers(self.task, first, found, is_one=False)

    def stream(self, inputs: Iterable[Any], *, top: int = 1) -> Iterator[Any]:
        """The answers to a stream of inputs, in order and in constant memory."""
        return (answer for _, answer in self.answers(map(self.example, inputs), top=top))

    def ask(
        self, question: str, documents: Documents, *, top: int = 1, passages: int = PASSAGES
    ) -> list[dict[str, Any]]:
        """The `top` best answers to a question in documents: a model for the task answer reads their passages.

        `documents`: .txt, .md, .html and .pdf files, folders and patterns, or a dictionary of texts by name; a string
        is never taken for a text. An answer is {"answer", "score", "file", "page", "line", "start", "end", "passage",
        "passage_start"}. The score is that of the span minus that of no answer, so that those of all passages can be
        compared. No answer is "", without a file; it comes first if no passage has one. Of more than `passages`
        passages, those that match the words of the question best (BM25) are read; a warning tells what was not read.
        """
        lost, asked = self.tally.cut, ask(self, question, documents, top=top, passages=passages)
        if self.tally.cut > lost:
            warn_of_losses(self.tally)
        for note in asked.notes():
            warnings.warn(note, stacklevel=2)
        return asked.answers

    def answers(self, examples: Iterable[Any], *, top: int = 1, first: int = 0) -> Iterator[tuple[Any, Any]]:
        """Examples, as `example` or a file reader makes them, each with its answer. `first`: see `decode_all`."""
        self.require_top(top)
        return (
            (item.example, self.task.answer(item, decoded, top)) for item, decoded in self.decode_all(examples, first)
        )

    def require_top(self, top: int) -> None:
        """Refuse a number of answers that this model does not give."""
        if top < 1:
            raise BothwaysError(f"`top` is {top}: expected 1 or more", "out-of-range", top)
        if top > 1 and not self.task.has_ranking:
            raise BothwaysError(
                f"a model for the task {self.name} gives one answer to each input, and `top` is {top}: leave it out",
                "one-answer",
                top,
            )

    def decode_all(self, examples: Iterable[Any], first: int = 0) -> Iterator[tuple[EncodedExample, Any]]:
        """Encoded examples with the decoded outputs of the model, which scores are computed from.

        `first`: the number of the first example, counted from 0, for errors.
        """
        return decode_all(self.task, self._forward, examples, self.engine.backend, self.engine.around, first)

    def _forward(self, batch: Any) -> Any:
        return self.engine.outputs(self.task, batch)

    def example(self, given: Any) -> Any:
        """An input as an example of the task."""
        if isinstance(given, Text | Tagged | Question | Choice | Related):
            return given
        if isinstance(given, np.ndarray):  # a row of a table of pairs or words
            given = tuple(given.tolist())
        return self.task.parse(given)


def answer_columns(answer: Any, list_column: str) -> dict[str, Any]:
    """An answer as columns: the keys of a dictionary; a list, of entities in one column, else of labels and scores."""
    if isinstance(answer, Mapping):
        return {f"predicted_{key}": value for key, value in answer.items()}
    if list_column:
        return {f"predicted_{list_column}": list(answer)}
    keys = dict.fromkeys(key for one in answer for key in one) or ("label", "score")
    return {f"predicted_{key}s": [one[key] for one in answer] for key in keys}
