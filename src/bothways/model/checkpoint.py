"""Reads and writes model folders in Hugging Face's format, through the key table of a family.

Every tensor of a file must be used or declared as ignored, and every parameter must be filled.
"""

import json
from collections.abc import Collection, Iterable, Mapping
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
from bothways.model.weights import first_few, read_json, read_weights, require_finite
from bothways.text.tokenizer import FILES as TOKENIZER_FILES
from bothways.text.tokenizer import READ as TOKENIZERS
from bothways.text.tokenizer import Tokenizer

ADVICE = "finetune.toml"
"""A part of a recipe: recommended settings for fine-tuning the model."""
_FILES = ("config.json", "model.safetensors", "README.md", *TOKENIZER_FILES)
"""The files that `save` writes and replaces, besides ADVICE."""
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


def load_model(folder: Path, dtype: torch.dtype = torch.float32) -> Model:
    """Read a model folder: config.json, the weights in any of the usual formats, and the tokenizer if there is one."""
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
    """A model from its config.json and its tensors under Hugging Face's names, as read from `source`."""
    family = _find_family(raw, tensors, source)
    tensors = _normal_names(family, tensors)
    config = _model_config(family, raw, tensors, source)
    with torch.device("meta"):  # shapes only: initialising weights that are then overwritten takes longer than reading
        model = Model(config, tokenizer)
    model.load_state_dict(_fill(model, family, tensors, dtype, source), assign=True)
    return model.eval()


