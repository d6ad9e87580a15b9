"""Pretraining recipes, with BERT's values as defaults."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from bothways.errors import BothwaysError, require_choice, require_range
from bothways.model.box import model_folder
from bothways.model.config import BASE, EncoderConfig, Learned, Rotary
from bothways.model.families import FAMILIES
from bothways.pretraining.objectives import OBJECTIVES
from bothways.pretraining.sampler import SamplingKind
from bothways.ranges import Bounded, Count, NotNegative, Range, Size
from bothways.train.optim import OptimSettings
from bothways.train.settings import LoraSettings, RunSettings
from bothways.train.strict_toml import read, read_table, with_settings, write_table


@dataclass(frozen=True)
class PretrainData(Bounded):
    """The `[data]` part: folders of `bothways pack`, and how to mix them."""

    section = "data"

    train: tuple[str, ...] = ()
    rows: Literal["documents", "stream"] = "documents"
    """Unless an objective decides it: a sequence is a document or an equal part of one, or full running text."""
    weights: dict[str, NotNegative] = field(default_factory=dict)
    """Sampling weight of each source; by default in proportion to its text."""
    keep: dict[str, NotNegative] = field(default_factory=dict)
    """Sources that the model must not forget: each with the share by which its held-out loss may rise. The best
    checkpoint is that with the lowest loss on the other sources, as long as none of these has risen by more."""
    valid_sequences: Count = 1_000
    """Most held-out sequences to evaluate, for each source."""
    verify: bool = True
    """Check every shard's checksum when it is opened."""


_OWN = ("activation", "norm_eps", "dropout", "attention_dropout")
"""Settings for which a family may have values of its own."""


@dataclass(frozen=True)
class PretrainModel(Bounded):
    """The `[model]` part: a model folder to start from, or the shape of a new model."""

    section = "model"

    init: str = ""
    """A model folder to start from. It sets the shape: of the other keys only keep_layers has an effect."""
    keep_layers: Count | tuple[Size, ...] = 0
    """Keep this many layers of init, evenly spaced, or these, counted from 1. 0: all."""
    family: str = "bert"
    """The architecture of a new model: it decides what the keys below leave open."""
    embedding_width: Count = 0
    """Width of the token embeddings, if it differs from that of the layers."""
    width: int = 768
    layers: int = 12
    num_heads: int = 12
    ffn_width: int = 3_072
    activation: str = "gelu"
    positions: int = 512
    dropout: float = 0.1
    attention_dropout: float = 0.1
    norm_eps: float = 1e-12
    init_std: float = 0.02
    window: Count | None = None
    """Tokens on either side that layers with local attention see (ModernBERT); 0: all layers have global attention."""
    rotary: Annotated[float, Range(1, above=True)] | None = None
    """Base of the rotary angles in layers with global attention (ModernBERT: 160,000); smaller suits short texts."""
    causal: bool = False
    """Left-to-right attention with next-token prediction: the baseline of BERT's ablation."""

    def shaped_as(self, family: str, encoder: EncoderConfig) -> "PretrainModel":
        """These settings with the shape of an existing model."""
        names = ("width", "layers", "num_heads", "ffn_width", "activation", "dropout", "attention_dropout", "norm_eps",
                 "init_std", "causal", "embedding_width")  # fmt: skip
        shape = {name: getattr(encoder, name) for name in names}
        rotary = encoder.positions.base if isinstance(encoder.positions, Rotary) else None
        window = max(encoder.windows, default=0)
        return replace(self, family=family, positions=encoder.max_length, window=window, rotary=rotary, **shape)

    def encoder(self, vocab_size: int) -> EncoderConfig:
        """The encoder's config for this vocabulary size."""
        shape = EncoderConfig(
            vocab_size=vocab_size,
            embedding_width=self.embedding_width,
            width=self.width,
            layers=self.layers,
            num_heads=self.num_heads,
            ffn_width=self.ffn_width,
            activation=self.activation,
            positions=Learned(self.positions),
            norm_eps=self.norm_eps,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            init_std=self.init_std,
            causal=self.causal,
        )
        shape = FAMILIES[self.family].fresh(shape)
        # Families have their own values for these in place of BERT's; any other value was set by the user.
        given = {name: getattr(self, name) for name in _OWN}
        shape = replace(shape, **{name: value for name, value in given.items() if value != getattr(BASE, name)})
        if self.rotary is not None and isinstance(shape.positions, Rotary):
            own = shape.positions  # families without local attention have one base for all layers
            local = own.local_base if own.local_base != own.base else self.rotary
            shape = replace(shape, positions=replace(own, base=self.rotary, local_base=local))
        if self.window is None:
            return shape
        windows = tuple(self.window if reach else 0 for reach in shape.windows)
        return replace(shape, windows=windows if self.window else ())

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("model.family", self.family, tuple(FAMILIES))
        default = FAMILIES[self.family].fresh(EncoderConfig())
        if self.window and not any(default.windows):
            raise BothwaysError(
                f"model.window is {self.window}, but {self.family} has no layers with local attention",
                "unsupported-by-family",
                self.family,
            )
        if self.rotary is not None and not isinstance(default.positions, Rotary):
            raise BothwaysError(
                f"model.rotary is {self.rotary:g}, but {self.family} has no rotary positions",
                "unsupported-by-family",
                self.family,
            )


