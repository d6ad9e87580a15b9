"""ModernBERT: pre-norm, rotary positions, gated feed-forward, no biases, local attention in two of three layers."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bothways.model.config import EncoderConfig, ModelConfig, Rotary
from bothways.model.families.family import (
    Family,
    Head,
    KeyRow,
    Reads,
    activation_of,
    architectures,
    block_biases,
    dropout_of,
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

_DEFAULTS = {
    "hidden_activation": "gelu",
    "norm_eps": 1e-5,
    "norm_bias": False,
    "embedding_dropout": 0.0,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
}
_KEYS = {
    "vocab_size": "vocab_size",
    "hidden_size": "width",
    "num_hidden_layers": "layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "ffn_width",
    "hidden_activation": "activation",
    "norm_eps": "norm_eps",
    "norm_bias": "norm_bias",
    "embedding_dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "initializer_range": "init_std",
}
_GLOBAL, _LOCAL = "full_attention", "sliding_attention"


def read_config(raw: Mapping[str, Any]) -> EncoderConfig:
    """Their config.json → ours, in the form of transformers 4 or 5."""
    refuse_other(raw, {})
    values = take(raw, {**_KEYS, "max_position_embeddings": "max_length"}, _DEFAULTS)
    every = setting(raw, "global_attn_every_n_layers", 3)
    kinds = raw.get("layer_types") or [_LOCAL if n % every else _GLOBAL for n in range(values["layers"])]
    reach = setting(raw, "local_attention", 128) // 2
    if reach < 1 and _LOCAL in kinds:
        raise unsupported("local_attention", raw["local_attention"], "expected 2 or more")
    windows = tuple(reach if kind == _LOCAL else 0 for kind in kinds)
    positions = Rotary(
        values.pop("max_length"),
        _base(raw, _GLOBAL, raw.get("global_rope_theta") or 160_000.0),
        _base(raw, _LOCAL, raw.get("local_rope_theta") or 10_000.0),
    )
    return EncoderConfig(
        positions=positions,
        segments=0,
        gated="first",
        norm_first=True,
        first_norm=False,
        final_norm=True,
        biases=block_biases(raw),
        windows=windows,
        **values,
    )


def _base(raw: Mapping[str, Any], kind: str, usual: float) -> float:
    table = (raw.get("rope_parameters") or {}).get(kind) or {}
    if table.get("rope_type", "default") != "default":
        raise unsupported("rope_type", table["rope_type"], "only 'default' is supported")
    return float(table.get("rope_theta", usual))


def write_config(config: EncoderConfig) -> dict[str, Any]:
    """Ours → their config.json, in the form of transformers 5."""
    assert isinstance(config.positions, Rotary)
    values = give(config, _KEYS)
    bases = {_GLOBAL: config.positions.base, _LOCAL: config.positions.local_base}
    return values | {
        "max_position_embeddings": config.positions.max_length,
        "attention_bias": "out" in config.biases,
        "mlp_bias": "up" in config.biases,
        "layer_types": [_LOCAL if reach else _GLOBAL for reach in config.windows or (0,) * config.layers],
        "local_attention": 2 * max(config.windows, default=0) or 128,
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()},
    }


def _fresh(shape: EncoderConfig) -> EncoderConfig:
    """The config of a new model, with windows of 128 tokens in two of three layers."""
    return replace(
        plain(shape),
        positions=Rotary(shape.max_length),
        segments=0,
        norm_eps=1e-5,
        gated="first",
        norm_first=True,
        first_norm=False,
        final_norm=True,
        norm_bias=False,
        biases=(),
        windows=tuple(64 if layer % 3 else 0 for layer in range(shape.layers)),
    )


def _activation(config: ModelConfig) -> str:
    """The activation of the heads."""
    return activation_of(config.hf_config, "classifier_activation")


def _classifier(outputs: int | None = None) -> Any:
    def build(config: ModelConfig) -> "heads.DenseHead":
        return heads.DenseHead(
            config.encoder,
            outputs or len(config.labels),
            _activation(config),
            (0.0, dropout_of(config)),
            norm="between",
            dense_bias=bool(config.hf_config.get("classifier_bias", False)),
        )

    return build


def _rows(name: str) -> tuple[KeyRow, ...]:
    return (
        *linear("head.dense", f"heads.{name}.dense"),
        *linear("head.norm", f"heads.{name}.norm"),
        *linear("classifier", f"heads.{name}.linear"),
    )


def _pooling(config: ModelConfig) -> Reads:
    return "mean" if config.hf_config.get("classifier_pooling") == "mean" else "first"


_HEADS = {
    "masked": Head(
        lambda c: heads.MaskedLMHead(
            c.encoder,
            _activation(c),
            dense_bias=bool(c.hf_config.get("classifier_bias", False)),
            tied=is_tied(c),
            bias=bool(setting(c.hf_config, "decoder_bias", True)),
        ),
        (
            *linear("head.dense", "heads.masked.dense"),
            *linear("head.norm", "heads.masked.norm"),
            KeyRow("decoder.bias", "heads.masked.bias"),
            KeyRow("decoder.weight", "heads.masked.decoder.weight"),
        ),
    ),
    "sequence": Head(_classifier(), _rows("sequence"), reads=_pooling, has_labels=True),
    "token": Head(_classifier(), _rows("token"), has_labels=True),
    "choice": Head(_classifier(1), _rows("choice"), reads=_pooling),
    # transformers has no class for it, but opens it as a token classifier with one label.
    "replaced": Head(_classifier(1), _rows("replaced"), labels=("replaced",)),
    "span": Head(_classifier(2), _rows("span")),
}

FAMILY = Family(
    name="modernbert",
    prefix="model.",
    read_config=read_config,
    write_config=write_config,
    body=(
        KeyRow("embeddings.tok_embeddings.weight", "encoder.embeddings.tokens.weight"),
        *linear("embeddings.norm", "encoder.embeddings.norm"),
        *linear("layers.{}.attn_norm", "encoder.blocks.{}.attention_norm"),
        *linear("layers.{}.attn.Wqkv", "encoder.blocks.{}.attention.qkv"),
        *linear("layers.{}.attn.Wo", "encoder.blocks.{}.attention.out"),
        *linear("layers.{}.mlp_norm", "encoder.blocks.{}.feed_forward_norm"),
        *linear("layers.{}.mlp.Wi", "encoder.blocks.{}.feed_forward.up"),
        *linear("layers.{}.mlp.Wo", "encoder.blocks.{}.feed_forward.down"),
        *linear("final_norm", "encoder.norm"),
    ),
    fresh=_fresh,
    heads=_HEADS,
    architectures=architectures("ModernBert", _HEADS, {"TokenClassification": {"replaced"}}),
    tied={"decoder.weight": "embeddings.tok_embeddings.weight"},
    poolings={"first": "cls", "mean": "mean"},
)
