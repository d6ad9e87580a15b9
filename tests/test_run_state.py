"""What is left of a complete run: its model and its progress, and the state of training only if asked for."""

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bothways.model.load import load
from bothways.tasks.finetune import finetune
from bothways.tasks.recipe import FinetuneRecipe
from bothways.train.optim import OptimSettings
from bothways.train.state import Checkpoints
from helpers import refused
from helpers.tasks import SINGLE, quiet, recipe_for

FLAT = OptimSettings(lr=1e-3, warmup=2, schedule="constant")


def plan_of(base: Path, **run: Any) -> FinetuneRecipe:
    return recipe_for("classify", base, optim=FLAT, run=quiet(**{"steps": 4, "save_every": 2, **run}))


def trained(plan: FinetuneRecipe, out: Path) -> Any:
    return finetune(plan, out, train=SINGLE, dev=SINGLE)


def same(one: Path, other: Path) -> bool:
    ours, theirs = load(one).state_dict(), load(other).state_dict()
    return all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_complete_run_keeps_no_state(base: Path, tmp_path: Path) -> None:
    first = trained(plan_of(base), tmp_path / "run")
    names = {path.name for path in (tmp_path / "run").iterdir()} - {"curve.png"}
    assert names == {".lock", "recipe.toml", "data.json", "metrics.jsonl", "model", "state.json"}
    before = (tmp_path / "run/model/model.safetensors").read_bytes()
    assert trained(plan_of(base), tmp_path / "run") == first
    assert (tmp_path / "run/model/model.safetensors").read_bytes() == before


@pytest.mark.parametrize("length", [{"steps": 8}, {"steps": 0, "epochs": 4.0}])
def test_a_run_without_state_says_why_it_cannot_be_longer(base: Path, tmp_path: Path, length: dict[str, Any]) -> None:
    trained(plan_of(base), tmp_path / "run")
    with refused("state-dropped", 4, names=r"dropped.*run\.keep_state"):
        trained(plan_of(base, **length), tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize(("short", "long"), [({"steps": 4}, {"steps": 8}), ({"steps": 0, "epochs": 2.0}, {"steps": 0, "epochs": 4.0})])  # fmt: skip
def test_with_its_state_a_flat_run_becomes_the_longer_one(
    base: Path, tmp_path: Path, short: dict[str, Any], long: dict[str, Any]
) -> None:
    trained(plan_of(base, **short, keep_state=True), tmp_path / "parts")
    assert (tmp_path / "parts/checkpoints").exists()
    found = trained(plan_of(base, **long), tmp_path / "parts")
    whole = trained(plan_of(base, **long), tmp_path / "whole")
    assert (found.steps, found.scores) == (whole.steps, whole.scores)
    assert same(tmp_path / "parts", tmp_path / "whole")
    assert not (tmp_path / "parts/checkpoints").exists()


def test_a_schedule_that_has_ended_does_not_begin_again(base: Path, tmp_path: Path) -> None:
    plan = replace(plan_of(base, keep_state=True), optim=OptimSettings(lr=1e-3))
    trained(plan, tmp_path / "run")
    with refused("lr-jump", 4):
        trained(replace(plan, run=replace(plan.run, steps=8)), tmp_path / "run")


def test_a_run_that_stopped_early_stays_stopped(base: Path, tmp_path: Path) -> None:
    plan = plan_of(base, keep_state=True, patience=1, steps=8)
    plan = replace(plan, optim=replace(FLAT, lr=1e-9))  # nothing gets better
    found = trained(plan, tmp_path / "run")
    assert found.steps < 8
    with refused("run-over", found.steps):
        trained(replace(plan, run=replace(plan.run, steps=9)), tmp_path / "run")


def test_a_state_that_is_no_longer_wanted_is_dropped(base: Path, tmp_path: Path) -> None:
    first = trained(plan_of(base, keep_state=True), tmp_path / "run")
    assert list((tmp_path / "run/checkpoints").glob("*/optimizer.safetensors"))
    assert trained(plan_of(base), tmp_path / "run") == first
    assert not (tmp_path / "run/checkpoints").exists()


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before the state", "before the rename", "before the removal", "in the removal"])
def test_a_kill_while_dropping_loses_nothing(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The model was written before; what is left is dropped by the same command."""
    whole = trained(plan_of(base), tmp_path / "whole")
    out = tmp_path / "run"

    class KilledError(BaseException):
        pass

    def die(*_: Any, **__: Any) -> Any:
        raise KilledError

    def half(path: Path, **_: Any) -> None:
        if path.exists() and path.name == ".checkpoints.dropped":
            next(path.rglob("optimizer.safetensors")).unlink()
            raise KilledError

    with monkeypatch.context() as patch:
        if moment == "before the state":
            patch.setattr(Checkpoints, "finish", die)
        elif moment == "before the rename":
            patch.setattr(Path, "rename", die)
        elif moment == "before the removal":
            rename = Path.rename
            patch.setattr(Path, "rename", lambda self, target: (rename(self, target), die()))
        else:
            patch.setattr(shutil, "rmtree", half)
        with pytest.raises(KilledError):
            trained(plan_of(base), out)
    assert same(out, tmp_path / "whole")
    found = trained(plan_of(base), out)
    assert replace(found, folder=whole.folder) == whole
    assert same(out, tmp_path / "whole")
    assert not [name for name in os.listdir(out) if "checkpoints" in name]


def test_a_complete_run_whose_model_is_gone_is_not_called_complete(base: Path, tmp_path: Path) -> None:
    trained(plan_of(base), tmp_path / "run")
    shutil.rmtree(tmp_path / "run/model")
    with refused("no-model", tmp_path / "run"):
        trained(plan_of(base), tmp_path / "run")
