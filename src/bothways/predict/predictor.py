"""Answers of a fine-tuned model: texts in, the dictionaries of a Hugging Face pipeline out."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bothways.data.examples import Choice, Question, Tagged, Text
from bothways.data.words import join_words, split_words
from bothways.errors import BothwaysError
from bothways.model import checkpoint
from bothways.model.batch import Batch
from bothways.model.model import Model
from bothways.predict.choices import Long
from bothways.tasks.engine import decisions
from bothways.tasks.folder import task_config, with_config
from bothways.tasks.kinds import make_task
from bothways.tasks.reading import Tally
from bothways.tasks.task import Item


class Predictor:
    """A model folder that answers.

    One input gives one answer; a list of inputs, or anything else that holds or makes them (an array, a column of a
    table, a generator), gives a list of answers. So a list of words is several texts; a tuple is one:

    | task     | an input                                       | an answer                                          |
    |----------|------------------------------------------------|----------------------------------------------------|
    | classify | a text, or (text, text)                        | {"label", "score"}; of several labels a list       |
    | score    | (text, text)                                   | {"label", "score"}                                 |
    | tag      | a text, or a tuple of words                    | [{"entity_group", "score", "word", "start", "end"}]|
    | answer   | {"question", "context"}, or (question, context)| {"score", "start", "end", "answer"}                |
    | choose   | {"question", "options", "context"}             | {"label", "answer", "score"}                       |
    """

    def __init__(self, model: Model, *, device: str = "auto", long: Long | None = None) -> None:
        """Texts beyond the model's limit are met as its folder says, or as `long` does: window, cut or error."""
        if not isinstance(model, Model):
            raise BothwaysError(f"a model was expected, and {model!r} was given: a folder is opened by Predictor.load")
        if long is not None:
            config = task_config(model)
            model = with_config(model, replace(config, window=replace(config.window, long=long)))
        kind = device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
        self.model = model.to(kind).eval()
        self.name = task_config(model).task
        self.task = make_task(model)
        self.task.reader.switch = "--long"

    @classmethod
    def load(cls, folder: Path | str, *, device: str = "auto", long: Long | None = None) -> "Predictor":
        """From a folder that `bothways finetune` made, or one of transformers' with a head that answers."""
        return cls(checkpoint.load(folder), device=device, long=long)

    @property
    def labels(self) -> tuple[str, ...]:
        return self.model.config.labels

    @property
    def tally(self) -> Tally:
        """What happened to the texts so far: how many were read in windows, how many cut."""
        return self.task.reader.tally

    def __call__(self, inputs: Any, *, top: int = 1) -> Any:
        """The answer to one input, or those to many as a list; with top > 1 the likeliest so many of each."""
        if isinstance(inputs, Iterable) and not isinstance(inputs, str | bytes | tuple | Mapping):
            return list(self.stream(inputs, top=top))
        return next(self.stream([inputs], top=top))

    def stream(self, inputs: Iterable[Any], *, top: int = 1) -> Iterator[Any]:
        """The answers to inputs as they come, one after the other: memory does not grow with their number."""
        return (answer for _, answer in self.answers(map(self.example, inputs), top=top))

    def answers(self, examples: Iterable[Any], *, top: int = 1) -> Iterator[tuple[Any, Any]]:
        """Examples as `example` makes them, or as files are read, each with its answer."""
        if top < 1:
            raise BothwaysError(f"top says how many answers are wanted, and is {top}: expected 1 or more")
        if top > 1 and self.name in ("tag", "score"):
            one = "tag to each word" if self.name == "tag" else "number to each pair"
            raise BothwaysError(f"this model gives one {one}, and top asks for {top} answers: leave it out")
        found = self.decisions(examples)
        return ((item.example, self.task.present(item, decision, top)) for item, decision in found)

    def decisions(self, examples: Iterable[Any]) -> Iterator[tuple[Item, Any]]:
        """Examples as the model reads them, and what it decides: all that scores need."""
        return decisions(self.task, self._forward, examples, self.model.device)

    def _forward(self, batch: Batch) -> torch.Tensor:
        return self.task.outputs(self.model, self.model.encoder(batch), batch)

    def example(self, given: Any) -> Any:
        """An input as the task reads it."""
        if isinstance(given, Text | Tagged | Question | Choice):
            return given
        if isinstance(given, np.ndarray):  # a row of a table of pairs or words
            given = tuple(given.tolist())
        match self.name:
            case "tag":
                return _tagged(given)
            case "answer":
                question, context = _fields(given, ("question", "context"))
                if not isinstance(context, str):
                    raise BothwaysError(f"the context was expected to be a text, and {context!r} was given")
                return Question("", question, context)
            case "choose":
                return _choice(given)
        return as_text(given, needs_two=self.name == "score")


def as_text(given: Any, needs_two: bool = False) -> Text:
    """A text or a pair of them as an example."""
    if isinstance(given, Mapping):
        given = (given["text"], given["text_pair"]) if "text_pair" in given else given.get("text")
    texts = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Sequence | np.ndarray) else ()
    if not all(isinstance(text, str) for text in texts) or len(texts) not in ((2,) if needs_two else (1, 2)):
        wanted = "a pair of texts" if needs_two else "a text or a pair of texts"
        raise BothwaysError(f"{wanted} was expected, and {given!r} was given")
    return Text(texts)


def _tagged(given: Any) -> Tagged:
    if isinstance(given, str):
        return Tagged(given, tuple(split_words(given)))
    if not isinstance(given, Sequence) or not all(isinstance(word, str) for word in given):
        raise BothwaysError(f"a text or a tuple of words was expected, and {given!r} was given")
    return Tagged(*join_words(given))


def _choice(given: Any) -> Choice:
    question, options = _fields(given, ("question", "options"))
    if not isinstance(options, list | tuple) or not options or not all(isinstance(o, str) for o in options):
        raise BothwaysError(f"a list of options was expected, each a text, and {options!r} was given")
    context = given.get("context", "") if isinstance(given, Mapping) else ""
    return Choice(context, question, tuple(options))


def _fields(given: Any, names: tuple[str, str]) -> tuple[Any, Any]:
    if isinstance(given, Mapping) and all(name in given for name in names):
        given = given[names[0]], given[names[1]]
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str):
        return given
    raise BothwaysError(f"a pair of {' and '.join(names)}, or a dictionary, was expected, and {given!r} was given")
