"""What a family declares: a config map, a key table, and its heads."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from bothways.errors import BothwaysError
from bothways.lazy import Lazy, Tensor
from bothways.model.config import ACTIVATIONS, Bias, EncoderConfig, ModelConfig, Rotary
from bothways.model.families.setting_kinds import MAPPED

if TYPE_CHECKING:
    from torch import nn

    from bothways.model import heads as heads
else:
    heads = Lazy("bothways.model.heads")

Reads = Literal["tokens", "tokens + first", "first", "mean", "pooled", "late"]
"""The input of a head: the hidden states of all tokens, or these plus that of their sequence's first token; or for each
sequence the state of the first token, the mean of all states, or the pooler's output. late: the head reads all tokens,
and its logits are averaged over each sequence."""


@dataclass(frozen=True)
class KeyRow:
    """One parameter of ours and its name in Hugging Face's files. `{}` stands for the number of the block.

    Several tensors of theirs are concatenated in this order along the first dimension. Rows whose parameter a model
    does not have, such as a bias, are skipped.
    """

    theirs: str | tuple[str, ...]
    ours: str
    is_optional: bool = False
    """Whether a file may lack it, and it is then zero."""
    by_head: int = 1
    """The number of projections that one tensor of theirs interleaves head by head: 3 for q, k and v in DeBERTa v1."""

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.theirs,) if isinstance(self.theirs, str) else self.theirs

    def lengths(self, total: int, shape: EncoderConfig) -> list[int]:
        """The lengths of the parts, `total` in all. Keys and values may be narrower than queries."""
        if len(self.parts) == 3 and ".attention.qkv." in self.ours:
            return list(shape.qkv_widths)
        return [total // len(self.parts)] * len(self.parts)


@dataclass(frozen=True)
class Head:
    """A head: how it is built, the names of its tensors, and its input."""

    build: Callable[[ModelConfig], "nn.Module"]
    rows: tuple[KeyRow, ...]
    reads: Reads | Callable[[ModelConfig], Reads] = "tokens"
    has_labels: bool = False
    """True if it has one output for each label."""
    labels: tuple[str, ...] = ()
    """The label names that config.json has for it, if they are always the same."""
    needs: tuple[str, ...] = ()
    """Other heads that this one needs."""
    in_body: bool = False
    """True if its tensor names have the body's prefix."""

    def reads_in(self, config: ModelConfig) -> Reads:
        """Its input in a given model."""
        return self.reads if isinstance(self.reads, str) else self.reads(config)


@dataclass(frozen=True)
class Family:
    """Everything specific to one file format of one architecture."""

    name: str
    """The `model_type` of config.json, unless `model_type` gives another."""
    prefix: str
    """The prefix of the body's tensor names in files that have a head too, such as `bert.`"""
    read_config: Callable[[Mapping[str, Any]], EncoderConfig]
    write_config: Callable[[EncoderConfig], dict[str, Any]]
    body: tuple[KeyRow, ...]
    heads: Mapping[str, Head]
    fresh: Callable[[EncoderConfig], EncoderConfig]
    """The config of a new model of this family, given the sizes as a BERT config."""
    architectures: tuple[tuple[str, frozenset[str]], ...]
    """Their classes and the heads of each. When we write, the first match is used."""
    ignored: tuple[str, ...] = ()
    """Patterns of tensors without learned weights, which are not read."""
    unread_tensors: Mapping[str, str] = field(default_factory=dict)
    """Patterns of learned tensors that are not read, and what they are: a warning says so."""
    computed: Mapping[str, Callable[[EncoderConfig], Tensor]] = field(default_factory=dict)
    """Tensors of a file that follow from its settings. A file with other values is refused."""
    tied: Mapping[str, str] = field(default_factory=dict)
    """Tensors that are copies of another one: they must be equal to it, and are not written."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Endings of old tensor names, and the current ones."""
    unread_classes: tuple[str, ...] = ()
    """Classes of theirs with a head that we do not have: refused by name."""
    model_type: str = ""
    """The `model_type` of config.json, where several formats share one; "": the name."""
    other_prefixes: tuple[str, ...] = ()
    """Prefixes of the body in files of other libraries; we write `prefix`."""
    ties: bool = True
    """Whether a config.json without tie_word_embeddings ties the output matrix to the token embeddings."""
    sign: str = ""
    """A tensor that only this one of several formats with the same `model_type` has, without the prefix."""
    modules: tuple[KeyRow, ...] = ()
    """The body under the names of their class, which adapters use, where files have others; empty: the same names."""
    narrow_embeddings: bool = False
    """Whether the embeddings may be narrower than the layers."""
    poolings: Mapping[Reads, str] = field(default_factory=dict)
    """What the classifier can read, and the value of `classifier_pooling` in config.json for it; empty: it is fixed."""

    @property
    def type(self) -> str:
        """The `model_type` of config.json."""
        return self.model_type or self.name

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The prefixes that the body may have in a file."""
        return (self.prefix, *self.other_prefixes, "")


# ---------------------------------------------------------------------- helpers for the tables


def linear(theirs: str, ours: str) -> tuple[KeyRow, KeyRow]:
    """A weight and a bias."""
    return KeyRow(f"{theirs}.weight", f"{ours}.weight"), KeyRow(f"{theirs}.bias", f"{ours}.bias")


def stacked(theirs: str, names: tuple[str, ...], ours: str) -> tuple[KeyRow, KeyRow]:
    """Several linear layers of theirs that are one of ours."""
    weights, biases = ([f"{theirs}.{name}.{kind}" for name in names] for kind in ("weight", "bias"))
    return KeyRow(tuple(weights), f"{ours}.weight"), KeyRow(tuple(biases), f"{ours}.bias")


def classifiers(dropout: str, token_dropout: str) -> dict[str, Head]:
    """BERT's classifiers: one linear layer each. The arguments are the settings of their dropout probabilities."""
    pooled: dict[str, Any] = {"reads": "pooled", "needs": ("pooler",)}

    def build(outputs: int, setting: str) -> Callable[[ModelConfig], "nn.Module"]:
        return lambda c: heads.LinearHead(c.encoder, outputs or len(c.labels), dropout_of(c, setting))

    # All have the tensor names of `classifier`: "architectures" in config.json tells which one it is.
    return {
        "sequence": Head(build(0, dropout), linear("classifier", "heads.sequence.linear"), has_labels=True, **pooled),
        "token": Head(build(0, token_dropout), linear("classifier", "heads.token.linear"), has_labels=True),
        "choice": Head(build(1, dropout), linear("classifier", "heads.choice.linear"), **pooled),
    }