@dataclass(frozen=True)
class Phase(Bounded):
    """One of the `[[phases]]`: a share of the run with its own sequence length and batch size."""

    section = "phases"

    share: Annotated[float, Range(0, above=True)] = 1.0
    length: Annotated[int, Range(8, 2**24)] = 128
    tokens: Size | None = None
    """Tokens of a step. A phase has tokens or sequences."""
    sequences: Size | None = None
    """Sequences of a step."""
    rate: Annotated[float, Range(0, 1, above=True, below=True)] | None = None
    """Masking rate, if it differs from that of the objective."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.tokens is None) == (self.sequences is None):
            raise BothwaysError("a phase needs either tokens or sequences, for the size of a step", "bad-phase", self)
        if self.tokens is not None and self.tokens < self.length:
            raise BothwaysError(
                f"a step of {self.tokens} tokens does not hold one sequence of {self.length}", "bad-phase", self
            )


def _default_settings() -> dict[str, Any]:
    return {name: objective.Settings() for name, objective in OBJECTIVES.items()}


@dataclass(frozen=True)
class PretrainRecipe:
    """A pretraining recipe."""

    objectives: tuple[str, ...] = ("mlm", "nsp")
    settings: dict[str, Any] = field(default_factory=_default_settings)
    """The settings of every objective by its name. In a file, each has a part of its own."""
    data: PretrainData = field(default_factory=PretrainData)
    model: PretrainModel = field(default_factory=PretrainModel)
    lora: LoraSettings = field(default_factory=LoraSettings)
    optim: OptimSettings = field(default_factory=OptimSettings)
    run: RunSettings = field(default_factory=lambda: RunSettings(steps=1_000_000))
    phases: tuple[Phase, ...] = (Phase(length=128, sequences=256),)
    finetune: dict[str, Any] = field(default_factory=dict)
    """Advice for fine-tuning the model, as part of a fine-tuning recipe: it is written to the model folder as
    finetune.toml, from which `bothways finetune` takes its defaults."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", _default_settings() | self.settings)
        for name in self.objectives:
            require_choice("an objective", name, tuple(OBJECTIVES))
        if not self.objectives or len(set(self.objectives)) < len(self.objectives):
            raise BothwaysError(
                f"objectives must name one or more, each once, not {list(self.objectives)}",
                "bad-objectives",
                self.objectives,
            )
        if off := [name for name in self.objectives if name not in self.active]:
            raise BothwaysError(f"{off[0]} is in objectives, but its settings leave it off", "bad-objectives", off[0])
        self._check_objectives()
        self._require_alone("model.causal", self.model.causal)
        self._require_alone("lora.rank", self.lora.rank > 0)
        if self.lora.rank and (not self.model.init or self.model.keep_layers):
            raise BothwaysError(
                "lora.rank needs an existing model with all its layers: set model.init, without model.keep_layers",
                "no-model",
            )
        require_range("optim.lr", self.optim.lr, self.optim.lr > 0, "above 0")
        if self.run.epochs:
            raise BothwaysError(
                "pretraining needs run.steps or run.minutes, not run.epochs", "bad-length", self.run.epochs
            )
        if not self.phases:
            raise BothwaysError("a recipe needs one phase or more", "no-phases")
        for phase in self.phases:
            if not self.model.init and phase.length > self.model.positions:
                raise BothwaysError(
                    f"a phase has sequences of {phase.length} tokens, but model.positions is {self.model.positions}",
                    "too-long",
                    phase.length,
                )

    def _check_objectives(self) -> None:
        for name in self.active:
            objective = OBJECTIVES[name]
            if missing := [other for other in objective.requires if other not in self.objectives]:
                raise BothwaysError(f"{name} needs the objective {missing[0]} too", "bad-objectives", name)
            if clash := [other for other in objective.excludes if other in self.active]:
                raise BothwaysError(f"{name} and {clash[0]} cannot be combined", "bad-objectives", (name, clash[0]))
            objective.check(self)

    def _require_alone(self, key: str, is_set: bool) -> None:
        if is_set and (others := [name for name in self.active if not OBJECTIVES[name].stands_alone]):
            alone = [name for name, one in OBJECTIVES.items() if one.stands_alone]
            raise BothwaysError(
                f"{key} works with objectives = {alone} only, not with {others[0]}", "bad-objectives", others[0]
            )

    @property
    def active(self) -> tuple[str, ...]:
        """The names of the objectives in use: those listed, and those that their settings turn on."""
        return tuple(name for name, objective in OBJECTIVES.items() if objective.is_on(self))

    def with_settings(self, name: str, **changed: Any) -> "PretrainRecipe":
        """This recipe with other settings of one objective."""
        return replace(self, settings={**self.settings, name: replace(self.settings[name], **changed)})

    @property
    def sampling(self) -> SamplingKind:
        """How text becomes sequences."""
        decided = [OBJECTIVES[name].sampling for name in self.active]
        return next((kind for kind in decided if kind), self.data.rows)


