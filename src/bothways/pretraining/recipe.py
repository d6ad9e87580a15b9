"""What a pretraining recipe can say, with BERT's values as defaults."""

from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from bothways.errors import BothwaysError, require_choice
from bothways.model.config import EncoderConfig, Learned, Rotary
from bothways.model.distill import DistillSettings
from bothways.model.families import FAMILIES
from bothways.model.lora import LoraSettings
from bothways.pretraining.objectives.mlm import MaskedSettings
from bothways.pretraining.objectives.nsp import PairSettings
from bothways.pretraining.objectives.rtd import ReplacedSettings
from bothways.pretraining.rows import Kind
from bothways.train.optim import OptimSettings
from bothways.train.recipe import read, read_table, with_settings
from bothways.train.work import RunSettings

OBJECTIVES = ("mlm", "nsp", "sop", "sbo", "rtd")


@dataclass(frozen=True)
class DataSettings:
    """The `[data]` part: folders that `bothways pack` made, and how they are mixed."""

    train: tuple[str, ...] = ()
    rows: Literal["documents", "stream"] = "documents"
    """Without nsp or sop: a sequence is a document or an equal part of one; or text as it comes, every one full."""
    weights: dict[str, float] = field(default_factory=dict)
    """How often each source is drawn from; without weights, as often as it has text."""
    valid_sequences: int = 1_000
    """Of each source's held-out text, at most so many sequences are evaluated."""
    verify: bool = True
    """Check every shard's checksum when it is opened."""


@dataclass(frozen=True)
class ModelSettings:
    """The `[model]` part: a folder to go on from, or the shape of a new BERT."""

    init: str = ""
    """A model folder; its shape is then the model's, and of the rest of this part only `take` has an effect."""
    take: int | tuple[int, ...] = 0
    """Of init's layers, so many, evenly spread, or these, counted from 1: a smaller model. 0: all."""
    family: str = "bert"
    """Whose layout a new model has: what the shape below leaves open is as that family has it."""
    embedding: int = 0
    """Width of the token table, if it is not that of the layers."""
    width: int = 768
    layers: int = 12
    heads: int = 12
    hidden: int = 3_072
    activation: str = "gelu"
    positions: int = 512
    dropout: float = 0.1
    attention_dropout: float = 0.1
    norm_eps: float = 1e-12
    init_std: float = 0.02
    window: int | None = None
    """How many tokens a layer of narrow sight sees on either side (ModernBERT has such); 0: no layer is narrow."""
    rotary: float | None = None
    """The base of rotary angles in layers that see all (ModernBERT: 160,000); smaller turns faster, for short texts."""
    causal: bool = False
    """Left to right, with next-token prediction for mlm: the baseline of BERT's ablation."""

    def shaped_as(self, family: str, encoder: EncoderConfig) -> "ModelSettings":
        """These settings with the shape of a model that is there."""
        names = ("width", "layers", "heads", "hidden", "activation", "dropout", "attention_dropout", "norm_eps",
                 "init_std", "causal", "embedding")  # fmt: skip
        shape = {name: getattr(encoder, name) for name in names}
        rotary = encoder.positions.base if isinstance(encoder.positions, Rotary) else None
        window = max(encoder.windows, default=0)
        return replace(self, family=family, positions=encoder.limit, window=window, rotary=rotary, **shape)

    def encoder(self, vocabulary: int) -> EncoderConfig:
        """The shape, for this number of token rows."""
        shape = EncoderConfig(
            vocabulary=vocabulary,
            embedding=self.embedding,
            width=self.width,
            layers=self.layers,
            heads=self.heads,
            hidden=self.hidden,
            activation=self.activation,
            positions=Learned(self.positions),
            norm_eps=self.norm_eps,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            init_std=self.init_std,
            causal=self.causal,
        )
        shape = FAMILIES[self.family].fresh(shape)
        if self.rotary is not None and isinstance(shape.positions, Rotary):
            shape = replace(shape, positions=replace(shape.positions, base=self.rotary))
        if self.window is None:
            return shape
        windows = tuple(self.window if reach else 0 for reach in shape.windows)
        return replace(shape, windows=windows if self.window else ())

    def __post_init__(self) -> None:
        require_choice("model.family", self.family, tuple(FAMILIES))
        if self.window is not None and self.window < 0:
            raise BothwaysError(f"model.window is a number of tokens, 0 or more, not {self.window}")
        usual = FAMILIES[self.family].fresh(EncoderConfig())
        if self.window and not any(usual.windows):
            raise BothwaysError(f"model.window is {self.window}, and {self.family} has no layers of narrow sight")
        if self.rotary is not None and not isinstance(usual.positions, Rotary):
            raise BothwaysError(f"model.rotary is {self.rotary:g}, and {self.family} has no rotary positions")
        if self.rotary is not None and self.rotary <= 1:
            raise BothwaysError(f"model.rotary is the base of angles, above 1, not {self.rotary:g}")


@dataclass(frozen=True)
class Phase:
    """One of the `[[phases]]`: a share of the run with its own length and batch."""

    share: float = 1.0
    length: int = 128
    tokens: int | None = None
    """In a step; or …"""
    sequences: int | None = None
    """… how many sequences a step has."""
    rate: float | None = None
    """Share of the tokens asked for, if it differs from mlm.rate."""
    masked: float | None = None
    """Share of the blanks that are the model's own, if it differs from rtd.masked; 0 for a phase without them."""

    def __post_init__(self) -> None:
        if (self.tokens is None) == (self.sequences is None):
            raise BothwaysError("a phase needs tokens or sequences (of one step), one of the two")
        if self.share <= 0 or self.length < 8:
            raise BothwaysError(f"a phase needs a share above 0 and a length of 8 or more, not {self}")
        if self.tokens is not None and self.tokens < self.length:
            raise BothwaysError(f"a step of {self.tokens} tokens does not hold one sequence of {self.length}")
        if self.sequences is not None and self.sequences < 1:
            raise BothwaysError("a phase needs one sequence in a step or more")
        if self.rate is not None and not 0 < self.rate < 1:
            raise BothwaysError(f"a phase's rate must lie between 0 and 1, not {self.rate}")
        if self.masked is not None and not 0 <= self.masked < 1:
            raise BothwaysError(f"a phase's masked is a share, 0 or more and below 1, not {self.masked}")