def modules(gate: tuple[str, str]) -> tuple[KeyRow, ...]:
    """A body in the classes of NomicBERT and GTE in transformers, which rename the tensors of a file."""
    layer, block = "layers.{}", "encoder.blocks.{}"
    return (
        KeyRow("embeddings.word_embeddings.weight", "encoder.embeddings.tokens.weight"),
        KeyRow("embeddings.token_type_embeddings.weight", "encoder.embeddings.segments.weight"),
        *linear("embeddings.LayerNorm", "encoder.embeddings.norm"),
        *stacked(f"{layer}.self_attn", ("q_proj", "k_proj", "v_proj"), f"{block}.attention.qkv"),
        *linear(f"{layer}.self_attn.o_proj", f"{block}.attention.out"),
        *linear(f"{layer}.post_attention_layernorm", f"{block}.attention_norm"),
        *stacked(f"{layer}.mlp", gate, f"{block}.feed_forward.up"),
        *linear(f"{layer}.mlp.down_proj", f"{block}.feed_forward.down"),
        *linear(f"{layer}.post_mlp_layernorm", f"{block}.feed_forward_norm"),
    )


def dense_classifier(build: Callable[[ModelConfig], "nn.Module"]) -> Head:
    """RoBERTa's sequence classifier: two layers over the first token."""
    rows = (
        *linear("classifier.dense", "heads.sequence.dense"),
        *linear("classifier.out_proj", "heads.sequence.linear"),
    )
    return Head(build, rows, reads="first", has_labels=True)


def masked_head(dense: str, norm: str, bias: str, decoder: str, activation: str = "") -> Head:
    """The head of masked language modelling, by the names of its parts; "": the activation of the layers."""
    return Head(
        lambda c: heads.MaskedLMHead(c.encoder, activation, tied=is_tied(c)),
        (
            *linear(dense, "heads.masked.dense"),
            *linear(norm, "heads.masked.norm"),
            KeyRow(bias, "heads.masked.bias"),
            KeyRow(decoder, "heads.masked.decoder.weight"),
        ),
    )


def architectures(
    classes: str, heads: Mapping[str, Head], others: Mapping[str, set[str]] = MappingProxyType({})
) -> tuple[tuple[str, frozenset[str]], ...]:
    """The classes of a family whose names begin with `classes`; `others` are those that not every family has."""
    usual = {"SequenceClassification": "sequence", "TokenClassification": "token"}
    usual |= {"QuestionAnswering": "span", "MultipleChoice": "choice"}
    known = {ending: head for ending, head in usual.items() if head in heads}
    has_pooler = "pooler" in heads and heads["pooler"].in_body
    return (
        *((f"{classes}For{ending}", frozenset({head, *heads[head].needs})) for ending, head in known.items()),
        *((f"{classes}For{ending}", frozenset(names)) for ending, names in others.items()),
        *([(f"{classes}ForMaskedLM", frozenset({"masked"}))] if "masked" in heads else []),
        *([(f"{classes}Model", frozenset({"pooler"}))] if has_pooler else []),
        (f"{classes}Model", frozenset()),
    )


