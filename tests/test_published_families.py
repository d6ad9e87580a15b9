"""Families as their authors publish them, against plain references written from the equations (tests/references)."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from bothways.model.batch import Batch
from bothways.model.checkpoint import save
from bothways.model.load import load
from bothways.model.model import Model
from helpers import refused
from references import Config, State, gte_published, jina_bert, mosaic_bert, neobert, nomic_published

LIMIT = 2e-5
IDS = [[2, 7, 31, 7, 12, 39, 1, 3, 24], [5], [9, 30, 2]]
SEGMENTS = [[0, 0, 0, 0, 1, 1, 1, 1, 1], [0], [0, 1, 1]]
LABELS = {"0": "no", "1": "maybe", "2": "yes"}

CASES: dict[str, tuple[ModuleType, dict[str, Any]]] = {
    "neobert": (neobert, {}),
    "jina-bert-v2": (jina_bert, {}),
    "jina-bert-v2, reglu": (jina_bert, {"feed_forward_type": "reglu"}),
    "mosaic-bert": (mosaic_bert, {}),
    "nomic_bert": (nomic_published, {}),
    "nomic_bert, geglu": (nomic_published, {"activation_function": "geglu", "rotary_emb_base": 500}),
    "new": (gte_published, {}),
    "new, no segments": (gte_published, {"type_vocab_size": 0}),
    "new, no scaling": (gte_published, {"rope_scaling": None}),
}
HEADS = {(): "", ("mlm",): "masked", ("sequence",): "sequence", ("token",): "token"}
WITHOUT = {"neobert": {"token"}, "mosaic-bert": {"token"}}
RUNS = [
    (case, heads) for case in CASES for heads in HEADS if not set(heads) & WITHOUT.get(case.partition(",")[0], set())
]


def write(folder: Path, config: Config, state: State) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, folder / "model.safetensors")
    return folder


def made(case: str, heads: tuple[str, ...] = ()) -> tuple[ModuleType, Config, State]:
    module, changes = CASES[case]
    config = module.config(**changes)
    if heads and heads != ("mlm",):
        config |= {"id2label": LABELS, "label2id": {name: int(i) for i, name in LABELS.items()}}
    named = {"sequence": "ForSequenceClassification", "token": "ForTokenClassification"}
    config |= {"architectures": [f"Some{named[head]}" for head in heads if head in named] or config["architectures"]}
    return module, config, module.state(config, heads)


def assert_equal(model: Model, module: ModuleType, config: Config, state: State, head: str) -> None:
    segments = SEGMENTS if model.config.encoder.segments > 1 else [[0] * len(row) for row in IDS]
    batch = Batch.pack(IDS, segments)
    expected = [
        module.outputs(config, state, torch.tensor(ids), torch.tensor(row))
        for ids, row in zip(IDS, segments, strict=True)
    ]
    with torch.no_grad():
        states = model.encoder(batch)
        layers = model.encoder.activations(batch, hidden_states=range(model.config.encoder.layers)).hidden_states
    _close(states, torch.cat([one["last"] for one in expected]))
    for layer, found in layers.items():
        _close(found, torch.cat([one["hidden"][layer] for one in expected]))
    if not head:
        return
    with torch.no_grad():
        ours = model.masked(states) if head == "masked" else model.logits(head, states, batch)
    theirs = [one["mlm" if head == "masked" else head] for one in expected]
    _close(ours, torch.stack(theirs) if head == "sequence" else torch.cat(theirs))


def _close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.shape == theirs.shape
    assert float((ours - theirs).abs().max()) <= LIMIT * max(1.0, float(theirs.abs().max()))


@pytest.mark.parametrize(("case", "heads"), RUNS)
def test_a_published_folder_is_computed_as_its_equations_say(case: str, heads: tuple[str, ...], tmp_path: Path) -> None:
    module, config, state = made(case, heads)
    model = load(write(tmp_path, config, state))
    assert model.config.family == case.partition(",")[0]
    assert_equal(model, module, config, state, HEADS[heads])


@pytest.mark.parametrize(("case", "heads"), RUNS)
def test_what_we_save_has_the_published_names_and_settings(case: str, heads: tuple[str, ...], tmp_path: Path) -> None:
    """The reference reads our config.json and our tensors, and computes what we compute."""
    module, config, state = made(case, heads)
    model = load(write(tmp_path / "theirs", config, state))
    save(model, tmp_path / "ours")
    written = json.loads((tmp_path / "ours/config.json").read_text())
    tensors = load_file(tmp_path / "ours/model.safetensors")
    if case.startswith("nomic_bert"):  # transformers' prefix
        tensors = {name.replace("nomic_bert.", "bert.", 1): tensor for name, tensor in tensors.items()}
        known = {"cls.predictions.bias", "cls.predictions.transform.dense.bias"}
        assert not any(tensors.pop(name).any() for name in known & tensors.keys())  # zeros, which theirs does not have
    missing = set(state) - set(tensors)
    assert all("decoder" in name for name in missing), missing  # tied to the embeddings
    assert set(tensors) <= set(state)
    assert all(torch.equal(state[name], tensors[name]) for name in tensors)
    changed = {key: written[key] for key in SAME & config.keys() & written.keys() if written[key] != config[key]}
    assert changed == {}
    again = load(tmp_path / "ours")
    assert_equal(again, module, config | {key: written[key] for key in config if key in written}, state, HEADS[heads])


SAME = {"vocab_size", "hidden_size", "n_embd", "n_inner", "num_hidden_layers", "n_layer"} | {
    "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "max_length", "max_position_embeddings", "activation_function",
    "feed_forward_type", "position_embedding_type", "model_type", "rope_scaling", "rope_theta", "type_vocab_size",
}  # fmt: skip


def test_the_code_model_of_jina_is_refused_by_name(tmp_path: Path) -> None:
    config = jina_bert.config(code=jina_bert.CODE_MODEL)
    write(tmp_path, config, jina_bert.state(config))
    with refused("unknown-family", names="layer_norm_q"):
        load(tmp_path)


UNSUPPORTED = [
    ("nomic_bert", "prenorm", True),
    ("nomic_bert", "qkv_proj_bias", True),
    ("nomic_bert", "rotary_emb_fraction", 0.5),
    ("nomic_bert", "activation_function", "gelu_fast"),
    ("nomic_bert", "causal", True),
    ("new", "layer_norm_type", "rms_norm"),
    ("new", "logn_attention_scale", True),
    ("new", "rope_scaling", {"type": "yarn", "factor": 2.0}),
    ("new", "position_embedding_type", "absolute"),
    ("new", "pack_qkv", False),
    ("jina-bert-v2", "feed_forward_type", "original"),
    ("neobert", "ngpt", True),
    ("neobert", "hidden_act", "gelu"),
    ("mosaic-bert", "layer_norm_eps", 1e-5),
]


@pytest.mark.parametrize(("case", "key", "value"), UNSUPPORTED)
def test_a_setting_that_we_do_not_compute_is_refused_by_its_key(
    case: str, key: str, value: object, tmp_path: Path
) -> None:
    _, config, state = made(case)
    write(tmp_path, config | {key: value}, state)
    with refused("unsupported-setting", (key, value)):
        load(tmp_path)


def test_dynamic_scaling_never_makes_an_answer_depend_on_its_batch(tmp_path: Path) -> None:
    """nomic-embed-text-v1 scales its angles in batches longer than its training: we read such texts in windows."""
    config = nomic_published.config(rotary_scaling_factor=2, max_trained_positions=6, n_positions=24)
    assert load(write(tmp_path, config, nomic_published.state(config))).config.encoder.max_length == 6
