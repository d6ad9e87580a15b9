"""What a model is, in numbers: frozen, checked when made."""

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

from bothways.errors import BothwaysError, require_choice
from bothways.model.activations import ACTIVATIONS

# ---------------------------------------------------------------------- positions


@dataclass(frozen=True)
class Learned:
    """A table of learned rows, added to the token embeddings (BERT, RoBERTa)."""

    rows: int = 512
    offset: int = 0
    """The row of the first token. RoBERTa's is 2: those before it were meant for padding."""

    @property
    def max_length(self) -> int:
        """The longest input."""
        return self.rows - self.offset


@dataclass(frozen=True)
class Bucketed(Learned):
    """Learned rows, and for each head a score for each bucket of distances (MPNet)."""

    buckets: int = 32


@dataclass(frozen=True)
class Rotary:
    """Queries and keys turned by angles that grow with the position (ModernBERT)."""

    max_length: int = 8_192
    base: float = 160_000.0
    local_base: float = 10_000.0
    """In layers that see a window only."""


@dataclass(frozen=True)
class Disentangled:
    """Scores from content to distance and from distance to content (DeBERTa)."""

    max_length: int = 512
    span: int = 512
    """The table has 2 · span rows, one for each bucket of distances from -span up to span."""
    far: int = 0
    """Distances beyond half the span share buckets, wider and wider up to `far`; 0: every distance has its own."""
    terms: tuple[Literal["c2p", "p2c"], ...] = ("c2p", "p2c")
    shared: bool = False
    """Distances are projected by the layer's own query and key (v3), or by matrices of their own (v1)."""
    norm: bool = False
    """Whether the table is normed."""
    rows: int = 0
    """Learned rows at the input beside all that; 0: none."""


Position = Learned | Bucketed | Rotary | Disentangled

# ---------------------------------------------------------------------- the encoder


