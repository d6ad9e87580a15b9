"""LoRA (Hu et al. 2021): a trained low-rank update of a frozen layer, W x + (alpha / rank) · B A x.

Adapters are read and written in PEFT's file format: adapter_config.json, and adapter_model.safetensors with the adapter
and the head. Layers have their Hugging Face names, such as `query` or `output.dense`, by the family's key table.
"""

import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bothways import atomic
from bothways.errors import BothwaysError
from bothways.model import checkpoint, identify
from bothways.model.adapter_config import (
    CONFIG,
    WEIGHTS,
    is_adapter,
    merge,
    name_of_base,
    require_supported,
    require_targets,
    weights_of,
)
from bothways.model.adapter_tensors import DOWN, ROOT, UP, plain_names, require_matrix, updated_layers
from bothways.model.card_text import CARD
from bothways.model.families import FAMILIES
from bothways.model.families.family import Family, Head, KeyRow
from bothways.model.layer_patterns import AdapterPatterns
from bothways.model.model import Model
from bothways.model.sentence import names_of, write_sentence
from bothways.model.sentence_files import MODULES
from bothways.model.weights import read_json, read_weights, require_finite

_TASKS = {"sequence": "SEQ_CLS", "token": "TOKEN_CLS", "span": "QUESTION_ANS"}


class Adapted(nn.Module):
    """A linear layer with LoRA on some of the layers that are stacked in it: query and value of qkv, for example."""

    def __init__(self, base: nn.Linear, widths: list[int], chosen: list[int], lora: "LoraShape") -> None:
        """`widths`: those of the layers stacked in `base`. `chosen`: which get LoRA matrices, A (down) and B (up)."""
        super().__init__()
        self.base, self.widths = base, widths
        self.rank, self.alpha, self.dropout = lora.rank, lora.alpha, lora.dropout
        self.down = nn.ParameterDict({str(i): torch.empty(lora.rank, base.in_features) for i in chosen})
        self.up = nn.ParameterDict({str(i): torch.zeros(widths[i], lora.rank) for i in chosen})

    def forward(self, x: Tensor) -> Tensor:
        """(…, in) → (…, out)."""
        y: Tensor = self.base(x)
        dropped = F.dropout(x, self.dropout, self.training)
        updates = [
            F.linear(F.linear(dropped, self.down[name]), self.up[name])
            if name in self.up
            else y.new_zeros(1).expand(*y.shape[:-1], width)
            for name, width in zip(map(str, range(len(self.widths))), self.widths, strict=True)
        ]
        return y + self.alpha / self.rank * torch.cat(updates, -1)


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
        row = KeyRow(theirs, f"{ours}.weight")
        layer = Adapted(base, row.lengths(base.out_features, model.config.encoder), chosen, lora)
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
            tensors[ROOT + names[-1] + DOWN] = layer.down[str(i)]
            tensors[ROOT + names[-1] + UP] = up
    state, kept = model.state_dict(), set()
    for head in (family.heads[name] for name in model.config.heads):
        for row in head.rows:
            if row.ours not in state:  # a bias that this model does not have
                continue
            assert isinstance(row.theirs, str)
            tensors[f"{ROOT}{family.prefix if head.in_body else ''}{row.theirs}"] = state[row.ours]
            kept.add(_module_to_save(row.theirs, head))
    config = {
        "peft_type": "LORA",
        "task_type": next((_TASKS[name] for name in model.config.heads if name in _TASKS), None),
        "base_model_name_or_path": name_of_base(base, folder),
        "r": adapted[0][0].rank,
        "lora_alpha": adapted[0][0].alpha,
        "lora_dropout": adapted[0][0].dropout,
        "target_modules": names,
        "modules_to_save": sorted(kept - {""}),
        "bias": "none",
        "inference_mode": True,
    }
    others = names_of(model.sentence) if model.sentence else []
    with atomic.new_folder(folder, replaces=(CONFIG, WEIGHTS, "config.json", *others)) as fresh:
        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        safetensors.torch.save_file(plain, fresh / WEIGHTS, metadata={"format": "pt"})
        _write_json(fresh / CONFIG, config)
        _write_json(fresh / "config.json", checkpoint.describe(model))
        if model.sentence is not None:
            write_sentence(model.sentence, fresh, model.config.encoder.width)


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


def copy_adapter(source: Path, target: Path, base: str, card: Callable[[], str]) -> None:
    """Copy an adapter of the model in the folder `base`, with a card; does nothing if `source` is not an adapter."""
    if not is_adapter(source):
        return
    config = read_json(source / CONFIG) | {"base_model_name_or_path": name_of_base(base, target)}
    with atomic.new_folder(target, replaces=(*(path.name for path in source.iterdir()), CARD)) as fresh:
        shutil.copytree(source, fresh, dirs_exist_ok=True)
        _write_json(fresh / CONFIG, config)
        (fresh / CARD).write_text(card(), encoding="utf-8")


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def with_adapter(model: Model, folder: Path) -> Model:
    """The base model with an adapter merged into its weights, and with the head of the adapter."""
    config = read_json(folder / CONFIG)
    require_supported(config, folder / CONFIG)
    family = FAMILIES[model.config.family]
    patterns = AdapterPatterns(config)
    found = plain_names(read_weights(weights_of(folder)), folder)
    full_names = {name.removeprefix(family.prefix): name for name in found}
    tensors = {name: found[full] for name, full in full_names.items()}
    for name, tensor in tensors.items():
        require_finite([name], tensor, folder)
    whole = {name: tensor for name, tensor in tensors.items() if ".lora_" not in name}
    model = _with_head(model, whole, config, folder)
    places = _places(model)
    state = model.state_dict()
    for name, tensor in whole.items():
        _require_untied(model, places, name, folder)
        _view(state, places, name, folder, tensor.shape).copy_(tensor)
    updated = updated_layers(set(tensors) - set(whole), folder)
    theirs = [full_names[layer + DOWN].removesuffix(DOWN) for layer in updated]
    prefix = family.prefix if any(name.startswith(family.prefix) for name in theirs) else ""
    blocks = [prefix + name for _, parts in _layers(model) for name in parts]
    require_targets(config, patterns, theirs, blocks, folder / CONFIG)
    for layer in updated:
        down, up = tensors[layer + DOWN], tensors[layer + UP]
        for end, tensor in ((DOWN, down), (UP, up)):
            require_matrix(layer + end, tensor, folder)
        target = _view(state, places, f"{layer}.weight", folder, torch.Size([up.shape[0], down.shape[1]]))
        by_head = places[f"{layer}.weight"].by_head
        if by_head > 1:
            up = checkpoint.regrouped(up, model.config.encoder.num_heads, by_head)
        merge(config, patterns, target, down, up, full_names[layer + DOWN].removesuffix(DOWN))
    return model.eval()


