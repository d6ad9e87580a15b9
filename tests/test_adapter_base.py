"""The base model of an adapter: named by the adapter or by `base`, and never by a path of one machine."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bothways
from bothways.model.adapter_config import name_of_base
from bothways.model.describe import describe
from bothways.model.load import load
from bothways.model.lora import adapt, save_adapter
from bothways.tasks.finetune import finetune
from bothways.text.tokenizer import Tokenizer
from bothways.train.settings import LoraSettings
from helpers import refused
from helpers.adapters import classifier, distance, outputs, peft_adapter, their_outputs
from helpers.cli import Run
from helpers.tasks import CASES, LIMIT, SINGLE, named, quiet, recipe_for, shout, their_folder, written

HUB = "google-bert/bert-base-uncased"


@pytest.fixture
def classified(tmp_path: Path, tokenizer: Tokenizer) -> Path:
    """A classifier's folder as transformers writes it."""
    labels = named(["bad", "good", "so-so"])
    return their_folder(tmp_path / "classified", tokenizer, "BertForSequenceClassification", **labels)


@pytest.fixture
def adapter(classified: Path, tmp_path: Path) -> Path:
    """An adapter as people publish it: its base is a name on the Hub."""
    peft_adapter(classified, tmp_path / "adapter", task_type="SEQ_CLS")
    rename(tmp_path / "adapter", HUB)
    return tmp_path / "adapter"


def rename(adapter: Path, base: object) -> None:
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"base_model_name_or_path": base}))


