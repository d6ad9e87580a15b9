"""BERT: post-norm, learned positions, two segments, exact GELU, tanh pooler, tied masked language modelling head."""

from collections.abc import Mapping
from typing import Any

from bothways.model.config import EncoderConfig, Learned
from bothways.model.families.family import (
    Family,
    Head,
    KeyRow,
    architectures,
    classifiers,
    give,
    heads,
    linear,
    masked_head,
    plain,
    refuse_other,
    stacked,
    take,
)

# Settings that change what the model computes, with the values that we support: no published BERT has others.
_FIXED: dict[str, tuple[Any, ...]] = {
    "position_embedding_type": ("absolute",),
    "add_cross_attention": (False,),
    "pruned_heads": ({},),
}

KEYS = {
    "vocab_size": "vocab_size",
    "hidden_size": "width",
    "num_hidden_layers": "layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "ffn_width",
    "hidden_act": "activation",
    "type_vocab_size": "segments",
    "layer_norm_eps": "norm_eps",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "initializer_range": "init_std",
    "is_decoder": "causal",
}
# What a config.json without these keys means. Google's bert_config.json leaves some of them out.
DEFAULTS: dict[str, Any] = {
    "hidden_act": "gelu",
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.02,
    "is_decoder": False,
}


def refuse(raw: Mapping[str, Any]) -> None:
    """Refuse a config.json with settings that we do not support."""
    refuse_other(raw, _FIXED)


def read_config(raw: Mapping[str, Any]) -> EncoderConfig:
    """Their config.json → ours."""
    refuse(raw)
    values = take(raw, {**KEYS, "max_position_embeddings": "rows"}, DEFAULTS)
    return EncoderConfig(positions=Learned(values.pop("rows")), **values)


def write_config(config: EncoderConfig) -> dict[str, Any]:
    """Ours → their config.json."""
    assert isinstance(config.positions, Learned)
    values = give(config, KEYS)
    return values | {"max_position_embeddings": config.positions.rows}


EMBEDDINGS = (
    KeyRow("embeddings.word_embeddings.weight", "encoder.embeddings.tokens.weight"),
    KeyRow("embeddings.token_type_embeddings.weight", "encoder.embeddings.segments.weight"),
    KeyRow("embeddings.position_embeddings.weight", "encoder.embeddings.positions.rows.weight"),
    *linear("embeddings.LayerNorm", "encoder.embeddings.norm"),
)
LAYERS = (
    *stacked("encoder.layer.{}.attention.self", ("query", "key", "value"), "encoder.blocks.{}.attention.qkv"),
    *linear("encoder.layer.{}.attention.output.dense", "encoder.blocks.{}.attention.out"),
    *linear("encoder.layer.{}.attention.output.LayerNorm", "encoder.blocks.{}.attention_norm"),
    *linear("encoder.layer.{}.intermediate.dense", "encoder.blocks.{}.feed_forward.up"),
    *linear("encoder.layer.{}.output.dense", "encoder.blocks.{}.feed_forward.down"),
    *linear("encoder.layer.{}.output.LayerNorm", "encoder.blocks.{}.feed_forward_norm"),
)
BODY = (*EMBEDDINGS, *LAYERS)


HEADS = {
    "pooler": Head(lambda c: heads.Pooler(c.encoder), linear("pooler.dense", "heads.pooler.dense"), in_body=True),
    "masked": masked_head(
        "cls.predictions.transform.dense",
        "cls.predictions.transform.LayerNorm",
        "cls.predictions.bias",
        "cls.predictions.decoder.weight",
    ),
    "next": Head(
        lambda c: heads.LinearHead(c.encoder, 2, 0.0),
        linear("cls.seq_relationship", "heads.next.linear"),
        reads="pooled",
        needs=("pooler",),
    ),
    **classifiers("classifier_dropout", "classifier_dropout"),
    "span": Head(lambda c: heads.LinearHead(c.encoder, 2, 0.0), linear("qa_outputs", "heads.span.linear")),
}

FAMILY = Family(
    name="bert",
    prefix="bert.",
    read_config=read_config,
    write_config=write_config,
    body=BODY,
    heads=HEADS,
    fresh=plain,
    architectures=architectures(
        "Bert", HEADS, {"PreTraining": {"pooler", "masked", "next"}, "NextSentencePrediction": {"pooler", "next"}}
    ),
    ignored=("embeddings.position_ids",),
    tied={
        "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    renamed={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
)
