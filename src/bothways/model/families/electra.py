"""ELECTRA: BERT with narrower embeddings, pretrained by replaced token detection."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bothways.model.config import EncoderConfig, Learned, ModelConfig
from bothways.model.families import bert
from bothways.model.families.family import (
    Family,
    Head,
    activation_of,
    architectures,
    dense_classifier,
    dropout_of,
    heads,
    linear,
    masked_head,
    setting,
    take,
    unsupported,
)

_DEFAULTS = bert.DEFAULTS | {"embedding_size": 128}


def read_config(raw: Mapping[str, Any]) -> EncoderConfig:
    """Their config.json → ours."""
    bert.refuse(raw)
    values = take(raw, {**bert.KEYS, "embedding_size": "embedding_width", "max_position_embeddings": "rows"}, _DEFAULTS)
    if values["embedding_width"] == values["width"]:
        values["embedding_width"] = 0  # equal widths: no projection
    return EncoderConfig(positions=Learned(values.pop("rows")), **values)


def write_config(config: EncoderConfig) -> dict[str, Any]:
    """Ours → their config.json."""
    return bert.write_config(config) | {"embedding_size": config.table_width}


def _dense(config: ModelConfig) -> "heads.DenseHead":
    dropout = dropout_of(config)
    return heads.DenseHead(config.encoder, len(config.labels), "gelu", (dropout, dropout))


def _choice(config: ModelConfig) -> "heads.DenseHead":
    """The multiple-choice head. Other summaries than that of the first token would depend on the padding of a batch."""
    raw = config.hf_config
    for key, expected in {"summary_type": "first", "summary_use_proj": True}.items():
        if setting(raw, key, expected) != expected:
            raise unsupported(key, raw[key], f"only {expected!r} is supported for multiple choice")
    # null means no activation, a missing key GELU.
    activation = activation_of(raw, "summary_activation", "linear" if "summary_activation" in raw else "gelu")
    dropouts = (float(setting(raw, key, 0.0)) for key in ("summary_first_dropout", "summary_last_dropout"))
    return heads.DenseHead(config.encoder, 1, activation, (next(dropouts), next(dropouts)))


_HEADS = {
    "replaced": Head(
        lambda c: heads.DenseHead(c.encoder, 1, c.encoder.activation),
        (
            *linear("discriminator_predictions.dense", "heads.replaced.dense"),
            *linear("discriminator_predictions.dense_prediction", "heads.replaced.linear"),
        ),
    ),
    "masked": masked_head(
        "generator_predictions.dense",
        "generator_predictions.LayerNorm",
        "generator_lm_head.bias",
        "generator_lm_head.weight",
        "gelu",
    ),
    "sequence": dense_classifier(_dense),
    "token": bert.HEADS["token"],
    "choice": Head(
        _choice,
        (
            *linear("sequence_summary.summary", "heads.choice.dense"),
            *linear("classifier", "heads.choice.linear"),
        ),
        reads="first",
    ),
    "span": bert.HEADS["span"],
}

FAMILY = Family(
    name="electra",
    prefix="electra.",
    read_config=read_config,
    write_config=write_config,
    body=(*bert.EMBEDDINGS, *linear("embeddings_project", "encoder.embeddings.project"), *bert.LAYERS),
    fresh=lambda shape: replace(
        shape, embedding_width=0 if shape.embedding_width == shape.width else shape.embedding_width
    ),
    heads=_HEADS,
    architectures=architectures("Electra", _HEADS, {"PreTraining": {"replaced"}}),
    ignored=("embeddings.position_ids",),
    tied={"generator_lm_head.weight": "embeddings.word_embeddings.weight"},
    narrow_embeddings=True,
    renamed=bert.FAMILY.renamed,
)
