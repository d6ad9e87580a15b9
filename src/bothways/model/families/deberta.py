"""DeBERTa v1, v2 and v3: disentangled attention to content and to relative position, no positions at the input."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bothways.model.config import BIASES, Bias, Disentangled, EncoderConfig, ModelConfig
from bothways.model.families import bert
from bothways.model.families.family import (
    Family,
    Head,
    KeyRow,
    activation_of,
    architectures,
    classifiers,
    give,
    heads,
    linear,
    refuse_other,
    setting,
    stacked,
    take,
    unsupported,
)

_FIXED: dict[str, tuple[Any, ...]] = {
    "talking_head": (False,),
    "conv_groups": (1,),
}
_KEYS = {theirs: ours for theirs, ours in bert.KEYS.items() if theirs != "is_decoder"}
_DEFAULTS = bert.DEFAULTS | {"type_vocab_size": 0, "layer_norm_eps": 1e-7}


_FIRST_BIASES: tuple[Bias, ...] = ("query", "value", "out", "up", "down")
"""v1 has no bias for the keys."""


def _terms(raw: Mapping[str, Any]) -> tuple[str, ...]:
    terms = raw.get("pos_att_type") or []
    found = tuple(terms.lower().split("|") if isinstance(terms, str) else terms if isinstance(terms, list) else ("",))
    if not all(term in ("c2p", "p2c") for term in found):
        raise unsupported("pos_att_type", terms, "expected c2p, p2c, both or none")
    return found


def _common(raw: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of EncoderConfig and of Disentangled that v1 and v2 have in common."""
    refuse_other(raw, _FIXED)
    values = take(raw, {**_KEYS, "max_position_embeddings": "max_length"}, _DEFAULTS)
    max_length = values.pop("max_length")
    far = setting(raw, "max_relative_positions", -1)
    span = (far if far >= 1 else max_length) if raw.get("relative_attention") else 0
    width = setting(raw, "embedding_size", values["width"])
    values |= {"embedding_width": width if width != values["width"] else 0, "project_first": True}
    positions = {
        "max_length": max_length,
        "span": span,
        "terms": _terms(raw),
        "rows": max_length if setting(raw, "position_biased_input", True) else 0,
    }
    return values, positions


def _read_first(raw: Mapping[str, Any]) -> EncoderConfig:
    values, positions = _common(raw)
    return EncoderConfig(**values, positions=Disentangled(**positions), biases=_FIRST_BIASES)


def _read_second(raw: Mapping[str, Any]) -> EncoderConfig:
    values, positions = _common(raw)
    if (buckets := setting(raw, "position_buckets", -1)) > 0 and positions["span"]:
        positions |= {"span": buckets, "far": positions["span"]}
    positions |= {
        "shared": bool(setting(raw, "share_att_key", False)),
        "norm": "layer_norm" in str(setting(raw, "norm_rel_ebd", "none")).lower(),
    }
    return EncoderConfig(
        **values,
        positions=Disentangled(**positions),
        convolution=raw.get("conv_kernel_size") or 0,
        convolution_activation=activation_of(raw, "conv_act", "tanh"),
    )


def _write(config: EncoderConfig) -> dict[str, Any]:
    positions = config.positions
    assert isinstance(positions, Disentangled)
    values = give(config, _KEYS)
    return values | {
        "embedding_size": config.table_width,
        "relative_attention": positions.span > 0,
        "position_biased_input": positions.rows > 0,
        "pos_att_type": list(positions.terms),
        "max_position_embeddings": positions.max_length,
        "max_relative_positions": positions.far or positions.span or -1,
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


def _fresh(shape: EncoderConfig, positions: Disentangled, biases: tuple[Bias, ...] = BIASES) -> EncoderConfig:
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


def _pooler(config: ModelConfig) -> "heads.Pooler":
    activation, width = activation_of(config.hf_config, "pooler_hidden_act"), config.encoder.width
    if setting(config.hf_config, "pooler_hidden_size", width) != width:
        raise unsupported("pooler_hidden_size", config.hf_config["pooler_hidden_size"], f"expected {width}, the width")
    return heads.Pooler(config.encoder, activation, float(setting(config.hf_config, "pooler_dropout", 0.0)))


HEADS = {
    "replaced": Head(  # replaced token detection of v3; transformers has no class for it
        lambda c: heads.DenseHead(c.encoder, 1, c.encoder.activation, norm="before"),
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
    sign="encoder.layer.0.attention.self.in_proj.weight",
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
    fresh=lambda shape: _fresh(shape, Disentangled(shape.max_length, shape.max_length), _FIRST_BIASES),
    architectures=architectures("Deberta", HEADS),
    ignored=("embeddings.position_ids",),
    tied=bert.FAMILY.tied,
    renamed=_NEW_MASKED,
    narrow_embeddings=True,
)

SECOND = Family(
    name="deberta-v2",
    sign="encoder.layer.0.attention.self.query_proj.weight",
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
        shape, Disentangled(shape.max_length, shape.max_length // 2, shape.max_length, shared=True, norm=True)
    ),
    architectures=architectures("DebertaV2", HEADS),
    ignored=("embeddings.position_ids",),
    tied=bert.FAMILY.tied,
    renamed=_NEW_MASKED,
    narrow_embeddings=True,
)
