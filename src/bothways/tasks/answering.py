"""Run examples through a model and its task, for predictions and evaluation."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from bothways.engine.engine import chunks, run
from bothways.engine.reader import View
from bothways.errors import BothwaysError
from bothways.model.batch import Batch
from bothways.tasks.task import EncodedExample, Outputs, Task


def decode_all(
    task: Task, forward: Callable[[Batch], Tensor], examples: Iterable[Any], device: torch.device
) -> Iterator[tuple[EncodedExample, Any]]:
    """Every encoded example with its decoded outputs, in order. `forward` returns the task's outputs."""

    def read(batch: Batch, views: list[View]) -> Sequence[Outputs]:
        rows = forward(batch).float().cpu()
        if not torch.isfinite(rows).all():
            raise BothwaysError(
                "the model's outputs are nan or inf: its training diverged, so start again with a smaller optim.lr; or "
                "its folder is damaged",
                "not-finite",
            )
        parts = rows.split(batch.lengths.tolist()) if task.per_token else rows.unbind()
        return [part.numpy() for part in parts]

    for some in chunks(examples):
        items = task.encode(some)
        outputs = run((view for item in items for view in item.views), read, device)
        for item in items:
            yield item, task.decode(item, [next(outputs) for _ in item.views])
