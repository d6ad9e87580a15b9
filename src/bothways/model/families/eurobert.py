"""EuroBERT: pre-norm with RMSNorm, rotary positions, gated feed-forward, grouped-query attention, no biases."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bothways.model.config import EncoderConfig, ModelConfig, Rotary
from bothways.model.families.family import (
    Family,
    Head,
    KeyRow,
    Reads,
    architectures,
    block_biases,
    give,
    heads,
    is_tied,
    linear,
    plain,
    read_rotary,
    refuse_other,
    setting,
    stacked,
    take,
    unsupported,
    write_rotary,
)

_FIXED: dict[str, tuple[Any, ...]] = {"pretraining_tp": (1,)}
_KEYS = {
    "vocab_size": "vocab_size",
    "hidden_size": "width",
    "num_hidden_layers": "layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "ffn_width",
    "hidden_act": "activation",
    "rms_norm_eps": "norm_eps",
    "attention_dropout": "attention_dropout",
    "initializer_range": "init_std",
}
_DEFAULTS = {"hidden_act": "silu", "rms_norm_eps": 1e-5, "attention_dropout": 0.0, "initializer_range": 0.02}
_BASE = 250_000.0
_POOLINGS: dict[Reads, str] = {"late": "late", "first": "bos", "mean": "mean"}


def _pre_norm(shape: EncoderConfig) -> EncoderConfig:
    return replace(
        shape,
        norm="rms",
        norm_first=True,
        embedding_norm=False,
        final_norm=True,
        segments=0,
        gated="first",
        dropout=0.0,
    )


def read_config(raw: Mapping[str, Any]) -> EncoderConfig:
    """Their config.json → ours."""
    refuse_other(raw, _FIXED)
    values = take(raw, {**_KEYS, "max_position_embeddings": "max_length"}, _DEFAULTS)
    max_length, heads = values.pop("max_length"), values["num_heads"]
    shared = setting(raw, "num_key_value_heads", heads)
    if setting(raw, "head_dim", values["width"] // heads) != values["width"] // heads:
        raise unsupported("head_dim", raw["head_dim"], f"expected {values['width'] // heads}, the width of a head")
    return _pre_norm(
        EncoderConfig(
            positions=read_rotary(raw, max_length, 10_000.0),
            num_kv_heads=0 if shared == heads else shared,
            biases=block_biases(raw),
            **values,
        )
    )


def write_config(config: EncoderConfig) -> dict[str, Any]:
    """Ours → their config.json."""
    assert isinstance(config.positions, Rotary)
    return give(config, _KEYS) | {
        "max_position_embeddings": config.max_length,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_width,
        "attention_bias": "out" in config.biases,
        "mlp_bias": "up" in config.biases,
        "rope_parameters": write_rotary(config.positions),
    }


def _pooling(config: ModelConfig) -> Reads:
    named = setting(config.hf_config, "classifier_pooling", "late")
    for reads, name in _POOLINGS.items():
        if name == named:
            return reads
    raise unsupported("classifier_pooling", named, f"expected one of {', '.join(_POOLINGS.values())}")


_HEADS = {
    "masked": Head(
        lambda c: heads.MaskedLMHead(c.encoder, dense=False, tied=is_tied(c, False), bias="up" in c.encoder.biases),
        (KeyRow("lm_head.weight", "heads.masked.decoder.weight"), KeyRow("lm_head.bias", "heads.masked.bias")),
    ),
    "sequence": Head(
        lambda c: heads.DenseHead(c.encoder, len(c.labels), "gelu"),
        (*linear("dense", "heads.sequence.dense"), *linear("classifier", "heads.sequence.linear")),
        reads=_pooling,
        has_labels=True,
    ),
    "token": Head(
        lambda c: heads.LinearHead(c.encoder, len(c.labels), 0.0),
        linear("classifier", "heads.token.linear"),
        has_labels=True,
    ),
}
_LAYER, _BLOCK = "layers.{}", "encoder.blocks.{}"

FAMILY = Family(
    name="eurobert",
    prefix="model.",
    read_config=read_config,
    write_config=write_config,
    body=(
        KeyRow("embed_tokens.weight", "encoder.embeddings.tokens.weight"),
        *linear(f"{_LAYER}.input_layernorm", f"{_BLOCK}.attention_norm"),
        *stacked(f"{_LAYER}.self_attn", ("q_proj", "k_proj", "v_proj"), f"{_BLOCK}.attention.qkv"),
        *linear(f"{_LAYER}.self_attn.o_proj", f"{_BLOCK}.attention.out"),
        *linear(f"{_LAYER}.post_attention_layernorm", f"{_BLOCK}.feed_forward_norm"),
        *stacked(f"{_LAYER}.mlp", ("gate_proj", "up_proj"), f"{_BLOCK}.feed_forward.up"),
        *linear(f"{_LAYER}.mlp.down_proj", f"{_BLOCK}.feed_forward.down"),
        *linear("norm", "encoder.norm"),
    ),
    fresh=lambda shape: replace(
        _pre_norm(plain(shape)),
        positions=Rotary(shape.max_length, _BASE, _BASE),
        norm_eps=1e-5,
        biases=(),
        activation="silu",
    ),
    heads=_HEADS,
    architectures=architectures("EuroBert", _HEADS),
    tied={"lm_head.weight": "embed_tokens.weight"},
    ties=False,
    poolings=_POOLINGS,
)
