"""Reads and writes what a ColBERT folder says about late interaction: a short vector for each token of a text.

Three kinds of folders are read: those of Stanford's ColBERT (linear.weight beside the weights of the encoder, and
artifact.metadata), of PyLate, and of sentence-transformers' MultiVectorEncoder, which is also what is written.

N tokens in the batch.
"""

import json
import string
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

import safetensors.torch
from torch import Tensor, nn

from bothways.errors import BothwaysError
from bothways.model.sentence import Dense, Normalize, read_dense
from bothways.model.sentence_files import MODULES, PROMPTS, SETTINGS, listed, module_path
from bothways.model.weights import read_json
from bothways.text.tokenizer import Tokenizer

PROJECTION = "linear.weight"
"""The tensor of Stanford's ColBERT that projects hidden states to the vectors of tokens."""
METADATA = "artifact.metadata"
_IDENTITY = "torch.nn.modules.linear.Identity"
_TYPES = ("MultiVectorEncoder", "ColBERT")
"""The model_type of sentence-transformers and of PyLate."""
_CLASSES = {
    "Transformer": "sentence_transformers.base.modules.transformer.Transformer",
    "Dense": "sentence_transformers.base.modules.dense.Dense",
    "Normalize": "sentence_transformers.base.modules.normalize.Normalize",
    "MultiVectorMask": "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask",
}
Side = Literal["query", "document"]


@dataclass(frozen=True)
class Expansion:
    """Query expansion: short queries are filled up with [MASK], whose vectors count too."""

    length: int = 32
    strategy: Literal["fixed", "min"] = "fixed"
    """What sentence-transformers does with longer queries: cut them, or keep them."""
    attend: bool = False
    """Whether other tokens attend to the masks."""
    token: str | None = None
    """The token that queries are filled up with; None: the mask token."""


@dataclass(frozen=True)
class LateSettings:
    """How queries and documents become the vectors of their tokens."""

    query: str = ""
    """What is put before a query."""
    document: str = ""
    markers: tuple[str, ...] = ()
    """Beginnings of these prompts that are one token each, if the vocabulary has them."""
    query_length: int | None = None
    """Maximum tokens of a query, special tokens included."""
    document_length: int | None = None
    expansion: Expansion | None = None
    skipped: tuple[str, ...] = ()
    """Tokens whose vectors do not count, such as punctuation."""
    skipped_in: tuple[Side, ...] = ("document",)
    is_mean: bool = False
    """Whether the score is the mean over the query's tokens, and not the sum."""


class Late(nn.Module):
    """The modules that make the vectors of tokens from hidden states."""

    def __init__(self, modules: Iterable[Dense | Normalize], settings: LateSettings) -> None:
        super().__init__()
        self.steps = nn.ModuleList(modules)
        self.settings = settings

    def forward(self, states: Tensor) -> Tensor:
        """(N, width) → (N, dimensions)."""
        for step in self.steps:
            states = step(states)
        return states


def read_late(folder: Path, width: int, projection: Tensor | None) -> Late | None:
    """What the folder says about late interaction; None if it is no ColBERT. `projection`: its linear.weight."""
    if projection is not None:
        metadata = read_json(folder / METADATA) if (folder / METADATA).exists() else {}
        late = Late([_projection(projection), Normalize()], _stanford(metadata))
    elif (settings := _multi_vector(folder)) is not None:
        late = _read_modules(folder, settings)
    else:
        return None
    for dense in (step for step in late.steps if isinstance(step, Dense)):
        if dense.linear.in_features != width:
            raise BothwaysError(
                f"{folder}: the projection reads {dense.linear.in_features} numbers, and gets {width}",
                "shape-mismatch",
                (dense.linear.in_features, width),
            )
        width = dense.linear.out_features
    return late.eval()


def with_markers(tokenizer: Tokenizer, settings: LateSettings) -> Tokenizer:
    """The tokenizer with the markers as special tokens: it would read [unused0] in pieces."""
    found = []
    for marker in filter(None, settings.markers):
        names = (marker, *marker.split(None, 1)[:1])  # PyLate's "[Q] " is one token, with its space
        found += [name for name in names if tokenizer.backend.token_to_id(name) is not None][:1]
    return tokenizer.with_special(found) if found else tokenizer


def not_for_texts(folder: Path) -> BothwaysError:
    """Why such a folder has no vector for a whole text."""
    return BothwaysError(
        f"{folder} is a ColBERT, which has vectors of tokens and none of a text: use LateInteraction, or give `pool` "
        "to pool the hidden states",
        "late-interaction",
        folder,
    )


# ---------------------------------------------------------------------- Stanford's folders


def _projection(weight: Tensor) -> Dense:
    dense = Dense(weight.shape[1], weight.shape[0], False, _IDENTITY)
    dense.load_state_dict({"linear.weight": weight.float()})
    return dense


def _stanford(metadata: Mapping[str, Any]) -> LateSettings:
    markers = (metadata.get("query_token_id") or "[unused0]", metadata.get("doc_token_id") or "[unused1]")
    return LateSettings(
        f"{markers[0]} ",
        f"{markers[1]} ",
        markers,
        document_length=metadata.get("doc_maxlen"),
        expansion=Expansion(metadata.get("query_maxlen") or 32, attend=bool(metadata.get("attend_to_mask_tokens"))),
        skipped=tuple(string.punctuation) if metadata.get("mask_punctuation", True) else (),
    )


# ---------------------------------------------------------------------- folders of sentence-transformers and PyLate


def _multi_vector(folder: Path) -> dict[str, Any] | None:
    """The settings of a folder whose model_type is one of ColBERT's."""
    if not (folder / MODULES).exists() or not (folder / PROMPTS).exists():
        return None
    settings = read_json(folder / PROMPTS)
    return settings if settings.get("model_type") in _TYPES else None


