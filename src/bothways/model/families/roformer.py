"""RoFormer: BERT with rotary positions, the first model that had them. It rotates adjacent dimensions."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bothways.lazy import Tensor, torch
from bothways.model.config import EncoderConfig, ModelConfig, Rotary
from bothways.model.families import bert
from bothways.model.families.family import (
    Family,
    architectures,
    dense_classifier,
    give,
    heads,
    linear,
    refuse_other,
    setting,
    take,
)

_FIXED: dict[str, tuple[Any, ...]] = {"rotary_value": (False,), "add_cross_attention": (False,)}
_BASE = 10_000.0


def _rotary(max_length: int) -> Rotary:
    return Rotary(max_length, _BASE, _BASE, in_64_bits=True, adjacent=True)


def read_config(raw: Mapping[str, Any]) -> EncoderConfig:
    """Their config.json → ours. Without embedding_size, embeddings are as wide as the layers."""
    refuse_other(raw, _FIXED)
    values = take(raw, {**bert.KEYS, "max_position_embeddings": "rows"}, bert.DEFAULTS)
    width = setting(raw, "embedding_size", values["width"])
    return EncoderConfig(
        positions=_rotary(values.pop("rows")),
        embedding_width=0 if width == values["width"] else width,
        **values,
    )


def write_config(config: EncoderConfig) -> dict[str, Any]:
    """Ours → their config.json."""
    values = give(config, bert.KEYS)
    return values | {"embedding_size": config.table_width, "max_position_embeddings": config.max_length}


def _classifier(config: ModelConfig) -> "heads.DenseHead":
    dropout = config.encoder.dropout
    return heads.DenseHead(config.encoder, len(config.labels), config.encoder.activation, (dropout, dropout))


def _sines(config: EncoderConfig) -> Tensor:
    """The table of sines and cosines that their files hold, (max_length, D)."""
    frequencies = _BASE ** -(torch.arange(0, config.head_width, 2, dtype=torch.float64) / config.head_width)
    angles = torch.arange(config.max_length, dtype=torch.float64)[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], 1).float()


# Without multiple choice: their class reads the last token of the padded batch.
_HEADS = {
    "masked": bert.HEADS["masked"],
    "sequence": dense_classifier(_classifier),
    "token": bert.HEADS["token"],
    "span": bert.HEADS["span"],
}

FAMILY = Family(
    name="roformer",
    prefix="roformer.",
    read_config=read_config,
    write_config=write_config,
    body=(*bert.EMBEDDINGS, *linear("embeddings_project", "encoder.embeddings.project"), *bert.LAYERS),
    fresh=lambda shape: replace(
        shape,
        positions=_rotary(shape.max_length),
        embedding_width=0 if shape.embedding_width == shape.width else shape.embedding_width,
    ),
    heads=_HEADS,
    architectures=architectures("RoFormer", _HEADS),
    computed={"encoder.embed_positions.weight": _sines},
    tied=bert.FAMILY.tied,
    renamed=bert.FAMILY.renamed,
    narrow_embeddings=True,
    unread_classes=("RoFormerForMultipleChoice",),
)
