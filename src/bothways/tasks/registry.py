"""The tasks by name. A new task is one file and a line here."""

import difflib
import json
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from bothways import atomic
from bothways.engine.reader import WindowSettings
from bothways.errors import BothwaysError
from bothways.model.facts import ModelFacts
from bothways.model.weights import read_json
from bothways.tasks.answer import QuestionAnswering
from bothways.tasks.choose import MultipleChoice
from bothways.tasks.classify import TextClassification
from bothways.tasks.embed import SentenceVectors
from bothways.tasks.score import PairScoring
from bothways.tasks.tag import TokenClassification
from bothways.tasks.task import Task, TaskConfig
from bothways.train.strict_toml import read

TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (
        TextClassification,  # before PairScoring: a sequence head in a folder of another library is taken for this
        TokenClassification,
        QuestionAnswering,
        MultipleChoice,
        PairScoring,
        SentenceVectors,
    )
}
M = TypeVar("M", bound=ModelFacts)
_KEY = "bothways"
_RENAMED = {"longest": "max_answer_length"}
_SHARED = {field.name for field in fields(TaskConfig)} - {"options"}


def find_task(name: str) -> type[Task]:
    """The task with this name or alias.

    >>> from bothways.tasks.registry import find_task
    >>> find_task("ner").name
    'tag'
    """
    names = {known: task for task in TASKS.values() for known in (task.name, *task.aliases)}
    if name in names:
        return names[name]
    near = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]}? The tasks are" if near else "expected"
    tasks = ", ".join(f"{task.name} ({task.title})" for task in TASKS.values())
    raise BothwaysError(f"there is no task {name}: {hint} {tasks}", "unknown-task", name)


def new_config(task: str, **values: Any) -> TaskConfig:
    """The config of a task; `values` are fields of TaskConfig or of the task's own options.

    >>> from bothways.tasks.registry import new_config
    >>> new_config("classify", kind="single", temperature=2.0).options.kind
    'single'
    """
    shared = {name: value for name, value in values.items() if name in _SHARED}
    own = {name: value for name, value in values.items() if name not in _SHARED}
    return TaskConfig(task, **shared, options=TASKS[task].Options(**own))


def task_config(model: ModelFacts) -> TaskConfig:
    """The task of a folder: as its config.json says, or, if bothways did not write it, as its head shows."""
    stored = model.config.hf_config.get(_KEY)
    task = TASKS.get(str(stored.get("task"))) if isinstance(stored, dict) else None
    # Another library may have trained such a folder further with another head, and kept our key in its config.
    if isinstance(stored, dict) and task is not None and (not task.head or task.head in model.heads):
        values = {_RENAMED.get(name, name): value for name, value in stored.items()}
        shared = {name: value for name, value in values.items() if name in _SHARED}
        known = {field.name for field in fields(task.Options)}  # version 0.1 wrote the options of all tasks
        own = {name: value for name, value in values.items() if name in known}
        options: Any = read(task.Options, own, _KEY)
        return read(TaskConfig, {**shared, "options": options}, _KEY)
    for task in TASKS.values():
        if (not task.head or task.head in model.heads) and (config := task.infer(model)) is not None:
            return config
    has = ", ".join(model.heads) or "none"
    raise BothwaysError(f"this model has no head for a task (it has: {has}): fine-tune it first", "no-task-head", has)


def described(config: TaskConfig) -> dict[str, Any]:
    """The keys of config.json for a task."""
    shared = asdict(config)
    own = shared.pop("options")
    return {_KEY: shared | own, **TASKS[config.task].hf_config(config)}


def with_config(model: M, config: TaskConfig) -> M:
    """The same model with another task config."""
    model.config = replace(model.config, hf_config={**model.config.hf_config, **described(config)})
    return model


def rewrite_config(folder: Path, config: TaskConfig) -> None:
    """Replace the task config of a folder; nothing else changes."""
    keys = read_json(folder / "config.json")
    with atomic.new_file(folder / "config.json") as fresh:
        content = json.dumps({**keys, **described(config)}, indent=2, ensure_ascii=False)
        fresh.write_text(content + "\n", encoding="utf-8")


def plan_task(
    task: str, settings: Any, window: WindowSettings, examples: Sequence[Any], max_length: int = 512
) -> tuple[TaskConfig, tuple[str, ...]]:
    """The config and the labels of a task, from the training data; the model reads `max_length` tokens."""
    if all(example.gold is None for example in examples):
        says = f"none of the {len(examples):,} training examples has a label: name the column or field with `label`"
        raise BothwaysError(says, "no-labels", len(examples))
    return TASKS[task].plan(settings, window, examples, max_length)


def make_task(model: ModelFacts, settings: Any = None, train: Sequence[Any] = ()) -> Task:
    """The task of a model. Only training uses `settings` and the examples of the training data."""
    config = task_config(model)
    return TASKS[config.task](model, config, settings, train)