def named_base(adapter: Path) -> str:
    return str(json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"])


# ---------------------------------------------------------------------- given


def test_the_base_can_be_given(classified: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Whatever the adapter names: a model of the Hub, or another folder."""
    theirs = their_outputs(peft_adapter(classified, tmp_path / "adapter", task_type="SEQ_CLS"))
    other = their_folder(tmp_path / "other", tokenizer, "BertForSequenceClassification", seed=9)
    for name in (HUB, str(other)):
        rename(tmp_path / "adapter", name)
        assert distance(outputs(load(tmp_path / "adapter", base=classified)), theirs) <= LIMIT
        assert distance(outputs(load(tmp_path / "adapter", base=str(classified))), theirs) <= LIMIT
    assert distance(outputs(load(tmp_path / "adapter")), theirs) > 0.1


def test_a_base_on_the_hub_is_not_guessed(adapter: Path, classified: Path) -> None:
    shutil.copytree(classified, adapter.parent / "bert-base-uncased")
    with refused("no-base-model", HUB, names="`base`"):
        load(adapter)


@pytest.mark.parametrize("name", ["", None, ".", "../adapter", "/proc/nowhere"])
def test_an_adapter_without_a_base_is_refused(name: str | None, adapter: Path) -> None:
    rename(adapter, name)
    with refused("no-base-model", name, names="`base`"):
        load(adapter)


@pytest.mark.parametrize("place", ["adapter", "nowhere"])
def test_a_base_that_is_none_is_refused(place: str, adapter: Path) -> None:
    with refused("no-base-model", str(adapter.parent / place)):
        load(adapter, base=adapter.parent / place)


@pytest.mark.parametrize(
    "call",
    [
        lambda folder, base, out: load(folder, base=base),
        lambda folder, base, out: bothways.Predictor.load(folder, base=base),
        lambda folder, base, out: describe(folder, base),
        lambda folder, base, out: bothways.convert(folder, out, base=base),
    ],
)
def test_only_an_adapter_has_a_base(call: Callable[..., Any], classified: Path, tmp_path: Path) -> None:
    with refused("not-an-adapter", classified):
        call(classified, classified, tmp_path / "out")


def test_a_fairseq_file_has_no_base(classified: Path, tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"")
    with refused("not-an-adapter", tmp_path / "model.pt"):
        bothways.convert(tmp_path / "model.pt", tmp_path / "out", base=classified)


def test_functions_take_the_base(adapter: Path, classified: Path, tmp_path: Path) -> None:
    expected = outputs(load(adapter, base=classified))
    predictor = bothways.Predictor.load(adapter, base=classified)
    assert distance(outputs(predictor.model.to("cpu")), expected) <= LIMIT
    bothways.convert(adapter, tmp_path / "merged", base=classified)
    assert distance(outputs(load(tmp_path / "merged")), expected) <= LIMIT
    assert describe(adapter, classified)["adapter_of"] == str(classified.resolve())
    assert describe(tmp_path / "merged")["adapter_of"] is None


def test_commands_take_the_base(adapter: Path, classified: Path, tmp_path: Path, run: Run) -> None:
    data = written(tmp_path, "single")
    shutil.copy(classified / "config.json", adapter)  # where --calibrate writes
    commands = [
        ["info", adapter],
        ["predict", "the cat", "--model", adapter],
        ["evaluate", data, "--model", adapter, "--calibrate"],
        ["encode", data, "--out", tmp_path / "vectors.npy", "--model", adapter],
        ["convert", adapter, tmp_path / "merged"],
    ]
    for command in commands:
        refusal = run(*command)
        assert refusal.returncode == 1
        assert "--base" in refusal.stderr
        assert run(*command, "--base", classified).returncode == 0, command
    assert run("fill", "a [MASK]", "--model", classified, "--base", classified).returncode == 1


# ---------------------------------------------------------------------- named by what we write


def adapted(base: Path) -> Any:
    model = adapt(classifier(base), LoraSettings(rank=2)).eval()
    shout(model)
    return model


def test_an_adapter_and_its_base_can_move_together(base: Path, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    shutil.copytree(base, here / "models/base")
    model = adapted(base)
    save_adapter(model, str(here / "models/base"), here / "runs/first/adapter")
    assert named_base(here / "runs/first/adapter") == "../../../models/base"
    here.rename(there)
    assert distance(outputs(load(there / "runs/first/adapter")), outputs(model)) <= LIMIT


def test_a_folder_of_the_working_directory_is_named_as_any_other(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(base, tmp_path / "base")
    (tmp_path / "real/deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real/deep")
    monkeypatch.chdir(tmp_path)
    save_adapter(adapted(base), "base", Path("link/adapter"))
    assert named_base(tmp_path / "real/deep/adapter") == "../../../base"
    monkeypatch.chdir("/")
    load(tmp_path / "link/adapter")


def test_other_names_are_kept(tmp_path: Path) -> None:
    for name in (HUB, "../base-to-come"):
        assert name_of_base(name, tmp_path / "adapter") == name


def test_a_base_in_the_box_is_named_wherever_the_library_is(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = adapted(base)
    for name in ("one", "two"):
        monkeypatch.setattr("bothways.model.adapter_config.BOX", tmp_path / name / "box")
        shutil.copytree(base, tmp_path / name / "box/en")
        if name == "one":
            save_adapter(model, str(tmp_path / name / "box/en"), tmp_path / "adapter")
            save_adapter(model, str(tmp_path / name / "box/en"), tmp_path / name / "box/task")
            assert named_base(tmp_path / "one/box/task") == "../en"
            shutil.rmtree(tmp_path / "one")
    assert named_base(tmp_path / "adapter") == "bothways/box/en"
    assert distance(outputs(load(tmp_path / "adapter")), outputs(model)) <= LIMIT


def test_a_base_on_another_drive_is_only_named(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def apart(path: object, start: object) -> str:
        raise ValueError("path is on mount 'D:', start on mount 'C:'")

    monkeypatch.setattr(os.path, "relpath", apart)
    with pytest.warns(UserWarning, match="base"):
        assert name_of_base(str(base), tmp_path / "adapter") == base.name


def test_no_file_of_an_adapter_holds_a_path_of_this_machine(base: Path, tmp_path: Path) -> None:
    here = tmp_path / "here"
    shutil.copytree(base, here / "base")
    plan = recipe_for("classify", here / "base", lora=LoraSettings(rank=2), run=quiet(steps=4, keep_state=True))
    finetune(plan, here / "run", train=SINGLE, dev=CASES["single"].examples)
    adapters = [path.parent for path in (here / "run").rglob("adapter_config.json")]
    assert len(adapters) > 1
    for file in (file for adapter in adapters for file in adapter.iterdir()):
        assert str(tmp_path).encode() not in file.read_bytes()
    expected = outputs(load(here / "run/model"))
    here.rename(tmp_path / "there")
    assert distance(outputs(load(tmp_path / "there/run/adapter")), expected) <= LIMIT


def test_a_run_that_was_moved_ends_on_its_base(base: Path, tmp_path: Path) -> None:
    """The base is the recipe's: where a checkpoint of the first half expects it does not matter."""
    plan = recipe_for("classify", base, lora=LoraSettings(rank=2), run=quiet(steps=4, keep_state=True))
    finetune(plan, tmp_path / "one", train=SINGLE, dev=[])
    for name in ("model", "adapter"):
        shutil.rmtree(tmp_path / "one" / name)
    (tmp_path / "far/away").mkdir(parents=True)
    shutil.move(tmp_path / "one", tmp_path / "far/away/one")
    finetune(plan, tmp_path / "far/away/one", train=SINGLE, dev=[])
    load(tmp_path / "far/away/one/adapter")
