"""ALBERT: narrow embeddings, one block shared by all layers, sentence order instead of next-sentence prediction."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bothways.model.config import EncoderConfig, Learned
from bothways.model.families import bert
from bothways.model.families.family import (
    Family,
    Head,
    architectures,
    classifiers,
    dropout_of,
    give,
    heads,
    linear,
    masked_head,
    refuse_other,
    setting,
    stacked,
    take,
    unsupported,
)

_FIXED: dict[str, tuple[Any, ...]] = {
    "position_embedding_type": ("absolute",),
    "inner_group_num": (1,),  # no published model has another value
}
_KEYS = {theirs: ours for theirs, ours in bert.KEYS.items() if theirs != "is_decoder"} | {
    "embedding_size": "embedding_width"
}
_DEFAULTS = bert.DEFAULTS | {
    "hidden_act": "gelu_new",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "embedding_size": 128,
}


def read_config(raw: Mapping[str, Any]) -> EncoderConfig:
    """Their config.json → ours."""
    refuse_other(raw, _FIXED)
    values = take(raw, {**_KEYS, "max_position_embeddings": "rows"}, _DEFAULTS)
    layers, groups = values["layers"], setting(raw, "num_hidden_groups", 1)
    if not isinstance(groups, int) or not 1 <= groups <= layers:
        raise unsupported("num_hidden_groups", groups, f"expected 1 to {layers}, the number of layers")
    layer_map = tuple(int(layer / (layers / groups)) for layer in range(layers))
    return EncoderConfig(positions=Learned(values.pop("rows")), layer_map=layer_map, **values)


def write_config(config: EncoderConfig) -> dict[str, Any]:
    """Ours → their config.json."""
    assert isinstance(config.positions, Learned)
    values = give(config, _KEYS)
    return values | {
        "embedding_size": config.table_width,
        "max_position_embeddings": config.positions.rows,
        "num_hidden_groups": config.blocks,
        "inner_group_num": 1,
    }


_BLOCK, _DROPOUT = "encoder.albert_layer_groups.{}.albert_layers.0", "classifier_dropout_prob"
_HEADS = {
    "pooler": Head(lambda c: heads.Pooler(c.encoder), linear("pooler", "heads.pooler.dense"), in_body=True),
    "masked": masked_head(
        "predictions.dense", "predictions.LayerNorm", "predictions.bias", "predictions.decoder.weight"
    ),
    "next": Head(
        lambda c: heads.LinearHead(c.encoder, 2, dropout_of(c, _DROPOUT)),
        linear("sop_classifier.classifier", "heads.next.linear"),
        reads="pooled",
        needs=("pooler",),
    ),
    **classifiers(_DROPOUT, _DROPOUT),
    "span": bert.HEADS["span"],
}

FAMILY = Family(
    name="albert",
    prefix="albert.",
    read_config=read_config,
    write_config=write_config,
    body=(
        *bert.EMBEDDINGS,
        *linear("encoder.embedding_hidden_mapping_in", "encoder.embeddings.project"),
        *stacked(f"{_BLOCK}.attention", ("query", "key", "value"), "encoder.blocks.{}.attention.qkv"),
        *linear(f"{_BLOCK}.attention.dense", "encoder.blocks.{}.attention.out"),
        *linear(f"{_BLOCK}.attention.LayerNorm", "encoder.blocks.{}.attention_norm"),
        *linear(f"{_BLOCK}.ffn", "encoder.blocks.{}.feed_forward.up"),
        *linear(f"{_BLOCK}.ffn_output", "encoder.blocks.{}.feed_forward.down"),
        *linear(f"{_BLOCK}.full_layer_layer_norm", "encoder.blocks.{}.feed_forward_norm"),
    ),
    fresh=lambda shape: replace(
        shape, layer_map=(0,) * shape.layers, embedding_width=shape.embedding_width or 128, activation="gelu_new"
    ),
    heads=_HEADS,
    architectures=architectures("Albert", _HEADS, {"PreTraining": {"pooler", "masked", "next"}}),
    ignored=("embeddings.position_ids",),
    tied={
        "predictions.decoder.weight": "embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    },
    narrow_embeddings=True,
)
