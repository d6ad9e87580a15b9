"""Run examples through a model and its task, for predictions and evaluation."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np

from bothways.engine.backend import Backend
from bothways.engine.chunks import read_ahead
from bothways.engine.engine import Around, one_each, one_per_token, run
from bothways.engine.sequences import Indices
from bothways.errors import BothwaysError
from bothways.lazy import torch
from bothways.model.arrays import Array
from bothways.tasks.task import EncodedChunk, EncodedExample, Task


def decode_all(
    task: Task,
    forward: Callable[[Any], Array],
    examples: Iterable[Any],
    device: "torch.device | Backend",
    around: Around = nullcontext,
    first: int = 0,
) -> Iterator[tuple[EncodedExample, Any]]:
    """Every encoded example with its decoded outputs, in order.

    `forward` returns the task's outputs; for `around` see `run`. `first`: the number of the first example, for errors.
    """

    def outputs_of(batch: Any, chunk: EncodedChunk, picked: Indices) -> Array:
        return forward(batch)

    chunks = read_ahead(task.encode, examples, device, first=first)
    for chunk, outputs in run(chunks, outputs_of, device, one_per_token if task.per_token else one_each, around=around):
        if not np.isfinite(outputs).all():
            raise BothwaysError(
                "the model's outputs are nan or inf: its training diverged, so start again with a smaller optim.lr; or "
                "its folder is damaged",
                "not-finite",
            )
        yield from zip(chunk, task.decode_chunk(chunk, outputs), strict=True)
