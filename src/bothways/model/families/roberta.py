"""RoBERTa, XLM-R and CamemBERT: BERT with positions from pad_token_id + 1, one segment, a two-layer classifier."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bothways.model.config import EncoderConfig, Learned, ModelConfig
from bothways.model.families import bert
from bothways.model.families.family import (
    Family,
    architectures,
    dense_classifier,
    dropout_of,
    heads,
    masked_head,
    plain,
    take,
    unsupported,
)


def read_config(raw: Mapping[str, Any]) -> EncoderConfig:
    """Their config.json → ours."""
    bert.refuse(raw)
    values = take(raw, {**bert.KEYS, "max_position_embeddings": "rows"}, bert.DEFAULTS)
    pad = raw.get("pad_token_id", 1)
    if not isinstance(pad, int) or pad < 0:
        raise unsupported("pad_token_id", pad, "expected 0 or more, as positions are counted from it")
    return EncoderConfig(positions=Learned(values.pop("rows"), offset=pad + 1, skips_padding=True), **values)


def write_config(config: EncoderConfig) -> dict[str, Any]:
    """Ours → their config.json."""
    assert isinstance(config.positions, Learned)
    return bert.write_config(config) | {"pad_token_id": config.positions.offset - 1}


def fresh(shape: EncoderConfig) -> EncoderConfig:
    """The config of a new model. Its position table has two more rows than the longest input has tokens."""
    return replace(
        plain(shape), positions=Learned(shape.max_length + 2, 2, skips_padding=True), segments=1, norm_eps=1e-5
    )


def _dense(config: ModelConfig) -> "heads.DenseHead":
    dropout = dropout_of(config)
    return heads.DenseHead(config.encoder, len(config.labels), "tanh", (dropout, dropout))


HEADS = {
    "pooler": bert.HEADS["pooler"],
    # Its activation is always GELU, whatever that of the layers is.
    "masked": masked_head("lm_head.dense", "lm_head.layer_norm", "lm_head.bias", "lm_head.decoder.weight", "gelu"),
    "sequence": dense_classifier(_dense),
    "token": bert.HEADS["token"],
    "choice": bert.HEADS["choice"],
    "span": bert.HEADS["span"],
}


def family(name: str, classes: str) -> Family:
    """One of the three families, which differ in their tokenizers only."""
    return Family(
        name=name,
        prefix="roberta.",
        read_config=read_config,
        write_config=write_config,
        body=bert.BODY,
        heads=HEADS,
        fresh=fresh,
        architectures=architectures(classes, HEADS),
        ignored=("embeddings.position_ids",),
        tied={
            "lm_head.decoder.weight": "embeddings.word_embeddings.weight",
            "lm_head.decoder.bias": "lm_head.bias",
        },
        renamed=bert.FAMILY.renamed,
    )


FAMILIES = (family("roberta", "Roberta"), family("xlm-roberta", "XLMRoberta"), family("camembert", "Camembert"))
