"""Reads fairseq's checkpoints of RoBERTa without fairseq: one .pt file with settings and tensors.

The file is a pickle, which may contain code. Tensors, plain values and the Namespace of settings are read; anything
else is refused, and no code is run.
"""

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bothways.errors import BothwaysError
from bothways.model.weights import unreadable_weights

# From fairseq's names to Hugging Face's: all substitutions, in this order.
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
# Settings that change what the model computes, with RoBERTa's values; a file may omit them.
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
"""fairseq's dictionaries begin with <s>, <pad>, </s>, <unk>; the first position is the id of <pad>, plus 1."""


def find(source: Path) -> Path | None:
    """The fairseq checkpoint: `source` itself or the only .pt file in it; None if `source` is another folder."""
    if source.is_file():
        if source.suffix != ".pt":
            raise BothwaysError(
                f"{source} is neither a model folder nor a fairseq checkpoint, a .pt file", "not-fairseq", source
            )
        return source
    if any((source / name).exists() for name in ("config.json", "bert_config.json", "adapter_config.json")):
        return None
    found = sorted(source.glob("*.pt"))
    if len(found) > 1:
        names = tuple(path.name for path in found)
        raise BothwaysError(
            f"{source} holds several checkpoints: name one of {', '.join(names)}", "several-checkpoints", names
        )
    return found[0] if found else None


def read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The config and the tensors of a checkpoint under Hugging Face's names."""
    settings, weights = _read_file(path)
    architecture = settings.get("arch") or settings.get("_name")
    if not str(architecture).startswith(("roberta", "xlmr")):
        raise _unsupported(path, "arch", architecture, "roberta")
    for key, expected in _FIXED.items():
        if settings.get(key, expected) != expected:
            raise _unsupported(path, key, settings[key], expected)
    tensors = _rename(path, weights)
    vocab_size, width = _shape(path, tensors, "word_embeddings")
    rows, _ = _shape(path, tensors, "position_embeddings")
    config = _config(path, settings) | {"vocab_size": vocab_size, "max_position_embeddings": rows}
    if (positions := settings.get("max_positions", rows - _PAD - 1)) != rows - _PAD - 1:
        raise BothwaysError(
            f"{path} has max_positions = {positions}, and its position table is for {rows - _PAD - 1} positions",
            "shape-mismatch",
            (positions, rows - _PAD - 1),
        )
    # Hugging Face's RoBERTa adds a segment embedding to every token; fairseq's has none.
    tensors["roberta.embeddings.token_type_embeddings.weight"] = torch.zeros(1, width)
    return config, tensors


def _unsupported(path: Path, key: str, value: object, expected: object) -> BothwaysError:
    return BothwaysError(
        f"{path} has {key} = {value!r}, and only {expected!r} is supported", "unsupported-setting", (key, value)
    )


def _read_file(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The settings by their names, and the tensors."""
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the parser of a damaged file may raise anything
        raise unreadable_weights(path, error) from error
    weights = found.get("model") if isinstance(found, dict) else None
    if not isinstance(weights, dict) or not all(isinstance(tensor, Tensor) for tensor in weights.values()):
        raise BothwaysError(f"{path} is not a fairseq checkpoint: it has no tensors under model", "not-fairseq", path)
    cfg = found.get("cfg")  # since 2020; the model's settings are a part of it
    settings = found.get("args") or (cfg.get("model") if isinstance(cfg, dict) else None)
    if isinstance(settings, argparse.Namespace):
        settings = vars(settings)
    if not isinstance(settings, dict):
        raise BothwaysError(
            f"{path} is not a fairseq checkpoint: it has no settings under args or cfg", "not-fairseq", path
        )
    return settings, weights


def _rename(path: Path, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for theirs, tensor in _split_qkv(weights).items():
        if theirs.endswith(".version"):  # not a weight: fairseq's version number
            continue
        name = theirs
        for pattern, replacement in _NAMES:
            name = re.sub(pattern, replacement, name)
        if name in tensors:
            raise BothwaysError(f"{path} holds two tensors for {name}, one is {theirs}", "duplicate-tensor", name)
        tensors[name] = tensor
    return tensors


def _split_qkv(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Splits in_proj, which holds query, key and value in one tensor in old files."""
    split: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        stem, joined, kind = name.partition("in_proj_")
        parts = [f"{stem}{part}_proj.{kind}" for part in "qkv"] if joined else [name]
        split |= zip(parts, tensor.chunk(3) if joined else [tensor], strict=True)
    return split


def _config(path: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    missing = [key for key in _SETTINGS if key not in settings]
    if missing:
        raise BothwaysError(f"{path} lacks the settings {', '.join(missing)}", "missing-setting", tuple(missing))
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
    """The number of rows and the width of an embedding table."""
    table = tensors.get(f"roberta.embeddings.{name}.weight")
    if table is None or table.ndim != 2:
        raise BothwaysError(f"{path} has no matrix of {name}, which every RoBERTa has", "missing-tensors", (name,))
    return table.shape[0], table.shape[1]
