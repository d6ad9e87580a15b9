"""Where batches are computed: the library that holds their numbers, and how results come back from it."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from bothways.engine.sequences import Indices, Sequences, on_device, ragged
from bothways.lazy import torch
from bothways.model.arrays import Array
from bothways.model.batch import Batch


class Backend(Protocol):
    """Makes batches of sequences and brings back what was computed from them."""

    @property
    def type(self) -> str:
        """cpu or cuda, as of a device of torch."""

    @property
    def tokens(self) -> int:
        """The default token budget of a batch; 0: that of the type."""

    def batch(self, sequences: Sequences, picked: Indices) -> Any:
        """The given sequences as one batch."""

    def array(self, values: NDArray[Any]) -> Array:
        """Values that batches are computed with."""

    def computing(self) -> AbstractContextManager[object]:
        """Around all that is computed."""

    def fetch(self, found: Array) -> tuple[Array, Any]:
        """Results on their way to numpy, and the event of their arrival; None: they are there."""


class HeadReader(Protocol):
    """A task, as far as the engine knows it."""

    head: ClassVar[str]
    """The model's head that it reads; none if it reads vectors of texts."""

    def outputs(self, model: Any, states: Any, batch: Any) -> Any:
        """What it reads of a model with weights."""


@dataclass(frozen=True)
class TorchBackend:
    """Packed batches on a device of torch."""

    device: "torch.device"
    tokens: int = 0

    @property
    def type(self) -> str:
        return self.device.type

    def batch(self, sequences: Sequences, picked: Indices) -> Batch:
        return sequences.batch(picked, self.device)

    def array(self, values: NDArray[Any]) -> Array:
        return on_device(values, self.device)

    def computing(self) -> AbstractContextManager[object]:
        return torch.inference_mode()

    def fetch(self, found: Array) -> tuple[Array, Any]:
        return _copied(found) if self.type == "cuda" else (found.float().cpu(), None)


def _copied(found: Array) -> tuple[Array, Any]:
    """A copy of a GPU's results that is on its way, and the event of its arrival."""
    with torch.cuda.device(found.device):
        host = torch.empty(found.shape, pin_memory=True)
        host.copy_(found, non_blocking=True)
        done = torch.cuda.Event()
        done.record()
    return host, done


@dataclass(frozen=True)
class PaddedBatch:
    """B sequences on a grid (B, L), as graphs read them, with padding on the right; what pools them counts N tokens."""

    ids: NDArray[np.int64]
    segments: NDArray[np.int64]
    mask: NDArray[np.int64]
    lengths: Indices
    """(B,) tokens of each sequence."""

    @property
    def first(self) -> Indices:
        """(B,) the first token of each sequence."""
        first: Indices = np.cumsum(self.lengths) - self.lengths
        return first

    @property
    def cu_seqlens(self) -> Indices:
        return np.concatenate([[0], np.cumsum(self.lengths)])

    @property
    def owners(self) -> Indices:
        """(N,) the sequence of each token."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @property
    def positions(self) -> Indices:
        """(N,) the position of each token in its sequence."""
        return ragged(np.zeros_like(self.lengths), self.lengths)

    def packed(self, grid: NDArray[np.float32]) -> NDArray[np.float32]:
        """(B, L, …) → (N, …)."""
        return grid.reshape(-1, *grid.shape[2:]) if self.mask.all() else grid[self.mask > 0]


@dataclass(frozen=True)
class NumpyBackend:
    """Padded batches of numpy, for graphs."""

    type: str = "cpu"
    tokens: int = 512
    """With 4,096 the intermediate results leave the cache: a fifth slower in fp32, two fifths in int8."""

    def batch(self, sequences: Sequences, picked: Indices) -> PaddedBatch:
        lengths = sequences.lengths[picked]
        grid = np.arange(int(lengths.max())) < lengths[:, None]
        rows = ragged(sequences.starts[picked], lengths)
        ids, segments = (np.zeros(grid.shape, np.int64) for _ in range(2))
        ids[grid] = sequences.ids[rows]
        if sequences.segments is not None:
            segments[grid] = sequences.segments[rows]
        return PaddedBatch(ids, segments, grid.astype(np.int64), lengths)

    def array(self, values: NDArray[Any]) -> Array:
        return values

    def computing(self) -> AbstractContextManager[object]:
        return nullcontext()

    def fetch(self, found: Array) -> tuple[Array, Any]:
        return found, None


def backend_of(device: "torch.device | Backend") -> Backend:
    """The backend of a device of torch, or the given one."""
    return device if isinstance(device, TorchBackend | NumpyBackend) else TorchBackend(device)  # type: ignore[arg-type]
