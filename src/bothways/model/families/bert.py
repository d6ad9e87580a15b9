"""BERT: post-norm, learned positions, two segments, exact GELU, tanh pooler, tied masked-word head."""

from collections.abc import Mapping
from typing import Any

from bothways.errors import BothwaysError
from bothways.model.config import EncoderConfig, Learned, ModelConfig
from bothways.model.families.family import Family, Head, Row
from bothways.model.heads import Classifier, MaskedHead, Pooler

# Settings that change what the model computes and that no published BERT uses, with the value we can read.
_FIXED: dict[str, tuple[Any, ...]] = {
    "position_embedding_type": ("absolute",),
    "add_cross_attention": (False,),
    "pruned_heads": ({},),
    "tie_word_embeddings": (True,),
}

_KEYS = {
    "vocab_size": "vocabulary",
    "hidden_size": "width",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "intermediate_size": "hidden",
    "hidden_act": "activation",
    "type_vocab_size": "segments",
    "layer_norm_eps": "norm_eps",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "initializer_range": "init_std",
    "is_decoder": "causal",
}
# Google's bert_config.json leaves these out.
_MAY_MISS = {
    "layer_norm_eps",
    "initializer_range",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "is_decoder",
}


def read_config(raw: Mapping[str, Any]) -> EncoderConfig:
    """Their config.json → ours."""
    for key, allowed in _FIXED.items():
        if key in raw and raw[key] is not None and raw[key] not in allowed:
            raise BothwaysError(f"config.json has {key} = {raw[key]!r}, and only {allowed[0]!r} can be read here")
    own = raw.get("classifier_dropout")
    if own is not None and not (isinstance(own, int | float) and 0 <= own < 1):
        raise BothwaysError(f"config.json has classifier_dropout = {own!r}, and a number from 0 up to 1 was expected")
    missing = [key for key in [*_KEYS, "max_position_embeddings"] if key not in raw and key not in _MAY_MISS]
    if missing:
        raise BothwaysError(f"config.json has no {', '.join(missing)}")
    values = {ours: raw[theirs] for theirs, ours in _KEYS.items() if theirs in raw}
    return EncoderConfig(**values, positions=Learned(raw["max_position_embeddings"]))


def write_config(config: EncoderConfig) -> dict[str, Any]:
    """Ours → their config.json."""
    values = {theirs: getattr(config, ours) for theirs, ours in _KEYS.items()}
    return values | {"max_position_embeddings": config.positions.rows}


def _linear(theirs: str, ours: str) -> tuple[Row, Row]:
    return Row(f"{theirs}.weight", f"{ours}.weight"), Row(f"{theirs}.bias", f"{ours}.bias")


def _stacked(theirs: str, names: tuple[str, ...], ours: str) -> tuple[Row, Row]:
    weights, biases = ([f"{theirs}.{name}.{kind}" for name in names] for kind in ("weight", "bias"))
    return Row(tuple(weights), f"{ours}.weight"), Row(tuple(biases), f"{ours}.bias")


BODY = (
    Row("embeddings.word_embeddings.weight", "encoder.embeddings.tokens.weight"),
    Row("embeddings.token_type_embeddings.weight", "encoder.embeddings.segments.weight"),
    Row("embeddings.position_embeddings.weight", "encoder.embeddings.positions.rows.weight"),
    *_linear("embeddings.LayerNorm", "encoder.embeddings.norm"),
    *_stacked("encoder.layer.{}.attention.self", ("query", "key", "value"), "encoder.blocks.{}.attention.qkv"),
    *_linear("encoder.layer.{}.attention.output.dense", "encoder.blocks.{}.attention.out"),
    *_linear("encoder.layer.{}.attention.output.LayerNorm", "encoder.blocks.{}.attention_norm"),
    *_linear("encoder.layer.{}.intermediate.dense", "encoder.blocks.{}.feed_forward.up"),
    *_linear("encoder.layer.{}.output.dense", "encoder.blocks.{}.feed_forward.down"),
    *_linear("encoder.layer.{}.output.LayerNorm", "encoder.blocks.{}.feed_forward_norm"),
)


def _dropout(config: ModelConfig) -> float:
    own = config.foreign.get("classifier_dropout")
    return own if isinstance(own, int | float) else config.encoder.dropout


def _labelled(config: ModelConfig) -> Classifier:
    return Classifier(config.encoder, len(config.labels), _dropout(config))


_CLASSIFIER = "classifier"  # three of their heads use this one name; config.json's "architectures" tells them apart

HEADS = {
    "pooler": Head(lambda c: Pooler(c.encoder), _linear("pooler.dense", "heads.pooler.dense"), in_body=True),
    "masked": Head(
        lambda c: MaskedHead(c.encoder),
        (
            *_linear("cls.predictions.transform.dense", "heads.masked.dense"),
            *_linear("cls.predictions.transform.LayerNorm", "heads.masked.norm"),
            Row("cls.predictions.bias", "heads.masked.bias"),
        ),
    ),
    "next": Head(
        lambda c: Classifier(c.encoder, 2, 0.0),
        _linear("cls.seq_relationship", "heads.next.linear"),
        reads_summary=True,
        needs=("pooler",),
    ),
    "sequence": Head(
        _labelled,
        _linear(_CLASSIFIER, "heads.sequence.linear"),
        reads_summary=True,
        has_labels=True,
        needs=("pooler",),
    ),
    "token": Head(_labelled, _linear(_CLASSIFIER, "heads.token.linear"), has_labels=True),
    "choice": Head(
        lambda c: Classifier(c.encoder, 1, _dropout(c)),
        _linear(_CLASSIFIER, "heads.choice.linear"),
        reads_summary=True,
        needs=("pooler",),
    ),
    "span": Head(lambda c: Classifier(c.encoder, 2, 0.0), _linear("qa_outputs", "heads.span.linear")),
}

FAMILY = Family(
    name="bert",
    prefix="bert.",
    read_config=read_config,
    write_config=write_config,
    body=BODY,
    heads=HEADS,
    architectures=(
        ("BertForSequenceClassification", frozenset({"pooler", "sequence"})),
        ("BertForTokenClassification", frozenset({"token"})),
        ("BertForQuestionAnswering", frozenset({"span"})),
        ("BertForMultipleChoice", frozenset({"pooler", "choice"})),
        ("BertForPreTraining", frozenset({"pooler", "masked", "next"})),
        ("BertForNextSentencePrediction", frozenset({"pooler", "next"})),
        ("BertForMaskedLM", frozenset({"masked"})),
        ("BertModel", frozenset({"pooler"})),
        ("BertModel", frozenset()),
    ),
    ignored=("embeddings.position_ids",),
    tied={
        "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    renamed={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
)
