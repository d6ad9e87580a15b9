"""Small pretraining runs that several test modules share."""

import functools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from bothways.hash_rng import mix
from bothways.pretraining.objective import MaskingVocabulary
from bothways.pretraining.objectives.mlm import MaskedLMSettings
from bothways.pretraining.objectives.rtd import ReplacedTokenSettings
from bothways.pretraining.pretrain import _model, _one_tokenizer, _texts, pretrain
from bothways.pretraining.recipe import Phase, PretrainData, PretrainModel, PretrainRecipe
from bothways.pretraining.sampler import RawSequences
from bothways.pretraining.shards import open_packed
from bothways.pretraining.trainable import Pretraining
from bothways.text.tokenizer import Tokenizer
from bothways.text.train_vocab import FIRST_PIECES
from bothways.train.optim import OptimSettings
from bothways.train.protocol import Event, Stepped
from bothways.train.settings import RunSettings
from helpers import PIECES, make_loud

PHASES = (Phase(share=0.6, length=16, tokens=256), Phase(share=0.4, length=32, tokens=512))


def recipe(packed: Path, **run: Any) -> PretrainRecipe:
    """A small run with dropout, two phases, and everything that could go wrong in a resume."""
    return PretrainRecipe(
        data=PretrainData(train=(str(packed),), valid_sequences=20),
        model=PretrainModel(width=32, layers=2, num_heads=2, ffn_width=64, positions=32),
        optim=OptimSettings(lr=1e-3, warmup=3),
        run=RunSettings(**{"steps": 20, "device": "cpu", "seed": 3, **run}),
        phases=PHASES,
    )


def calm(plan: PretrainRecipe) -> PretrainRecipe:
    """Without dropout: what differs then differs for another reason."""
    return replace(plan, model=replace(plan.model, dropout=0.0, attention_dropout=0.0))


def losses(out: Path) -> dict[int, float]:
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row["loss"] for row in rows if "loss" in row}


class PlugError(Exception):
    """Pulls the plug: nothing of the loop's own runs after it."""


def run_until(plan: PretrainRecipe, out: Path, step: int) -> None:
    def pull(event: Event) -> None:
        if isinstance(event, Stepped) and event.step == step:
            raise PlugError

    with pytest.raises(PlugError):
        pretrain(plan, out, listen=[pull])


CLS, SEP, MASK = 101, 102, 103


Numbers = NDArray[np.int64]


Sequenced = list[list[int]]
"""A sequence: one text or two, each as the sizes of its words in tokens."""


def make_rows(sequences: Sequence[Sequenced], seed: int = 0, ids: int | None = None) -> RawSequences:
    """[CLS] A [SEP], or [CLS] A [SEP] B [SEP], of random tokens; or of one token only."""
    draws = np.random.default_rng(seed)
    tokens: list[Numbers] = []
    segments: list[int] = []
    sizes: list[int] = []
    lengths: list[int] = []
    for texts in sequences:
        for kind, words in enumerate(texts):
            size = sum(words)
            text = draws.integers(len(FIRST_PIECES), len(PIECES), size) if ids is None else np.full(size, ids)
            tokens += [np.array([CLS][kind:]), text, np.array([SEP])]
            segments += [kind] * (size + 2 - kind)
            sizes += [*[1][kind:], *words, 1]
        lengths.append(sum(map(sum, texts)) + 1 + len(texts))
    flat = np.concatenate(tokens).astype(np.int64)
    starts = np.zeros(len(flat), bool)
    starts[np.cumsum([0, *sizes[:-1]])] = True
    keys = mix(seed, np.arange(len(sequences)))
    follows = draws.integers(0, 2, len(sequences)) if all(len(texts) == 2 for texts in sequences) else None
    special = (flat == CLS) | (flat == SEP)
    return RawSequences(flat, np.array(segments), np.cumsum([0, *lengths]), starts, special, keys, follows)


@functools.cache
def vocabulary() -> MaskingVocabulary:
    words = MaskingVocabulary.of(Tokenizer.from_pieces(PIECES))
    assert words is not None
    return words


def work_of(plan: PretrainRecipe) -> Pretraining:
    packed = [open_packed(folder) for folder in plan.data.train]
    train, valid = (_texts(packed, plan, split) for split in ("train", "valid"))
    work = Pretraining(_model(plan, _one_tokenizer(packed)), train, valid, plan)
    make_loud(work.module, seed=1)
    with torch.no_grad():
        for parameter in work.module.parameters():
            parameter.mul_(0.5)
    return work


def make_reader(packed: Path, out: Path) -> Path:
    """A ModernBERT that has learned to find replaced tokens, and has no head for words."""
    plan = calm(recipe(packed, steps=2))
    plan = replace(
        plan,
        objectives=("mlm", "rtd"),
        model=replace(plan.model, family="modernbert"),
        settings={
            "mlm": MaskedLMSettings(mask=1.0, random=0.0),
            "rtd": ReplacedTokenSettings(width=1.0, layers=0.5),
        },
    )
    return pretrain(plan, out).folder