def read_pretrain_recipe(source: Path | str, settings: Sequence[str] = ()) -> PretrainRecipe:
    """A recipe file, or the name of a shipped one, with changes as "key=value".

    >>> from bothways.pretraining.recipe import read_pretrain_recipe
    >>> read_pretrain_recipe("bert-base", ["run.steps=10"]).run.steps
    10
    """
    return pretrain_recipe(read_table(find_recipe(source)), settings)


read_recipe = read_pretrain_recipe


def pretrain_recipe(table: Mapping[str, Any], settings: Sequence[str] = ()) -> PretrainRecipe:
    """A recipe from a table, with changes as "key=value"."""
    table = with_settings(table, settings)
    if "settings" in table:  # a field of the dataclass, but no key of a recipe
        raise BothwaysError(
            "the recipe has no key settings: each objective has its own part", "unknown-key", "settings"
        )
    model = table.get("model")
    if isinstance(model, dict) and isinstance(model.get("init"), str) and model["init"]:
        model["init"] = str(model_folder(model["init"]))
    own: dict[str, Any] = {name: read(one.Settings, table.pop(name, {}), name) for name, one in OBJECTIVES.items()}
    return replace(read(PretrainRecipe, {**table, "settings": {}}), settings=own)


def write_recipe(recipe: PretrainRecipe) -> str:
    """A recipe as TOML with every key: `read_recipe` reads it back to an equal one."""
    table = asdict(recipe)
    own = {name: values for name, values in table.pop("settings").items() if values}
    return write_table({**own, **table})


def find_recipe(source: Path | str) -> Path:
    """The file of a recipe: a path, or the name of a shipped recipe."""
    path = Path(source)
    if path.suffix == ".toml" or path.exists():
        return path
    known = shipped_recipes()
    if str(source) not in known:
        raise BothwaysError(
            f"there is no recipe {source}: expected a .toml file or one of {', '.join(sorted(known))}",
            "no-file",
            str(source),
        )
    return known[str(source)]


def shipped_recipes() -> dict[str, Path]:
    """The recipes that come with the library, by name."""
    folder = Path(str(resources.files("bothways"))) / "recipes"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}
