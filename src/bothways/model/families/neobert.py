"""NeoBERT: pre-norm with RMSNorm, rotary positions on adjacent dimensions, SwiGLU, an output matrix of its own."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bothways.errors import BothwaysError
from bothways.model.config import EncoderConfig, ModelConfig, Rotary
from bothways.model.families.family import (
    Family,
    Head,
    KeyRow,
    dropout_of,
    give,
    heads,
    linear,
    plain,
    refuse_other,
    setting,
    take,
    unsupported,
)

# Settings of the training code, which the published config.json does not have.
_FIXED: dict[str, tuple[Any, ...]] = {"rope": (True,), "rms_norm": (True,), "ngpt": (False,)}
_KEYS = {
    "vocab_size": "vocab_size",
    "hidden_size": "width",
    "num_hidden_layers": "layers",
    "num_attention_heads": "num_heads",
    "norm_eps": "norm_eps",
    "decoder_init_range": "init_std",
}
_DEFAULTS = {"norm_eps": 1e-6, "decoder_init_range": 0.02}
_BASE = 10_000.0


def _pre_norm(shape: EncoderConfig, max_length: int) -> EncoderConfig:
    return replace(
        shape,
        positions=Rotary(max_length, _BASE, _BASE, adjacent=True),
        activation="silu",
        gated="first",
        norm="rms",
        norm_first=True,
        embedding_norm=False,
        final_norm=True,
        segments=0,
        biases=(),
        dropout=0.0,
        attention_dropout=0.0,
    )


def read_config(raw: Mapping[str, Any]) -> EncoderConfig:
    """Their config.json → ours. The feed-forward width is two thirds of intermediate_size, a multiple of 8."""
    refuse_other(raw, _FIXED)
    if str(setting(raw, "hidden_act", "swiglu")).lower() != "swiglu":
        raise unsupported("hidden_act", raw["hidden_act"], "only 'swiglu' is supported")
    values = take(raw, {**_KEYS, "max_length": "max_length", "intermediate_size": "ffn_width"}, _DEFAULTS)
    if setting(raw, "dim_head", values["width"] // values["num_heads"]) * values["num_heads"] != values["width"]:
        raise unsupported("dim_head", raw["dim_head"], "expected hidden_size / num_attention_heads")
    max_length = values.pop("max_length")
    values["ffn_width"] = -(-(2 * values["ffn_width"] // 3) // 8) * 8
    return _pre_norm(EncoderConfig(**values), max_length)


def write_config(config: EncoderConfig) -> dict[str, Any]:
    """Ours → their config.json."""
    if config.ffn_width % 8:
        raise BothwaysError(
            f"the feed-forward width of a NeoBERT is a multiple of 8, not {config.ffn_width}",
            "unsupported-setting",
            ("ffn_width", config.ffn_width),
        )
    return give(config, _KEYS) | {"max_length": config.max_length, "intermediate_size": config.ffn_width * 3 // 2}


def _classifier(config: ModelConfig) -> "heads.DenseHead":
    dropout = dropout_of(config)
    return heads.DenseHead(config.encoder, len(config.labels), "tanh", (dropout, dropout))


_HEADS = {
    "masked": Head(
        lambda c: heads.MaskedLMHead(c.encoder, dense=False, tied=False),
        (KeyRow("decoder.weight", "heads.masked.decoder.weight"), KeyRow("decoder.bias", "heads.masked.bias")),
    ),
    "sequence": Head(
        _classifier,
        (*linear("dense", "heads.sequence.dense"), *linear("classifier", "heads.sequence.linear")),
        reads="first",
        has_labels=True,
    ),
}
_LAYER, _BLOCK = "transformer_encoder.{}", "encoder.blocks.{}"

FAMILY = Family(
    name="neobert",
    prefix="model.",
    read_config=read_config,
    write_config=write_config,
    body=(
        KeyRow("encoder.weight", "encoder.embeddings.tokens.weight"),
        KeyRow(f"{_LAYER}.attention_norm.weight", f"{_BLOCK}.attention_norm.weight"),
        KeyRow(f"{_LAYER}.qkv.weight", f"{_BLOCK}.attention.qkv.weight", by_head=3),
        KeyRow(f"{_LAYER}.wo.weight", f"{_BLOCK}.attention.out.weight"),
        KeyRow(f"{_LAYER}.ffn_norm.weight", f"{_BLOCK}.feed_forward_norm.weight"),
        KeyRow(f"{_LAYER}.ffn.w12.weight", f"{_BLOCK}.feed_forward.up.weight"),
        KeyRow(f"{_LAYER}.ffn.w3.weight", f"{_BLOCK}.feed_forward.down.weight"),
        KeyRow("layer_norm.weight", "encoder.norm.weight"),
    ),
    fresh=lambda shape: replace(_pre_norm(plain(shape), shape.max_length), norm_eps=1e-5),
    heads=_HEADS,
    architectures=(
        ("NeoBERTLMHead", frozenset({"masked"})),
        ("NeoBERTForSequenceClassification", frozenset({"sequence"})),
        ("NeoBERT", frozenset()),
    ),
    ignored=("freqs_cis",),
)
