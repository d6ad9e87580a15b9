"""What a family declares: a config map and a key table."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

from bothways.errors import BothwaysError
from bothways.model.config import EncoderConfig, ModelConfig

Reads = Literal["tokens", "tokens + first", "first", "mean", "pooled"]
"""What a head reads: every token, or with its sequence's first added; or of each sequence the first token, the mean of
all, or the pooler's output."""


@dataclass(frozen=True)
class KeyRow:
    """One parameter of ours and where it is in their files. `{}` stands for the block's number.

    Several names on their side are stacked in this order along the first dimension. A row whose parameter a model does
    not have, such as a bias, is not used.
    """

    theirs: str | tuple[str, ...]
    ours: str
    by_head: int = 1
    """So many parts are stacked in one tensor of theirs, for each attention head by itself (DeBERTa v1)."""

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.theirs,) if isinstance(self.theirs, str) else self.theirs


@dataclass(frozen=True)
class Head:
    """A head: how it is built, where its tensors are, and what it reads."""

    build: Callable[[ModelConfig], nn.Module]
    rows: tuple[KeyRow, ...]
    reads: Reads | Callable[[ModelConfig], Reads] = "tokens"
    has_labels: bool = False
    """True if it has one output for each label."""
    labels: tuple[str, ...] = ()
    """What config.json calls its outputs, where these are always the same."""
    needs: tuple[str, ...] = ()
    """Other heads that must be there for this one to work."""
    in_body: bool = False
    """True if their tensor names carry the body's prefix."""

    def reads_in(self, config: ModelConfig) -> Reads:
        return self.reads if isinstance(self.reads, str) else self.reads(config)


@dataclass(frozen=True)
class Family:
    """All that is particular to one `model_type`."""

    name: str
    prefix: str
    """What stands before the body's tensor names when a head is saved with it, as in `bert.`"""
    read_config: Callable[[Mapping[str, Any]], EncoderConfig]
    write_config: Callable[[EncoderConfig], dict[str, Any]]
    body: tuple[KeyRow, ...]
    heads: Mapping[str, Head]
    fresh: Callable[[EncoderConfig], EncoderConfig]
    """A new model of this family, of the size that a plain BERT's config says."""
    architectures: tuple[tuple[str, frozenset[str]], ...]
    """Their class names and the heads each has, first match first when we write."""
    ignored: tuple[str, ...] = ()
    """Tensors that hold nothing learned."""
    tied: Mapping[str, str] = field(default_factory=dict)
    """Tensors that repeat another one of theirs: they must be equal to it, and are not written."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Endings of old tensor names and what they are called now."""


# ---------------------------------------------------------------------- what tables are written with


def linear(theirs: str, ours: str) -> tuple[KeyRow, KeyRow]:
    """A weight and a bias."""
    return KeyRow(f"{theirs}.weight", f"{ours}.weight"), KeyRow(f"{theirs}.bias", f"{ours}.bias")


def stacked(theirs: str, names: tuple[str, ...], ours: str) -> tuple[KeyRow, KeyRow]:
    """Several layers of theirs that are one of ours."""
    weights, biases = ([f"{theirs}.{name}.{kind}" for name in names] for kind in ("weight", "bias"))
    return KeyRow(tuple(weights), f"{ours}.weight"), KeyRow(tuple(biases), f"{ours}.bias")


def refuse_other(raw: Mapping[str, Any], fixed: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse settings that change what a model computes, unless they have a value that we compute; and wrong rates."""
    for key, allowed in fixed.items():
        if key in raw and raw[key] is not None and raw[key] not in allowed:
            raise BothwaysError(f"config.json has {key} = {raw[key]!r}, and only {allowed[0]!r} can be read here")
    for key, value in raw.items():
        is_rate = isinstance(value, int | float) and 0 <= value < 1
        if "dropout" in key and value is not None and not is_rate:
            raise BothwaysError(f"config.json has {key} = {value!r}, and a number from 0 up to 1 was expected")


def take(raw: Mapping[str, Any], keys: Mapping[str, str], may_miss: Collection[str] = ()) -> dict[str, Any]:
    """Their settings under our names."""
    missing = [key for key in keys if key not in raw and key not in may_miss]
    if missing:
        raise BothwaysError(f"config.json has no {', '.join(missing)}")
    return {ours: raw[theirs] for theirs, ours in keys.items() if theirs in raw}


def give(config: EncoderConfig, keys: Mapping[str, str]) -> dict[str, Any]:
    """Our settings under their names: `take` the other way."""
    return {theirs: getattr(config, ours) for theirs, ours in keys.items()}


def plain(config: EncoderConfig) -> EncoderConfig:
    """A new model of this shape, whose token table is as wide as its layers."""
    if config.embedding_width:
        raise BothwaysError("model.embedding is for families with a narrower token table: albert, electra, deberta")
    return config


def dropout_of(config: ModelConfig, key: str = "classifier_dropout") -> float:
    """A head's own dropout, or that of the encoder."""
    own = config.hf_config.get(key)
    return own if isinstance(own, int | float) else config.encoder.dropout