def _read_modules(folder: Path, settings: Mapping[str, Any]) -> Late:
    """The token-level modules of modules.json."""
    steps: list[Dense | Normalize] = []
    mask: dict[str, Any] | None = None
    first, *others = listed(folder)
    for module in others:
        kind, place = module["type"].rpartition(".")[2], folder / module_path(module)
        config = read_json(place / "config.json") if (place / "config.json").exists() else {}
        if kind not in ("Dense", "Normalize", "MultiVectorMask") or config.get("keep_only_token_ids"):
            raise BothwaysError(
                f"{folder / MODULES} lists {module['type']}: after the Transformer of a ColBERT only Dense, "
                "MultiVectorMask and Normalize are supported, without keep_only_token_ids",
                "unsupported-modules",
                kind,
            )
        if kind == "MultiVectorMask":
            mask = config
        elif kind == "Dense" or config.get("module_input_name", "token_embeddings") == "token_embeddings":
            steps.append(read_dense(place, config) if kind == "Dense" else Normalize())
    if settings["model_type"] == "ColBERT":  # PyLate lists the Transformer and Dense only
        return Late([*steps, Normalize()], _pylate(settings))
    return Late(steps, _native(settings, _beside(folder, module_path(first)), mask or {}))


def _beside(folder: Path, transformer: str) -> dict[str, Any]:
    file = folder / transformer / SETTINGS
    return read_json(file) if file.exists() else {}


def _native(settings: Mapping[str, Any], transformer: Mapping[str, Any], mask: Mapping[str, Any]) -> LateSettings:
    prompts, expansion = settings.get("prompts") or {}, transformer.get("query_expansion")
    known = {field.name for field in fields(Expansion)}
    skipped_in = mask.get("skiplist_tasks") or ("document",)
    return LateSettings(
        prompts.get("query") or "",
        prompts.get("document") or "",
        query_length=transformer.get("query_length"),
        document_length=transformer.get("document_length"),
        expansion=Expansion(**{key: value for key, value in expansion.items() if key in known}) if expansion else None,
        skipped=tuple(mask.get("skiplist_words") or ()),
        skipped_in=tuple(side for side in get_args(Side) if side in skipped_in),
        is_mean=settings.get("similarity_fn_name") == "meanmaxsim",
    )


def _pylate(settings: Mapping[str, Any]) -> LateSettings:
    prompts, marked = settings.get("prompts") or {}, {}
    for side in get_args(Side):
        prefix = settings.get(f"{side}_prefix") or ""
        marked[side] = prefix + (prompts.get(side) or "").removeprefix(prefix)
    attend = settings.get("attend_to_expansion_tokens", settings.get("attend_to_mask_tokens"))
    expands = settings.get("do_query_expansion") is not False
    skipped = settings.get("skiplist_words")
    return LateSettings(
        marked["query"],
        marked["document"],
        tuple(settings.get(f"{side}_prefix") or "" for side in get_args(Side)),
        query_length=None if expands else settings.get("query_length"),
        document_length=settings.get("document_length"),
        expansion=Expansion(settings.get("query_length") or 32, attend=bool(attend)) if expands else None,
        skipped=tuple(string.punctuation if skipped is None else skipped),
    )


# ---------------------------------------------------------------------- writing


def late_files(late: Late) -> list[str]:
    """The files and folders that `write_late` writes."""
    return [MODULES, SETTINGS, PROMPTS, *_places(late)]


def write_late(late: Late, folder: Path) -> None:
    """Write the files of a MultiVectorEncoder beside those of the transformer."""
    settings, kinds = late.settings, ["MultiVectorMask", *(type(step).__name__ for step in late.steps)]
    parts = [("Transformer", ""), *zip(kinds, _places(late), strict=True)]
    _write(
        folder / MODULES,
        [{"idx": i, "name": str(i), "path": path, "type": _CLASSES[kind]} for i, (kind, path) in enumerate(parts)],
    )
    lengths = {"query_length": settings.query_length, "document_length": settings.document_length}
    expansion = {"query_expansion": asdict(settings.expansion)} if settings.expansion else {}
    kept = {name: length for name, length in lengths.items() if length is not None}
    _write(folder / SETTINGS, {"transformer_task": "feature-extraction", **kept, **expansion})
    prompts = {"query": settings.query, "document": settings.document}
    similarity = "meanmaxsim" if settings.is_mean else "maxsim"
    _write(folder / PROMPTS, {"model_type": _TYPES[0], "prompts": prompts, "similarity_fn_name": similarity})
    mask, *others = (folder / place for place in _places(late))
    mask.mkdir()
    skipped = {"skiplist_words": list(settings.skipped), "skiplist_tasks": list(settings.skipped_in)}
    _write(mask / "config.json", {**skipped, "keep_only_token_ids": None})
    for place, step in zip(others, late.steps, strict=True):
        place.mkdir()
        tokens = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
        if isinstance(step, Dense):
            shape = {"in_features": step.linear.in_features, "out_features": step.linear.out_features}
            more = {"bias": step.linear.bias is not None, "activation_function": step.activation}
            _write(place / "config.json", {**shape, **more, **tokens})
            tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in step.state_dict().items()}
            safetensors.torch.save_file(tensors, place / "model.safetensors", metadata={"format": "pt"})
        else:
            _write(place / "config.json", tokens)


def _places(late: Late) -> list[str]:
    return ["1_MultiVectorMask", *(f"{i}_{type(step).__name__}" for i, step in enumerate(late.steps, 2))]


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
