"""Examples through a model: in batches by length and token budget, out again in the order they came.

The same engine predicts, evaluates and evaluates during training. Memory does not grow with the number of examples.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from bothways.model.batch import Batch
from bothways.tasks.reading import View
from bothways.tasks.task import Item, Outputs, Task

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
    for some in _chunks(examples):
        items = task.items(some)
        for item, outputs in zip(items, _run(task, forward, items, device), strict=True):
            yield item, task.decide(item, outputs)


def _chunks(examples: Iterable[Any]) -> Iterator[list[Any]]:
    """Some examples at a time: a thousand, or fewer long ones."""
    some: list[Any] = []
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
    values = vars(example).values()
    return sum(
        len(part)
        for value in values
        for part in (value if isinstance(value, tuple) else (value,))
        if isinstance(part, str)
    )


@torch.inference_mode()
def _run(task: Task, forward: Forward, items: Sequence[Item], device: torch.device) -> list[list[Outputs]]:
    """For every item the outputs of each of its views."""
    found: list[list[Outputs]] = [[None] * len(item.views) for item in items]  # type: ignore[list-item]
    jobs = [(i, j, view) for i, item in enumerate(items) for j, view in enumerate(item.views)]
    for group in _by_budget(jobs, TOKENS_AT_ONCE.get(device.type, 4_096)):
        batch = Batch.pack([view.ids for _, _, view in group], [view.segments for _, _, view in group])
        rows = forward(batch.to(device)).float().cpu()
        parts = rows.split(batch.lengths.tolist()) if task.per_token else rows.unbind()
        for (i, j, _), part in zip(group, parts, strict=True):
            found[i][j] = part.numpy()
    return found


def _by_budget(jobs: Sequence[tuple[int, int, View]], budget: int) -> Iterator[list[tuple[int, int, View]]]:
    group: list[tuple[int, int, View]] = []
    tokens = 0
    for job in sorted(jobs, key=lambda job: len(job[2])):
        if group and tokens + len(job[2]) > budget:
            yield group
            group, tokens = [], 0
        group.append(job)
        tokens += len(job[2])
    if group:
        yield group
