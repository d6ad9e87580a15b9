"""Adapters that PEFT trained: every setting of its is applied or refused, and the outputs are PEFT's."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import peft
import pytest
import safetensors.torch
import torch
import transformers

from bothways.errors import BothwaysError
from bothways.model import adapter_config
from bothways.model.adapter_config import WEIGHTS
from bothways.model.batch import Batch
from bothways.model.load import load
from bothways.model.lora import adapt, save_adapter
from bothways.predict.predictor import Predictor
from bothways.text.tokenizer import Tokenizer
from bothways.train.settings import LoraSettings
from helpers import TINY, make_loud, refused
from helpers.adapters import IDS, compare_spans, distance, outputs, peft_adapter, their_outputs, train_loud
from helpers.tasks import LIMIT, named, shout, their_folder


@pytest.fixture
def classified(tmp_path: Path, tokenizer: Tokenizer) -> Path:
    """A classifier's folder as transformers writes it."""
    return their_folder(
        tmp_path / "classified", tokenizer, "BertForSequenceClassification", **named(["no", "maybe", "yes"])
    )


# All linear layers have the classifier among them, of rank 3.
DECOMPOSED = {"use_rslora": True, "target_modules": "all-linear"}
PEFT: dict[str, dict[str, Any]] = {
    "plain, without a head": {},
    "for classification": {"task_type": "SEQ_CLS"},
    "all linear": {"task_type": "SEQ_CLS", "target_modules": "all-linear"},
    "by regular expression": {"target_modules": r".*layer\.1\..*dense"},
    "head saved": {"modules_to_save": ["classifier"]},
    "head and pooler saved": {"task_type": "SEQ_CLS", "modules_to_save": ["classifier", "pooler"]},
    "rank-stabilised": {"use_rslora": True, "task_type": "SEQ_CLS"},
    "alphas by name": {"alpha_pattern": {"query": 1.5}, "task_type": "SEQ_CLS"},
    "alphas by layer": {"alpha_pattern": {r"layer\.0\.attention\.self\.query": 1.5}},
    "alphas by expression": {"alpha_pattern": {r".*\.0\..*query": 1.5}},
    "alphas of like names": {"target_modules": ["output.dense"], "alpha_pattern": {r"^bert.encoder.layer.0.output.dense": 30}},
    "ranks by name": {"rank_pattern": {"value": 2}, "task_type": "SEQ_CLS"},
    "some layers": {"layers_to_transform": [1], "task_type": "SEQ_CLS"},
    "without some layers": {"target_modules": "all-linear", "exclude_modules": ["key"], "task_type": "SEQ_CLS"},
    "by parameter": {"target_modules": ["value"], "target_parameters": ["query.weight", "intermediate.dense.weight"]},
    "fan in, fan out": {"fan_in_fan_out": True},
    "norms saved": {"modules_to_save": ["classifier", "LayerNorm"]},
    "embeddings saved": {"modules_to_save": ["classifier", "word_embeddings"]},
    "random start": {"init_lora_weights": False},
    "Gaussian start": {"init_lora_weights": "gaussian"},
    "orthogonal start": {"init_lora_weights": "orthogonal"},
    "MiCA": {"init_lora_weights": "mica"},
    "PiSSA": {"init_lora_weights": "pissa"},
    "PiSSA of less than its rank": {"init_lora_weights": "pissa", **DECOMPOSED},
    "OLoRA": {"init_lora_weights": "olora"},
    "OLoRA of less than its rank": {"init_lora_weights": "olora", **DECOMPOSED},
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")  # PEFT's own, on what it makes here
@pytest.mark.parametrize("name", PEFT)
def test_we_open_what_peft_trained(name: str, classified: Path, tmp_path: Path) -> None:
    theirs = peft_adapter(classified, tmp_path / "adapter", **PEFT[name])
    ours = load(tmp_path / "adapter")
    assert ours.config.heads == ("pooler", "sequence")
    assert ours.config.labels == ("no", "maybe", "yes")
    limit = LIMIT * max(1, float(their_outputs(theirs).abs().max()))
    assert distance(outputs(ours), their_outputs(theirs)) <= limit
    model = transformers.AutoModelForSequenceClassification.from_pretrained(classified)
    again = peft.PeftModel.from_pretrained(model, tmp_path / "adapter")
    assert distance(outputs(ours), their_outputs(again)) <= limit
    assert distance(outputs(ours), outputs(load(classified))) > 0.1
    predictor = Predictor.load(tmp_path / "adapter")
    assert predictor.name == "classify"
    assert predictor("the cat")["label"] in ("no", "maybe", "yes")


def test_we_open_a_head_that_peft_trained_on_a_pretrained_body(base: Path, tmp_path: Path) -> None:
    """The usual case: BERT itself is the base, and the head is in the adapter only."""
    theirs = peft_adapter(base, tmp_path / "adapter", task_type="SEQ_CLS")
    ours = load(tmp_path / "adapter")
    assert ours.config.heads == ("pooler", "sequence")
    assert distance(outputs(ours), their_outputs(theirs)) <= LIMIT
    assert Predictor.load(tmp_path / "adapter").name == "classify"


@pytest.fixture
def filler(tmp_path: Path, tokenizer: Tokenizer) -> Path:
    """A ModernBERT that fills blanks, as transformers writes it: its classifier begins with a layer of that head."""
    shape = {"vocab_size": TINY.vocab_size, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.ModernBertConfig(
        **shape, intermediate_size=48, max_position_embeddings=48, pad_token_id=0, classifier_pooling="mean"
    )
    model = transformers.ModernBertForMaskedLM(config)
    make_loud(model, 0)
    model.save_pretrained(tmp_path / "filler")
    tokenizer.save(tmp_path / "filler", 48)
    return tmp_path / "filler"


@pytest.mark.parametrize("targets", [["Wqkv"], "all-linear"])
def test_what_an_adapter_leaves_to_its_base_is_the_bases(filler: Path, tmp_path: Path, targets: Any) -> None:
    theirs = peft_adapter(filler, tmp_path / "adapter", task_type="SEQ_CLS", target_modules=targets)
    names = safetensors.torch.load_file(tmp_path / "adapter" / WEIGHTS).keys()
    assert not [name for name in names if ".head." in name and ".lora_" not in name]
    ours = load(tmp_path / "adapter")
    assert ours.config.heads == ("sequence",)
    assert distance(outputs(ours), their_outputs(theirs)) <= LIMIT


def test_no_pooler_is_made_up(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """PEFT does not save it, and what only fills blanks has none: nobody knows it any more."""
    masked = their_folder(tmp_path / "masked", tokenizer, "BertForMaskedLM")
    peft_adapter(masked, tmp_path / "adapter", task_type="SEQ_CLS")
    with refused("missing-tensors", ("pooler.dense.weight",)):
        load(tmp_path / "adapter")
    peft_adapter(masked, tmp_path / "whole", task_type="SEQ_CLS", modules_to_save=["classifier", "pooler"])
    assert load(tmp_path / "whole").config.heads == ("pooler", "sequence")


def test_we_open_a_tagger_that_peft_trained(base: Path, tmp_path: Path) -> None:
    theirs = peft_adapter(base, tmp_path / "adapter", "TokenClassification", task_type="TOKEN_CLS")
    ours = load(tmp_path / "adapter")
    assert ours.config.heads == ("token",)
    assert distance(outputs(ours, "token"), their_outputs(theirs)) <= LIMIT


def test_we_open_an_answerer_that_peft_trained(base: Path, tmp_path: Path) -> None:
    theirs = peft_adapter(base, tmp_path / "adapter", "QuestionAnswering", task_type="QUESTION_ANS")
    ours = load(tmp_path / "adapter")
    assert ours.config.heads == ("span",)
    compare_spans(theirs, outputs(ours, "span"))


REFUSED: dict[str, dict[str, Any]] = {
    "bias": {"bias": "all"},
    "bias of the layers": {"bias": "lora_only"},
    "lora_bias": {"lora_bias": True},
    "use_dora": {"use_dora": True},
    "kasa_config": {"kasa_config": {"beta": 0.5, "gamma": 0.5}},
    "velora_config": {"velora_config": {"num_groups": 4, "scale": 1.0, "init_type": "batch_average"}},
    "trainable_token_indices": {"trainable_token_indices": [5, 6]},
    "layer_replication": {"layer_replication": [[0, 2], [0, 2]]},
    "layer_replication of others": {"layer_replication": [[0, 2], [0, 1]], "layers_to_transform": [0]},
    "init_lora_weights": {"init_lora_weights": "pissa_niter_4"},
}


@pytest.mark.filterwarnings("ignore")  # PEFT's own, on what it makes here
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_plain_lora_is_refused_by_its_key(name: str, classified: Path, tmp_path: Path) -> None:
    theirs = peft_adapter(classified, tmp_path / "adapter", **REFUSED[name])
    key, value = next(iter(REFUSED[name].items()))
    with refused("unsupported-adapter", (key, value)):
        load(tmp_path / "adapter")
    edit(tmp_path / "adapter", {key: "none" if key == "bias" else None})  # as if it were plain
    try:
        found = outputs(load(tmp_path / "adapter"))
    except BothwaysError:
        return
    assert distance(found, their_outputs(theirs)) > 0.01


def edit(folder: Path, change: dict[str, Any]) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("peft_type", "IA3"),
        ("use_bdlora", {"nblocks": 2}),
        ("megatron_config", {"a": 1}),
        ("init_lora_weights", "corda"),
        ("init_lora_weights", "loftq"),
        ("init_lora_weights", "lora_ga"),
        ("a_key_of_next_year", 3),
    ],
)
def test_other_kinds_are_refused_in_one_sentence(key: str, value: object, classified: Path, tmp_path: Path) -> None:
    peft_adapter(classified, tmp_path / "adapter")
    edit(tmp_path / "adapter", {key: value})
    with refused("unsupported-adapter", (key, value), names=rf"\A.*{key}.*\Z"):
        load(tmp_path / "adapter")


def test_every_setting_of_peft_is_known() -> None:
    """A new version with a new setting fails here: is it applied, without effect, or refused?"""
    kinds = (adapter_config.APPLIED, adapter_config.IN_TENSOR_NAMES, adapter_config.NO_EFFECT, adapter_config.REFUSED)
    known = [name for kind in kinds for name in kind]
    assert len(known) == len(set(known))
    assert {field.name for field in dataclasses.fields(peft.LoraConfig)} <= set(known)


@pytest.mark.filterwarnings("ignore")
def test_the_start_by_data_changes_no_base(classified: Path, tmp_path: Path) -> None:
    """EVA gives each layer its own rank and its own alpha."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(classified)
    settings = peft.LoraConfig(
        r=4, target_modules=["query", "value"], init_lora_weights="eva", eva_config=peft.EvaConfig(rho=2.0)
    )
    wrapped = peft.get_peft_model(model, settings)
    torch.manual_seed(0)
    peft.initialize_lora_eva_weights(wrapped, [{"input_ids": torch.randint(5, 90, (8, 20))} for _ in range(4)])
    train_loud(wrapped)
    wrapped.save_pretrained(str(tmp_path / "adapter"))
    said = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert said["eva_config"]
    assert distance(outputs(load(tmp_path / "adapter")), their_outputs(wrapped)) <= LIMIT


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("start", ["pissa", "olora", "pissa_niter_4"])
def test_a_converted_adapter_needs_only_its_base(start: str, classified: Path, tmp_path: Path) -> None:
    """PEFT can take the start out of the adapter when it saves it; the rank doubles."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(classified)
    more: dict[str, Any] = {"init_lora_weights": start}
    settings = peft.LoraConfig(r=4, lora_alpha=6, target_modules=["query", "value"], **more)
    wrapped = peft.get_peft_model(model, settings)
    wrapped.peft_config["default"].init_lora_weights = True
    wrapped.save_pretrained(str(tmp_path / "start"))
    wrapped.peft_config["default"].init_lora_weights = start
    train_loud(wrapped)
    theirs = their_outputs(wrapped)
    wrapped.save_pretrained(str(tmp_path / "adapter"), path_initial_model_for_weight_conversion=str(tmp_path / "start"))
    assert json.loads((tmp_path / "adapter/adapter_config.json").read_text())["r"] == 8
    assert distance(outputs(load(tmp_path / "adapter")), theirs) <= LIMIT


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("tying", [False, True])
def test_embeddings_trained_apart_from_the_head_are_refused(tying: bool, tmp_path: Path, tokenizer: Tokenizer) -> None:
    """PEFT's head for masked tokens keeps the base's embeddings, and ours has one table for both."""
    masked = their_folder(tmp_path / "masked", tokenizer, "BertForMaskedLM")
    more = {"modules_to_save": ["word_embeddings"], "ensure_weight_tying": tying}
    peft_adapter(masked, tmp_path / "adapter", "MaskedLM", **more)
    with refused("unsupported-adapter", ("modules_to_save", "embeddings.word_embeddings.weight")):
        load(tmp_path / "adapter")


def test_adapted_embeddings_are_refused(classified: Path, tmp_path: Path) -> None:
    peft_adapter(classified, tmp_path / "adapter", target_modules=["query", "word_embeddings"])
    with pytest.raises(BothwaysError) as caught:
        load(tmp_path / "adapter")
    assert caught.value.code == "unexpected-tensors"


def test_patterns_match_the_names_of_the_model_that_was_adapted(classified: Path, tmp_path: Path) -> None:
    """An encoder by itself has no "bert." before its names."""
    settings = peft.LoraConfig(
        r=4, target_modules=["query"], alpha_pattern={"^encoder.layer.0.attention.self.query": 30}
    )
    theirs = peft.get_peft_model(transformers.AutoModel.from_pretrained(classified), settings)
    train_loud(theirs)
    theirs.save_pretrained(str(tmp_path / "adapter"))
    with torch.no_grad():
        expected = theirs.eval()(input_ids=torch.tensor(IDS[:1])).last_hidden_state[0]
        ours = load(tmp_path / "adapter").encoder(Batch.pack(IDS[:1]))
    assert distance(ours, expected) <= LIMIT


# ---------------------------------------------------------------------- files


def test_the_older_file_of_weights_is_read(classified: Path, tmp_path: Path) -> None:
    theirs = peft_adapter(classified, tmp_path / "adapter", task_type="SEQ_CLS")
    theirs.save_pretrained(str(tmp_path / "older"), safe_serialization=False)
    assert not (tmp_path / "older" / WEIGHTS).exists()
    assert (tmp_path / "older/adapter_model.bin").exists()
    assert distance(outputs(load(tmp_path / "older")), their_outputs(theirs)) <= LIMIT


def test_an_adapter_without_weights_is_refused(classified: Path, tmp_path: Path) -> None:
    peft_adapter(classified, tmp_path / "adapter")
    (tmp_path / "adapter" / WEIGHTS).unlink()
    with refused("no-weights", tmp_path / "adapter"):
        load(tmp_path / "adapter")


def test_weights_that_contradict_the_settings_are_refused(classified: Path, tmp_path: Path) -> None:
    peft_adapter(classified, tmp_path / "adapter")
    edit(tmp_path / "adapter", {"r": 8})
    with refused("shape-mismatch", "bert.encoder.layer.0.attention.self.query"):
        load(tmp_path / "adapter")
    edit(tmp_path / "adapter", {"rank_pattern": {"query": 4, "value": 4}})
    load(tmp_path / "adapter")
    tensors = safetensors.torch.load_file(tmp_path / "adapter" / WEIGHTS)
    del tensors["base_model.model.bert.encoder.layer.0.attention.self.query.lora_A.weight"]
    safetensors.torch.save_file(tensors, tmp_path / "adapter" / WEIGHTS)
    with refused("missing-tensors", ("encoder.layer.0.attention.self.query.lora_A.weight",)):
        load(tmp_path / "adapter")


@pytest.mark.parametrize("part", ["lora_A", "classifier"])
def test_an_adapter_that_holds_nan_is_refused(part: str, classified: Path, tmp_path: Path) -> None:
    peft_adapter(classified, tmp_path / "adapter", modules_to_save=["classifier"])
    path = tmp_path / "adapter/adapter_model.safetensors"
    tensors = safetensors.torch.load_file(path)
    name = next(name for name in tensors if part in name)
    tensors[name].flatten()[0] = torch.nan
    safetensors.torch.save_file(tensors, path)
    with refused("not-finite", (name.removeprefix("base_model.model.").removeprefix("bert."),)):
        load(tmp_path / "adapter")


def test_an_adapter_of_another_model_is_refused(classified: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    peft_adapter(classified, tmp_path / "adapter")
    other = their_folder(tmp_path / "other", tokenizer, "BertForSequenceClassification", num_hidden_layers=1)
    path = tmp_path / "adapter/adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"base_model_name_or_path": str(other)}))
    with refused("unexpected-tensors", ("encoder.layer.1.attention.self.query.weight",)):
        load(tmp_path / "adapter")
    wide = their_folder(tmp_path / "wide", tokenizer, "BertForSequenceClassification", hidden_size=64)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"base_model_name_or_path": str(wide)}))
    with refused("shape-mismatch"):
        load(tmp_path / "adapter")