@dataclass(frozen=True)
class PretrainRecipe:
    """A whole recipe."""

    objectives: tuple[str, ...] = ("mlm", "nsp")
    data: DataSettings = field(default_factory=DataSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    mlm: MaskedSettings = field(default_factory=MaskedSettings)
    nsp: PairSettings = field(default_factory=PairSettings)
    sop: PairSettings = field(default_factory=PairSettings)
    rtd: ReplacedSettings = field(default_factory=ReplacedSettings)
    distill: DistillSettings = field(default_factory=DistillSettings)
    lora: LoraSettings = field(default_factory=LoraSettings)
    optim: OptimSettings = field(default_factory=OptimSettings)
    run: RunSettings = field(default_factory=lambda: RunSettings(steps=1_000_000))
    phases: tuple[Phase, ...] = (Phase(length=128, sequences=256),)
    finetune: dict[str, Any] = field(default_factory=dict)
    """How the model is best fine-tuned, as a part of such a recipe: it comes into the model's folder as finetune.toml,
    from which `bothways finetune` takes what its user leaves open."""

    def __post_init__(self) -> None:
        for name in self.objectives:
            if name not in OBJECTIVES:
                raise BothwaysError(f"there is no objective {name!r}: expected {', '.join(OBJECTIVES)}")
        if "mlm" not in self.objectives:
            raise BothwaysError("a recipe needs the objective mlm; the others are added to it")
        if len(set(self.objectives)) < len(self.objectives):
            raise BothwaysError("an objective is named twice")
        if {"nsp", "sop"} <= set(self.objectives):
            raise BothwaysError("nsp and sop both decide what the second text is: choose one of them")
        if "rtd" in self.objectives and set(self.objectives) != {"mlm", "rtd"}:
            raise BothwaysError("rtd goes with mlm, which its generator learns by, and with nothing else")
        if self.mlm.decoder == "enhanced" and (not set(self.objectives) <= {"mlm", "rtd"} or self.distill.teacher):
            raise BothwaysError("the enhanced decoder changes the last layer: it goes with mlm alone, or with rtd")
        if "rtd" in self.objectives and self.distill.teacher:
            raise BothwaysError("a teacher teaches to fill blanks: it does not go with rtd")
        able_family = bool(self.model.init) or "replaced" in FAMILIES[self.model.family].heads
        if "rtd" in self.objectives and not able_family:
            able = ", ".join(name for name, family in FAMILIES.items() if "replaced" in family.heads)
            raise BothwaysError(f"{self.model.family} has no head for rtd: set model.family to one of {able}")
        if self.model.causal and set(self.objectives) != {"mlm"}:
            raise BothwaysError("a left-to-right model (model.causal) is trained with objectives = ['mlm'] alone")
        if self.lora.rank:
            if not self.model.init:
                raise BothwaysError("lora.rank trains layers beside a model that is there: set model.init")
            if self.objectives != ("mlm",) or self.mlm.decoder != "plain" or self.distill.teacher or self.model.take:
                raise BothwaysError("lora goes with objectives = ['mlm'] alone, on the whole of model.init")
        if self.run.epochs:
            raise BothwaysError("pretraining is measured in run.steps or run.minutes, not in run.epochs")
        if not self.phases:
            raise BothwaysError("a recipe needs one phase or more")
        for phase in self.phases:
            if phase.masked is not None and not self.rtd_fills:
                raise BothwaysError("a phase's masked changes rtd.masked, which is 0: say there what other phases have")
            if not self.model.init and phase.length > self.model.positions:
                raise BothwaysError(
                    f"a phase has sequences of {phase.length} tokens, and model.positions is {self.model.positions}"
                )

    @property
    def rtd_adds(self) -> bool:
        """Whether the model's token table is the generator's with something added."""
        return "rtd" in self.objectives and self.rtd.embeddings == "apart"

    @property
    def rtd_fills(self) -> bool:
        """Whether the model learns to fill blanks beside its generator."""
        return "rtd" in self.objectives and self.rtd.masked > 0

    @property
    def rows(self) -> Kind:
        """How text becomes sequences."""
        if "nsp" in self.objectives:
            return "next"
        return "order" if "sop" in self.objectives else self.data.rows


def read_recipe(source: Path | str, settings: tuple[str, ...] | list[str] = ()) -> PretrainRecipe:
    """A recipe file, or the name of a shipped one, with changes as `--set` writes them.

    >>> from bothways.pretraining.recipe import read_recipe
    >>> read_recipe("bert-base", ["run.steps=10"]).run.steps
    10
    """
    return read(PretrainRecipe, with_settings(read_table(find_recipe(source)), settings))


def find_recipe(source: Path | str) -> Path:
    """The file of a recipe: a path, or one of those that come with the library."""
    path = Path(source)
    if path.suffix == ".toml" or path.exists():
        return path
    known = shipped_recipes()
    if str(source) not in known:
        raise BothwaysError(f"there is no recipe {source}: expected a .toml file or one of {', '.join(sorted(known))}")
    return known[str(source)]


def shipped_recipes() -> dict[str, Path]:
    """The recipes that come with the library, by name."""
    folder = Path(str(resources.files("bothways"))) / "recipes"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}