def save(model: Model, folder: Path | str, *, dtype: torch.dtype | None = None) -> None:
    """Write a model folder that transformers can open. The write is atomic: the folder is never half-written."""
    family, folder = FAMILIES[model.config.family], Path(folder)
    architecture = _architecture(family, set(model.config.heads))
    advised = (ADVICE,) if model.config.advice else ()
    with atomic.new_folder(folder, replaces=(*_FILES, *advised)) as fresh:
        kind = dtype or model.encoder.embeddings.tokens.weight.dtype
        tensors = {name: tensor.to(kind).contiguous() for name, tensor in tensors_of(model).items()}
        try:
            safetensors.torch.save_file(tensors, fresh / "model.safetensors", metadata={"format": "pt"})
        except safetensors.SafetensorError as error:  # safetensors wraps the OSError of a full disk
            raise OSError(None, str(error)) from error
        described = describe(model, kind)
        (fresh / "config.json").write_text(json.dumps(described, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        if model.tokenizer is not None:
            model.tokenizer.save(fresh, model.config.encoder.max_length, model.config.encoder.segments)
        (fresh / "README.md").write_text(model_card(model, folder.name, architecture), encoding="utf-8")
        if model.config.advice:
            (fresh / ADVICE).write_text(model.config.advice, encoding="utf-8")


# ---------------------------------------------------------------------- reading


def _read_folder(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """config.json, and the tensors under the names of the file, in whichever format the folder has."""
    if (folder / "config.json").exists():
        raw = read_json(folder / "config.json") | _beside(folder)
        for name in _WEIGHTS:
            if (folder / name).exists():
                return raw, read_weights(folder / name)
        raise BothwaysError(f"{folder} has no weights: expected one of {', '.join(_WEIGHTS)}", "no-weights", folder)
    if (folder / "bert_config.json").exists():
        return google.read(folder, read_json(folder / "bert_config.json"))
    raise BothwaysError(
        f"{folder} is not a model folder: it has no config.json, nor Google's bert_config.json",
        "not-a-model",
        folder,
    )


def _beside(folder: Path) -> dict[str, Any]:
    """The activation of a cross-encoder, which sentence-transformers 6 writes beside config.json and 4 into it."""
    file = folder / "config_sentence_transformers.json"
    named = read_json(file).get("activation_fn") if file.is_file() else None
    return {} if named is None else {"sentence_transformers": {"activation_fn": named}}


def _find_family(raw: Mapping[str, Any], tensors: Iterable[str], folder: Path) -> Family:
    kind = raw.get("model_type")
    if kind is None:  # files from before model_type existed: the tensor names tell; without a prefix it is BERT
        names = set(tensors)
        for family in FAMILIES.values():
            first = family.body[0].parts[0]
            if family.prefix + first in names or (family.name == "bert" and first in names):
                return family
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise BothwaysError(
            f"{folder / 'config.json'} has the model_type {kind!r}: expected one of {', '.join(sorted(FAMILIES))}",
            "unknown-family",
            kind,
        )
    return FAMILIES[kind]


def _normal_names(family: Family, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under current names without the body's prefix; tied copies and buffers are left out."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        name = name.removeprefix(family.prefix)
        for old, new in family.renamed.items():
            if name.endswith(old):
                name = name.removesuffix(old) + new
        if name in found:
            raise BothwaysError(f"the weights hold {name} twice, under two names", "duplicate-tensor", name)
        if name not in family.ignored:
            found[name] = tensor
    for copy, original in family.tied.items():
        if copy not in found:
            continue
        if original not in found:
            found[original] = found[copy]
        elif not torch.equal(found[copy], found[original]):
            raise BothwaysError(
                f"the tensor {copy} is tied to {original}, and differs from it", "tied-tensors-differ", (copy, original)
            )
        del found[copy]
    return found


def _model_config(family: Family, raw: dict[str, Any], tensors: Mapping[str, Tensor], folder: Path) -> ModelConfig:
    try:
        encoder = family.read_config(raw)
    except BothwaysError as error:
        raise BothwaysError(f"{folder}: {error}", error.code, error.value) from error
    heads = find_heads(family, raw, set(tensors))
    labels = read_labels(raw)
    for head in (family.heads[name] for name in heads if family.heads[name].has_labels):
        name = next(row.parts[0] for row in head.rows if row.ours.endswith(".linear.weight"))
        weight = tensors.get(name)
        if weight is not None and weight.dim() != 2:
            raise BothwaysError(
                f"{folder}: the tensor {name} has the shape {list(weight.shape)}, not labels × width",
                "shape-mismatch",
                name,
            )
        # Some folders keep the default of two nameless labels beside a classifier with fifty: the classifier is right.
        if weight is not None and labels == nameless(len(labels)):
            labels = nameless(weight.shape[0])
    return ModelConfig(encoder, heads, labels, family.name, raw)


def heads_of(family: Family, raw: Mapping[str, Any]) -> frozenset[str]:
    """The heads of the first known class in `architectures` of config.json."""
    declared = raw.get("architectures") or ()
    return next((heads for name, heads in family.architectures if name in declared), frozenset())


def nameless(count: int) -> tuple[str, ...]:
    """Hugging Face's default label names."""
    return tuple(f"LABEL_{i}" for i in range(count))


def find_heads(family: Family, raw: Mapping[str, Any], names: set[str]) -> tuple[str, ...]:
    """The heads whose tensors are in the file.

    Some heads share tensor names. `architectures` decides between them, then fixed labels, then the first architecture
    of which all heads are present.
    """
    present = [
        name for name, head in family.heads.items() if any(part in names for row in head.rows for part in row.parts)
    ]
    declared = raw.get("architectures")
    declared = declared if isinstance(declared, list) else []
    labels = read_labels(raw)
    order = sorted(
        family.architectures,
        key=lambda one: (one[0] not in declared, not any(family.heads[head].labels == labels != () for head in one[1])),
    )
    preferred = next((heads for _, heads in order if heads <= set(present)), frozenset())
    claimed: set[str] = set()
    found: list[str] = []
    for name in sorted(present, key=lambda name: name not in preferred):
        parts = {part for row in family.heads[name].rows for part in row.parts}
        if not parts & claimed:
            found.append(name)
            claimed |= parts
    needed = {need for name in found for need in family.heads[name].needs}
    return tuple(name for name in family.heads if name in found or name in needed)


def read_labels(raw: Mapping[str, Any]) -> tuple[str, ...]:
    """The label names of config.json, in the order of their ids."""
    names = raw.get("id2label")
    if not isinstance(names, dict) or not names:
        return ()
    try:
        return tuple(str(name) for _, name in sorted((int(key), name) for key, name in names.items()))
    except ValueError as error:
        raise BothwaysError(
            f"config.json has an id2label whose keys are not numbers: {error}", "bad-labels", tuple(names)
        ) from error


def _fill(
    model: Model, family: Family, tensors: dict[str, Tensor], dtype: torch.dtype, folder: Path
) -> dict[str, Tensor]:
    """Our state dict from their tensors. Missing, unexpected and misshapen tensors are errors."""
    shapes = {name: list(parameter.shape) for name, parameter in model.state_dict().items()}
    rows = key_table(family, model.config, shapes)
    expected = {part for row in rows for part in row.parts}
    if missing := expected - set(tensors):
        raise BothwaysError(
            f"{folder}: the weights lack {first_few(missing)}", "missing-tensors", tuple(sorted(missing))
        )
    if left := set(tensors) - expected:
        raise BothwaysError(
            f"{folder}: the weights hold tensors that this {family.name} does not have: {first_few(left)}",
            "unexpected-tensors",
            tuple(sorted(left)),
        )
    state: dict[str, Tensor] = {}
    for row in rows:
        length, *rest = shapes[row.ours]
        for part in row.parts:
            _check(part, tensors[part], [length // len(row.parts), *rest], folder)
        state[row.ours] = torch.cat([tensors[part].to(dtype) for part in row.parts])
        require_finite(row.parts, state[row.ours], folder)
        if row.by_head > 1:
            state[row.ours] = regrouped(state[row.ours], model.config.encoder.num_heads, row.by_head)
    return state


def regrouped(tensor: Tensor, outer: int, inner: int) -> Tensor:
    """Rows in `outer` groups of `inner` groups each, reordered into `inner` groups of `outer` groups."""
    reordered: Tensor = tensor.unflatten(0, (outer, inner, -1)).transpose(0, 1).flatten(0, 2)
    return reordered


def _check(name: str, tensor: Tensor, shape: list[int], folder: Path) -> None:
    if list(tensor.shape) != shape:
        raise BothwaysError(
            f"{folder}: the tensor {name} has the shape {list(tensor.shape)}, and config.json implies {shape}",
            "shape-mismatch",
            name,
        )
    if not tensor.is_floating_point():
        raise BothwaysError(
            f"{folder}: the tensor {name} has the dtype {tensor.dtype}, not a floating-point one",
            "unsupported-dtype",
            (name, tensor.dtype),
        )


# ---------------------------------------------------------------------- writing


def key_table(family: Family, config: ModelConfig, names: Collection[str]) -> list[KeyRow]:
    """The key table of a model whose parameters are `names`: one row per block, and the rows of its heads."""
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
    without_prefix = {
        part
        for name in config.heads
        for row in family.heads[name].rows
        for part in row.parts
        if not family.heads[name].in_body
    }
    tensors: dict[str, Tensor] = {}
    rows = key_table(family, config, state)
    if left := set(state) - {row.ours for row in rows}:
        raise BothwaysError(
            f"{family.name} has no tensor names for {first_few(left)}", "unexpected-tensors", tuple(sorted(left))
        )
    for row in rows:
        whole = state[row.ours]
        if row.by_head > 1:
            whole = regrouped(whole, row.by_head, config.encoder.num_heads)
        for part, tensor in zip(row.parts, whole.chunk(len(row.parts)), strict=True):
            name = part if body_only or part in without_prefix else family.prefix + part
            if name in tensors:
                raise BothwaysError(
                    f"two heads of this model have a tensor {name}: save each head in its own folder",
                    "duplicate-tensor",
                    name,
                )
            tensors[name] = tensor
    return tensors


def _architecture(family: Family, heads: set[str]) -> str:
    """The class of theirs with exactly these heads, otherwise the first one with some of them."""
    exact = [name for name, theirs in family.architectures if theirs == heads]
    return exact[0] if exact else next(name for name, theirs in family.architectures if theirs <= heads)


def _special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """The ids of the first and the last token, under both names that each has.

    Without them in config.json, readers assume the ids of the family's usual vocabulary.
    """
    roles = tokenizer.roles
    twins = (("cls", "bos"), ("sep", "eos"), ("bos", "cls"), ("eos", "sep"))
    pieces = {name: roles.get(f"{name}_token") or roles.get(f"{twin}_token") for name, twin in twins}
    return {f"{name}_token_id": tokenizer.id(piece) for name, piece in pieces.items() if piece}


def describe(model: Model, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """The content of config.json: that of the original folder, updated with the current settings."""
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
    elif read_labels(described) in gone:  # the labels of a head that was removed
        del described["id2label"], described["label2id"]
    return described
