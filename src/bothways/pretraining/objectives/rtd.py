"""Replaced token detection: a small generator fills masked tokens, and the model says which tokens were replaced.

ELECTRA (Clark et al. 2020). The generator is trained by masked language modelling; its guesses are sampled from its
softmax, and no gradient goes back through the sample. A guess that happens to be right counts as original.

A detector never sees [MASK], and so it cannot fill masks. `masked` leaves some to it, and it learns to predict them by
a loss of its own, `fill`.

N tokens · M asked for · V vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from bothways.errors import BothwaysError, require_choice
from bothways.hash_rng import mix, uniform
from bothways.model.batch import Batch
from bothways.model.config import EncoderConfig, ModelConfig
from bothways.model.dropout import hashed_uniform
from bothways.model.encoder import Activations
from bothways.model.families import FAMILIES
from bothways.model.load import load
from bothways.model.model import Model
from bothways.pretraining.objective import Draft, LossTerm, Objective, Recipe, Room, Target, Terms, Weights
from bothways.pretraining.objectives.mlm import NOTHING, MaskedLM, score
from bothways.pretraining.shards import Numbers
from bothways.text.tokenizer import Tokenizer

NEW = "new"
_HIDE = 400
_EVALUATION_SEED = 1_000_003  # the same samples at every evaluation
_HEAD = "heads.replaced."
_TABLE = "encoder.embeddings.tokens.weight"
_ADDED = "added"  # to the generator's table, by rtd.embeddings = "apart"
_DETECTOR = "detector."  # the head, where the folder is that of a masked language model, by rtd.masked


@dataclass(frozen=True)
class ReplacedTokenSettings:
    """The `[rtd]` part of a recipe; the defaults are ELECTRA-Small's."""

    weight: float = 50.0
    """Of the detector's loss beside the generator's: λ."""
    width: float = 0.25
    """The generator's width, its feed-forward's and its number of heads, as shares of the model's …"""
    layers: float = 1.0
    """… and its depth."""
    temperature: float = 1.0
    """Guesses are sampled from softmax(logits / temperature)."""
    embeddings: Literal["shared", "own", "apart"] = "shared"
    """Whether the two have one token table, which both losses train (ELECTRA), or each its own; or one that the
    generator trains, to which the model adds what it learns itself (DeBERTa v3's gradient-disentangled sharing)."""
    generator: str = ""
    """The folder of one to go on from; unless said, that beside model.init, if there is one. "new": none."""
    masked: float = 0.0
    """Of the tokens that the generator predicts, the share that the model predicts too: they stay masked, and are not
    judged. The model's folder is then that of a masked language model."""
    masked_by: Literal["token", "sequence"] = "token"
    """Whether they stand among replaced tokens, some in every sequence; or are all those of some sequences, which are
    not judged and have no replaced tokens."""
    fill: float = 1.0
    """The weight of that loss."""

    @property
    def init(self) -> str:
        """The folder of the generator to go on from."""
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


class AddedEmbedding(nn.Embedding):
    """A table that is added to another, which learns nothing by it: at first, together they are `whole`."""

    def __init__(self, base: nn.Embedding, whole: nn.Embedding) -> None:
        super().__init__(base.num_embeddings, base.embedding_dim, _weight=(whole.weight - base.weight).detach())
        self._base = (base,)  # in a tuple, so that it is no part of this

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self._base[0].weight.detach()) + super().forward(ids)


