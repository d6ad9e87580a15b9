"""NomicBERT (Nussbaum et al. 2024, arXiv 2402.01613) as nomic-ai publishes it, with GPT-2's names in config.json.

    x = LN(word + segment)                           emb_ln
    a = LN(x + out_proj attention(x))                [q; k; v] = Wqkv x; rotary, halves, base rotary_emb_base
    x = LN(a + fc2 (fc11 a · act(fc12 a)))           "swiglu": silu, "geglu": GELU; "gelu": fc2 gelu(fc1 a)

With rotary_scaling_factor s, a sequence of n > T = max_trained_positions tokens is turned with the base
b · (s n / T − (s − 1))^(D / (D − 2)) (dynamic NTK). qkv_proj_bias, mlp_fc1_bias and mlp_fc2_bias say which linear
layers have biases; mlp_fc1_bias those of the masked-LM head too, whose decoder is tied. The vocabulary is rounded up to
pad_vocab_size_multiple, and the width of a gated feed-forward to a multiple of 256.
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
    silu,
)
from . import split_heads as split
from . import weight_and_bias as pair

GATES = {"swiglu": silu, "geglu": gelu}


def config(**changes: object) -> Config:
    """A tiny config.json with every published key."""
    code = "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBert"
    return {
        "activation_function": "swiglu",
        "architectures": ["NomicBertModel"],
        "attn_pdrop": 0.0,
        "auto_map": {
            "AutoConfig": "nomic-ai/nomic-bert-2048--configuration_hf_nomic_bert.NomicBertConfig",
            "AutoModel": f"{code}Model",
            "AutoModelForMaskedLM": f"{code}ForPreTraining",
            "AutoModelForSequenceClassification": f"{code}ForSequenceClassification",
        },
        "bos_token_id": None,
        "causal": False,
        "dense_seq_output": True,
        "embd_pdrop": 0.1,
        "eos_token_id": None,
        "fused_bias_fc": True,
        "fused_dropout_add_ln": True,
        "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-12,
        "max_trained_positions": 2048,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
        "model_type": "nomic_bert",
        "n_embd": 24,
        "n_head": 3,
        "n_inner": 256,
        "n_layer": 2,
        "n_positions": 8192,
        "pad_vocab_size_multiple": 8,
        "parallel_block": False,
        "parallel_block_tied_norm": False,
        "prenorm": False,
        "qkv_proj_bias": False,
        "reorder_and_upcast_attn": False,
        "resid_pdrop": 0.0,
        "rotary_emb_base": 1000,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
        "rotary_scaling_factor": None,
        "scale_attn_by_inverse_layer_idx": False,
        "scale_attn_weights": True,
        "summary_activation": None,
        "summary_first_dropout": 0.0,
        "summary_proj_to_labels": True,
        "summary_type": "cls_index",
        "summary_use_proj": True,
        "torch_dtype": "float32",
        "transformers_version": "4.34.0",
        "type_vocab_size": 2,
        "use_cache": True,
        "use_flash_attn": True,
        "use_rms_norm": False,
        "use_xentropy": True,
        "vocab_size": 40,
        **changes,
    }


def biased(name: str, has_bias: bool, *shape: int) -> Shapes:
    """A linear layer, with a bias or without."""
    return pair(name, *shape) if has_bias else {f"{name}.weight": shape}


def layer_shapes(config: Config, layer: str) -> Shapes:
    """The tensors of one layer."""
    width, ffn, in_bias, out_bias = (config[key] for key in ("n_embd", "n_inner", "mlp_fc1_bias", "mlp_fc2_bias"))
    shapes = biased(f"{layer}.attn.Wqkv", config["qkv_proj_bias"], 3 * width, width)
    shapes |= biased(f"{layer}.attn.out_proj", config["qkv_proj_bias"], width, width)
    if config["activation_function"] in GATES:
        ffn = -(-ffn // 256) * 256
        shapes |= biased(f"{layer}.mlp.fc11", in_bias, ffn, width) | biased(f"{layer}.mlp.fc12", in_bias, ffn, width)
    else:
        shapes |= biased(f"{layer}.mlp.fc1", in_bias, ffn, width)
    shapes |= biased(f"{layer}.mlp.fc2", out_bias, width, ffn)
    return shapes | pair(f"{layer}.norm1", width) | pair(f"{layer}.norm2", width)


def state(config: Config, heads: tuple[str, ...] = (), seed: int = 0) -> State:
    """Loud weights; bodies and "mlm" are published. Heads: "pooler", "mlm", "sequence" (with a pooler), "token"."""
    width, multiple = config["n_embd"], config["pad_vocab_size_multiple"]
    vocabulary = -(-config["vocab_size"] // multiple) * multiple
    prefix = "bert." if set(heads) - {"pooler"} else ""
    words = f"{prefix}embeddings.word_embeddings.weight"
    shapes: Shapes = {
        words: (vocabulary, width),
        f"{prefix}embeddings.token_type_embeddings.weight": (config["type_vocab_size"], width),
    }
    shapes |= pair(f"{prefix}emb_ln", width)
    for i in range(config["n_layer"]):
        shapes |= layer_shapes(config, f"{prefix}encoder.layers.{i}")
    if {"pooler", "sequence"} & set(heads):
        shapes |= pair(f"{prefix}pooler.dense", width, width)
    if "mlm" in heads:
        shapes |= biased("cls.predictions.transform.dense", config["mlp_fc1_bias"], width, width)
        shapes |= pair("cls.predictions.transform.layer_norm", width)
        shapes |= biased("cls.predictions.decoder", config["mlp_fc1_bias"], vocabulary, width)
    if {"sequence", "token"} & set(heads):
        shapes |= pair("classifier", label_count(config), width)
    drawn = loud(shapes, seed)
    if "mlm" in heads:
        drawn["cls.predictions.decoder.weight"] = drawn[words].clone()
    return drawn


def rotary(config: Config, length: int) -> list[float]:
    """The frequencies for a sequence of `length` tokens."""
    size, scale, trained = (
        config["n_embd"] // config["n_head"],
        config["rotary_scaling_factor"],
        config["max_trained_positions"],
    )
    base = float(config["rotary_emb_base"])
    if scale and length > trained:
        base *= (scale * length / trained - (scale - 1)) ** (size / (size - 2))
    return frequencies(size, base)


def block(config: Config, body: State, layer: str, x: Tensor) -> Tensor:
    """One layer over its input (N, W)."""
    heads, eps, kind = config["n_head"], config["layer_norm_epsilon"], config["activation_function"]
    freqs = rotary(config, len(x))
    q, k, v = (split(third, heads) for third in linear(body, f"{layer}.attn.Wqkv", x).chunk(3, dim=1))
    q, k = ([rotate(head, freqs, adjacent=False) for head in heads_of] for heads_of in (q, k))
    a = layer_norm(body, f"{layer}.norm1", x + linear(body, f"{layer}.attn.out_proj", attend(q, k, v)), eps)
    if kind in GATES:
        inner = linear(body, f"{layer}.mlp.fc11", a) * GATES[kind](linear(body, f"{layer}.mlp.fc12", a))
    else:
        inner = gelu(linear(body, f"{layer}.mlp.fc1", a))
    return layer_norm(body, f"{layer}.norm2", a + linear(body, f"{layer}.mlp.fc2", inner), eps)


def outputs(config: Config, state: State, ids: Tensor, segments: Tensor) -> dict[str, Tensor]:
    """The numbers of one sequence: ids and segments (N,)."""
    body, eps = body_of(state, "bert."), config["layer_norm_epsilon"]
    embedded = (
        body["embeddings.word_embeddings.weight"][ids] + body["embeddings.token_type_embeddings.weight"][segments]
    )
    hidden = [layer_norm(body, "emb_ln", embedded, eps)]
    for i in range(config["n_layer"]):
        hidden.append(block(config, body, f"encoder.layers.{i}", hidden[-1]))
    last = hidden[-1]
    given = {"hidden": torch.stack(hidden), "last": last} | classify(body, state, last)
    if "cls.predictions.decoder.weight" in state:
        act = silu if config["activation_function"] == "swiglu" else gelu
        transformed = act(linear(state, "cls.predictions.transform.dense", last))
        transformed = layer_norm(state, "cls.predictions.transform.layer_norm", transformed, eps)
        given["mlm"] = linear(state, "cls.predictions.decoder", transformed)
    return given
