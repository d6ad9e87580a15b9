"""What the model card of a fine-tuned model says about its training."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bothways.errors import BothwaysError
from bothways.model.box import model_folder
from bothways.model.card import Made, Score, files_and_rows, name_of_model
from bothways.model.card_text import thresholds_shown
from bothways.scoring.accumulator import Accumulator
from bothways.scoring.classification import Classes, shown_name
from bothways.scoring.many_labels import ManyLabels
from bothways.scoring.significance import interval
from bothways.tasks.recipe import FinetuneRecipe
from bothways.tasks.task import Task

EVALUATED = "evaluated.json"
"""In a checkpoint: the confidence intervals of its scores, and a sentence about labels that it never predicts."""
_MOST_KINDS = 500
"""The bootstrap of a score takes time with the kinds of its examples: beyond this, only the main score has one."""


def intervals_of(scores: Accumulator, metric: str) -> dict[str, tuple[float, float]]:
    """95 % confidence intervals of the main score, and of those that take little time."""
    found = {}
    for name in scores.scores():
        with suppress(BothwaysError):  # a count, or a score of a histogram: it cannot be resampled
            if name == metric or len(scores.rows(name).counts()) <= _MOST_KINDS:
                found[name] = interval(scores, name)
    return found


def evaluated_facts(scores: Accumulator, metric: str) -> dict[str, Any]:
    """What a checkpoint keeps of its evaluation, beside the scores."""
    gaps = scores.never_predicted() if isinstance(scores, Classes | ManyLabels) else ""
    return {"intervals": intervals_of(scores, metric), "never_predicted": gaps}


def read_evaluated(checkpoint: Path) -> dict[str, Any]:
    """The facts of a checkpoint; those of none if it was not evaluated."""
    file = checkpoint / EVALUATED
    found = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return {"intervals": {}, "never_predicted": "", **found}


def made_by(
    recipe: FinetuneRecipe,
    name: str,
    train: Sequence[Any],
    dev: Sequence[Any],
    task: Task,
    scores: Mapping[str, float],
    known: Mapping[str, Any],
    thresholds: Mapping[str, float],
) -> Made:
    """How a model was fine-tuned. `scores`, `known` (of `read_evaluated`), `thresholds`: those of its checkpoint."""
    order = sorted(scores, key=lambda one: one != task.metric)
    base, title = model_folder(recipe.model.init), task.title
    tested = files_and_rows(recipe.data.dev, len(dev))
    return Made(
        name=name,
        about=f"{title[:1].upper()}{title[1:]}. Fine-tuned with bothways from {name_of_model(base)}.",
        base=base,
        facts={
            "training data": files_and_rows(recipe.data.train, len(train)),
            **({"development data": tested} if dev else {}),
            "training": _training(recipe),
            **({"thresholds": f"{thresholds_shown(thresholds)}; chosen on {tested}"} if thresholds else {}),
            **({"remark": known["never_predicted"]} if known["never_predicted"] else {}),
        },
        scored_on=tested,
        score_note=f"The best checkpoint {'and the thresholds were' if thresholds else 'was'} selected on these data: "
        "scores on others may be lower.",
        scores=tuple(
            Score(one, scores[one], known["intervals"].get(one), shown_name(one, task.labels) if task.labels else one)
            for one in order
        ),
    )


def _training(recipe: FinetuneRecipe) -> str:
    run = recipe.run
    lengths: Sequence[tuple[float, str]] = ((run.epochs, "epochs"), (run.steps, "steps"), (run.minutes, "minutes"))
    length = next(f"{value:g} {unit}" for value, unit in lengths if value)
    lora = f", LoRA of rank {recipe.lora.rank}" if recipe.lora.rank else ""
    teacher = (
        f", distilled from {name_of_model(model_folder(recipe.distill.teacher))}" if recipe.distill.teacher else ""
    )
    return f"{length}, batches of {run.batch_size}, learning rate {recipe.optim.lr:g}, seed {run.seed}{lora}{teacher}"