def refuse_other(raw: Mapping[str, Any], fixed: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse values of settings that we do not compute, and dropout values that are no probabilities."""
    for key, allowed in fixed.items():
        if key in raw and raw[key] is not None and raw[key] not in allowed:
            raise unsupported(key, raw[key], f"only {allowed[0]!r} is supported")
    for key, value in raw.items():
        is_probability = isinstance(value, int | float) and 0 <= value < 1
        if key.endswith(("dropout", "dropout_prob")) and value is not None and not is_probability:
            raise unsupported(key, value, "expected a probability from 0 up to 1")


def unsupported(key: str, value: object, expected: str) -> BothwaysError:
    """The error about a setting of config.json."""
    return BothwaysError(f"config.json has {key} = {value!r}: {expected}", "unsupported-setting", (key, value))


def take(raw: Mapping[str, Any], keys: Mapping[str, str], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Their settings under our names. What is missing or null has their default, except for sizes."""
    found = {key: setting(raw, key, defaults.get(key)) for key in keys}
    missing = [key for key, value in found.items() if value is None]
    if missing:
        raise BothwaysError(f"config.json has no {', '.join(missing)}", "missing-setting", tuple(missing))
    for key, value in found.items():
        _require_kind(key, keys[key], value)
    return {keys[key]: value for key, value in found.items()}


def _require_kind(key: str, ours: str, value: Any) -> None:
    """Refuse a value of the wrong kind by the key that has it."""
    if ours == "activation":
        activation_of({key: value}, key)
    if ours in ("causal", "norm_bias") and not isinstance(value, bool):
        raise unsupported(key, value, "expected true or false")
    if ours in MAPPED and MAPPED[ours].fault(value):
        raise unsupported(key, value, f"expected {MAPPED[ours].expected}")


def setting(raw: Mapping[str, Any], key: str, default: Any) -> Any:
    """A setting, or its default if it is missing or null."""
    value = raw.get(key)
    return default if value is None else value


def activation_of(raw: Mapping[str, Any], key: str, default: str = "gelu") -> str:
    """The activation function that a setting names."""
    name = setting(raw, key, default)
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise unsupported(key, name, f"expected one of {', '.join(sorted(ACTIVATIONS))}")
    return name


def give(config: EncoderConfig, keys: Mapping[str, str]) -> dict[str, Any]:
    """Our settings under their names: the inverse of `take`."""
    return {theirs: getattr(config, ours) for theirs, ours in keys.items()}


def plain(config: EncoderConfig) -> EncoderConfig:
    """The same config, for families whose embeddings are as wide as their layers."""
    if config.embedding_width:
        raise BothwaysError(
            f"model.embedding_width is {config.embedding_width}, and this family has none narrower: leave it out",
            "unsupported-setting",
            ("model.embedding_width", config.embedding_width),
        )
    return config


def is_tied(config: ModelConfig, default: bool = True) -> bool:
    """Whether the output matrix of masked language modelling is the table of token embeddings."""
    return bool(setting(config.hf_config, "tie_word_embeddings", default))


def block_biases(raw: Mapping[str, Any]) -> tuple[Bias, ...]:
    """The biases by the settings attention_bias and mlp_bias."""
    attention: tuple[Bias, ...] = ("query", "key", "value", "out") if raw.get("attention_bias") else ()
    return (*attention, "up", "down") if raw.get("mlp_bias") else attention


def read_rotary(raw: Mapping[str, Any], max_length: int, base: float) -> Rotary:
    """Rotary positions by the settings of transformers 5 (rope_parameters) or 4 (rope_theta, rope_scaling)."""
    given: Mapping[str, Any] = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    base = float(setting(given, "rope_theta", setting(raw, "rope_theta", base)))
    kind = setting(given, "rope_type", setting(given, "type", "default"))
    if kind not in ("default", "linear"):
        raise unsupported("rope_type", kind, "expected 'default' or 'linear'")
    if (share := setting(given, "partial_rotary_factor", setting(raw, "partial_rotary_factor", 1.0))) != 1.0:
        raise unsupported("partial_rotary_factor", share, "only 1.0 is supported")
    return Rotary(max_length, base, base, float(given["factor"]) if kind == "linear" else 1.0)


def write_rotary(positions: Rotary) -> dict[str, Any]:
    """rope_parameters of config.json: the inverse of `read_rotary`."""
    if positions.factor == 1:
        return {"rope_type": "default", "rope_theta": positions.base}
    return {"rope_type": "linear", "rope_theta": positions.base, "factor": positions.factor}


def dropout_of(config: ModelConfig, key: str = "classifier_dropout") -> float:
    """The dropout probability of a head: its own setting, or that of the encoder."""
    own = config.hf_config.get(key)
    return own if isinstance(own, int | float) else config.encoder.dropout
