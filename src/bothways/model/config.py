"""The configuration of an encoder and of a model: frozen dataclasses, checked when they are made."""

import math
from dataclasses import dataclass, field
from typing import Literal

from bothways.errors import BothwaysError, require_choice
from bothways.model.activations import ACTIVATIONS

# ---------------------------------------------------------------------- positions


@dataclass(frozen=True)
class Learned:
    """Learned absolute position embeddings, added to the token embeddings (BERT, RoBERTa)."""

    rows: int = 512
    offset: int = 0
    """The row of the first position. RoBERTa's is 2: the rows before it are reserved for padding."""

    @property
    def max_length(self) -> int:
        """The longest input, in tokens."""
        return self.rows - self.offset


@dataclass(frozen=True)
class Bucketed(Learned):
    """Learned absolute positions, and a relative position bias: a score per head and bucket of distances (MPNet)."""

    buckets: int = 32


@dataclass(frozen=True)
class Rotary:
    """Rotary position embeddings: queries and keys are rotated by angles that grow with the position (ModernBERT)."""

    max_length: int = 8_192
    base: float = 160_000.0
    local_base: float = 10_000.0
    """The base in layers with local attention."""


@dataclass(frozen=True)
class Disentangled:
    """Disentangled attention: content-to-position and position-to-content scores (DeBERTa)."""

    max_length: int = 512
    span: int = 512
    """The table has 2 · span rows, one for each bucket of distances from -span up to span."""
    far: int = 0
    """Distances from span / 2 up to `far` share buckets in logarithmic steps; 0: every distance has its own bucket."""
    terms: tuple[Literal["c2p", "p2c"], ...] = ("c2p", "p2c")
    shared: bool = False
    """Whether the layer's own query and key matrices project the distances (v3), or separate ones (v1)."""
    norm: bool = False
    """Whether a LayerNorm is applied to the table."""
    rows: int = 0
    """Rows of an additional table of absolute positions at the input; 0: none."""


Position = Learned | Bucketed | Rotary | Disentangled

# ---------------------------------------------------------------------- the encoder


