"""The parts of a recipe that pretraining and fine-tuning share: `[run]` and `[lora]`. `[optim]` is in optim.py."""

from dataclasses import dataclass
from typing import Literal

from bothways.errors import BothwaysError, require_choice
from bothways.train.ranks import Parallel


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
    gradient_checkpointing: bool = False
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


@dataclass(frozen=True)
class LoraSettings:
    """The `[lora]` part of a recipe."""

    rank: int = 0
    """Of the trained matrices; 0: no LoRA, all weights are trained."""
    alpha: float = 16.0
    """The update is scaled by alpha / rank."""
    dropout: float = 0.0
    """Dropout probability of the adapter's input."""
    targets: tuple[str, ...] = ("query", "value")
    """The layers that get an adapter: query, key and value are those of attention, whatever a family calls them (if it
    has one layer for all three, that one); others by the ends of their Hugging Face names; "all-linear": every one."""

    def __post_init__(self) -> None:
        if self.rank < 0 or self.alpha <= 0 or not 0 <= self.dropout < 1:
            raise BothwaysError(
                "lora.rank is 0 or more, lora.alpha above 0, lora.dropout from 0 up to 1", "out-of-range", self
            )
