"""The protocol between the training loop and what is trained, and the events that the loop yields."""

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
    """Which of the phases, that take these shares of a run, a moment belongs to."""
    ends = list(itertools.accumulate(shares))
    return min(sum(done >= end / ends[-1] - 1e-9 for end in ends), len(ends) - 1)


@dataclass(frozen=True)
class MicroBatch:
    """What goes through the model at once."""

    batch: Batch
    targets: dict[str, Tensor]
    tokens: int
    """Real ones, without fillers."""
    is_spare: bool = False
    """True if it counts nothing, and only keeps this rank in step with the others."""

    def pin(self) -> "MicroBatch":
        """In memory that a GPU copies from without waiting."""
        targets = {name: target.pin_memory() for name, target in self.targets.items()}
        return replace(self, batch=self.batch.pin(), targets=targets)

    def to(self, device: torch.device | str) -> "MicroBatch":
        return replace(self, batch=self.batch.to(device), targets=sent(self.targets, device))


def sent(targets: Mapping[str, Tensor], device: torch.device | str) -> dict[str, Tensor]:
    """Targets on a device, without waiting for it."""
    return {name: target.to(device, non_blocking=True) for name, target in targets.items()}


@dataclass(frozen=True)
class WholeStep:
    """A loss over the vectors of all sequences of a step at once, whatever the micro-batches and the ranks."""

    loss: Callable[[Tensor, Mapping[str, Tensor]], Tensor]
    """Vectors of all sequences (S, …), in the order of ranks and of their micro-batches, and targets → (K,) sums."""
    targets: Mapping[str, Tensor]
    sizes: Sequence[int]
    """How many vectors each rank has."""


@dataclass(frozen=True)
class Step:
    """One rank's share of one optimiser step."""

    micros: list[MicroBatch]
    counts: Mapping[str, float]
    """By loss, what the sum over this rank's share is divided by: how many terms it has, or their weight."""
    tokens: int
    """Of all ranks."""
    sequences: int
    """Of all ranks: the next step begins so much later."""
    whole: WholeStep | None = None
    """With it, the module gives the vectors of each micro-batch in training, and no losses."""


Forward = Callable[[MicroBatch], Tensor]


class Trainable(Storable, Protocol):
    """What is to be trained, and on what."""

    @property
    def module(self) -> nn.Module:
        """module(batch, targets) → (K,) the sums of the K losses, or vectors for `Step.whole`; in evaluation, whatever
        `evaluate` scores."""

    losses: Mapping[str, float]
    """K names, and the weight of each in the sum that is minimised."""

    def blocks(self) -> Sequence[nn.Module]:
        """The parts that FSDP2 splits one by one."""

    def phases(self) -> Sequence[float]:
        """The shares of the run that the phases take."""

    def feed(self, phase: int, index: int, ranks: Ranks, static_shapes: bool) -> Iterator[Step]:
        """The steps of a phase from sequence `index` on, endless; with `still`, of one shape."""

    def evaluate(
        self, forward: Forward, phase: int, ranks: Ranks, static_shapes: bool, final: bool
    ) -> dict[str, float]:
        """Scores on held-out text by name. Empty if there is none."""

    def selection_loss(self, scores: Mapping[str, float]) -> float:
        """What of the scores decides which checkpoint is best: the lower the better."""

    def flops(self, phase: int) -> float:
        """Floating-point operations of one training step for one token."""


@dataclass(frozen=True)
class Stepped:
    """A step was taken."""

    step: int
    phase: int
    loss: float
    losses: dict[str, float]
    lr: float
    norm: float
    """Of the gradient, before clipping."""
    tokens: int
    """Since the beginning."""
    speed: float
    """Tokens a second."""
    flops: float
    """Floating-point operations a second."""
    done: float
    """The share of the run behind us."""
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
    """0, or the step of the checkpoint from which the run goes on."""
    parameters: int
    device: str
    precision: str
    ceiling: float
    """Floating-point operations a second that plain matrix products reach on all ranks together."""
    steps: int = 0
    """How many there will be; 0 if the clock decides."""


@dataclass(frozen=True)
class Finished:
    step: int
    elapsed: float
    complete: bool
    """False if it was interrupted: the same command goes on from here."""


@dataclass(frozen=True)
class Stopping:
    """Somebody asked for it: a checkpoint is saved first."""

    step: int


Event = Started | Stepped | Evaluated | Saved | Stopping | Finished
