"""A model with the head and config of a task."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bothways.errors import BothwaysError
from bothways.model.blocks import SelfAttention
from bothways.model.dropout import Dropout
from bothways.model.families import FAMILIES
from bothways.model.model import Model
from bothways.tasks.registry import TASKS, described
from bothways.tasks.task import TaskConfig
from bothways.tasks.text_task import CROSS_ENCODER_KEYS, NUMBER

# Keys of the base model's config.json that hold for its own head only.
_STALE = (
    "id2label",
    "label2id",
    "num_labels",
    "problem_type",
    "finetuning_task",
    "architectures",
    "bothways",
    *CROSS_ENCODER_KEYS,
)


def with_task(base: Model, config: TaskConfig, labels: Sequence[str] = (), *, seed: int = 0) -> Model:
    """The encoder of `base` with the head of a task: the head of `base` if it fits, else a new one.

    A head whose only output is a number keeps the name of that output.
    """
    family, head = FAMILIES[base.config.family], TASKS[config.task].head
    if tuple(labels) == NUMBER and head in base.heads and len(base.config.labels) == 1:
        labels = base.config.labels
    if head and head not in family.heads:
        raise BothwaysError(f"{family.name} has no head for the task {config.task}", "family-without-head", family.name)
    needed = (head, *family.heads[head].needs) if head else ()
    heads = tuple(name for name in family.heads if name in needed)
    kept: dict[str, Any] = {key: value for key, value in base.config.hf_config.items() if key not in _STALE}
    model = Model.new(
        replace(base.config, heads=heads, labels=tuple(labels), hf_config={**kept, **described(config)}),
        base.tokenizer,
        seed=seed,
    )
    model.encoder = base.encoder
    TASKS[config.task].prepare(model, base, config)
    for name in heads:
        has_it = name in base.heads and (not family.heads[name].has_labels or base.config.labels == tuple(labels))
        if has_it:
            model.heads[name] = base.heads[name]
    return model


def with_dropout(base: Model, dropout: float | None, attention_dropout: float | None) -> Model:
    """The same model with other dropout probabilities in its encoder; None keeps its own."""
    shape = base.config.encoder
    shape = replace(
        shape,
        dropout=shape.dropout if dropout is None else dropout,
        attention_dropout=shape.attention_dropout if attention_dropout is None else attention_dropout,
    )
    base.config = replace(base.config, encoder=shape)
    base.encoder.config = shape
    for module in base.encoder.modules():
        if isinstance(module, Dropout):
            module.p = shape.dropout
        elif isinstance(module, SelfAttention):
            module.dropout = shape.attention_dropout
    return base
