"""MosaicBERT (Portes et al. 2023, arXiv 2312.17482) as DNABERT-2 (Zhou et al. 2023, arXiv 2306.15006) publishes it.

    x = LN(word + segment)
    a = LN(dense attention(x) + x)                   [q; k; v] = Wqkv x; scores + ALiBi: −slope · |i − j|
    x = LN(wo (gelu(g) · u) + a),  [g; u] = gated_layers(a)

config.json says model_type "bert" and position_embedding_type "absolute", and there is no position table. The masked-LM
decoder is tied and has a bias of its own; the norm before it has ε = 1e-12 whatever config.json says.
"""

import torch
from torch import Tensor

from . import Config, Shapes, State, alibi, attend, body_of, classify, gelu, label_count, layer_norm, linear, loud
from . import split_heads as split
from . import weight_and_bias as pair


def config(**changes: object) -> Config:
    """A tiny config.json with the published keys."""
    return {
        "_name_or_path": "mosaicml/mosaic-bert",
        "alibi_starting_size": 512,
        "architectures": ["BertForMaskedLM"],
        "attention_probs_dropout_prob": 0.0,
        "auto_map": {
            "AutoConfig": "configuration_bert.BertConfig",
            "AutoModel": "bert_layers.BertModel",
            "AutoModelForMaskedLM": "bert_layers.BertForMaskedLM",
            "AutoModelForSequenceClassification": "bert_layers.BertForSequenceClassification",
        },
        "classifier_dropout": None,
        "gradient_checkpointing": False,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": 24,
        "initializer_range": 0.02,
        "intermediate_size": 20,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512,
        "model_type": "bert",
        "num_attention_heads": 3,
        "num_hidden_layers": 2,
        "pad_token_id": 0,
        "position_embedding_type": "absolute",
        "torch_dtype": "float32",
        "transformers_version": "4.28.0",
        "type_vocab_size": 2,
        "use_cache": True,
        "vocab_size": 40,
        **changes,
    }


def state(config: Config, heads: tuple[str, ...] = (), seed: int = 0) -> State:
    """Loud weights; "mlm" is what DNABERT-2 publishes. Heads: "pooler", "mlm", "sequence" (with a pooler)."""
    width, ffn, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    prefix = "bert." if set(heads) - {"pooler"} else ""
    words = f"{prefix}embeddings.word_embeddings.weight"
    shapes: Shapes = {
        words: (vocabulary, width),
        f"{prefix}embeddings.token_type_embeddings.weight": (config["type_vocab_size"], width),
    }
    shapes |= pair(f"{prefix}embeddings.LayerNorm", width)
    for i in range(config["num_hidden_layers"]):
        layer = f"{prefix}encoder.layer.{i}"
        shapes |= pair(f"{layer}.attention.self.Wqkv", 3 * width, width)
        shapes |= pair(f"{layer}.attention.output.dense", width, width)
        shapes |= pair(f"{layer}.attention.output.LayerNorm", width)
        shapes[f"{layer}.mlp.gated_layers.weight"] = (2 * ffn, width)
        shapes |= pair(f"{layer}.mlp.wo", width, ffn) | pair(f"{layer}.mlp.layernorm", width)
    if {"pooler", "sequence"} & set(heads):
        shapes |= pair(f"{prefix}pooler.dense", width, width)
    if "mlm" in heads:
        shapes |= pair("cls.predictions.transform.dense", width, width)
        shapes |= pair("cls.predictions.transform.LayerNorm", width)
        shapes |= pair("cls.predictions.decoder", vocabulary, width)
    if "sequence" in heads:
        shapes |= pair("classifier", label_count(config), width)
    drawn = loud(shapes, seed)
    if "mlm" in heads:
        drawn["cls.predictions.decoder.weight"] = drawn[words].clone()
    return drawn


def block(config: Config, body: State, layer: str, x: Tensor) -> Tensor:
    """One layer over its input (N, W)."""
    heads, eps = config["num_attention_heads"], config["layer_norm_eps"]
    q, k, v = linear(body, f"{layer}.attention.self.Wqkv", x).chunk(3, dim=1)
    context = attend(split(q, heads), split(k, heads), split(v, heads), alibi(heads, len(x)))
    mixed = linear(body, f"{layer}.attention.output.dense", context)
    a = layer_norm(body, f"{layer}.attention.output.LayerNorm", mixed + x, eps)
    gate, up = linear(body, f"{layer}.mlp.gated_layers", a).chunk(2, dim=1)
    return layer_norm(body, f"{layer}.mlp.layernorm", linear(body, f"{layer}.mlp.wo", gelu(gate) * up) + a, eps)


def outputs(config: Config, state: State, ids: Tensor, segments: Tensor) -> dict[str, Tensor]:
    """The numbers of one sequence: ids and segments (N,)."""
    body, eps = body_of(state, "bert."), config["layer_norm_eps"]
    embedded = (
        body["embeddings.word_embeddings.weight"][ids] + body["embeddings.token_type_embeddings.weight"][segments]
    )
    hidden = [layer_norm(body, "embeddings.LayerNorm", embedded, eps)]
    for i in range(config["num_hidden_layers"]):
        hidden.append(block(config, body, f"encoder.layer.{i}", hidden[-1]))
    last = hidden[-1]
    given = {"hidden": torch.stack(hidden), "last": last} | classify(body, state, last)
    if "cls.predictions.decoder.bias" in state:
        transformed = gelu(linear(state, "cls.predictions.transform.dense", last))
        transformed = layer_norm(state, "cls.predictions.transform.LayerNorm", transformed, 1e-12)
        given["mlm"] = linear(state, "cls.predictions.decoder", transformed)
    return given
