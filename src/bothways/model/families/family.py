"""What a family declares: a config map and a key table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from bothways.model.config import EncoderConfig, ModelConfig


@dataclass(frozen=True)
class Row:
    """One parameter of ours and where it is in their files. `{}` stands for the layer number.

    Several names on their side are stacked in this order along the first dimension.
    """

    theirs: str | tuple[str, ...]
    ours: str

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.theirs,) if isinstance(self.theirs, str) else self.theirs


@dataclass(frozen=True)
class Head:
    """A head: how it is built, where its tensors are, and what it reads."""

    build: Callable[[ModelConfig], nn.Module]
    rows: tuple[Row, ...]
    reads_summary: bool = False
    """True if it reads one vector for each sequence (pooled [CLS]), False if one for each token."""
    has_labels: bool = False
    """True if it has one output for each label."""
    needs: tuple[str, ...] = ()
    """Other heads that must be there for this one to work."""
    in_body: bool = False
    """True if their tensor names carry the body's prefix."""


@dataclass(frozen=True)
class Family:
    """All that is particular to one `model_type`."""

    name: str
    prefix: str
    """What stands before the body's tensor names when a head is saved with it, as in `bert.`"""
    read_config: Callable[[Mapping[str, Any]], EncoderConfig]
    write_config: Callable[[EncoderConfig], dict[str, Any]]
    body: tuple[Row, ...]
    heads: Mapping[str, Head]
    architectures: tuple[tuple[str, frozenset[str]], ...]
    """Their class names and the heads each has, first match first when we write."""
    ignored: tuple[str, ...] = ()
    """Tensors that hold nothing learned."""
    tied: Mapping[str, str] = field(default_factory=dict)
    """Tensors that repeat another one of theirs: they must be equal to it, and are not written."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Endings of old tensor names and what they are called now."""
