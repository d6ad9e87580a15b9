"""Batches: pure functions of (seed, index), the same however they are split, mixed by weight, filled up harmlessly."""

import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bothways.model.config import ModelConfig
from bothways.model.model import Model
from bothways.pretraining.loader import Loader, Mixture
from bothways.pretraining.objectives import make_objectives
from bothways.pretraining.objectives.mlm import MaskedLMSettings
from bothways.pretraining.recipe import PretrainRecipe
from bothways.pretraining.sampler import SamplingKind, SpecialIds, make_sampler
from bothways.pretraining.shards import Corpus, open_packed
from bothways.pretraining.trainable import PretrainingModule
from bothways.text.tokenizer import Tokenizer
from bothways.train.protocol import MicroBatch, Step
from helpers import TINY, make_loud

KINDS: list[tuple[SamplingKind, tuple[str, ...]]] = [
    ("documents", ("mlm",)),
    ("stream", ("mlm",)),
    ("next", ("mlm", "nsp")),
    ("order", ("mlm", "sop")),
    ("documents", ("mlm", "sbo")),
]


def make_loader(packed: Path, kind: SamplingKind, names: tuple[str, ...], seed: int = 0, **more: Any) -> Loader:
    opened = open_packed(packed)
    masked = MaskedLMSettings(select="span" if "sbo" in names else "token")
    objectives = make_objectives(PretrainRecipe(names, {"mlm": masked}), opened.tokenizer)
    special_ids = SpecialIds.of(opened.tokenizer)
    samplers = {
        name: make_sampler(kind, Corpus(shards), special_ids, 24, 0.1)
        for name, shards in opened.corpora("train").items()
    }
    settings = {"length": 24, "tokens": 512, "sequences": None, "groups": 1, "static_shapes": False} | more
    weights = settings.pop("weights", None)
    return Loader(Mixture(samplers, weights, seed), list(objectives.values()), **settings)


def sequences(step: Step) -> list[tuple[int, ...]]:
    found = []
    for micro in step.micros:
        bounds = micro.batch.cu_seqlens.tolist()
        found += [tuple(micro.batch.ids[a:b].tolist()) for a, b in itertools.pairwise(bounds) if b > a]
    return found


@pytest.mark.parametrize(("kind", "names"), KINDS)
def test_a_step_is_a_function_of_its_index(packed: Path, kind: SamplingKind, names: tuple[str, ...]) -> None:
    """Step by step, or asked for out of order by another loader: the same bits."""
    first, again = (make_loader(packed, kind, names) for _ in range(2))
    feed, index, seen = first.steps(0, range(1)), 0, []
    for _ in range(6):
        step = next(feed)
        seen.append((index, step))
        index += step.sequences
    for index, step in reversed(seen):
        other = again.step(index, range(1), again.capacity())
        assert sequences(other) == sequences(step)
        for name, target in step.micros[0].targets.items():
            assert torch.equal(target, other.micros[0].targets[name])
    assert sequences(make_loader(packed, kind, names, seed=1).step(0, range(1), first.capacity())) != sequences(
        seen[0][1]
    )


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "names"), KINDS)
@pytest.mark.parametrize("groups", [2, 3, 4])
def test_splitting_a_step_changes_nothing_in_it(
    packed: Path, kind: SamplingKind, names: tuple[str, ...], groups: int
) -> None:
    tokens = 24 * 24  # a multiple, so that full sequences can be split evenly
    whole = make_loader(packed, kind, names, tokens=tokens)
    parts = replace(whole, groups=groups)
    for index in (0, 17, 400):
        one = whole.step(index, range(1), whole.capacity())
        split = [parts.step(index, range(rank, groups, groups), parts.capacity()) for rank in range(groups)]
        assert [s for step in split for s in sequences(step)] == sequences(one)
        assert {(step.tokens, step.sequences) for step in split} == {(one.tokens, one.sequences)}
        for name, count in one.counts.items():
            assert sum(step.counts[name] for step in split) == count
        sizes = [step.micros[0].tokens for step in split]
        assert max(sizes) - min(sizes) <= 2 * 24


@pytest.mark.parametrize(("kind", "names"), KINDS)
def test_a_step_is_as_full_as_it_can_be(packed: Path, kind: SamplingKind, names: tuple[str, ...]) -> None:
    loader = make_loader(packed, kind, names)
    feed = loader.steps(0, range(1))
    for _ in range(20):
        step = next(feed)
        assert 512 - 24 < step.tokens <= 512
    counted = replace(loader, tokens=None, sequences=16)
    assert {next(counted.steps(i, range(1))).sequences for i in (0, 5, 99)} == {16}


