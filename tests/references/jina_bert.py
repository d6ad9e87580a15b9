"""jina-bert-v2 (Günther et al. 2023, arXiv 2310.19923) as jinaai publishes it, and the variant of the code model.

    x = LN(word + segment)
    a = LN(dense attention(x) + x)                   scores + ALiBi: −slope · |i − j|, no positions elsewhere
    x = LN(wo (act(g) · u) + a),  [g; u] = gated_layers(a)

act is GELU ("geglu") or ReLU ("reglu"); "original" is BERT's feed-forward instead. The code model
(jina-bert-v2-qk-post-norm), whose config.json differs in no key but the name of its code, has

    q = LN_q(query(x)),  k = LN_k(key(x))            over the whole width, before the split into heads
    a = LN_1(x + LN(dense attention(x) + x))         the input is added twice
    x = LN_2(a + down (u · act(g))),  [u; g] = up_gated_layer(a)

The masked-LM decoder is tied and has cls.predictions.bias.
"""

import torch
from torch import Tensor

from . import Config, Shapes, State, alibi, attend, body_of, classify, gelu, label_count, layer_norm, linear, loud, relu
from . import split_heads as split
from . import weight_and_bias as pair

CODE_MODEL = "jinaai/jina-bert-v2-qk-post-norm"
ACTIVATIONS = {"geglu": gelu, "reglu": relu}


def config(code: str = "jinaai/jina-bert-implementation", **changes: object) -> Config:
    """A tiny config.json with every published key; `code` is the repository of the code, CODE_MODEL for that variant."""
    names = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
    return {
        "_name_or_path": code,
        "model_max_length": 8192,
        "architectures": ["JinaBertForMaskedLM"],
        "attention_probs_dropout_prob": 0.0,
        "auto_map": {
            "AutoConfig": f"{code}--configuration_bert.JinaBertConfig",
            **{f"AutoModel{name.removeprefix('Model')}": f"{code}--modeling_bert.JinaBert{name}" for name in names},
        },
        "classifier_dropout": None,
        "gradient_checkpointing": False,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": 24,
        "initializer_range": 0.02,
        "intermediate_size": 20,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 8192,
        "model_type": "bert",
        "num_attention_heads": 3,
        "num_hidden_layers": 2,
        "pad_token_id": 0,
        "position_embedding_type": "alibi",
        "torch_dtype": "float32",
        "transformers_version": "4.26.0",
        "type_vocab_size": 2,
        "use_cache": True,
        "vocab_size": 40,
        "feed_forward_type": "geglu",
        "emb_pooler": "mean",
        **changes,
    }


def layer_shapes(config: Config, layer: str) -> Shapes:
    """The tensors of one layer."""
    width, ffn = config["hidden_size"], config["intermediate_size"]
    shapes: Shapes = {}
    for name in ("self.query", "self.key", "self.value", "output.dense"):
        shapes |= pair(f"{layer}.attention.{name}", width, width)
    shapes |= pair(f"{layer}.attention.output.LayerNorm", width)
    if config["_name_or_path"] == CODE_MODEL:
        for name in ("attention.self.layer_norm_q", "attention.self.layer_norm_k", "layer_norm_1", "layer_norm_2"):
            shapes |= pair(f"{layer}.{name}", width)
        shapes[f"{layer}.mlp.up_gated_layer.weight"] = (2 * ffn, width)
        return shapes | pair(f"{layer}.mlp.down_layer", width, ffn)
    if config["feed_forward_type"] == "original":
        shapes |= pair(f"{layer}.intermediate.dense", ffn, width) | pair(f"{layer}.output.dense", width, ffn)
        return shapes | pair(f"{layer}.output.LayerNorm", width)
    shapes[f"{layer}.mlp.gated_layers.weight"] = (2 * ffn, width)
    return shapes | pair(f"{layer}.mlp.wo", width, ffn) | pair(f"{layer}.mlp.layernorm", width)


