"""Masked language modelling: some tokens are masked, and the model predicts the original ones.

BERT chooses 15 % of the tokens. Of these 80 % are replaced by [MASK], 10 % by a random token and 10 % stay as they
are. Single tokens, whole words or spans are chosen (`select`); a span is replaced as a whole (SpanBERT), the pieces of
a word each by itself (BERT's whole-word masking).

A left-to-right model predicts every next token instead, and nothing is masked: the baseline of BERT's ablation.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from torch import Tensor, nn
from torch.nn import functional as F

from bothways.errors import BothwaysError, require_choice, require_range
from bothways.hash_rng import below, mix, uniform
from bothways.model.batch import Batch
from bothways.model.config import EncoderConfig
from bothways.model.encoder import Activations
from bothways.model.model import Model
from bothways.pretraining.objective import (
    BatchBuilder,
    Capacity,
    LossTerm,
    MaskingVocabulary,
    Objective,
    Recipe,
    Target,
    Terms,
)
from bothways.pretraining.sampler import RawSequences
from bothways.pretraining.select import Unit, geometric, select
from bothways.pretraining.shards import Numbers
from bothways.ranges import Bounded, Count, NotNegative, Range, Size
from bothways.text.tokenizer import Tokenizer

_CHOICE, _RANDOM = range(300, 302)
IGNORE_INDEX = -100
"""The label of padding, which no loss counts, as in torch's cross_entropy."""


@dataclass(frozen=True)
class MaskedLMSettings(Bounded):
    """The `[mlm]` part of a recipe; the defaults are BERT's."""

    section = "mlm"

    rate: Annotated[float, Range(0, 1, above=True, below=True)] = 0.15
    """Masking rate: the share of the ordinary tokens that are predicted."""
    select: Unit = "token"
    """Mask single tokens, whole words or spans."""
    mask: float = 0.8
    """Share of the selected tokens that become [MASK]."""
    random: float = 0.1
    """Share of the selected tokens that become a random token. The rest stays."""
    static: Count = 0
    """0: new masks in every epoch. n: n sets of masks take turns (BERT's dupe_factor, 10)."""
    span_mean: Annotated[float, Range(1, above=True)] = 5.0
    """Spans: the number of words is geometric with p = 1 / span_mean."""
    span_longest: Size = 10
    """Spans: the largest number of words."""
    span_shares: tuple[NotNegative, ...] = ()
    """Spans: relative frequencies of 1, 2, 3 words and so on, as [6, 3, 2] (ALBERT), instead of the geometric ones."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("mlm.select", self.select, ("token", "word", "span"))
        shares = (self.mask, self.random)
        require_range(
            "(mlm.mask, mlm.random)", shares, min(shares) >= 0 and sum(shares) <= 1, "shares of at most 1 in sum"
        )
        are_shares = 0 < sum(self.span_shares or (1,)) < math.inf
        require_range("mlm.span_shares", self.span_shares, are_shares, "0 or more, and one of them above 0")


class MaskedLM(Objective):
    """`mlm`."""

    name = "mlm"
    Settings = MaskedLMSettings
    stands_alone = True
    heads: tuple[str, ...] = ("masked",)

    def __init__(self, settings: MaskedLMSettings, vocabulary: MaskingVocabulary | None, causal: bool = False) -> None:
        if vocabulary is None and not causal:
            raise BothwaysError(
                "this tokenizer has no mask token, which masked language modelling needs", "no-mask-token"
            )
        self.settings, self.vocabulary, self.causal = settings, vocabulary, causal
        self.static = settings.static

    @classmethod
    def make(cls, recipe: Recipe, tokenizer: Tokenizer, others: Mapping[str, Objective]) -> "MaskedLM":
        return cls(recipe.settings[cls.name], MaskingVocabulary.of(tokenizer), recipe.model.causal)

    def prepare(
        self, builder: BatchBuilder, capacity: Capacity, rate: float | None, predicted: Numbers | None = None
    ) -> None:
        rate = rate or self.settings.rate
        if self.causal:
            predicted = np.flatnonzero(builder.rows.positions > 0)
            self._add(builder, predicted - 1, builder.rows.ids[predicted], capacity.tokens)
            return
        if predicted is None:
            shares = self.settings.span_shares or geometric(self.settings.span_mean, self.settings.span_longest)
            builder.selection = chosen = select(builder.rows, self.settings.select, rate, shares)
            predicted = chosen.tokens
            deciding = chosen.start[chosen.unit] if self.settings.select == "span" else predicted
            read = self._corrupted(builder.rows, predicted, deciding)
        else:
            assert self.vocabulary is not None
            read = np.full(len(predicted), self.vocabulary.mask)
        builder.ids = builder.ids.copy()
        builder.ids[predicted] = read
        self._add(builder, predicted, builder.rows.ids[predicted], self.max_predictions(capacity, rate))

    def max_predictions(self, capacity: Capacity, rate: float | None) -> int:
        rate = rate or self.settings.rate
        # Rounding up selects at most (1 - 3 · rate) tokens of a short sequence beyond its share.
        by_tokens = int(rate * capacity.tokens + capacity.sequences * max(1 - 3 * rate, 0)) + 1
        return min(by_tokens, capacity.sequences * max(1, int(rate * (capacity.length - 2) + 0.5)))

    def _corrupted(self, rows: RawSequences, predicted: Numbers, deciding: Numbers) -> Numbers:
        """What the model reads at the predicted tokens. `deciding`: the tokens whose random draws decide."""
        assert self.vocabulary is not None
        sequence = np.searchsorted(rows.cu_seqlens, predicted, side="right") - 1
        keys, start = rows.keys[sequence], rows.cu_seqlens[sequence]
        draw = uniform(mix(keys, deciding - start, _CHOICE))
        random = self.vocabulary.ordinary[below(mix(keys, predicted - start, _RANDOM), len(self.vocabulary.ordinary))]
        masked, replaced = self.settings.mask, self.settings.mask + self.settings.random
        return np.where(draw < masked, self.vocabulary.mask, np.where(draw < replaced, random, rows.ids[predicted]))

    def _add(self, builder: BatchBuilder, predicted: Numbers, labels: Numbers, most: int) -> None:
        builder.targets |= {"predicted": Target(predicted, most, 0), "labels": Target(labels, most, IGNORE_INDEX)}
        builder.counts[self.name] = len(predicted)

    def losses(
        self, model: Model, part: nn.Module | None, states: Tensor, seen: Activations, batch: Batch,
        targets: dict[str, Tensor],
    ) -> Terms:  # fmt: skip
        """Logits are computed for the predicted tokens only."""
        return {self.name: cross_entropy(model.masked(states[targets["predicted"]]), targets["labels"])}

    def flops(self, shape: EncoderConfig, length: int, rate: float | None) -> float:
        predicted = 1.0 if self.causal else rate or self.settings.rate
        return 6 * predicted * shape.table_width * (shape.width + shape.vocab_size)


def cross_entropy(logits: Tensor, labels: Tensor) -> LossTerm:
    """The summed cross entropy, always in fp32."""
    logits = logits.float()
    loss = F.cross_entropy(logits, labels, ignore_index=IGNORE_INDEX, reduction="sum")
    return LossTerm(loss, logits.detach(), labels)
