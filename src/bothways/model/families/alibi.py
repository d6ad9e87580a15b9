"""Jina BERT v2 and MosaicBERT (DNABERT-2): BERT with ALiBi and gated layers. Both have the type bert."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bothways.model.config import Alibi, Bias, EncoderConfig, ModelConfig
from bothways.model.families import bert
from bothways.model.families.family import (
    Family,
    Head,
    KeyRow,
    activation_of,
    architectures,
    give,
    heads,
    is_tied,
    linear,
    plain,
    refuse_other,
    setting,
    take,
    unsupported,
)

_KEYS = {theirs: ours for theirs, ours in bert.KEYS.items() if theirs not in ("is_decoder", "hidden_act")}
_BIASES: tuple[Bias, ...] = ("query", "key", "value", "out", "down")
_GATES = {"geglu": "gelu", "reglu": "relu"}


def _read(raw: Mapping[str, Any], activation: str) -> EncoderConfig:
    values = take(raw, {**_KEYS, "max_position_embeddings": "rows"}, bert.DEFAULTS)
    positions = Alibi(values.pop("rows"))
    return EncoderConfig(positions=positions, activation=activation, gated="first", biases=_BIASES, **values)


def _read_jina(raw: Mapping[str, Any]) -> EncoderConfig:
    refuse_other(raw, {"position_embedding_type": ("alibi",), "is_decoder": (False,)})
    gate = setting(raw, "feed_forward_type", "original")
    if gate not in _GATES:
        raise unsupported("feed_forward_type", gate, f"expected one of {', '.join(_GATES)}")
    return _read(raw, _GATES[gate])


def _read_mosaic(raw: Mapping[str, Any]) -> EncoderConfig:
    """Its GELU and the eps of the masked language modelling head are not settings."""
    refuse_other(raw, {"layer_norm_eps": (1e-12,), "is_decoder": (False,)})
    return _read(raw, "gelu")


def _write(config: EncoderConfig) -> dict[str, Any]:
    return give(config, _KEYS) | {"max_position_embeddings": config.max_length}


def _write_jina(config: EncoderConfig) -> dict[str, Any]:
    gates = {activation: gate for gate, activation in _GATES.items()}
    return _write(config) | {"position_embedding_type": "alibi", "feed_forward_type": gates[config.activation]}


def _masked(config: ModelConfig) -> "heads.MaskedLMHead":
    """The activation of this head is a setting, that of the layers is not."""
    return heads.MaskedLMHead(config.encoder, activation_of(config.hf_config, "hidden_act"), tied=is_tied(config))


def _fresh(shape: EncoderConfig) -> EncoderConfig:
    return replace(
        plain(shape),
        positions=Alibi(shape.max_length),
        activation="gelu",
        gated="first",
        biases=_BIASES,
        norm_eps=1e-12,
    )


_LAYER, _BLOCK = "encoder.layer.{}", "encoder.blocks.{}"
_FEED_FORWARD = (
    *linear(f"{_LAYER}.attention.output.dense", f"{_BLOCK}.attention.out"),
    *linear(f"{_LAYER}.attention.output.LayerNorm", f"{_BLOCK}.attention_norm"),
    KeyRow(f"{_LAYER}.mlp.gated_layers.weight", f"{_BLOCK}.feed_forward.up.weight"),
    *linear(f"{_LAYER}.mlp.wo", f"{_BLOCK}.feed_forward.down"),
    *linear(f"{_LAYER}.mlp.layernorm", f"{_BLOCK}.feed_forward_norm"),
)
_JINA_HEADS = {**bert.HEADS, "masked": Head(_masked, bert.HEADS["masked"].rows)}
_MOSAIC_ROWS = tuple(
    replace(row, theirs="cls.predictions.decoder.bias") if row.ours == "heads.masked.bias" else row
    for row in bert.HEADS["masked"].rows
)
_MOSAIC_HEADS = {
    "pooler": bert.HEADS["pooler"],
    "masked": Head(_masked, _MOSAIC_ROWS),
    "sequence": bert.HEADS["sequence"],
}

JINA = Family(
    name="jina-bert-v2",
    model_type="bert",
    sign="encoder.layer.0.mlp.wo.weight",
    prefix="bert.",
    read_config=_read_jina,
    write_config=_write_jina,
    body=(*bert.EMBEDDINGS, *bert.LAYERS[:2], *_FEED_FORWARD),
    fresh=_fresh,
    heads=_JINA_HEADS,
    architectures=architectures(
        "JinaBert",
        _JINA_HEADS,
        {"PreTraining": {"pooler", "masked", "next"}, "NextSentencePrediction": {"pooler", "next"}},
    ),
    ignored=("embeddings.position_ids",),
    tied=bert.FAMILY.tied,
)
MOSAIC = Family(
    name="mosaic-bert",
    model_type="bert",
    sign="encoder.layer.0.attention.self.Wqkv.weight",
    prefix="bert.",
    read_config=_read_mosaic,
    write_config=_write,
    body=(*bert.EMBEDDINGS, *linear(f"{_LAYER}.attention.self.Wqkv", f"{_BLOCK}.attention.qkv"), *_FEED_FORWARD),
    fresh=_fresh,
    heads=_MOSAIC_HEADS,
    architectures=architectures("Bert", _MOSAIC_HEADS),
    ignored=("embeddings.position_ids", "encoder.alibi"),
    tied={"cls.predictions.decoder.weight": "embeddings.word_embeddings.weight"},
)
