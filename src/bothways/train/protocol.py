"""The protocol between the training loop and what it trains, and the events that the loop yields."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from bothways.model.batch import Batch
from bothways.train.ranks import Ranks
from bothways.train.state import Storable


def phase_at(shares: Sequence[float], done: float) -> int:
    """The number of the phase at progress `done` (0 to 1), if the phases take these shares of the run."""
    ends = list(itertools.accumulate(shares))
    return min(sum(done >= end / ends[-1] - 1e-9 for end in ends), len(ends) - 1)


@dataclass(frozen=True)
class MicroBatch:
    """The sequences of one forward pass."""

    batch: Batch
    targets: dict[str, Tensor]
    tokens: int
    """Without padding."""
    is_spare: bool = False
    """True if it is a repeat that only keeps this rank in step with the others."""

    def pin(self) -> "MicroBatch":
        """Copy to pinned memory, from which a GPU copies without blocking."""
        return replace(self, batch=self.batch.pin(), targets=_pinned(self.targets))

    def to(self, device: torch.device | str) -> "MicroBatch":
        return replace(self, batch=self.batch.to(device), targets=to_device(self.targets, device))


def to_device(targets: Mapping[str, Tensor], device: torch.device | str) -> dict[str, Tensor]:
    """Copy targets to a device without blocking."""
    return {name: target.to(device, non_blocking=True) for name, target in targets.items()}


def _pinned(targets: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: target.pin_memory() for name, target in targets.items()}


@dataclass(frozen=True)
class WholeStep:
    """A loss over the vectors of all sequences of a step at once, over all micro-batches and ranks (GradCache)."""

    loss: Callable[[Tensor, Mapping[str, Tensor]], Tensor]
    """Vectors of all sequences (S, …), in the order of ranks and of their micro-batches, and targets → (K,) sums."""
    targets: Mapping[str, Tensor]
    sizes: Sequence[int]
    """The number of vectors of each rank."""

    def pin(self) -> "WholeStep":
        """Copy to pinned memory, from which a GPU copies without blocking."""
        return replace(self, targets=_pinned(self.targets))


@dataclass(frozen=True)
class Step:
    """One rank's share of one optimiser step."""

    micros: list[MicroBatch]
    counts: Mapping[str, float]
    """By loss, what this rank adds to the divisor of the sum: the number of its terms, or their total weight."""
    tokens: int
    """Of all ranks."""
    sequences: int
    """Of all ranks: the next step begins at this offset."""
    whole: WholeStep | None = None
    """If set, the module returns the vectors of each micro-batch in training instead of losses."""


Forward = Callable[[MicroBatch], Tensor]


class Trainable(Storable, Protocol):
    """What is to be trained, and on what."""

    @property
    def module(self) -> nn.Module:
        """module(batch, targets) → (K,) the sums of the K losses, or vectors for `Step.whole`; in evaluation, what
        `evaluate` reads."""

    losses: Mapping[str, float]
    """K names, and the weight of each in the total loss."""

    dynamic_shapes: bool
    """Whether the batches of training differ in shape even if `static_shapes`: the compiler then keeps sizes symbolic,
    and evaluation is not compiled."""

    def blocks(self) -> Sequence[nn.Module]:
        """The modules that FSDP2 shards one by one."""

    def phases(self) -> Sequence[float]:
        """Each phase's share of the run."""

    def feed(self, phase: int, index: int, ranks: Ranks, static_shapes: bool) -> Iterator[Step]:
        """The steps of a phase from sequence `index` on, without end; all of one shape if `static_shapes`,
        unless `dynamic_shapes`."""

    def evaluate(
        self, forward: Forward, phase: int, ranks: Ranks, static_shapes: bool, final: bool
    ) -> dict[str, float]:
        """Scores on the held-out set by name. Empty if there is none."""

    def selection_loss(self, scores: Mapping[str, float]) -> float:
        """The score that selects the best checkpoint: lower is better."""

    def flops(self, phase: int) -> float:
        """Floating-point operations of a training step per token."""


@dataclass(frozen=True)
class Stepped:
    """A step was taken."""

    step: int
    phase: int
    loss: float
    losses: dict[str, float]
    lr: float
    norm: float
    """Gradient norm before clipping."""
    tokens: int
    """Since the start of the run."""
    speed: float
    """Tokens per second."""
    flops: float
    """Floating-point operations per second."""
    done: float
    """Progress from 0 to 1."""
    elapsed: float


@dataclass(frozen=True)
class Evaluated:
    step: int
    scores: dict[str, float]
    final: bool


@dataclass(frozen=True)
class Saved:
    step: int
    folder: Path


@dataclass(frozen=True)
class Started:
    step: int
    """0, or the step of the checkpoint that the run resumes from."""
    parameters: int
    device: str
    precision: str
    peak_flops: float
    """Floating-point operations per second that the devices of all ranks can do at most; nan if it is not known."""
    steps: int = 0
    """The number of steps of the run; 0 if it is set in minutes."""


@dataclass(frozen=True)
class Finished:
    step: int
    elapsed: float
    complete: bool
    """False if it was interrupted: the same command resumes it."""


@dataclass(frozen=True)
class Stopping:
    """The run was interrupted and saves a checkpoint before it stops."""

    step: int


Event = Started | Stepped | Evaluated | Saved | Stopping | Finished
