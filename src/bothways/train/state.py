"""Checkpoints of a run, written atomically, from which training resumes bit for bit.

out/checkpoints/step-00001000/
    model/                  a model folder
    generator/              a model folder, of rtd
    parts.safetensors       what objectives train beside the model, if anything
    evaluated.json          confidence intervals of its scores, of fine-tuning
    optimizer.safetensors   by parameter name, the same for any number of processes
    state.json              the position in the data and the schedule

A complete run needs them no longer: `Checkpoints.finish` keeps out/state.json of them.
"""

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bothways import atomic
from bothways.errors import BothwaysError
from bothways.model.run_folder import CHECKPOINTS, STATE
from bothways.model.weights import read_tensors
from bothways.train.ranks import full_tensor, shard_like

_FILES = ("model", "generator", "parts.safetensors", "evaluated.json", "optimizer.safetensors", STATE)


@dataclass(frozen=True)
class State:
    """The progress of a run."""

    step: int = 0
    phase: int = 0
    index: int = 0
    """The next sequence of this phase."""
    tokens: int = 0
    elapsed: float = 0.0
    """Seconds of training, over all sessions."""
    best: float | None = None
    """The lowest selection loss of a saved model."""
    best_step: int | None = None
    """The step of the saved model with the lowest selection loss."""
    stale: int = 0
    """Evaluations since the last improvement."""
    lowest: float | None = None
    """The lowest selection loss of all evaluations."""
    complete: bool = False
    """The run is over: at its end, or by early stopping."""
    scaler: dict[str, Any] | None = None
    """The state of fp16 loss scaling."""


def read_state(path: Path) -> State:
    """The state of one checkpoint, or of a complete run."""
    return replace(State(), **json.loads((path / STATE).read_text(encoding="utf-8")))


def _written(state: State) -> str:
    return json.dumps(asdict(state), indent=1) + "\n"


class Storable(Protocol):
    """Writes a model's weights to a folder and reads them back."""

    def save(self, weights: Mapping[str, Tensor], folder: Path) -> None: ...

    def load(self, folder: Path) -> dict[str, Tensor]: ...


def collect(
    named: Mapping[str, nn.Parameter], optimizers: Iterable[Optimizer]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The weights and the optimiser state by name, unsharded, on the CPU. All ranks must call this together."""
    weights = {name: full_tensor(p.detach()).cpu() for name, p in named.items()}
    names: dict[Tensor, str] = {p: name for name, p in named.items()}
    memory = {}
    for optimizer in optimizers:
        for parameter, own in optimizer.state.items():
            for key, value in own.items():
                memory[f"{key}/{names[parameter]}"] = full_tensor(torch.as_tensor(value)).cpu()
    return weights, memory


def restore(
    named: Mapping[str, nn.Parameter],
    optimizers: Iterable[Optimizer],
    weights: Mapping[str, Tensor],
    memory: Mapping[str, Tensor],
) -> None:
    """Load weights and optimiser state into parameters on any device, sharded or not."""
    with torch.no_grad():
        for name, parameter in named.items():
            parameter.copy_(shard_like(weights[name], parameter))
    names = {p: name for name, p in named.items()}
    by_name: dict[str, dict[str, Tensor]] = {}
    for full, value in memory.items():
        key, name = full.split("/", 1)
        by_name.setdefault(name, {})[key] = value
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                for key, value in by_name.get(names[parameter], {}).items():
                    # Fused kernels keep the step count on the parameter's device, the others on the CPU.
                    placed = shard_like(value, parameter) if value.ndim else _scalar(value, parameter, group)
                    optimizer.state[parameter][key] = placed.clone()


def _scalar(value: Tensor, parameter: Tensor, group: Mapping[str, Any]) -> Tensor:
    return value.to(parameter.device) if group.get("fused") or group.get("capturable") else value


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.run, self.folder, self.keep = folder, folder / CHECKPOINTS, keep

    def save(self, work: Storable, state: State, weights: Mapping[str, Tensor], memory: Mapping[str, Tensor]) -> Path:
        """Write a checkpoint, then delete the oldest beyond `keep`, but never the best."""
        path = self.folder / f"step-{state.step:08}"
        before = self.latest()
        try:
            with atomic.new_folder(path, replaces=_FILES) as temporary:
                work.save(weights, temporary)
                safetensors.torch.save_file(
                    {name: tensor.contiguous() for name, tensor in memory.items()}, temporary / "optimizer.safetensors"
                )
                (temporary / STATE).write_text(_written(state), encoding="utf-8")
        except (BothwaysError, safetensors.SafetensorError) as error:
            kept = f"the checkpoint {before} is intact" if before else "there is no earlier checkpoint"
            raise BothwaysError(
                f"the checkpoint of step {state.step} was not saved ({error}); {kept}", "unwritable", path
            ) from error
        for old in [p for p in self.all()[: -self.keep] if p.name != f"step-{state.best_step or 0:08}"]:
            shutil.rmtree(old)
        return path

    def all(self) -> list[Path]:
        """All checkpoints, oldest first."""
        return sorted(p for p in self.folder.glob("step-*") if (p / STATE).exists())

    def latest(self) -> Path | None:
        found = self.all()
        return found[-1] if found else None

    def state(self) -> State | None:
        """The progress of the run: as its latest checkpoint says, or as it was when a complete run dropped them."""
        latest = self.latest()
        place = self.run if latest is None else latest
        return read_state(place) if (place / STATE).is_file() else None

    def finish(self, *, keep_state: bool) -> None:
        """Keep the progress of a complete run, whose model is published; drop its checkpoints unless `keep_state`.

        A kill at any moment leaves all checkpoints or none.
        """
        state = self.state()
        assert state is not None
        assert state.complete
        with atomic.new_file(self.run / STATE) as temporary:
            temporary.write_text(_written(state), encoding="utf-8")
        if not keep_state and self.folder.exists():
            self.clean()
            self.folder.rename(self._dropped)
            self.clean()

    def clean(self) -> None:
        """Remove half-written and half-removed checkpoints of a killed session."""
        for left in (*self.folder.glob(".step-*"), self._dropped):
            shutil.rmtree(left, ignore_errors=True)

    @property
    def _dropped(self) -> Path:
        return self.folder.with_name(f".{CHECKPOINTS}.dropped")

    @staticmethod
    def load(work: Storable, path: Path) -> tuple[State, dict[str, Tensor], dict[str, Tensor]]:
        """State, weights, and optimiser state."""
        try:
            state = read_state(path)
            memory = read_tensors(path / "optimizer.safetensors")
            return state, work.load(path), memory
        except (OSError, ValueError, TypeError, safetensors.SafetensorError) as error:
            raise BothwaysError(
                f"{path} cannot be read ({error}): delete it to resume from the checkpoint before", "damaged-file", path
            ) from error
