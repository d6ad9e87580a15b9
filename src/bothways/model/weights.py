"""Weights files and JSON files, read without running code: safetensors, torch's pickles, and shards of both."""

import json
import pickle
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bothways.errors import BothwaysError
from bothways.json_files import read_json_file
from bothways.lazy import Lazy, Tensor, torch

_SAFETENSORS = Lazy("safetensors")
_TYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "BOOL": "bool",
    **{f"{kind}{bits}": f"{name}{bits}" for kind, name in (("I", "int"), ("U", "uint")) for bits in (8, 16, 32, 64)},
}
"""safetensors' names of torch's types."""


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a weights file, or of all shards of an index."""
    if path.name.endswith(".index.json"):
        return _read_shards(path)
    try:
        if path.suffix == ".safetensors":
            return read_tensors(path)
        # weights_only: a pickle may contain code, which torch then refuses to run.
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the parser of a damaged file may raise anything
        raise unreadable_weights(path, error) from error
    if not isinstance(found, dict) or not all(
        isinstance(n, str) and isinstance(t, torch.Tensor) for n, t in found.items()
    ):
        raise BothwaysError(f"{path} does not hold a dictionary from names to tensors", "not-weights", path)
    for name, tensor in found.items():
        if tensor.layout != torch.strided or tensor.numel() * tensor.itemsize > tensor.untyped_storage().nbytes():
            raise BothwaysError(
                f"{path}: the tensor {name} of the shape {list(tensor.shape)} is not stored number by number",
                "damaged-file",
                path,
            )
    return found


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, which are read from it when they are used.

    safetensors checks the file. Its own reader (0.8) leaks two integers for each tensor, 60 bytes: a process that loads
    models for days would grow.
    """
    with _SAFETENSORS.safe_open(path, framework="numpy"), path.open("rb") as file:
        begin = 8 + int.from_bytes(file.read(8), "little")
        entries = json.loads(file.read(begin - 8))
        storage = torch.UntypedStorage.from_file(str(path), False, path.stat().st_size)
    tensors = {}
    for name, entry in entries.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in _TYPES:
            raise ValueError(f"{name} has the type {entry['dtype']}, which models do not have")
        first, end = entry["data_offsets"]
        numbers = torch.asarray(storage[begin + first : begin + end], dtype=torch.uint8)
        tensors[name] = numbers.view(getattr(torch, _TYPES[entry["dtype"]])).view(entry["shape"])
    return tensors


def unreadable_weights(path: Path, error: Exception) -> BothwaysError:
    """The error about a weights file whose parser raised `error`."""
    with suppress(OSError), path.open("rb") as file:
        if file.read(24).startswith(b"version https://git-lfs"):
            return BothwaysError(
                f"{path} is a pointer of Git LFS, not the weights: fetch them with git lfs pull", "lfs-pointer", path
            )
    if not isinstance(error, pickle.UnpicklingError):
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        return BothwaysError(f"{path} is damaged or is not a weights file: {reason}", "damaged-file", path)
    if named := re.search(r"GLOBAL (\S+)", str(error)):
        return BothwaysError(
            f"{path} contains {named[1]}, which could run code: only files of plain weights are read",
            "unsafe-file",
            (path, named[1]),
        )
    # Without torch's message, which recommends weights_only=False.
    return BothwaysError(f"{path} is damaged or is not a weights file", "damaged-file", path)


def _read_shards(index: Path) -> dict[str, Tensor]:
    table = read_json(index).get("weight_map")
    if not isinstance(table, dict) or not all(isinstance(n, str) and not n.endswith(".json") for n in table.values()):
        raise BothwaysError(f"{index} has no weight_map from tensors to weights files", "damaged-file", index)
    tensors: dict[str, Tensor] = {}
    for name in sorted(set(table.values())):
        shard = index.parent / Path(name).name  # always beside the index, even if it names another folder
        if not shard.is_file():
            raise BothwaysError(f"{index} names {shard.name}, which does not exist", "no-file", shard)
        tensors |= read_weights(shard)
    missing = sorted(set(table) - set(tensors))
    if missing:
        raise BothwaysError(
            f"{index} names tensors that its files do not hold: {first_few(missing)}", "missing-tensors", tuple(missing)
        )
    return tensors


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    if not path.exists():
        raise BothwaysError(f"there is no file {path}", "no-file", path)
    found = read_json_file(path)
    if not isinstance(found, dict):
        raise BothwaysError(f"{path} does not hold a JSON object", "not-an-object", path)
    return found


def require_finite(names: Sequence[str], tensor: Tensor, folder: Path) -> None:
    """Refuse NaN and inf, which would make all outputs NaN. A bias may be -inf: it rules out a token."""
    total = tensor.sum(dtype=torch.float32)  # not finite if any number is not: faster than isfinite() of all
    if not total.isfinite() and not (tensor.dim() == 1 and total == -torch.inf):
        raise BothwaysError(
            f"{folder}: the weights hold NaN or inf in {first_few(names)}: the file is damaged, or training diverged",
            "not-finite",
            tuple(names),
        )


def first_few(names: Iterable[str]) -> str:
    names = sorted(names)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
