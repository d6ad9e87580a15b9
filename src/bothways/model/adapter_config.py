"""adapter_config.json, PEFT's settings of an adapter: what each of them means here, and where the base model is."""

import math
import os
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from bothways.errors import BothwaysError
from bothways.lazy import Tensor, torch
from bothways.model.box import ALIASES, BOX, model_folder
from bothways.model.families.family import setting
from bothways.model.hub_cache import cached_model, name_in_hub
from bothways.model.layer_patterns import AdapterPatterns
from bothways.model.weights import first_few, read_json
from bothways.ranges import Declared, Range

CONFIG, WEIGHTS, OLDER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
_BASE = "base_model_name_or_path"
_IN_BOX = "bothways/box/"  # the folder of a base model in the box, wherever the library is installed

APPLIED = {
    "peft_type", "task_type", _BASE, "r", "rank_pattern", "lora_alpha", "alpha_pattern", "use_rslora",
    "init_lora_weights", "bias",
}  # fmt: skip
IN_TENSOR_NAMES = {
    "target_modules", "exclude_modules", "target_parameters", "layers_to_transform", "layers_pattern",
    "modules_to_save",
}  # fmt: skip
"""Which layers are adapted, or saved whole: the names of the file's tensors say the same."""
NO_EFFECT = {
    "auto_mapping", "peft_version", "revision", "inference_mode", "runtime_config", "lora_dropout", "merge_weights",
    # Used by an initialisation or by another setting only.
    "loftq_config", "eva_config", "corda_config", "lora_ga_config", "megatron_core", "qalora_group_size",
    # PEFT sets it to false for linear layers, and all layers of the families are linear.
    "fan_in_fan_out",
    # For trained embeddings that are tied to a head, which are refused.
    "ensure_weight_tying",
}  # fmt: skip
"""Settings that change no output."""
REFUSED = {
    "use_dora", "use_qalora", "use_bdlora", "velora_config", "monteclora_config", "arrow_config", "kasa_config",
    "alora_invocation_tokens", "trainable_token_indices", "layer_replication", "lora_bias", "megatron_config",
}  # fmt: skip
"""Settings of other kinds of adapter, refused unless they are off."""


def _principal(weight: Tensor, rank: int, scale: float) -> Tensor:
    """PiSSA (Meng et al. 2024): the largest `rank` singular components."""
    u, s, v = torch.linalg.svd(weight, full_matrices=False)
    found: Tensor = u[:, :rank] * s[:rank] @ v[:rank]
    return found


def _first_of_qr(weight: Tensor, rank: int, scale: float) -> Tensor:
    """OLoRA (Büyükakyüz 2024): the first `rank` columns of Q and rows of R. PEFT scales the product here too."""
    q, r = torch.linalg.qr(weight)
    found: Tensor = scale * q[:, :rank] @ r[:rank]
    return found


_PLAIN_INITS = ("true", "false", "none", "gaussian", "orthogonal", "eva", "mica")
_TAKEN_OUT: Mapping[str, Callable[[Tensor, int, float], Tensor]] = {"pissa": _principal, "olora": _first_of_qr}
"""Initialisations that take out of the base weights what the adapter starts with. PEFT does so again when it opens the
adapter. The others of this kind are random, or use data that the adapter does not hold."""


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _table_of(allowed: Declared) -> tuple[Callable[[Any], bool], str]:
    def is_table(value: object) -> bool:
        return isinstance(value, dict) and not any(map(allowed.fault, value.values()))

    return is_table, f"an object whose values are each {allowed.expected}"


def _number(allowed: Declared) -> tuple[Callable[[Any], bool], str]:
    return lambda value: not allowed.fault(value), allowed.expected


_RANK, _ALPHA, _BLOCK = (
    Declared(Range(1, 2**20), True),
    Declared(Range(0, 1e30), False),
    Declared(Range(0, 10_000), True),
)
_NAMES = (lambda value: _is_text(value) or _are_texts(value)), "a text or a list of texts"
_LIST = _are_texts, "a list of texts"
_SWITCH = (lambda value: isinstance(value, bool)), "true or false"
_KINDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "r": _number(_RANK),
    "lora_alpha": _number(_ALPHA),
    "rank_pattern": _table_of(_RANK),
    "alpha_pattern": _table_of(_ALPHA),
    "use_rslora": _SWITCH,
    "fan_in_fan_out": _SWITCH,
    "peft_type": (_is_text, "a text"),
    "task_type": (_is_text, "a text"),
    "target_modules": _NAMES,
    "exclude_modules": _NAMES,
    "layers_pattern": _NAMES,
    "target_parameters": _LIST,
    "modules_to_save": _LIST,
    "layers_to_transform": (
        lambda value: not any(map(_BLOCK.fault, value if isinstance(value, list) else [value])),
        "the number of a layer, or a list of them",
    ),
}
"""The settings that are read, each with its kind. Null is as if it were missing."""


def require_supported(config: Mapping[str, Any], path: Path) -> None:
    """Refuse settings that would give other outputs than PEFT's."""
    other = {
        "peft_type": config.get("peft_type") or "LORA",
        "bias": config.get("bias") or "none",
        **{key: value for key, value in config.items() if key in REFUSED and value},
    }
    for key, value in other.items():
        if (key, value) not in (("peft_type", "LORA"), ("bias", "none")):
            raise BothwaysError(
                f"{path} has {key} = {value}: only plain LoRA adapters are supported",
                "unsupported-adapter",
                (key, value),
            )
    for key in sorted(config.keys() - APPLIED - IN_TENSOR_NAMES - NO_EFFECT - REFUSED):
        if config[key]:
            raise BothwaysError(
                f"{path} has {key} = {config[key]}, and this setting is not known: remove it if it changes no output",
                "unsupported-adapter",
                (key, config[key]),
            )
    for key, (is_right, expected) in _KINDS.items():
        if (value := config.get(key)) is not None and not is_right(value):
            raise BothwaysError(
                f"{path} has {key} = {value!r}: expected {expected}", "unsupported-adapter", (key, value)
            )
    start = config.get("init_lora_weights", True)
    if str(start).lower() not in (*_PLAIN_INITS, *_TAKEN_OUT):
        raise BothwaysError(
            f"{path} has init_lora_weights = {start}: expected {', '.join((*_PLAIN_INITS, *_TAKEN_OUT))}; PEFT's "
            "save_pretrained with path_initial_model_for_weight_conversion writes an adapter of the unchanged base",
            "unsupported-adapter",
            ("init_lora_weights", start),
        )


