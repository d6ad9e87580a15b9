"""The configuration of an encoder and of a model: frozen dataclasses, checked when they are made."""

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

from bothways.errors import BothwaysError, require_choice

ACTIVATIONS = (
    "gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_accurate", "gelu_python", "gelu_python_tanh", "gelu_10",
    "quick_gelu", "relu", "relu2", "relu6", "leaky_relu", "hardswish", "silu", "swish", "mish", "tanh", "sigmoid",
    "linear",
)  # fmt: skip
"""The activation functions that config files name; model/activations.py has each."""

# ---------------------------------------------------------------------- positions


@dataclass(frozen=True)
class Learned:
    """Learned absolute position embeddings, added to the token embeddings (BERT, RoBERTa)."""

    rows: int = 512
    offset: int = 0
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

    buckets: int = 32


@dataclass(frozen=True)
class Rotary:
    """Rotary position embeddings: queries and keys are rotated by angles that grow with the position (ModernBERT)."""

    max_length: int = 8_192
    base: float = 160_000.0
    local_base: float = 10_000.0
    """The base in layers with local attention."""
    factor: float = 1.0
    """Positions are divided by this number (GTE): the angles of a longer input then stay in the range of training."""
    in_64_bits: bool = False
    """Whether angles are computed in 64 bits, as for RoFormer's table, or in 32."""
    adjacent: bool = False
    """Which dimensions are rotated together: 2i and 2i + 1 (RoFormer, NeoBERT), or i and i + D/2 (ModernBERT)."""


@dataclass(frozen=True)
class Alibi:
    """Attention with linear biases: a score falls with the distance, by a slope of each head's own (Jina BERT v2)."""

    max_length: int = 8_192


@dataclass(frozen=True)
class Disentangled:
    """Disentangled attention: content-to-position and position-to-content scores (DeBERTa)."""

    max_length: int = 512
    span: int = 512
    """The table has 2 · span rows, one for each bucket of distances from -span up to span; 0: there is no table."""
    far: int = 0
    """Distances from span / 2 up to `far` share buckets in logarithmic steps; 0: every distance has its own bucket."""
    terms: tuple[Literal["c2p", "p2c"], ...] = ("c2p", "p2c")
    shared: bool = False
    """Whether the layer's own query and key matrices project the distances (v3), or separate ones (v1)."""
    norm: bool = False
    """Whether a LayerNorm is applied to the table."""
    rows: int = 0
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
    windows: tuple[int, ...] = ()
    """For each layer, how many tokens on either side it attends to; 0: all. Empty: all layers attend to all tokens."""
    layer_map: tuple[int, ...] = ()
    """For each layer, the index of the block whose weights it uses (ALBERT shares one block). Empty: its own block."""
    convolution: int = 0
    """Kernel size of the convolution beside the first layer (DeBERTa v2); 0: none."""
    convolution_activation: str = "tanh"
    num_kv_heads: int = 0
    """Heads of keys and values, each shared by as many heads of queries (grouped-query attention); 0: num_heads."""
    tasks: int = 0
    """Number of task embeddings (ERNIE); 0: none. The first one is added to every token, as in transformers."""
    norm: Literal["layer", "rms"] = "layer"
    """LayerNorm, or RMSNorm, which does not subtract the mean."""

    def __post_init__(self) -> None:
        for name in ("vocab_size", "width", "layers", "num_heads", "ffn_width"):
            _require_integer(name, getattr(self, name), 1)
        for name in ("segments", "tasks", "embedding_width", "convolution", "num_kv_heads"):
            _require_integer(name, getattr(self, name), 0)
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
        for name in ("dropout", "attention_dropout"):
            value = getattr(self, name)
            _require(isinstance(value, int | float) and 0 <= value < 1, name, value, "a probability from 0 up to 1")
        eps, std = self.norm_eps, self.init_std
        _require(isinstance(eps, int | float) and 0 < eps < 1, "norm_eps", eps, "a small positive number")
        _require(isinstance(std, int | float) and 0 <= std < math.inf, "init_std", std, "0 or more")
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
        case Alibi():
            _require_integer("positions.max_length", positions.max_length, 1)
        case Rotary():
            _require_integer("positions.max_length", positions.max_length, 1)
            for name in ("base", "local_base", "factor"):
                value = getattr(positions, name)
                _require(math.isfinite(value) and value > 0, f"positions.{name}", value, "a positive number")
        case Disentangled():
            _require_integer("positions.max_length", positions.max_length, 1)
            _require_integer("positions.span", positions.span, 0)
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
