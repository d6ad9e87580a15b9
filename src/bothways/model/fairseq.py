"""RoBERTa as fairseq saves it, read without fairseq: one .pt file of settings and tensors.

The file is a pickle, and a pickle may hold code. Tensors, plain values and the settings' Namespace are read; anything
else is refused, and nothing is ever run.
"""

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bothways.errors import BothwaysError
from bothways.model.checkpoint import why_unread

# fairseq's names into Hugging Face's: all of these, one after the other.
_NAMES = (
    (r"^decoder\.", "encoder."),  # before 2020
    (r"^encoder\.lm_head\.weight$", "lm_head.decoder.weight"),
    (r"^encoder\.lm_head\.", "lm_head."),
    (r"^encoder\.sentence_encoder\.", "roberta."),
    (r"^roberta\.embed_tokens\.", "roberta.embeddings.word_embeddings."),
    (r"^roberta\.embed_positions\.", "roberta.embeddings.position_embeddings."),
    (r"^roberta\.(emb_layer_norm|layernorm_embedding)\.", "roberta.embeddings.LayerNorm."),
    (r"^roberta\.layers\.(\d+)\.", r"roberta.encoder.layer.\1."),
    (r"\.self_attn\.q_proj\.", ".attention.self.query."),
    (r"\.self_attn\.k_proj\.", ".attention.self.key."),
    (r"\.self_attn\.v_proj\.", ".attention.self.value."),
    (r"\.self_attn\.out_proj\.", ".attention.output.dense."),
    (r"\.self_attn_layer_norm\.", ".attention.output.LayerNorm."),
    (r"\.fc1\.", ".intermediate.dense."),
    (r"\.fc2\.", ".output.dense."),
    (r"\.final_layer_norm\.", ".output.LayerNorm."),
    (r"^classification_heads\.[^.]+\.", "classifier."),
)
_SETTINGS = {
    "encoder_layers": "num_hidden_layers",
    "encoder_embed_dim": "hidden_size",
    "encoder_ffn_embed_dim": "intermediate_size",
    "encoder_attention_heads": "num_attention_heads",
    "activation_fn": "hidden_act",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
}
# Settings that change what the model computes, with the value that RoBERTa has; a file may leave them out.
_FIXED: dict[str, Any] = {
    "encoder_normalize_before": False,
    "layernorm_embedding": True,
    "encoder_learned_pos": True,
    "no_scale_embedding": True,
    "no_token_positional_embeddings": False,
    "untie_weights_roberta": False,
    "adaptive_input": False,
    "spectral_norm_classification_head": False,
    "activation_fn": "gelu",
    "pooler_activation_fn": "tanh",
}
_PAD = 1
"""fairseq's dictionaries begin with <s>, <pad>, </s>, <unk>; positions are counted from <pad>'s id on."""


def find(source: Path) -> Path | None:
    """The fairseq checkpoint that `source` is, or that lies in it alone; None if `source` is another folder."""
    if source.is_file():
        if source.suffix != ".pt":
            raise BothwaysError(f"{source} is not a fairseq checkpoint, a .pt file: expected one, or a model's folder")
        return source
    if any((source / name).exists() for name in ("config.json", "bert_config.json", "adapter_config.json")):
        return None
    found = sorted(source.glob("*.pt"))
    if len(found) > 1:
        raise BothwaysError(f"{source} holds {', '.join(path.name for path in found)}: name one of them")
    return found[0] if found else None


def read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A checkpoint's config and tensors in Hugging Face's terms."""
    settings, weights = _read_file(path)
    architecture = settings.get("arch") or settings.get("_name")
    if not str(architecture).startswith(("roberta", "xlmr")):
        raise BothwaysError(f"{path} holds fairseq's architecture {architecture}, and only RoBERTa can be read here")
    for key, plain in _FIXED.items():
        if settings.get(key, plain) != plain:
            raise BothwaysError(
                f"{path} is not a plain RoBERTa: its {key} is {settings[key]!r} and only {plain!r} can be read here"
            )
    tensors = _rename(path, weights)
    words, width = _shape(path, tensors, "word_embeddings")
    rows, _ = _shape(path, tensors, "position_embeddings")
    config = _config(path, settings) | {"vocab_size": words, "max_position_embeddings": rows}
    if (said := settings.get("max_positions", rows - _PAD - 1)) != rows - _PAD - 1:
        raise BothwaysError(f"{path} says {said} positions, and its table of {rows} rows has {rows - _PAD - 1}")
    # Hugging Face adds a segment's row to every token; fairseq has none.
    tensors["roberta.embeddings.token_type_embeddings.weight"] = torch.zeros(1, width)
    return config, tensors


def _read_file(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The settings by their names, and the tensors."""
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file raises whatever its parser stumbles over
        raise BothwaysError(f"{path} {why_unread(path, error)}") from error
    weights = found.get("model") if isinstance(found, dict) else None
    if not isinstance(weights, dict) or not all(isinstance(tensor, Tensor) for tensor in weights.values()):
        raise BothwaysError(f"{path} is not a fairseq checkpoint: it has no table of tensors called model")
    whole = found.get("cfg")  # since 2020, with the model's settings among others'
    settings = found.get("args") or (whole.get("model") if isinstance(whole, dict) else None)
    if isinstance(settings, argparse.Namespace):
        settings = vars(settings)
    if not isinstance(settings, dict):
        raise BothwaysError(f"{path} is not a fairseq checkpoint: it has no settings called args or cfg")
    return settings, weights


def _rename(path: Path, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for theirs, tensor in _apart(weights).items():
        if theirs.endswith(".version"):  # a number that fairseq's own upgrades read
            continue
        name = theirs
        for pattern, replacement in _NAMES:
            name = re.sub(pattern, replacement, name)
        if name in tensors:
            raise BothwaysError(f"{path} holds two tensors that would both be called {name}, such as {theirs}")
        tensors[name] = tensor
    return tensors


def _apart(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """With query, key and value each by itself: the first files had them in one tensor, in this order."""
    apart: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        stem, joined, kind = name.partition("in_proj_")
        parts = [f"{stem}{part}_proj.{kind}" for part in "qkv"] if joined else [name]
        apart |= zip(parts, tensor.chunk(3) if joined else [tensor], strict=True)
    return apart


def _config(path: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    missing = [key for key in _SETTINGS if key not in settings]
    if missing:
        raise BothwaysError(f"{path} has no {', '.join(missing)} among its settings")
    return {
        "model_type": "roberta",
        **{theirs: settings[key] for key, theirs in _SETTINGS.items()},
        "classifier_dropout": settings.get("pooler_dropout"),
        "layer_norm_eps": 1e-5,
        "type_vocab_size": 1,
        "bos_token_id": 0,
        "pad_token_id": _PAD,
        "eos_token_id": 2,
    }


def _shape(path: Path, tensors: Mapping[str, Tensor], name: str) -> tuple[int, int]:
    """Rows and width of a table of embeddings."""
    table = tensors.get(f"roberta.embeddings.{name}.weight")
    if table is None or table.ndim != 2:
        raise BothwaysError(f"{path} has no table of {name}, which every RoBERTa has")
    return table.shape[0], table.shape[1]
