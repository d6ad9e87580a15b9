"""The tensors of an adapter's file: PEFT's names, and what LoRA's matrices must be."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from bothways.errors import BothwaysError
from bothways.model.weights import first_few

ROOT = "base_model.model."  # PEFT's prefix of every name
DOWN, UP = ".lora_A.weight", ".lora_B.weight"


def updated_layers(names: set[str], folder: Path) -> list[str]:
    """The layers that LoRA tensors with these names update, each by two matrices."""
    layers = sorted({name.partition(".lora_")[0] for name in names})
    expected = {layer + end for layer in layers for end in (DOWN, UP)}
    if wrong := sorted(names ^ expected):
        raise BothwaysError(
            f"{folder}: expected two matrices for each linear layer, lora_A and lora_B; these are missing or others: "
            f"{first_few(wrong)}",
            "unexpected-tensors" if names - expected else "missing-tensors",
            tuple(sorted(names - expected) or wrong),
        )
    return layers


def plain_names(tensors: Mapping[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """The tensors in fp32, under their names without PEFT's additions."""
    found: dict[str, Tensor] = {}
    for full, tensor in tensors.items():
        name = full.removeprefix(ROOT).replace(".modules_to_save.default", "").replace(".default", "")
        if name in found:
            raise BothwaysError(f"{folder}: the adapter holds {name} twice, under two names", "duplicate-tensor", name)
        if not tensor.is_floating_point():
            raise BothwaysError(
                f"{folder}: the tensor {name} of the adapter has the dtype {tensor.dtype}, not a floating-point one",
                "unsupported-dtype",
                (name, tensor.dtype),
            )
        found[name] = tensor.float()
    return found


def require_matrix(name: str, tensor: Tensor, folder: Path) -> None:
    """Refuse a tensor that is no matrix."""
    if tensor.dim() != 2:
        raise BothwaysError(
            f"{folder}: {name} has the shape {list(tensor.shape)} in the adapter, and is no matrix",
            "shape-mismatch",
            name,
        )
