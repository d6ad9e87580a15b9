"""NomicBERT: post-norm, rotary positions, SwiGLU, no biases. config.json has nomic's keys, transformers', or both."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bothways.model.config import EncoderConfig, Rotary
from bothways.model.families import bert
from bothways.model.families.family import (
    Family,
    Head,
    KeyRow,
    architectures,
    give,
    heads,
    is_tied,
    linear,
    modules,
    plain,
    read_rotary,
    refuse_other,
    setting,
    take,
    unsupported,
    write_rotary,
)

_NATIVE = {theirs: ours for theirs, ours in bert.KEYS.items() if theirs != "is_decoder"}
_NATIVE_DEFAULTS = bert.DEFAULTS | {
    "hidden_act": "silu",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
_PUBLISHED = {
    "vocab_size": "vocab_size",
    "n_embd": "width",
    "n_layer": "layers",
    "n_head": "num_heads",
    "n_inner": "ffn_width",
    "type_vocab_size": "segments",
    "layer_norm_epsilon": "norm_eps",
    "resid_pdrop": "dropout",
    "attn_pdrop": "attention_dropout",
    "initializer_range": "init_std",
}
_PUBLISHED_DEFAULTS = {
    "type_vocab_size": 2,
    "layer_norm_epsilon": 1e-5,
    "resid_pdrop": 0.1,
    "attn_pdrop": 0.1,
    "initializer_range": 0.02,
}
_GATES = {"swiglu": "silu", "geglu": "gelu", "glu": "sigmoid"}
# Missing keys mean other values in nomic's code: these must be there.
_REQUIRED: dict[str, Any] = {
    "rotary_emb_fraction": 1.0,
    "qkv_proj_bias": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
}
_FIXED: dict[str, tuple[Any, ...]] = {
    "prenorm": (False,),
    "parallel_block": (False,),
    "causal": (False,),
    "use_rms_norm": (False,),
    "rotary_emb_interleaved": (False,),
    "norm_mlp": (False,),
    "num_experts": (0, 1),
    "moe_every_n_layers": (0,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "scale_attn_weights": (True,),
}
_BASE = 1_000.0
_TRAINED = 2_048


def read_config(raw: Mapping[str, Any]) -> EncoderConfig:
    """Their config.json → ours. If it has the keys of both forms, transformers' count."""
    if setting(raw, "hidden_size", None) is None:
        return _read_published(raw)
    refuse_other(raw, {})
    values = take(raw, {**_NATIVE, "max_position_embeddings": "rows"}, _NATIVE_DEFAULTS)
    positions, width = read_rotary(raw, values.pop("rows"), _BASE), values["width"] // values["num_heads"]
    if setting(raw, "head_dim", width) != width:
        raise unsupported("head_dim", raw["head_dim"], f"expected {width}, the width of a head")
    return EncoderConfig(positions=positions, gated="first", biases=(), **values)


def _read_published(raw: Mapping[str, Any]) -> EncoderConfig:
    refuse_other(raw, _FIXED)
    for key, expected in _REQUIRED.items():
        if raw.get(key) != expected:
            raise unsupported(key, raw.get(key), f"only {expected!r} is supported")
    if raw.get("rotary_emb_scale_base") is not None:
        raise unsupported("rotary_emb_scale_base", raw["rotary_emb_scale_base"], "only null is supported")
    values = take(raw, {**_PUBLISHED, "n_positions": "rows"}, _PUBLISHED_DEFAULTS)
    rows, gate = values.pop("rows"), raw.get("activation_function")
    if gate not in _GATES:
        raise unsupported("activation_function", gate, f"expected one of {', '.join(_GATES)}")
    if raw.get("rotary_scaling_factor"):
        # Dynamic scaling makes a text's vectors depend on the longest text of its batch. So texts longer than those of
        # the training are read in windows instead.
        rows = min(rows, setting(raw, "max_trained_positions", _TRAINED))
    base = float(setting(raw, "rotary_emb_base", _BASE))
    return EncoderConfig(
        positions=Rotary(rows, base, base), activation=_GATES[gate], gated="first", biases=(), **values
    )


def write_config(config: EncoderConfig) -> dict[str, Any]:
    """Ours → their config.json, with the keys of both forms."""
    assert isinstance(config.positions, Rotary)
    gates = {activation: gate for gate, activation in _GATES.items()}
    return (
        give(config, _PUBLISHED)
        | {"n_positions": config.max_length, "max_trained_positions": config.max_length, "rotary_scaling_factor": None}
        | {"rotary_emb_base": config.positions.base, "activation_function": gates.get(config.activation)}
        | _REQUIRED
        | give(config, _NATIVE)
        | {"max_position_embeddings": config.max_length, "rope_parameters": write_rotary(config.positions)}
        | {"head_dim": config.head_width}
    )


_HEADS = {
    "pooler": bert.HEADS["pooler"],
    "masked": Head(
        lambda c: heads.MaskedLMHead(c.encoder, tied=is_tied(c)),
        (
            KeyRow("cls.predictions.transform.dense.weight", "heads.masked.dense.weight"),
            *linear("cls.predictions.transform.layer_norm", "heads.masked.norm"),
            # nomic's own head has no biases, transformers' has.
            KeyRow("cls.predictions.transform.dense.bias", "heads.masked.dense.bias", is_optional=True),
            KeyRow("cls.predictions.bias", "heads.masked.bias", is_optional=True),
            KeyRow("cls.predictions.decoder.weight", "heads.masked.decoder.weight"),
        ),
    ),
    "sequence": bert.HEADS["sequence"],
    "token": bert.HEADS["token"],
}
_LAYER, _BLOCK = "encoder.layers.{}", "encoder.blocks.{}"

FAMILY = Family(
    name="nomic_bert",
    prefix="nomic_bert.",
    read_config=read_config,
    write_config=write_config,
    body=(
        KeyRow("embeddings.word_embeddings.weight", "encoder.embeddings.tokens.weight"),
        KeyRow("embeddings.token_type_embeddings.weight", "encoder.embeddings.segments.weight"),
        *linear("emb_ln", "encoder.embeddings.norm"),
        KeyRow(f"{_LAYER}.attn.Wqkv.weight", f"{_BLOCK}.attention.qkv.weight"),
        KeyRow(f"{_LAYER}.attn.out_proj.weight", f"{_BLOCK}.attention.out.weight"),
        *linear(f"{_LAYER}.norm1", f"{_BLOCK}.attention_norm"),
        KeyRow((f"{_LAYER}.mlp.fc12.weight", f"{_LAYER}.mlp.fc11.weight"), f"{_BLOCK}.feed_forward.up.weight"),
        KeyRow(f"{_LAYER}.mlp.fc2.weight", f"{_BLOCK}.feed_forward.down.weight"),
        *linear(f"{_LAYER}.norm2", f"{_BLOCK}.feed_forward_norm"),
    ),
    fresh=lambda shape: replace(
        plain(shape), positions=Rotary(shape.max_length, _BASE, _BASE), activation="silu", gated="first", biases=()
    ),
    heads=_HEADS,
    architectures=(
        *architectures("NomicBert", _HEADS),
        ("NomicBertForPreTraining", frozenset({"masked"})),  # nomic's name of its ForMaskedLM
    ),
    ignored=("*.inv_freq",),
    tied={
        "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    other_prefixes=("bert.",),
    modules=modules(("gate_proj", "up_proj")),
)
