"""What tokenizing and decoding need to know of a model: a `Model` with weights, or an `ExportedModel`."""

from dataclasses import dataclass
from typing import Any, Protocol

from bothways.errors import BothwaysError
from bothways.model.config import ModelConfig
from bothways.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Host:
    """The CPU, as torch names its devices."""

    type: str = "cpu"

    def __str__(self) -> str:
        return self.type


class ModelFacts(Protocol):
    """The config and the tokenizer of a model, and how its folder makes vectors."""

    config: ModelConfig
    tokenizer: Tokenizer | None
    sentence_error: BothwaysError | None

    @property
    def heads(self) -> Any:
        """Its heads, whose names can be looked up."""

    @property
    def sentence(self) -> Any:
        """How the vector of a text is made, if the folder says so."""

    @property
    def device(self) -> Any:
        """Where it is: a device of torch, or `Host`."""

    def require_tokenizer(self) -> Tokenizer: ...


def the_tokenizer(model: ModelFacts) -> Tokenizer:
    """The tokenizer of a model, or an error if there is none."""
    if model.tokenizer is None:
        raise BothwaysError(
            "this model has no tokenizer: put its tokenizer.json or vocab.txt into the folder", "no-tokenizer"
        )
    return model.tokenizer
