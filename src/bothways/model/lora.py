"""LoRA: a frozen layer W x with a small trained one beside it, W x + (alpha / rank) · B A x (Hu et al. 2021).

Adapters are read and written in PEFT's file format: adapter_config.json and adapter_model.safetensors, with the head
in them. Layers are named as there, `query`, `value`, `output.dense`, through the family's key table.
"""

import json
import math
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bothways import atomic
from bothways.errors import BothwaysError
from bothways.model import checkpoint
from bothways.model.families import FAMILIES
from bothways.model.model import Model

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_ROOT = "base_model.model."  # what PEFT puts before every name
_TASKS = {"sequence": "SEQ_CLS", "token": "TOKEN_CLS", "span": "QUESTION_ANS"}
# Kinds of adapter that share the file format and mean something else.
_OTHER = ("use_dora", "fan_in_fan_out", "alora_invocation_tokens", "corda_config", "eva_config")


@dataclass(frozen=True)
class LoraSettings:
    """The `[lora]` part of a recipe."""

    rank: int = 0
    """Of the trained matrices; 0: no LoRA, all weights are trained."""
    alpha: float = 16.0
    dropout: float = 0.0
    targets: tuple[str, ...] = ("query", "value")
    """The layers that get one, by the ends of their Hugging Face names; "all-linear" means every one."""

    def __post_init__(self) -> None:
        if self.rank < 0 or self.alpha <= 0 or not 0 <= self.dropout < 1:
            raise BothwaysError("lora.rank is 0 or more, lora.alpha above 0, lora.dropout from 0 up to 1")


