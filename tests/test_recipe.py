"""Recipes: strict TOML, changes by --set, keys of version 0.1, and the recipes that are shipped."""

import json
import tomllib
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothways.errors import BothwaysError
from bothways.model.config import Rotary
from bothways.pretraining.pretrain import pretrain
from bothways.pretraining.recipe import (
    Phase,
    PretrainRecipe,
    pretrain_recipe,
    read_recipe,
    shipped_recipes,
    write_recipe,
)
from bothways.tasks.recipe import finetune_recipe, read_finetune_recipe
from bothways.train.settings import RunSettings
from bothways.train.strict_toml import RENAMED, with_settings, write_table
from helpers import refused


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


def test_windows_and_rotary_base_of_a_modernbert(tmp_path: Path) -> None:
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
    ("text", "code", "value"),
    [
        ("[optim]\nlr = 'fast'\n", "wrong-type", "optim.lr"),
        ("[run]\nsteps = 1.5\n", "wrong-type", "run.steps"),
        ("[run]\nsteps = true\n", "wrong-type", "run.steps"),
        ("[run]\nsteps = 5\ncompile = 'yes'\n", "wrong-type", "run.compile"),
        ("[mlm]\nselect = 'words'\n", "unknown-choice", "words"),
        ("[optim]\nbetas = [0.9]\n", "wrong-type", "optim.betas"),
        ("[mlm]\nrate = 1.5\n", "out-of-range", 1.5),
        ("objectives = ['mlm', 'clm']\n", "unknown-choice", "clm"),
        ("objectives = []\n", "bad-objectives", ()),
        ("objectives = ['mlm', 'mlm']\n", "bad-objectives", ("mlm", "mlm")),
        ("objectives = ['mlm', 'nsp', 'sop']\n", "bad-objectives", ("nsp", "sop")),
        ("objectives = ['nsp']\n", "bad-objectives", "nsp"),
        ("[model]\ncausal = true\n", "bad-objectives", "nsp"),
        ("[model]\nwindow = 64\n", "unsupported-by-family", "bert"),
        ("[model]\nrotary = 10000\n", "unsupported-by-family", "bert"),
        ("[model]\nfamily = 'modernbert'\nrotary = 1.0\n", "out-of-range", 1.0),
        ("[run]\nsteps = 5\nminutes = 5\n", "bad-length", {"steps": 5, "minutes": 5.0, "epochs": 0.0}),
        ("[run]\nepochs = 5\n", "bad-length", 5.0),
        ("[run]\nsteps = 5\nkeep = 0\n", "out-of-range", 0),
        ("[[phases]]\nlength = 128\n", "bad-phase", None),
        ("[[phases]]\nlength = 128\nsequences = 0\n", "out-of-range", 0),
        ("[[phases]]\nlength = 128\ntokens = 100\n", "bad-phase", None),
        ("[[phases]]\nlength = 4\nsequences = 1\n", "out-of-range", 4),
        ("[[phases]]\nlength = 128\nsequences = 1\nrate = 1.5\n", "out-of-range", 1.5),
        ("[[phases]]\nlength = 1024\nsequences = 1\n", "too-long", 1024),
        ("phases = []\n", "no-phases", None),
        ("phases = 3\n", "wrong-type", "phases"),
        ("data = 3\n", "wrong-type", "data"),
        ("[settings]\n[settings.mlm]\nrate = 0.3\n", "unknown-key", "settings"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, code: str, value: object) -> None:
    with pytest.raises(BothwaysError) as caught:
        read_recipe(written(tmp_path, text))
    assert caught.value.code == code, str(caught.value)
    assert value is None or caught.value.value == value
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "key", "meant"),
    [
        ("[optim]\nlearning_rate = 1\n", "optim.learning_rate", ""),
        ("[optim]\nwarm_up = 1\n", "optim.warm_up", "warmup"),
        ("[optimizer]\nlr = 1\n", "optimizer", "optim"),
        ("objective = ['mlm']\n", "objective", "objectives"),
        ("[mlm]\nmask_rate = 0.2\n", "mlm.mask_rate", ""),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_known_one(tmp_path: Path, text: str, key: str, meant: str) -> None:
    with pytest.raises(BothwaysError, match=meant or key) as caught:
        read_recipe(written(tmp_path, text))
    assert (caught.value.code, caught.value.value) == ("unknown-key", key)


def test_a_recipe_that_is_not_there_or_not_toml_is_refused(tmp_path: Path) -> None:
    with refused("damaged-file", tmp_path / "recipe.toml"):
        read_recipe(written(tmp_path, "this is not toml"))
    with refused("no-file", tmp_path / "none.toml"):
        read_recipe(tmp_path / "none.toml")
    with refused("no-file", "bert-bass"):
        read_recipe("bert-bass")


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


@pytest.mark.parametrize("wrong", ["optim.lr", "=3", "phases.7.length=3", "phases.one.length=3", "run.steps.more=1"])
def test_a_wrong_set_is_named(tmp_path: Path, wrong: str) -> None:
    with refused("bad-setting", wrong):
        read_recipe(written(tmp_path, SMALL), [wrong])


def test_set_of_an_unknown_key_is_refused(tmp_path: Path) -> None:
    with refused("unknown-key", "optim.lrr"):
        read_recipe(written(tmp_path, SMALL), ["optim.lrr=1"])


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


# ---------------------------------------------------------------------- keys of version 0.1


OLD_KEYS: dict[str, Any] = {
    "model.hidden": 256,
    "model.heads": 4,
    "model.embedding": 64,
    "model.take": 3,
    "optim.decay": 0.3,
    "optim.muon_decay": 0.4,
    "run.recompute": True,
    "run.batch": 7,
    "classify.smoothing": 0.2,
    "classify.focal": 1.5,
    "classify.weights": "balanced",
    "classify.goal": "accuracy",
    "answer.longest": 17,
    "distill.heads": 2,
    "distill.layer": 1,
}
"""Every key of version 0.1 that has another name now, with a value that is not its default."""
PRETRAINING = [key for key in OLD_KEYS if key != "run.batch" and not key.startswith(("classify.", "answer."))]
FINETUNING = [key for key in OLD_KEYS if key == "model.take" or not key.startswith("model.")]


def test_every_old_key_has_a_test() -> None:
    assert set(OLD_KEYS) == set(RENAMED) == {*PRETRAINING, *FINETUNING}


@pytest.mark.parametrize(
    ("kind", "old"), [*(("pretraining", key) for key in PRETRAINING), *(("finetuning", key) for key in FINETUNING)]
)
def test_an_old_key_is_read_with_a_warning(kind: str, old: str, tmp_path: Path) -> None:
    """In a file and by --set; and the recipe is that of the new key."""
    (section, name), new, value = old.split("."), RENAMED[old], OLD_KEYS[old]
    read: Any = read_recipe if kind == "pretraining" else read_finetune_recipe
    base: dict[str, Any] = {"model": {"family": "electra"}} if kind == "pretraining" else {"model": {}}
    base |= {"run": {"steps": 5}} | ({"task": section} if section in ("classify", "answer") else {})

    def by_file(key: str) -> Any:
        changed = base | {section: base.get(section, {}) | {key: value}}
        return read(written(tmp_path, write_table(changed)))

    def by_set(key: str) -> Any:
        return read(written(tmp_path, write_table(base)), [f"{section}.{key}={json.dumps(value)}"])

    found = []
    for make in (by_file, by_set):
        with pytest.warns(UserWarning, match=rf"{section}\.{new}") as caught:
            found.append(make(name))
        assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert found == [by_file(new), by_set(new)]
        assert found[0] == found[1] != read(written(tmp_path, write_table(base)))


def test_the_removed_decoder_of_mlm_is_accepted_if_it_changes_nothing(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_recipe(written(tmp_path, "[mlm]\ndecoder = 'plain'\n")) == PretrainRecipe()
        assert read_recipe(written(tmp_path, ""), ["mlm.decoder=plain"]) == PretrainRecipe()
    with refused("unknown-key", "mlm.decoder"):
        read_recipe(written(tmp_path, "[mlm]\ndecoder = 'enhanced'\n"))
    with refused("unknown-key", "mlm.decoder"):
        read_recipe(written(tmp_path, ""), ["mlm.decoder=enhanced"])


# ---------------------------------------------------------------------- those that come with the library


def test_the_recipes_that_were_promised_are_there() -> None:
    promised = "bert-base bert-large bert-small bert-wwm bothways-small roberta-style spanbert tiny"
    assert set(promised.split()) <= set(shipped_recipes())


@pytest.mark.parametrize("name", sorted(shipped_recipes()))
def test_a_shipped_recipe_says_what_it_is(name: str, tmp_path: Path) -> None:
    recipe = read_recipe(name)
    header = shipped_recipes()[name].read_text(encoding="utf-8").split("\n\n")[0]
    assert all(line.startswith("#") for line in header.splitlines())
    for word in ("# Gives ", "# Takes ", "# Command ", f"bothways pretrain {name} --data"):
        assert word in header, word
    assert pretrain_recipe(tomllib.loads(write_recipe(recipe))) == recipe
    (tmp_path / "finetune.toml").write_text(write_table(recipe.finetune))
    finetune_recipe({"model": {"init": str(tmp_path)}})


def test_electras_advice_is_that_of_its_paper() -> None:
    advised = finetune_recipe(read_recipe("electra-small").finetune).optim
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


def test_an_old_key_beside_its_new_name_is_refused() -> None:
    with refused("repeated-key", "optim.decay"):
        pretrain_recipe({"optim": {"weight_decay": 0.5, "decay": 0.01}})
