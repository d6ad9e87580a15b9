"""What a fine-tuning recipe leaves open is chosen by the model and the data, and `doctor` proposes the same."""

import shlex
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from bothways.doctor.check_data import check_data
from bothways.model.config import EncoderConfig
from bothways.pretraining.recipe import read_recipe
from bothways.tasks.defaults import settled
from bothways.tasks.finetune import finetune
from bothways.tasks.recipe import (
    FinetuneModel,
    FinetuneRecipe,
    FinetuneRun,
    advice_for,
    finetune_recipe,
    read_finetune_recipe,
    write_finetune_recipe,
)
from bothways.train.settings import LoraSettings
from helpers import refused
from helpers.cli import Run
from helpers.tasks import SINGLE, recipe_for

BASE = EncoderConfig(num_heads=4)
LORA = LoraSettings(rank=4)


def chosen(recipe: FinetuneRecipe, shape: EncoderConfig = BASE, rows: int = 10_000, labels: int = 2) -> FinetuneRecipe:
    return settled(recipe, shape, rows, labels)[0]


def test_a_narrow_model_learns_faster() -> None:
    """In the ranges of the papers, BERT-Large 2e-5 to 3e-5, Base to 5e-5, ELECTRA-Small 3e-4, and of benchmarks/defaults.py."""
    widths = {1024: (2e-5, 3e-5), 768: (2e-5, 5e-5), 384: (1e-4, 2e-4), 256: (2e-4, 3e-4), 128: (3e-4, 5e-4)}
    for width, (low, high) in widths.items():
        assert low <= chosen(FinetuneRecipe(), replace(BASE, width=width)).optim.lr <= high


def test_small_data_and_many_labels_get_more_epochs() -> None:
    def run(rows: int, labels: int, task: str = "classify") -> tuple[int, float]:
        found = chosen(FinetuneRecipe(task), rows=rows, labels=labels).run
        return found.batch_size, found.epochs

    assert run(100_000, 2) == (32, 3)
    assert run(100_000, 2, "answer") == (32, 2)
    assert run(100_000, 0, "embed") == (32, 1)
    assert run(2_000, 2) == (32, 10)
    assert run(5_000, 2) == (32, 8)
    assert run(10_000, 77) == (32, 9)
    assert run(300, 2) == (16, 10)  # and no more, however few they are
    assert run(300, 0, "embed") == (32, 10)  # a smaller batch has fewer negatives


def test_many_labels_get_a_higher_rate() -> None:
    small = replace(BASE, width=384)
    rates = [chosen(FinetuneRecipe(), small, labels=labels).optim.lr for labels in (2, 30, 45, 60, 500)]
    assert rates == [1e-4, 1e-4, 1.5e-4, 2e-4, 2e-4]


def test_only_what_is_open_is_chosen() -> None:
    recipe = finetune_recipe({"optim": {"lr": 1e-3}, "run": {"batch_size": 7, "steps": 5}, "model": {"init": "none"}})
    assert settled(recipe, BASE, 100, 2) == (recipe, "")
    found, words = settled(replace(recipe, run=FinetuneRun(batch_size=7)), BASE, 100, 2)
    assert (found.optim.lr, found.run.batch_size, found.run.epochs) == (1e-3, 7, 10)
    assert words == "chosen: 10 epochs for 100 examples with 2 labels"


def test_adapters_and_heads_learn_faster(tmp_path: Path) -> None:
    whole = chosen(FinetuneRecipe()).optim.lr
    assert chosen(FinetuneRecipe(lora=LORA)).optim.lr == pytest.approx(5 * whole, rel=0.05)
    assert chosen(FinetuneRecipe(model=FinetuneModel(freeze="encoder"))).optim.lr == 1e-3
    (tmp_path / "finetune.toml").write_text("[optim]\nlr = 4e-4\n")  # advice is for all weights
    start = {"model": {"init": str(tmp_path)}, "lora": {"rank": 4}}
    assert finetune_recipe(start).optim.lr == pytest.approx(2e-3)
    assert finetune_recipe({**start, "optim": {"lr": 1e-4}}).optim.lr == 1e-4