def state(config: Config, heads: tuple[str, ...] = (), seed: int = 0) -> State:
    """Loud weights. Heads: "pooler", "mlm", "sequence" (with a pooler), "token"."""
    width, vocabulary = config["hidden_size"], config["vocab_size"]
    prefix = "bert." if set(heads) - {"pooler"} else ""
    shapes: Shapes = {
        f"{prefix}embeddings.word_embeddings.weight": (vocabulary, width),
        f"{prefix}embeddings.token_type_embeddings.weight": (config["type_vocab_size"], width),
    }
    shapes |= pair(f"{prefix}embeddings.LayerNorm", width)
    for i in range(config["num_hidden_layers"]):
        shapes |= layer_shapes(config, f"{prefix}encoder.layer.{i}")
    if {"pooler", "sequence"} & set(heads):
        shapes |= pair(f"{prefix}pooler.dense", width, width)
    if "mlm" in heads:
        shapes |= pair("cls.predictions.transform.dense", width, width)
        shapes |= pair("cls.predictions.transform.LayerNorm", width)
        shapes["cls.predictions.bias"] = (vocabulary,)
    if {"sequence", "token"} & set(heads):
        shapes |= pair("classifier", label_count(config), width)
    return loud(shapes, seed)


def block(config: Config, body: State, layer: str, x: Tensor) -> Tensor:
    """One layer over its input (N, W)."""
    heads, eps, kind = config["num_attention_heads"], config["layer_norm_eps"], config["feed_forward_type"]
    code_model = config["_name_or_path"] == CODE_MODEL
    q, k, v = (linear(body, f"{layer}.attention.self.{name}", x) for name in ("query", "key", "value"))
    if code_model:
        q = layer_norm(body, f"{layer}.attention.self.layer_norm_q", q, eps)
        k = layer_norm(body, f"{layer}.attention.self.layer_norm_k", k, eps)
    context = attend(split(q, heads), split(k, heads), split(v, heads), alibi(heads, len(x)))
    mixed = linear(body, f"{layer}.attention.output.dense", context)
    a = layer_norm(body, f"{layer}.attention.output.LayerNorm", mixed + x, eps)
    if code_model:
        a = layer_norm(body, f"{layer}.layer_norm_1", x + a, eps)
        up, gate = linear(body, f"{layer}.mlp.up_gated_layer", a).chunk(2, dim=1)
        down = linear(body, f"{layer}.mlp.down_layer", up * ACTIVATIONS[kind](gate))
        return layer_norm(body, f"{layer}.layer_norm_2", a + down, eps)
    if kind == "original":
        down = linear(body, f"{layer}.output.dense", gelu(linear(body, f"{layer}.intermediate.dense", a)))
        return layer_norm(body, f"{layer}.output.LayerNorm", down + a, eps)
    gate, up = linear(body, f"{layer}.mlp.gated_layers", a).chunk(2, dim=1)
    return layer_norm(
        body, f"{layer}.mlp.layernorm", linear(body, f"{layer}.mlp.wo", ACTIVATIONS[kind](gate) * up) + a, eps
    )


def outputs(config: Config, state: State, ids: Tensor, segments: Tensor) -> dict[str, Tensor]:
    """The numbers of one sequence: ids and segments (N,)."""
    body, eps = body_of(state, "bert."), config["layer_norm_eps"]
    words = body["embeddings.word_embeddings.weight"]
    x = layer_norm(
        body, "embeddings.LayerNorm", words[ids] + body["embeddings.token_type_embeddings.weight"][segments], eps
    )
    hidden = [x]
    for i in range(config["num_hidden_layers"]):
        hidden.append(block(config, body, f"encoder.layer.{i}", hidden[-1]))
    last = hidden[-1]
    given = {"hidden": torch.stack(hidden), "last": last} | classify(body, state, last)
    if "cls.predictions.bias" in state:
        transformed = gelu(linear(state, "cls.predictions.transform.dense", last))
        transformed = layer_norm(state, "cls.predictions.transform.LayerNorm", transformed, eps)
        given["mlm"] = transformed @ words.T + state["cls.predictions.bias"]
    return given
