"""What stands for a model folder: the folder of a run, and the name of a model in the Hugging Face cache."""

import json
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import bothways
from bothways.cli import app
from bothways.errors import BothwaysError
from bothways.model.box import model_folder
from bothways.model.hub_cache import cached_model, hub_cache, name_in_hub
from bothways.model.load import load
from bothways.predict.predictor import Predictor
from bothways.tasks.finetune import finetune
from bothways.tasks.recipe import finetune_recipe
from bothways.train.protocol import Event, Saved
from bothways.train.settings import LoraSettings
from helpers import refused
from helpers.tasks import RELATED_TEXTS, SINGLE, quiet, recipe_for

VARIABLES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME")


class PlugError(Exception):
    pass


def stopped(recipe: Any, out: Path) -> None:
    """A run that is killed after its first checkpoint."""

    def pull(event: Event) -> None:
        if isinstance(event, Saved):
            raise PlugError

    with pytest.raises(PlugError):
        finetune(recipe, out, train=SINGLE, dev=[], listen=[pull])


def told(*words: object) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture(scope="module")
def run(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "my-run"
    finetune(recipe_for("classify", base), folder, train=SINGLE, dev=SINGLE)
    return folder


# ---------------------------------------------------------------------- runs


def test_a_run_stands_for_its_model(run: Path, tmp_path: Path) -> None:
    text = SINGLE[0].texts[0]
    assert Predictor.load(run)(text) == Predictor.load(run / "model")(text)
    assert np.array_equal(bothways.encode([text], run), bothways.encode([text], str(run / "model")))
    assert json.loads(told("predict", text, "--model", run, "--json")) == json.loads(
        told("predict", text, "--model", run / "model", "--json")
    )
    told("convert", run, tmp_path / "copy")
    assert torch.equal(*(load(f).encoder.embeddings.tokens.weight for f in (tmp_path / "copy", run)))
    assert finetune_recipe({"model": {"init": str(run)}}).model.init == str(run / "model")


def test_info_tells_of_a_run(run: Path) -> None:
    facts = json.loads(told("info", run, "--json"))
    assert facts["folder"] == str(run / "model")
    assert {"config.json", "model.safetensors", "README.md"} <= set(facts["files"])
    own = facts["run"]
    assert (own["complete"], own["steps"], own["has_state"]) == (True, 4, False)
    assert {"recipe.toml", "metrics.jsonl", "model/config.json"} <= set(own["files"])
    shown = told("info", run)
    assert "complete: 4 steps" in shown
    assert "recipe.toml" in shown
    assert json.loads(told("info", "en", "--json"))["run"] is None


def test_a_run_with_an_adapter_stands_for_the_merged_model(base: Path, tmp_path: Path) -> None:
    out = tmp_path / "lora"
    plan = recipe_for("classify", base, lora=LoraSettings(rank=2))
    finetune(plan, out, train=SINGLE, dev=[])
    text = SINGLE[0].texts[0]
    merged, adapter = Predictor.load(out)(text), Predictor.load(out / "adapter")(text)
    assert merged["label"] == adapter["label"]
    assert merged["score"] == pytest.approx(adapter["score"], abs=1e-5)


@pytest.mark.parametrize("rank", [0, 2])
def test_a_run_without_a_model_yet_is_refused_by_a_sentence(base: Path, tmp_path: Path, rank: int) -> None:
    plan = recipe_for("classify", base, lora=LoraSettings(rank=rank), run=quiet(steps=4, save_every=2))
    stopped(plan, tmp_path / "run")
    for open_it in (load, Predictor.load, model_folder, lambda folder: bothways.encode(["x"], folder)):
        with refused("incomplete-run", tmp_path / "run", names=r"not complete.*step-00000002"):
            open_it(tmp_path / "run")
    done = CliRunner().invoke(app, ["info", str(tmp_path / "run")])
    assert isinstance(done.exception, BothwaysError)
    assert (
        load(tmp_path / "run/checkpoints/step-00000002").config.labels
        == load(tmp_path / "run/checkpoints/step-00000002/model").config.labels
    )


# ---------------------------------------------------------------------- the cache of the Hub


@pytest.fixture
def cache(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As huggingface_hub lays it out: snapshots of links into blobs, and a name for the newest."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "hub/models--some-org--small-bert"
    snapshot = home / "snapshots" / ("a" * 40)
    for folder in (snapshot, home / "blobs", home / "refs"):
        folder.mkdir(parents=True)
    for number, file in enumerate(sorted(base.iterdir())):
        shutil.copy(file, home / "blobs" / str(number))
        (snapshot / file.name).symlink_to(Path("../../blobs") / str(number))
    (home / "refs/main").write_text("a" * 40)
    return tmp_path / "hub"


NAME = "some-org/small-bert"


def test_a_model_in_the_cache_opens_by_its_name(cache: Path, base: Path, tmp_path: Path) -> None:
    judged = huggingface_hub.snapshot_download(NAME, cache_dir=cache, local_files_only=True)
    assert model_folder(NAME) == Path(judged)
    assert torch.equal(*(load(f).encoder.embeddings.tokens.weight for f in (NAME, base)))
    assert np.array_equal(bothways.encode(["the cat"], NAME), bothways.encode(["the cat"], base))
    assert json.loads(told("info", NAME, "--json"))["folder"] == judged
    assert json.loads(told("vocab", "show", "the cat", "--model", NAME, "--json"))
    told("convert", NAME, tmp_path / "own")


def test_a_model_in_the_cache_is_trained_from(cache: Path, base: Path, tmp_path: Path) -> None:
    plan = recipe_for("classify", NAME, lora=LoraSettings(rank=2))  # type: ignore[arg-type]
    finetune(plan, tmp_path / "run", train=SINGLE, dev=[])
    named = json.loads((tmp_path / "run/adapter/adapter_config.json").read_text())["base_model_name_or_path"]
    assert named == NAME
    card = huggingface_hub.ModelCard.load(tmp_path / "run/model/README.md")
    assert card.data.base_model == NAME
    text = SINGLE[0].texts[0]
    assert Predictor.load(tmp_path / "run/adapter")(text)["label"] == Predictor.load(tmp_path / "run")(text)["label"]
    shutil.rmtree(cache)
    with refused("no-base-model", NAME):
        load(tmp_path / "run/adapter")
    assert load(tmp_path / "run/adapter", base=base).config.labels


def test_teachers_and_guides_are_found_by_name(cache: Path, base: Path, tmp_path: Path) -> None:
    """Of sentence vectors, by the run that made them; of a student, in the cache."""
    from bothways.tasks.embed_settings import EmbedSettings
    from bothways.train.distill import DistillSettings

    finetune(recipe_for("embed", base), tmp_path / "vectors", train=RELATED_TEXTS, dev=[])
    guided = EmbedSettings(guide=str(tmp_path / "vectors"))
    assert finetune(
        recipe_for("embed", base, settings=guided), tmp_path / "guided", train=RELATED_TEXTS, dev=[]
    ).complete
    taught = DistillSettings(teacher=NAME, soft=0.0, cosine=1.0)
    plan = recipe_for("classify", base, distill=taught)
    assert finetune(plan, tmp_path / "student", train=SINGLE, dev=[]).complete
    assert f"distilled from {NAME}" in (tmp_path / "student/model/README.md").read_text()


def test_a_folder_of_that_name_wins(cache: Path, base: Path, tmp_path: Path) -> None:
    shutil.copytree(base, tmp_path / NAME)
    assert model_folder(NAME) == Path(NAME)
    assert cached_model(NAME) is not None


def test_what_is_not_there_is_told_with_the_place(cache: Path) -> None:
    for name in ("some-org/large-bert", "large-bert"):
        with refused("no-folder", names=f"{name}.*{cache}.*never downloads"):
            load(name)
        with refused("no-folder", names=f"{name}.*{cache}"):
            Predictor.load(name)
    (cache / "models--some-org--small-bert/refs/main").unlink()
    with refused("no-folder", names=str(cache)):
        load(NAME)
    done = CliRunner().invoke(app, ["vocab", "show", "x", "--model", NAME])
    assert isinstance(done.exception, BothwaysError)
    assert str(cache) in str(done.exception)


def test_the_cache_is_where_their_library_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os
    import subprocess
    import sys

    clean = {key: value for key, value in os.environ.items() if key not in VARIABLES}
    ask = "import huggingface_hub.constants as c; print(c.HF_HUB_CACHE)"
    for given in ({}, {"HF_HOME": "a"}, {"XDG_CACHE_HOME": "b"}, dict(zip(VARIABLES, "cdef", strict=True)), {"HF_HOME": "a", "HUGGINGFACE_HUB_CACHE": "~/g"}):  # fmt: skip
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        done = subprocess.run(
            [sys.executable, "-c", ask], env=clean | given, check=True, capture_output=True, text=True
        )
        assert str(hub_cache()) == done.stdout.strip(), given


def test_names_of_snapshots(tmp_path: Path) -> None:
    assert name_in_hub(tmp_path / "models--a--b-c/snapshots/f00") == "a/b-c"
    assert name_in_hub(tmp_path / "models--bert/snapshots/f00") == "bert"
    assert name_in_hub(tmp_path / "models/snapshots/f00") is None


def test_the_cache_is_not_written_into(cache: Path) -> None:
    from bothways.predict.evaluation import Evaluation, calibrate

    found = Evaluation("classify", "accuracy", (0.0, 1.0), 1, {}, temperature=2.0)
    with refused("not-own-folder", NAME):
        calibrate(NAME, found)
