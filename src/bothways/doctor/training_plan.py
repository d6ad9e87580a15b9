"""A plan for training: the model with a new head, settings, the time they take, the command."""

import math
import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.optim import Optimizer

from bothways.data.findings import DataCounts
from bothways.doctor.data_report import TrainingPlan
from bothways.doctor.tokens import Tokenized
from bothways.errors import BothwaysError
from bothways.model.load import load
from bothways.model.model import Model
from bothways.tasks.folder import with_task
from bothways.tasks.recipe import FinetuneData, FinetuneRecipe
from bothways.tasks.registry import make_task, plan_task
from bothways.tasks.task import Sample, Task, TaskConfig
from bothways.tasks.trainable import FineTuning
from bothways.text.frames import is_frame
from bothways.train.machine import pick_device, pick_precision
from bothways.train.optim import make_optimizers
from bothways.train.ranks import Ranks

_SMALL = 2_000
"""With fewer rows, more than three epochs pay."""
_SMALL_STEPS = 300
"""Steps that small data get, if twenty epochs allow it."""
_TIMED_STEPS = 3
_SECONDS = 8.0
"""No further step begins after this time."""
_STEP_SECONDS = 2.5
"""The longest that a timed step may take: for a large model, a part of the batch is enough."""


def load_base(folder: str) -> Model:
    """The model to train."""
    model = load(folder)
    if model.tokenizer is None:
        raise BothwaysError(
            f"{folder} has no tokenizer: put its tokenizer.json or vocab.txt there", "no-tokenizer", folder
        )
    return model


def with_head(base: Model, task: type[Task], counts: DataCounts) -> tuple[Task, Model, TaskConfig]:
    """The model with the head that these data need, and its task. Raises where training would."""
    recipe, length = FinetuneRecipe(task=task.name), base.config.encoder.max_length
    config, labels = plan_task(task.name, recipe.settings, recipe.window, task.exemplars(counts), length)
    model = with_task(base, config, labels, seed=recipe.run.seed)
    return make_task(model, recipe.settings), model, config


def make_plan(task: Task, model: Model, found: Tokenized, rows: int, dev: float, device: str) -> TrainingPlan:
    """Settings for this number of rows, and the time that training takes, from a few timed steps.

    `dev` is the size of the development data as a share of the training data.
    """
    batch, lr, epochs, why = suggest(task, model, rows)
    speed = time_steps(task, model, found.first[:batch], device)
    steps = epochs * math.ceil(found.samples / batch)
    # A forward pass is a third of a training step.
    seconds = epochs * found.tokens * (1 + dev / 3) * speed.token + steps * speed.step
    return TrainingPlan(batch, lr, epochs, steps, why, seconds, speed.machine)


def suggest(task: Task, model: Model, rows: int) -> tuple[int, float, int, str]:
    """Batch size, learning rate and epochs, and why: in the ranges of BERT's paper (16 or 32; 2e-5 to 5e-5; 2 to 4).

    Small data get more epochs, since they need more steps (Mosbach et al. 2021, Zhang et al. 2021).
    """
    shape = model.config.encoder
    batch = 16 if rows < 5_000 else 32
    lr, size = (2e-5, "large") if shape.layers >= 24 else (5e-5, "small") if shape.width < 768 else (3e-5, "base")
    epochs = task.epochs
    why = f"within the ranges of BERT's paper; {lr:g} for a {size} model"
    if rows < _SMALL:
        epochs = min(max(math.ceil(_SMALL_STEPS * batch / max(rows, 1)), 5), 20)
        why = (
            f"batch size and learning rate are within the ranges of BERT's paper, {lr:g} for a {size} model; {epochs} "
            f"epochs are more than its 2 to 4, since {rows:,} rows give few steps; such runs vary: try --seeds 3"
        )
    return batch, lr, epochs, why


def next_command(task: str, data: FinetuneData, folder: str, plan: TrainingPlan | None, settings: Sequence[str]) -> str:
    """The command that trains on these data."""
    words = ["bothways", "finetune", task]
    for option, values in (("--train", data.train), ("--dev", data.dev), ("--model", (folder or "DIR",))):
        words += [word for value in values for word in (option, "FILE" if is_frame(value) else value)]
    for name in ("text", "pair", "label", "encoding"):
        option, value = f"--{name}", getattr(data, name)
        words += [option, value] if value else []
    stem = "data" if is_frame(data.train[0]) else Path(data.train[0]).name.split(".")[0] or "data"
    words += ["--out", f"{stem}-{task}"]
    if plan is not None:
        words += ["--batch", str(plan.batch), "--lr", f"{plan.lr:g}", "--epochs", str(plan.epochs)]
    words += [word for setting in settings for word in ("--set", setting)]
    return shlex.join(words)


@dataclass(frozen=True)
class Speed:
    """What training costs on this machine, in seconds."""

    step: float
    """The part of a step that does not depend on its tokens: the optimizer, and the gradients of large tables."""
    token: float
    """Forward and backward of one token."""
    machine: str


def time_steps(task: Task, model: Model, batch: Sequence[Sample], wanted: str = "auto") -> Speed:
    """The cost of training, from a step with one sample and a few with as much of the batch as time allows.

    The fastest step counts, since other work on the machine only adds time. The model's weights change.
    """
    device = pick_device(wanted, Ranks())
    optimizers = make_optimizers(dict(model.to(device).named_parameters()), FinetuneRecipe().optim)
    begin = _now(device)
    with torch.random.fork_rng(devices=[]):
        _step(task, model, batch[:1], optimizers, device)  # to warm up
        small, size = _step(task, model, batch[:1], optimizers, device)
        count = _fitting(1, small, len(batch))
        found = [_step(task, model, batch[:count], optimizers, device)]
        while len(found) < _TIMED_STEPS and _now(device) - begin < _SECONDS:
            count = _fitting(count, found[-1][0], len(batch))
            found.append(_step(task, model, batch[:count], optimizers, device))
    model.eval()
    most = max(tokens for _, tokens in found)
    large = min(seconds for seconds, tokens in found if tokens == most)
    # A line through both; if it falls, because of other work on the machine, all time is attributed to the tokens.
    token = (large - small) / (most - size) if most > size and large > small else large / most
    return Speed(max(large - token * most, 0.0), token, _machine(device))


def _fitting(count: int, seconds: float, most: int) -> int:
    """The number of samples that a step has time for, if `count` of them took these seconds."""
    return max(1, min(most, int(count * _STEP_SECONDS / max(seconds, 1e-6))))


def _step(
    task: Task, model: Model, samples: Sequence[Sample], optimizers: Sequence[Optimizer], device: torch.device
) -> tuple[float, int]:
    """One step: its seconds and tokens."""
    work = FineTuning(model, task, samples, (), batch=len(samples), micro_tokens=32_768, seed=0)
    step = next(work.feed(0, 0, Ranks(), False))
    half = pick_precision("auto", device) == "bf16"
    work.module.train()
    start = _now(device)
    for micro in step.micros:
        there = micro.to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            loss = work.module(there.batch, there.targets).sum()
        loss.backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return _now(device) - start, step.tokens


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _machine(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads, cores = torch.get_num_threads(), os.cpu_count() or 1
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    busy = f" of a busy machine (load {load:.1f} on {cores} cores)" if load > cores else ""
    return f"{threads} CPU thread{'s' * (threads > 1)}{busy}"
