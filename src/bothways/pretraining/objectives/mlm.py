"""Masked language modelling: some tokens are masked, and the model predicts the original ones.

BERT chooses 15 % of the tokens. Of these 80 % are replaced by [MASK], 10 % by a random token and 10 % stay as they
are. Single tokens, whole words or spans are chosen (`select`); a span is replaced as a whole (SpanBERT), the pieces of
a word each by itself (BERT's whole-word masking).

A left-to-right model predicts every next token instead, and nothing is masked: the baseline of BERT's ablation.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn
from torch.nn import functional as F

from bothways.errors import BothwaysError, require_choice
from bothways.hash_rng import below, mix, uniform
from bothways.model.batch import Batch
from bothways.model.config import EncoderConfig
from bothways.model.encoder import Activations
from bothways.model.model import Model
from bothways.pretraining.objective import Draft, LossTerm, MaskingVocabulary, Objective, Recipe, Room, Target, Terms
from bothways.pretraining.sampler import RawSequences
from bothways.pretraining.select import Unit, geometric, select
from bothways.pretraining.shards import Numbers
from bothways.text.tokenizer import Tokenizer

_FATE, _WORD = range(300, 302)
NOTHING = -100
"""The target of a filler: no loss reads it."""


@dataclass(frozen=True)
class MaskedLMSettings:
    """The `[mlm]` part of a recipe; the defaults are BERT's."""

    rate: float = 0.15
    """Masking rate: the share of the ordinary tokens that are predicted."""
    select: Unit = "token"
    """Mask single tokens, whole words or spans."""
    mask: float = 0.8
    """Share of the chosen tokens that become [MASK]."""
    random: float = 0.1
    """Share of the chosen tokens that become a random token. The rest stays."""
    static: int = 0
    """0: new masks in every epoch. n: the text has n sets of masks that take turns (BERT's duplication factor, 10)."""
    span_mean: float = 5.0
    """Spans have a geometric number of words with p = 1 / span_mean …"""
    span_longest: int = 10
    """… and never more than this …"""
    span_shares: tuple[float, ...] = ()
    """… unless these say how often one has 1, 2, 3 … words, as [6, 3, 2] (ALBERT)."""

    def __post_init__(self) -> None:
        require_choice("mlm.select", self.select, ("token", "word", "span"))
        if not 0 < self.rate < 1:
            raise BothwaysError(f"mlm.rate is between 0 and 1, not {self.rate}", "out-of-range", self.rate)
        if self.mask < 0 or self.random < 0 or self.mask + self.random > 1:
            given = (self.mask, self.random)
            raise BothwaysError(
                f"mlm.mask and mlm.random are shares that add up to at most 1, not {self.mask} and {self.random}",
                "out-of-range",
                given,
            )
        if self.static < 0 or self.span_mean <= 1 or self.span_longest < 1:
            raise BothwaysError(
                "mlm.static must be 0 or more, mlm.span_mean above 1, mlm.span_longest 1 or more", "out-of-range"
            )
        if self.span_shares and (min(self.span_shares) < 0 or not 0 < sum(self.span_shares) < math.inf):
            raise BothwaysError(
                f"mlm.span_shares are numbers of 0 or more, one above 0: not {list(self.span_shares)}",
                "out-of-range",
                self.span_shares,
            )


class MaskedLM(Objective):
    """`mlm`."""

    name = "mlm"
    Settings = MaskedLMSettings
    stands_alone = True
    requires = ()
    heads: tuple[str, ...] = ("masked",)

    def __init__(self, settings: MaskedLMSettings, words: MaskingVocabulary | None, causal: bool = False) -> None:
        if words is None and not causal:
            raise BothwaysError(
                "this tokenizer has no mask token, which masked language modelling needs", "no-mask-token"
            )
        self.settings, self.words, self.causal = settings, words, causal
        self.static = settings.static

    @classmethod
    def make(cls, recipe: Recipe, tokenizer: Tokenizer, others: Mapping[str, Objective]) -> "MaskedLM":
        return cls(recipe.settings[cls.name], MaskingVocabulary.of(tokenizer), recipe.model.causal)

    def prepare(self, draft: Draft, room: Room, rate: float | None, asked: Numbers | None = None) -> None:
        rate = rate or self.settings.rate
        if self.causal:
            asked = np.flatnonzero(draft.rows.positions > 0)
            self._add(draft, asked - 1, draft.rows.ids[asked], room.tokens)
            return
        if asked is None:
            shares = self.settings.span_shares or geometric(self.settings.span_mean, self.settings.span_longest)
            draft.selection = chosen = select(draft.rows, self.settings.select, rate, shares)
            asked = chosen.asked
            whole = chosen.start[chosen.unit] if self.settings.select == "span" else asked
            read = self._corrupted(draft.rows, asked, whole)
        else:
            assert self.words is not None
            read = np.full(len(asked), self.words.mask)
        draft.ids = draft.ids.copy()
        draft.ids[asked] = read
        self._add(draft, asked, draft.rows.ids[asked], self.most_asked(room, rate))

    def most_asked(self, room: Room, rate: float | None) -> int:
        rate = rate or self.settings.rate
        # Rounding up asks a short sequence for at most (1 - 3 · rate) tokens more than its share.
        by_tokens = int(rate * room.tokens + room.sequences * max(1 - 3 * rate, 0)) + 1
        return min(by_tokens, room.sequences * max(1, int(rate * (room.length - 2) + 0.5)))

    def _corrupted(self, rows: RawSequences, asked: Numbers, whole: Numbers) -> Numbers:
        """What the model reads in the asked places; `whole` is the place whose draw decides."""
        assert self.words is not None
        sequence = np.searchsorted(rows.cu_seqlens, asked, side="right") - 1
        keys, start = rows.keys[sequence], rows.cu_seqlens[sequence]
        fate = uniform(mix(keys, whole - start, _FATE))
        another = self.words.ordinary[below(mix(keys, asked - start, _WORD), len(self.words.ordinary))]
        masked, replaced = self.settings.mask, self.settings.mask + self.settings.random
        return np.where(fate < masked, self.words.mask, np.where(fate < replaced, another, rows.ids[asked]))

    def _add(self, draft: Draft, asked: Numbers, words: Numbers, most: int) -> None:
        draft.targets |= {"asked": Target(asked, most, 0), "words": Target(words, most, NOTHING)}
        draft.counts[self.name] = len(asked)

    def losses(
        self, model: Model, part: nn.Module | None, states: Tensor, seen: Activations, batch: Batch,
        targets: dict[str, Tensor],
    ) -> Terms:  # fmt: skip
        """Only the asked places go through the vocabulary."""
        return {self.name: score(model.masked(states[targets["asked"]]), targets["words"])}

    def flops(self, shape: EncoderConfig, length: int, rate: float | None) -> float:
        asked = 1.0 if self.causal else rate or self.settings.rate
        return 6 * asked * shape.table_width * (shape.width + shape.vocab_size)


def score(logits: Tensor, wanted: Tensor) -> LossTerm:
    """Cross entropy, summed, in fp32 whatever the model computes in."""
    logits = logits.float()
    loss = F.cross_entropy(logits, wanted, ignore_index=NOTHING, reduction="sum")
    return LossTerm(loss, logits.detach(), wanted)