def test_a_pretraining_recipe_gives_advice_for_tasks(tmp_path: Path) -> None:
    """As `bothways pretrain` checks it before it starts."""
    recipe = read_recipe("bothways-small")
    assert advice_for("answer", recipe.finetune)["model"] == {"pooling": "mean", "dropout": 0.1}
    assert advice_for("classify", recipe.finetune)["model"] == {"pooling": "mean"}
    with refused("unknown-key", "model.drop"):
        advice_for("tag", {"tasks": {"answer": {"model": {"drop": 0.1}}}})


def test_an_open_recipe_is_written_and_read_back() -> None:
    recipe = FinetuneRecipe(model=FinetuneModel(init="none"))
    again = finetune_recipe(tomllib.loads(write_finetune_recipe(recipe)))
    assert (again.run, again.optim) == (recipe.run, recipe.optim)


def test_advice_for_one_task(tmp_path: Path) -> None:
    """Beside that for all, before it, and behind what is said; a task may have another name."""
    start = {"model": {"init": str(tmp_path)}}
    advice = "[optim]\nlr = 4e-4\nclip = 2.0\n[tasks.ner.model]\ndropout = 0.2\n[tasks.ner.optim]\nlr = 1e-4\n"
    (tmp_path / "finetune.toml").write_text(advice)
    found = {task: finetune_recipe({"task": task, **start}) for task in ("tag", "classify")}
    assert [(one.model.dropout, one.optim.lr, one.optim.clip) for one in found.values()] == [
        (0.2, 1e-4, 2),
        (None, 4e-4, 2),
    ]
    assert finetune_recipe({"task": "tag", **start}, ["model.dropout=0.3"]).model.dropout == 0.3
    for wrong, code in (("tasks.painting.run.epochs = 3", "unknown-task"), ("tasks.tag.optim.rate = 3", "unknown-key"), ("tasks = 3", "bad-setting"), ("tasks.tag = 3", "bad-setting")):  # fmt: skip
        (tmp_path / "finetune.toml").write_text(wrong)
        with refused(code, names=r"finetune\.toml"):
            finetune_recipe({"task": "classify", **start})


@pytest.mark.parametrize("key", ["optim.lr", "run.batch_size", "run.epochs"])
def test_nothing_is_not_a_setting(key: str) -> None:
    with refused("out-of-range", 0, names=key):
        finetune_recipe({"model": {"init": "none"}}, [f"{key}=0"])


def test_a_run_says_and_writes_what_it_chose(tmp_path: Path, model_folder: Path) -> None:
    said: list[str] = []
    open_ = replace(recipe_for("classify", model_folder), run=FinetuneRun(device="cpu"), optim=FinetuneRecipe().optim)
    finetune(open_, tmp_path / "run", train=SINGLE, dev=SINGLE, say=said.append)
    written = read_finetune_recipe(tmp_path / "run/recipe.toml")
    assert (written.optim.lr, written.run.batch_size, written.run.epochs) == (5e-4, 16, 10)
    assert any(words.startswith("chosen: learning rate 0.0005 for a model") for words in said)
    again = finetune(open_, tmp_path / "run", train=SINGLE, dev=SINGLE)  # it is the same run
    assert again.complete


def test_doctor_proposes_what_fine_tuning_does(tmp_path: Path, model_folder: Path, run: Run) -> None:
    """Its command, run as it is printed, and the same without settings."""
    train = tmp_path / "train.tsv"
    train.write_text("text\tlabel\n" + "".join(f"the cat runs {i}\t{'ab'[i % 2]}\n" for i in range(9)))
    (model_folder / "finetune.toml").write_text("[optim]\nlr = 3e-4\n[run]\nepochs = 2\n")
    found = check_data([train], model=model_folder)
    assert found.plan is not None
    assert (found.plan.lr, found.plan.epochs, found.plan.steps) == (3e-4, 2, 2)
    assert "finetune.toml advises" in found.plan.why
    words = shlex.split(found.command)[1:]
    words[words.index("--out") + 1] = str(tmp_path / "proposed")
    run(*words)
    run("finetune", "classify", "--train", train, "--model", model_folder, "--out", tmp_path / "plain")
    proposed, plain = (read_finetune_recipe(tmp_path / name / "recipe.toml") for name in ("proposed", "plain"))
    assert proposed == plain
