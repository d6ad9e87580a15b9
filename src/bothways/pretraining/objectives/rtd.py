"""Replaced token detection: a small generator fills masked tokens, and the model detects which tokens were replaced.

ELECTRA (Clark et al. 2020). The generator is trained by masked language modelling; its predictions are sampled from its
softmax, and no gradient flows through the sample. A sampled token that equals the original counts as original.

A detector never sees [MASK], so it cannot fill masks. With `masked`, some tokens stay masked for it, and it learns to
predict them by a loss of its own, `fill`.

N tokens · M predicted tokens · V vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from bothways.errors import BothwaysError, require_choice
from bothways.hash_rng import mix, uniform
from bothways.model.batch import Batch
from bothways.model.box import model_folder
from bothways.model.config import EncoderConfig, ModelConfig
from bothways.model.dropout import hashed_uniform
from bothways.model.encoder import Activations
from bothways.model.families import FAMILIES
from bothways.model.load import load
from bothways.model.model import Model
from bothways.pretraining.objective import BatchBuilder, Capacity, LossTerm, Objective, Recipe, Target, Terms, Weights
from bothways.pretraining.objectives.mlm import IGNORE_INDEX, MaskedLM, cross_entropy
from bothways.pretraining.shards import Numbers
from bothways.ranges import Bounded, Positive, Probability, Range
from bothways.text.tokenizer import Tokenizer

NEW = "new"
_HIDE = 400
_EVALUATION_SEED = 1_000_003  # the same samples at every evaluation
_HEAD = "heads.replaced."
_TABLE = "encoder.embeddings.tokens.weight"
_ADDED = "added"  # the difference to the generator's embeddings, with rtd.embeddings = "apart"
_DETECTOR = "detector."  # the detector's head, with rtd.masked, since the folder is that of a masked language model


@dataclass(frozen=True)
class ReplacedTokenSettings(Bounded):
    """The `[rtd]` part of a recipe; the defaults are ELECTRA-Small's."""

    section = "rtd"

    weight: Positive = 50.0
    """Weight λ of the detector's loss; the generator's has weight 1."""
    width: Annotated[float, Range(0, 1, above=True)] = 0.25
    """The generator's width, feed-forward width and number of heads, as a share of the model's."""
    layers: Annotated[float, Range(0, 1, above=True)] = 1.0
    """The generator's number of layers, as a share of the model's."""
    temperature: Positive = 1.0
    """Replacements are sampled from softmax(logits / temperature)."""
    embeddings: Literal["shared", "own", "apart"] = "shared"
    """Token embeddings: shared and trained by both losses (ELECTRA); one table each; or the generator's table, plus a
    difference that the model learns (DeBERTa v3's gradient-disentangled embedding sharing)."""
    generator: str = ""
    """A generator's folder to start from; by default the one beside model.init, if any. "new": a new generator."""
    masked: Probability = 0.0
    """Share of the masked tokens that stay masked for the model, which predicts them too; detection skips them. The
    model folder is then that of a masked language model."""
    masked_by: Literal["token", "sequence"] = "token"
    """Which ones stay masked: some tokens of every sequence; or all of some sequences, which then have no replaced
    tokens and are skipped by detection."""
    fill: Positive = 1.0
    """Weight of the loss on them."""

    @property
    def init(self) -> str:
        """The folder of the generator to start from; empty for a new one."""
        return "" if self.generator == NEW else self.generator

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("rtd.embeddings", self.embeddings, ("shared", "own", "apart"))
        require_choice("rtd.masked_by", self.masked_by, ("token", "sequence"))
        if self.masked and self.embeddings == "apart":
            raise BothwaysError(
                "rtd.masked needs the model's own token embeddings: set rtd.embeddings to shared or own",
                "bad-combination",
                self.embeddings,
            )


class AddedEmbedding(nn.Embedding):
    """Embeddings that are added to those of `base`, which get no gradient from here. Their sum starts as `total`."""

    def __init__(self, base: nn.Embedding, total: nn.Embedding) -> None:
        super().__init__(base.num_embeddings, base.embedding_dim, _weight=(total.weight - base.weight).detach())
        self._base = (base,)  # in a tuple, so that it is not registered as a submodule

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self._base[0].weight.detach()) + super().forward(ids)


