"""NeoBERT (Le Breton et al. 2025, arXiv 2502.19587) as chandar-lab/NeoBERT publishes it.

    x = E[id]                                        no norm, no segments, no positions
    x = x + Wo attention(rms(x))                     rotary, adjacent pairs, base 10000; each head's rows of Wqkv are q, k, v
    x = x + W3 (silu(a) · b),  [a; b] = W12 rms(x)   of width 2/3 of intermediate_size, rounded up to a multiple of 8
    last = rms(x)

No linear layer of the body has a bias. The decoder is not tied and reads `last` itself. The sequence classifier is
classifier(tanh(dense(last[0]))). There is no pooler, and no published token classifier.
"""

import torch
from torch import Tensor

from . import Config, Shapes, State, attend, body_of, frequencies, label_count, linear, loud, rms_norm, rotate, silu
from . import weight_and_bias as pair


def config(**changes: object) -> Config:
    """A tiny config.json with every published key."""
    return {
        "architectures": ["NeoBERTLMHead"],
        "auto_map": {
            "AutoConfig": "model.NeoBERTConfig",
            "AutoModel": "model.NeoBERT",
            "AutoModelForMaskedLM": "model.NeoBERTLMHead",
            "AutoModelForSequenceClassification": "model.NeoBERTForSequenceClassification",
        },
        "classifier_init_range": 0.02,
        "decoder_init_range": 0.02,
        "dim_head": 8,
        "embedding_init_range": 0.02,
        "hidden_size": 24,
        "intermediate_size": 40,
        "kwargs": {"classifier_init_range": 0.02, "trust_remote_code": True},
        "max_length": 64,
        "model_type": "neobert",
        "norm_eps": 1e-05,
        "num_attention_heads": 3,
        "num_hidden_layers": 2,
        "pad_token_id": 0,
        "pretrained_model_name_or_path": "google-bert/bert-base-uncased",
        "torch_dtype": "float32",
        "transformers_version": "4.48.2",
        "trust_remote_code": True,
        "vocab_size": 40,
        **changes,
    }


def ffn_width(config: Config) -> int:
    """Two thirds of intermediate_size, rounded down, then up to a multiple of 8."""
    return -(-int(2 * config["intermediate_size"] / 3) // 8) * 8


def state(config: Config, heads: tuple[str, ...] = (), seed: int = 0) -> State:
    """Loud weights; "mlm" is what is published. Heads: "mlm", "sequence"."""
    width, vocabulary, ffn = config["hidden_size"], config["vocab_size"], ffn_width(config)
    prefix = "model." if heads else ""
    shapes: Shapes = {f"{prefix}encoder.weight": (vocabulary, width)}
    for i in range(config["num_hidden_layers"]):
        layer = f"{prefix}transformer_encoder.{i}"
        shapes[f"{layer}.qkv.weight"] = (3 * width, width)
        shapes[f"{layer}.wo.weight"] = (width, width)
        shapes[f"{layer}.ffn.w12.weight"] = (2 * ffn, width)
        shapes[f"{layer}.ffn.w3.weight"] = (width, ffn)
        shapes[f"{layer}.attention_norm.weight"] = (width,)
        shapes[f"{layer}.ffn_norm.weight"] = (width,)
    shapes[f"{prefix}layer_norm.weight"] = (width,)
    if "mlm" in heads:
        shapes |= pair("decoder", vocabulary, width)
    if "sequence" in heads:
        shapes |= pair("dense", width, width) | pair("classifier", label_count(config), width)
    return loud(shapes, seed)


def attention(config: Config, body: State, layer: str, x: Tensor) -> Tensor:
    """Attention of one layer over its normed input (N, W)."""
    heads = config["num_attention_heads"]
    size = config["hidden_size"] // heads
    freqs = frequencies(size, 10000.0)
    qkv = linear(body, f"{layer}.qkv", x)
    queries, keys, values = [], [], []
    for h in range(heads):
        q, k, v = qkv[:, h * 3 * size : (h + 1) * 3 * size].split(size, dim=1)
        queries.append(rotate(q, freqs, adjacent=True))
        keys.append(rotate(k, freqs, adjacent=True))
        values.append(v)
    return linear(body, f"{layer}.wo", attend(queries, keys, values))


def outputs(config: Config, state: State, ids: Tensor, segments: Tensor | None = None) -> dict[str, Tensor]:
    """The numbers of one sequence (N,). `segments` are not read; `hidden` is taken before the last norm."""
    body, eps = body_of(state, "model."), config["norm_eps"]
    x = body["encoder.weight"][ids]
    hidden = [x]
    for i in range(config["num_hidden_layers"]):
        layer = f"transformer_encoder.{i}"
        x = x + attention(config, body, layer, rms_norm(body, f"{layer}.attention_norm", x, eps))
        gate, up = linear(body, f"{layer}.ffn.w12", rms_norm(body, f"{layer}.ffn_norm", x, eps)).chunk(2, dim=1)
        x = x + linear(body, f"{layer}.ffn.w3", silu(gate) * up)
        hidden.append(x)
    last = rms_norm(body, "layer_norm", x, eps)
    given = {"hidden": torch.stack(hidden), "last": last}
    if "decoder.weight" in state:
        given["mlm"] = linear(state, "decoder", last)
    if "classifier.weight" in state:
        given["sequence"] = linear(state, "classifier", torch.tanh(linear(state, "dense", last[0])))
    return given