@dataclass(frozen=True)
class EncoderConfig:
    """The architecture of an encoder; the defaults are BERT-Base's."""

    vocab_size: int = 30_522
    width: int = 768
    layers: int = 12
    num_heads: int = 12
    ffn_width: int = 3_072
    """Width of the feed-forward network (intermediate_size)."""
    activation: str = "gelu"
    segments: int = 2
    """Number of segment embeddings (type_vocab_size); 0: none."""
    positions: Position = field(default_factory=Learned)
    norm_eps: float = 1e-12
    dropout: float = 0.1
    attention_dropout: float = 0.1
    init_std: float = 0.02
    causal: bool = False
    """Causal attention: a token attends to itself and earlier tokens only. The baseline that BERT was compared with."""
    embedding_width: int = 0
    """Width of the embeddings if they are projected to the layers' width (ALBERT, ELECTRA); 0: the same width."""
    project_first: bool = False
    """Whether embeddings are projected to the layers' width before the LayerNorm (DeBERTa) or after it (ALBERT)."""
    gated: bool = False
    """Gated feed-forward network (GLU): activation(a) · b, with a and b from one matrix product (ModernBERT)."""
    norm_first: bool = False
    """Pre-norm: LayerNorm before each sublayer and after the last layer (ModernBERT); otherwise post-norm (BERT)."""
    norm_bias: bool = True
    biases: Literal["all", "none", "query-value"] = "all"
    """Which linear layers of the blocks have a bias. query-value: all but the key (DeBERTa v1)."""
    windows: tuple[int, ...] = ()
    """For each layer, how many tokens on either side it attends to; 0: all. Empty: all layers attend to all tokens."""
    layer_map: tuple[int, ...] = ()
    """For each layer, the index of the block whose weights it uses (ALBERT shares one block). Empty: its own block."""
    convolution: int = 0
    """Kernel size of the convolution beside the first layer (DeBERTa v2); 0: none."""
    convolution_activation: str = "tanh"

    def __post_init__(self) -> None:
        for name in ("vocab_size", "width", "layers", "num_heads", "ffn_width"):
            _require_integer(name, getattr(self, name), 1)
        for name in ("segments", "embedding_width", "convolution"):
            _require_integer(name, getattr(self, name), 0)
        _check_positions(self.positions)
        if self.width % self.num_heads:
            raise BothwaysError(
                f"a width of {self.width} cannot be divided by {self.num_heads} attention heads",
                "shape-mismatch",
                (self.width, self.num_heads),
            )
        for name in ("dropout", "attention_dropout"):
            value = getattr(self, name)
            _require(isinstance(value, int | float) and 0 <= value < 1, name, value, "a probability from 0 up to 1")
        for name in ("norm_eps", "init_std"):
            value = getattr(self, name)
            _require(isinstance(value, int | float) and 0 < value < 1, name, value, "a small positive number")
        for name in ("causal", "gated", "norm_first", "norm_bias", "project_first"):
            _require(isinstance(getattr(self, name), bool), name, getattr(self, name), "true or false")
        require_choice("biases", self.biases, ("all", "none", "query-value"))
        for name in ("activation", "convolution_activation"):
            require_choice(name, getattr(self, name), tuple(sorted(ACTIVATIONS)))
        for name in ("windows", "layer_map"):
            if (count := len(getattr(self, name))) not in (0, self.layers):
                raise BothwaysError(
                    f"{name} has {count} entries for {self.layers} layers", "shape-mismatch", (name, count)
                )
        used = sorted(set(self.layer_map))
        _require(used == list(range(len(used))), "layer_map", used, "the blocks from 0 on, each used at least once")

    @property
    def max_length(self) -> int:
        """The longest input in tokens, special tokens included."""
        return self.positions.max_length

    @property
    def blocks(self) -> int:
        """Number of blocks, each with its own weights."""
        return max(self.layer_map) + 1 if self.layer_map else self.layers

    @property
    def table_width(self) -> int:
        """Width of the embeddings."""
        return self.embedding_width or self.width

    @property
    def scale(self) -> float:
        """The factor of the attention scores, 1 / √(D · terms): it keeps their variance at 1."""
        terms = 1 + len(self.positions.terms) if isinstance(self.positions, Disentangled) else 1
        return 1 / math.sqrt(self.width // self.num_heads * terms)

    @property
    def has_score_bias(self) -> bool:
        """Whether positions add a bias to the attention scores, which not every attention backend supports."""
        return isinstance(self.positions, Bucketed | Disentangled)

    @property
    def block_weights(self) -> int:
        """Number of weights in the matrices of one layer."""
        return 4 * self.width**2 + (3 if self.gated else 2) * self.width * self.ffn_width


def _require(is_right: bool, name: str, value: object, expected: str) -> None:
    if not is_right:
        raise BothwaysError(f"{name} must be {expected}, not {value!r}", "out-of-range", (name, value))


def _require_integer(name: str, value: object, least: int) -> None:
    is_right = isinstance(value, int) and not isinstance(value, bool) and value >= least
    _require(is_right, name, value, f"an integer of {least} or more")


def _check_positions(positions: Position) -> None:
    match positions:
        case Learned():
            _require_integer("positions.offset", positions.offset, 0)
            _require_integer("positions.rows", positions.rows, positions.offset + 1)
            if isinstance(positions, Bucketed):
                _require_integer("positions.buckets", positions.buckets, 4)
        case Rotary():
            _require_integer("positions.max_length", positions.max_length, 1)
            for name, base in (("base", positions.base), ("local_base", positions.local_base)):
                _require(math.isfinite(base) and base > 0, f"positions.{name}", base, "a positive number")
        case Disentangled():
            _require_integer("positions.max_length", positions.max_length, 1)
            _require_integer("positions.span", positions.span, 1)
            for term in positions.terms:
                require_choice("positions.terms", term, ("c2p", "p2c"))


BASE = EncoderConfig()
LARGE = EncoderConfig(width=1_024, layers=24, num_heads=16, ffn_width=4_096)


@dataclass(frozen=True)
class ModelConfig:
    """An encoder, its heads, its label names, and the family whose file format it is saved in."""

    encoder: EncoderConfig = BASE
    heads: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    """Label names of a sequence or token classifier, in the order of its outputs."""
    family: str = "bert"
    hf_config: dict[str, object] = field(default_factory=dict)
    """The config.json that was read; keys that we do not use are written back unchanged."""
    advice: str = ""
    """The content of finetune.toml: recommended settings for fine-tuning this model and models made from it."""
