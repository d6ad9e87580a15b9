"""DistilBERT: BERT with half of the layers, without segments and pooler, under other tensor names."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bothways.model.config import EncoderConfig, Learned
from bothways.model.families.family import (
    Family,
    Head,
    KeyRow,
    architectures,
    dropout_of,
    give,
    heads,
    linear,
    masked_head,
    plain,
    refuse_other,
    stacked,
    take,
)

_FIXED: dict[str, tuple[Any, ...]] = {"pruned_heads": ({},)}
_DEFAULTS = {"activation": "gelu", "dropout": 0.1, "attention_dropout": 0.1, "initializer_range": 0.02}
_KEYS = {
    "vocab_size": "vocab_size",
    "dim": "width",
    "n_layers": "layers",
    "n_heads": "num_heads",
    "hidden_dim": "ffn_width",
    "activation": "activation",
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "initializer_range": "init_std",
}


def read_config(raw: Mapping[str, Any]) -> EncoderConfig:
    """Their config.json → ours. The file does not give the eps of LayerNorm: it is BERT's."""
    refuse_other(raw, _FIXED)
    values = take(raw, {**_KEYS, "max_position_embeddings": "rows"}, _DEFAULTS)
    return EncoderConfig(positions=Learned(values.pop("rows")), segments=0, norm_eps=1e-12, **values)


def write_config(config: EncoderConfig) -> dict[str, Any]:
    """Ours → their config.json."""
    assert isinstance(config.positions, Learned)
    values = give(config, _KEYS)
    return values | {"max_position_embeddings": config.positions.rows}


_LAYER, _BLOCK = "transformer.layer.{}", "encoder.blocks.{}"

_HEADS = {
    "masked": masked_head("vocab_transform", "vocab_layer_norm", "vocab_projector.bias", "vocab_projector.weight"),
    "sequence": Head(
        lambda c: heads.DenseHead(c.encoder, len(c.labels), "relu", (0.0, dropout_of(c, "seq_classif_dropout"))),
        (*linear("pre_classifier", "heads.sequence.dense"), *linear("classifier", "heads.sequence.linear")),
        reads="first",
        has_labels=True,
    ),
    "token": Head(
        lambda c: heads.LinearHead(c.encoder, len(c.labels), c.encoder.dropout),
        linear("classifier", "heads.token.linear"),
        has_labels=True,
    ),
    "choice": Head(
        lambda c: heads.DenseHead(c.encoder, 1, "relu", (0.0, dropout_of(c, "seq_classif_dropout"))),
        (*linear("pre_classifier", "heads.choice.dense"), *linear("classifier", "heads.choice.linear")),
        reads="first",
    ),
    "span": Head(
        lambda c: heads.LinearHead(c.encoder, 2, dropout_of(c, "qa_dropout")), linear("qa_outputs", "heads.span.linear")
    ),
}

FAMILY = Family(
    name="distilbert",
    prefix="distilbert.",
    read_config=read_config,
    write_config=write_config,
    body=(
        KeyRow("embeddings.word_embeddings.weight", "encoder.embeddings.tokens.weight"),
        KeyRow("embeddings.position_embeddings.weight", "encoder.embeddings.positions.rows.weight"),
        *linear("embeddings.LayerNorm", "encoder.embeddings.norm"),
        *stacked(f"{_LAYER}.attention", ("q_lin", "k_lin", "v_lin"), f"{_BLOCK}.attention.qkv"),
        *linear(f"{_LAYER}.attention.out_lin", f"{_BLOCK}.attention.out"),
        *linear(f"{_LAYER}.sa_layer_norm", f"{_BLOCK}.attention_norm"),
        *linear(f"{_LAYER}.ffn.lin1", f"{_BLOCK}.feed_forward.up"),
        *linear(f"{_LAYER}.ffn.lin2", f"{_BLOCK}.feed_forward.down"),
        *linear(f"{_LAYER}.output_layer_norm", f"{_BLOCK}.feed_forward_norm"),
    ),
    fresh=lambda shape: replace(plain(shape), segments=0),
    heads=_HEADS,
    architectures=architectures("DistilBert", _HEADS),
    ignored=("embeddings.position_ids",),
    tied={"vocab_projector.weight": "embeddings.word_embeddings.weight"},
)
