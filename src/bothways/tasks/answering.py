"""Run examples through a model and its task, for predictions and evaluation."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np

from bothways.data.examples import LongInput, Text
from bothways.engine.backend import Backend
from bothways.engine.chunks import read_ahead
from bothways.engine.engine import Around, Counts, one_each, one_per_token, run
from bothways.engine.long_reader import LongReader, WindowChunk, streams
from bothways.engine.reads import Reads
from bothways.engine.sequences import Indices
from bothways.errors import BothwaysError
from bothways.lazy import torch
from bothways.model.arrays import Array
from bothways.tasks.encoded import StreamedExample
from bothways.tasks.task import EncodedChunk, EncodedExample, Outputs, Task
from bothways.tasks.text_task import TextTask
from bothways.text.long_text import line_too_long

_HELD = 2**21
"""Characters of an example whose answer needs all outputs together, such as tags or pairs: some 300 MB."""


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

    def run_all(chunks: Iterator[Any], counts: Counts[Any] = one_each) -> Iterator[tuple[Any, Outputs]]:
        return map(_require_finite, run(chunks, outputs_of, device, counts, around=around))

    for is_long, some in groupby(examples, partial(_streams, task=task)):
        if is_long:
            for example in some:
                first += 1
                yield _decode_long(task, example, first, run_all)
        else:
            chunks = read_ahead(task.encode, map(_require_held, some), device, first=first)
            for chunk, outputs in run_all(chunks, one_per_token if task.per_token else one_each):
                first += len(chunk)
                yield from zip(chunk, task.decode_chunk(chunk, outputs), strict=True)


def _require_finite(found: tuple[Any, Outputs]) -> tuple[Any, Outputs]:
    if not np.isfinite(found[1]).all():
        raise BothwaysError(
            "the model's outputs are nan or inf: its training diverged, so start again with a smaller optim.lr; or "
            "its folder is damaged",
            "not-finite",
        )
    return found


def _require_held(example: Any) -> Any:
    """Refuse an example that is too long to be answered as a whole."""
    if (size := getattr(example, "characters", 0)) > _HELD:
        raise BothwaysError(
            f"{example.where or 'an input'} has {size:,} characters, and this task reads an input as a whole, of at "
            f"most {_HELD:,}: divide it",
            "too-long",
            size,
        )
    return example


def _streams(example: Any, task: Task) -> bool:
    """Whether an example is one long text, whose answer is the mean over its windows."""
    if isinstance(example, LongInput):
        return True
    is_one = isinstance(task, TextTask) and isinstance(example, Text) and len(example.texts) == 1
    return is_one and streams(example.texts[0])


def _decode_long(
    task: Task,
    example: Text | LongInput,
    number: int,
    outputs_of: Callable[[Iterator[WindowChunk]], Iterator[tuple[Any, Outputs]]],
) -> tuple[EncodedExample, Any]:
    """One long text, read as a stream of windows."""
    if not isinstance(task, TextTask):
        raise line_too_long(example.where)
    task.require_texts(1, example.where)
    reader, total = LongReader(task.reader, number), np.zeros(())
    for _, outputs in outputs_of(reader(example.text if isinstance(example, LongInput) else example.texts[0])):
        total = total + outputs.astype(np.float64).sum(0)
    found = StreamedExample(example, Reads.none(), 0, 0, reader.windows, reader.is_cut)
    return found, task.predictions((total / reader.windows)[None].astype(np.float32), np.array([1]))[0]
