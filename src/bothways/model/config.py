"""The configuration of an encoder and of a model: frozen dataclasses, checked when they are made."""

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args

from bothways.errors import BothwaysError, require_choice
from bothways.ranges import Positive, Probability, Range, faults

ACTIVATIONS = (
    "gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_accurate", "gelu_python", "gelu_python_tanh", "gelu_10",
    "quick_gelu", "relu", "relu2", "relu6", "leaky_relu", "hardswish", "silu", "swish", "mish", "tanh", "sigmoid",
    "linear",
)  # fmt: skip
"""The activation functions that config files name; model/activations.py has each."""

# Far above those of any model, and small enough that no table of one is more than the memory of an address.
_WIDTH, _LAYERS, _LENGTH, _ROWS = 2**20, 10_000, 2**24, 2**31 - 1
Width = Annotated[int, Range(1, _WIDTH)]
Length = Annotated[int, Range(1, _LENGTH)]

# ---------------------------------------------------------------------- positions


@dataclass(frozen=True)
class Learned:
    """Learned absolute position embeddings, added to the token embeddings (BERT, RoBERTa)."""

    rows: Length = 512
    offset: Annotated[int, Range(0, _LENGTH)] = 0
    """The row of the first position. RoBERTa's is 2: the rows before it are reserved for padding."""
    skips_padding: bool = False
    """Whether padding tokens inside a text are not counted, and have the row offset - 1, their own id (RoBERTa)."""

    @property
    def max_length(self) -> int:
        """The longest input, in tokens."""
        return self.rows - self.offset


@dataclass(frozen=True)
class Bucketed(Learned):
    """Learned absolute positions, and a relative position bias: a score per head and bucket of distances (MPNet)."""

    buckets: Annotated[int, Range(4, _LENGTH)] = 32


@dataclass(frozen=True)
class Rotary:
    """Rotary position embeddings: queries and keys are rotated by angles that grow with the position (ModernBERT)."""

    max_length: Length = 8_192
    base: Positive = 160_000.0
    local_base: Positive = 10_000.0
    """The base in layers with local attention."""
    factor: Positive = 1.0
    """Positions are divided by this number (GTE): the angles of a longer input then stay in the range of training."""
    in_64_bits: bool = False
    """Whether angles are computed in 64 bits, as for RoFormer's table, or in 32."""
    adjacent: bool = False
    """Which dimensions are rotated together: 2i and 2i + 1 (RoFormer, NeoBERT), or i and i + D/2 (ModernBERT)."""


@dataclass(frozen=True)
class Alibi:
    """Attention with linear biases: a score falls with the distance, by a slope of each head's own (Jina BERT v2)."""

    max_length: Length = 8_192


@dataclass(frozen=True)
class Disentangled:
    """Disentangled attention: content-to-position and position-to-content scores (DeBERTa)."""

    max_length: Length = 512
    span: Annotated[int, Range(0, _LENGTH)] = 512
    """The table has 2 · span rows, one for each bucket of distances from -span up to span; 0: there is no table."""
    far: Annotated[int, Range(0, _LENGTH)] = 0
    """Distances from span / 2 up to `far` share buckets in logarithmic steps; 0: every distance has its own bucket."""
    terms: tuple[Literal["c2p", "p2c"], ...] = ("c2p", "p2c")
    shared: bool = False
    """Whether the layer's own query and key matrices project the distances (v3), or separate ones (v1)."""
    norm: bool = False
    """Whether a LayerNorm is applied to the table."""
    rows: Annotated[int, Range(0, _LENGTH)] = 0
    """Rows of an additional table of absolute positions at the input; 0: none."""

    @property
    def is_relative(self) -> bool:
        """Whether distances have a part in the attention scores."""
        return self.span > 0 and bool(self.terms)


Position = Learned | Bucketed | Rotary | Alibi | Disentangled

Bias = Literal["query", "key", "value", "out", "up", "down"]
"""A linear layer of a block that may have a bias: four of the attention, two of the feed-forward network."""
BIASES: tuple[Bias, ...] = get_args(Bias)

# ---------------------------------------------------------------------- the encoder


