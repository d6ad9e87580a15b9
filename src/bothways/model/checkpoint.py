"""A model folder, read and written: Hugging Face's layout, through a family's key table.

Every tensor of a file is used or named as ignored, and every parameter is filled; anything else is an error.
"""

import json
import pickle
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from bothways import atomic
from bothways.errors import BothwaysError
from bothways.model import google
from bothways.model.card import model_card
from bothways.model.config import ModelConfig
from bothways.model.families import FAMILIES
from bothways.model.families.family import Family, KeyRow
from bothways.model.model import Model
from bothways.text.tokenizer import FILES as TOKENIZER_FILES
from bothways.text.tokenizer import READ as TOKENIZERS
from bothways.text.tokenizer import Tokenizer

ADVICE = "finetune.toml"
"""How a model is best fine-tuned, as a part of a recipe."""
_FILES = ("config.json", "model.safetensors", "README.md", *TOKENIZER_FILES)
"""What `save` writes, and so the only files it replaces: with these, advice if the model has some."""
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


def load_model(folder: Path, dtype: torch.dtype = torch.float32) -> Model:
    """Read a model folder: config.json, weights in any of the usual files, and the tokenizer if there is one."""
    raw, tensors = _read_folder(folder)
    has_tokenizer = any((folder / name).exists() for name in TOKENIZERS)
    model = assemble(raw, tensors, Tokenizer.load(folder) if has_tokenizer else None, folder, dtype=dtype)
    if (folder / ADVICE).is_file():
        model.config = replace(model.config, advice=(folder / ADVICE).read_text("utf-8", "replace"))
    return model


def assemble(
    raw: dict[str, Any],
    tensors: Mapping[str, Tensor],
    tokenizer: Tokenizer | None,
    source: Path,
    *,
    dtype: torch.dtype = torch.float32,
) -> Model:
    """A model of what was read from `source`: a config.json and tensors under Hugging Face's names."""
    family = _find_family(raw, tensors, source)
    tensors = _normal_names(family, tensors)
    config = _model_config(family, raw, tensors, source)
    with torch.device("meta"):  # shapes only: drawing weights to overwrite them would take longer than reading
        model = Model(config, tokenizer)
    model.load_state_dict(_fill(model, family, tensors, dtype, source), assign=True)
    return model.eval()


