"""What the training loop is told and what it tells: settings, the work's protocol, events."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from bothways.errors import BothwaysError, require_choice
from bothways.model.batch import Batch
from bothways.train.ranks import Parallel, Ranks
from bothways.train.state import Storable


@dataclass(frozen=True)
class RunSettings:
    """The `[run]` part of a recipe."""

    steps: int = 0
    """How long: this many steps, or …"""
    minutes: float = 0.0
    """… this many minutes of training, with the schedule finished, or …"""
    epochs: float = 0.0
    """… so many passes over the data, in fine-tuning."""
    patience: int = 0
    """Stop when so many evaluations in a row brought nothing better; 0: never."""
    seed: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """auto: bf16 on a GPU, fp32 on a CPU."""
    compile: bool | None = None
    """torch.compile; unless said, on a GPU only."""
    recompute: bool = False
    """Activation checkpointing: less memory, a third more work."""
    deterministic: bool = False
    """On a GPU: every run with this seed is the same bit for bit, at some cost in speed. On a CPU it always is."""
    micro_tokens: int = 32_768
    """At most so many tokens go through the model at once on each device; a larger step is accumulated, exactly."""
    parallel: Parallel = "ddp"
    """With torchrun: ddp copies the model to every rank, fsdp splits it over them."""
    evaluate_every: int = 0
    """Steps; 0: only at the beginning and at the end."""
    evaluate_first: bool = True
    """Whether to evaluate before the first step."""
    save_every: int = 0
    """Steps; 0: only by minutes and at the end."""
    save_minutes: float = 15.0
    keep: int = 2
    """Checkpoints that stay; the best always does."""
    tensorboard: bool = False

    def __post_init__(self) -> None:
        require_choice("run.device", self.device, ("auto", "cpu", "cuda"))
        require_choice("run.precision", self.precision, ("auto", "fp32", "bf16", "fp16"))
        require_choice("run.parallel", self.parallel, ("ddp", "fsdp"))
        if sum(length > 0 for length in (self.steps, self.minutes, self.epochs)) != 1:
            lengths = {name: getattr(self, name) for name in ("steps", "minutes", "epochs")}
            said = [f"run.{name} = {value}" for name, value in lengths.items() if value]
            raise BothwaysError(
                f"a run needs one of run.steps, run.minutes and, to fine-tune, run.epochs, above 0: it has "
                f"{' and '.join(said) or 'none'}"
            )
        if self.keep < 1 or self.micro_tokens < 1 or self.patience < 0:
            raise BothwaysError("run.keep and run.micro_tokens must be 1 or more, run.patience 0 or more")

    def done(self, step: int, elapsed: float) -> float:
        """The share of the run that is behind us after so many steps, and seconds."""
        return step / self.steps if self.steps else elapsed / (60 * self.minutes)


def phase_at(shares: Sequence[float], done: float) -> int:
    """Which of the phases, that take these shares of a run, a moment belongs to."""
    ends = list(itertools.accumulate(shares))
    return min(sum(done >= end / ends[-1] - 1e-9 for end in ends), len(ends) - 1)


@dataclass(frozen=True)
class Micro:
    """What goes through the model at once."""

    batch: Batch
    targets: dict[str, Tensor]
    tokens: int
    """Real ones, without fillers."""

    def pin(self) -> "Micro":
        """In memory that a GPU copies from without waiting."""
        return Micro(self.batch.pin(), {name: t.pin_memory() for name, t in self.targets.items()}, self.tokens)

    def to(self, device: torch.device | str) -> "Micro":
        targets = {name: target.to(device, non_blocking=True) for name, target in self.targets.items()}
        return Micro(self.batch.to(device), targets, self.tokens)


@dataclass(frozen=True)
class Step:
    """One rank's share of one optimiser step."""

    micros: list[Micro]
    counts: Mapping[str, float]
    """By loss, what the sum over this rank's share is divided by: how many terms it has, or their weight."""
    tokens: int
    """Of all ranks."""
    sequences: int
    """Of all ranks: the next step begins so much later."""


Forward = Callable[[Micro], Tensor]


class Work(Storable, Protocol):
    """What is to be trained, and on what."""

    @property
    def module(self) -> nn.Module:
        """module(batch, targets) → (K,) the sums of the K losses; in evaluation, whatever `evaluate` scores."""

    losses: Mapping[str, float]
    """K names, and the weight of each in the sum that is minimised."""

    def blocks(self) -> Sequence[nn.Module]:
        """The parts that FSDP2 splits one by one."""

    def phases(self) -> Sequence[float]:
        """The shares of the run that the phases take."""

    def feed(self, phase: int, index: int, ranks: Ranks, still: bool) -> Iterator[Step]:
        """The steps of a phase from sequence `index` on, endless; with `still`, of one shape."""

    def evaluate(self, forward: Forward, phase: int, ranks: Ranks, still: bool, final: bool) -> dict[str, float]:
        """Scores on held-out text by name. Empty if there is none."""

    def badness(self, scores: Mapping[str, float]) -> float:
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