class ReplacedTokenDetection(Objective):
    """`rtd`: it runs `mlm` itself, on the generator."""

    name = "rtd"
    Settings = ReplacedTokenSettings
    wraps = "mlm"
    excludes = ("nsp", "sop", "sbo")
    tallies = 3

    def __init__(self, settings: ReplacedTokenSettings, mlm: MaskedLM) -> None:
        self.settings, self.mlm, self.static = settings, mlm, mlm.static
        self.heads = ("replaced", "masked") if settings.masked else ("replaced",)

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        if not recipe.model.init and "replaced" not in FAMILIES[recipe.model.family].heads:
            able = ", ".join(name for name, family in FAMILIES.items() if "replaced" in family.heads)
            raise BothwaysError(
                f"{recipe.model.family} has no head for rtd: set model.family to one of {able}",
                "family-without-head",
                recipe.model.family,
            )

    @classmethod
    def resolve(cls, recipe: Recipe) -> ReplacedTokenSettings:
        settings: ReplacedTokenSettings = recipe.settings[cls.name]
        beside = Path(recipe.model.init).resolve().with_name("generator")
        if settings.generator or not (beside / "config.json").exists():
            return settings
        return replace(settings, generator=str(beside))

    @classmethod
    def make(cls, recipe: Recipe, tokenizer: Tokenizer, others: Mapping[str, Objective]) -> "ReplacedTokenDetection":
        mlm = others[cls.wraps]
        assert isinstance(mlm, MaskedLM)
        return cls(recipe.settings[cls.name], mlm)

    @property
    def loss_weights(self) -> dict[str, float]:
        own = {"rtd": self.settings.weight} | ({"fill": self.settings.fill} if self.settings.masked else {})
        return self.mlm.loss_weights | own

    def attach(self, model: Model) -> Model:
        """The generator."""
        shape = self.generator_shape(model.config.encoder)
        if "embedding_size" not in FAMILIES[model.config.family].write_config(shape) and shape.embedding_width:
            raise BothwaysError(
                f"a generator of {model.config.family} must be as wide as the model, since its token table is: "
                "set rtd.width to 1"
            )
        return Model(replace(model.config, encoder=shape, heads=("masked",), labels=()), model.tokenizer)

    def generator_shape(self, shape: EncoderConfig) -> EncoderConfig:
        """Narrower and shallower; the token table keeps its width."""
        own = self.settings
        heads = max(1, round(shape.num_heads * own.width))
        width = max(1, round(shape.width * own.width / heads)) * heads
        layers = max(1, round(shape.layers * own.layers))
        return replace(
            shape,
            width=width,
            num_heads=heads,
            ffn_width=max(1, round(shape.ffn_width * own.width)),
            layers=layers,
            windows=shape.windows[:layers],
            layer_map=shape.layer_map[:layers],
            embedding_width=shape.table_width if width != shape.table_width else 0,
        )

    def start(self, model: Model, part: nn.Module | None) -> None:
        assert isinstance(part, Model)
        if self.settings.init:
            self._load(part, self.settings.init)
        self._share(model, part)

    def _load(self, generator: Model, folder: str) -> None:
        """Give it the weights of the one to go on from."""
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

    def _share(self, model: Model, generator: Model) -> None:
        """Give the generator the model's embeddings, as far as they fit; its projection stays its own."""
        if self.settings.embeddings == "own":
            return
        ours, theirs = model.encoder.embeddings, generator.encoder.embeddings
        if self.settings.embeddings == "apart":
            table = ours.tokens
            if not self.settings.init:
                theirs.tokens = table
            ours.tokens = AddedEmbedding(theirs.tokens, table)
            return
        for name in ("tokens", "segments", "positions", "norm"):
            mine, other = getattr(ours, name), getattr(theirs, name)
            if mine is not None and _shapes(mine) == _shapes(other):
                setattr(theirs, name, mine)

    def most_asked(self, room: Room, rate: float | None) -> int:
        return self.mlm.most_asked(room, rate)

    def prepare(self, draft: Draft, room: Room, rate: float | None, asked: Numbers | None = None) -> None:
        """Every token is judged but the special ones and those that stay masked, or are in a sequence that does."""
        self.mlm.prepare(draft, room, rate, asked)
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
        """Choose the asked tokens that stay masked; (N,) which tokens are not judged for it."""
        rows, asked, share = draft.rows, draft.targets["asked"], self.settings.masked
        sequence = np.searchsorted(rows.cu_seqlens, asked.values, side="right") - 1
        begins = np.searchsorted(sequence, np.arange(len(rows.cu_seqlens)))
        most = int(share * asked.most + 0.5 * room.sequences) + 1
        if self.settings.masked_by == "token":  # of each sequence's, as many as round to the share
            draw = mix(rows.keys[sequence], asked.values - rows.cu_seqlens[sequence], _HIDE)
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

    def before(
        self, part: nn.Module | None, batch: Batch, targets: dict[str, Tensor], is_training: bool
    ) -> tuple[Batch, dict[str, Tensor], Terms]:
        assert isinstance(part, Model)
        terms = self.mlm.losses(part, None, part.encoder(batch), Activations({}, {}), batch, targets)
        batch, is_replaced = self.replace(batch, terms["mlm"].logits, targets, is_training)
        return batch, {**targets, "is_replaced": is_replaced}, terms

    def replace(
        self, batch: Batch, logits: Tensor, targets: dict[str, Tensor], is_training: bool
    ) -> tuple[Batch, Tensor]:
        """The text with the generator's guesses in it, and (N,) whether each token is another than it was."""
        asked, words = targets["asked"], targets["words"]
        if is_training:
            seed = torch.randint(-(2**31), 2**31 - 1, (1,), device=logits.device, dtype=torch.int32)
        else:
            seed = torch.full((1,), _EVALUATION_SEED, device=logits.device, dtype=torch.int32)
        # Gumbel's trick: the highest of logits + noise is a draw from their softmax.
        noise = -torch.log(-torch.log1p(-hashed_uniform(logits, seed)))
        guess = (logits.float() / self.settings.temperature + noise).argmax(-1)
        is_real = words != NOTHING
        if self.settings.masked:
            is_real = is_real & (targets["is_hidden"] == 0)
        here = batch.ids[asked]
        original = batch.ids.index_put((asked,), torch.where(is_real, words, here))
        ids = batch.ids.index_put((asked,), torch.where(is_real, guess, here))
        return Batch(ids, batch.segments, batch.positions, batch.cu_seqlens, batch.max_seqlen), ids != original

    def losses(
        self, model: Model, part: nn.Module | None, states: Tensor, seen: Activations, batch: Batch,
        targets: dict[str, Tensor],
    ) -> Terms:  # fmt: skip
        judged = targets["judged"]
        logits = model.logits("replaced", states, batch)[judged, 0].float()
        wanted = targets["is_replaced"][judged]
        each = F.binary_cross_entropy_with_logits(logits, wanted.float(), reduction="none")
        counts = targets["counts_as_judged"]
        # As two classes, of which one is named; places that are no tokens are neither.
        classes = torch.stack([torch.zeros_like(logits), logits.detach()], -1)
        found: Terms = {
            "rtd": LossTerm((each * counts).sum(), classes, torch.where(counts > 0, wanted.long(), NOTHING))
        }
        if self.settings.masked:
            found["fill"] = score(model.masked(states[targets["hidden"]]), targets["hidden_words"])
        return found

    def tally(self, terms: Terms) -> Tensor:
        """(3,) of the judged tokens, how many were replaced, how many were called so, and how many rightly."""
        term = terms["rtd"]
        is_replaced, is_called = term.wanted == 1, (term.logits.argmax(-1) == 1) & (term.wanted != NOTHING)
        return torch.stack([is_replaced.sum(), is_called.sum(), (is_replaced & is_called).sum()]).float()

    def rates(self, tally: Sequence[float], counts: Mapping[str, float]) -> dict[str, float]:
        """A detector that finds nothing (recall 0) for long has collapsed."""
        replaced, called, rightly = tally
        return {
            "rtd_replaced": replaced / counts["rtd"],
            "rtd_recall": rightly / max(replaced, 1.0),
            "rtd_precision": rightly / max(called, 1.0),
        }

    def flops(self, shape: EncoderConfig, length: int, rate: float | None) -> float:
        one = self.generator_shape(shape)
        layers = one.layers * (6 * one.block_weights + 12 * one.width * length)
        return layers + self.mlm.flops(shape, length, rate) * (1 + self.settings.masked)

    # ------------------------------------------------------------------ folders

    def folder_config(self, config: ModelConfig) -> ModelConfig:
        """Families have no folder with both heads."""
        return replace(config, heads=("masked",), labels=()) if self.settings.masked else config

    def to_folder(self, own: Weights, parts: Weights) -> None:
        if self.settings.masked:
            for name in [name for name in own if name.startswith(_HEAD)]:
                parts[_DETECTOR + name.removeprefix(_HEAD)] = own.pop(name)
        if self.settings.embeddings == "apart":
            parts[_ADDED], own[_TABLE] = own[_TABLE], own[_TABLE] + parts[f"{self.name}.{_TABLE}"]

    def from_folder(self, own: Weights, parts: Weights) -> None:
        if self.settings.embeddings == "apart":
            own[_TABLE] = parts.pop(_ADDED)
        for name in [name for name in parts if name.startswith(_DETECTOR)]:
            own[_HEAD + name.removeprefix(_DETECTOR)] = parts.pop(name)

    def other_models(self, part: nn.Module | None, own: Weights, parts: Weights) -> dict[str, Model]:
        """The generator, with the weights that it shares with the model, which are named there."""
        assert isinstance(part, Model)
        with torch.device("meta"):
            generator = Model(part.config, part.tokenizer)
        weights = {name: parts.get(f"{self.name}.{name}", own.get(name)) for name in generator.state_dict()}
        generator.load_state_dict(weights, assign=True)
        return {"generator": generator}


def _shapes(module: nn.Module) -> list[torch.Size]:
    return [p.shape for p in module.parameters()]
