"""How fast a model learns a task here: a few real training steps, timed."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.optim import Optimizer

from bothways.model.model import Model
from bothways.tasks.recipe import FinetuneRecipe
from bothways.tasks.task import Sample, Task
from bothways.tasks.trainable import FineTuning
from bothways.train.machine import pick_device, pick_precision
from bothways.train.optim import make_optimizers
from bothways.train.ranks import Ranks

_STEPS = 3
_SECONDS = 8.0
"""After so many no further step is begun."""
_AT_ONCE = 2.5
"""Seconds that one step may take: of a large model a part of the batch is enough."""


@dataclass(frozen=True)
class Speed:
    """What training costs here, in seconds."""

    step: float
    """A step, whatever its size: moving the weights, and gradients of tables that are as large as ever."""
    token: float
    """A token more, forward and backward."""
    machine: str


def time_steps(task: Task, model: Model, batch: Sequence[Sample]) -> Speed:
    """The cost of training, from a step with one sample and some with as much of the batch as time allows.

    The best of a few: whatever else runs on the machine only adds to it. The model's weights change.
    """
    device = pick_device("auto", Ranks())
    optimizers = make_optimizers(dict(model.to(device).named_parameters()), FinetuneRecipe().optim)
    begin = _now(device)
    with torch.random.fork_rng(devices=[]):
        _step(task, model, batch[:1], optimizers, device)  # to warm up
        small, size = _step(task, model, batch[:1], optimizers, device)
        count = _fitting(1, small, len(batch))
        found = [_step(task, model, batch[:count], optimizers, device)]
        while len(found) < _STEPS and _now(device) - begin < _SECONDS:
            count = _fitting(count, found[-1][0], len(batch))
            found.append(_step(task, model, batch[:count], optimizers, device))
    model.eval()
    most = max(tokens for _, tokens in found)
    large = min(seconds for seconds, tokens in found if tokens == most)
    # A line through both; if that falls, which other work on the machine can bring about, all is put to the tokens.
    token = (large - small) / (most - size) if most > size and large > small else large / most
    return Speed(max(large - token * most, 0.0), token, _machine(device))


def _fitting(count: int, seconds: float, most: int) -> int:
    """How many samples take as long as one step may, if so many took these seconds."""
    return max(1, min(most, int(count * _AT_ONCE / max(seconds, 1e-6))))


def _step(
    task: Task, model: Model, samples: Sequence[Sample], optimizers: Sequence[Optimizer], device: torch.device
) -> tuple[float, int]:
    """One step: its seconds, and how many tokens it had."""
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
