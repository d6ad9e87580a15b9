"""Replaced token detection: a small generator fills the blanks, and the model says of every token whether it is new.

ELECTRA (Clark et al. 2020). The generator learns as BERT does, by the loss `mlm`; its guesses are drawn from all that
it thinks possible, and no gradient goes back through the draw. A guess that happens to be right counts as original.

A detector never sees [MASK], and so it fills no blanks. `masked` leaves some to it, and it learns to name them by a
loss of its own, `fill`.

N tokens · M asked for · V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from bothways.draws import mix, uniform
from bothways.errors import BothwaysError, require_choice
from bothways.model.batch import Batch
from bothways.model.checkpoint import load
from bothways.model.config import EncoderConfig
from bothways.model.dropout import hashed_uniform
from bothways.model.families import FAMILIES
from bothways.model.model import Model
from bothways.pretraining.objective import Draft, Room, Score, Target
from bothways.pretraining.objectives.mlm import NOTHING, score

NEW = "new"
_HIDE = 400
_STILL = 1_000_003  # the seed of the draws in evaluation: the same at every step


@dataclass(frozen=True)
class ReplacedSettings:
    """The `[rtd]` part of a recipe; the defaults are ELECTRA-Small's."""

    weight: float = 50.0
    """Of the detector's loss beside the generator's: λ."""
    width: float = 0.25
    """The generator's width, its feed-forward's and its number of heads, as shares of the model's …"""
    layers: float = 1.0
    """… and its depth."""
    temperature: float = 1.0
    """Guesses are drawn from softmax(logits / temperature)."""
    embeddings: Literal["shared", "own", "apart"] = "shared"
    """Whether the two have one token table, which both losses train (ELECTRA), or each its own; or one that the
    generator trains, to which the model adds what it learns itself (DeBERTa v3's gradient-disentangled sharing)."""
    generator: str = ""
    """The folder of one to go on from; unless said, that beside model.init, if there is one. "new": none."""
    masked: float = 0.0
    """Of the tokens that the generator is asked for, the share that the model is asked for too: they stay hidden, and
    are not judged. The model's folder then fills blanks itself."""
    masked_by: Literal["token", "sequence"] = "token"
    """Whether they stand among guesses, some in every sequence; or are all those of some sequences, which are not
    judged and have no guess in them."""
    fill: float = 1.0
    """The weight of that loss."""

    @property
    def weights(self) -> dict[str, float]:
        """Of the model's own losses, by name."""
        return {"rtd": self.weight} | ({"fill": self.fill} if self.masked else {})

    @property
    def begins_with(self) -> str:
        return "" if self.generator == NEW else self.generator

    def __post_init__(self) -> None:
        require_choice("rtd.embeddings", self.embeddings, ("shared", "own", "apart"))
        require_choice("rtd.masked_by", self.masked_by, ("token", "sequence"))
        if not (0 < self.width <= 1 and 0 < self.layers <= 1):
            raise BothwaysError("rtd.width and rtd.layers are shares of the model's, above 0 and at most 1")
        if not (self.weight > 0 and self.temperature > 0):
            raise BothwaysError("rtd.weight and rtd.temperature must be above 0")
        if not (0 <= self.masked < 1 and self.fill > 0):
            raise BothwaysError("rtd.masked is a share, 0 or more and below 1, and rtd.fill a weight above 0")
        if self.masked and self.embeddings == "apart":
            raise BothwaysError("rtd.masked needs a token table to name tokens by: rtd.embeddings cannot be apart")


class Addition(nn.Embedding):
    """A table that is added to another, which learns nothing by it: at first, together they are `whole`."""

    def __init__(self, base: nn.Embedding, whole: nn.Embedding) -> None:
        super().__init__(base.num_embeddings, base.embedding_dim, _weight=(whole.weight - base.weight).detach())
        self._base = (base,)  # in a tuple, so that it is no part of this

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self._base[0].weight.detach()) + super().forward(ids)


