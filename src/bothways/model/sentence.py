"""Reads and writes what a folder of sentence-transformers says about the vector of a text.

modules.json lists the modules: the transformer, Pooling, then Dense and Normalize in any order. Further settings are in
sentence_bert_config.json and config_sentence_transformers.json.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor, nn
from torch.nn import functional as F

from bothways.errors import BothwaysError, name_list
from bothways.model.activations import ACTIVATIONS
from bothways.model.heads import HALF, output_layer
from bothways.model.pooling import Pooling
from bothways.model.sentence_files import (
    MODULES,
    OLDER_MODES,
    PROMPTS,
    SETTINGS,
    Prompts,
    described_vectors,
    require_key,
)
from bothways.model.weights import read_json, read_weights

TRAINING = "training.safetensors"
"""What only training needs, in the checkpoints of a run. sentence-transformers does not read it."""
_TYPES = {name: f"sentence_transformers.models.{name}" for name in ("Transformer", "Pooling", "Dense", "Normalize")}
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


class Sentence(nn.Module, Prompts):
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

    @property
    def step_names(self) -> list[str]:
        """The modules after the pooling."""
        return [type(step).__name__ for step in self.steps]

    def from_pooled(self, pooled: Tensor) -> Tensor:
        """The vectors of texts that were pooled in fp32."""
        weight = next(self.parameters(), pooled)
        vectors: Tensor = self(pooled if weight.dtype in HALF else pooled.to(weight.dtype))
        return vectors

    def width(self, width: int) -> int:
        """The width of the vectors, given that of the hidden states."""
        dense = [step.linear.out_features for step in self.steps if isinstance(step, Dense)]
        full = dense[-1] if dense else width * len(self.pooling.modes)
        return min(self.settings.get("truncate_dim") or full, full)


# ---------------------------------------------------------------------- reading


def read_sentence(folder: Path, width: int) -> Sentence | None:
    """What the folder says about the vector of a text; None if it is not one of sentence-transformers."""
    told = described_vectors(folder)
    if told is None:
        return None
    steps: list[Dense | Normalize] = []
    for kind, place in told.steps:
        config = read_json(place / "config.json") if (place / "config.json").exists() else {}
        steps.append(Normalize() if kind == "Normalize" else read_dense(place, config))
    sentence = Sentence(
        told.pooling, steps, max_length=told.max_length, include_prompt=told.include_prompt, settings=told.settings
    )
    _require_widths(sentence, width, folder)
    if (folder / TRAINING).exists():
        tensors = read_weights(folder / TRAINING)
        for name in sorted({name.partition(".")[0] for name in tensors}):
            outputs, inputs = tensors[f"{name}.weight"].shape
            layer = nn.Linear(inputs, outputs, bias=f"{name}.bias" in tensors)
            layer.load_state_dict({key: tensors[f"{name}.{key}"] for key in layer.state_dict()})
            sentence.training_only[name] = layer
    return sentence


def read_dense(place: Path, config: Mapping[str, Any]) -> Dense:
    require_key(config, "use_residual", (False, None), place)
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
            f"{weights} holds {name_list(sorted(tensors))}: expected {name_list(sorted(expected))}",
            "unexpected-tensors",
            tuple(sorted(tensors)),
        )
    outputs, inputs = tensors["linear.weight"].shape
    for key, size in (("in_features", inputs), ("out_features", outputs)):
        require_key(config, key, (size, None), place)
    dense = Dense(inputs, outputs, "linear.bias" in expected, activation)
    dense.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    return dense.eval()


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
    modes: dict[str, Any] = {key: mode in sentence.pooling.modes for key, mode in OLDER_MODES.items()}
    if tuple(mode for key, mode in OLDER_MODES.items() if modes[key]) != sentence.pooling.modes:
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
