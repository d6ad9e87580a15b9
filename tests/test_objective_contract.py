"""What every objective of the registry promises: a new one is covered by being in OBJECTIVES."""

import ast
import dataclasses
import math
import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import bothways
from bothways.errors import BothwaysError
from bothways.model.checkpoint import save
from bothways.model.config import ModelConfig
from bothways.model.families import FAMILIES
from bothways.model.model import Model
from bothways.pretraining.objectives import OBJECTIVES, heads_for
from bothways.pretraining.pretrain import _model, _texts
from bothways.pretraining.recipe import (
    Phase,
    PretrainData,
    PretrainModel,
    PretrainRecipe,
    pretrain_recipe,
    write_recipe,
)
from bothways.pretraining.shards import open_packed
from bothways.pretraining.trainable import Pretraining
from bothways.text.tokenizer import Tokenizer
from bothways.train.ranks import Ranks
from bothways.train.settings import RunSettings
from helpers import TINY, make_loud, refused

NAMES = tuple(OBJECTIVES)
SHAPE = PretrainModel(width=32, layers=2, num_heads=2, ffn_width=64, positions=48, dropout=0.0, attention_dropout=0.0)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Path:
    model = Model.new(ModelConfig(TINY, ("masked",)), tokenizer)
    make_loud(model)
    folder = tmp_path_factory.mktemp("teacher") / "model"
    save(model, folder)
    return folder


def recipe_of(name: str, packed: Path, teacher: Path) -> PretrainRecipe:
    """A small recipe that uses this objective, with its default settings as far as it can work with them."""
    objective = OBJECTIVES[name]
    switches: dict[str, Any] = {"distill": {"teacher": str(teacher)}}  # objectives that their settings turn on
    for family in FAMILIES:
        try:
            recipe = PretrainRecipe(
                objectives=tuple(dict.fromkeys((*objective.requires, name))),
                settings={name: replace(objective.Settings(), **switches.get(name, {}))},
                data=PretrainData(train=(str(packed),), valid_sequences=20),
                model=replace(SHAPE, family=family),
                run=RunSettings(steps=2, device="cpu"),
                phases=(Phase(length=32, tokens=512),),
            )
        except BothwaysError as error:
            if error.code != "family-without-head":
                raise
            continue
        assert name in recipe.active
        return recipe
    raise AssertionError(f"no family has the heads of {name}")


@pytest.fixture(params=NAMES)
def work(request: pytest.FixtureRequest, packed: Path, teacher: Path) -> Pretraining:
    recipe = recipe_of(request.param, packed, teacher)
    opened = [open_packed(packed)]
    train, valid = (_texts(opened, recipe, split) for split in ("train", "valid"))
    work = Pretraining(_model(recipe, opened[0].tokenizer), train, valid, recipe)
    make_loud(work.module, seed=1)
    return work


@pytest.mark.parametrize("name", NAMES)
def test_an_objective_is_a_part_of_a_recipe(name: str) -> None:
    """Its name is the part's; its settings are frozen, have defaults that work, and are read back as written."""
    objective = OBJECTIVES[name]
    assert objective.name == name
    assert name not in {field.name for field in fields(PretrainRecipe)}
    assert dataclasses.is_dataclass(objective.Settings)
    settings: Any = objective.Settings()
    for field in fields(objective.Settings):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(settings, field.name, None)
    recipe = PretrainRecipe()
    assert recipe.settings[name] == settings
    table = tomllib.loads(write_recipe(recipe))
    assert set(table.get(name, {})) == {field.name for field in fields(objective.Settings)}
    assert pretrain_recipe(table) == recipe
    with refused("unknown-key", f"{name}.nothing"):
        pretrain_recipe({name: {"nothing": 1}})


@pytest.mark.parametrize("name", NAMES)
def test_an_objective_names_others_that_exist(name: str, packed: Path, teacher: Path) -> None:
    """And what it requires or excludes is checked."""
    objective = OBJECTIVES[name]
    assert {*objective.requires, *objective.excludes} <= set(NAMES) - {name}
    assert objective.wraps in ("", *objective.requires)
    assert not set(objective.requires) & set(objective.excludes)
    recipe = recipe_of(name, packed, teacher)
    if objective.requires:
        with refused("bad-objectives", name):
            replace(recipe, objectives=(name,))
    for other in objective.excludes:
        both = recipe_of(other, packed, teacher)
        objectives = tuple(dict.fromkeys((*recipe.objectives, *both.objectives)))
        settings = recipe.settings | {other: both.settings[other]}
        with refused("bad-objectives"):
            replace(recipe, objectives=objectives, settings=settings, model=both.model)


