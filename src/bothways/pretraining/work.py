"""Pretraining as the training loop sees it: a module with its losses, a feed of steps, an evaluation.

K losses · N tokens · B sequences.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from bothways.draws import mix
from bothways.errors import BothwaysError
from bothways.model import checkpoint
from bothways.model.batch import Batch
from bothways.model.distill import DistillSettings, Pupil, Teacher
from bothways.model.encoder import initialise
from bothways.model.lora import adapt, save_adapter, trained_of
from bothways.model.model import Model
from bothways.pretraining.loader import Loader, Mixture
from bothways.pretraining.objective import Objective, Score
from bothways.pretraining.objectives import heads_for, make_objectives
from bothways.pretraining.objectives.distill import Distillation
from bothways.pretraining.objectives.rtd import ReplacedTokens
from bothways.pretraining.pseudo import TOKENS, pseudo_perplexity
from bothways.pretraining.recipe import PretrainRecipe
from bothways.pretraining.rows import Marks, sampler
from bothways.pretraining.shards import Corpus
from bothways.train.ranks import Ranks
from bothways.train.work import Forward, Step

_HEAD = "heads.replaced."
_TABLE = "encoder.embeddings.tokens.weight"
_ADDED = "added"  # to the generator's table, by rtd.embeddings = "apart"
_DETECTOR = "detector."  # the head, where the folder is that of a model that fills blanks, by rtd.masked
_HELD_OUT = 1_000_003  # the seed of evaluation: the same masks at every step and in every run


class Losses(Pupil):
    """A model and what its objectives train beside it: batch and targets in, losses out."""

    def __init__(self, model: Model, objectives: Mapping[str, Objective], seed: int) -> None:
        super().__init__()
        self.model = model
        self.objectives = dict(objectives)
        own = {name: objective.parts(model) for name, objective in objectives.items() if name != "mlm"}
        generator = own.get("rtd")
        own["mlm"] = objectives["mlm"].parts(generator if isinstance(generator, Model) else model)
        self.parts = nn.ModuleDict({name: part for name, part in own.items() if part is not None})
        initialise(self.parts, model.config.encoder.init_std, torch.Generator().manual_seed(seed))
        rtd, distill = objectives.get("rtd"), objectives.get("distill")
        if isinstance(rtd, ReplacedTokens):
            rtd.begin(self.generator)
            rtd.share(model, self.generator)
        if isinstance(distill, Distillation):
            self.teacher = distill.teacher
        used = heads_for(objectives)
        for name, head in model.heads.items():
            head.requires_grad_(name in used)  # a head that no loss reads is kept as it is

    @property
    def generator(self) -> Model:
        """Who fills the blanks for rtd."""
        found = self.parts["rtd"]
        assert isinstance(found, Model)
        return found

    def forward(self, batch: Batch, targets: dict[str, Tensor]) -> Tensor:
        """(K,) the sums of the losses; in evaluation (2K + …), with how many guesses were right, and rtd's tally."""
        scores: list[Score] = []
        objectives, rtd = self.objectives, self.objectives.get("rtd")
        if isinstance(rtd, ReplacedTokens):
            scores += self._masked_scores(self.generator, batch, targets)
            batch, is_replaced = rtd.replace(batch, scores[0].logits, targets, self.training)
            objectives, targets = {"rtd": rtd}, {**targets, "is_replaced": is_replaced}
        if "mlm" in self.parts and not rtd:
            scores += self._masked_scores(self.model, batch, targets)
        else:
            states, targets = self._states(batch, targets)
            for name, objective in objectives.items():
                part = dict(self.parts.items()).get(name)
                scores += objective.losses(self.model, part, states, batch, targets).values()
        losses = torch.stack([score.loss for score in scores])
        if self.training:
            return losses
        right = torch.stack([score.right for score in scores]).float()
        tally = [rtd.tally(scores[1])] if isinstance(rtd, ReplacedTokens) else []  # after the generator's
        return torch.cat([losses, right, *tally])

    def _states(self, batch: Batch, targets: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """What the model makes of a batch; for a teacher, its vectors go to the targets."""
        if self.teacher is None:
            return self.model.encoder(batch), targets
        seen = self.teacher.watch(self.model, batch)
        return seen.states, {**targets, **dict(zip("qkv", seen.vectors, strict=False))}

    def _masked_scores(self, reader: Model, batch: Batch, targets: dict[str, Tensor]) -> Iterable[Score]:
        """Those of the one who fills blanks, with the enhanced decoder if there is one."""
        if "mlm" in self.parts:
            states = reader.encoder.decode(batch, self.parts["mlm"](batch.positions))
        else:
            states = reader.encoder(batch)
        return self.objectives["mlm"].losses(reader, None, states, batch, targets).values()


@dataclass(frozen=True)
class Texts:
    """The sources of one split."""

    sources: dict[str, Corpus]
    weights: Mapping[str, float] | None = None


class Pretraining:
    """The work of `fit`."""

    def __init__(self, model: Model, train: Texts, valid: Texts, recipe: PretrainRecipe) -> None:
        assert model.tokenizer is not None
        self.recipe, self.train, self.valid = recipe, train, valid
        self.config, self.tokenizer = model.config, model.tokenizer
        self.marks = Marks.of(self.tokenizer)
        self.objectives = make_objectives(
            recipe.objectives,
            recipe.mlm,
            self.tokenizer,
            model.config.encoder.causal,
            recipe.rtd,
            _teacher(recipe.distill, model),
        )
        for phase in recipe.phases:
            if phase.length > model.config.encoder.limit:
                raise BothwaysError(
                    f"a phase has sequences of {phase.length} tokens, and this model reads {model.config.encoder.limit}"
                )
        model.encoder.recompute = recipe.run.recompute
        self.module = Losses(model, self.objectives, recipe.run.seed)
        own = recipe.distill.hard if recipe.distill.teacher else 1.0
        losses = {name: own for name in self.objectives if name not in ("distill", "rtd")}
        losses |= recipe.rtd.weights if "rtd" in self.objectives else {}
        losses |= recipe.distill.weights if recipe.distill.teacher else {}
        self.losses: Mapping[str, float] = losses
        self.loader = cache(self._loader)
        for number in range(len(recipe.phases)):  # what cannot be made into sequences is said now, not in mid-run
            self.loader(number, 1, False)
            if valid.sources:
                self.loader(number, 1, False, "valid")

    def blocks(self) -> Sequence[nn.Module]:
        return list(self.module.model.encoder.blocks)

    def phases(self) -> Sequence[float]:
        return [phase.share for phase in self.recipe.phases]

    # ------------------------------------------------------------------ data

    def _loader(self, phase: int, ranks: int, still: bool, split: str = "train") -> Loader:
        settings = self.recipe.phases[phase]
        texts = self.train if split == "train" else self.valid
        pairs = self.recipe.sop if "sop" in self.recipe.objectives else self.recipe.nsp
        samplers = {}
        for name, corpus in texts.sources.items():
            try:
                samplers[name] = sampler(self.recipe.rows, corpus, self.marks, settings.length, pairs.short)
            except BothwaysError as error:
                held_out = "the held-out part of " if split == "valid" else ""
                raise BothwaysError(f"{held_out}the source {name}: {error}") from error
        most = settings.tokens or (settings.sequences or 1) * settings.length
        passes = -(-most // (ranks * max(self.recipe.run.micro_tokens, settings.length)))
        if most // settings.length < ranks * passes:
            raise BothwaysError(
                f"a step of {most // settings.length} sequences of {settings.length} tokens cannot be shared by "
                f"{ranks} processes in {passes} passes: make the step larger"
            )
        seed = int(mix(self.recipe.run.seed, phase) >> np.uint64(1)) if split == "train" else _HELD_OUT
        objectives = self.objectives
        if settings.masked is not None:
            objectives = {**objectives, "rtd": ReplacedTokens(self.recipe.rtd, settings.masked)}
        return Loader(
            mixture=Mixture(samplers, texts.weights, seed),
            objectives=list(objectives.values()),
            length=settings.length,
            tokens=settings.tokens,
            sequences=settings.sequences,
            groups=ranks * passes,
            still=still,
            static=self.recipe.mlm.static,
            rate=settings.rate,
        )

    def feed(self, phase: int, index: int, ranks: Ranks, still: bool) -> Iterator[Step]:
        loader = self.loader(phase, ranks.size, still)
        return loader.steps(index, range(ranks.rank, loader.groups, ranks.size))

    # ------------------------------------------------------------------ evaluation

    def evaluate(self, forward: Forward, phase: int, ranks: Ranks, still: bool, final: bool) -> dict[str, float]:
        """Loss and accuracy of every objective on the held-out text, for all sources and for each."""
        found: dict[str, float] = {}
        totals: dict[str, list[float]] = {}
        room = self.loader(phase, ranks.size, still).room()
        for number, source in enumerate(self.valid.sources):
            one = self._held_out(number, phase, ranks, still)
            size = min(one.mixture.size, self.recipe.data.valid_sequences)
            sums: list[float] = []
            for plans, counted in ranks.share(one.chunks(size, room)):
                micro, counts = one.micro(plans, room)
                seen = [*(float(counts[name]) for name in self.losses), *forward(micro).double().tolist()]
                sums = [a + b * counted for a, b in zip(sums or [0.0] * len(seen), seen, strict=True)]
            totals[source] = ranks.sum(sums)
            if final and not self.config.encoder.causal:
                prefix = f"{source}/" if len(self.valid.sources) > 1 else ""
                most = min(size, TOKENS // len(self.valid.sources))
                found[f"{prefix}pseudo_perplexity"] = pseudo_perplexity(one, forward, room, ranks, most)
        if not totals:
            return {}
        found |= self._scores([sum(column) for column in zip(*totals.values(), strict=True)], "")
        if len(totals) > 1:
            for source, sums in totals.items():
                found |= self._scores(sums, f"{source}/")
        return found

    def _held_out(self, source: int, phase: int, ranks: Ranks, still: bool) -> Loader:
        """The loader of one source's held-out text."""
        every = self.loader(phase, ranks.size, still, "valid")
        return replace(every, mixture=Mixture({"": every.mixture.samplers[source]}, None, _HELD_OUT))

    def _scores(self, sums: Sequence[float], prefix: str) -> dict[str, float]:
        kinds = len(self.losses)
        scores = {f"{prefix}loss": 0.0}
        for k, (name, weight) in enumerate(self.losses.items()):
            count, loss, right = sums[k], sums[kinds + k], sums[2 * kinds + k]
            if not count:  # as for the blanks of a phase that has none
                continue
            scores[f"{prefix}loss"] += weight * loss / count
            scores[f"{prefix}{name}_loss"] = loss / count
            if not math.isnan(right):
                scores[f"{prefix}{name}_accuracy"] = right / count
            if name == "rtd":
                rates = ReplacedTokens.rates(sums[3 * kinds :], count)
                scores |= {f"{prefix}{rate}": value for rate, value in rates.items()}
        return scores

    def badness(self, scores: Mapping[str, float]) -> float:
        return scores["loss"]

    def flops(self, phase: int) -> float:
        """Six for every weight a token meets, twelve for every token it looks at and every width and layer."""
        shape, settings = self.config.encoder, self.recipe.phases[phase]
        rate = 1.0 if shape.causal else settings.rate or self.recipe.mlm.rate
        own = self.recipe.rtd.masked if settings.masked is None else settings.masked
        rate *= 1 + own if self.recipe.rtd_fills else 1
        head = rate * shape.table_width * (shape.width + shape.vocabulary)
        shapes = [shape, self.module.generator.config.encoder] if "rtd" in self.objectives else [shape]
        return 6 * head + sum(one.layers * (6 * one.block_weights + 12 * one.width * settings.length) for one in shapes)

    # ------------------------------------------------------------------ folders

    def save(self, weights: Mapping[str, Tensor], folder: Path) -> None:
        """The model as a folder of its own, and beside it what objectives own; with LoRA an adapter, and beside it the
        trained weights under our own names."""
        lora = self.recipe.lora
        fills = self.recipe.rtd_fills
        config = replace(self.config, heads=("masked",), labels=()) if fills else self.config
        with torch.device("meta"):
            model = Model(config, self.tokenizer)
            if lora.rank:
                adapt(model, lora)
        own, parts = _under(weights, "model."), _under(weights, "parts.")
        if fills:  # families have no folder with both heads
            parts |= {_DETECTOR + name: own.pop(_HEAD + name) for name in _under(own, _HEAD)}
        if lora.rank:
            model.load_state_dict(own, assign=True)
            save_adapter(model, lora, str(Path(self.recipe.model.init).resolve()), folder / "model")
            safetensors.torch.save_file(trained_of(self.module, weights), folder / "parts.safetensors")
            return
        if self.recipe.rtd_adds:
            parts[_ADDED], own[_TABLE] = own[_TABLE], own[_TABLE] + parts[f"rtd.{_TABLE}"]
        model.load_state_dict(own, assign=True)
        checkpoint.save(model, folder / "model")
        if "rtd" in self.objectives:
            checkpoint.save(self._generator(weights), folder / "generator")
        if parts:
            safetensors.torch.save_file(parts, folder / "parts.safetensors")

    def _generator(self, weights: Mapping[str, Tensor]) -> Model:
        """With the weights that it shares with the model, which are named there."""
        with torch.device("meta"):
            generator = Model(self.module.generator.config, self.tokenizer)
        own, shared = _under(weights, "parts.rtd."), _under(weights, "model.")
        generator.load_state_dict(
            {name: own[name] if name in own else shared[name] for name in generator.state_dict()}, assign=True
        )
        return generator

    def load(self, folder: Path) -> dict[str, Tensor]:
        if self.recipe.lora.rank:
            return dict(self.module.named_parameters()) | safetensors.torch.load_file(folder / "parts.safetensors")
        model = checkpoint.load(folder / "model")
        if model.config.encoder != self.config.encoder:
            raise BothwaysError(f"{folder} holds a model of another shape than the recipe's: use another --out")
        weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
        if self.module.parts:
            own = safetensors.torch.load_file(folder / "parts.safetensors")
            if self.recipe.rtd_adds:
                weights[f"model.{_TABLE}"] = own.pop(_ADDED)
            weights |= {f"model.{_HEAD}{name}": own.pop(_DETECTOR + name) for name in _under(own, _DETECTOR)}
            weights |= {f"parts.{name}": tensor for name, tensor in own.items()}
        return weights


def _teacher(settings: DistillSettings, student: Model) -> Teacher | None:
    if not settings.teacher:
        return None
    model = checkpoint.load(settings.teacher)
    if settings.soft and "masked" not in model.heads:
        raise BothwaysError(f"{settings.teacher} fills no blanks, and so has no guesses: set distill.soft to 0")
    return Teacher(model, settings, student)


def _under(weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
