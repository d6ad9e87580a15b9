"""A model made ready for a task, and what its folder says of it."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bothways import atomic
from bothways.data.labels import Kind
from bothways.errors import BothwaysError
from bothways.model import checkpoint
from bothways.model.blocks import SelfAttention
from bothways.model.dropout import Dropout
from bothways.model.families import FAMILIES
from bothways.model.model import Model
from bothways.tasks.task import TaskConfig
from bothways.train.recipe import read

_KEY = "bothways"
_HEADS = {"classify": "sequence", "score": "sequence", "tag": "token", "answer": "span", "choose": "choice"}
_PROBLEMS: dict[Kind, str] = {
    "single": "single_label_classification",
    "multi": "multi_label_classification",
    "regression": "regression",
}
# Of the folder the encoder came from, what was true of its own head only.
_STALE = ("id2label", "label2id", "num_labels", "problem_type", "finetuning_task", "architectures", _KEY)


def with_task(base: Model, config: TaskConfig, labels: Sequence[str] = (), *, seed: int = 0) -> Model:
    """The encoder of `base` with the head of a task; what `base` already has of it is kept, the rest is drawn."""
    family = FAMILIES[base.config.family]
    head = _HEADS[config.task]
    if head not in family.heads:
        raise BothwaysError(f"{family.name} has no head for the task {config.task}")
    heads = tuple(name for name in family.heads if name == head or name in family.heads[head].needs)
    foreign: dict[str, Any] = {key: value for key, value in base.config.foreign.items() if key not in _STALE}
    foreign[_KEY] = asdict(config)
    if config.task == "classify":
        foreign["problem_type"] = _PROBLEMS[config.kind or "single"]
    model = Model.new(
        replace(base.config, heads=heads, labels=tuple(labels), foreign=foreign), base.tokenizer, seed=seed
    )
    model.encoder = base.encoder
    for name in heads:
        kept = name in base.heads and (not family.heads[name].has_labels or base.config.labels == tuple(labels))
        if kept:
            model.heads[name] = base.heads[name]
    return model


def with_dropout(base: Model, share: float | None, attention: float | None) -> Model:
    """The same model, of whose encoder training leaves out another share; None leaves it as it is."""
    shape = base.config.encoder
    shape = replace(
        shape,
        dropout=shape.dropout if share is None else share,
        attention_dropout=shape.attention_dropout if attention is None else attention,
    )
    base.config = replace(base.config, encoder=shape)
    base.encoder.config = shape
    for module in base.encoder.modules():
        if isinstance(module, Dropout):
            module.p = shape.dropout
        elif isinstance(module, SelfAttention):
            module.dropout = shape.attention_dropout
    return base


def with_config(model: Model, config: TaskConfig) -> Model:
    """The same model, saying something else of its task."""
    model.config = replace(model.config, foreign={**model.config.foreign, _KEY: asdict(config)})
    return model


def rewrite_config(folder: Path, config: TaskConfig) -> None:
    """Let a folder say something else of its task; nothing else in it changes."""
    said = checkpoint.read_json(folder / "config.json")
    with atomic.new_file(folder / "config.json") as fresh:
        fresh.write_text(
            json.dumps({**said, _KEY: asdict(config)}, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )


def task_config(model: Model) -> TaskConfig:
    """What a folder says of its task; of a folder that others made, what its head and problem_type say."""
    said = model.config.foreign.get(_KEY)
    # Who trains such a folder on elsewhere may give it another head, and leave our word in its config.
    if isinstance(said, dict) and _HEADS.get(str(said.get("task")), "") in model.heads:
        return read(TaskConfig, said, _KEY)
    for task, head in _HEADS.items():
        if head in model.heads:
            return TaskConfig(task, _kind(model) if task == "classify" else "")
    has = ", ".join(model.heads) or "none"
    raise BothwaysError(f"this model has no head that answers (it has: {has}): fine-tune it first")


def _kind(model: Model) -> Kind:
    problem = model.config.foreign.get("problem_type")
    named = [kind for kind, theirs in _PROBLEMS.items() if theirs == problem]
    # One output of no type is the logit of a yes, as in transformers' pipeline.
    return named[0] if named else "multi" if len(model.config.labels) == 1 else "single"