@pytest.mark.parametrize("name", NAMES)
def test_an_objective_that_is_named_is_used(name: str) -> None:
    """One that only its settings turn on is not left off in silence."""
    objectives = tuple(dict.fromkeys((*OBJECTIVES[name].requires, name)))
    try:
        used = PretrainRecipe(objectives=objectives).active
    except BothwaysError as error:
        if error.code not in ("family-without-head", "bad-objectives"):
            raise
    else:
        assert name in used


def test_every_loss_has_a_count_and_a_weight(work: Pretraining) -> None:
    objectives = work.objectives.values()
    names = [name for one in objectives for name in one.loss_weights]
    assert len(set(names)) == len(names)
    assert set(work.losses) == set(names) == set(work.module.names)
    assert all(weight > 0 and math.isfinite(weight) for weight in work.losses.values())
    step = next(work.feed(0, 0, Ranks(), static_shapes=False))
    assert set(step.counts) == set(names)
    assert all(count > 0 for count in step.counts.values())
    [micro] = step.micros
    losses = work.module.train()(micro.batch, micro.targets)
    assert losses.shape == (len(names),)
    assert bool((losses > 0).all())
    assert bool(torch.isfinite(losses).all())
    losses.sum().backward()
    trained = [p for p in work.module.parameters() if p.requires_grad]
    assert any(p.grad is not None and bool(p.grad.any()) for p in trained)
    for part in work.module.parts.values():  # what an objective trains beside the model gets a gradient
        assert any(p.grad is not None and bool(p.grad.any()) for p in part.parameters())
    assert math.isfinite(work.flops(0))
    assert work.flops(0) > 0


def test_scores_are_those_of_every_loss_and_padding_changes_none(work: Pretraining) -> None:
    def forward(micro: Any) -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = work.module.eval()(micro.batch, micro.targets)
        assert len(found) == 2 * len(work.losses) + sum(one.tallies for one in work.objectives.values())
        return found

    plain, padded = (work.evaluate(forward, 0, Ranks(), static, final=False) for static in (False, True))
    assert {f"{name}_loss" for name in work.losses} <= set(plain)
    expected = sum(weight * plain[f"{name}_loss"] for name, weight in work.losses.items())
    assert plain["loss"] == pytest.approx(expected)
    assert plain.keys() == padded.keys()
    for name, value in plain.items():
        assert padded[name] == pytest.approx(value, rel=1e-4), name


def test_batches_of_static_shapes_all_have_one_shape(work: Pretraining) -> None:
    steps = work.feed(0, 0, Ranks(), static_shapes=True)
    micros = [micro for _ in range(3) for micro in next(steps).micros]
    shapes = [{name: target.shape for name, target in micro.targets.items()} for micro in micros]
    assert shapes[0] == shapes[1] == shapes[2]
    assert len({(micro.batch.ids.shape, micro.batch.cu_seqlens.shape) for micro in micros}) == 1


def test_all_weights_are_saved_and_loaded_to_the_last_bit(work: Pretraining, tmp_path: Path) -> None:
    """The model as a folder that opens by itself, with the heads that it trains; the rest beside it."""
    weights = {name: p.detach().clone() for name, p in work.module.named_parameters()}
    work.save(weights, tmp_path)
    assert (tmp_path / "parts.safetensors").exists() == any("parts." in name for name in weights)
    assert set(heads_for(work.objectives)) <= set(bothways.load(tmp_path / "model").heads)
    loaded = work.load(tmp_path)
    assert set(weights) <= set(loaded)
    for name, weight in weights.items():
        assert torch.equal(loaded[name], weight), name


@pytest.mark.parametrize("file", ["trainable", "recipe", "pretrain"])
def test_the_rest_of_pretraining_knows_no_objective_by_name(file: str) -> None:
    """But for the default of PretrainRecipe.objectives: what belongs to one objective stands in its own file."""
    path = Path(bothways.__file__).parent / f"pretraining/{file}.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    default: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == PretrainRecipe.__name__:
            [own] = [
                one for one in node.body if isinstance(one, ast.AnnAssign) and ast.unparse(one.target) == "objectives"
            ]
            default = set(ast.walk(own))
    assert (len(default) > 0) == (file == "recipe")
    literals = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value in NAMES and node not in default
    ]
    assert [(node.lineno, node.value) for node in literals] == []
