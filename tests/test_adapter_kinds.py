"""Adapters are read as strictly as models: what is of the wrong kind is refused in a sentence."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from bothways.errors import BothwaysError
from bothways.model.adapter_config import CONFIG, WEIGHTS
from bothways.model.load import load
from bothways.model.lora import adapt, save_adapter
from bothways.train.settings import LoraSettings
from helpers import make_loud, refused
from helpers.adapters import classifier


@pytest.fixture
def adapter(base: Path, tmp_path: Path) -> Path:
    model = adapt(classifier(base), LoraSettings(rank=2, targets=("query", "value")))
    make_loud(model)
    save_adapter(model, str(base), tmp_path / "adapter")
    return tmp_path / "adapter"


def edit(folder: Path, **settings: Any) -> None:
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8")) | settings
    (folder / CONFIG).write_text(json.dumps(config), encoding="utf-8")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("r", 0),
        ("r", -1),
        ("r", 2.5),
        ("r", "2"),
        ("r", True),
        ("r", 10**12),
        ("lora_alpha", "16"),
        ("lora_alpha", [16]),
        ("lora_alpha", math.inf),
        ("lora_alpha", 10**400),
        ("lora_alpha", {}),
        ("rank_pattern", ["query"]),
        ("rank_pattern", {"query": "2"}),
        ("rank_pattern", {"query": 0}),
        ("alpha_pattern", "query"),
        ("alpha_pattern", {"query": None}),
        ("target_modules", 5),
        ("target_modules", [5]),
        ("target_modules", {"query": 1}),
        ("exclude_modules", 5),
        ("modules_to_save", "classifier"),
        ("modules_to_save", [None]),
        ("layers_to_transform", "1"),
        ("layers_to_transform", [1.5]),
        ("layers_pattern", 3),
        ("task_type", ["SEQ_CLS"]),
        ("peft_type", 3),
        ("use_rslora", "yes"),
        ("init_lora_weights", {"a": 1}),
    ],
)
def test_a_setting_of_the_wrong_kind_is_named(adapter: Path, key: str, value: object) -> None:
    edit(adapter, **{key: value})
    with refused("unsupported-adapter", (key, value), names=key):
        load(adapter)


def test_nan_is_no_alpha(adapter: Path) -> None:
    edit(adapter, lora_alpha=math.nan)
    with refused("unsupported-adapter", names="lora_alpha"):
        load(adapter)


def _change(folder: Path, how: str) -> None:
    tensors = safetensors.torch.load_file(folder / WEIGHTS)
    a, b = (next(name for name in sorted(tensors) if f"lora_{end}" in name) for end in "AB")
    layer = a.removesuffix(".lora_A.weight")
    match how:
        case "orphan A":
            del tensors[b]
        case "orphan B":
            del tensors[a]
        case "a layer left out":
            del tensors[a], tensors[b]
        case "integers":
            tensors[a] = tensors[a].to(torch.int64)
        case "a vector":
            tensors[a] = tensors[a].flatten()
        case "a number":
            tensors[b] = torch.tensor(1.0)
        case "three axes":
            tensors[b] = tensors[b][None].contiguous()
        case "another rank":
            tensors[a], tensors[b] = torch.zeros(3, 32), torch.zeros(32, 3)
        case "nothing of a rank":
            tensors[a], tensors[b] = torch.zeros(0, 32), torch.zeros(32, 0)
        case "twice":
            tensors[layer + ".lora_A.default.weight"] = tensors[a].clone()
        case "a third matrix":
            tensors[layer + ".lora_C.weight"] = tensors[a].clone()
        case "a layer of no model":
            tensors["base_model.model.nothing.weight"] = torch.zeros(2, 2)
    safetensors.torch.save_file(tensors, folder / WEIGHTS)


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("orphan A", "missing-tensors"),
        ("orphan B", "missing-tensors"),
        ("a layer left out", "missing-tensors"),
        ("integers", "unsupported-dtype"),
        ("a vector", "shape-mismatch"),
        ("a number", "shape-mismatch"),
        ("three axes", "shape-mismatch"),
        ("another rank", "shape-mismatch"),
        ("nothing of a rank", "shape-mismatch"),
        ("twice", "duplicate-tensor"),
        ("a third matrix", "unexpected-tensors"),
        ("a layer of no model", "unexpected-tensors"),
    ],
)
def test_tensors_that_are_no_pair_of_matrices_are_refused(adapter: Path, how: str, code: str) -> None:
    load(adapter)
    _change(adapter, how)
    with refused(code):
        load(adapter)


@pytest.mark.parametrize("targets", [r"(.*)*!", r"(a+)+b", "(" * 2_000])
def test_a_hostile_pattern_ends_at_once(adapter: Path, targets: str) -> None:
    edit(adapter, target_modules=targets)
    with pytest.raises(BothwaysError) as caught:
        load(adapter)
    assert caught.value.code in ("unsupported-pattern", "unexpected-tensors")
