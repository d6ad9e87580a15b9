"""DeBERTa v1, v2 and v3: disentangled attention to content and to relative position, no positions at the input."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from bothways.model.config import Disentangled, EncoderConfig, ModelConfig
from bothways.model.families import bert
from bothways.model.families.family import (
    Family,
    Head,
    KeyRow,
    architectures,
    classifiers,
    give,
    linear,
    refuse_other,
    stacked,
    take,
    unsupported,
)
from bothways.model.heads import DenseHead, Pooler

_FIXED: dict[str, tuple[Any, ...]] = {
    "relative_attention": (True,),
    "talking_head": (False,),
    "tie_word_embeddings": (True,),
    "conv_groups": (1,),
}
_KEYS = {theirs: ours for theirs, ours in bert.KEYS.items() if theirs != "is_decoder"}


def _terms(raw: Mapping[str, Any]) -> tuple[str, ...]:
    terms = raw.get("pos_att_type") or ()
    return tuple(terms.lower().split("|") if isinstance(terms, str) else terms)


def _common(raw: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of EncoderConfig and of Disentangled that v1 and v2 have in common."""
    refuse_other(raw, _FIXED)
    if not raw.get("relative_attention", False):
        raise unsupported("relative_attention", raw.get("relative_attention"), "only true is supported")
    values = take(raw, {**_KEYS, "max_position_embeddings": "max_length"}, bert.MAY_MISS)
    max_length = values.pop("max_length")
    far = raw.get("max_relative_positions", -1)
    width = raw.get("embedding_size", values["width"])
    values |= {"embedding_width": width if width != values["width"] else 0, "project_first": True}
    positions = {
        "max_length": max_length,
        "span": far if far >= 1 else max_length,
        "terms": _terms(raw),
        "rows": max_length if raw.get("position_biased_input", True) else 0,
    }
    return values, positions


def _read_first(raw: Mapping[str, Any]) -> EncoderConfig:
    values, positions = _common(raw)
    return EncoderConfig(**values, positions=Disentangled(**positions), biases="query-value")


def _read_second(raw: Mapping[str, Any]) -> EncoderConfig:
    values, positions = _common(raw)
    if (buckets := raw.get("position_buckets", -1)) > 0:
        positions |= {"span": buckets, "far": positions["span"]}
    positions |= {
        "shared": bool(raw.get("share_att_key", False)),
        "norm": "layer_norm" in str(raw.get("norm_rel_ebd", "none")).lower(),
    }
    return EncoderConfig(
        **values,
        positions=Disentangled(**positions),
        convolution=raw.get("conv_kernel_size") or 0,
        convolution_activation=raw.get("conv_act", "tanh"),
    )


def _write(config: EncoderConfig) -> dict[str, Any]:
    positions = config.positions
    assert isinstance(positions, Disentangled)
    values = give(config, _KEYS)
    return values | {
        "embedding_size": config.table_width,
        "relative_attention": True,
        "position_biased_input": positions.rows > 0,
        "pos_att_type": list(positions.terms),
        "max_position_embeddings": positions.max_length,
        "max_relative_positions": positions.far or positions.span,
        "legacy": True,
    }


def _write_second(config: EncoderConfig) -> dict[str, Any]:
    positions = config.positions
    assert isinstance(positions, Disentangled)
    values = {
        "position_buckets": positions.span if positions.far else -1,
        "share_att_key": positions.shared,
        "norm_rel_ebd": "layer_norm" if positions.norm else "none",
    }
    if config.convolution:
        values |= {"conv_kernel_size": config.convolution, "conv_act": config.convolution_activation}
    return _write(config) | values


def _fresh(shape: EncoderConfig, positions: Disentangled, biases: Literal["all", "query-value"]) -> EncoderConfig:
    """The config of a new model with the settings of the published v1 or v3."""
    embedding = 0 if shape.embedding_width == shape.width else shape.embedding_width  # equal widths: no projection
    return replace(
        shape,
        positions=positions,
        segments=0,
        norm_eps=1e-7,
        biases=biases,
        project_first=True,
        embedding_width=embedding,
    )


