"""Reads and writes what a folder of sentence-transformers says about the vector of a text.

modules.json lists the modules: the transformer, Pooling, then Dense and Normalize in any order. Further settings are in
sentence_bert_config.json and config_sentence_transformers.json.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

import safetensors.torch
from torch import Tensor, nn
from torch.nn import functional as F

from bothways.errors import BothwaysError
from bothways.model.activations import ACTIVATIONS
from bothways.model.heads import output_layer
from bothways.model.pooling import Pooling
from bothways.model.pooling_modes import PoolingMode
from bothways.model.weights import read_json, read_weights

MODULES, SETTINGS, PROMPTS = "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"
TRAINING = "training.safetensors"
"""What only training needs, in the checkpoints of a run. sentence-transformers does not read it."""
_TYPES = {name: f"sentence_transformers.models.{name}" for name in ("Transformer", "Pooling", "Dense", "Normalize")}
_OLDER_MODES: dict[str, PoolingMode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
ACTIVATION_NAMES = {
    "torch.nn.modules.linear.Identity": "linear",
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.SiLU": "silu",
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
}


class Dense(nn.Module):
    """A linear layer and an activation."""

    def __init__(self, inputs: int, outputs: int, bias: bool, activation: str) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=bias)
        self.activation = activation
        """As sentence-transformers names it."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs) → (B, outputs)."""
        return ACTIVATIONS[ACTIVATION_NAMES[self.activation]](output_layer(self.linear, x))


class Normalize(nn.Module):
    """Vectors of length 1."""

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1)