class Adapted(nn.Module):
    """A linear layer with small ones beside some of the parts that are stacked in it."""

    def __init__(self, base: nn.Linear, parts: int, chosen: list[int], settings: LoraSettings) -> None:
        super().__init__()
        self.base, self.parts = base, parts
        self.scale, self.dropout = settings.alpha / settings.rank, settings.dropout
        out = base.out_features // parts
        self.down = nn.ParameterDict({str(i): torch.empty(settings.rank, base.in_features) for i in chosen})
        self.up = nn.ParameterDict({str(i): torch.zeros(out, settings.rank) for i in chosen})

    def forward(self, x: Tensor) -> Tensor:
        """(…, in) → (…, out)."""
        y: Tensor = self.base(x)
        dropped = F.dropout(x, self.dropout, self.training)
        beside = [
            F.linear(F.linear(dropped, self.down[name]), self.up[name]) if name in self.up else None
            for name in map(str, range(self.parts))
        ]
        nothing = y.new_zeros(1).expand(*y.shape[:-1], y.shape[-1] // self.parts)
        return y + self.scale * torch.cat([nothing if part is None else part for part in beside], -1)

    def merged(self) -> Tensor:
        """The one weight that does the same."""
        weight = self.base.weight.detach().clone()
        rows = weight.chunk(self.parts)
        for name, up in self.up.items():
            rows[int(name)].add_(up.detach() @ self.down[name].detach(), alpha=self.scale)
        return weight


def adapt(model: Model, settings: LoraSettings, *, seed: int = 0) -> Model:
    """Freeze the encoder and put trained layers beside the chosen ones. The model is changed in place."""
    model.encoder.requires_grad_(False)
    draws = torch.Generator().manual_seed(seed)
    is_real = model.device.type != "meta"
    found = list(_targets(model, settings.targets))
    if not found:
        raise BothwaysError(
            f"no layer of this {model.config.family} is called {' or '.join(settings.targets)}: "
            f"expected names such as query, value, output.dense"
        )
    for ours, theirs, chosen in found:
        layer = Adapted(_module(model, ours), len(theirs), chosen, settings)
        for down in layer.down.values() if is_real else ():
            nn.init.kaiming_uniform_(down, a=math.sqrt(5), generator=draws)
        _put(model, ours, layer)
    return model


def merge(model: Model) -> Model:
    """The same model with its adapters worked into the weights, as any other."""
    with torch.device("meta"):
        plain = Model(model.config, model.tokenizer)
    state = {name.replace(".base.", "."): t for name, t in model.state_dict().items() if not _is_adapter(name)}
    for name, module in model.named_modules():
        if isinstance(module, Adapted):
            state[f"{name}.weight"] = module.merged()
    plain.load_state_dict(state, assign=True)
    return plain.eval()


# ---------------------------------------------------------------------- files


def save_adapter(model: Model, settings: LoraSettings, base: str, folder: Path) -> None:
    """What was trained, and what it belongs to: PEFT opens it. The head is in it, and config.json has its labels."""
    family = FAMILIES[model.config.family]
    tensors: dict[str, Tensor] = {}
    names = []
    for ours, theirs, chosen in _targets(model, settings.targets):
        layer = _module(model, ours)
        assert isinstance(layer, Adapted)
        for i in chosen:
            names.append(family.prefix + theirs[i])
            tensors[f"{_ROOT}{names[-1]}.lora_A.weight"] = layer.down[str(i)]
            tensors[f"{_ROOT}{names[-1]}.lora_B.weight"] = layer.up[str(i)]
    state, kept = model.state_dict(), set()
    for head in (family.heads[name] for name in model.config.heads):
        for row in head.rows:
            assert isinstance(row.theirs, str)
            tensors[f"{_ROOT}{family.prefix if head.in_body else ''}{row.theirs}"] = state[row.ours]
            kept.add(row.theirs.split(".")[0])
    config = {
        "peft_type": "LORA",
        "task_type": next((_TASKS[name] for name in model.config.heads if name in _TASKS), None),
        "base_model_name_or_path": base,
        "r": settings.rank,
        "lora_alpha": settings.alpha,
        "lora_dropout": settings.dropout,
        "target_modules": names,
        "modules_to_save": sorted(kept),
        "bias": "none",
        "inference_mode": True,
    }
    with atomic.new_folder(folder, replaces=(CONFIG, WEIGHTS, "config.json")) as fresh:
        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        safetensors.torch.save_file(plain, fresh / WEIGHTS, metadata={"format": "pt"})
        for file, content in ((CONFIG, config), ("config.json", checkpoint.describe(model))):
            (fresh / file).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def copy_adapter(source: Path, target: Path) -> None:
    """The same adapter in another folder; nothing if it is none."""
    if (source / CONFIG).exists():
        with atomic.new_folder(target, replaces=(CONFIG, WEIGHTS, "config.json")) as fresh:
            for name in (CONFIG, WEIGHTS, "config.json"):
                shutil.copyfile(source / name, fresh / name)


def load_adapter(folder: Path, base: Path | str | None = None) -> Model:
    """The base model with an adapter worked in, and the head that came with it."""
    config = checkpoint.read_json(folder / CONFIG)
    if config.get("peft_type") != "LORA" or config.get("bias", "none") != "none":
        raise BothwaysError(
            f"{folder / CONFIG} is not a plain LoRA adapter: its peft_type is {config.get('peft_type')}"
        )
    if odd := [name for name in _OTHER if config.get(name)]:
        raise BothwaysError(f"{folder / CONFIG} has {odd[0]}, which is not known here")
    model = checkpoint.load(_base_folder(folder, config, base))
    tensors = {_plain(name): tensor for name, tensor in checkpoint.read_weights(folder / WEIGHTS).items()}
    family = FAMILIES[model.config.family]
    tensors = {name.removeprefix(family.prefix): tensor.float() for name, tensor in tensors.items()}
    _add(model, tensors, config, folder)
    return _with_heads(model, {n: t for n, t in tensors.items() if ".lora_" not in n}, folder)


def _base_folder(folder: Path, config: Mapping[str, Any], base: Path | str | None) -> Path:
    said = Path(base or str(config.get("base_model_name_or_path")))
    for path in (said, folder / said):
        if path.is_dir():
            return path
    raise BothwaysError(
        f"{folder} is an adapter for {said}, and that is not a folder here: give the base model's folder"
    )


def _plain(name: str) -> str:
    """PEFT's name of a tensor without what PEFT added."""
    return name.removeprefix(_ROOT).replace(".modules_to_save.default", "").replace(".default", "")


def _add(model: Model, tensors: Mapping[str, Tensor], config: Mapping[str, Any], folder: Path) -> None:
    """Work the adapters into the weights."""
    places = {part: (ours, i, len(theirs)) for ours, theirs in _layers(model) for i, part in enumerate(theirs)}
    state = model.state_dict()
    for name in [name for name in tensors if name.endswith(".lora_A.weight")]:
        layer = name.removesuffix(".lora_A.weight")
        if layer not in places or f"{layer}.lora_B.weight" not in tensors:
            raise BothwaysError(f"{folder}: the adapter has weights for {layer}, which this model has no use for")
        ours, part, parts = places[layer]
        down, up = tensors[name], tensors[f"{layer}.lora_B.weight"]
        alphas = config.get("alpha_pattern") or {}
        alpha = next((value for end, value in alphas.items() if layer.endswith(end)), config["lora_alpha"])
        rank = down.shape[0]
        scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
        state[f"{ours}.weight"].chunk(parts)[part].add_(up @ down, alpha=scale)


def _with_heads(model: Model, tensors: Mapping[str, Tensor], folder: Path) -> Model:
    """The model with the heads whose tensors came with the adapter; without any, with its own."""
    family = FAMILIES[model.config.family]
    said = checkpoint.read_json(folder / "config.json") if (folder / "config.json").exists() else {}
    heads = checkpoint.find_heads(family, said or model.config.foreign, set(tensors))
    if not heads:
        return model
    foreign = {**model.config.foreign, **said}
    labels = checkpoint.read_labels(said) or model.config.labels
    for head in (family.heads[name] for name in heads if family.heads[name].has_labels):
        size = len(tensors[str(head.rows[0].theirs)])
        labels = labels if len(labels) == size else checkpoint.nameless(size)
    with torch.device("meta"):
        grown = Model(replace(model.config, heads=heads, labels=labels, foreign=foreign), model.tokenizer)
    state = {name: tensor for name, tensor in model.state_dict().items() if name in grown.state_dict()}
    for head in (family.heads[name] for name in heads):
        state |= {row.ours: tensors[str(row.theirs)] for row in head.rows if row.theirs in tensors}
    grown.load_state_dict(state, assign=True)
    return grown.eval()


# ---------------------------------------------------------------------- names


def _layers(model: Model) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every linear layer of the blocks: our name, and theirs of each part that is stacked in it."""
    for row in FAMILIES[model.config.family].body:
        if "{}" in row.ours and row.ours.endswith(".weight") and "norm" not in row.ours:
            for i in range(model.config.encoder.layers):
                theirs = tuple(part.format(i).removesuffix(".weight") for part in row.parts)
                yield row.ours.format(i).removesuffix(".weight"), theirs


def _targets(model: Model, targets: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...], list[int]]]:
    """The layers in which a part is called as one of the targets, and which parts are."""
    for ours, theirs in _layers(model):
        chosen = [
            i
            for i, part in enumerate(theirs)
            if "all-linear" in targets or any(f".{part}".endswith(f".{target}") for target in targets)
        ]
        if chosen:
            yield ours, theirs, chosen


def _module(model: Model, name: str) -> Any:
    return model.get_submodule(name)


def _put(model: Model, name: str, module: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)


def _is_adapter(name: str) -> bool:
    return ".down." in name or ".up." in name