class ReplacedTokens:
    """`rtd`; a phase may have another share of blanks for the model."""

    def __init__(self, settings: ReplacedSettings, masked: float | None = None) -> None:
        self.settings = settings
        self.masked = settings.masked if masked is None else masked
        self.heads: tuple[str, ...] = ("replaced", "masked") if settings.masked else ("replaced",)

    def parts(self, model: Model) -> Model:
        """The generator."""
        shape = self.generator_shape(model.config.encoder)
        if "embedding_size" not in FAMILIES[model.config.family].write_config(shape) and shape.embedding:
            raise BothwaysError(
                f"a generator of {model.config.family} must be as wide as the model, since its token table is: "
                "set rtd.width to 1"
            )
        return Model(replace(model.config, encoder=shape, heads=("masked",), labels=()), model.tokenizer)

    def generator_shape(self, shape: EncoderConfig) -> EncoderConfig:
        """Narrower and shallower; the token table keeps its width."""
        own = self.settings
        heads = max(1, round(shape.heads * own.width))
        width = max(1, round(shape.width * own.width / heads)) * heads
        layers = max(1, round(shape.layers * own.layers))
        return replace(
            shape,
            width=width,
            heads=heads,
            hidden=max(1, round(shape.hidden * own.width)),
            layers=layers,
            windows=shape.windows[:layers],
            order=shape.order[:layers],
            embedding=shape.table_width if width != shape.table_width else 0,
        )

    def begin(self, generator: Model) -> None:
        """Give it the weights of the one to go on from."""
        folder = self.settings.begins_with
        if not folder:
            return
        found = load(folder)
        if generator.tokenizer and found.require_tokenizer().fingerprint != generator.tokenizer.fingerprint:
            raise BothwaysError(
                f"{folder} has another tokenizer than the text: set rtd.generator to {NEW!r} or another"
            )
        weights, wanted = found.state_dict(), generator.state_dict()
        if {name: w.shape for name, w in weights.items()} != {name: w.shape for name, w in wanted.items()}:
            own, asked = found.config.encoder, generator.config.encoder
            raise BothwaysError(
                f"{folder} is no generator of {asked.layers} × {asked.width} but of {own.layers} × {own.width}, with "
                f"the heads {', '.join(found.heads) or 'none'}: change rtd.width and rtd.layers, or set rtd.generator "
                f"to {NEW!r} or another"
            )
        generator.load_state_dict(weights)

    def share(self, model: Model, generator: Model) -> None:
        """Give the generator the model's embeddings, as far as they fit; its projection stays its own."""
        if self.settings.embeddings == "own":
            return
        ours, theirs = model.encoder.embeddings, generator.encoder.embeddings
        if self.settings.embeddings == "apart":
            table = ours.tokens
            if not self.settings.begins_with:
                theirs.tokens = table
            ours.tokens = Addition(theirs.tokens, table)
            return
        for name in ("tokens", "segments", "positions", "norm"):
            mine, other = getattr(ours, name), getattr(theirs, name)
            if mine is not None and _shapes(mine) == _shapes(other):
                setattr(theirs, name, mine)

    def prepare(self, draft: Draft, room: Room, rate: float | None) -> None:
        """Every token is judged but the special ones and those that stay hidden, or are in a sequence that does."""
        is_judged = ~draft.rows.special
        if self.settings.masked:
            is_judged &= ~self._hide(draft, room)
        judged = np.flatnonzero(is_judged)
        draft.targets |= {
            "judged": Target(judged, room.tokens, 0),
            "counts_as_judged": Target(np.ones_like(judged), room.tokens, 0),
        }
        draft.counts["rtd"] = len(judged)

    def _hide(self, draft: Draft, room: Room) -> NDArray[np.bool_]:
        """Choose the asked tokens that stay hidden; (N,) which tokens are not judged for it."""
        rows, asked, share = draft.rows, draft.targets["asked"], self.masked
        sequence = np.searchsorted(rows.cu, asked.values, side="right") - 1
        begins = np.searchsorted(sequence, np.arange(len(rows.cu)))
        most = int(share * asked.most + 0.5 * room.sequences) + 1
        if self.settings.masked_by == "token":  # of each sequence's, as many as round to the share
            draw = mix(rows.keys[sequence], asked.values - rows.cu[sequence], _HIDE)
            order = np.lexsort((draw, sequence))
            rank = np.arange(len(order)) - begins[sequence]  # asked tokens stand in the order of the text
            is_hidden = np.zeros(len(order), bool)
            is_hidden[order] = rank < np.floor(share * np.diff(begins) + 0.5)[sequence]
            unjudged = np.zeros(len(rows.ids), bool)
            unjudged[asked.values[is_hidden]] = True
        else:
            # However they fall, their number is below this but once in a billion batches: then the last are judged.
            spread = (share * (1 - share) * room.length / room.tokens) ** 0.5
            most = min(asked.most, most + int(6 * spread * asked.most))
            chosen = uniform(mix(rows.keys, _HIDE)) < share
            chosen &= np.cumsum(np.where(chosen, np.diff(begins), 0)) <= most
            is_hidden = chosen[sequence]
            unjudged = chosen[rows.sequence]
        hidden, words = asked.values[is_hidden], draft.targets["words"].values[is_hidden]
        draft.targets |= {
            "is_hidden": Target(is_hidden.astype(np.int64), asked.most, 0),
            "hidden": Target(hidden, most, 0),
            "hidden_words": Target(words, most, NOTHING),
        }
        draft.counts["fill"] = len(hidden)
        return unjudged

    def replace(
        self, batch: Batch, logits: Tensor, targets: dict[str, Tensor], is_training: bool
    ) -> tuple[Batch, Tensor]:
        """The text with the generator's guesses in it, and (N,) whether each token is another than it was."""
        asked, words = targets["asked"], targets["words"]
        if is_training:
            seed = torch.randint(-(2**31), 2**31 - 1, (1,), device=logits.device, dtype=torch.int32)
        else:
            seed = torch.full((1,), _STILL, device=logits.device, dtype=torch.int32)
        # Gumbel's trick: the highest of logits + noise is a draw from their softmax.
        noise = -torch.log(-torch.log1p(-hashed_uniform(logits, seed)))
        guess = (logits.float() / self.settings.temperature + noise).argmax(-1)
        is_real = words != NOTHING
        if self.settings.masked:
            is_real = is_real & (targets["is_hidden"] == 0)
        here = batch.ids[asked]
        original = batch.ids.index_put((asked,), torch.where(is_real, words, here))
        ids = batch.ids.index_put((asked,), torch.where(is_real, guess, here))
        return Batch(ids, batch.segments, batch.positions, batch.cu, batch.longest), ids != original

    def losses(
        self, model: Model, parts: nn.Module | None, states: Tensor, batch: Batch, targets: dict[str, Tensor]
    ) -> dict[str, Score]:
        judged = targets["judged"]
        logits = model.logits("replaced", states, batch)[judged, 0].float()
        wanted = targets["is_replaced"][judged]
        each = F.binary_cross_entropy_with_logits(logits, wanted.float(), reduction="none")
        counts = targets["counts_as_judged"]
        # As two classes, of which one is named; places that are no tokens are neither.
        classes = torch.stack([torch.zeros_like(logits), logits.detach()], -1)
        found = {"rtd": Score((each * counts).sum(), classes, torch.where(counts > 0, wanted.long(), NOTHING))}
        if self.settings.masked:
            found["fill"] = score(model.masked(states[targets["hidden"]]), targets["hidden_words"])
        return found

    @staticmethod
    def tally(score: Score) -> Tensor:
        """(3,) of the judged tokens, how many were replaced, how many were called so, and how many rightly."""
        is_replaced, is_called = score.wanted == 1, (score.logits.argmax(-1) == 1) & (score.wanted != NOTHING)
        return torch.stack([is_replaced.sum(), is_called.sum(), (is_replaced & is_called).sum()]).float()

    @staticmethod
    def rates(tally: Sequence[float], judged: float) -> dict[str, float]:
        """What a tally says. A detector that finds nothing (recall 0) for long has collapsed."""
        replaced, called, rightly = tally
        return {
            "rtd_replaced": replaced / judged,
            "rtd_recall": rightly / max(replaced, 1.0),
            "rtd_precision": rightly / max(called, 1.0),
        }


def _shapes(module: nn.Module) -> list[torch.Size]:
    return [p.shape for p in module.parameters()]