@dataclass(frozen=True)
class EncoderConfig:
    """The shape of an encoder; the defaults are BERT-Base's."""

    vocab_size: int = 30_522
    width: int = 768
    layers: int = 12
    num_heads: int = 12
    ffn_width: int = 3_072
    """Width of the feed-forward layer."""
    activation: str = "gelu"
    segments: int = 2
    """Rows for sentence A and B; 0: the model does not tell them apart."""
    positions: Position = field(default_factory=Learned)
    norm_eps: float = 1e-12
    dropout: float = 0.1
    attention_dropout: float = 0.1
    init_std: float = 0.02
    causal: bool = False
    """Left to right: a token sees those before it only. The baseline that BERT was compared with."""
    embedding_width: int = 0
    """Width of the token table, if it is projected to that of the layers (ALBERT, ELECTRA); 0: it has theirs."""
    project_first: bool = False
    """Whether embeddings are brought to the layers' width before they are normed (DeBERTa), or after (ALBERT)."""
    gated: bool = False
    """Feed-forward as activation(a) · b, with a and b from one product (ModernBERT)."""
    norm_first: bool = False
    """Each part of a layer norms its input, the last output is normed (ModernBERT); else what it adds up to."""
    norm_bias: bool = True
    biases: Literal["all", "none", "query-value"] = "all"
    """Which linear layers of the blocks have one. query-value: all but the key (DeBERTa v1)."""
    windows: tuple[int, ...] = ()
    """For each layer, how many tokens it sees on either side; 0 is all. Empty: all layers see all."""
    layer_map: tuple[int, ...] = ()
    """For each layer, which block's weights it has (ALBERT: all the same). Empty: its own."""
    convolution: int = 0
    """Tokens that a convolution beside the first layer reads (DeBERTa v2); 0: there is none."""
    convolution_activation: str = "tanh"

    def __post_init__(self) -> None:
        for name in ("vocab_size", "width", "layers", "num_heads", "ffn_width"):
            _require_whole(name, getattr(self, name), 1)
        for name in ("segments", "embedding_width", "convolution"):
            _require_whole(name, getattr(self, name), 0)
        _check_positions(self.positions)
        if self.width % self.num_heads:
            raise BothwaysError(f"a width of {self.width} cannot be split into {self.num_heads} equal heads")
        for name in ("dropout", "attention_dropout"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value < 1:
                raise BothwaysError(f"{name} must be a number from 0 up to 1, not {value!r}")
        for name in ("norm_eps", "init_std"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 < value < 1:
                raise BothwaysError(f"{name} must be a small positive number, not {value!r}")
        for name in ("causal", "gated", "norm_first", "norm_bias", "project_first"):
            if not isinstance(getattr(self, name), bool):
                raise BothwaysError(f"{name} must be true or false, not {getattr(self, name)!r}")
        require_choice("biases", self.biases, ("all", "none", "query-value"))
        for name in (self.activation, self.convolution_activation):
            if not isinstance(name, str) or name not in ACTIVATIONS:
                known = ", ".join(sorted(ACTIVATIONS))
                raise BothwaysError(f"the activation {name!r} is not known: expected one of {known}")
        for name in ("windows", "layer_map"):
            if len(getattr(self, name)) not in (0, self.layers):
                raise BothwaysError(f"{name} has {len(getattr(self, name))} entries for {self.layers} layers")
        if self.layer_map and sorted(set(self.layer_map)) != list(range(self.blocks)):
            raise BothwaysError(
                f"layer_map names the blocks {sorted(set(self.layer_map))}: expected 0 and up, none left out"
            )

    @property
    def max_length(self) -> int:
        """The longest input in tokens, specials included."""
        return self.positions.max_length

    @property
    def blocks(self) -> int:
        """How many blocks have weights of their own."""
        return max(self.layer_map) + 1 if self.layer_map else self.layers

    @property
    def table_width(self) -> int:
        """Width of the token table."""
        return self.embedding_width or self.width

    @property
    def scale(self) -> float:
        """By which scores of attention are multiplied: they have the variance of one term, however many there are."""
        terms = 1 + len(self.positions.terms) if isinstance(self.positions, Disentangled) else 1
        return 1 / math.sqrt(self.width // self.num_heads * terms)

    @property
    def has_score_bias(self) -> bool:
        """Whether positions add something to the attention scores: not every attention backend can."""
        return isinstance(self.positions, Bucketed | Disentangled)

    @property
    def block_weights(self) -> int:
        """Numbers in the matrices of one layer: what a token meets there."""
        return 4 * self.width**2 + (3 if self.gated else 2) * self.width * self.ffn_width


def _require_whole(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        kind = "a positive whole number" if least else "a whole number of 0 or more"
        raise BothwaysError(f"{name} must be {kind}, not {value!r}")


def _check_positions(positions: Position) -> None:
    match positions:
        case Learned():
            _require_whole("positions", positions.rows, 1)
            _require_whole("the offset of positions", positions.offset, 0)
            if positions.max_length < 1:
                raise BothwaysError(f"{positions.rows} positions leave none after an offset of {positions.offset}")
            if isinstance(positions, Bucketed):
                _require_whole("buckets", positions.buckets, 4)
        case Rotary():
            _require_whole("positions", positions.max_length, 1)
            if not all(math.isfinite(base) and base > 0 for base in (positions.base, positions.local_base)):
                raise BothwaysError("the bases of rotary positions must be positive numbers")
        case Disentangled():
            _require_whole("positions", positions.max_length, 1)
            _require_whole("the span of distances", positions.span, 1)
            if unknown := [term for term in positions.terms if term not in get_args(Literal["c2p", "p2c"])]:
                raise BothwaysError(f"the term {unknown[0]!r} of attention is not known: expected c2p and p2c")


BASE = EncoderConfig()
LARGE = EncoderConfig(width=1_024, layers=24, num_heads=16, ffn_width=4_096)


@dataclass(frozen=True)
class ModelConfig:
    """An encoder, the heads on it, and the names of the labels, as one family writes them."""

    encoder: EncoderConfig = BASE
    heads: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    """The label names of a sequence or token classifier, in the order of its outputs."""
    family: str = "bert"
    hf_config: dict[str, object] = field(default_factory=dict)
    """The config.json this came from; what we do not use of it is written back unchanged."""
    advice: str = ""
    """The finetune.toml beside it: how this model, and any that is made of it, is best fine-tuned."""
