"""The inference engine: packs token sequences into batches of similar length and returns results in input order.

encode, predict, evaluate, fill and sentence scores all go through `Engine.run`. It streams in constant memory: texts
are tokenized a chunk ahead, a GPU is never waited for, and results are copied while it computes the next ones. It
shares no state, so several threads may call it with one model.

S sequences of a chunk · R rows of results.
"""

import copy
import platform
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from threading import Lock
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bothways.engine.compiled import CompilePolicy, EncoderCalls
from bothways.engine.sequences import Indices, Sequences, by_budget, ragged
from bothways.engine.threads import threads_for
from bothways.model.batch import Batch
from bothways.model.device import Device, Precision, announce, find_device, find_dtype
from bothways.model.load import load
from bothways.model.model import Model
from bothways.progress import tick

TOKENS_AT_ONCE = {"cpu": 4_096, "cuda": 131_072}
"""Default token budget of a batch, by device: enough to keep it busy, few enough to stay in a CPU's cache."""


class Chunk(Protocol):
    """Texts that are sorted by length together: the look-ahead of the engine."""

    @property
    def sequences(self) -> Sequences: ...


C = TypeVar("C", bound=Chunk)
Results = NDArray[np.float32]
Forward = Callable[[Batch, C, Indices], Tensor]
"""A batch on the device, its chunk, and which of the chunk's sequences it holds → the results of each, in order."""
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
    """A model in evaluation mode on a device, with a token budget."""

    def __init__(
        self,
        model: Model | Path | str | None = None,
        *,
        device: Device | None = None,
        dtype: Precision | None = None,
        max_tokens: int | None = None,
        compile: CompilePolicy = "auto",
    ) -> None:
        """`model`: a model, or its folder; the default is the one in the box.

        `device` is cpu, cuda, cuda:1, mps, or auto: a GPU if there is one. `dtype` is fp32, bf16, fp16, or auto: bf16
        on a GPU that computes in it. By default a folder is opened with auto, and a Model stays as it is. A Model is
        moved to another device itself, as by `Module.to`; another dtype is given to a copy. `max_tokens` is the token
        budget of a batch. `compile`: "always", "never", or "auto", which is when a GPU has been busy for so long that
        compiling pays off.
        """
        model, self.device = _opened(model, device, dtype)
        self.model = model.eval() if model.training else model
        if self.device.type == "cpu" and platform.machine() == "aarch64":
            _store_by_columns(self.model)
        self.max_tokens = max_tokens or TOKENS_AT_ONCE.get(self.device.type, TOKENS_AT_ONCE["cpu"])
        self.states = EncoderCalls(self.model.encoder, compile)
        """The hidden states of the last layer, compiled if that pays off: Batch → (N, W)."""

    def run(
        self, chunks: Iterable[C], forward: Forward[C], counts: Counts[C] = one_each
    ) -> Iterator[tuple[C, Results]]:
        """As `run`, on the device and within the token budget of this engine."""
        return run(chunks, forward, self.device, counts, max_tokens=self.max_tokens, around=self.around)

    @contextmanager
    def around(self, tokens: int) -> Iterator[None]:
        """Around the computation of a batch: on a GPU exact sums, and its time; on a CPU the number of threads."""
        if self.device.type != "cuda":
            with threads_for(tokens, self.model.config.encoder):
                yield
            return
        with torch.cuda.device(self.device), self.states.timed(), _exact_sums():
            yield


