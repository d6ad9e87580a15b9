"""GTE: post-norm, rotary positions, gated feed-forward. As Alibaba published it ("new"), and as transformers has it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bothways.model.config import Bias, EncoderConfig, Rotary
from bothways.model.families import bert
from bothways.model.families.family import (
    Family,
    architectures,
    give,
    linear,
    masked_head,
    modules,
    plain,
    read_rotary,
    refuse_other,
    setting,
    take,
    unsupported,
    write_rotary,
)

_FIXED: dict[str, tuple[Any, ...]] = {
    "layer_norm_type": ("layer_norm",),
    "position_embedding_type": ("rope",),
    "pack_qkv": (True,),
    "logn_attention_scale": (False,),
}
_KEYS = {theirs: ours for theirs, ours in bert.KEYS.items() if theirs != "is_decoder"}
_DEFAULTS = bert.DEFAULTS | {"type_vocab_size": 1, "attention_probs_dropout_prob": 0.0}
_BIASES: tuple[Bias, ...] = ("query", "key", "value", "out", "down")
_NATIVE_BASE, _PUBLISHED_BASE = 160_000.0, 10_000.0


def _read(raw: Mapping[str, Any], defaults: Mapping[str, Any]) -> tuple[EncoderConfig, int]:
    refuse_other(raw, _FIXED)
    values = take(raw, {**_KEYS, "max_position_embeddings": "rows"}, defaults)
    rows = values.pop("rows")
    return EncoderConfig(gated="second", biases=_BIASES, **values), rows


def _read_native(raw: Mapping[str, Any]) -> EncoderConfig:
    shape, rows = _read(raw, _DEFAULTS)
    return replace(shape, positions=read_rotary(raw, rows, _NATIVE_BASE))


def _read_published(raw: Mapping[str, Any]) -> EncoderConfig:
    """NTK scaling: the base grows by the factor s, and all angles shrink by s^(2/D), whatever the length is."""
    shape, rows = _read(raw, _DEFAULTS | {"attention_probs_dropout_prob": 0.1})
    scaling, base = raw.get("rope_scaling") or {}, float(setting(raw, "rope_theta", _PUBLISHED_BASE))
    if scaling and (scaling.get("type") != "ntk" or scaling.get("mixed_b") is not None):
        raise unsupported("rope_scaling", scaling, "only the type 'ntk' without mixed_b is supported")
    factor = float(scaling.get("factor", 1.0))
    if factor <= 1:
        return replace(shape, positions=Rotary(rows, base, base))
    slower = factor ** (2 / shape.head_width)
    return replace(shape, positions=Rotary(rows, base * factor, base * factor, slower))


def _write(config: EncoderConfig) -> dict[str, Any]:
    return give(config, _KEYS) | {"max_position_embeddings": config.max_length}


def _write_native(config: EncoderConfig) -> dict[str, Any]:
    assert isinstance(config.positions, Rotary)
    return _write(config) | {"rope_parameters": write_rotary(config.positions)}


def _write_published(config: EncoderConfig) -> dict[str, Any]:
    assert isinstance(config.positions, Rotary)
    factor = config.positions.factor ** (config.head_width / 2)
    scaling = {"type": "ntk", "factor": round(factor, 9)} if factor > 1 else None
    values = {
        "rope_theta": round(config.positions.base / factor, 6),
        "rope_scaling": scaling,
        "position_embedding_type": "rope",
    }
    return _write(config) | values | {"pack_qkv": True, "layer_norm_type": "layer_norm"}


_MASKED = ("lm_head.dense", "lm_head.norm", "lm_head.decoder.bias", "lm_head.decoder.weight")
_HEADS = {
    **{name: bert.HEADS[name] for name in ("pooler", "sequence", "token", "choice", "span")},
    "masked": masked_head(*_MASKED),
}
_NATIVE_HEADS = {
    **{name: bert.HEADS[name] for name in ("pooler", "sequence", "token")},
    "masked": masked_head(*_MASKED, "gelu"),  # whatever the activation of the layers is
}
_LAYER, _BLOCK = "encoder.layer.{}", "encoder.blocks.{}"

PUBLISHED = Family(
    name="new",
    prefix="new.",
    read_config=_read_published,
    write_config=_write_published,
    body=(
        *bert.EMBEDDINGS,
        *linear(f"{_LAYER}.attention.qkv_proj", f"{_BLOCK}.attention.qkv"),
        *linear(f"{_LAYER}.attention.o_proj", f"{_BLOCK}.attention.out"),
        *linear(f"{_LAYER}.attn_ln", f"{_BLOCK}.attention_norm"),
        *linear(f"{_LAYER}.mlp.up_gate_proj", f"{_BLOCK}.feed_forward.up"),
        *linear(f"{_LAYER}.mlp.down_proj", f"{_BLOCK}.feed_forward.down"),
        *linear(f"{_LAYER}.mlp_ln", f"{_BLOCK}.feed_forward_norm"),
    ),
    fresh=lambda shape: replace(
        plain(shape),
        positions=Rotary(shape.max_length, _NATIVE_BASE, _NATIVE_BASE),
        segments=1,
        gated="second",
        biases=_BIASES,
    ),
    heads=_HEADS,
    architectures=architectures("New", _HEADS),
    ignored=("*.inv_freq",),
    tied={"lm_head.decoder.weight": "embeddings.word_embeddings.weight"},
    other_prefixes=("gte.",),
)
FAMILY = replace(
    PUBLISHED,
    name="gte",
    prefix="gte.",
    read_config=_read_native,
    write_config=_write_native,
    heads=_NATIVE_HEADS,
    architectures=architectures("Gte", _NATIVE_HEADS),
    other_prefixes=("new.",),
    modules=modules(("up_proj", "gate_proj")),
)
