"""Masked words learned beside a frozen model: what moves, what is saved, going on exactly, and PEFT opening it."""

from dataclasses import replace
from pathlib import Path

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

from bothways.model.batch import Batch
from bothways.model.load import load
from bothways.model.model import Model
from bothways.pretraining.pretrain import pretrain
from bothways.pretraining.recipe import PretrainRecipe, read_recipe
from bothways.train.settings import LoraSettings
from helpers import refused
from helpers.runs import losses, make_reader, recipe, run_until

IDS = [2, 40, 31, 77, 52, 3]


def plan_for(packed: Path, folder: Path, targets: tuple[str, ...], **run: object) -> PretrainRecipe:
    plan = recipe(packed, **({"steps": 6} | run))
    return replace(
        plan,
        objectives=("mlm",),
        model=replace(plan.model, init=str(folder)),
        lora=LoraSettings(rank=2, targets=targets, dropout=0.1),
    )


def guesses(model: Model) -> Tensor:
    with torch.no_grad():
        return model.masked(model.encoder(Batch.pack([IDS])))


def their_guesses(model: torch.nn.Module) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model.eval()(input_ids=torch.tensor([IDS])).logits[0]
    return logits


@pytest.fixture
def reader(packed: Path, tmp_path: Path) -> Path:
    return make_reader(packed, tmp_path / "reader")


def test_only_the_layers_beside_and_the_head_learn(packed: Path, model_folder: Path, tmp_path: Path) -> None:
    done = pretrain(plan_for(packed, model_folder, ("query", "output.dense"), steps=20), tmp_path / "run")
    assert done.after["mlm_loss"] < done.before["mlm_loss"]
    before, after = load(model_folder), load(done.folder)
    assert set(after.heads) == {"masked"}
    old, new = before.state_dict(), after.state_dict()
    moved = {name for name in new if not torch.equal(old[name], new[name])}
    in_layers = {name for name in moved if name.startswith("encoder.")}
    assert {name.split(".", 3)[3] for name in in_layers} == {
        "attention.qkv.weight",
        "attention.out.weight",
        "feed_forward.down.weight",
    }
    assert moved - in_layers == {name for name in new if name.startswith("heads.masked.")}


@pytest.mark.parametrize("targets", [("query", "value"), ("all-linear",)])
def test_the_adapter_is_the_model_in_little_for_us_and_for_peft(
    targets: tuple[str, ...], packed: Path, model_folder: Path, tmp_path: Path
) -> None:
    done = pretrain(plan_for(packed, model_folder, targets), tmp_path / "run")
    adapter = tmp_path / "run/adapter"
    ours = guesses(load(done.folder))
    assert float((guesses(load(adapter)) - ours).abs().max()) < 1e-5
    assert (
        float((their_guesses(transformers.AutoModelForMaskedLM.from_pretrained(done.folder)) - ours).abs().max()) < 1e-4
    )
    base = transformers.AutoModelForMaskedLM.from_pretrained(model_folder)
    opened = peft.PeftModel.from_pretrained(base, adapter)
    assert float((their_guesses(opened) - ours).abs().max()) < 1e-4
    assert float((guesses(load(model_folder)) - ours).abs().max()) > 1e-3


def test_it_goes_on_bit_for_bit(packed: Path, model_folder: Path, tmp_path: Path) -> None:
    plan = plan_for(packed, model_folder, ("all-linear",), steps=12, save_every=5, keep_state=True)
    pretrain(plan, tmp_path / "whole")
    kept = load_file(tmp_path / "whole/checkpoints/step-00000012/parts.safetensors")
    assert all(".down." in name or ".up." in name or ".heads.masked." in name for name in kept), "more than was trained"
    run_until(plan, tmp_path / "parts", 8)
    pretrain(plan, tmp_path / "parts")
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    for name, tensor in load(tmp_path / "whole/model").state_dict().items():
        assert torch.equal(tensor, load(tmp_path / "parts/model").state_dict()[name]), name


@pytest.mark.parametrize("rank", [0, 2])
def test_a_detector_learns_to_fill_blanks(rank: int, packed: Path, reader: Path, tmp_path: Path) -> None:
    """Its folder calls both heads by the same names, so that the new one takes the place of the old."""
    plan = plan_for(packed, reader, ("all-linear",))
    plan = replace(plan, lora=replace(plan.lora, rank=rank))
    assert set(load(reader).heads) == {"replaced"}
    done = pretrain(plan, tmp_path / "run")
    model = load(done.folder)
    assert set(model.heads) == {"masked"}
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(done.folder)
    assert type(theirs).__name__ == "ModernBertForMaskedLM"
    assert "replaced" not in theirs.config.label2id
    assert float((their_guesses(theirs) - guesses(model)).abs().max()) < 1e-5
    same = load(reader).encoder.state_dict()
    if rank:
        assert torch.equal(same["embeddings.tokens.weight"], model.encoder.embeddings.tokens.weight)
        assert float((guesses(load(tmp_path / "run/adapter")) - guesses(model)).abs().max()) < 1e-5


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        (["lora.rank=4", "objectives=['mlm']"], "no-model"),
        (["lora.rank=4", "model.init=x"], "bad-objectives"),
        (["lora.rank=4", "model.init=x", "objectives=['mlm']", "model.keep_layers=1"], "no-model"),
        (["lora.rank=-1"], "out-of-range"),
    ],
)
def test_what_does_not_go_with_lora_is_refused(settings: list[str], code: str) -> None:
    with refused(code):
        read_recipe("tiny", settings)
