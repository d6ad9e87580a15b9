"""Reads and writes model folders in Hugging Face's format, through the key table of a family.

Every tensor of a file must be used or declared as ignored, and every parameter must be filled.
"""

import json
import math
import warnings
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from bothways import atomic
from bothways.errors import BothwaysError
from bothways.model import google
from bothways.model.card import Made, model_card
from bothways.model.card_text import CARD
from bothways.model.config import ModelConfig
from bothways.model.families import FAMILIES
from bothways.model.families.family import Family, KeyRow, setting
from bothways.model.families.setting_kinds import require_kinds
from bothways.model.identify import architecture_of, find_family, find_heads, nameless, read_labels, require_layers
from bothways.model.late import PROJECTION, late_files, not_for_texts, read_late, with_markers, write_late
from bothways.model.model import Model
from bothways.model.sentence import names_of, read_sentence, write_sentence
from bothways.model.sentence_files import lowers_case, transformer_folder
from bothways.model.weights import first_few, read_json, read_weights, require_finite
from bothways.text.tokenizer import FILES as TOKENIZER_FILES
from bothways.text.tokenizer import READ as TOKENIZERS
from bothways.text.tokenizer import Tokenizer

ADVICE = "finetune.toml"
"""A part of a recipe: recommended settings for fine-tuning the model."""
_FILES = ("config.json", "model.safetensors", CARD, *TOKENIZER_FILES)
"""The files that `save` writes and replaces, besides ADVICE."""
_MODULES = ("sentence.", "late.")
"""Parameters that are in files of their own."""
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


def load_model(folder: Path, dtype: torch.dtype = torch.float32) -> Model:
    """Read a model folder: config.json, the weights in any of the usual formats, and the tokenizer if there is one."""
    inner = transformer_folder(folder)
    raw, tensors = _read_folder(inner)
    has_tokenizer = any((inner / name).exists() for name in TOKENIZERS)
    tokenizer = Tokenizer.load(inner) if has_tokenizer else None
    if tokenizer is not None and lowers_case(folder):
        tokenizer = tokenizer.lower_cased()
    projection = tensors.pop(PROJECTION, None)
    model = assemble(raw, tensors, tokenizer, inner, dtype=dtype)
    if (folder / ADVICE).is_file():
        model.config = replace(model.config, advice=(folder / ADVICE).read_text("utf-8", "replace"))
    return with_sentence(model, folder, projection).to(dtype)


def with_sentence(model: Model, folder: Path, projection: Tensor | None = None) -> Model:
    """The model with the modules of a folder of sentence-transformers or ColBERT, if it is one."""
    width = model.config.encoder.width
    try:
        model.late = read_late(folder, width, projection)
        if model.late is not None:
            if model.tokenizer is not None:
                model.tokenizer = with_markers(model.tokenizer, model.late.settings)
            raise not_for_texts(folder)
        model.sentence = read_sentence(folder, width)
    except BothwaysError as error:  # only `encode` needs the modules
        model.sentence_error = error
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
    family = find_family(raw, tensors, source)
    tensors = _normal_names(family, raw, tensors)
    config = _model_config(family, raw, tensors, source)
    for name in family.computed.keys() & tensors.keys():
        fits = tensors[name].shape[:1] == (config.encoder.max_length,)  # or the table might be of any size
        table = family.computed[name](config.encoder) if fits else torch.empty(0)
        if tensors[name].shape != table.shape or not torch.allclose(tensors.pop(name).float(), table, atol=1e-6):
            what = f"{source}: the tensor {name} of this {family.name} is not the one that follows from config.json"
            raise BothwaysError(f"{what}, perhaps as it was rounded to 16 bits", "unexpected-tensors", (name,))
    with torch.device("meta"):  # shapes only: initialising weights that are then overwritten takes longer than reading
        model = Model(config, tokenizer)
    model.load_state_dict(_fill(model, family, tensors, dtype, source), assign=True)
    return model.eval()