class ReplacedTokenDetection(Objective):
    """`rtd`: it runs `mlm` itself, on the generator."""

    name = "rtd"
    Settings = ReplacedTokenSettings
    requires = ("mlm",)
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
        beside = model_folder(recipe.model.init).resolve().with_name("generator")
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
        if shape.embedding_width and not FAMILIES[model.config.family].narrow_embeddings:
            raise BothwaysError(
                f"a generator of {model.config.family} must be as wide as its token embeddings: set rtd.width to 1",
                "unsupported-by-family",
                model.config.family,
            )
        return Model(replace(model.config, encoder=shape, heads=("masked",), labels=()), model.tokenizer)

    def generator_shape(self, shape: EncoderConfig) -> EncoderConfig:
        """The generator's config: narrower and shallower; token embeddings keep their width."""
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
        """Load the weights of an earlier generator."""
        found = load(folder)
        if generator.tokenizer and found.require_tokenizer().fingerprint != generator.tokenizer.fingerprint:
            raise BothwaysError(
                f"{folder} has another tokenizer than the text: set rtd.generator to {NEW!r} or another folder",
                "other-tokenizer",
                folder,
            )
        weights, wanted = found.state_dict(), generator.state_dict()
        if {name: w.shape for name, w in weights.items()} != {name: w.shape for name, w in wanted.items()}:
            own, needed = found.config.encoder, generator.config.encoder
            raise BothwaysError(
                f"{folder} is a model of {own.layers} × {own.width} with the heads {', '.join(found.heads) or 'none'}, "
                f"but the generator needs {needed.layers} × {needed.width} and the head masked: change rtd.width and "
                f"rtd.layers, or set rtd.generator to {NEW!r} or another folder",
                "shape-mismatch",
                folder,
            )
        generator.load_state_dict(weights)

    def _share(self, model: Model, generator: Model) -> None:
        """Share the model's embeddings with the generator where shapes match; each keeps its own projection."""
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

    def max_predictions(self, capacity: Capacity, rate: float | None) -> int:
        return self.mlm.max_predictions(capacity, rate)

    def prepare(
        self, builder: BatchBuilder, capacity: Capacity, rate: float | None, predicted: Numbers | None = None
    ) -> None:
        """Detection judges every token but special tokens, and those that stay masked or are in a masked sequence."""
        self.mlm.prepare(builder, capacity, rate, predicted)
        is_judged = ~builder.rows.special
        if self.settings.masked:
            is_judged &= ~self._hide(builder, capacity)
        judged = np.flatnonzero(is_judged)
        builder.targets |= {
            "judged": Target(judged, capacity.tokens, 0),
            "counts_as_judged": Target(np.ones_like(judged), capacity.tokens, 0),
        }
        builder.counts["rtd"] = len(judged)

    def _hide(self, builder: BatchBuilder, capacity: Capacity) -> NDArray[np.bool_]:
        """Select the predicted tokens that stay masked; (N,) the tokens that detection therefore skips."""
        rows, predicted, share = builder.rows, builder.targets["predicted"], self.settings.masked
        sequence = np.searchsorted(rows.cu_seqlens, predicted.values, side="right") - 1
        begins = np.searchsorted(sequence, np.arange(len(rows.cu_seqlens)))
        most = int(share * predicted.most + 0.5 * capacity.sequences) + 1
        if self.settings.masked_by == "token":  # the rounded share of each sequence's predicted tokens
            draw = mix(rows.keys[sequence], predicted.values - rows.cu_seqlens[sequence], _HIDE)
            order = np.lexsort((draw, sequence))
            rank = np.arange(len(order)) - begins[sequence]  # predicted tokens are in the order of the text
            is_hidden = np.zeros(len(order), bool)
            is_hidden[order] = rank < np.floor(share * np.diff(begins) + 0.5)[sequence]
            unjudged = np.zeros(len(rows.ids), bool)
            unjudged[predicted.values[is_hidden]] = True
        else:
            # Six standard deviations: exceeded once in a billion batches, and then detection judges the last sequences.
            deviation = (share * (1 - share) * capacity.length / capacity.tokens) ** 0.5
            most = min(predicted.most, most + int(6 * deviation * predicted.most))
            chosen = uniform(mix(rows.keys, _HIDE)) < share
            chosen &= np.cumsum(np.where(chosen, np.diff(begins), 0)) <= most
            is_hidden = chosen[sequence]
            unjudged = chosen[rows.sequence]
        hidden, labels = predicted.values[is_hidden], builder.targets["labels"].values[is_hidden]
        builder.targets |= {
            "is_hidden": Target(is_hidden.astype(np.int64), predicted.most, 0),
            "hidden": Target(hidden, most, 0),
            "hidden_labels": Target(labels, most, IGNORE_INDEX),
        }
        builder.counts["fill"] = len(hidden)
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
        """The text with sampled replacements, and (N,) whether each token differs from the original."""
        predicted, labels = targets["predicted"], targets["labels"]
        if is_training:
            seed = torch.randint(-(2**31), 2**31 - 1, (1,), device=logits.device, dtype=torch.int32)
        else:
            seed = torch.full((1,), _EVALUATION_SEED, device=logits.device, dtype=torch.int32)
        # Gumbel-max trick: the argmax of logits + noise is a sample from their softmax.
        noise = -torch.log(-torch.log1p(-hashed_uniform(logits, seed)))
        sampled = (logits.float() / self.settings.temperature + noise).argmax(-1)
        is_real = labels != IGNORE_INDEX
        if self.settings.masked:
            is_real = is_real & (targets["is_hidden"] == 0)
        here = batch.ids[predicted]
        original = batch.ids.index_put((predicted,), torch.where(is_real, labels, here))
        ids = batch.ids.index_put((predicted,), torch.where(is_real, sampled, here))
        return Batch(ids, batch.segments, batch.positions, batch.cu_seqlens, batch.max_seqlen), ids != original

    def losses(
        self, model: Model, part: nn.Module | None, states: Tensor, seen: Activations, batch: Batch,
        targets: dict[str, Tensor],
    ) -> Terms:  # fmt: skip
        judged = targets["judged"]
        logits = model.logits("replaced", states, batch)[judged, 0].float()
        labels = targets["is_replaced"][judged]
        each = F.binary_cross_entropy_with_logits(logits, labels.float(), reduction="none")
        counts = targets["counts_as_judged"]
        # As two classes, for the accuracy; padding has no label.
        classes = torch.stack([torch.zeros_like(logits), logits.detach()], -1)
        found: Terms = {
            "rtd": LossTerm((each * counts).sum(), classes, torch.where(counts > 0, labels.long(), IGNORE_INDEX))
        }
        if self.settings.masked:
            found["fill"] = cross_entropy(model.masked(states[targets["hidden"]]), targets["hidden_labels"])
        return found

    def tally(self, terms: Terms) -> Tensor:
        """(3,) of the judged tokens: the numbers of replaced, detected and correctly detected ones."""
        term = terms["rtd"]
        is_replaced, is_detected = term.labels == 1, (term.logits.argmax(-1) == 1) & (term.labels != IGNORE_INDEX)
        return torch.stack([is_replaced.sum(), is_detected.sum(), (is_replaced & is_detected).sum()]).float()

    def rates(self, tally: Sequence[float], counts: Mapping[str, float]) -> dict[str, float]:
        """A detector whose recall stays at 0 has collapsed."""
        replaced, detected, correct = tally
        return {
            "rtd_replaced": replaced / max(counts["rtd"], 1.0),
            "rtd_recall": correct / max(replaced, 1.0),
            "rtd_precision": correct / max(detected, 1.0),
        }

    def flops(self, shape: EncoderConfig, length: int, rate: float | None) -> float:
        one = self.generator_shape(shape)
        layers = one.layers * (6 * one.block_weights + 12 * one.width * length)
        return layers + self.mlm.flops(shape, length, rate) * (1 + self.settings.masked)

    # ------------------------------------------------------------------ folders

    def folder_config(self, config: ModelConfig) -> ModelConfig:
        """No family has a folder layout with both heads."""
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
        """The generator, including the weights that it shares with the model, which are stored there."""
        assert isinstance(part, Model)
        with torch.device("meta"):
            generator = Model(part.config, part.tokenizer)
        weights = {name: parts.get(f"{self.name}.{name}", own.get(name)) for name in generator.state_dict()}
        generator.load_state_dict(weights, assign=True)
        return {"generator": generator}


def _shapes(module: nn.Module) -> list[torch.Size]:
    return [p.shape for p in module.parameters()]
