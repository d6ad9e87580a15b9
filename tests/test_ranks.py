"""Several processes: the same training as one, in the same files. They talk over gloo, started by torchrun."""

import itertools
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bothways.model.load import load
from bothways.pretraining.pretrain import pretrain
from bothways.pretraining.recipe import PretrainRecipe, write_recipe
from helpers.runs import calm, losses, recipe, run_until

pytestmark = pytest.mark.slow


def plan_for(packed: Path) -> PretrainRecipe:
    plan = calm(recipe(packed, steps=12, save_every=5))
    return replace(plan, run=replace(plan.run, micro_tokens=128))


def torchrun(plan: PretrainRecipe, out: Path, processes: int, *settings: str) -> str:
    path = out.parent / f"{out.name}.toml"
    path.write_text(write_recipe(plan), encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command += ["-m", "bothways", "pretrain", str(path), "--out", str(out), *(f"--set={s}" for s in settings)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_train_as_one(packed: Path, tmp_path: Path, parallel: str) -> None:
    plan = plan_for(packed)
    plan = replace(plan, run=replace(plan.run, keep_state=True))
    pretrain(plan, tmp_path / "one")
    torchrun(plan, tmp_path / "two", 2, f"run.parallel={parallel}")
    one, two = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert list(one) == list(two) == list(range(1, 13))
    assert max(abs(one[step] - two[step]) for step in one) < 1e-5
    ours, theirs = (load(tmp_path / name / "model").state_dict() for name in ("one", "two"))
    assert max(float((ours[name] - theirs[name]).abs().max()) for name in ours) < 1e-5
    for file in ("model/model.safetensors", "optimizer.safetensors", "state.json"):  # one layout, however many wrote it
        sizes = [(tmp_path / name / "checkpoints/step-00000012" / file).stat().st_size for name in ("one", "two")]
        assert abs(sizes[0] - sizes[1]) <= (40 if file == "state.json" else 0), file


def test_a_run_goes_on_with_another_number_of_processes(packed: Path, tmp_path: Path) -> None:
    """One process, then two that split the weights, then one again."""
    plan = plan_for(packed)
    pretrain(plan, tmp_path / "whole")
    run_until(plan, tmp_path / "parts", 6)
    short = tmp_path / "parts/recipe.toml"
    assert short.exists()
    torchrun(plan, tmp_path / "parts", 2, "run.parallel=fsdp")
    whole, parts = losses(tmp_path / "whole"), losses(tmp_path / "parts")
    assert max(abs(whole[step] - parts[step]) for step in whole) < 1e-5
    lines = [json.loads(line) for line in (tmp_path / "parts/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 13))


def test_ranks_share_the_data_without_overlap(packed: Path) -> None:
    """What two ranks read together is what one reads, each sequence once."""
    from bothways.model.config import ModelConfig
    from bothways.model.model import Model
    from bothways.pretraining.shards import Corpus, open_packed
    from bothways.pretraining.trainable import Pretraining, Texts
    from bothways.train.ranks import Ranks

    plan = plan_for(packed)
    opened = open_packed(packed)
    texts = Texts({name: Corpus(shards) for name, shards in opened.corpora("train").items()})
    model = Model.new(
        ModelConfig(plan.model.encoder(opened.tokenizer.size), ("pooler", "masked", "next")), opened.tokenizer
    )
    work = Pretraining(model, texts, Texts({}), plan)

    def sequences(rank: int, size: int) -> list[list[list[int]]]:
        feed = work.feed(0, 0, Ranks(rank, size), static_shapes=False)
        steps = []
        for _ in range(5):
            rows: list[list[int]] = []
            for micro in next(feed).micros:
                batch = micro.batch
                bounds = batch.cu_seqlens.tolist()
                rows += [batch.ids[a:b].tolist() for a, b in itertools.pairwise(bounds)]
            steps.append(rows)
        return steps

    alone, first, second = sequences(0, 1), sequences(0, 2), sequences(1, 2)
    for one, a, b in zip(alone, first, second, strict=True):
        assert sorted(one) == sorted(a + b)
        assert a
        assert b
        assert torch.tensor(len(a) - len(b)).abs() <= len(one) // 2
