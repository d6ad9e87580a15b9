"""LoRA: nothing at the start, the same as PEFT after training, in PEFT's files both ways, and nothing else touched."""

import json
import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import peft
import pytest
import safetensors.torch
import torch
import transformers
from torch import Tensor

from bothways.model.config import ModelConfig
from bothways.model.families import FAMILIES
from bothways.model.load import load
from bothways.model.lora import Adapted, adapt, save_adapter
from bothways.model.model import Model
from bothways.predict.predictor import Predictor
from bothways.tasks.finetune import finetune
from bothways.tasks.recipe import FinetuneModel, FinetuneRecipe
from bothways.train.protocol import Event, Stepped
from bothways.train.settings import LoraSettings
from helpers import TINY, refused
from helpers.adapters import classifier, compare_spans, distance, outputs, their_outputs
from helpers.tasks import CASES, CHOICES, LIMIT, SINGLE, quiet, recipe_for, shout

TARGETS = {
    "query and value": ("query", "value"),
    "key": ("key",),
    "feed-forward": ("intermediate.dense", "output.dense"),
    "attention only": ("attention.output.dense", "query"),
    "all": ("all-linear",),
}


def small_ones(model: Model, kinds: tuple[str, ...] = ("down", "up")) -> set[str]:
    """The names of the parameters that LoRA has added."""
    return {
        f"{place}.{kind}.{part}"
        for place, layer in model.named_modules()
        if isinstance(layer, Adapted)
        for kind in kinds
        for part in getattr(layer, kind)
    }


# ---------------------------------------------------------------------- the layer


@pytest.mark.parametrize("name", TARGETS)
def test_it_begins_as_the_base_and_only_its_own_weights_and_the_head_train(name: str, base: Path) -> None:
    model = classifier(base)
    before = outputs(model)
    frozen = {n: p.clone() for n, p in model.named_parameters() if n.startswith("encoder.")}
    adapted = adapt(model, LoraSettings(rank=2, targets=TARGETS[name]), seed=1).eval()
    assert torch.equal(outputs(adapted), before)
    trained = {n for n, p in adapted.named_parameters() if p.requires_grad}
    assert trained == small_ones(adapted) | {f"heads.{n}" for n, _ in adapted.heads.named_parameters()}
    assert all(float(adapted.get_parameter(n).abs().sum().detach()) > 0 for n in small_ones(adapted, ("down",)))
    kept = {n.replace(".base.", "."): p for n, p in adapted.named_parameters() if n not in small_ones(adapted)}
    assert all(torch.equal(kept[n], p) for n, p in frozen.items())
    shout(adapted)
    assert distance(outputs(adapted), before) > 0.1


@pytest.mark.parametrize("name", TARGETS)
def test_loaded_it_is_the_same_model_worked_into_the_weights(name: str, base: Path, tmp_path: Path) -> None:
    settings = LoraSettings(rank=3, alpha=5.0, targets=TARGETS[name])
    adapted = adapt(classifier(base), settings).eval()
    shout(adapted)
    save_adapter(adapted, str(base), tmp_path / "adapter")
    plain = load(tmp_path / "adapter")
    assert not any(isinstance(part, Adapted) for part in plain.modules())
    assert distance(outputs(plain), outputs(adapted)) <= LIMIT
    assert distance(outputs(plain), outputs(classifier(base))) > 0.1


def test_dropout_is_for_training_only_and_for_the_small_layers_only(base: Path) -> None:
    adapted = adapt(classifier(base), LoraSettings(rank=2, dropout=0.5))
    shout(adapted)
    assert torch.equal(outputs(adapted.eval()), outputs(adapted.eval()))
    torch.manual_seed(0)
    assert not torch.equal(outputs(adapted.train()), outputs(adapted.train()))
    with torch.no_grad():
        for name in small_ones(adapted, ("up",)):
            adapted.get_parameter(name).zero_()
    assert torch.equal(outputs(adapted.train()), outputs(adapted.eval()))


PLACES = ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
          "intermediate.dense", "output.dense")  # fmt: skip
MEANT = {
    "query and value": {0, 2},
    "key": {1},
    "feed-forward": {3, 4, 5},
    "attention only": {0, 3},
    "all": {0, 1, 2, 3, 4, 5},
}