def require_targets(
    config: Mapping[str, Any], patterns: AdapterPatterns, layers: Collection[str], blocks: Iterable[str], path: Path
) -> None:
    """Refuse weights of layers that target_modules does not name, which PEFT would leave out; and a file that lacks
    those of a layer that it names. `blocks`: the layers of the base model's blocks."""
    targets = config.get("target_modules")
    if not targets or (isinstance(targets, str) and targets.lower() == "all-linear") or config.get("target_parameters"):
        return
    for layer in layers:
        if not patterns.targets(layer):
            raise BothwaysError(
                f"{path} has target_modules = {targets}, and the adapter has weights for {layer} as well",
                "unexpected-tensors",
                (layer,),
            )
    if missing := [layer for layer in blocks if layer not in layers and patterns.targets(layer)]:
        raise BothwaysError(
            f"{path} has target_modules = {targets}, and the adapter has no weights for {first_few(missing)}",
            "missing-tensors",
            tuple(missing),
        )


def merge(
    config: Mapping[str, Any], patterns: AdapterPatterns, weight: Tensor, down: Tensor, up: Tensor, layer: str
) -> None:
    """Add the update of an adapter to a base weight, in place. `layer`: its name in PEFT."""
    rank = patterns.value("rank_pattern", layer, setting(config, "r", 8))
    alpha = patterns.value("alpha_pattern", layer, setting(config, "lora_alpha", 8))
    scale = float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)
    take_out = _TAKEN_OUT.get(str(config.get("init_lora_weights")).lower())
    expected = min(rank, *weight.shape) if take_out else rank  # a decomposition has no more components
    if (len(down), up.shape[1]) != (expected, expected):
        raise BothwaysError(
            f"{layer} has the rank {len(down)} in the weights of the adapter and {expected} in its {CONFIG}",
            "shape-mismatch",
            layer,
        )
    if take_out:
        weight.sub_(take_out(weight, rank, scale))
    weight.add_(up @ down, alpha=scale)


# ---------------------------------------------------------------------- files


def is_adapter(folder: Path) -> bool:
    return (folder / CONFIG).exists()


def weights_of(folder: Path) -> Path:
    """The weights file of an adapter: PEFT prefers safetensors, as here."""
    for name in (WEIGHTS, OLDER_WEIGHTS):
        if (folder / name).is_file():
            return folder / name
    raise BothwaysError(
        f"{folder} is an adapter without weights: expected {WEIGHTS} or {OLDER_WEIGHTS}", "no-weights", folder
    )


def base_of(folder: Path, base: Path | str | None = None) -> Path | None:
    """The folder of an adapter's base model, `base` if it is given; None if `folder` is not an adapter."""
    if not is_adapter(folder):
        if base is not None:
            raise BothwaysError(
                f"{folder} has no {CONFIG}, so it is not an adapter: leave out `base`", "not-an-adapter", folder
            )
        return None
    named = read_json(folder / CONFIG).get(_BASE)
    if base is not None:
        places = [model_folder(base)]
    elif not isinstance(named, str) or "\0" in named or (folder / named).resolve() == folder.resolve():
        places = []  # no name, or its own
    elif named.startswith(_IN_BOX):
        name = named.removeprefix(_IN_BOX)
        places = [BOX / ALIASES.get(name, name)]
    else:
        beside = [model_folder(place) for place in (folder / named, Path(named)) if place.is_dir()]
        places = beside or [cached_model(named) or Path(named)]
    for path in places:
        if path.is_dir() and path.resolve() != folder.resolve():
            return path.resolve()
    if base is not None:
        raise BothwaysError(
            f"`base` is {base}, which is neither the folder of a base model nor in the Hugging Face cache: "
            "name another one",
            "no-base-model",
            str(base),
        )
    what = "an adapter that names no base model"
    if places:
        what = f"an adapter of {named}, which is neither a folder here nor in the Hugging Face cache"
    raise BothwaysError(
        f"{folder} is {what}: give its base model as `base`, or as {_BASE} in {CONFIG}",
        "no-base-model",
        named,
    )


def name_of_base(base: str, folder: Path) -> str:
    """How an adapter in `folder` names its base model: by a path relative to `folder`, so that both can move together.

    An absolute path would be true on one machine only. A model in the cache of the Hub has its name there. A name that
    is not a folder is kept.
    """
    path = Path(base)
    if (name := name_in_hub(path)) is not None:
        return name
    if not path.is_absolute() and not path.is_dir():
        return base
    path, folder = path.resolve(), folder.resolve()
    if path.is_relative_to(BOX.resolve()) and not folder.is_relative_to(BOX.resolve()):
        return _IN_BOX + path.relative_to(BOX.resolve()).as_posix()
    try:
        return Path(os.path.relpath(path, folder)).as_posix()
    except ValueError:  # on Windows, another drive
        warnings.warn(
            f"{folder} is not on the drive of its base model and knows only its name, {path.name}: open it with `base`",
            stacklevel=2,
        )
        return path.name
