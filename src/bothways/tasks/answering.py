"""Run examples through a model and its task, for predictions and evaluation."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bothways.engine.chunks import read_ahead
from bothways.engine.engine import Around, one_each, one_per_token, run
from bothways.engine.sequences import Indices
from bothways.errors import BothwaysError
from bothways.model.batch import Batch
from bothways.tasks.task import EncodedChunk, EncodedExample, Task


def decode_all(
    task: Task,
    forward: Callable[[Batch], Tensor],
    examples: Iterable[Any],
    device: torch.device,
    around: Around = nullcontext,
    first: int = 0,
) -> Iterator[tuple[EncodedExample, Any]]:
    """Every encoded example with its decoded outputs, in order.

    `forward` returns the task's outputs; for `around` see `run`. `first`: the number of the first example, for errors.
    """

    def outputs_of(batch: Batch, chunk: EncodedChunk, picked: Indices) -> Tensor:
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
