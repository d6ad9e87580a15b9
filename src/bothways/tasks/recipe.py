"""The keys of a fine-tuning recipe."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from bothways.engine.reader import WindowSettings
from bothways.errors import BothwaysError, require_choice
from bothways.model.adapter_config import base_of
from bothways.model.box import boxed, has_box, model_folder
from bothways.model.checkpoint import ADVICE
from bothways.ranges import Bounded, Count, Probability, Size
from bothways.tasks.labelled_files import FinetuneData as FinetuneData
from bothways.tasks.registry import TASKS, find_task
from bothways.train.distill import DistillSettings
from bothways.train.optim import OptimSettings
from bothways.train.settings import LoraSettings, RunSettings
from bothways.train.strict_toml import LENGTHS, read, read_table, with_settings, write_table

LORA_FACTOR = 5.0
"""An adapter is trained with a learning rate this much higher than that of all weights."""


@dataclass(frozen=True)
class FinetuneModel(Bounded):
    """The `[model]` part: the model to start from."""

    section = "model"

    init: str = ""
    """A model folder; by default the teacher, if there is one."""
    freeze: Literal["none", "embeddings", "encoder"] | Count = "none"
    """What is frozen: nothing, the embeddings, the whole encoder, or the embeddings and this number of lower layers."""
    keep_layers: Count | tuple[Size, ...] = 0
    """The number of layers to keep, evenly spread, or their numbers, counted from 1. 0: all."""
    pooling: Literal["", "first", "mean"] = ""
    """What a classifier reads: the first token, or the mean of all tokens. By default the model's."""
    dropout: Probability | None = None
    """Dropout probability of the layers, and of a new head without its own. By default the model's."""
    attention_dropout: Probability | None = None
    """Dropout probability of the attention weights. By default the model's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("model.pooling", self.pooling, ("", "first", "mean"))


@dataclass(frozen=True)
class FinetuneRun(RunSettings):
    """The `[run]` part. If it has no length, `epochs` are chosen by the number of examples and labels."""

    _may_be_open = True

    evaluate_first: bool = False
    compile: bool | None = False
    """torch.compile takes most of a minute, which only long runs make up for."""
    batch_size: Count = 0
    """Examples, or windows of long ones, per step. 0: chosen by the number of examples."""


@dataclass(frozen=True)
class FinetuneRecipe:
    """A whole recipe. Its learning rate, batch size and length may be open: `finetune` chooses them (defaults.py)."""

    task: str = "classify"
    data: FinetuneData = field(default_factory=FinetuneData)
    model: FinetuneModel = field(default_factory=FinetuneModel)
    window: WindowSettings = field(default_factory=WindowSettings)
    settings: Any = None
    """Those of the task: in a file, the part with the task's name."""
    lora: LoraSettings = field(default_factory=LoraSettings)
    distill: DistillSettings = field(default_factory=DistillSettings)
    optim: OptimSettings = field(default_factory=lambda: OptimSettings(lr=0.0))
    run: FinetuneRun = field(default_factory=FinetuneRun)

    def __post_init__(self) -> None:
        task = find_task(self.task)
        object.__setattr__(self, "task", task.name)
        object.__setattr__(self, "settings", task.Settings() if self.settings is None else self.settings)
        if type(self.settings) is not task.Settings:
            raise BothwaysError(
                f"{self.settings} are not settings of the task {task.name}", "other-settings", task.name
            )
        if self.lora.rank and self.model.keep_layers:
            raise BothwaysError(
                "lora.rank needs a model with all its layers, which the adapter is saved for: leave out "
                "model.keep_layers",
                "bad-combination",
                self.model.keep_layers,
            )
        if self.distill.over != "asked":
            raise BothwaysError(
                f"distill.over is {self.distill.over!r}, which only pretraining can do: leave it out",
                "pretraining-only",
                self.distill.over,
            )
        if self.distill.teacher and not self.model.init:
            object.__setattr__(self, "model", replace(self.model, init=self.distill.teacher))


def read_finetune_recipe(source: Path | str, settings: Sequence[str] = ()) -> FinetuneRecipe:
    """Read a recipe file, with settings such as optim.lr=5e-5."""
    return finetune_recipe(read_table(Path(source)), settings)