@pytest.mark.parametrize("name", TARGETS)
def test_the_formula_is_the_papers(name: str, base: Path) -> None:
    """W + alpha / rank · B A on each layer that is meant, and W on every other, by transformers' names."""
    adapted = adapt(classifier(base), LoraSettings(rank=4, alpha=6.0, targets=TARGETS[name])).eval()
    shout(adapted)
    theirs = transformers.BertModel.from_pretrained(base).state_dict()
    for i in range(2):
        block: Any = adapted.encoder.blocks[i]
        layers = [(block.attention.qkv, part) for part in range(3)]
        layers += [(layer, 0) for layer in (block.attention.out, block.feed_forward.up, block.feed_forward.down)]
        x = torch.randn(5, 64, generator=torch.Generator().manual_seed(i))
        for place, (layer, part) in enumerate(layers):
            weight = theirs[f"encoder.layer.{i}.{PLACES[place]}.weight"]
            bias = theirs[f"encoder.layer.{i}.{PLACES[place]}.bias"]
            assert (isinstance(layer, Adapted) and str(part) in layer.up) == (place in MEANT[name])
            if place in MEANT[name]:
                weight = weight + 6.0 / 4 * layer.up[str(part)] @ layer.down[str(part)]
            inside = x[:, : weight.shape[1]]
            got = layer(inside).chunk(3 if place < 3 else 1, -1)[part]
            assert torch.allclose(got, inside @ weight.T + bias, atol=1e-5), PLACES[place]


# ---------------------------------------------------------------------- ours in PEFT

KINDS = {
    "single": transformers.AutoModelForSequenceClassification,
    "multi": transformers.AutoModelForSequenceClassification,
    "entities": transformers.AutoModelForTokenClassification,
    "answer": transformers.AutoModelForQuestionAnswering,
    "choose": transformers.AutoModelForMultipleChoice,
}


def trained(name: str, base: Path, out: Path, **run: Any) -> Any:
    case = CASES[name]
    lora = LoraSettings(rank=2, targets=("all-linear",), dropout=0.1)
    plan = recipe_for(case.task, base, lora=lora, run=quiet(**{"steps": 4, **run}))
    return finetune(plan, out, train=case.examples, dev=case.examples)


@pytest.mark.parametrize("name", KINDS)
def test_peft_opens_what_we_train(name: str, base: Path, tmp_path: Path) -> None:
    """The merged folder, the adapter opened by us, and the adapter on the base opened by PEFT: one model."""
    found = trained(name, base, tmp_path / "run")
    adapter = tmp_path / "run/adapter"
    config = transformers.AutoConfig.from_pretrained(adapter)
    theirs = KINDS[name].from_pretrained(base, config=config)
    opened = peft.PeftModel.from_pretrained(theirs, adapter)
    merged = KINDS[name].from_pretrained(found.folder)
    if name == "choose":
        batch = CASES[name].batch(transformers.AutoTokenizer.from_pretrained(found.folder), CHOICES[:1], ())
        batch.pop("offset_mapping")
        with torch.no_grad():
            one, other = (m.eval()(**batch).logits for m in (opened, merged))
        assert distance(one, other) <= LIMIT
        return
    head = {"entities": "token", "answer": "span"}.get(name, "sequence")
    ours = outputs(load(adapter), head)
    assert distance(outputs(load(found.folder), head), ours) <= 1e-6
    if name == "answer":
        return compare_spans(opened, ours)
    assert distance(their_outputs(opened), ours) <= LIMIT
    assert Predictor.load(adapter).labels == found.labels == tuple(config.id2label.values())
    assert Predictor.load(adapter).name == found.task


def test_peft_trains_on_from_what_we_trained(base: Path, tmp_path: Path) -> None:
    """It knows which weights are the adapter's: they and the head are all that it would train."""
    trained("single", base, tmp_path / "run")
    config = transformers.AutoConfig.from_pretrained(tmp_path / "run/adapter")
    theirs = KINDS["single"].from_pretrained(base, config=config)
    opened = peft.PeftModel.from_pretrained(theirs, tmp_path / "run/adapter", is_trainable=True)
    names = [n for n, p in opened.named_parameters() if p.requires_grad]
    assert all("lora_" in n or "modules_to_save" in n for n in names)
    assert sum("lora_A" in n for n in names) == 2 * 6
    assert {n.split(".modules_to_save")[0].split(".")[-1] for n in names if "modules_to_save" in n} == {
        "classifier",
        "pooler",
    }


def test_frozen_weights_and_labels_come_out_as_they_went_in(base: Path, tmp_path: Path) -> None:
    plan = recipe_for("classify", base, lora=LoraSettings(rank=2))
    found = finetune(plan, tmp_path / "run", train=SINGLE, dev=[])
    before, after = load(base).state_dict(), load(found.folder).state_dict()
    for name in after:
        if name.startswith("encoder."):
            touched = name.endswith("qkv.weight")
            assert torch.equal(before[name], after[name]) != touched, name
    for i in range(2):
        key = f"encoder.blocks.{i}.attention.qkv.weight"
        moved = [not torch.equal(*pair) for pair in zip(before[key].chunk(3), after[key].chunk(3), strict=True)]
        assert moved == [True, False, True]
    assert not torch.equal(before["heads.pooler.dense.weight"], after["heads.pooler.dense.weight"])
    said = json.loads((found.folder / "config.json").read_text())
    assert said["id2label"] == {"0": "bad", "1": "good", "2": "so-so"}
    assert said["problem_type"] == "single_label_classification"
    assert load(found.folder).tokenizer is not None


