"""What a fine-tuning recipe can say, with the values of BERT's paper as defaults."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from bothways.data.columns import Columns
from bothways.engine.reader import WindowSettings
from bothways.errors import BothwaysError, require_choice
from bothways.model.box import boxed, has_box
from bothways.model.checkpoint import ADVICE
from bothways.model.lora import base_of
from bothways.tasks.registry import TASKS, find_task
from bothways.train.distill import DistillSettings
from bothways.train.optim import OptimSettings
from bothways.train.settings import LoraSettings, RunSettings
from bothways.train.strict_toml import LENGTHS, read, read_table, with_settings, write_table


@dataclass(frozen=True)
class DataSettings:
    """The `[data]` part: labelled files."""

    train: tuple[str, ...] = ()
    dev: tuple[str, ...] = ()
    """To choose the best model by; never learned from."""
    text: str = ""
    """The column that holds the text, if its name does not tell …"""
    pair: str = ""
    """… that of the second text …"""
    label: str = ""
    """… and that of the label, or of the tag in columns of words."""

    @property
    def columns(self) -> Columns:
        return Columns(self.text or None, self.pair or None, self.label or None)


@dataclass(frozen=True)
class ModelSettings:
    """The `[model]` part: what to start from."""

    init: str = ""
    """A model folder; unless said, the teacher if there is one."""
    freeze: Literal["none", "embeddings", "encoder"] | int = "none"
    """What stays as it is: nothing, the embeddings, all but the head, or the embeddings and so many lower layers."""
    keep_layers: int | tuple[int, ...] = 0
    """The number of its layers to keep, evenly spread, or these, counted from 1: a smaller model. 0: all."""
    pooling: Literal["", "first", "mean"] = ""
    """What a classifier reads of each text: its first token, or the mean of all. Unless said, as the model has it."""
    dropout: float | None = None
    """Dropout probability of the layers, and of a new head that has none of its own. Unless said, the model's."""
    attention_dropout: float | None = None
    """Dropout probability of the attention weights. Unless said, the model's."""

    def __post_init__(self) -> None:
        require_choice("model.pooling", self.pooling, ("", "first", "mean"))
        for name in ("dropout", "attention_dropout"):
            if (share := getattr(self, name)) is not None and not 0 <= share < 1:
                raise BothwaysError(f"model.{name} is a share, 0 or more and below 1, not {share}")
        if isinstance(self.freeze, int) and self.freeze < 0:
            raise BothwaysError(f"model.freeze counts layers from 0, and is {self.freeze}")


@dataclass(frozen=True)
class FinetuneRun(RunSettings):
    """The `[run]` part: three epochs unless said."""

    evaluate_first: bool = False
    compile: bool | None = False
    """torch.compile pays only for long runs here: it takes most of a minute."""
    batch_size: int = 32
    """Examples, or windows of them, in a step."""

    def __post_init__(self) -> None:
        if not (self.steps or self.minutes or self.epochs):
            object.__setattr__(self, "epochs", 3.0)
        super().__post_init__()
        if self.batch_size < 1:
            raise BothwaysError(f"run.batch_size must be 1 or more, not {self.batch_size}")


@dataclass(frozen=True)
class FinetuneRecipe:
    """A whole recipe."""

    task: str = "classify"
    data: DataSettings = field(default_factory=DataSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    window: WindowSettings = field(default_factory=WindowSettings)
    settings: Any = None
    """Those of the task: in a file, a part that is called as the task."""
    lora: LoraSettings = field(default_factory=LoraSettings)
    distill: DistillSettings = field(default_factory=DistillSettings)
    optim: OptimSettings = field(default_factory=lambda: OptimSettings(lr=3e-5))
    run: FinetuneRun = field(default_factory=FinetuneRun)

    def __post_init__(self) -> None:
        task = find_task(self.task)
        object.__setattr__(self, "task", task.name)
        object.__setattr__(self, "settings", task.Settings() if self.settings is None else self.settings)
        if type(self.settings) is not task.Settings:
            raise BothwaysError(
                f"{self.settings} are not settings of the task {task.name}", "other-settings", task.name
            )
        if self.distill.teacher and not self.model.init:
            object.__setattr__(self, "model", replace(self.model, init=self.distill.teacher))


def read_finetune_recipe(source: Path | str, settings: Sequence[str] = ()) -> FinetuneRecipe:
    """A recipe file, with changes as `--set` writes them."""
    return finetune_recipe(read_table(Path(source)), settings)


def finetune_recipe(
    table: Mapping[str, Any], settings: Sequence[str] = (), *, usual: Mapping[str, Any] | None = None
) -> FinetuneRecipe:
    """A recipe from a table, with the model in the box if it names none.

    What it leaves open is as the model's folder advises in its finetune.toml, then as is `usual`, then as in BERT's
    paper: a rate of 3e-5.
    """
    changed = with_settings(table, settings)
    model = changed.setdefault("model", {})
    if not model.get("init"):
        model["init"] = changed.get("distill", {}).get("teacher") or (str(boxed()) if has_box() else "")
    run = changed.get("run", {})
    if run.get("epochs") == 0 and not any(run.get(key) for key in LENGTHS):
        raise BothwaysError("run.epochs is 0: expected more, or run.steps or run.minutes instead")
    advice = advice_file(model["init"])
    for other in (_advice(advice) if advice else {}, usual or {}):
        changed = _beneath(changed, other)
    recipe = _read(changed)
    if "lr" not in changed.get("optim", {}):
        recipe = replace(recipe, optim=replace(recipe.optim, lr=FinetuneRecipe().optim.lr))
    return recipe


def _read(table: Mapping[str, Any]) -> FinetuneRecipe:
    """A recipe from its table; parts of other tasks than its own are checked, and left out."""
    task = find_task(str(table.get("task", FinetuneRecipe.task)))
    own: dict[str, Any] = {name: read(one.Settings, table.get(name, {}), name) for name, one in TASKS.items()}
    rest = {name: value for name, value in table.items() if name not in TASKS}
    return replace(read(FinetuneRecipe, {**rest, "task": task.name}), settings=own[task.name])


def write_finetune_recipe(recipe: FinetuneRecipe) -> str:
    """A recipe as TOML, every key written out: what `read_finetune_recipe` reads back to the same."""
    table = asdict(recipe)
    own = table.pop("settings")
    return write_table({**table, recipe.task: own} if own else table)


def advice_file(init: str) -> Path | None:
    """Where the folder of a model, or that of an adapter's base, says how it is best fine-tuned."""
    folder = init and (base_of(Path(init)) or Path(init))
    return folder / ADVICE if folder and (folder / ADVICE).is_file() else None


def _advice(file: Path) -> dict[str, Any]:
    table = read_table(file)
    try:
        _read(table)
    except BothwaysError as error:
        raise BothwaysError(f"{file}: {error}") from error
    return table


def _beneath(table: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The table, and what it leaves open from the other; who says how long a run is means it in either's units."""
    merged = {**other, **table}
    for name in table.keys() & other.keys():
        if isinstance(table[name], Mapping) and isinstance(other[name], Mapping):
            below = other[name]
            if name == "run" and any(table[name].get(key) for key in LENGTHS):
                below = {key: value for key, value in below.items() if key not in LENGTHS}
            merged[name] = _beneath(table[name], below)
    return merged