@dataclass(frozen=True)
class EncoderConfig:
    """The architecture of an encoder; the defaults are BERT-Base's."""

    vocab_size: Annotated[int, Range(1, _ROWS)] = 30_522
    width: Width = 768
    layers: Annotated[int, Range(1, _LAYERS)] = 12
    num_heads: Width = 12
    ffn_width: Width = 3_072
    """Width of the feed-forward network (intermediate_size)."""
    activation: str = "gelu"
    segments: Annotated[int, Range(0, _WIDTH)] = 2
    """Number of segment embeddings (type_vocab_size); 0: none."""
    positions: Position = field(default_factory=Learned)
    norm_eps: Annotated[float, Range(0, 1, above=True, below=True)] = 1e-12
    dropout: Probability = 0.1
    attention_dropout: Probability = 0.1
    init_std: Annotated[float, Range(0)] = 0.02
    causal: bool = False
    """Causal attention: a token attends to itself and earlier tokens only. The baseline that BERT was compared with."""
    embedding_width: Annotated[int, Range(0, _WIDTH)] = 0
    """Width of the embeddings if they are projected to the layers' width (ALBERT, ELECTRA); 0: the same width."""
    project_first: bool = False
    """Whether embeddings are projected to the layers' width before the LayerNorm (DeBERTa) or after it (ALBERT)."""
    gated: Literal["", "first", "second"] = ""
    """Gated feed-forward network (GLU): activation(a) · b, with a and b from one matrix product. The name tells which
    half of the product is a: the first (ModernBERT) or the second (GTE). "": not gated."""
    norm_first: bool = False
    """Pre-norm: a norm before each sublayer (ModernBERT); otherwise post-norm, after it (BERT)."""
    embedding_norm: bool = True
    """Whether the embeddings are normed."""
    first_norm: bool = True
    """Whether the attention of the first layer has its norm. ModernBERT's has not: its embeddings are normed."""
    final_norm: bool = False
    """Whether the output of the last layer is normed once more, as in pre-norm models."""
    norm_bias: bool = True
    biases: tuple[Bias, ...] = BIASES
    """Which linear layers of the blocks have a bias. DeBERTa v1 has none for the key, ModernBERT none at all."""
    windows: tuple[Annotated[int, Range(0, _LENGTH)], ...] = ()
    """For each layer, how many tokens on either side it attends to; 0: all. Empty: all layers attend to all tokens."""
    layer_map: tuple[Annotated[int, Range(0, _LAYERS)], ...] = ()
    """For each layer, the index of the block whose weights it uses (ALBERT shares one block). Empty: its own block."""
    convolution: Annotated[int, Range(0, _WIDTH)] = 0
    """Kernel size of the convolution beside the first layer (DeBERTa v2); 0: none."""
    convolution_activation: str = "tanh"
    num_kv_heads: Annotated[int, Range(0, _WIDTH)] = 0
    """Heads of keys and values, each shared by as many heads of queries (grouped-query attention); 0: num_heads."""
    tasks: Annotated[int, Range(0, _WIDTH)] = 0
    """Number of task embeddings (ERNIE); 0: none. The first one is added to every token, as in transformers."""
    norm: Literal["layer", "rms"] = "layer"
    """LayerNorm, or RMSNorm, which does not subtract the mean."""

    def __post_init__(self) -> None:
        _require_ranges(self)
        _check_positions(self.positions)
        if self.width % self.num_heads:
            raise BothwaysError(
                f"a width of {self.width} cannot be divided by {self.num_heads} attention heads",
                "shape-mismatch",
                (self.width, self.num_heads),
            )
        if self.num_heads % self.kv_heads:
            raise BothwaysError(
                f"{self.num_heads} attention heads cannot share {self.kv_heads} heads of keys and values evenly",
                "shape-mismatch",
                (self.num_heads, self.kv_heads),
            )
        for name in _SWITCHES:
            _require(isinstance(getattr(self, name), bool), name, getattr(self, name), "true or false")
        require_choice("norm", self.norm, ("layer", "rms"))
        require_choice("gated", self.gated, ("", "first", "second"))
        for bias in self.biases:
            require_choice("biases", bias, BIASES)
        for name in ("activation", "convolution_activation"):
            require_choice(name, getattr(self, name), tuple(sorted(ACTIVATIONS)))
        for name in ("windows", "layer_map"):
            if (count := len(getattr(self, name))) not in (0, self.layers):
                raise BothwaysError(
                    f"{name} has {count} entries for {self.layers} layers", "shape-mismatch", (name, count)
                )
        if not any(self.windows):
            object.__setattr__(self, "windows", ())
        used = sorted(set(self.layer_map))
        _require(used == list(range(len(used))), "layer_map", used, "the blocks from 0 on, each used at least once")

    @property
    def max_length(self) -> int:
        """The longest input in tokens, special tokens included."""
        return self.positions.max_length

    @property
    def kv_heads(self) -> int:
        """Number of heads of keys, and of values."""
        return self.num_kv_heads or self.num_heads

    @property
    def head_width(self) -> int:
        """D, the dimensions of one attention head."""
        return self.width // self.num_heads

    @property
    def qkv_widths(self) -> tuple[int, int, int]:
        """The widths of queries, keys and values."""
        shared = self.kv_heads * self.head_width
        return self.width, shared, shared

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
        return 1 / math.sqrt(self.head_width * terms)

    @property
    def has_score_bias(self) -> bool:
        """Whether positions add a bias to the attention scores, which not every attention backend supports."""
        match self.positions:
            case Disentangled():
                return self.positions.is_relative
            case Bucketed() | Alibi():
                return True
        return False

    @property
    def block_weights(self) -> int:
        """Number of weights in the matrices of one layer."""
        attention = self.width * (self.width + sum(self.qkv_widths))
        return attention + (3 if self.gated else 2) * self.width * self.ffn_width


_SWITCHES = ("causal", "norm_first", "embedding_norm", "first_norm", "final_norm", "norm_bias", "project_first")


def _require(is_right: bool, name: str, value: object, expected: str) -> None:
    if not is_right:
        raise BothwaysError(f"{name} must be {expected}, not {value!r}", "out-of-range", (name, value))


def _require_ranges(config: Any, prefix: str = "") -> None:
    for name, value, allowed in faults(config):
        _require(False, prefix + name, value, allowed.expected)


def _check_positions(positions: Position) -> None:
    _require_ranges(positions, "positions.")
    if isinstance(positions, Learned):
        rows, least = positions.rows, positions.offset + 1
        _require(rows >= least, "positions.rows", rows, f"an integer of {least} or more")
    if isinstance(positions, Disentangled):
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