class Sentence(nn.Module):
    """How the vector of a text is made: a prompt before it, the pooling of its tokens, and further modules."""

    def __init__(
        self,
        pooling: Pooling,
        modules: Iterable[Dense | Normalize] = (),
        *,
        max_length: int | None = None,
        include_prompt: bool = True,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """`max_length`: longer texts are cut by sentence-transformers. `settings`: those of PROMPTS."""
        super().__init__()
        self.pooling, self.max_length, self.include_prompt = pooling, max_length, include_prompt
        self.steps = nn.ModuleList(modules)
        self.settings = dict(settings or {})
        self.training_only = nn.ModuleDict()
        """Linear layers that a loss needs: the classifier of SBERT, the projection to a teacher's width."""

    def forward(self, pooled: Tensor) -> Tensor:
        """The modules after the pooling; of the vector, as many numbers as the folder says."""
        for step in self.steps:
            pooled = step(pooled)
        return pooled[:, : self.settings.get("truncate_dim")]

    def width(self, width: int) -> int:
        """The width of the vectors, given that of the hidden states."""
        dense = [step.linear.out_features for step in self.steps if isinstance(step, Dense)]
        full = dense[-1] if dense else width * len(self.pooling.modes)
        return min(self.settings.get("truncate_dim") or full, full)

    @property
    def prompts(self) -> dict[str, str]:
        """Prompts by name."""
        found = self.settings.get("prompts") or {}
        if not isinstance(found, dict) or not all(text is None or isinstance(text, str) for text in found.values()):
            raise BothwaysError(
                f"the prompts of {PROMPTS} are {found!r}: expected texts by name",
                "unsupported-setting",
                ("prompts", found),
            )
        return {str(name): text or "" for name, text in found.items()}

    def prompt(self, name: str | None = None) -> str:
        """The prompt of this name; without a name, the folder's default, if it has one."""
        known, default = self.prompts, self.settings.get("default_prompt_name")
        if name is None and default is None:
            return ""
        wanted = default if name is None else name
        if wanted not in known:
            what = f"{PROMPTS} has default_prompt_name = {wanted!r}" if name is None else f"`prompt_name` is {wanted!r}"
            raise BothwaysError(
                f"{what}, and this model has {'the prompts ' + ', '.join(known) if known else 'no prompts'}",
                "unknown-choice",
                wanted,
            )
        return known[wanted]


# ---------------------------------------------------------------------- reading


def transformer_folder(folder: Path) -> Path:
    """The folder of the transformer itself: older folders of sentence-transformers have it inside."""
    if (folder / MODULES).exists() and not (folder / "config.json").exists():
        for module in listed(folder):
            if _kind(module) == "Transformer" and (folder / module_path(module) / "config.json").exists():
                return folder / module_path(module)
    return folder


def read_sentence(folder: Path, width: int) -> Sentence | None:
    """What the folder says about the vector of a text; None if it is not one of sentence-transformers."""
    if not (folder / MODULES).exists():
        return None
    first, *others = listed(folder)
    kinds = [_kind(module) for module in (first, *others)]
    if kinds == ["Transformer"]:  # a cross-encoder
        return None
    if kinds[:2] != ["Transformer", "Pooling"] or not set(kinds[2:]) <= {"Dense", "Normalize"}:
        raise BothwaysError(
            f"{folder / MODULES} lists {', '.join(kinds)}, and only Transformer and Pooling, then Dense or Normalize, "
            "are supported: give `pool` to pool the hidden states of the Transformer",
            "unsupported-modules",
            tuple(kinds),
        )
    pooling = read_json(folder / module_path(others[0]) / "config.json")
    _require(pooling, "include_prompt", (True, False, None), folder / module_path(others[0]))
    steps: list[Dense | Normalize] = []
    for module in others[1:]:
        place = folder / module_path(module)
        config = read_json(place / "config.json") if (place / "config.json").exists() else {}
        for key in ("module_input_name", "module_output_name"):
            _require(config, key, ("sentence_embedding", None), place)
        steps.append(Normalize() if _kind(module) == "Normalize" else read_dense(place, config))
    settings = read_json(folder / PROMPTS) if (folder / PROMPTS).exists() else {}
    sentence = Sentence(
        Pooling(_modes(pooling, folder / module_path(others[0]))),
        steps,
        max_length=max_length_of(folder, folder / module_path(first)),
        include_prompt=pooling.get("include_prompt") is not False,
        settings=settings,
    )
    _require_widths(sentence, width, folder)
    _require_settings(sentence)
    if (folder / TRAINING).exists():
        tensors = read_weights(folder / TRAINING)
        for name in sorted({name.partition(".")[0] for name in tensors}):
            outputs, inputs = tensors[f"{name}.weight"].shape
            layer = nn.Linear(inputs, outputs, bias=f"{name}.bias" in tensors)
            layer.load_state_dict({key: tensors[f"{name}.{key}"] for key in layer.state_dict()})
            sentence.training_only[name] = layer
    return sentence


def _require_settings(sentence: Sentence) -> None:
    """Refuse settings of PROMPTS that mean nothing, or another kind of model: now, and not at the first text."""
    sentence.prompt()
    kind = sentence.settings.get("model_type")
    if kind not in (None, "SentenceTransformer"):
        raise BothwaysError(
            f"{PROMPTS} has model_type = {kind!r}: only 'SentenceTransformer' has a vector for a text",
            "unsupported-setting",
            ("model_type", kind),
        )
    limit = sentence.settings.get("truncate_dim")
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise BothwaysError(
            f"{PROMPTS} has truncate_dim = {limit!r}: expected 1 or more",
            "unsupported-setting",
            ("truncate_dim", limit),
        )


def lowers_case(folder: Path) -> bool:
    """Whether texts are lower-cased before the tokenizer reads them."""
    found = [place / SETTINGS for place in (folder, transformer_folder(folder)) if (place / SETTINGS).exists()]
    return bool(found) and read_json(found[0]).get("do_lower_case") is True


def listed(folder: Path) -> list[dict[str, Any]]:
    try:
        modules: list[dict[str, Any]] = json.loads((folder / MODULES).read_text(encoding="utf-8"))
        is_right = bool(modules) and all(isinstance(module[key], str) for module in modules for key in ("type", "path"))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        is_right = False
    if not is_right:
        raise BothwaysError(
            f"{folder / MODULES} is not a list of modules with path and type", "damaged-file", folder / MODULES
        )
    return modules


def _kind(module: Mapping[str, Any]) -> str:
    """The class of a module. The packages inside sentence_transformers have changed with the versions."""
    package, _, name = str(module["type"]).rpartition(".")
    return name if package.split(".")[0] == "sentence_transformers" else str(module["type"])


def module_path(module: Mapping[str, Any]) -> str:
    """The folder of a module, which is inside the model's."""
    path = Path(module["path"])
    if path.is_absolute() or ".." in path.parts:
        raise BothwaysError(f"{MODULES} names the folder {path}, which is outside", "damaged-file", str(path))
    return str(path)


def _modes(config: Mapping[str, Any], place: Path) -> tuple[PoolingMode, ...]:
    named = config.get("pooling_mode")
    if named is None:
        for key in config:
            if key.startswith("pooling_mode_") and config[key] and key not in _OLDER_MODES:
                raise BothwaysError(
                    f"{place / 'config.json'} has {key}: expected {', '.join(_OLDER_MODES)}",
                    "unsupported-setting",
                    (key, config[key]),
                )
        return tuple(mode for key, mode in _OLDER_MODES.items() if config.get(key)) or ("mean",)
    modes = tuple(named) if isinstance(named, list) else (named,)
    for mode in modes:
        if mode not in get_args(PoolingMode):
            raise BothwaysError(
                f"{place / 'config.json'} has the pooling_mode {mode!r}: expected {', '.join(get_args(PoolingMode))}",
                "unsupported-setting",
                ("pooling_mode", mode),
            )
    return modes


def read_dense(place: Path, config: Mapping[str, Any]) -> Dense:
    _require(config, "use_residual", (False, None), place)
    activation = config.get("activation_function") or "torch.nn.modules.activation.Tanh"
    if activation not in ACTIVATION_NAMES:
        raise BothwaysError(
            f"{place / 'config.json'} has the activation_function {activation}: expected {', '.join(ACTIVATION_NAMES)}",
            "unsupported-setting",
            ("activation_function", activation),
        )
    weights = next((place / n for n in ("model.safetensors", "pytorch_model.bin") if (place / n).exists()), None)
    if weights is None:
        raise BothwaysError(f"{place} has no weights: expected model.safetensors", "no-weights", place)
    tensors = read_weights(weights)
    expected = {"linear.weight", *(["linear.bias"] if config.get("bias", True) else [])}
    if set(tensors) != expected or tensors["linear.weight"].dim() != 2:
        raise BothwaysError(
            f"{weights} holds {', '.join(sorted(tensors))}: expected {', '.join(sorted(expected))}",
            "unexpected-tensors",
            tuple(sorted(tensors)),
        )
    outputs, inputs = tensors["linear.weight"].shape
    for key, size in (("in_features", inputs), ("out_features", outputs)):
        _require(config, key, (size, None), place)
    dense = Dense(inputs, outputs, "linear.bias" in expected, activation)
    dense.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    return dense.eval()


def max_length_of(folder: Path, transformer: Path) -> int | None:
    """max_seq_length; without it, as in sentence-transformers, the tokenizer's model_max_length."""
    for place, file, key in (
        (folder, SETTINGS, "max_seq_length"),
        (transformer, SETTINGS, "max_seq_length"),
        (transformer, "tokenizer_config.json", "model_max_length"),
    ):
        value = read_json(place / file).get(key) if (place / file).exists() else None
        if isinstance(value, int) and value > 0:
            return value
        if value is not None and key == "max_seq_length":
            raise BothwaysError(
                f"{place / file} has {key} = {value!r}: expected 1 or more", "unsupported-setting", (key, value)
            )
    return None


def _require(config: Mapping[str, Any], key: str, allowed: tuple[object, ...], place: Path) -> None:
    if config.get(key) not in allowed:
        raise BothwaysError(
            f"{place / 'config.json'} has {key} = {config[key]!r}: only {allowed[0]!r} is supported",
            "unsupported-setting",
            (key, config[key]),
        )


def _require_widths(sentence: Sentence, width: int, folder: Path) -> None:
    width *= len(sentence.pooling.modes)
    for step in sentence.steps:
        if isinstance(step, Dense):
            if step.linear.in_features != width:
                raise BothwaysError(
                    f"{folder}: a Dense module reads {step.linear.in_features} numbers, and gets {width}",
                    "shape-mismatch",
                    (step.linear.in_features, width),
                )
            width = step.linear.out_features


# ---------------------------------------------------------------------- writing


def names_of(sentence: Sentence) -> list[str]:
    """The files and folders that `write_sentence` writes."""
    return [MODULES, SETTINGS, PROMPTS, TRAINING, *(name for name in _places(sentence) if name)]


def write_sentence(sentence: Sentence, folder: Path, width: int) -> None:
    """Write the files of sentence-transformers beside those of the transformer."""
    kinds = [type(step).__name__ for step in sentence.steps]
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": _TYPES[kind]}
        for i, (path, kind) in enumerate(zip(_places(sentence), ["Transformer", "Pooling", *kinds], strict=True))
    ]
    _write(folder / MODULES, listed)
    limit = {} if sentence.max_length is None else {"max_seq_length": sentence.max_length}
    _write(folder / SETTINGS, {**limit, "do_lower_case": False})
    if sentence.settings:
        _write(folder / PROMPTS, sentence.settings)
    if sentence.training_only:
        tensors = {
            name: tensor.detach().cpu().contiguous() for name, tensor in sentence.training_only.state_dict().items()
        }
        safetensors.torch.save_file(tensors, folder / TRAINING, metadata={"format": "pt"})
    _, pooling, *places = _places(sentence)
    (folder / pooling).mkdir()
    modes: dict[str, Any] = {key: mode in sentence.pooling.modes for key, mode in _OLDER_MODES.items()}
    if tuple(mode for key, mode in _OLDER_MODES.items() if modes[key]) != sentence.pooling.modes:
        modes = {"pooling_mode": list(sentence.pooling.modes)}  # in an order that the older keys cannot tell
    config = {"word_embedding_dimension": width, **modes, "include_prompt": sentence.include_prompt}
    _write(folder / pooling / "config.json", config)
    for place, step in zip(places, sentence.steps, strict=True):
        (folder / place).mkdir()
        if isinstance(step, Dense):
            shape = {"in_features": step.linear.in_features, "out_features": step.linear.out_features}
            more = {"bias": step.linear.bias is not None, "activation_function": step.activation}
            _write(folder / place / "config.json", {**shape, **more})
            tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in step.state_dict().items()}
            safetensors.torch.save_file(tensors, folder / place / "model.safetensors", metadata={"format": "pt"})
        else:
            _write(folder / place / "config.json", {})


def _places(sentence: Sentence) -> list[str]:
    return ["", "1_Pooling", *(f"{i}_{type(step).__name__}" for i, step in enumerate(sentence.steps, 2))]


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