def save(model: Model, folder: Path | str, *, dtype: torch.dtype | None = None) -> None:
    """Write a model folder that transformers opens too. It appears whole or not at all."""
    family, folder = FAMILIES[model.config.family], Path(folder)
    architecture = _architecture(family, set(model.config.heads))
    advised = (ADVICE,) if model.config.advice else ()
    with atomic.new_folder(folder, replaces=(*_FILES, *advised)) as fresh:
        kind = dtype or model.encoder.embeddings.tokens.weight.dtype
        tensors = {name: tensor.to(kind).contiguous() for name, tensor in tensors_of(model).items()}
        try:
            safetensors.torch.save_file(tensors, fresh / "model.safetensors", metadata={"format": "pt"})
        except safetensors.SafetensorError as error:  # its own kind of full disk
            raise BothwaysError(f"{folder} could not be written: {error}") from error
        described = describe(model, kind)
        (fresh / "config.json").write_text(json.dumps(described, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        if model.tokenizer is not None:
            model.tokenizer.save(fresh, model.config.encoder.max_length, model.config.encoder.segments)
        (fresh / "README.md").write_text(model_card(model, folder.name, architecture), encoding="utf-8")
        if model.config.advice:
            (fresh / ADVICE).write_text(model.config.advice, encoding="utf-8")


# ---------------------------------------------------------------------- reading


def _read_folder(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """config.json and the tensors under their own names, from whichever format is there."""
    if (folder / "config.json").exists():
        raw = read_json(folder / "config.json")
        for name in _WEIGHTS:
            if (folder / name).exists():
                return raw, read_weights(folder / name)
        raise BothwaysError(f"{folder} has no weights: expected one of {', '.join(_WEIGHTS)}")
    if (folder / "bert_config.json").exists():
        return google.read(folder, read_json(folder / "bert_config.json"))
    raise BothwaysError(f"{folder} is not a model folder: it has no config.json (nor Google's bert_config.json)")


def read_weights(path: Path) -> dict[str, Tensor]:
    if path.name.endswith(".index.json"):
        return _read_shards(path)
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        # weights_only: a pickle may hold code, and this refuses to run any.
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file raises whatever its parser stumbles over
        raise BothwaysError(f"{path} {why_unread(path, error)}") from error
    if not isinstance(found, dict) or not all(isinstance(n, str) and isinstance(t, Tensor) for n, t in found.items()):
        raise BothwaysError(f"{path} does not hold a plain table of tensors")
    return found


def why_unread(path: Path, error: Exception) -> str:
    """Why a file cannot be read as one of weights, from what its parser raised."""
    is_pointer = False
    with suppress(OSError), path.open("rb") as file:
        is_pointer = file.read(24).startswith(b"version https://git-lfs")
    if is_pointer:
        return "is a pointer of Git LFS, and not the weights that it stands for: fetch them with git lfs pull"
    if not isinstance(error, pickle.UnpicklingError):
        return f"is damaged or is not a weights file: {next(iter(str(error).splitlines()), type(error).__name__)}"
    if named := re.search(r"GLOBAL (\S+)", str(error)):
        return f"holds {named[1]}, which could run code, and only weights are read here"
    return "is damaged or is not a weights file"  # torch's own words advise to let it run


def _read_shards(index: Path) -> dict[str, Tensor]:
    table = read_json(index).get("weight_map")
    if not isinstance(table, dict) or not all(isinstance(n, str) and not n.endswith(".json") for n in table.values()):
        raise BothwaysError(f"{index} has no weight_map from tensors to weights files")
    tensors: dict[str, Tensor] = {}
    for name in sorted(set(table.values())):
        shard = index.parent / Path(name).name  # a shard lies beside its index, whatever the index says
        if not shard.exists():
            raise BothwaysError(f"{index} names {name}, which is not there")
        tensors |= read_weights(shard)
    missing = sorted(set(table) - set(tensors))
    if missing:
        raise BothwaysError(f"{index} names tensors that its files do not hold: {_some(missing)}")
    return tensors


def read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BothwaysError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(found, dict):
        raise BothwaysError(f"{path} should hold a JSON object")
    return found


def _find_family(raw: Mapping[str, Any], tensors: Iterable[str], folder: Path) -> Family:
    kind = raw.get("model_type")
    if kind is None:  # files from before model_type existed: the tensor names tell, and nameless ones are BERT's
        names = set(tensors)
        for family in FAMILIES.values():
            first = family.body[0].parts[0]
            if family.prefix + first in names or (family.name == "bert" and first in names):
                return family
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise BothwaysError(
            f"{folder / 'config.json'} has the model_type {kind!r}, which is not known here: "
            f"expected {', '.join(sorted(FAMILIES))}"
        )
    return FAMILIES[kind]


def _normal_names(family: Family, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Without the body's prefix, old spellings renewed, copies of tied tensors and buffers left out."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        name = name.removeprefix(family.prefix)
        for old, new in family.renamed.items():
            if name.endswith(old):
                name = name.removesuffix(old) + new
        if name in found:
            raise BothwaysError(f"the weights hold {name} twice, under two of its names")
        if name not in family.ignored:
            found[name] = tensor
    for copy, original in family.tied.items():
        if copy not in found:
            continue
        if original not in found:
            found[original] = found[copy]
        elif not torch.equal(found[copy], found[original]):
            raise BothwaysError(f"the tensor {copy} should equal {original}, to which it is tied, and does not")
        del found[copy]
    return found


def _model_config(family: Family, raw: dict[str, Any], tensors: Mapping[str, Tensor], folder: Path) -> ModelConfig:
    try:
        encoder = family.read_config(raw)
    except BothwaysError as error:
        raise BothwaysError(f"{folder}: {error}") from error
    heads = find_heads(family, raw, set(tensors))
    labels = read_labels(raw)
    for head in (family.heads[name] for name in heads if family.heads[name].has_labels):
        name = next(row.parts[0] for row in head.rows if row.ours.endswith(".linear.weight"))
        weight = tensors.get(name)
        if weight is not None and weight.dim() != 2:
            raise BothwaysError(f"{folder}: the tensor {name} has the shape {list(weight.shape)}, not labels × width")
        # Some folders list two nameless labels, a default, beside a classifier of fifty: then the classifier is right.
        if weight is not None and labels == nameless(len(labels)):
            labels = nameless(weight.shape[0])
    return ModelConfig(encoder, heads, labels, family.name, raw)


def heads_of(family: Family, raw: Mapping[str, Any]) -> frozenset[str]:
    """The heads of the first architecture that config.json names and this family has."""
    declared = raw.get("architectures") or ()
    return next((heads for name, heads in family.architectures if name in declared), frozenset())


def nameless(count: int) -> tuple[str, ...]:
    """What Hugging Face calls labels that nobody has named."""
    return tuple(f"LABEL_{i}" for i in range(count))


def find_heads(family: Family, raw: Mapping[str, Any], names: set[str]) -> tuple[str, ...]:
    """The heads whose tensors are there. Heads that share tensor names are told apart by `architectures` and by labels
    that never change, or failing that by the first architecture whose every head is there."""
    there = [
        name for name, head in family.heads.items() if any(part in names for row in head.rows for part in row.parts)
    ]
    declared = raw.get("architectures")
    declared = declared if isinstance(declared, list) else []
    labels = read_labels(raw)
    order = sorted(
        family.architectures,
        key=lambda one: (one[0] not in declared, not any(family.heads[head].labels == labels != () for head in one[1])),
    )
    certain = next((heads for _, heads in order if heads <= set(there)), frozenset())
    claimed: set[str] = set()
    found: list[str] = []
    for name in sorted(there, key=lambda name: name not in certain):
        parts = {part for row in family.heads[name].rows for part in row.parts}
        if not parts & claimed:
            found.append(name)
            claimed |= parts
    needed = {need for name in found for need in family.heads[name].needs}
    return tuple(name for name in family.heads if name in found or name in needed)


def read_labels(raw: Mapping[str, Any]) -> tuple[str, ...]:
    names = raw.get("id2label")
    if not isinstance(names, dict) or not names:
        return ()
    try:
        return tuple(str(name) for _, name in sorted((int(key), name) for key, name in names.items()))
    except ValueError as error:
        raise BothwaysError(f"config.json has an id2label whose keys are not numbers: {error}") from error


def _fill(
    model: Model, family: Family, tensors: dict[str, Tensor], dtype: torch.dtype, folder: Path
) -> dict[str, Tensor]:
    """Our state dict from their tensors; too many, too few or misshapen ones are errors."""
    shapes = {name: list(parameter.shape) for name, parameter in model.state_dict().items()}
    rows = key_table(family, model.config, shapes)
    expected = {part for row in rows for part in row.parts}
    if missing := expected - set(tensors):
        raise BothwaysError(f"{folder}: the weights lack {_some(missing)}")
    if left := set(tensors) - expected:
        raise BothwaysError(f"{folder}: the weights hold tensors that this {family.name} has no use for: {_some(left)}")
    state: dict[str, Tensor] = {}
    for row in rows:
        length, *rest = shapes[row.ours]
        for part in row.parts:
            _check(part, tensors[part], [length // len(row.parts), *rest], folder)
        state[row.ours] = torch.cat([tensors[part].to(dtype) for part in row.parts])
        require_numbers(_some(row.parts), state[row.ours], folder)
        if row.by_head > 1:
            state[row.ours] = regrouped(state[row.ours], model.config.encoder.num_heads, row.by_head)
    return state


def regrouped(tensor: Tensor, outer: int, inner: int) -> Tensor:
    """Rows that are grouped by one thing and then by another, the other way round."""
    turned: Tensor = tensor.unflatten(0, (outer, inner, -1)).transpose(0, 1).flatten(0, 2)
    return turned


def _check(name: str, tensor: Tensor, shape: list[int], folder: Path) -> None:
    if list(tensor.shape) != shape:
        raise BothwaysError(
            f"{folder}: the tensor {name} has the shape {list(tensor.shape)} and config.json asks for {shape}"
        )
    if not tensor.is_floating_point():
        raise BothwaysError(f"{folder}: the tensor {name} holds {tensor.dtype} numbers, not weights")


def require_numbers(name: str, tensor: Tensor, folder: Path) -> None:
    """No nan and no inf, with which every answer would be nan. A bias may be -inf, which forbids a word."""
    total = tensor.sum(dtype=torch.float32)  # nan or inf if one value is, and quickly found
    if not total.isfinite() and not (tensor.dim() == 1 and total == -torch.inf):
        raise BothwaysError(f"{folder}: the weights hold nan or inf in {name}: damaged, or of a run that diverged")


def _some(names: Iterable[str]) -> str:
    names = sorted(names)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


# ---------------------------------------------------------------------- writing


def key_table(family: Family, config: ModelConfig, names: Collection[str]) -> list[KeyRow]:
    """The key table of a model with parameters of these names: its layers written out, its heads added."""
    rows = [*family.body, *(row for name in config.heads for row in family.heads[name].rows)]
    full: list[KeyRow] = []
    for row in rows:
        for i in range(config.encoder.blocks) if "{}" in row.ours else range(1):
            if row.ours.format(i) in names:
                full.append(replace(row, theirs=tuple(part.format(i) for part in row.parts), ours=row.ours.format(i)))
    return full


def tensors_of(model: Model) -> dict[str, Tensor]:
    """A model's tensors under Hugging Face's names."""
    family, config = FAMILIES[model.config.family], model.config
    state = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    body_only = all(family.heads[name].in_body for name in config.heads)
    apart = {
        part
        for name in config.heads
        for row in family.heads[name].rows
        for part in row.parts
        if not family.heads[name].in_body
    }
    tensors: dict[str, Tensor] = {}
    rows = key_table(family, config, state)
    if homeless := set(state) - {row.ours for row in rows}:
        raise BothwaysError(f"a folder of {family.name} has no place for {_some(homeless)}")
    for row in rows:
        whole = state[row.ours]
        if row.by_head > 1:
            whole = regrouped(whole, row.by_head, config.encoder.num_heads)
        for part, tensor in zip(row.parts, whole.chunk(len(row.parts)), strict=True):
            name = part if body_only or part in apart else family.prefix + part
            if name in tensors:
                raise BothwaysError(f"two heads of this model are both called {name} in a folder: save them apart")
            tensors[name] = tensor
    return tensors


def _architecture(family: Family, heads: set[str]) -> str:
    """Their class that has these heads: all of them if there is one, else the first that has some."""
    exact = [name for name, theirs in family.architectures if theirs == heads]
    return exact[0] if exact else next(name for name, theirs in family.architectures if theirs <= heads)


def _special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Of the first and the last token, under both names that they have: readers assume those of another vocabulary
    where config.json is silent."""
    roles = tokenizer.roles
    twins = (("cls", "bos"), ("sep", "eos"), ("bos", "cls"), ("eos", "sep"))
    pieces = {name: roles.get(f"{name}_token") or roles.get(f"{twin}_token") for name, twin in twins}
    return {f"{name}_token_id": tokenizer.id(piece) for name, piece in pieces.items() if piece}


def describe(model: Model, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """config.json: what the folder it came from said, and over it what we know."""
    config = model.config
    architecture = _architecture(FAMILIES[config.family], set(config.heads))
    described: dict[str, Any] = {key: value for key, value in config.hf_config.items() if key != "torch_dtype"}
    if model.tokenizer:
        described = _special_ids(model.tokenizer) | described
        if "pad_token" in model.tokenizer.roles:
            described["pad_token_id"] = model.tokenizer.id(model.tokenizer.roles["pad_token"])
    described |= FAMILIES[config.family].write_config(config.encoder)
    described |= {"model_type": config.family, "architectures": [architecture], "dtype": str(dtype).split(".")[-1]}
    known = FAMILIES[config.family].heads
    gone = {head.labels for name, head in known.items() if name not in config.heads and head.labels}
    fixed = [known[name].labels for name in config.heads]
    if labels := max((() if config.labels in gone else config.labels, *fixed), key=bool):
        described["id2label"] = {str(i): name for i, name in enumerate(labels)}
        described["label2id"] = {name: i for i, name in enumerate(labels)}
    elif read_labels(described) in gone:  # of a head that is no longer there
        del described["id2label"], described["label2id"]
    return described