def test_an_epoch_has_every_sequence_once(packed: Path) -> None:
    loader = make_loader(packed, "documents", ("mlm",))
    mixture = loader.mixture
    for epoch in (0, 1):
        index = np.arange(epoch * mixture.size, (epoch + 1) * mixture.size)
        places = [(plan.source, int(a)) for plan in mixture.plan(index) for a in plan.spans.a]
        assert len(set(places)) == mixture.size
    first, second = (mixture.build(mixture.plan(np.arange(n, n + 50))).ids for n in (0, mixture.size))
    assert first.tolist() != second.tolist()


@pytest.mark.parametrize("weights", [{"first": 0.25, "second": 0.75}, {"first": 1.0, "second": 3.0}])
def test_weights_hold_exactly_in_every_thousand(packed: Path, weights: dict[str, float]) -> None:
    mixture = make_loader(packed, "documents", ("mlm",), weights=weights).mixture
    for start in (0, 1_000, 57_000):
        plans = mixture.plan(np.arange(start, start + 1_000))
        assert {plan.source: len(plan.here) for plan in plans} == {0: 250, 1: 750}
    # The sources are shuffled into one another, and each is read through before it begins again.
    plans = mixture.plan(np.arange(10_000))
    gaps = np.diff(plans[0].here)
    assert gaps.mean() == pytest.approx(4, abs=0.05)
    assert gaps.max() < 80
    for plan, part in zip(plans, mixture.samplers, strict=True):
        seen = Counter(plan.spans.a.tolist())
        assert len(seen) == part.size
        assert max(seen.values()) - min(seen.values()) <= 1


@pytest.mark.parametrize(("kind", "names"), KINDS)
def test_fillers_change_no_loss_and_no_gradient(
    packed: Path, tokenizer: Tokenizer, kind: SamplingKind, names: tuple[str, ...]
) -> None:
    config = replace(TINY, dropout=0.0, attention_dropout=0.0)
    model = Model.new(ModelConfig(config, ("pooler", "masked", "next")), tokenizer, seed=1)
    make_loud(model)
    loader = make_loader(packed, kind, names, groups=2)
    static_shapes = replace(loader, static_shapes=True)
    module = PretrainingModule(model, {name: loader.objectives[i] for i, name in enumerate(names)}, 0)

    def run(micro: MicroBatch) -> tuple[torch.Tensor, list[torch.Tensor]]:
        losses = module(micro.batch, micro.targets)
        trained = [p for p in module.parameters() if p.requires_grad]
        return losses.detach(), list(torch.autograd.grad(losses.sum(), trained))

    shapes = set()
    for index in (0, 30, 77):
        plain = loader.step(index, range(1), loader.capacity()).micros[0]
        filled = static_shapes.step(index, range(1), static_shapes.capacity()).micros[0]
        shapes.add((filled.batch.ids.shape, filled.batch.cu_seqlens.shape, *(t.shape for t in filled.targets.values())))
        assert filled.tokens == plain.tokens <= filled.batch.ids.shape[0]
        for ours, theirs in zip(run(plain)[1] + [run(plain)[0]], run(filled)[1] + [run(filled)[0]], strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4 * max(1.0, ours.abs().max().item()))
    assert len(shapes) == 1


def test_static_masks_come_back(packed: Path) -> None:
    """BERT masked its text ten times over: with static = 2 the third epoch is masked as the first."""
    loader = make_loader(packed, "documents", ("mlm",), static=2)
    epochs = []
    for epoch in range(3):
        found: dict[tuple[int, ...], tuple[int, ...]] = {}
        index = np.arange(epoch * loader.mixture.size, (epoch + 1) * loader.mixture.size)
        plans = loader.mixture.plan(index, loader.static)
        micro, _ = loader.micro(plans, replace(loader.capacity(), tokens=10**6, sequences=10**5))
        clean = loader.mixture.build(plans)
        for a, b in zip(clean.cu_seqlens, clean.cu_seqlens[1:], strict=False):
            found[tuple(clean.ids[a:b].tolist())] = tuple(micro.batch.ids[a:b].tolist())
        epochs.append(found)
    assert epochs[0].keys() == epochs[1].keys() == epochs[2].keys()
    assert epochs[0] == epochs[2]
    assert epochs[0] != epochs[1]