def test_an_adapter_on_a_classifier_is_of_its_own_task(base: Path, tmp_path: Path) -> None:
    """What the base was before, several labels, is not said of the scorer that was made of it."""
    first = finetune(recipe_for("classify", base), tmp_path / "first", train=CASES["multi"].examples, dev=[])
    for task, name in (("score", "score"), ("answer", "answer")):
        plan = recipe_for(task, first.folder, lora=LoraSettings(rank=2))
        found = finetune(plan, tmp_path / task, train=CASES[name].examples, dev=[])
        said = json.loads((found.folder / "config.json").read_text())
        assert "problem_type" not in said
        assert not {"joy", "fear"} & set(said.get("label2id", {}))


@pytest.mark.parametrize("step", [1, 3])
def test_a_stopped_run_goes_on_bit_for_bit(base: Path, tmp_path: Path, step: int) -> None:
    trained("single", base, tmp_path / "whole", batch_size=2)

    def interrupt(event: Event) -> None:
        if isinstance(event, Stepped) and event.step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    case = CASES["single"]
    lora = LoraSettings(rank=2, targets=("all-linear",), dropout=0.1)
    plan = recipe_for("classify", base, lora=lora, run=quiet(steps=4, batch_size=2))
    stopped = finetune(plan, tmp_path / "parts", train=case.examples, dev=case.examples, listen=[interrupt])
    assert not stopped.complete
    trained("single", base, tmp_path / "parts", batch_size=2)
    assert same(load(tmp_path / "parts/model").state_dict(), load(tmp_path / "whole/model").state_dict())
    files = [
        safetensors.torch.load_file(tmp_path / p / "adapter/adapter_model.safetensors") for p in ("parts", "whole")
    ]
    assert same(*files)


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_layers_that_do_not_exist_cannot_be_adapted(base: Path, tmp_path: Path) -> None:
    with refused("no-such-layer", ("c_attn",)):
        finetune(
            recipe_for("classify", base, lora=LoraSettings(rank=2, targets=("c_attn",))),
            tmp_path / "run",
            train=SINGLE,
            dev=[],
        )
    with refused("bad-combination", 1):
        FinetuneRecipe(task="classify", model=FinetuneModel(str(base), keep_layers=1), lora=LoraSettings(rank=2))
    for bad in ({"rank": -1}, {"rank": 1, "alpha": 0.0}, {"rank": 1, "dropout": 1.0}):
        with refused("out-of-range"):
            LoraSettings(**bad)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_query_and_value_are_those_of_every_family(family: str) -> None:
    """Whatever it calls them, and if it has one layer for all three, that one."""
    shape = FAMILIES[family].fresh(replace(TINY, layers=2))
    model = adapt(Model.new(ModelConfig(shape, family=family), None), LoraSettings(rank=2))
    found = {name: module for name, module in model.named_modules() if isinstance(module, Adapted)}
    assert len(found) == len(model.encoder.blocks)
    for name, layer in found.items():
        assert name.endswith(".attention.qkv")
        assert list(layer.down) == (["0", "2"] if len(layer.widths) == 3 else ["0"])


def test_a_name_that_only_ends_alike_is_not_meant(base: Path) -> None:
    """ "dense" means every dense layer; "put.dense" means none."""
    with refused("no-such-layer", ("put.dense",)):
        adapt(classifier(base), LoraSettings(rank=2, targets=("put.dense",)))


def test_the_scale_is_alpha_over_rank(base: Path, tmp_path: Path) -> None:
    """Twice the alpha moves a layer twice as far."""
    key = "encoder.blocks.0.attention.qkv.weight"
    start = load(base).state_dict()[key]
    moved = []
    for alpha in (3.0, 6.0):
        settings = LoraSettings(rank=4, alpha=alpha)
        model = adapt(classifier(base), settings)
        shout(model)
        save_adapter(model, str(base), tmp_path / f"{alpha}")
        moved.append(load(tmp_path / f"{alpha}").state_dict()[key] - start)
    assert float(moved[0].abs().max()) > 0.1
    assert torch.allclose(2 * moved[0], moved[1], atol=1e-5)