def _pooler(config: ModelConfig) -> Pooler:
    activation = str(config.hf_config.get("pooler_hidden_act", "gelu"))
    dropout = config.hf_config.get("pooler_dropout", 0.0)
    return Pooler(config.encoder, activation, dropout if isinstance(dropout, int | float) else 0.0)


HEADS = {
    "replaced": Head(  # replaced token detection of v3; transformers has no class for it
        lambda c: DenseHead(c.encoder, 1, c.encoder.activation, norm="before"),
        (
            *linear("mask_predictions.LayerNorm", "heads.replaced.norm"),
            *linear("mask_predictions.dense", "heads.replaced.dense"),
            *linear("mask_predictions.classifier", "heads.replaced.linear"),
        ),
        reads="tokens + first",
    ),
    "pooler": Head(_pooler, linear("pooler.dense", "heads.pooler.dense")),
    "masked": bert.HEADS["masked"],
    **classifiers("cls_dropout", token_dropout=""),  # the token classifier has the encoder's
    "span": bert.HEADS["span"],
}
_EMBEDDINGS = (
    *bert.EMBEDDINGS,
    KeyRow("embeddings.embed_proj.weight", "encoder.embeddings.project.weight"),
    KeyRow("encoder.rel_embeddings.weight", "encoder.embeddings.positions.distances.weight"),
)
_SELF, _OURS = "encoder.layer.{}.attention.self", "encoder.blocks.{}.attention"
_AFTER_ATTENTION = bert.LAYERS[2:]
# Names of the masked language modelling head in the original files, and in transformers if legacy is false.
_NEW_MASKED = {
    f"lm_predictions.lm_head.{new}": f"cls.predictions.{old}"
    for new, old in {
        "dense.weight": "transform.dense.weight",
        "dense.bias": "transform.dense.bias",
        "LayerNorm.weight": "transform.LayerNorm.weight",
        "LayerNorm.bias": "transform.LayerNorm.bias",
        "bias": "bias",
    }.items()
}


FIRST = Family(
    name="deberta",
    prefix="deberta.",
    read_config=_read_first,
    write_config=_write,
    body=(
        *_EMBEDDINGS,
        KeyRow(f"{_SELF}.in_proj.weight", f"{_OURS}.qkv.weight", by_head=3),
        KeyRow(f"{_SELF}.q_bias", f"{_OURS}.query_bias"),
        KeyRow(f"{_SELF}.v_bias", f"{_OURS}.value_bias"),
        KeyRow(f"{_SELF}.pos_proj.weight", f"{_OURS}.positions.key.weight"),
        *linear(f"{_SELF}.pos_q_proj", f"{_OURS}.positions.query"),
        *_AFTER_ATTENTION,
    ),
    heads=HEADS,
    fresh=lambda shape: _fresh(shape, Disentangled(shape.max_length, shape.max_length), "query-value"),
    architectures=architectures("Deberta", HEADS),
    ignored=("embeddings.position_ids",),
    tied=bert.FAMILY.tied,
    renamed=_NEW_MASKED,
)

SECOND = Family(
    name="deberta-v2",
    prefix="deberta.",
    read_config=_read_second,
    write_config=_write_second,
    body=(
        *_EMBEDDINGS,
        *linear("encoder.LayerNorm", "encoder.embeddings.positions.norm"),
        *linear("encoder.conv.conv", "encoder.convolution"),
        *linear("encoder.conv.LayerNorm", "encoder.convolution.norm"),
        *stacked(_SELF, ("query_proj", "key_proj", "value_proj"), f"{_OURS}.qkv"),
        *linear(f"{_SELF}.pos_key_proj", f"{_OURS}.positions.key"),
        *linear(f"{_SELF}.pos_query_proj", f"{_OURS}.positions.query"),
        *_AFTER_ATTENTION,
    ),
    heads=HEADS,
    fresh=lambda shape: _fresh(
        shape, Disentangled(shape.max_length, shape.max_length // 2, shape.max_length, shared=True, norm=True), "all"
    ),
    architectures=architectures("DebertaV2", HEADS),
    ignored=("embeddings.position_ids",),
    tied=bert.FAMILY.tied,
    renamed=_NEW_MASKED,
)
