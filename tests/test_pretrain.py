"""From raw text to a trained model, as a user goes: commands, continued pretraining, mixing of sources."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import bothways
from bothways.cli import app
from bothways.errors import BothwaysError
from bothways.pretraining.pack import pack
from bothways.pretraining.pretrain import pretrain
from bothways.pretraining.recipe import PretrainRecipe
from bothways.text.tokenizer import Tokenizer
from bothways.train.optim import OptimSettings
from bothways.train.protocol import Event, Stepped
from helpers import refused
from helpers.runs import calm, recipe

ENGLISH = "The cat sleeps in the house. The dog runs to the tree. A small cat reads."
CHINESE = "北京是中国的首都。巴黎是法国的首都。猫是猫，狗是狗。"


@pytest.mark.usefixtures("unhurried")
def test_from_raw_text_to_a_filled_blank(tmp_path: Path) -> None:
    """English and Chinese in one corpus: vocabulary, pack, pretrain, fill."""
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join([ENGLISH, CHINESE] * 30), encoding="utf-8")
    valid = tmp_path / "valid.txt"
    valid.write_text("\n\n".join([ENGLISH, CHINESE] * 30), encoding="utf-8")
    run = CliRunner()

    def call(*words: object) -> str:
        done = run.invoke(app, [str(word) for word in words])
        assert done.exit_code == 0, done.output
        return done.stdout

    call("vocab", "train", text, "--size", 200, "--out", tmp_path / "vocabulary")
    report = json.loads(
        call("pack", text, "--model", tmp_path / "vocabulary", "--valid", valid, "--out", tmp_path / "packed", "--json")
    )
    assert report["documents"] == 120
    assert report["valid_documents"] == 60
    small = ["run.steps=200", "run.minutes=0", "model.width=48", "model.ffn_width=96", "phases.0.length=32",
             "phases.0.tokens=512", "run.device=cpu", "data.valid_sequences=20", "optim.lr=5e-3"]  # fmt: skip
    settings = [part for setting in small for part in ("--set", setting)]
    command = ["pretrain", "tiny", "--data", tmp_path / "packed", "--out", tmp_path / "run", *settings]
    table = call(*command)
    assert "mlm_accuracy" in table
    assert "before" in table
    result = json.loads(call(*command, "--json"))  # it is finished, and says so again
    assert result["complete"] is True
    assert result["before"]["mlm_accuracy"] < 0.2
    assert result["after"]["mlm_accuracy"] > 0.5
    assert Path(result["folder"]) == tmp_path / "run/model"
    model = bothways.load(tmp_path / "run/model")
    for blank, word in (("The cat sleeps in the [MASK].", "house"), ("北京是中国的首[MASK]。", "都")):
        assert (word,) in [answer.words for answer in bothways.fill(blank, model, top=2)]
    assert (tmp_path / "run/curve.png").stat().st_size > 10_000
    steps = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert all(step["mfu"] is None for step in steps if "mfu" in step)  # the peak rate of a CPU is not known


def test_every_key_of_the_recipe_is_kept_with_the_run(packed: Path, tmp_path: Path) -> None:
    plan = recipe(packed, steps=2)
    pretrain(plan, tmp_path / "run")
    assert bothways.read_recipe(tmp_path / "run/recipe.toml") == plan


def test_packed_text_that_is_named_twice_is_read_once(packed: Path, tmp_path: Path) -> None:
    cards = []
    for name, folders in (("once", [packed]), ("twice", [packed, packed / ".." / packed.name])):
        plan = recipe(packed, steps=1)
        plan = replace(plan, data=replace(plan.data, train=tuple(map(str, folders))))
        pretrain(plan, tmp_path / name)
        (card,) = [
            line for line in (tmp_path / name / "model/README.md").read_text().splitlines() if "training data" in line
        ]
        cards.append(card)
    assert cards[0] == cards[1]


# ---------------------------------------------------------------------- going on from a model


def continued(packed: Path, folder: Path, **run: object) -> PretrainRecipe:
    plan = calm(recipe(packed, **({"steps": 6} | run)))
    return replace(plan, model=replace(plan.model, init=str(folder)))


def test_pretraining_goes_on_from_a_model(packed: Path, model_folder: Path, tmp_path: Path) -> None:
    """Step 0 is the model itself, whatever its shape; what it had not, it gets."""
    start = bothways.load(model_folder)
    result = pretrain(continued(packed, model_folder), tmp_path / "run")
    trained = bothways.load(tmp_path / "run/model")
    assert trained.config.encoder == start.config.encoder
    assert result.before["loss"] > result.after["loss"]
    moved = [not torch.equal(a, b) for a, b in zip(start.parameters(), trained.parameters(), strict=True)]
    assert all(moved)


def test_heads_that_no_objective_trains_stay_as_they_were(packed: Path, model_folder: Path, tmp_path: Path) -> None:
    start = bothways.load(model_folder)
    plan = replace(continued(packed, model_folder), objectives=("mlm",))
    pretrain(plan, tmp_path / "run")
    trained = bothways.load(tmp_path / "run/model")
    for name in ("pooler", "next"):
        for a, b in zip(start.heads[name].parameters(), trained.heads[name].parameters(), strict=True):
            assert torch.equal(a, b), name


def test_a_missing_head_is_added(packed: Path, model_folder: Path, tmp_path: Path) -> None:
    """From a bare encoder, as embedding models come."""
    from bothways.model.config import ModelConfig
    from bothways.model.model import Model

    start = bothways.load(model_folder)
    bare = Model.new(ModelConfig(start.config.encoder), start.tokenizer)
    bare.encoder = start.encoder
    bothways.save(bare, tmp_path / "bare")
    said: list[str] = []
    pretrain(continued(packed, tmp_path / "bare"), tmp_path / "run", say=said.append)
    assert any("bare" in words and "masked" in words for words in said)
    assert set(bothways.load(tmp_path / "run/model").heads) == {"pooler", "masked", "next"}


def test_the_report_shows_both_sources_before_and_after(packed: Path, model_folder: Path, tmp_path: Path) -> None:
    """Domain text with general text replayed beside it: weighted, and both watched."""
    plan = continued(packed, model_folder, steps=10)
    plan = replace(plan, data=replace(plan.data, weights={"first": 0.8, "second": 0.2}))
    result = pretrain(plan, tmp_path / "run")
    for source in ("first", "second"):
        for when in (result.before, result.after):
            assert {f"{source}/mlm_loss", f"{source}/mlm_accuracy", f"{source}/nsp_accuracy"} <= set(when)
    assert result.after["first/mlm_loss"] < result.before["first/mlm_loss"]
    # One that is of the first source alone would hide what the others lost.
    perplexities = {name for name in result.after if "perplexity" in name}
    assert perplexities == {"first/pseudo_perplexity", "second/pseudo_perplexity"}


def test_a_source_with_weight_zero_is_evaluated_and_not_trained_on(
    packed: Path, model_folder: Path, tmp_path: Path
) -> None:
    plan = continued(packed, model_folder)
    plan = replace(plan, data=replace(plan.data, weights={"first": 1.0, "second": 0.0}))
    result = pretrain(plan, tmp_path / "run")
    assert "second/mlm_loss" in result.after


@pytest.mark.parametrize(
    ("data", "code", "value"),
    [
        ({"weights": {"first": 1.0}}, "unknown-source", ("second",)),
        ({"weights": {"first": 1.0, "second": 1.0, "third": 1.0}}, "unknown-source", ("third",)),
        ({"weights": {"first": 0.0, "second": 0.0}}, "out-of-range", {"first": 0.0, "second": 0.0}),
        ({"train": ()}, "no-data", None),
        ({"train": ("nowhere",)}, "not-a-packed-folder", Path("nowhere")),
    ],
)
def test_data_that_cannot_be_trained_on_is_refused(
    packed: Path, tmp_path: Path, data: dict[str, Any], code: str, value: object
) -> None:
    plan = recipe(packed)
    with refused(code, value):
        pretrain(replace(plan, data=replace(plan.data, **data)), tmp_path / "run")


def test_a_model_that_is_not_there_is_refused(packed: Path, tmp_path: Path) -> None:
    plan = recipe(packed)
    with refused("no-folder"):
        pretrain(replace(plan, model=replace(plan.model, init="nowhere")), tmp_path / "run")


def test_another_tokenizer_is_refused(packed: Path, tmp_path: Path) -> None:
    from bothways.model.config import ModelConfig
    from bothways.model.model import Model
    from bothways.text.tokenizer import Tokenizer
    from helpers import PIECES, TINY

    other = Model.new(ModelConfig(TINY, ("masked",)), Tokenizer.from_pieces(PIECES, lower=False))
    bothways.save(other, tmp_path / "other")
    with refused("other-tokenizer", str(tmp_path / "other")):
        pretrain(continued(packed, tmp_path / "other"), tmp_path / "run")


# ---------------------------------------------------------------------- objectives, end to end


@pytest.mark.parametrize(
    ("objectives", "select"),
    [(("mlm",), "token"), (("mlm", "sop"), "word"), (("mlm", "sbo"), "span"), (("mlm", "nsp", "sbo"), "span")],
)
def test_objectives_mix_freely_and_learn(
    packed: Path, tmp_path: Path, objectives: tuple[str, ...], select: str
) -> None:
    plan = calm(recipe(packed, steps=40, save_every=25, keep_state=True))
    plan = replace(
        plan,
        objectives=objectives,
        optim=OptimSettings(lr=5e-3),
        settings={**plan.settings, "mlm": replace(plan.settings["mlm"], select=select)},
    )
    result = pretrain(plan, tmp_path / "run")
    assert result.after["loss"] < result.before["loss"]
    assert {f"{name}_accuracy" for name in objectives} <= set(result.after)
    assert (tmp_path / "run/checkpoints/step-00000040/parts.safetensors").exists() == ("sbo" in objectives)


def test_left_to_right_is_a_baseline(packed: Path, tmp_path: Path) -> None:
    """The causal model learns, says so in its folder, and does not pretend to fill blanks from both sides."""
    plan = calm(recipe(packed, steps=40))
    plan = replace(plan, objectives=("mlm",), model=replace(plan.model, causal=True), optim=OptimSettings(lr=5e-3))
    result = pretrain(plan, tmp_path / "run")
    assert result.after["mlm_loss"] < result.before["mlm_loss"]
    assert "pseudo_perplexity" not in result.after
    model = bothways.load(tmp_path / "run/model")
    assert model.config.encoder.causal
    with pytest.raises(BothwaysError):
        bothways.fill("the cat [MASK]", model)


def test_without_held_out_text_nothing_is_evaluated(tmp_path: Path, packed: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join([ENGLISH] * 20), encoding="utf-8")
    bothways.pack([text], bothways.Tokenizer.load(packed), tmp_path / "packed")
    said: list[str] = []
    result = pretrain(recipe(tmp_path / "packed", steps=2), tmp_path / "run", say=said.append)
    assert result.after == {}
    assert any("`valid`" in words for words in said)
    assert any("`dedup`" in words for words in said)
    assert any("optim.warmup is 3 steps" in words and "2" in words for words in said)


def test_other_text_under_the_same_name_is_noticed(packed: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    """A run that goes on must go on with the text it had."""
    data = tmp_path / "data"
    shutil.copytree(packed, data)
    plan = recipe(data, steps=2)
    pretrain(plan, tmp_path / "run")
    shutil.rmtree(data)
    (tmp_path / "other.txt").write_text("\n\n".join("The cat runs. The dog sleeps." for _ in range(40)))
    pack([tmp_path / "other.txt"], tokenizer, data, valid=0.1)
    with refused("other-data", tmp_path / "run"):
        pretrain(plan, tmp_path / "run")


def test_a_folder_that_is_no_run_is_refused(packed: Path, tmp_path: Path) -> None:
    for folder in (packed, tmp_path):
        (tmp_path / "mine.txt").write_text("mine")
        before = sorted(file.name for file in folder.iterdir())
        with refused("other-files", folder):
            pretrain(recipe(packed, steps=2), folder)
        assert sorted(file.name for file in folder.iterdir()) == before


def test_two_cannot_train_in_one_folder(packed: Path, tmp_path: Path) -> None:
    def start_another(event: Event) -> None:
        if isinstance(event, Stepped):
            with refused("locked-folder", tmp_path / "run"):
                pretrain(recipe(packed, steps=2), tmp_path / "run")

    pretrain(recipe(packed, steps=2), tmp_path / "run", listen=[start_another])


def test_the_recipe_that_is_kept_has_the_shape_of_the_model_it_began_with(packed: Path, tmp_path: Path) -> None:
    pretrain(recipe(packed, steps=1), tmp_path / "first")
    second = continued(packed, tmp_path / "first/model", steps=1)
    second = replace(second, model=replace(second.model, width=64))
    pretrain(second, tmp_path / "second")
    assert bothways.read_recipe(tmp_path / "second/recipe.toml").model.width == 32
    pretrain(second, tmp_path / "second")  # and it is known again
