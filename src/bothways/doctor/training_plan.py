"""A plan for training: the model with a new head, settings, the time they take, the command."""

import math
import os
import shlex
import statistics
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
from bothways.printable import counted
from bothways.tasks.defaults import settled
from bothways.tasks.folder import with_task
from bothways.tasks.recipe import FinetuneData, FinetuneRecipe, advice_file
from bothways.tasks.registry import TASKS, make_task, plan_task
from bothways.tasks.task import Sample, Task, TaskConfig
from bothways.tasks.trainable import FineTuning
from bothways.text.excel import named_sheet
from bothways.text.files import is_pattern
from bothways.text.frames import is_frame
from bothways.train.machine import pick_device, pick_precision
from bothways.train.optim import OptimSettings, make_optimizers
from bothways.train.ranks import Ranks

_TIMED_STEPS = 5
_SECONDS = 8.0
"""No further step begins after this time."""
_STEP_SECONDS = 2.5
"""The longest that a timed step may take: for a large model, a part of the batch is enough."""

_WRITTEN = 3e8
"""Bytes of a checkpoint that are written in a second, with fsync: measured on a virtual disk."""
_STARTING = 4.0
"""Seconds to import, read and load."""


def load_base(folder: str) -> Model:
    """The model to train."""
    model = load(folder)
    if model.tokenizer is None:
        raise BothwaysError(
            f"{folder} has no tokenizer: put its tokenizer.json or vocab.txt there", "no-tokenizer", folder
        )
    return model


def with_head(recipe: FinetuneRecipe, base: Model, counts: DataCounts) -> tuple[Task, Model, TaskConfig]:
    """The model with the head that these data need, and its task. Raises where training would."""
    examples, length = TASKS[recipe.task].exemplars(counts), base.config.encoder.max_length
    config, labels = plan_task(recipe.task, recipe.settings, recipe.window, examples, length)
    model = with_task(base, config, labels, seed=recipe.run.seed)
    return make_task(model, recipe.settings), model, config


def make_plan(
    task: Task, model: Model, recipe: FinetuneRecipe, found: Tokenized, dev: float, device: str
) -> TrainingPlan:
    """The settings of `bothways finetune`, and the time that training takes, from a few timed steps.

    `dev` is the size of the development data as a share of the training data.
    """
    advised = advice_file(recipe.model.init)
    recipe, why = settled(recipe, model.config.encoder, found.samples, len(task.labels))
    why = "; ".join(filter(None, (f"as {advised} advises" if advised else "", why)))
    batch, epochs = recipe.run.batch_size, recipe.run.epochs
    speed = time_steps(task, model, found.first[:batch], device)
    steps = math.ceil(epochs * math.ceil(found.samples / batch))
    # A forward pass is a third of a training step. Every epoch ends with a checkpoint: weights and AdamW's two moments.
    saving = 3 * 4 * sum(p.numel() for p in model.parameters()) / _WRITTEN
    seconds = epochs * (found.tokens * (1 + dev / 3) * speed.token + saving) + steps * speed.step + _STARTING
    return TrainingPlan(batch, recipe.optim.lr, epochs, steps, why, seconds, speed.machine)


def next_command(task: str, data: FinetuneData, folder: str, plan: TrainingPlan | None, settings: Sequence[str]) -> str:
    """The command that trains on these data. Without a folder it starts from the included model."""
    words = ["bothways", "finetune", task]
    for option, values in (("--train", data.train), ("--dev", data.dev), ("--model", (folder,) if folder else ())):
        words += [word for value in values for word in (option, "FILE" if is_frame(value) else value)]
    for name in ("text", "pair", "label", "encoding"):
        option, value = f"--{name}", getattr(data, name)
        words += [option, value] if value else []
    words += ["--sheet", named_sheet()] if named_sheet() else []
    has_name = not is_frame(data.train[0]) and not is_pattern(Path(data.train[0]))
    stem = Path(data.train[0]).name.split(".")[0] if has_name else ""
    words += ["--out", f"{stem or 'data'}-{task}"]
    if plan is not None:
        words += ["--batch", str(plan.batch), "--lr", f"{plan.lr:g}", "--epochs", f"{plan.epochs:g}"]
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
    """The cost of training, from steps with one sample and with as much of the batch as time allows.

    The median counts: other work on the machine slows training too. The model's weights change.
    """
    device = pick_device(wanted, Ranks())
    optimizers = make_optimizers(dict(model.to(device).named_parameters()), OptimSettings())
    begin = _now(device)
    with torch.random.fork_rng(devices=[]):
        _step(task, model, batch[:1], optimizers, device)  # to warm up
        smallest = [_step(task, model, batch[:1], optimizers, device) for _ in range(_TIMED_STEPS)]
        small, size = statistics.median(seconds for seconds, _ in smallest), smallest[0][1]
        count = _fitting(1, small, len(batch))
        found = [_step(task, model, batch[:count], optimizers, device)]
        while len(found) < _TIMED_STEPS and _now(device) - begin < _SECONDS:
            count = _fitting(count, found[-1][0], len(batch))
            found.append(_step(task, model, batch[:count], optimizers, device))
    model.eval()
    most = max(tokens for _, tokens in found)
    large = statistics.median(seconds for seconds, tokens in found if tokens == most)
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
    return counted(threads, "CPU thread") + busy
