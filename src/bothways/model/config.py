"""What a model is, in numbers: frozen, checked when made."""

from dataclasses import dataclass, field

from bothways.errors import BothwaysError
from bothways.model.activations import ACTIVATIONS


@dataclass(frozen=True)
class Learned:
    """Positions as a table of learned rows, added to the token embeddings (BERT)."""

    rows: int = 512

    @property
    def limit(self) -> int:
        """The longest input."""
        return self.rows


@dataclass(frozen=True)
class EncoderConfig:
    """The shape of an encoder; the defaults are BERT-Base's."""

    vocabulary: int = 30_522
    width: int = 768
    layers: int = 12
    heads: int = 12
    hidden: int = 3_072
    """Width of the feed-forward layer."""
    activation: str = "gelu"
    segments: int = 2
    positions: Learned = field(default_factory=Learned)
    norm_eps: float = 1e-12
    dropout: float = 0.1
    attention_dropout: float = 0.1
    init_std: float = 0.02
    causal: bool = False
    """Left to right: a token sees those before it only. The baseline that BERT was compared with."""

    def __post_init__(self) -> None:
        for name in ("vocabulary", "width", "layers", "heads", "hidden", "segments"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise BothwaysError(f"{name} must be a positive whole number, not {value!r}")
        if not isinstance(self.positions.rows, int) or self.positions.rows < 1:
            raise BothwaysError(f"positions must be a positive whole number, not {self.positions.rows!r}")
        if self.width % self.heads:
            raise BothwaysError(f"a width of {self.width} cannot be split into {self.heads} equal heads")
        for name in ("dropout", "attention_dropout"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value < 1:
                raise BothwaysError(f"{name} must be a number from 0 up to 1, not {value!r}")
        for name in ("norm_eps", "init_std"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 < value < 1:
                raise BothwaysError(f"{name} must be a small positive number, not {value!r}")
        if not isinstance(self.causal, bool):
            raise BothwaysError(f"causal must be true or false, not {self.causal!r}")
        if not isinstance(self.activation, str) or self.activation not in ACTIVATIONS:
            known = ", ".join(sorted(ACTIVATIONS))
            raise BothwaysError(f"the activation {self.activation!r} is not known: expected one of {known}")

    @property
    def limit(self) -> int:
        """The longest input in tokens, specials included."""
        return self.positions.limit


BASE = EncoderConfig()
LARGE = EncoderConfig(width=1_024, layers=24, heads=16, hidden=4_096)


@dataclass(frozen=True)
class ModelConfig:
    """An encoder, the heads on it, and the names of the labels, as one family writes them."""

    encoder: EncoderConfig = BASE
    heads: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    """The label names of a sequence or token classifier, in the order of its outputs."""
    family: str = "bert"
    foreign: dict[str, object] = field(default_factory=dict)
    """The config.json this came from; what we do not use of it is written back unchanged."""
