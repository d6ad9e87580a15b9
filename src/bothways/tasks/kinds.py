"""The tasks by name: how each reads its files, what it makes of them, and how it is set up."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from bothways.data.choices import read_choices
from bothways.data.columns import Columns
from bothways.data.examples import Tagged
from bothways.data.labels import as_kind, as_number, label_kind, label_names
from bothways.data.notes import Notes
from bothways.data.questions import read_questions
from bothways.data.sources import kind_of
from bothways.data.tagged import holds_texts, read_sentences, read_tagged, require_tags
from bothways.data.texts import read_texts_labelled
from bothways.data.words import split_words
from bothways.errors import BothwaysError
from bothways.model.model import Model
from bothways.tasks.answer import NULL, Answer
from bothways.tasks.choose import Choose
from bothways.tasks.classify import Classify
from bothways.tasks.folder import task_config
from bothways.tasks.recipe import DataSettings, FinetuneRecipe
from bothways.tasks.score import Score
from bothways.tasks.tag import Tag, tag_names
from bothways.tasks.task import Task, TaskConfig
from bothways.text.files import STDIN, read_texts, require_files
from bothways.text.streams import peek_stdin


def read_examples(
    task: str, files: Sequence[str], data: DataSettings, notes: Notes, kind: str = "auto"
) -> Iterator[Any]:
    """The examples of some files, labelled or not. `kind` is that of classify."""
    if task in ("tag", "answer", "choose"):
        _refuse_columns(task, text=data.text, pair=data.pair)
    match task:
        case "tag":
            require_tags(files)
            return read_tagged(files, data.label or None, notes)
        case "answer":
            return read_questions(files, notes)
        case "choose":
            return read_choices(files, notes)
    columns = Columns(data.text or None, data.pair or None, data.label or None)
    several: Literal["multi", "auto"] = "multi" if kind == "multi" else "auto"  # "joy|awe" is two labels only then
    return read_texts_labelled(files, columns, several, notes)


def read_inputs(task: str, file: str, data: DataSettings, notes: Notes) -> Iterator[Any]:
    """What is to be answered: as `read_examples`, but to a tagger, lines of .txt and standard input are plain texts.

    On standard input, lines of JSON are rows as in files.
    """
    path = Path(file)
    if task != "tag":
        return read_examples(task, [file], data, notes)
    is_table = holds_texts(path) or (kind_of(path) == ".tsv" and bool(data.text))  # who names a column means one
    _refuse_columns(task, text="" if is_table else data.text, pair=data.pair)
    if path == STDIN and peek_stdin().startswith("{"):
        return read_sentences(path, notes)
    if path == STDIN or ".txt" in path.suffixes:
        return (Tagged(text, tuple(split_words(text))) for text in read_texts(require_files([path])[0]))
    if is_table:
        texts = (example.texts[0] for example in read_texts_labelled(file, Columns(data.text or None), notes=notes))
        return (Tagged(text, tuple(split_words(text))) for text in texts)
    return read_tagged(file, data.label or None, notes)


def _refuse_columns(task: str, **named: str) -> None:
    for option, column in named.items():
        if column:
            raise BothwaysError(
                f"--{option} {column} names a column of texts to classify or to score, and the task {task} reads "
                f"other columns, by their own names"
            )


def plan(recipe: FinetuneRecipe, examples: Sequence[Any], limit: int = 512) -> tuple[TaskConfig, tuple[str, ...]]:
    """What the task is, and the names of its labels, as the training data show it; the model reads `limit` tokens."""
    config = TaskConfig(recipe.task, window=recipe.window)
    golds = [example.gold for example in examples if example.gold is not None]
    if not golds:
        raise BothwaysError(f"none of the {len(examples):,} examples to train on has a label")
    match recipe.task:
        case "classify":
            kind = recipe.classify.kind if recipe.classify.kind != "auto" else label_kind(golds)
            labels = ("score",) if kind == "regression" else label_names(as_kind(e, kind) for e in examples)
            if kind == "single" and len(labels) < 2:
                raise BothwaysError(f"all rows have the label {labels[0]!r}: there is nothing to tell apart")
            counts = {len(example.texts) for example in examples}
            return replace(config, kind=kind, texts=counts.pop() if len(counts) == 1 else 0), labels
        case "score":
            numbers = [as_number(e) for e in examples if e.gold is not None]
            return replace(config, range=(min(0.0, *numbers), max(1.0, *numbers))), ("score",)
        case "tag":
            return config, tag_names(golds)
        case "answer":
            window = recipe.window if recipe.window.length else replace(recipe.window, length=min(384, limit))
            thresholds = {NULL: 0.0} if any(not gold for gold in golds) else {}
            return replace(config, window=window, thresholds=thresholds, longest=recipe.answer.longest), ()
    return config, ()


def in_form(config: TaskConfig, example: Any) -> Any:
    """The example with its gold in the task's form."""
    if config.task == "score":
        return as_kind(example, "regression")
    return as_kind(example, config.kind) if config.task == "classify" and config.kind else example


def make_task(model: Model, recipe: FinetuneRecipe | None = None, examples: Sequence[Any] = ()) -> Task:
    """The task that a model was made for; `recipe` and the examples matter to training only."""
    recipe = recipe or FinetuneRecipe()
    match task_config(model).task:
        case "classify":
            return Classify(model, recipe.classify, [e.gold for e in examples if e.gold is not None])
        case "tag":
            return Tag(model)
        case "answer":
            return Answer(model)
        case "choose":
            return Choose(model)
        case "score":
            return Score(model)
    raise BothwaysError(f"the task {task_config(model).task!r} is not known here")