# ---------------------------------------------------------------------- every family

SIZES = {
    "vocab_size": 232, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 42, "pad_token_id": 0,
}  # fmt: skip
CLASSES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "EuroBert": ({"num_key_value_heads": 2}, ["q_proj", "v_proj", "gate_proj"]),  # keys narrower than queries
    "NomicBert": ({}, ["q_proj", "v_proj", "up_proj", "o_proj"]),  # other names in files than in the class
    "Gte": ({}, ["k_proj", "gate_proj", "down_proj"]),
    "RoFormer": ({}, ["query", "value"]),
    "XLMRobertaXL": ({"pad_token_id": 1}, ["query", "intermediate.dense"]),
    "ModernBert": ({}, ["Wqkv", "Wo"]),
    "Deberta": ({"relative_attention": True, "pos_att_type": ["c2p"]}, ["in_proj"]),
}


@pytest.mark.parametrize("name", CLASSES)
def test_adapters_of_every_layout_open_in_both_libraries(name: str, tmp_path: Path) -> None:
    changes, targets = CLASSES[name]
    labels = {0: "bad", 1: "good", 2: "so-so"}
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **changes}, id2label=labels)
    base = getattr(transformers, f"{name}ForSequenceClassification")(config)
    make_loud(base)
    base.save_pretrained(tmp_path / "base")
    theirs = peft_adapter(tmp_path / "base", tmp_path / "theirs", target_modules=targets)
    limit, merged = (
        2 * LIMIT,
        5 * LIMIT,
    )  # of loud weights: 1.07e-5 on one kind of CPU; merged sums are rounded elsewhere
    assert distance(outputs(load(tmp_path / "theirs")), their_outputs(theirs)) <= limit
    ours = adapt(load(tmp_path / "base"), LoraSettings(rank=2, targets=tuple(targets))).eval()
    shout(ours)
    save_adapter(ours, str(tmp_path / "base"), tmp_path / "ours")
    plain = getattr(transformers, f"{name}ForSequenceClassification").from_pretrained(tmp_path / "base")
    opened = peft.PeftModel.from_pretrained(plain, tmp_path / "ours")
    assert distance(outputs(ours), their_outputs(opened)) <= limit
    assert distance(outputs(load(tmp_path / "ours")), outputs(ours)) <= merged
