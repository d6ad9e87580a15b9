"""The inference engine: packs token sequences into batches of similar length and returns results in input order.

encode, predict, evaluate, fill and sentence scores all go through `Engine.run`. It streams in constant memory: texts
are tokenized a chunk ahead, a GPU is never waited for, and results are copied while it computes the next ones. It
shares no state, so several threads may call it with one model. Models with weights are computed by torch
(torch_model.py), exported graphs by ONNX Runtime (graph_model.py): nothing else differs.

S sequences of a chunk · R rows of results.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from bothways.engine.backend import Backend, HeadReader, backend_of
from bothways.engine.graph_model import GraphModel
from bothways.engine.sequences import Indices, Sequences, by_budget, ragged
from bothways.lazy import imported
from bothways.model.arrays import Array
from bothways.model.device import Device, Precision
from bothways.model.exported import ExportedModel, not_for_graphs
from bothways.model.opened import AnsweringModel, open_exported
from bothways.progress import tick

if TYPE_CHECKING:
    import torch

    from bothways.model.model import Model

CompilePolicy = Literal["auto", "always", "never"]
TOKENS_AT_ONCE = {"cpu": 4_096, "cuda": 131_072}
"""Default token budget of a batch, by device: enough to keep it busy, few enough to stay in a CPU's cache."""


class Chunk(Protocol):
    """Texts that are sorted by length together: the look-ahead of the engine."""

    @property
    def sequences(self) -> Sequences: ...


C = TypeVar("C", bound=Chunk)
Results = NDArray[np.float32]
Forward = Callable[[Any, C, Indices], Array]
"""A batch of the backend, its chunk, and which of the chunk's sequences it holds → the results of each, in order."""
Around = Callable[[int], AbstractContextManager[object]]
"""The tokens of a batch → what is entered around its computation."""
Counts = Callable[[C], Indices]
"""(S,) the number of rows in the results of each sequence of a chunk."""


def one_each(chunk: Chunk) -> Indices:
    """One row of results for each sequence."""
    return np.ones(len(chunk.sequences), np.int64)


def one_per_token(chunk: Chunk) -> Indices:
    """One row of results for each token."""
    return chunk.sequences.lengths


class Engine:
    """A model in evaluation mode, with a token budget."""

    def __init__(
        self,
        model: AnsweringModel | Path | str | None = None,
        *,
        device: Device | None = None,
        dtype: Precision | None = None,
        max_tokens: int | None = None,
        compile: CompilePolicy = "auto",
    ) -> None:
        """`model`: a model, or its folder; the default is the included model en.

        `device` is cpu, cuda, cuda:1, mps, or auto: a GPU if there is one. `dtype` is fp32, bf16, fp16, or auto: bf16
        on a GPU that computes in it. By default a folder is opened with auto, and a Model stays as it is. A Model is
        moved to another device itself, as by `Module.to`; another dtype is given to a copy. `max_tokens` is the token
        budget of a batch. `compile`: "always", "never", or "auto", which is when a GPU has been busy for so long that
        compiling pays off. An exported folder computes on the CPU, in the precision that it was exported with.
        """
        given = open_exported(model) if model is None or isinstance(model, Path | str) else model
        self.calls: Any
        """What computes: the hidden states, outputs and vectors of a batch."""
        if isinstance(given, ExportedModel):
            self.calls = GraphModel(given, device, dtype)
        else:
            self.calls = imported("bothways.engine.torch_model").TorchModel(model, device, dtype, compile)
        self.model: Any = self.calls.model
        """A `Model`, or an `ExportedModel`."""
        self.backend: Backend = self.calls.backend
        self.device: Any = self.calls.device
        """A device of torch, or of the same type."""
        self.max_tokens = (
            max_tokens or self.backend.tokens or TOKENS_AT_ONCE.get(self.device.type, TOKENS_AT_ONCE["cpu"])
        )
        self.states: Callable[[Any], Array] = self.calls.states
        """The hidden states of the last layer, compiled if that pays off: batch → (N, W)."""
        self.around: Around = self.calls.around
        """Around the computation of a batch: its number of threads, its time, exact sums."""

    def run(
        self, chunks: Iterable[C], forward: Forward[C], counts: Counts[C] = one_each
    ) -> Iterator[tuple[C, Results]]:
        """As `run`, on the device and within the token budget of this engine."""
        return run(chunks, forward, self.backend, counts, max_tokens=self.max_tokens, around=self.around)

    def outputs(self, task: HeadReader, batch: Any) -> Array:
        """What a task reads: (B, …) or (N, …)."""
        return self.calls.outputs(task, batch)

    def weights(self, what: str) -> "Model":
        """The model, for what needs its weights: an exported one is refused. `what`: as in `not_for_graphs`."""
        if isinstance(self.model, ExportedModel):
            raise not_for_graphs(self.model.file, what)
        found: Model = self.model
        return found


def run(
    chunks: Iterable[C],
    forward: Forward[C],
    device: "torch.device | Backend",
    counts: Counts[C] = one_each,
    *,
    max_tokens: int | None = None,
    around: Around = nullcontext,
) -> Iterator[tuple[C, Results]]:
    """Each chunk with its results, in order: one row for each sequence, or as many as `counts` says.

    `forward` gets batches of sequences of similar length, as the backend makes them.
    """
    backend = backend_of(device)
    budget = max_tokens or backend.tokens or TOKENS_AT_ONCE.get(backend.type, TOKENS_AT_ONCE["cpu"])
    waiting: deque[_Pending[C]] = deque()
    for chunk in chunks:
        waiting.append(_Pending(chunk, counts(chunk)))
        finished, read = 0, len(chunk.sequences)
        for picked in by_budget(chunk.sequences.lengths, budget):
            tick(finished, read)
            finished += len(picked)
            with backend.computing():
                batch = backend.batch(chunk.sequences, picked)
                with around(int(chunk.sequences.lengths[picked].sum())):
                    found = forward(batch, chunk, picked)
                rows, done = backend.fetch(found)
            waiting[-1].add(picked, rows, done)
        # A GPU computes this chunk while the caller uses the results of the one before.
        if len(waiting) > (backend.type == "cuda"):
            yield waiting.popleft().finish()
    while waiting:
        yield waiting.popleft().finish()


class _Pending(Generic[C]):
    """The results of a chunk, some of which may still be on their way from a GPU."""

    def __init__(self, chunk: C, counts: Indices) -> None:
        self.chunk, self.counts = chunk, counts
        self.parts: list[tuple[Indices, Array, Any]] = []

    def add(self, picked: Indices, rows: Array, done: Any) -> None:
        expected = int(self.counts[picked].sum())
        if len(rows) != expected:
            raise ValueError(f"{len(rows)} rows of results for {expected}")
        self.parts.append((picked, rows, done))

    def finish(self) -> tuple[C, Results]:
        """The chunk, and its results (R, …) in the order of its sequences."""
        starts = np.cumsum(self.counts) - self.counts
        width = self.parts[0][1].shape[1:] if self.parts else ()
        found = np.empty((int(self.counts.sum()), *width), np.float32)
        for picked, rows, done in self.parts:
            if done is not None:
                done.synchronize()
            found[ragged(starts[picked], self.counts[picked])] = np.asarray(rows)
        return self.chunk, found