def save(model: Model, folder: Path | str, *, dtype: torch.dtype | None = None, made: Made | None = None) -> None:
    """Write a model folder that transformers can open. The write is atomic: the folder is never half-written.

    `made`: how the model was made, for its card.
    """
    family, folder = FAMILIES[model.config.family], Path(folder)
    others = [ADVICE] if model.config.advice else []
    others += names_of(model.sentence) if model.sentence else late_files(model.late) if model.late else []
    with atomic.new_folder(folder, replaces=(*_FILES, *others)) as fresh:
        kind = dtype or model.encoder.embeddings.tokens.weight.dtype
        # Tables that follow from config.json are not rounded.
        computed = tuple(family.computed)
        tensors = {
            name: (tensor if name.endswith(computed) else tensor.to(kind)).contiguous()
            for name, tensor in tensors_of(model).items()
        }
        try:
            safetensors.torch.save_file(tensors, fresh / "model.safetensors", metadata={"format": "pt"})
        except safetensors.SafetensorError as error:  # safetensors wraps the OSError of a full disk
            raise OSError(None, str(error)) from error
        write_settings(model, fresh, kind, model_card(model, folder, made))
        if model.sentence is None and model.late is None and model.sentence_error is not None:
            says = f"{folder} is written without the modules of sentence-transformers: {model.sentence_error}"
            warnings.warn(says, stacklevel=2)


