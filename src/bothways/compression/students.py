"""Models of fewer layers, distilled from the original on the training data."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bothways.errors import BothwaysError
from bothways.model.load import load
from bothways.model.model import Model
from bothways.progress import Watch, watch_nothing
from bothways.tasks.finetune import finetune
from bothways.tasks.recipe import FinetuneRecipe, finetune_recipe
from bothways.train.protocol import Event, Finished, Saved
from bothways.train.session import Listener, Say


@dataclass(frozen=True)
class Lessons:
    """How students are trained."""

    task: str
    train: Sequence[Any] = ()
    dev: Sequence[Any] = ()
    settings: Sequence[str] = ()
    """Keys of a fine-tuning recipe, as in optim.lr=3e-5."""
    epochs: float | None = None
    seed: int = 0
    device: str = "auto"
    listen: Sequence[Listener] = ()
    say: Say = lambda words: None
    watch: Watch = watch_nothing


def layers_to_try(wanted: Sequence[int] | None, layers: int) -> tuple[int, ...]:
    """The numbers of layers of the students, the most first: by default a half and a third. 0 is no student.

    >>> layers_to_try(None, 12), layers_to_try(None, 3), layers_to_try([0], 12)
    ((6, 4), (1,), ())
    """
    if wanted is None:
        numbers = {count for count in (layers // 2, layers // 3) if count}
    else:
        numbers = {count for count in wanted if count}
        for count in numbers:
            if not 0 < count < layers:
                raise BothwaysError(
                    f"`layers` is {count}, and the model has {layers}: expected fewer, or 0 for no distillation",
                    "out-of-range",
                    count,
                )
    return tuple(sorted(numbers, reverse=True))


def recipe_for(teacher: Path, layers: int, lessons: Lessons) -> FinetuneRecipe:
    """The recipe of a student: evenly spaced layers of the teacher, trained on labels and soft targets."""
    run: dict[str, Any] = {"seed": lessons.seed, "device": lessons.device}
    table = {
        "task": lessons.task,
        "model": {"init": str(teacher), "keep_layers": layers},
        "distill": {"teacher": str(teacher)},
        "run": run if lessons.epochs is None else {**run, "epochs": lessons.epochs},
    }
    return finetune_recipe(table, lessons.settings)


def distilled(teacher: Path, layers: int, lessons: Lessons, out: Path) -> Model:
    """A student of the model in the folder `teacher`."""
    found = finetune(
        recipe_for(teacher, layers, lessons),
        out,
        train=lessons.train,
        dev=lessons.dev,
        listen=[partial(_pass_on, listener) for listener in lessons.listen],
        say=lessons.say,
        watch=lessons.watch,
        keeps_task=True,
    )
    if not found.complete:  # Ctrl-C or a signal
        raise KeyboardInterrupt
    return load(found.folder)


def _pass_on(listener: Listener, event: Event) -> None:
    """All but the folders of checkpoints, which are removed in the end, and that a run that was stopped can go on."""
    if not (isinstance(event, Saved) or (isinstance(event, Finished) and not event.complete)):
        listener(event)
