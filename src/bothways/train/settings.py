"""The parts of a recipe that pretraining and fine-tuning share: `[run]` and `[lora]`. `[optim]` is in optim.py."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from bothways.errors import BothwaysError, require_choice
from bothways.ranges import Bounded, Count, NotNegative, Positive, Probability, Range, Size
from bothways.train.ranks import Parallel


@dataclass(frozen=True)
class RunSettings(Bounded):
    """The `[run]` part of a recipe."""

    section = "run"
    _may_be_open: ClassVar[bool] = False
    """Whether a recipe may leave the length to be chosen by the data."""

    steps: Count = 0
    """The length of the run in steps. A run has one of steps, minutes and epochs."""
    minutes: Annotated[float, Range(0, 1e7)] = 0.0
    """The length of the run in minutes of training; the schedule is finished when they are over."""
    epochs: Annotated[float, Range(0, 1e7)] = 0.0
    """The length of the run in epochs, for fine-tuning."""
    patience: Count = 0
    """Early stopping after this many evaluations without improvement; 0: off. The result is the best checkpoint."""
    seed: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """auto: bf16 on a GPU, fp32 on a CPU."""
    compile: bool | None = None
    """torch.compile; by default on a GPU only."""
    gradient_checkpointing: bool = False
    """Less memory, a third more computation."""
    deterministic: bool = False
    """On a GPU: bit-equal results for equal seeds, at some cost in speed. On a CPU they always are."""
    micro_tokens: Size = 32_768
    """Most tokens of one forward pass on each device; a larger step is accumulated, with the same result."""
    parallel: Parallel = "ddp"
    """With torchrun: ddp copies the model to every rank, fsdp shards it."""
    evaluate_every: Count = 0
    """Steps between evaluations; 0: only at the start and at the end."""
    evaluate_first: bool = True
    """Whether to evaluate before the first step."""
    save_every: Count = 0
    """Steps between checkpoints; 0: by save_minutes and at the end."""
    save_minutes: NotNegative = 15.0
    save_first: bool = False
    """Whether to save before the first step too, so that the best checkpoint may be the model as it was."""
    keep: Size = 2
    """Number of checkpoints to keep, beside the best."""
    keep_state: bool = False
    """Whether a complete run keeps its checkpoints, with the optimiser state: to be made longer, or to look at."""
    tensorboard: bool = False
    """Write the run's numbers for TensorBoard, into tensorboard/ in its folder."""
    mlflow: bool = False
    """Write them for MLflow: to MLFLOW_TRACKING_URI if that is on this machine, else to mlflow.db in the folder."""
    wandb: bool = False
    """Write them for Weights & Biases, offline, into wandb/ in the folder."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("run.device", self.device, ("auto", "cpu", "cuda"))
        require_choice("run.precision", self.precision, ("auto", "fp32", "bf16", "fp16"))
        require_choice("run.parallel", self.parallel, ("ddp", "fsdp"))
        lengths = {name: getattr(self, name) for name in ("steps", "minutes", "epochs")}
        given = [f"run.{name} = {value}" for name, value in lengths.items() if value]
        if (given or not self._may_be_open) and sum(length > 0 for length in lengths.values()) != 1:
            raise BothwaysError(
                "a run needs exactly one of run.steps, run.minutes and, for fine-tuning, run.epochs above 0, not "
                f"{' and '.join(given) or 'none'}",
                "bad-length",
                lengths,
            )

    @property
    def has_length(self) -> bool:
        return bool(self.steps or self.minutes or self.epochs)

    def is_longer_than(self, step: int, stale: int) -> bool:
        """Whether this run goes on from the end of a shorter one, unless that was stopped early.

        `stale`: its evaluations without improvement. A time has no exact end, so a run in minutes never does.
        """
        return step < self.steps and not 0 < self.patience <= stale

    def done(self, step: int, elapsed: float) -> float:
        """Progress from 0 to 1 after `step` steps and `elapsed` seconds."""
        return step / self.steps if self.steps else elapsed / (60 * self.minutes)


@dataclass(frozen=True)
class LoraSettings(Bounded):
    """The `[lora]` part of a recipe."""

    section = "lora"

    rank: Count = 0
    """Rank of the trained matrices; 0: no LoRA, all weights are trained."""
    alpha: Positive = 16.0
    """The update is scaled by alpha / rank."""
    dropout: Probability = 0.0
    """Dropout probability of the adapter's input."""
    targets: tuple[str, ...] = ("query", "value")
    """The layers that get an adapter: "query", "key" and "value" of attention in any family (its one fused layer, if it
    has that); other layers by the end of their Hugging Face name; "all-linear": all of them."""
