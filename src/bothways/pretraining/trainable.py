"""Pretraining for the training loop: a module with its losses, steps of data, an evaluation.

It knows objectives only by their contract. K losses · N tokens · B sequences.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from bothways.errors import BothwaysError, require_range
from bothways.hash_rng import mix
from bothways.model import checkpoint
from bothways.model.batch import Batch
from bothways.model.box import model_folder
from bothways.model.encoder import Activations, initialise
from bothways.model.load import load
from bothways.model.lora import adapt, save_adapter, trained_of
from bothways.model.model import Model
from bothways.model.weights import read_tensors
from bothways.pretraining.loader import Loader, Mixture
from bothways.pretraining.objective import Objective, Terms
from bothways.pretraining.objectives import heads_for, make_objectives
from bothways.pretraining.pseudo import TOKENS, pseudo_perplexity
from bothways.pretraining.recipe import PretrainRecipe
from bothways.pretraining.sampler import SpecialIds, make_sampler
from bothways.pretraining.shards import Corpus
from bothways.train.distill import StudentModule
from bothways.train.protocol import Forward, Step
from bothways.train.ranks import Ranks

_RISEN = 1e9  # the selection loss of a model that has forgotten: worse than any other
_EVALUATION_SEED = 1_000_003  # the same masks in every evaluation of every run


class PretrainingModule(StudentModule):
    """A model with its objectives, and the modules that they train beside it."""

    def __init__(self, model: Model, objectives: Mapping[str, Objective], seed: int) -> None:
        super().__init__()
        self.model = model
        self.objectives = dict(objectives)
        own = {name: objective.attach(model) for name, objective in objectives.items()}
        self.parts = nn.ModuleDict({name: part for name, part in own.items() if part is not None})
        initialise(self.parts, model.config.encoder.init_std, torch.Generator().manual_seed(seed))
        for name, objective in objectives.items():
            objective.start(model, own[name])
        self.frozen = tuple(one.frozen for one in objectives.values() if one.frozen is not None)
        self.qkv_layers = sorted({layer for one in objectives.values() for layer in one.qkv_layers})
        self.names = [name for one in objectives.values() for name in one.loss_weights]
        used = heads_for(objectives)
        for name, head in model.heads.items():
            head.requires_grad_(name in used)  # a head that no loss uses stays as it is

    def forward(self, batch: Batch, targets: dict[str, Tensor]) -> Tensor:
        """(K,) the sums of the losses; in evaluation also (K,) correct predictions, and the tallies."""
        terms: Terms = {}
        for name, objective in self.objectives.items():
            batch, targets, known = objective.before(self._part(name), batch, targets, self.training)
            terms |= known
        states, seen = self._read(batch)
        for name, objective in self.objectives.items():
            terms |= objective.losses(self.model, self._part(name), states, seen, batch, targets)
        losses = torch.stack([terms[name].loss for name in self.names])
        if self.training:
            return losses
        correct = torch.stack([terms[name].correct for name in self.names]).float()
        return torch.cat([losses, correct, *(one.tally(terms) for one in self.objectives.values() if one.tallies)])

    def _part(self, name: str) -> nn.Module | None:
        return self.parts[name] if name in self.parts else None  # noqa: SIM401 (a ModuleDict has no get)

    def _read(self, batch: Batch) -> tuple[Tensor, Activations]:
        """The last hidden states (N, W), and the activations that objectives need."""
        if not self.qkv_layers:
            return self.model.encoder(batch), Activations({}, {})
        last = self.model.config.encoder.layers
        seen = self.model.encoder.activations(batch, hidden_states=[last], qkv=self.qkv_layers)
        return seen.hidden_states[last], seen


@dataclass(frozen=True)
class Texts:
    """The corpora of one split by source, and their sampling weights."""

    sources: dict[str, Corpus]
    weights: Mapping[str, float] | None = None


class Pretraining:
    """Implements `Trainable` for the training loop."""

    dynamic_shapes = False

    def __init__(self, model: Model, train: Texts, valid: Texts, recipe: PretrainRecipe) -> None:
        assert model.tokenizer is not None
        self.recipe, self.train, self.valid = recipe, train, valid
        self.config, self.tokenizer = model.config, model.tokenizer
        self.before: dict[str, float] = {}
        """The scores before the first step, which data.keep is about."""
        _require_kept(recipe.data.keep, valid)
        self.special_ids = SpecialIds.of(self.tokenizer)
        self.objectives = make_objectives(recipe, self.tokenizer)
        for phase in recipe.phases:
            if phase.length > model.config.encoder.max_length:
                raise BothwaysError(
                    f"a phase has sequences of {phase.length} tokens, but this model reads "
                    f"{model.config.encoder.max_length}",
                    "too-long",
                    phase.length,
                )
        model.encoder.gradient_checkpointing = recipe.run.gradient_checkpointing
        self.module = PretrainingModule(model, self.objectives, recipe.run.seed)
        self.losses: Mapping[str, float] = {
            name: weight * math.prod(other.scales_others for other in self.objectives.values() if other is not one)
            for one in self.objectives.values()
            for name, weight in one.loss_weights.items()
        }
        self.loader = cache(self._loader)
        for number in range(len(recipe.phases)):  # unusable text must fail now, not during the run
            self.loader(number, 1, False)
            if valid.sources:
                self.loader(number, 1, False, "valid")

    def blocks(self) -> Sequence[nn.Module]:
        return list(self.module.model.encoder.blocks)

    def phases(self) -> Sequence[float]:
        return [phase.share for phase in self.recipe.phases]

    # ------------------------------------------------------------------ data

    def _loader(self, phase: int, ranks: int, static_shapes: bool, split: str = "train") -> Loader:
        settings = self.recipe.phases[phase]
        texts = self.train if split == "train" else self.valid
        kind = self.recipe.sampling
        short = max(one.short for one in self.objectives.values())
        samplers = {}
        for name, corpus in texts.sources.items():
            try:
                samplers[name] = make_sampler(kind, corpus, self.special_ids, settings.length, short)
            except BothwaysError as error:
                held_out = "the held-out part of " if split == "valid" else ""
                raise BothwaysError(f"{held_out}the source {name}: {error}", error.code, name) from error
        most = settings.tokens or (settings.sequences or 1) * settings.length
        passes = -(-most // (ranks * max(self.recipe.run.micro_tokens, settings.length)))
        if most // settings.length < ranks * passes:
            raise BothwaysError(
                f"a step of {most // settings.length} sequences of {settings.length} tokens is too small for {ranks} "
                f"processes with {passes} forward passes each: make the step larger",
                "too-few-sequences",
                most // settings.length,
            )
        seed = int(mix(self.recipe.run.seed, phase) >> np.uint64(1)) if split == "train" else _EVALUATION_SEED
        return Loader(
            mixture=Mixture(samplers, texts.weights, seed),
            objectives=list(self.objectives.values()),
            length=settings.length,
            tokens=settings.tokens,
            sequences=settings.sequences,
            groups=ranks * passes,
            static_shapes=static_shapes,
            static=max(one.static for one in self.objectives.values()),
            rate=settings.rate,
        )

    def feed(self, phase: int, index: int, ranks: Ranks, static_shapes: bool) -> Iterator[Step]:
        loader = self.loader(phase, ranks.size, static_shapes)
        return loader.steps(index, range(ranks.rank, loader.groups, ranks.size))

    # ------------------------------------------------------------------ evaluation

    def evaluate(
        self, forward: Forward, phase: int, ranks: Ranks, static_shapes: bool, final: bool
    ) -> dict[str, float]:
        """Loss and accuracy of every objective on the held-out text, over all sources and by source."""
        found: dict[str, float] = {}
        totals: dict[str, list[float]] = {}
        capacity = self.loader(phase, ranks.size, static_shapes).capacity()
        for number, source in enumerate(self.valid.sources):
            one = self._held_out(number, phase, ranks, static_shapes)
            size = min(one.mixture.size, self.recipe.data.valid_sequences)
            sums: list[float] = []
            for plans, counted in ranks.share(one.chunks(size, capacity)):
                micro, counts = one.micro(plans, capacity)
                seen = [*(float(counts[name]) for name in self.losses), *forward(micro).double().tolist()]
                sums = [a + b * counted for a, b in zip(sums or [0.0] * len(seen), seen, strict=True)]
            totals[source] = ranks.sum(sums)
            if final and not self.config.encoder.causal:
                prefix = f"{source}/" if len(self.valid.sources) > 1 else ""
                most = min(size, TOKENS // len(self.valid.sources))
                found[f"{prefix}pseudo_perplexity"] = pseudo_perplexity(one, forward, capacity, ranks, most)
        if not totals:
            return {}
        found |= self._scores([sum(column) for column in zip(*totals.values(), strict=True)], "")
        if len(totals) > 1:
            for source, sums in totals.items():
                found |= self._scores(sums, f"{source}/")
        return found

    def _held_out(self, source: int, phase: int, ranks: Ranks, static_shapes: bool) -> Loader:
        """The loader of the held-out text of one source."""
        every = self.loader(phase, ranks.size, static_shapes, "valid")
        return replace(every, mixture=Mixture({"": every.mixture.samplers[source]}, None, _EVALUATION_SEED))

    def _scores(self, sums: Sequence[float], prefix: str) -> dict[str, float]:
        kinds = len(self.losses)
        scores = {f"{prefix}loss": 0.0}
        counts = dict(zip(self.losses, sums, strict=False))
        for k, (name, weight) in enumerate(self.losses.items()):
            count, loss, correct = sums[k], sums[kinds + k], sums[2 * kinds + k]
            if not count:
                continue
            scores[f"{prefix}loss"] += weight * loss / count
            scores[f"{prefix}{name}_loss"] = loss / count
            if not math.isnan(correct):
                scores[f"{prefix}{name}_accuracy"] = correct / count
        left = list(sums[3 * kinds :])
        for one in self.objectives.values():
            tally, left = left[: one.tallies], left[one.tallies :]
            scores |= {f"{prefix}{name}": value for name, value in one.rates(tally, counts).items()} if tally else {}
        return scores

    def selection_loss(self, scores: Mapping[str, float]) -> float:
        """The loss; with data.keep that of the other sources, if no source to keep has risen."""
        if not self.recipe.data.keep:
            return scores["loss"]
        self.before = self.before or dict(scores)
        if risen(self.recipe.data.keep, self.before, scores):
            return _RISEN
        others = [source for source in self.valid.sources if source not in self.recipe.data.keep]
        return fmean(scores[f"{source}/loss"] for source in others)

    def flops(self, phase: int) -> float:
        """6 for each weight that a token uses, and 12 · width for each token it attends to, in each layer."""
        shape, settings = self.config.encoder, self.recipe.phases[phase]
        layers = shape.layers * (6 * shape.block_weights + 12 * shape.width * settings.length)
        return layers + sum(one.flops(shape, settings.length, settings.rate) for one in self.objectives.values())

    # ------------------------------------------------------------------ folders

    def save(self, weights: Mapping[str, Tensor], folder: Path) -> None:
        """Save a model folder, and the objectives' modules in parts.safetensors; with LoRA, save an adapter, and in
        parts.safetensors the trained weights under our own names."""
        own, parts = _under(weights, "model."), _under(weights, "parts.")
        config = self.config
        for name, objective in self.objectives.items():
            for beside, other in objective.other_models(self.module._part(name), own, parts).items():
                checkpoint.save(other, folder / beside)
            config = objective.folder_config(config)
            objective.to_folder(own, parts)
        with torch.device("meta"):
            model = Model(config, self.tokenizer)
            if self.recipe.lora.rank:
                adapt(model, self.recipe.lora)
        model.load_state_dict(own, assign=True)
        if self.recipe.lora.rank:
            save_adapter(model, str(model_folder(self.recipe.model.init).resolve()), folder / "model")
            parts = trained_of(self.module, weights)
        else:
            checkpoint.save(model, folder / "model")
        if parts:
            safetensors.torch.save_file(parts, folder / "parts.safetensors")

    def load(self, folder: Path) -> dict[str, Tensor]:
        if self.recipe.lora.rank:
            return dict(self.module.named_parameters()) | read_tensors(folder / "parts.safetensors")
        model = load(folder / "model")
        if model.config.encoder != self.config.encoder:
            raise BothwaysError(
                f"{folder} holds a model of another shape than the recipe's: use another `out`", "other-run", folder
            )
        own = model.state_dict()
        file = folder / "parts.safetensors"
        parts = read_tensors(file) if file.exists() else {}
        for objective in self.objectives.values():
            objective.from_folder(own, parts)
        return {f"model.{name}": t for name, t in own.items()} | {f"parts.{name}": t for name, t in parts.items()}


def risen(keep: Mapping[str, float], before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    """The sources to keep whose held-out loss has risen by more than it may."""
    return [name for name, share in keep.items() if after[f"{name}/loss"] > before[f"{name}/loss"] * (1 + share)]


def _require_kept(keep: Mapping[str, float], valid: Texts) -> None:
    if not keep:
        return
    if unknown := set(keep) - set(valid.sources):
        raise BothwaysError(
            f"data.keep names {min(unknown)}, and the sources of the held-out text are "
            f"{', '.join(valid.sources) or 'none'}: name those, and pack with `valid`",
            "unknown-source",
            min(unknown),
        )
    if not set(valid.sources) - set(keep):
        raise BothwaysError("data.keep names all sources: leave out those to adapt to", "unknown-source", tuple(keep))
    for name, share in keep.items():
        require_range(f"data.keep.{name}", share, share >= 0, "0 or more")


def _under(weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