def finetune_recipe(
    table: Mapping[str, Any], settings: Sequence[str] = (), *, usual: Mapping[str, Any] | None = None
) -> FinetuneRecipe:
    """A recipe from a table, with the bundled model if it names none.

    Missing keys come from the finetune.toml in the model's folder, then from `usual`. What is still not set (learning
    rate, batch size, length) is chosen by the model's size and the data.
    """
    changed = with_settings(table, settings)
    for name in ("model", "distill", "run", "optim"):
        if not isinstance(changed.setdefault(name, {}), dict):
            raise BothwaysError(f"{name} should be a table of the recipe, not {changed[name]!r}", "wrong-type", name)
    model = changed["model"]
    if not model.get("init"):
        model["init"] = changed["distill"].get("teacher") or (str(boxed()) if has_box() else "")
    if not isinstance(model["init"], str):
        raise BothwaysError(f"model.init should be text, not {model['init']!r}", "wrong-type", model["init"])
    if model["init"]:
        model["init"] = str(model_folder(model["init"]))
    run, lr = changed["run"], changed["optim"].get("lr")
    if run.get("epochs") == 0 and not any(run.get(key) for key in LENGTHS):
        raise BothwaysError("run.epochs is 0: expected more, or run.steps or run.minutes instead", "out-of-range", 0)
    for name, value in (("optim.lr", lr), ("run.batch_size", run.get("batch_size"))):
        if value == 0:
            raise BothwaysError(f"{name} is 0: expected more; without it, one is chosen", "out-of-range", 0)
    advice = advice_file(model["init"])
    task = find_task(str(changed.get("task", FinetuneRecipe.task))).name
    for other in (_advice(advice, task) if advice else {}, usual or {}):
        changed = _beneath(changed, other)
    recipe = _read(changed)
    if "lr" not in changed.get("optim", {}):
        recipe = replace(recipe, optim=replace(recipe.optim, lr=0.0))
    if recipe.lora.rank and lr is None:  # advice is for training all weights
        recipe = replace(recipe, optim=replace(recipe.optim, lr=recipe.optim.lr * LORA_FACTOR))
    return recipe


def _read(table: Mapping[str, Any]) -> FinetuneRecipe:
    """A recipe from its table; the parts of other tasks are checked and dropped."""
    if "settings" in table:  # a field of the dataclass, but no key of a recipe
        raise BothwaysError("the recipe has no key settings: each task has its own part", "unknown-key", "settings")
    task = find_task(str(table.get("task", FinetuneRecipe.task)))
    own: dict[str, Any] = {name: read(one.Settings, table.get(name, {}), name) for name, one in TASKS.items()}
    rest = {name: value for name, value in table.items() if name not in TASKS}
    return replace(read(FinetuneRecipe, {**rest, "task": task.name}), settings=own[task.name])


def write_finetune_recipe(recipe: FinetuneRecipe) -> str:
    """A recipe as TOML with every key but those that are open, which `read_finetune_recipe` reads back."""
    table = asdict(recipe)
    for part, name in (("optim", "lr"), ("run", "batch_size")):
        if not table[part][name]:
            del table[part][name]
    if not recipe.run.has_length:
        del table["run"]["epochs"]
    own = table.pop("settings")
    return write_table({**table, recipe.task: own} if own else table)


def advice_file(init: str) -> Path | None:
    """The file with the recommended settings of a model, or of an adapter's base; None if there is none."""
    folder = init and (base_of(model_folder(init)) or model_folder(init))
    return folder / ADVICE if folder and (folder / ADVICE).is_file() else None


def _advice(file: Path, task: str) -> dict[str, Any]:
    """The recommended settings of a finetune.toml for a task."""
    try:
        return advice_for(task, read_table(file))
    except BothwaysError as error:
        raise BothwaysError(f"{file}: {error}", error.code, error.value) from error


def advice_for(task: str, advice: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of advice for a task: those of its table `tasks`, before those for all tasks. All are checked."""
    table = dict(advice)
    by_task = table.pop("tasks", {})
    if not isinstance(by_task, Mapping) or not all(isinstance(own, Mapping) for own in by_task.values()):
        raise BothwaysError(f"tasks is {by_task!r}: expected a table for each task", "bad-setting", "tasks")
    own = {find_task(name).name: _beneath(settings, table) for name, settings in by_task.items()}
    for settings in (table, *own.values()):
        _read(settings)
    return own.get(task, table)


def _beneath(table: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The table, with missing keys from the other; a run's length in any unit replaces the other's length."""
    merged = {**other, **table}
    for name in table.keys() & other.keys():
        if isinstance(table[name], Mapping) and isinstance(other[name], Mapping):
            below = other[name]
            if name == "run" and any(table[name].get(key) for key in LENGTHS):
                below = {key: value for key, value in below.items() if key not in LENGTHS}
            merged[name] = _beneath(table[name], below)
    return merged
