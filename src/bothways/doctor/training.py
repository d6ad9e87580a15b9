"""A plan for training: the model with its new head, settings, the time they will take, the command."""

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bothways.data.examples import Choice, Question, Tagged, Text
from bothways.doctor.diagnosis import TrainingPlan
from bothways.doctor.survey import Survey
from bothways.doctor.timing import time_steps
from bothways.doctor.tokens import Tokenized
from bothways.errors import BothwaysError
from bothways.model.load import load
from bothways.model.model import Model
from bothways.tasks.folder import with_task
from bothways.tasks.recipe import DataSettings, FinetuneRecipe
from bothways.tasks.registry import make_task, plan_task
from bothways.tasks.task import Task, TaskConfig

_SMALL = 2_000
"""Rows below which more than three epochs pay."""
_STEPS = 300
"""What small data are given, if twenty epochs allow it."""


def load_base(folder: str) -> Model:
    """The model that is to learn."""
    model = load(folder)
    if model.tokenizer is None:
        raise BothwaysError(f"{folder} has no tokenizer: put its tokenizer.json or vocab.txt there")
    return model


def with_head(base: Model, task: str, survey: Survey) -> tuple[Task, Model, TaskConfig]:
    """The model with the head that these data need, and its task; an error where training would have it too."""
    recipe, length = FinetuneRecipe(task=task), base.config.encoder.max_length
    config, labels = plan_task(task, recipe.settings, recipe.window, _one_of_each(task, survey), length)
    model = with_task(base, config, labels, seed=recipe.run.seed)
    return make_task(model, recipe.settings), model, config


def _one_of_each(task: str, survey: Survey) -> list[Any]:
    """One example with each gold there is: all that `plan` looks at, without holding the data."""
    match task:
        case "tag":
            return [Tagged("", (), tuple(survey.names))]
        case "answer":
            golds = {"an answer": (("", 0),), "no answer": ()}
            return [Question("", "", "", golds[name]) for name in survey.names]
        case "choose":
            return [Choice("", "", (), 0)]
    return [Text((), gold) for gold in survey.golds]


def make_plan(task: Task, model: Model, found: Tokenized, rows: int, dev: float) -> TrainingPlan:
    """Settings for so many rows, and the time they will take, at the speed of a few real steps.

    `dev` is the size of the development data as a share of the training data.
    """
    batch, lr, epochs, why = suggest(task, model, rows)
    speed = time_steps(task, model, found.first[:batch])
    steps = epochs * math.ceil(found.samples / batch)
    # A forward pass is a third of a training step.
    seconds = epochs * found.tokens * (1 + dev / 3) * speed.token + steps * speed.step
    return TrainingPlan(batch, lr, epochs, steps, why, seconds, speed.machine)


def suggest(task: Task, model: Model, rows: int) -> tuple[int, float, int, str]:
    """Batch, rate and epochs, and why: in the ranges of BERT's paper (16 or 32; 2e-5 to 5e-5; 2 to 4).

    Small data get more epochs, as Mosbach et al. (2021) and Zhang et al. (2021) found: what they lack is steps.
    """
    shape = model.config.encoder
    batch = 16 if rows < 5_000 else 32
    lr, size = (2e-5, "large") if shape.layers >= 24 else (5e-5, "small") if shape.width < 768 else (3e-5, "base")
    epochs = task.epochs
    why = f"within the ranges of BERT's paper; {lr:g} for a {size} model"
    if rows < _SMALL:
        epochs = min(max(math.ceil(_STEPS * batch / max(rows, 1)), 5), 20)
        why = (
            f"batch and rate are within the ranges of BERT's paper, {lr:g} for a {size} model; {epochs} epochs are "
            f"more than its 2 to 4, for {rows:,} rows make few steps; runs on so few differ, so try --seeds 3"
        )
    return batch, lr, epochs, why


def command(task: str, data: DataSettings, folder: str, made: TrainingPlan | None, settings: Sequence[str]) -> str:
    """What to run next."""
    words = ["bothways", "finetune", task]
    for option, values in (("--train", data.train), ("--dev", data.dev), ("--model", (folder or "DIR",))):
        words += [word for value in values for word in (option, value)]
    for option, value in (("--text", data.text), ("--pair", data.pair), ("--label", data.label)):
        words += [option, value] if value else []
    stem = Path(data.train[0]).name.split(".")[0] or "data"
    words += ["--out", f"{stem}-{task}"]
    if made is not None:
        words += ["--batch", str(made.batch), "--lr", f"{made.lr:g}", "--epochs", str(made.epochs)]
    words += [word for setting in settings for word in ("--set", setting)]
    return shlex.join(words)
