"""Masked language modelling: some tokens are hidden, and the model is asked which stood there.

BERT asks for 15 % of the tokens. Of these 80 % are replaced by [MASK], 10 % by a random token and 10 % stay as they
are. Single tokens, whole words or spans are chosen (`select`); a span shares one fate (SpanBERT), the pieces of a
word have each their own (BERT's whole-word masking).

A left-to-right model is asked for every next token instead, and nothing is hidden: the baseline of BERT's ablation.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import Tensor, nn
from torch.nn import functional as F

from bothways.draws import below, mix, uniform
from bothways.errors import BothwaysError, require_choice
from bothways.model.batch import Batch
from bothways.model.model import Model
from bothways.pretraining.objective import Draft, Room, Score, Target, Words
from bothways.pretraining.rows import Rows
from bothways.pretraining.select import Unit, geometric, select
from bothways.pretraining.shards import Numbers

_FATE, _WORD = range(300, 302)
NOTHING = -100
"""The target of a filler: no loss reads it."""


@dataclass(frozen=True)
class MaskedSettings:
    """The `[mlm]` part of a recipe; the defaults are BERT's."""

    rate: float = 0.15
    """Share of the ordinary tokens that are asked for."""
    select: Unit = "token"
    mask: float = 0.8
    """Share of the asked tokens that become [MASK]."""
    random: float = 0.1
    """Share of the asked tokens that become another token. The rest stays."""
    static: int = 0
    """0: new masks in every epoch. n: the text has n sets of masks that take turns (BERT's duplication factor, 10)."""
    span_mean: float = 5.0
    """Spans have a geometric number of words with p = 1 / span_mean …"""
    span_longest: int = 10
    """… and never more than this …"""
    span_shares: tuple[float, ...] = ()
    """… unless these say how often one has 1, 2, 3 … words, as [6, 3, 2] (ALBERT)."""
    decoder: Literal["plain", "enhanced"] = "plain"
    """enhanced: the last layer is told where tokens stand, and runs twice (DeBERTa). The folder then fills blanks less
    well than the run did: those who read it have no such layer."""

    def __post_init__(self) -> None:
        require_choice("mlm.select", self.select, ("token", "word", "span"))
        require_choice("mlm.decoder", self.decoder, ("plain", "enhanced"))
        if not 0 < self.rate < 1:
            raise BothwaysError(f"mlm.rate must lie between 0 and 1, not {self.rate}")
        if self.mask < 0 or self.random < 0 or self.mask + self.random > 1:
            raise BothwaysError(f"mlm.mask and mlm.random are shares of one whole, not {self.mask} and {self.random}")
        if self.static < 0 or self.span_mean <= 1 or self.span_longest < 1:
            raise BothwaysError("mlm.static must be 0 or more, mlm.span_mean above 1, mlm.span_longest 1 or more")
        if self.span_shares and (min(self.span_shares) < 0 or not 0 < sum(self.span_shares) < math.inf):
            raise BothwaysError(f"mlm.span_shares are numbers of 0 or more, one above 0: not {list(self.span_shares)}")


class MaskedWords:
    """`mlm`."""

    heads: tuple[str, ...] = ("masked",)

    def __init__(self, settings: MaskedSettings, words: Words | None, causal: bool = False) -> None:
        if words is None and not causal:
            raise BothwaysError("this tokenizer has no mask token, which masked language modelling needs")
        self.settings, self.words, self.causal = settings, words, causal

    def parts(self, model: Model) -> nn.Embedding | None:
        """For the enhanced decoder, a row for each place."""
        shape = model.config.encoder
        return nn.Embedding(shape.limit, shape.width) if self.settings.decoder == "enhanced" else None

    def prepare(self, draft: Draft, room: Room, rate: float | None) -> None:
        """`rate` is the phase's own, if it has one."""
        if self.causal:
            asked = np.flatnonzero(draft.rows.positions > 0)
            self._add(draft, asked - 1, draft.rows.ids[asked], room.tokens)
            return
        rate = rate or self.settings.rate
        shares = self.settings.span_shares or geometric(self.settings.span_mean, self.settings.span_longest)
        draft.selection = select(draft.rows, self.settings.select, rate, shares)
        chosen, asked = draft.selection, draft.selection.asked
        whole = chosen.start[chosen.unit] if self.settings.select == "span" else asked
        draft.ids = draft.ids.copy()
        draft.ids[asked] = self._fate(draft.rows, asked, whole)
        self._add(draft, asked, draft.rows.ids[asked], self.most(room, rate))

    def mask(self, draft: Draft, asked: Numbers, room: Room, rate: float | None) -> None:
        """Hide just these tokens behind [MASK], and ask for them."""
        assert self.words is not None
        draft.ids = draft.ids.copy()
        draft.ids[asked] = self.words.mask
        self._add(draft, asked, draft.rows.ids[asked], self.most(room, rate))

    def most(self, room: Room, rate: float | None) -> int:
        """How many tokens one batch can be asked for."""
        rate = rate or self.settings.rate
        # Rounding up asks a short sequence for at most (1 - 3 · rate) tokens more than its share.
        by_tokens = int(rate * room.tokens + room.sequences * max(1 - 3 * rate, 0)) + 1
        return min(by_tokens, room.sequences * max(1, int(rate * (room.length - 2) + 0.5)))

    def _fate(self, rows: Rows, asked: Numbers, whole: Numbers) -> Numbers:
        """What the model reads in the asked places; `whole` is the place whose draw decides."""
        assert self.words is not None
        sequence = np.searchsorted(rows.cu, asked, side="right") - 1
        keys, start = rows.keys[sequence], rows.cu[sequence]
        fate = uniform(mix(keys, whole - start, _FATE))
        another = self.words.ordinary[below(mix(keys, asked - start, _WORD), len(self.words.ordinary))]
        masked, replaced = self.settings.mask, self.settings.mask + self.settings.random
        return np.where(fate < masked, self.words.mask, np.where(fate < replaced, another, rows.ids[asked]))

    def _add(self, draft: Draft, asked: Numbers, words: Numbers, most: int) -> None:
        draft.targets |= {"asked": Target(asked, most, 0), "words": Target(words, most, NOTHING)}
        draft.counts["mlm"] = len(asked)

    def losses(
        self, model: Model, parts: nn.Module | None, states: Tensor, batch: Batch, targets: dict[str, Tensor]
    ) -> dict[str, Score]:
        """Only the asked places go through the vocabulary."""
        return {"mlm": score(model.masked(states[targets["asked"]]), targets["words"])}


def score(logits: Tensor, wanted: Tensor) -> Score:
    """Cross entropy, summed, in fp32 whatever the model computes in."""
    logits = logits.float()
    loss = F.cross_entropy(logits, wanted, ignore_index=NOTHING, reduction="sum")
    return Score(loss, logits.detach(), wanted)
