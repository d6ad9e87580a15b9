"""Examples through a model: in batches by length and token budget, out again in the order they came.

The same engine predicts, evaluates and evaluates during training. Memory does not grow with the number of examples.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from bothways.errors import BothwaysError
from bothways.model.batch import Batch
from bothways.tasks.task import Item, Outputs, Task

Job = TypeVar("Job")
Forward = Callable[[Batch], Tensor]
"""Batch → the task's outputs."""

# Enough work to fill the device, little enough to hold in memory.
TOKENS_AT_ONCE = {"cpu": 4_096, "cuda": 65_536}
_EXAMPLES_AT_ONCE = 1_024
_CHARACTERS_AT_ONCE = 2_000_000


def decisions(
    task: Task, forward: Forward, examples: Iterable[Any], device: torch.device
) -> Iterator[tuple[Item, Any]]:
    """Every example with what the model decides, in order."""
    for some in chunks(examples):
        items = task.items(some)
        for item, outputs in zip(items, _run(task, forward, items, device), strict=True):
            yield item, task.decide(item, outputs)


def chunks(examples: Iterable[Job]) -> Iterator[list[Job]]:
    """Some examples, or plain texts, at a time: a thousand, or fewer long ones."""
    some: list[Job] = []
    size = 0
    for example in examples:
        some.append(example)
        size += _characters(example)
        if len(some) >= _EXAMPLES_AT_ONCE or size >= _CHARACTERS_AT_ONCE:
            yield some
            some, size = [], 0
    if some:
        yield some


def _characters(example: Any) -> int:
    values = [example] if isinstance(example, str) else vars(example).values()
    return sum(
        len(part)
        for value in values
        for part in (value if isinstance(value, tuple) else (value,))
        if isinstance(part, str)
    )


@torch.inference_mode()
def _run(task: Task, forward: Forward, items: Sequence[Item], device: torch.device) -> list[list[Outputs]]:
    """For every item the outputs of each of its views."""
    found = [[np.empty(0, np.float32)] * len(item.views) for item in items]
    jobs = [(i, j, view) for i, item in enumerate(items) for j, view in enumerate(item.views)]
    for group in by_budget(jobs, lambda job: len(job[2]), device):
        batch = Batch.pack([view.ids for _, _, view in group], [view.segments for _, _, view in group])
        rows = forward(batch.to(device)).float().cpu()
        if not torch.isfinite(rows).all():
            raise BothwaysError(
                "the model's outputs are not numbers: its training diverged, so begin anew with a smaller optim.lr; or "
                "its folder is damaged"
            )
        parts = rows.split(batch.lengths.tolist()) if task.per_token else rows.unbind()
        for (i, j, _), part in zip(group, parts, strict=True):
            found[i][j] = part.numpy()
    return found


def by_budget(jobs: Iterable[Job], size: Callable[[Job], int], device: torch.device) -> Iterator[list[Job]]:
    """Jobs of so many tokens each, in groups of similar size that the device takes at once."""
    budget = TOKENS_AT_ONCE.get(device.type, 4_096)
    group: list[Job] = []
    tokens = 0
    for job in sorted(jobs, key=size):
        if group and tokens + size(job) > budget:
            yield group
            group, tokens = [], 0
        group.append(job)
        tokens += size(job)
    if group:
        yield group