@dataclass(frozen=True)
class _Place:
    """The place of one of their tensors: `length` rows from `start` on of our parameter `ours`."""

    ours: str
    start: int
    length: int
    by_head: int
    """See KeyRow."""


def _places(model: Model) -> dict[str, _Place]:
    """The place of each of their tensors, by its name."""
    totals = {name.replace(".base.", "."): len(tensor) for name, tensor in model.state_dict().items()}
    found: dict[str, _Place] = {}
    for row in checkpoint.key_table(_family(model), model.config, totals):
        start = 0
        for part, length in zip(row.parts, row.lengths(totals[row.ours], model.config.encoder), strict=True):
            found[part] = _Place(row.ours, start, length, row.by_head)
            start += length
    return found


def _family(model: Model) -> Family:
    """The family with the names of modules in its class, which PEFT uses, instead of those in files."""
    family = FAMILIES[model.config.family]
    return replace(family, body=family.modules) if family.modules else family


def _require_untied(model: Model, places: Mapping[str, _Place], name: str, folder: Path) -> None:
    """Refuse token embeddings that PEFT trained apart from the head for masked tokens, which here has the same ones."""
    is_tied = "masked" in model.heads and getattr(model.heads["masked"], "decoder", None) is None
    if is_tied and name in places and places[name].ours == "encoder.embeddings.tokens.weight":
        raise BothwaysError(
            f"{folder}: modules_to_save in {CONFIG} has the token embeddings {name} without those of the head for "
            "masked tokens, and here they are the same",
            "unsupported-adapter",
            ("modules_to_save", name),
        )


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
    found = state[place.ours].narrow(0, place.start, place.length)
    if found.shape != shape:
        raise BothwaysError(
            f"{folder}: {name} has the shape {list(shape)} in the adapter and {list(found.shape)} in the base model",
            "shape-mismatch",
            name,
        )
    return found


def _with_head(model: Model, whole: Mapping[str, Tensor], config: Mapping[str, Any], folder: Path) -> Model:
    """The model with the head that is among the tensors `whole` of the adapter; with its own head if there is none.

    Layers of the head that the adapter lacks are taken from the base model, as in transformers.
    """
    family, base, names = FAMILIES[model.config.family], _places(model), set(whole)
    raw = read_json(folder / "config.json") if (folder / "config.json").exists() else {}
    task = [head for head, kind in _TASKS.items() if kind == config.get("task_type")]
    possible = []
    for name, head in family.heads.items():
        required = {str(row.theirs) for row in head.rows} - _optional(head)
        if not head.in_body and (required <= names or (required - base.keys() and required <= names | base.keys())):
            possible.append(name)
    needed = {need for name in possible for need in family.heads[name].needs}
    possible = [name for name in possible if name not in needed]
    ranked = [n for n in (*identify.heads_of(family, raw), *task, *model.heads, *possible) if n in possible]
    if not ranked and "bothways" in raw and (folder / MODULES).exists():  # a bi-encoder, which has no head
        plain = Model.unfilled(replace(model.config, heads=(), labels=(), hf_config=raw), model.tokenizer)
        plain.encoder = model.encoder
        return plain
    if not ranked:
        return model
    chosen = family.heads[ranked[0]]
    heads = tuple(name for name in family.heads if name == ranked[0] or name in chosen.needs)
    kept = {
        k: v for k, v in model.config.hf_config.items() if k not in ("id2label", "label2id", "problem_type", "bothways")
    }
    labels: tuple[str, ...] = ()
    if chosen.has_labels:
        labels = identify.read_labels(raw) or model.config.labels
        last = next(str(row.theirs) for row in chosen.rows if row.ours.endswith(".linear.weight"))
        if last in whole:
            require_matrix(last, whole[last], folder)
        size = len(whole[last]) if last in whole else len(model.config.labels)
        labels = labels if len(labels) == size else identify.nameless(size)
    grown = Model.unfilled(replace(model.config, heads=heads, labels=labels, hf_config=raw or kept), model.tokenizer)
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
    """The tensors that not every model of a family has: biases, and an output matrix beside a hidden layer."""
    ours = {row.ours for row in head.rows}
    is_tied = "heads.masked.decoder.weight" if "heads.masked.dense.weight" in ours else ""
    return {
        str(row.theirs)
        for row in head.rows
        if row.ours == is_tied or (row.ours.endswith(".bias") and ".linear." not in row.ours)
    }


# ---------------------------------------------------------------------- names

_ROLES = ("query", "key", "value")


def _layers(model: Model) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every linear layer of the blocks: our name, and their names of the layers stacked in it."""
    linear = {name for name, module in model.named_modules() if isinstance(module, nn.Linear | Adapted)}
    for row in _family(model).body:
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