def run(
    chunks: Iterable[C],
    forward: Forward[C],
    device: torch.device,
    counts: Counts[C] = one_each,
    *,
    max_tokens: int | None = None,
    around: Around = nullcontext,
) -> Iterator[tuple[C, Results]]:
    """Each chunk with its results, in order: one row for each sequence, or as many as `counts` says.

    `forward` gets packed batches of sequences of similar length, on the device.
    """
    budget = max_tokens or TOKENS_AT_ONCE.get(device.type, TOKENS_AT_ONCE["cpu"])
    waiting: deque[_Pending[C]] = deque()
    for chunk in chunks:
        waiting.append(_Pending(chunk, counts(chunk)))
        finished, read = 0, len(chunk.sequences)
        for picked in by_budget(chunk.sequences.lengths, budget):
            tick(finished, read)
            finished += len(picked)
            with torch.inference_mode():
                batch = chunk.sequences.batch(picked, device)
                with around(len(batch.ids)):
                    found = forward(batch, chunk, picked)
                rows, done = _copied(found) if device.type == "cuda" else (found.float().cpu(), None)
            waiting[-1].add(picked, rows, done)
        # A GPU computes this chunk while the caller uses the results of the one before.
        if len(waiting) > (device.type == "cuda"):
            yield waiting.popleft().finish()
    while waiting:
        yield waiting.popleft().finish()


def _copied(found: Tensor) -> tuple[Tensor, torch.cuda.Event]:
    """A copy of a GPU's results that is on its way, and the event of its arrival."""
    with torch.cuda.device(found.device):
        host = torch.empty(found.shape, pin_memory=True)
        host.copy_(found, non_blocking=True)
        done = torch.cuda.Event()
        done.record()
    return host, done


class _Pending(Generic[C]):
    """The results of a chunk, some of which may still be on their way from a GPU."""

    def __init__(self, chunk: C, counts: Indices) -> None:
        self.chunk, self.counts = chunk, counts
        self.parts: list[tuple[Indices, Tensor, torch.cuda.Event | None]] = []

    def add(self, picked: Indices, rows: Tensor, done: torch.cuda.Event | None) -> None:
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
            found[ragged(starts[picked], self.counts[picked])] = rows.numpy()
        return self.chunk, found


@contextmanager
def _exact_sums() -> Iterator[None]:
    """Sum products of 16-bit numbers in fp32 throughout: by default cuBLAS may add partial sums in 16 bits.

    It does so for small matrices, so that a text alone would get another answer than among others.
    """
    settings, names = torch.backends.cuda.matmul, [f"allow_{half}_reduced_precision_reduction" for half in _HALVES]
    with _LOCK:  # the settings are those of the process: the first thread changes them, and the last restores them
        if not _BEFORE:
            _BEFORE.append([getattr(settings, name) for name in names])
            for name in names:
                setattr(settings, name, False)
        _INSIDE.append(None)
    try:
        yield
    finally:
        with _LOCK:
            _INSIDE.pop()
            if not _INSIDE:
                for name, value in zip(names, _BEFORE.pop(), strict=True):
                    setattr(settings, name, value)


_HALVES = ("bf16", "fp16")
_LOCK = Lock()
_BEFORE: list[list[bool]] = []
"""The settings before the first thread."""
_INSIDE: list[None] = []
"""One for each thread that computes."""


def _store_by_columns(model: Model) -> None:
    """Store matrices in memory by columns; their values and shapes stay.

    On 64-bit ARM torch then multiplies faster, as it need not rearrange them at every call: by a quarter for one short
    text, by an eighth for many.
    """
    with _LOCK:  # no thread computes with a model that another one is rearranging
        first = next((part for part in model.modules() if isinstance(part, nn.Linear)), None)
        if first is not None and first.weight.is_contiguous():  # else all are stored so already
            for part in model.modules():
                if isinstance(part, nn.Linear):
                    part.weight.data = part.weight.data.t().contiguous().t()


def _opened(
    model: Model | Path | str | None, device: Device | None, dtype: Precision | None
) -> tuple[Model, torch.device]:
    is_chosen = not isinstance(model, Model) and not (device and dtype)
    if isinstance(model, Model):
        target = model.device if device is None else find_device(device)
        precision = model.dtype if dtype is None else find_dtype(dtype, target)
        if precision != model.dtype:
            model = copy.deepcopy(model).to(precision)
        if target != model.device:
            model = model.to(target)
    else:
        target = find_device(device or "auto")
        precision = find_dtype(dtype or "auto", target)
        model = load(model, device=target, dtype=precision)
    if is_chosen or "auto" in (device, dtype):
        announce(target, precision)
    return model, model.device