def write_settings(model: Model, folder: Path, dtype: torch.dtype, card: str) -> None:
    """Write all that a model folder has but the weights: config.json, the tokenizer, the card, modules, advice."""
    described = describe(model, dtype)
    (folder / "config.json").write_text(json.dumps(described, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if model.tokenizer is not None:
        model.tokenizer.save(folder, model.config.encoder.max_length, model.config.encoder.segments)
    (folder / CARD).write_text(card, encoding="utf-8")
    if model.config.advice:
        (folder / ADVICE).write_text(model.config.advice, encoding="utf-8")
    if model.sentence is not None:
        write_sentence(model.sentence, folder, model.config.encoder.width)
    elif model.late is not None:
        write_late(model.late, folder)


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


def _normal_names(family: Family, raw: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under current names without the body's prefix; tied copies and buffers are left out."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        prefix = next((prefix for prefix in family.prefixes if prefix and name.startswith(prefix)), "")
        name = name.removeprefix(prefix)
        for old, new in family.renamed.items():
            if name.endswith(old):
                name = name.removesuffix(old) + new
        if name in found:
            raise BothwaysError(f"the weights hold {name} twice, under two names", "duplicate-tensor", name)
        if not any(fnmatchcase(name, pattern) for pattern in (*family.ignored, *family.unread_tensors)):
            found[name] = tensor
    for pattern, what in family.unread_tensors.items():
        if any(fnmatchcase(name, pattern) for name in tensors):
            warnings.warn(f"this {family.name} is read without {what}", stacklevel=2)
    for copy, original in family.tied.items():
        if copy not in found:
            continue
        if not setting(raw, "tie_word_embeddings", family.ties):
            if copy.endswith(".bias"):  # the original is a name that their class makes and does not use
                found[original] = found.pop(copy)
            continue
        if original not in found:
            found[original] = found[copy]
        elif not torch.equal(found[copy], found[original]):
            raise BothwaysError(
                f"the tensor {copy} is tied to {original}, and differs from it: set tie_word_embeddings in config.json "
                "to false if it should",
                "tied-tensors-differ",
                (copy, original),
            )
        del found[copy]
    return found


def _model_config(family: Family, raw: dict[str, Any], tensors: Mapping[str, Tensor], folder: Path) -> ModelConfig:
    try:
        require_kinds(raw)
        encoder = family.read_config(raw)
    except BothwaysError as error:
        raise BothwaysError(f"{folder}: {error}", error.code, error.value) from error
    require_layers(encoder.blocks, tensors, folder)
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


def _fill(
    model: Model, family: Family, tensors: dict[str, Tensor], dtype: torch.dtype, folder: Path
) -> dict[str, Tensor]:
    """Our state dict from their tensors. Missing, unexpected and misshapen tensors are errors."""
    shapes = {name: list(parameter.shape) for name, parameter in model.state_dict().items()}
    rows = key_table(family, model.config, shapes)
    expected = {part for row in rows for part in row.parts}
    for row in rows:
        if row.is_optional and row.parts[0] not in tensors:
            tensors[row.parts[0]] = torch.zeros(()).expand(shapes[row.ours])
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
    for row in rows:  # all of them, before anything is allocated
        total, *rest = shapes[row.ours]
        for part, length in zip(row.parts, row.lengths(total, model.config.encoder), strict=True):
            _check(part, tensors[part], [length, *rest], folder)
    state: dict[str, Tensor] = {}
    for row in rows:
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
    state = {n: tensor.detach().cpu() for n, tensor in model.state_dict().items() if not n.startswith(_MODULES)}
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
        for part, tensor in zip(row.parts, whole.split(row.lengths(len(whole), config.encoder)), strict=True):
            name = part if body_only or part in without_prefix else family.prefix + part
            if name in tensors:
                raise BothwaysError(
                    f"two heads of this model have a tensor {name}: save each head in its own folder",
                    "duplicate-tensor",
                    name,
                )
            tensors[name] = tensor
    for name, table in family.computed.items():
        tensors[name if body_only else family.prefix + name] = table(config.encoder)
    if "heads.masked.decoder.weight" in state:  # their class then makes the bias under both names
        for copy, original in family.tied.items():
            if copy.endswith(".bias") and original in tensors:
                tensors[copy] = tensors[original].clone()
    return tensors


def _special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """The ids of the first and the last token, under both names that each has.

    Without them in config.json, readers assume the ids of the family's usual vocabulary.
    """
    roles = tokenizer.roles
    twins = (("cls", "bos"), ("sep", "eos"), ("bos", "cls"), ("eos", "sep"))
    pieces = {name: roles.get(f"{name}_token") or roles.get(f"{twin}_token") for name, twin in twins}
    return {f"{name}_token_id": tokenizer.id(piece) for name, piece in pieces.items() if piece}


def require_storable(config: ModelConfig) -> None:
    """Refuse an encoder that the config.json of its family cannot describe: opened again, it would be another."""
    family, shape = FAMILIES[config.family], config.encoder
    again = family.read_config({**config.hf_config, **family.write_config(shape)})
    for field in fields(shape):
        ours, theirs = getattr(shape, field.name), getattr(again, field.name)
        if field.name not in _FOR_TRAINING and not _is_same(ours, theirs):
            raise BothwaysError(
                f"the config.json of {config.family} has no setting for {field.name} = {ours}: it would be opened as "
                f"{theirs}",
                "unsupported-by-family",
                (field.name, ours),
            )


_FOR_TRAINING = ("dropout", "attention_dropout", "init_std")
"""Settings that change no output. Not every family's config.json has them."""


def _is_same(one: object, other: object) -> bool:
    if is_dataclass(one) and type(one) is type(other):
        return all(_is_same(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9)
    return one == other


def describe(model: Model, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """The content of config.json: that of the original folder, updated with the current settings."""
    config = model.config
    require_storable(config)
    architecture = architecture_of(FAMILIES[config.family], set(config.heads))
    described: dict[str, Any] = {key: value for key, value in config.hf_config.items() if key != "torch_dtype"}
    if model.tokenizer:
        described = _special_ids(model.tokenizer) | described
        if "pad_token" in model.tokenizer.roles:
            described["pad_token_id"] = model.tokenizer.id(model.tokenizer.roles["pad_token"])
    described |= FAMILIES[config.family].write_config(config.encoder)
    described |= {
        "model_type": FAMILIES[config.family].type,
        "architectures": [architecture],
        "dtype": str(dtype).split(".")[-1],
    }
    known = FAMILIES[config.family].heads
    gone = {head.labels for name, head in known.items() if name not in config.heads and head.labels}
    fixed = [known[name].labels for name in config.heads]
    if labels := max((() if config.labels in gone else config.labels, *fixed), key=bool):
        described["id2label"] = {str(i): name for i, name in enumerate(labels)}
        described["label2id"] = {name: i for i, name in enumerate(labels)}
    elif read_labels(described) in gone:  # the labels of a head that was removed
        del described["id2label"], described["label2id"]
    return described
