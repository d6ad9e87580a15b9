"""LoRA (Hu et al. 2021): a trained low-rank update of a frozen layer, W x + (alpha / rank) · B A x.

Adapters are read and written in PEFT's file format: adapter_config.json, and adapter_model.safetensors with the adapter
and the head. Layers have their Hugging Face names, such as `query` or `output.dense`, by the family's key table.
"""

import json
import math
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bothways import atomic
from bothways.errors import BothwaysError
from bothways.model import checkpoint
from bothways.model.families import FAMILIES
from bothways.model.families.family import Head
from bothways.model.model import Model
from bothways.model.weights import read_json, read_weights, require_finite

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_ROOT = "base_model.model."  # PEFT's prefix of every name
_TASKS = {"sequence": "SEQ_CLS", "token": "TOKEN_CLS", "span": "QUESTION_ANS"}
# Settings of other kinds of adapter in the same file format.
_OTHER = ("use_dora", "fan_in_fan_out", "alora_invocation_tokens", "corda_config", "eva_config")


class Adapted(nn.Module):
    """A linear layer with LoRA on some of the layers that are stacked in it: query and value of qkv, for example."""

    def __init__(self, base: nn.Linear, parts: int, chosen: list[int], lora: "LoraShape") -> None:
        """`parts`: number of layers stacked in `base`. `chosen`: those that get LoRA matrices, A (down) and B (up)."""
        super().__init__()
        self.base, self.parts = base, parts
        self.rank, self.alpha, self.dropout = lora.rank, lora.alpha, lora.dropout
        out = base.out_features // parts
        self.down = nn.ParameterDict({str(i): torch.empty(lora.rank, base.in_features) for i in chosen})
        self.up = nn.ParameterDict({str(i): torch.zeros(out, lora.rank) for i in chosen})

    def forward(self, x: Tensor) -> Tensor:
        """(…, in) → (…, out)."""
        y: Tensor = self.base(x)
        dropped = F.dropout(x, self.dropout, self.training)
        updates = [
            F.linear(F.linear(dropped, self.down[name]), self.up[name]) if name in self.up else None
            for name in map(str, range(self.parts))
        ]
        zeros = y.new_zeros(1).expand(*y.shape[:-1], y.shape[-1] // self.parts)
        return y + self.alpha / self.rank * torch.cat([zeros if update is None else update for update in updates], -1)


class LoraShape(Protocol):
    """The settings that `adapt` needs."""

    @property
    def rank(self) -> int: ...
    @property
    def alpha(self) -> float: ...
    @property
    def dropout(self) -> float: ...
    @property
    def targets(self) -> tuple[str, ...]: ...


def adapt(model: Model, lora: LoraShape, *, seed: int = 0) -> Model:
    """Freeze the encoder and add LoRA to its target layers, in place."""
    model.encoder.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    is_real = model.device.type != "meta"
    found = list(_targets(model, lora.targets))
    if not found:
        raise BothwaysError(
            f"this {model.config.family} has no layer called {' or '.join(lora.targets)}: "
            f"expected all-linear, query, key, value, or a name such as {', '.join(_last_names(model))}",
            "no-such-layer",
            lora.targets,
        )
    for ours, theirs, chosen in found:
        base: Any = model.get_submodule(ours)
        layer = Adapted(base, len(theirs), chosen, lora)
        for down in layer.down.values() if is_real else ():
            nn.init.kaiming_uniform_(down, a=math.sqrt(5), generator=generator)
        parent, _, name = ours.rpartition(".")
        setattr(model.get_submodule(parent), name, layer)
    return model


# ---------------------------------------------------------------------- files


def save_adapter(model: Model, base: str, folder: Path) -> None:
    """Write the LoRA weights and the head, which PEFT opens with the base model, and config.json with the labels."""
    family = FAMILIES[model.config.family]
    tensors: dict[str, Tensor] = {}
    names = []
    places = _places(model)
    layers = [(model.get_submodule(ours), theirs) for ours, theirs in _layers(model)]
    adapted = [(layer, theirs) for layer, theirs in layers if isinstance(layer, Adapted)]
    for layer, theirs in adapted:
        for i in map(int, layer.up):
            names.append(family.prefix + theirs[i])
            by_head = places[f"{theirs[i]}.weight"].by_head
            up: Tensor = layer.up[str(i)]
            if by_head > 1:
                up = checkpoint.regrouped(up, by_head, model.config.encoder.num_heads)
            tensors[f"{_ROOT}{names[-1]}.lora_A.weight"] = layer.down[str(i)]
            tensors[f"{_ROOT}{names[-1]}.lora_B.weight"] = up
    state, kept = model.state_dict(), set()
    for head in (family.heads[name] for name in model.config.heads):
        for row in head.rows:
            if row.ours not in state:  # a bias that this model does not have
                continue
            assert isinstance(row.theirs, str)
            tensors[f"{_ROOT}{family.prefix if head.in_body else ''}{row.theirs}"] = state[row.ours]
            kept.add(_module_to_save(row.theirs, head))
    config = {
        "peft_type": "LORA",
        "task_type": next((_TASKS[name] for name in model.config.heads if name in _TASKS), None),
        "base_model_name_or_path": base,
        "r": adapted[0][0].rank,
        "lora_alpha": adapted[0][0].alpha,
        "lora_dropout": adapted[0][0].dropout,
        "target_modules": names,
        "modules_to_save": sorted(kept - {""}),
        "bias": "none",
        "inference_mode": True,
    }
    with atomic.new_folder(folder, replaces=(CONFIG, WEIGHTS, "config.json")) as fresh:
        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        safetensors.torch.save_file(plain, fresh / WEIGHTS, metadata={"format": "pt"})
        for file, content in ((CONFIG, config), ("config.json", checkpoint.describe(model))):
            (fresh / file).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _module_to_save(name: str, head: Head) -> str:
    """The module that holds a tensor of a head, for PEFT's modules_to_save; "" if there is none.

    The module of a masked language modelling head also holds the tied token embeddings, which are not trained. So its
    layers are named one by one; its bias has no module, and PEFT finds it by its name.
    """
    if not any(row.ours == "heads.masked.bias" for row in head.rows):
        return name.split(".")[0]
    layer = name.rpartition(".")[0]
    return layer if any(row.theirs == f"{layer}.weight" for row in head.rows) else ""


def trained_of(module: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those of a module's weights that are trained, under our own names: what a run needs to resume exactly."""
    trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    return {name: tensor for name, tensor in weights.items() if name in trained}


def copy_adapter(source: Path, target: Path) -> None:
    """Copy an adapter to another folder; does nothing if `source` is not an adapter."""
    if is_adapter(source):
        with atomic.new_folder(target, replaces=(CONFIG, WEIGHTS, "config.json")) as fresh:
            for name in (CONFIG, WEIGHTS, "config.json"):
                shutil.copyfile(source / name, fresh / name)


def is_adapter(folder: Path) -> bool:
    return (folder / CONFIG).exists()


def with_adapter(model: Model, folder: Path) -> Model:
    """The base model with an adapter merged into its weights, and with the head of the adapter."""
    config = read_json(folder / CONFIG)
    for key, expected in {"peft_type": "LORA", "bias": "none", **dict.fromkeys(_OTHER)}.items():
        if (config.get(key) or expected) != expected:
            raise BothwaysError(
                f"{folder / CONFIG} has {key} = {config[key]}: only plain LoRA adapters are supported",
                "unsupported-adapter",
                (key, config[key]),
            )
    tensors = {_base_name(name): tensor.float() for name, tensor in read_weights(folder / WEIGHTS).items()}
    family = FAMILIES[model.config.family]
    tensors = {name.removeprefix(family.prefix): tensor for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        require_finite([name], tensor, folder)
    whole = {name: tensor for name, tensor in tensors.items() if ".lora_" not in name}
    model = _with_head(model, set(whole), config, folder)
    places = _places(model)
    state = model.state_dict()
    for name, tensor in whole.items():
        _view(state, places, name, folder, tensor.shape).copy_(tensor)
    for name in [name for name in tensors if ".lora_" in name]:
        layer, _, end = name.partition(".lora_")
        if end not in ("A.weight", "B.weight"):
            raise BothwaysError(
                f"{folder}: the adapter holds {name}, and only LoRA weights of linear layers are supported",
                "unexpected-tensors",
                (name,),
            )
        if end == "B.weight":
            continue
        down, up = tensors[name], tensors.get(f"{layer}.lora_B.weight", torch.empty(0, 0))
        target = _view(state, places, f"{layer}.weight", folder, torch.Size([up.shape[0], down.shape[1]]))
        by_head = places[f"{layer}.weight"].by_head
        if by_head > 1:
            up = checkpoint.regrouped(up, model.config.encoder.num_heads, by_head)
        target.add_(up @ down, alpha=_scale(config, family.prefix + layer, down.shape[0]))
    return model.eval()


def base_of(folder: Path) -> Path | None:
    """The folder of an adapter's base model; None if `folder` is not an adapter."""
    if not is_adapter(folder):
        return None
    base = Path(str(read_json(folder / CONFIG).get("base_model_name_or_path")))
    for path in (folder / base, base):
        if path.is_dir():
            return path.resolve()
    raise BothwaysError(
        f"{folder} is an adapter of {base}, which is not a folder: set base_model_name_or_path in its {CONFIG}",
        "no-base-model",
        base,
    )


def _base_name(name: str) -> str:
    """The name of a tensor without PEFT's additions."""
    return name.removeprefix(_ROOT).replace(".modules_to_save.default", "").replace(".default", "")


def _scale(config: Mapping[str, Any], layer: str, rank: int) -> float:
    """alpha / rank, as PEFT computes it: alpha is the first match in alpha_pattern, otherwise lora_alpha."""
    patterns: Mapping[str, float] = config.get("alpha_pattern") or {}
    named = [alpha for pattern, alpha in patterns.items() if re.match(rf"(.*\.)?({pattern})$", layer)]
    alpha = float(named[0] if named else config.get("lora_alpha", 8))
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


@dataclass(frozen=True)
class _Place:
    """The place of one of their tensors: part `part` of the `parts` that are stacked in our parameter `ours`."""

    ours: str
    part: int
    parts: int
    by_head: int
    """See KeyRow."""


def _places(model: Model) -> dict[str, _Place]:
    """The place of each of their tensors, by its name."""
    names = {name.replace(".base.", "."): None for name in model.state_dict()}
    found: dict[str, _Place] = {}
    for row in checkpoint.key_table(FAMILIES[model.config.family], model.config, names):
        found |= {part: _Place(row.ours, i, len(row.parts), row.by_head) for i, part in enumerate(row.parts)}
    return found


def _view(
    state: Mapping[str, Tensor], places: Mapping[str, _Place], name: str, folder: Path, shape: torch.Size
) -> Tensor:
    """The part of our parameter that holds their tensor `name`, as a view."""
    if name not in places:
        raise BothwaysError(
            f"{folder}: the adapter holds weights for {name}, which its base model does not have",
            "unexpected-tensors",
            (name,),
        )
    place = places[name]
    found = state[place.ours].chunk(place.parts)[place.part]
    if found.shape != shape:
        raise BothwaysError(
            f"{folder}: {name} has the shape {list(shape)} in the adapter and {list(found.shape)} in the base model",
            "shape-mismatch",
            name,
        )
    return found


def _with_head(model: Model, names: set[str], config: Mapping[str, Any], folder: Path) -> Model:
    """The model with the head of the adapter, whose tensors are `names`; with its own head if the adapter has none.

    Layers of the head that the adapter lacks are taken from the base model, as in transformers.
    """
    family, base = FAMILIES[model.config.family], _places(model)
    raw = read_json(folder / "config.json") if (folder / "config.json").exists() else {}
    task = [head for head, kind in _TASKS.items() if kind == config.get("task_type")]
    possible = []
    for name, head in family.heads.items():
        required = {str(row.theirs) for row in head.rows} - _optional(head)
        if not head.in_body and (required <= names or (required - base.keys() and required <= names | base.keys())):
            possible.append(name)
    needed = {need for name in possible for need in family.heads[name].needs}
    possible = [name for name in possible if name not in needed]
    ranked = [n for n in (*checkpoint.heads_of(family, raw), *task, *model.heads, *possible) if n in possible]
    if not ranked:
        return model
    chosen = family.heads[ranked[0]]
    heads = tuple(name for name in family.heads if name == ranked[0] or name in chosen.needs)
    kept = {
        k: v for k, v in model.config.hf_config.items() if k not in ("id2label", "label2id", "problem_type", "bothways")
    }
    labels: tuple[str, ...] = ()
    if chosen.has_labels:
        labels = checkpoint.read_labels(raw) or model.config.labels
        last = next(str(row.theirs) for row in chosen.rows if row.ours.endswith(".linear.weight"))
        size = len(read_weights(folder / WEIGHTS)[_ROOT + last])
        labels = labels if len(labels) == size else checkpoint.nameless(size)
    grown = Model.new(replace(model.config, heads=heads, labels=labels, hf_config=raw or kept), model.tokenizer)
    state, own = model.state_dict(), grown.state_dict()
    for ours, tensor in own.items():
        if ours.startswith("encoder."):
            tensor.copy_(state[ours])
    for row in (row for name in heads for row in family.heads[name].rows):
        if row.ours not in own or row.theirs in names:
            continue
        if row.theirs not in base:
            raise BothwaysError(
                f"{folder}: neither the adapter nor its base model has the weights {row.theirs} of its head",
                "missing-tensors",
                row.parts,
            )
        own[row.ours].copy_(state[base[str(row.theirs)].ours])
    return grown


def _optional(head: Head) -> set[str]:
    """The biases, which not every model of a family has."""
    return {str(row.theirs) for row in head.rows if row.ours.endswith(".bias") and ".linear." not in row.ours}


# ---------------------------------------------------------------------- names

_ROLES = ("query", "key", "value")


def _layers(model: Model) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every linear layer of the blocks: our name, and their names of the layers stacked in it."""
    linear = {name for name, module in model.named_modules() if isinstance(module, nn.Linear | Adapted)}
    for row in FAMILIES[model.config.family].body:
        if "{}" in row.ours and row.ours.endswith(".weight"):
            for i in range(model.config.encoder.blocks):
                ours = row.ours.format(i).removesuffix(".weight")
                if ours in linear:
                    yield ours, tuple(part.format(i).removesuffix(".weight") for part in row.parts)


def _targets(model: Model, targets: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...], list[int]]]:
    """The layers with a part whose name matches a target, and the indices of these parts."""
    for ours, theirs in _layers(model):
        names = [[part] for part in theirs]
        if ours.endswith(".attention.qkv"):
            for i, role in enumerate(_ROLES):
                names[i if len(theirs) > 1 else 0].append(role)
        chosen = [
            i
            for i, own in enumerate(names)
            if "all-linear" in targets or any(f".{name}".endswith(f".{target}") for name in own for target in targets)
        ]
        if chosen:
            yield ours, theirs, chosen


def _last_names(model: Model) -> list[str]:
    """The last component of each layer's name."""
    return sorted({part.rpartition(".")[2] for _, theirs in _layers(model) for part in theirs} - {*_ROLES})
