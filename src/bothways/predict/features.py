"""What `encode` makes a vector of: the layers of hidden states, and for a text its prompt, pooling and modules.

N tokens in a batch · W width of the result.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from bothways.errors import BothwaysError, require_choice
from bothways.model import arrays
from bothways.model.arrays import Array
from bothways.model.config import EncoderConfig
from bothways.model.facts import ModelFacts
from bothways.model.pooling import Pooling
from bothways.model.sentence_files import Prompts
from bothways.predict.encode_options import Combine, Long, Pool

STATIC = "static"
NAMED_LAYERS = {"last": (-1,), "second-to-last": (-2,), "last-four": (-4, -3, -2, -1)}


@dataclass(frozen=True)
class Features:
    """Which hidden states make a vector, and how long texts are handled. The defaults suit most uses."""

    layers: str | int | Sequence[int] = "last"
    """"last", "second-to-last", "last-four", "all", or a number or several: 0 is the embeddings, -1 the last layer.
    "static": rows of the token embedding table, without context."""
    combine: Combine = "concat"
    """How to combine several layers into one vector."""
    weights: Sequence[float] | None = None
    """One weight for each layer: the vector is their weighted sum, and `combine` is ignored."""
    long: Long = "error"
    """Texts longer than the model's maximum length: raise an error, cut them, or read them in overlapping windows."""

    def __post_init__(self) -> None:
        require_choice("`combine`", self.combine, get_args(Combine))
        require_choice("`long`", self.long, get_args(Long))
        if self.weights is not None and not all(math.isfinite(weight) for weight in self.weights):
            raise BothwaysError(
                f"`weights` must be finite numbers, not {list(self.weights)}", "not-finite", list(self.weights)
            )

    def numbers(self, depth: int) -> list[int]:
        """The layers as numbers from 0 to `depth`."""
        if self.layers == STATIC:
            return []
        if isinstance(self.layers, str):
            wanted: Sequence[int] = self._parsed(depth)
        else:
            wanted = [self.layers] if isinstance(self.layers, int) else self.layers
        if not len(wanted):
            raise BothwaysError("`layers` names no layer: expected at least one", "no-such-layer")
        for n in wanted:
            if not -depth - 1 <= n <= depth:
                raise BothwaysError(
                    f"there is no layer {n}: this model has 0 (the embeddings) to {depth}, or -1 to {-depth - 1}",
                    "no-such-layer",
                    n,
                )
        if self.weights is not None and len(self.weights) != len(wanted):
            raise BothwaysError(
                f"`weights` has {len(self.weights)} numbers for {len(wanted)} layers: expected one for each",
                "length-mismatch",
                (len(self.weights), len(wanted)),
            )
        return [n % (depth + 1) for n in wanted]

    def width(self, shape: EncoderConfig) -> int:
        """W, the width of the vectors."""
        if self.layers == STATIC:
            return shape.table_width
        layers = self.numbers(shape.layers)
        return shape.width * (len(layers) if self.combine == "concat" and self.weights is None else 1)

    def _parsed(self, depth: int) -> Sequence[int]:
        assert isinstance(self.layers, str)
        if self.layers == "all":
            return range(depth + 1)
        if self.layers in NAMED_LAYERS:
            return NAMED_LAYERS[self.layers]
        try:
            return [int(n) for n in self.layers.split(",")]
        except ValueError:
            known = ", ".join([*NAMED_LAYERS, "all", STATIC])
            raise BothwaysError(
                f"`layers` cannot be {self.layers!r}: expected {known}, or numbers such as 0,-1",
                "unknown-choice",
                self.layers,
            ) from None

    def combined(self, states: Sequence[Array]) -> Array:
        """Hidden states of the chosen layers, (N, width) each → (N, W)."""
        if self.weights is not None:
            return arrays.stacked([state * weight for state, weight in zip(states, self.weights, strict=True)]).sum(1)
        if self.combine == "concat":
            return arrays.joined(states)
        return arrays.stacked(states).sum(1) if self.combine == "sum" else arrays.stacked(states).mean(1)


@dataclass(frozen=True)
class TextRecipe:
    """How texts become vectors: what is put before them, which of their tokens count, and what is made of these."""

    features: Features
    pooling: Pooling
    sentence: Any = None
    """The modules after the pooling, those of a folder of sentence-transformers."""
    prompt: str = ""
    skipped: int = 0
    """Tokens at the start that are not pooled: those of a prompt, if the folder says so."""
    max_length: int = 0
    """Tokens of the longest text; 0: the model's maximum length."""
    is_own: bool = False
    """Whether it is that of the model's folder, which an exported graph computes to the end."""

    def width(self, shape: EncoderConfig) -> int:
        """The width of the vectors."""
        if self.sentence is not None:
            return int(self.sentence.width(shape.width))
        return self.features.width(shape) * len(self.pooling.modes)

    def finish(self, pooled: Array) -> Array:
        """The vectors of pooled texts, on the same device."""
        return pooled if self.sentence is None else arrays.to_fp32(self.sentence.from_pooled(pooled))


def warn_of_prompts(recipe: "TextRecipe", prompt: str | None, prompt_name: str | None) -> None:
    """Warn if the model's folder has a prompt for queries, and the call says nothing about prompts."""
    if recipe.sentence is None or prompt is not None or prompt_name is not None or recipe.prompt:
        return
    if recipe.sentence.prompts.get("query"):
        names = ", ".join(name for name, text in recipe.sentence.prompts.items() if text)
        warnings.warn(
            f"this model was trained with prompts ({names}), and none is used: set `prompt_name` to one of them, or "
            "`prompt` to an empty text",
            stacklevel=3,
        )


def text_recipe(
    model: ModelFacts,
    features: Features,
    pool: Pool | Sequence[Pool] | None = None,
    prompt: str | None = None,
    prompt_name: str | None = None,
) -> TextRecipe:
    """The recipe of a call to `encode`: that of the model's folder, or plain features if the call asks for them."""
    if pool is None and model.sentence_error is not None:
        raise model.sentence_error
    if prompt is not None and prompt_name is not None:
        raise BothwaysError(
            f"`prompt` is {prompt!r} and `prompt_name` is {prompt_name!r}: give one of them",
            "bad-combination",
            (prompt, prompt_name),
        )
    sentence = model.sentence
    is_whole = sentence is not None and pool is None and replace(features, long="error") == Features()
    if prompt is None and (is_whole or prompt_name is not None):
        prompt = (Prompts() if sentence is None else sentence).prompt(prompt_name)
    skipped = 0
    if prompt and sentence is not None and not sentence.include_prompt:
        tokenizer = model.require_tokenizer()
        ids = tokenizer(prompt).ids
        skipped = len(ids) - (ids[-1] in tokenizer.special_ids)
    pooling = sentence.pooling if sentence is not None else Pooling()
    if pool is not None:
        pooling = Pooling((pool,) if isinstance(pool, str) else tuple(pool))
    limit = sentence.max_length if sentence is not None and sentence.max_length else model.config.encoder.max_length
    return TextRecipe(
        features,
        pooling,
        sentence if is_whole else None,
        prompt or "",
        skipped,
        min(limit, model.config.encoder.max_length),
        is_own=pool is None and not skipped and replace(features, long="error") == Features(),
    )
