"""What a family declares: a config map, a key table, and its heads."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from torch import nn

from bothways.errors import BothwaysError
from bothways.model.config import EncoderConfig, ModelConfig
from bothways.model.heads import LinearHead

Reads = Literal["tokens", "tokens + first", "first", "mean", "pooled"]
"""The input of a head: the hidden states of all tokens, or these plus that of their sequence's first token; or for each
sequence the state of the first token, the mean of all states, or the pooler's output."""


@dataclass(frozen=True)
class KeyRow:
    """One parameter of ours and its name in Hugging Face's files. `{}` stands for the number of the block.

    Several tensors of theirs are concatenated in this order along the first dimension. Rows whose parameter a model
    does not have, such as a bias, are skipped.
    """

    theirs: str | tuple[str, ...]
    ours: str
    by_head: int = 1
    """The number of projections that one tensor of theirs interleaves head by head: 3 for q, k and v in DeBERTa v1."""

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.theirs,) if isinstance(self.theirs, str) else self.theirs


@dataclass(frozen=True)
class Head:
    """A head: how it is built, the names of its tensors, and its input."""

    build: Callable[[ModelConfig], nn.Module]
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
    """Everything specific to one `model_type`."""

    name: str
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
    """Tensors without learned weights."""
    tied: Mapping[str, str] = field(default_factory=dict)
    """Tensors that are copies of another one: they must be equal to it, and are not written."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Endings of old tensor names, and the current ones."""


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

    def build(outputs: int, setting: str) -> Callable[[ModelConfig], nn.Module]:
        return lambda c: LinearHead(c.encoder, outputs or len(c.labels), dropout_of(c, setting))

    # All have the tensor names of `classifier`: "architectures" in config.json tells which one it is.
    return {
        "sequence": Head(build(0, dropout), linear("classifier", "heads.sequence.linear"), has_labels=True, **pooled),
        "token": Head(build(0, token_dropout), linear("classifier", "heads.token.linear"), has_labels=True),
        "choice": Head(build(1, dropout), linear("classifier", "heads.choice.linear"), **pooled),
    }


def architectures(
    classes: str, heads: Mapping[str, Head], others: Mapping[str, set[str]] = MappingProxyType({})
) -> tuple[tuple[str, frozenset[str]], ...]:
    """The classes of a family whose names begin with `classes`; `others` are those that not every family has."""
    usual = {"SequenceClassification": "sequence", "TokenClassification": "token"}
    usual |= {"QuestionAnswering": "span", "MultipleChoice": "choice"}
    has_pooler = "pooler" in heads and heads["pooler"].in_body
    return (
        *((f"{classes}For{ending}", frozenset({head, *heads[head].needs})) for ending, head in usual.items()),
        *((f"{classes}For{ending}", frozenset(names)) for ending, names in others.items()),
        (f"{classes}ForMaskedLM", frozenset({"masked"})),
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
        if "dropout" in key and value is not None and not is_probability:
            raise unsupported(key, value, "expected a probability from 0 up to 1")


def unsupported(key: str, value: object, expected: str) -> BothwaysError:
    """The error about a setting of config.json."""
    return BothwaysError(f"config.json has {key} = {value!r}: {expected}", "unsupported-setting", (key, value))


def take(raw: Mapping[str, Any], keys: Mapping[str, str], may_miss: Collection[str] = ()) -> dict[str, Any]:
    """Their settings under our names."""
    missing = [key for key in keys if key not in raw and key not in may_miss]
    if missing:
        raise BothwaysError(f"config.json has no {', '.join(missing)}", "missing-setting", tuple(missing))
    return {ours: raw[theirs] for theirs, ours in keys.items() if theirs in raw}


def give(config: EncoderConfig, keys: Mapping[str, str]) -> dict[str, Any]:
    """Our settings under their names: the inverse of `take`."""
    return {theirs: getattr(config, ours) for theirs, ours in keys.items()}


def plain(config: EncoderConfig) -> EncoderConfig:
    """The same config, for families whose embeddings are as wide as their layers."""
    if config.embedding_width:
        raise BothwaysError(
            f"model.embedding is {config.embedding_width}, and only albert, electra, deberta and deberta-v2 can have "
            f"narrower embeddings: leave it out",
            "unsupported-setting",
            ("model.embedding", config.embedding_width),
        )
    return config


def dropout_of(config: ModelConfig, key: str = "classifier_dropout") -> float:
    """The dropout probability of a head: its own setting, or that of the encoder."""
    own = config.hf_config.get(key)
    return own if isinstance(own, int | float) else config.encoder.dropout
