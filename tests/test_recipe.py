"""Recipes: strict TOML, changes by --set, and the recipes that are shipped."""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothways.errors import BothwaysError
from bothways.model.config import Rotary
from bothways.pretraining.pretrain import pretrain
from bothways.pretraining.recipe import Phase, PretrainRecipe, read_recipe, shipped_recipes
from bothways.tasks.recipe import FinetuneRecipe
from bothways.train.settings import RunSettings
from bothways.train.strict_toml import read, with_settings


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(text, encoding="utf-8")
    return path


SMALL = "[run]\nsteps = 5\n[[phases]]\nlength = 128\ntokens = 1024\n"


def test_a_recipe_is_read(tmp_path: Path) -> None:
    recipe = read_recipe(written(tmp_path, 'objectives = ["mlm"]\n[optim]\nlr = 3e-4\nbetas = [0.9, 0.98]\n' + SMALL))
    assert recipe.objectives == ("mlm",)
    assert recipe.optim.betas == (0.9, 0.98)
    assert recipe.phases == (Phase(length=128, tokens=1024),)


def test_sight_and_angles_of_a_modernbert(tmp_path: Path) -> None:
    usual = read_recipe(written(tmp_path, '[model]\nfamily = "modernbert"\n' + SMALL)).model
    assert usual.encoder(100).windows[:4] == (0, 64, 64, 0)
    changed = replace(usual, window=8, rotary=10_000.0)
    shape = changed.encoder(100)
    assert shape.windows[:4] == (0, 8, 8, 0)
    assert isinstance(shape.positions, Rotary)
    assert (shape.positions.base, shape.positions.local_base) == (10_000, 10_000)
    assert usual.shaped_as("modernbert", shape).encoder(100) == shape
    assert replace(usual, window=0).encoder(100).windows == ()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[optim]\nlearning_rate = 1\n", "no key optim.learning_rate"),
        ("[optim]\nwarm_up = 1\n", "did you mean warmup"),
        ("[optimizer]\nlr = 1\n", "did you mean optim"),
        ("objective = ['mlm']\n", "did you mean objectives"),
        ("[optim]\nlr = 'fast'\n", "optim.lr should be a number, not 'fast'"),
        ("[run]\nsteps = 1.5\n", "run.steps should be a whole number, not 1.5"),
        ("[run]\nsteps = true\n", "run.steps should be a whole number, not True"),
        ("[run]\nsteps = 5\ncompile = 'yes'\n", "run.compile should be true or false"),
        ("[mlm]\nselect = 'words'\n", "mlm.select cannot be 'words': expected token, word, span"),
        ("[optim]\nbetas = [0.9]\n", "optim.betas should have 2 entries, not 1"),
        ("[mlm]\nrate = 1.5\n", "mlm.rate must lie between 0 and 1"),
        ("objectives = ['mlm', 'clm']\n", "no objective 'clm'"),
        ("objectives = ['mlm', 'nsp', 'sop']\n", "choose one of them"),
        ("objectives = ['nsp']\n", "needs the objective mlm"),
        ("[model]\ncausal = true\n", "left-to-right"),
        ("[model]\nwindow = 64\n", "bert has no layers of narrow sight"),
        ("[model]\nrotary = 10000\n", "model.rotary is 10000, and bert has no rotary positions"),
        ("[model]\nfamily = 'modernbert'\nrotary = 1.0\n", "above 1, not 1"),
        ("[run]\nsteps = 5\nminutes = 5\n", "it has run.steps = 5 and run.minutes = 5"),
        ("[[phases]]\nlength = 128\n", "tokens or sequences"),
        ("[[phases]]\nlength = 1024\nsequences = 1\n", "model.positions is 512"),
        ("phases = 3\n", "phases should be a list"),
        ("data = 3\n", "data should be a table"),
        ("this is not toml", "is not a TOML file"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(BothwaysError) as caught:
        read_recipe(written(tmp_path, text))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_set_changes_any_key(tmp_path: Path) -> None:
    settings = ["optim.lr=3e-5", "run.minutes=2", "run.steps=0", "phases.0.length=64", "mlm.select=word",
                "data.train=['a', 'b']", "data.weights.a=0.25", "objectives=['mlm']"]  # fmt: skip
    recipe = read_recipe(written(tmp_path, SMALL), settings)
    assert recipe.optim.lr == 3e-5
    assert (recipe.run.minutes, recipe.run.steps) == (2.0, 0)
    assert recipe.phases[0].length == 64
    assert recipe.settings["mlm"].select == "word"
    assert recipe.data.train == ("a", "b")
    assert recipe.data.weights == {"a": 0.25}


@pytest.mark.parametrize("wrong", ["optim.lr", "=3", "phases.7.length=3", "run.steps.more=1", "optim.lrr=1"])
def test_a_wrong_set_is_named(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(BothwaysError, match=r"--set|no key"):
        read_recipe(written(tmp_path, SMALL), [wrong])


def test_set_leaves_the_table_alone() -> None:
    table = {"run": {"steps": 5}}
    assert with_settings(table, ["run.steps=6"]) == {"run": {"steps": 6}}
    assert table == {"run": {"steps": 5}}


@given(
    lr=st.floats(1e-7, 1.0),
    steps=st.integers(1, 10**9),
    weights=st.dictionaries(st.text(min_size=1, max_size=5), st.floats(0.01, 1), max_size=3),
    phases=st.lists(st.tuples(st.floats(0.1, 1), st.integers(8, 512)), min_size=1, max_size=3),
)
def test_what_is_written_is_read_back(lr: float, steps: int, weights: dict[str, float], phases: list[Any]) -> None:
    recipe = PretrainRecipe(run=RunSettings(steps=steps), phases=tuple(Phase(s, n, sequences=3) for s, n in phases))
    recipe = replace(recipe, optim=replace(recipe.optim, lr=lr), data=replace(recipe.data, weights=weights))
    assert pretrain_recipe(tomllib.loads(write_recipe(recipe))) == recipe


# ---------------------------------------------------------------------- those that come with the library


def test_the_recipes_that_were_promised_are_there() -> None:
    promised = "bert-base bert-large bert-small bert-wwm bothways-small roberta-style spanbert tiny"
    assert set(promised.split()) <= set(shipped_recipes())


@pytest.mark.parametrize("name", sorted(shipped_recipes()))
def test_a_shipped_recipe_says_what_it_is(name: str) -> None:
    recipe = read_recipe(name)
    header = shipped_recipes()[name].read_text(encoding="utf-8").split("\n\n")[0]
    assert all(line.startswith("#") for line in header.splitlines())
    for word in ("# Gives ", "# Takes ", "# Command ", f"bothways pretrain {name} --data"):
        assert word in header, word
    assert pretrain_recipe(tomllib.loads(write_recipe(recipe))) == recipe
    read(FinetuneRecipe, recipe.finetune)


def test_electras_advice_is_that_of_its_paper() -> None:
    advised = read(FinetuneRecipe, read_recipe("electra-small").finetune).optim
    assert (advised.lr, advised.layer_decay, advised.warmup, advised.schedule) == (3e-4, 0.8, 0.1, "linear")


def test_bert_base_is_the_papers_recipe_to_the_number() -> None:
    recipe = read_recipe("bert-base")
    shape = recipe.model.encoder(30_522)
    assert (shape.layers, shape.width, shape.num_heads, shape.ffn_width, shape.max_length) == (12, 768, 12, 3072, 512)
    assert (shape.dropout, shape.attention_dropout, shape.activation) == (0.1, 0.1, "gelu")
    assert recipe.objectives == ("mlm", "nsp")
    assert (
        recipe.settings["mlm"].rate,
        recipe.settings["mlm"].mask,
        recipe.settings["mlm"].random,
        recipe.settings["mlm"].select,
    ) == (0.15, 0.8, 0.1, "token")
    optim = recipe.optim
    assert (optim.name, optim.lr, optim.betas, optim.weight_decay) == ("adamw", 1e-4, (0.9, 0.999), 0.01)
    assert (optim.schedule, optim.warmup) == ("linear", 10_000)
    assert recipe.run.steps == 1_000_000
    assert [(p.share, p.length, p.sequences) for p in recipe.phases] == [(0.9, 128, 256), (0.1, 512, 256)]


def test_bert_large_differs_in_size_only() -> None:
    base, large = read_recipe("bert-base"), read_recipe("bert-large")
    shape = large.model.encoder(30_522)
    assert (shape.layers, shape.width, shape.num_heads, shape.ffn_width) == (24, 1024, 16, 4096)
    assert replace(large, model=base.model) == base


def test_whole_word_and_span_recipes_select_so() -> None:
    assert read_recipe("bert-wwm").settings["mlm"].select == "word"
    spanbert = read_recipe("spanbert")
    assert (
        spanbert.settings["mlm"].select,
        spanbert.settings["mlm"].span_mean,
        spanbert.settings["mlm"].span_longest,
    ) == ("span", 5.0, 10)
    assert spanbert.objectives == ("mlm", "sbo")
    albert = read_recipe("albert-base")
    assert (albert.settings["mlm"].select, albert.settings["mlm"].span_shares) == ("span", (6, 3, 2))
    assert albert.objectives == ("mlm", "sop")
    roberta = read_recipe("roberta-style")
    assert (roberta.objectives, roberta.sampling, roberta.settings["mlm"].static) == (("mlm",), "stream", 0)


@pytest.mark.usefixtures("unhurried")
def test_tiny_trains(packed: Path, tmp_path: Path) -> None:
    """As shipped but for the clock."""
    recipe = read_recipe("tiny", ["run.minutes=0.1", "data.valid_sequences=20", "run.evaluate_every=0"])
    result = pretrain(replace(recipe, data=replace(recipe.data, train=(str(packed),))), tmp_path / "run")
    assert result.complete
    assert result.after["mlm_loss"] < result.before["mlm_loss"]
    assert (tmp_path / "run/curve.png").exists()
