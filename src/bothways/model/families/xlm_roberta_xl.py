"""XLM-RoBERTa-XL and XXL: pre-norm, with a final norm instead of one of the embeddings."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bothways.model.config import EncoderConfig
from bothways.model.families import bert, roberta
from bothways.model.families.family import architectures, linear

_LAYER, _BLOCK = "encoder.layer.{}", "encoder.blocks.{}"


def _pre_norm(shape: EncoderConfig) -> EncoderConfig:
    return replace(shape, norm_first=True, embedding_norm=False, final_norm=True)


def read_config(raw: Mapping[str, Any]) -> EncoderConfig:
    """Their config.json → ours."""
    given = {key: value for key, value in raw.items() if value is not None}
    return _pre_norm(roberta.read_config({"type_vocab_size": 1, "layer_norm_eps": 1e-5, **given}))


FAMILY = replace(
    roberta.family("xlm-roberta-xl", "XLMRobertaXL"),
    sign="encoder.layer.0.attention.self_attn_layer_norm.weight",
    read_config=read_config,
    body=(
        *bert.EMBEDDINGS,
        *linear(f"{_LAYER}.attention.self_attn_layer_norm", f"{_BLOCK}.attention_norm"),
        *bert.LAYERS[:4],
        *linear(f"{_LAYER}.LayerNorm", f"{_BLOCK}.feed_forward_norm"),
        *linear(f"{_LAYER}.intermediate.dense", f"{_BLOCK}.feed_forward.up"),
        *linear(f"{_LAYER}.output.dense", f"{_BLOCK}.feed_forward.down"),
        *linear("encoder.LayerNorm", "encoder.norm"),
    ),
    fresh=lambda shape: _pre_norm(roberta.fresh(shape)),
    architectures=architectures("XLMRobertaXL", roberta.HEADS),
)
