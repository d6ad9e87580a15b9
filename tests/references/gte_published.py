"""GTE v1.5 and mGTE (Zhang et al. 2024, arXiv 2407.19669) as Alibaba-NLP publishes them: model_type "new".

    x = LN(word + segment)                           no segments where type_vocab_size is 0
    a = LN(x + o_proj attention(x))                  [q; k; v] = qkv_proj x; rotary, halves
    x = LN(a + down_proj (u · gelu(g))),  [u; g] = up_gate_proj(a)

rope_scaling {"type": "ntk", "factor": s} makes the frequencies (θ s)^(−2i/D) / s^(2/D), for every length. (Their code sets
them up as if for max_position_embeddings · s tokens.) The masked-LM decoder is tied and has a bias of its own.
"""

import torch
from torch import Tensor

from . import (
    Config,
    Shapes,
    State,
    attend,
    body_of,
    classify,
    frequencies,
    gelu,
    label_count,
    layer_norm,
    linear,
    loud,
    rotate,
)
from . import split_heads as split
from . import weight_and_bias as pair


def config(**changes: object) -> Config:
    """A tiny config.json with every published key; rope as gte-multilingual-base has it."""
    tasks = ("MaskedLM", "MultipleChoice", "QuestionAnswering", "SequenceClassification", "TokenClassification")
    return {
        "architectures": ["NewModel"],
        "attention_probs_dropout_prob": 0.0,
        "auto_map": {
            "AutoConfig": "Alibaba-NLP/new-impl--configuration.NewConfig",
            "AutoModel": "Alibaba-NLP/new-impl--modeling.NewModel",
            **{f"AutoModelFor{task}": f"Alibaba-NLP/new-impl--modeling.NewFor{task}" for task in tasks},
        },
        "classifier_dropout": None,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": 24,
        "initializer_range": 0.02,
        "intermediate_size": 20,
        "layer_norm_eps": 1e-12,
        "layer_norm_type": "layer_norm",
        "logn_attention_clip1": False,
        "logn_attention_scale": False,
        "max_position_embeddings": 8192,
        "model_type": "new",
        "num_attention_heads": 3,
        "num_hidden_layers": 2,
        "pack_qkv": True,
        "pad_token_id": 0,
        "position_embedding_type": "rope",
        "rope_scaling": {"factor": 8.0, "type": "ntk"},
        "rope_theta": 20000,
        "torch_dtype": "float32",
        "transformers_version": "4.39.1",
        "type_vocab_size": 1,
        "unpad_inputs": False,
        "use_memory_efficient_attention": False,
        "vocab_size": 40,
        **changes,
    }


def state(config: Config, heads: tuple[str, ...] = (), seed: int = 0) -> State:
    """Loud weights. Heads: "pooler", "mlm", "sequence" (with a pooler), "token"."""
    width, ffn, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    prefix = "new." if set(heads) - {"pooler"} else ""
    shapes: Shapes = {f"{prefix}embeddings.word_embeddings.weight": (vocabulary, width)}
    if config["type_vocab_size"] > 0:
        shapes[f"{prefix}embeddings.token_type_embeddings.weight"] = (config["type_vocab_size"], width)
    shapes |= pair(f"{prefix}embeddings.LayerNorm", width)
    for i in range(config["num_hidden_layers"]):
        layer = f"{prefix}encoder.layer.{i}"
        shapes |= pair(f"{layer}.attention.qkv_proj", 3 * width, width)
        shapes |= pair(f"{layer}.attention.o_proj", width, width)
        shapes[f"{layer}.mlp.up_gate_proj.weight"] = (2 * ffn, width)
        shapes |= pair(f"{layer}.mlp.down_proj", width, ffn)
        shapes |= pair(f"{layer}.attn_ln", width) | pair(f"{layer}.mlp_ln", width)
    if {"pooler", "sequence"} & set(heads):
        shapes |= pair(f"{prefix}pooler.dense", width, width)
    if "mlm" in heads:
        shapes |= pair("lm_head.dense", width, width) | pair("lm_head.norm", width)
        shapes["lm_head.decoder.bias"] = (vocabulary,)
    if {"sequence", "token"} & set(heads):
        shapes |= pair("classifier", label_count(config), width)
    return loud(shapes, seed)


def rotary(config: Config) -> list[float]:
    """The frequency of each pair."""
    size, scaling = config["hidden_size"] // config["num_attention_heads"], config["rope_scaling"]
    if scaling is None:
        return frequencies(size, float(config["rope_theta"]))
    factor = scaling["factor"]
    return [frequency / factor ** (2 / size) for frequency in frequencies(size, config["rope_theta"] * factor)]


def block(config: Config, body: State, layer: str, x: Tensor) -> Tensor:
    """One layer over its input (N, W)."""
    heads, eps, freqs = config["num_attention_heads"], config["layer_norm_eps"], rotary(config)
    q, k, v = (split(third, heads) for third in linear(body, f"{layer}.attention.qkv_proj", x).chunk(3, dim=1))
    q, k = ([rotate(head, freqs, adjacent=False) for head in heads_of] for heads_of in (q, k))
    a = layer_norm(body, f"{layer}.attn_ln", x + linear(body, f"{layer}.attention.o_proj", attend(q, k, v)), eps)
    up, gate = linear(body, f"{layer}.mlp.up_gate_proj", a).chunk(2, dim=1)
    return layer_norm(body, f"{layer}.mlp_ln", a + linear(body, f"{layer}.mlp.down_proj", up * gelu(gate)), eps)


def outputs(config: Config, state: State, ids: Tensor, segments: Tensor) -> dict[str, Tensor]:
    """The numbers of one sequence: ids and segments (N,); segments are not read where type_vocab_size is 0."""
    body, eps = body_of(state, "new."), config["layer_norm_eps"]
    words = body["embeddings.word_embeddings.weight"]
    embedded = words[ids]
    if config["type_vocab_size"] > 0:
        embedded = embedded + body["embeddings.token_type_embeddings.weight"][segments]
    hidden = [layer_norm(body, "embeddings.LayerNorm", embedded, eps)]
    for i in range(config["num_hidden_layers"]):
        hidden.append(block(config, body, f"encoder.layer.{i}", hidden[-1]))
    last = hidden[-1]
    given = {"hidden": torch.stack(hidden), "last": last} | classify(body, state, last)
    if "lm_head.decoder.bias" in state:
        transformed = layer_norm(state, "lm_head.norm", gelu(linear(state, "lm_head.dense", last)), eps)
        given["mlm"] = transformed @ words.T + state["lm_head.decoder.bias"]
    return given
