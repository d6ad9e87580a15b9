"""MPNet: RoBERTa without segments, with a relative position bias that all layers share."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bothways.model.config import Bucketed, EncoderConfig
from bothways.model.families import bert, roberta
from bothways.model.families.family import (
    Family,
    KeyRow,
    architectures,
    give,
    linear,
    plain,
    refuse_other,
    stacked,
    take,
)

_FIXED: dict[str, tuple[Any, ...]] = {"relative_attention_num_buckets": (32,)}
_KEYS = {theirs: ours for theirs, ours in bert.KEYS.items() if theirs not in ("is_decoder", "type_vocab_size")}
_OFFSET = 2


def read_config(raw: Mapping[str, Any]) -> EncoderConfig:
    """Their config.json → ours."""
    refuse_other(raw, _FIXED)
    values = take(raw, {**_KEYS, "max_position_embeddings": "rows"}, bert.DEFAULTS)
    return EncoderConfig(positions=Bucketed(values.pop("rows"), _OFFSET, skips_padding=True), segments=0, **values)


def write_config(config: EncoderConfig) -> dict[str, Any]:
    """Ours → their config.json."""
    assert isinstance(config.positions, Bucketed)
    values = give(config, _KEYS)
    return values | {
        "max_position_embeddings": config.positions.rows,
        "relative_attention_num_buckets": config.positions.buckets,
    }


_LAYER, _BLOCK = "encoder.layer.{}", "encoder.blocks.{}"

FAMILY = Family(
    name="mpnet",
    prefix="mpnet.",
    read_config=read_config,
    write_config=write_config,
    body=(
        *bert.EMBEDDINGS,
        KeyRow("encoder.relative_attention_bias.weight", "encoder.embeddings.positions.distances.weight"),
        *stacked(f"{_LAYER}.attention.attn", ("q", "k", "v"), f"{_BLOCK}.attention.qkv"),
        *linear(f"{_LAYER}.attention.attn.o", f"{_BLOCK}.attention.out"),
        *linear(f"{_LAYER}.attention.LayerNorm", f"{_BLOCK}.attention_norm"),
        *linear(f"{_LAYER}.intermediate.dense", f"{_BLOCK}.feed_forward.up"),
        *linear(f"{_LAYER}.output.dense", f"{_BLOCK}.feed_forward.down"),
        *linear(f"{_LAYER}.output.LayerNorm", f"{_BLOCK}.feed_forward_norm"),
    ),
    heads=roberta.HEADS,
    fresh=lambda shape: replace(
        plain(shape),
        positions=Bucketed(shape.max_length + _OFFSET, _OFFSET, skips_padding=True),
        segments=0,
        norm_eps=1e-5,
    ),
    architectures=architectures("MPNet", roberta.HEADS),
    ignored=("embeddings.position_ids",),
    tied={
        "lm_head.decoder.weight": "embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
)
