"""The references under tests/references are judged where transformers has something to judge with.

NomicBERT and GTE: transformers' own classes read the published tensors by their own conversion rules. NeoBERT: Llama with
a mask that hides nothing, its rotary pairs reordered. The ALiBi families: BERT with the ALiBi matrix for a mask, and its
feed-forward's first half exchanged for the gated one; the code model of jina-bert has norms installed as well.
"""

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn

from references import (
    Config,
    State,
    alibi,
    alibi_slopes,
    gte_published,
    jina_bert,
    mosaic_bert,
    neobert,
    nomic_published,
    part,
)

IDS = torch.tensor([2, 7, 31, 7, 12, 39, 1, 3, 24])
SEGMENTS = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 1])
NO_SEGMENTS = torch.zeros_like(SEGMENTS)
CODE = jina_bert.CODE_MODEL
SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "layer_norm_eps",
    "type_vocab_size",
)
TASKS = {
    "pooler": "Model",
    "mlm": "ForMaskedLM",
    "sequence": "ForSequenceClassification",
    "token": "ForTokenClassification",
}


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-5)


def doubled(weights: State) -> State:
    """Double precision, so that only a wrong equation can differ."""
    return {name: tensor.double() for name, tensor in weights.items()}


def nomic_config(config: Config) -> Any:
    """transformers' settings for a published config.json of nomic-ai."""
    scale = config["rotary_scaling_factor"]
    rope = {"rope_type": "dynamic", "factor": scale} if scale else {"rope_type": "default"}
    return transformers.NomicBertConfig(
        vocab_size=config["vocab_size"],
        hidden_size=config["n_embd"],
        num_hidden_layers=config["n_layer"],
        num_attention_heads=config["n_head"],
        intermediate_size=config["n_inner"],
        hidden_act={"swiglu": "silu", "geglu": "gelu"}[config["activation_function"]],
        layer_norm_eps=config["layer_norm_epsilon"],
        max_position_embeddings=config["max_trained_positions"],
        rope_parameters={"rope_theta": float(config["rotary_emb_base"]), **rope},
    )


def gte_config(config: Config) -> Any:
    """transformers' settings for a published config.json of Alibaba-NLP: NTK is linear scaling of a larger base."""
    size, scaling, theta = (
        config["hidden_size"] // config["num_attention_heads"],
        config["rope_scaling"],
        config["rope_theta"],
    )
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": float(theta)}
    if scaling:
        factor = scaling["factor"]
        rope = {"rope_type": "linear", "rope_theta": theta * factor, "factor": factor ** (2 / size)}
    shared = (
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "hidden_act",
    )
    kept = (*shared, "layer_norm_eps", "max_position_embeddings", "type_vocab_size", "pad_token_id")
    return transformers.GteConfig(**{key: config[key] for key in kept}, rope_parameters=rope)


def judge(settings: Any, name: str, weights: State, folder: Path, ids: Tensor, segments: Tensor) -> Any:
    """What transformers' class gives for a folder with the published tensors and its own config.json."""
    settings.save_pretrained(folder)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    extra = {"add_pooling_layer": True} if name.endswith("Model") else {}
    model, report = getattr(transformers, name).from_pretrained(
        folder, attn_implementation="eager", output_loading_info=True, **extra
    )
    # The published masked-LM head of NomicBERT has no biases; transformers' has, and sets them to 0.
    assert not [key for key in report["missing_keys"] if not key.startswith("cls.predictions")]
    assert not report["unexpected_keys"]
    with torch.no_grad():
        return model.double().eval()(ids[None], token_type_ids=segments[None], output_hidden_states=True)


def compare(given: dict[str, Tensor], theirs: Any, head: str) -> None:
    close(given["hidden"], torch.cat(theirs.hidden_states))
    if head == "pooler":
        close(given["last"], theirs.last_hidden_state[0])
        close(given["pooled"], theirs.pooler_output[0])
    else:
        close(given[head], theirs.logits[0])


NOMIC = [{}, {"activation_function": "geglu"}, {"rotary_scaling_factor": 2, "max_trained_positions": 6}]
GTE = [
    {},
    {"rope_scaling": {"type": "ntk", "factor": 2.0}, "type_vocab_size": 0},
    {"rope_scaling": None, "type_vocab_size": 2},
]


@pytest.mark.parametrize("head", TASKS)
@pytest.mark.parametrize("changes", NOMIC, ids=str)
def test_nomic_gives_the_numbers_of_transformers(changes: Config, head: str, tmp_path: Path) -> None:
    config = nomic_published.config(**changes)
    weights = nomic_published.state(config, (head,))
    # transformers reads nomic-ai's bodies, and has no rule for the prefix of its files with a head.
    renamed = {re.sub("^bert[.]", "nomic_bert.", name): tensor for name, tensor in weights.items()}
    theirs = judge(nomic_config(config), f"NomicBert{TASKS[head]}", renamed, tmp_path, IDS, SEGMENTS)
    compare(nomic_published.outputs(config, doubled(weights), IDS, SEGMENTS), theirs, head)


def test_nomic_with_biases_and_without_a_gate_is_jina_v3(tmp_path: Path) -> None:
    biases = dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), True)
    config = nomic_published.config(activation_function="gelu", n_inner=20, **biases)
    weights = nomic_published.state(config, ("pooler",))
    renamed = {name.replace(".attn.", ".mixer."): tensor for name, tensor in weights.items()}
    settings = transformers.JinaEmbeddingsV3Config(
        **{
            key: value
            for key, value in nomic_config({**config, "activation_function": "geglu"}).to_dict().items()
            if key in SIZES
        },
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
    )
    theirs = judge(settings, "JinaEmbeddingsV3Model", renamed, tmp_path, IDS, SEGMENTS)
    compare(nomic_published.outputs(config, doubled(weights), IDS, SEGMENTS), theirs, "pooler")


@pytest.mark.parametrize("head", TASKS)
@pytest.mark.parametrize("changes", GTE, ids=str)
def test_gte_gives_the_numbers_of_transformers(changes: Config, head: str, tmp_path: Path) -> None:
    config = gte_published.config(**changes)
    weights = gte_published.state(config, (head,))
    segments = SEGMENTS if config["type_vocab_size"] == 2 else NO_SEGMENTS
    theirs = judge(gte_config(config), f"Gte{TASKS[head]}", weights, tmp_path, IDS, segments)
    compare(gte_published.outputs(config, doubled(weights), IDS, segments), theirs, head)


def test_neobert_is_llama_that_sees_both_ways() -> None:
    config = neobert.config()
    weights = neobert.state(config)
    heads, width, ffn = config["num_attention_heads"], config["hidden_size"], neobert.ffn_width(config)
    llama = transformers.LlamaModel(
        transformers.LlamaConfig(
            vocab_size=config["vocab_size"], hidden_size=width, intermediate_size=ffn, num_hidden_layers=config["num_hidden_layers"],
            num_attention_heads=heads, rms_norm_eps=config["norm_eps"], rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            attn_implementation="eager",
        )
    ).eval()  # fmt: skip
    theirs = {"embed_tokens.weight": weights["encoder.weight"], "norm.weight": weights["layer_norm.weight"]}
    for i in range(config["num_hidden_layers"]):
        ours, layer = f"transformer_encoder.{i}", f"layers.{i}"
        q, k, v = weights[f"{ours}.qkv.weight"].view(heads, 3, width // heads, width).unbind(1)
        # Llama turns dimension i with i + D/2: the even rows of a head first, then the odd ones.
        q, k = (torch.cat([rows[:, 0::2], rows[:, 1::2]], dim=1) for rows in (q, k))
        for name, rows in (("q", q), ("k", k), ("v", v)):
            theirs[f"{layer}.self_attn.{name}_proj.weight"] = rows.reshape(width, width)
        theirs[f"{layer}.self_attn.o_proj.weight"] = weights[f"{ours}.wo.weight"]
        gate, up = weights[f"{ours}.ffn.w12.weight"].chunk(2)
        theirs |= {f"{layer}.mlp.gate_proj.weight": gate, f"{layer}.mlp.up_proj.weight": up}
        theirs[f"{layer}.mlp.down_proj.weight"] = weights[f"{ours}.ffn.w3.weight"]
        theirs[f"{layer}.input_layernorm.weight"] = weights[f"{ours}.attention_norm.weight"]
        theirs[f"{layer}.post_attention_layernorm.weight"] = weights[f"{ours}.ffn_norm.weight"]
    llama.load_state_dict(theirs)
    seen = torch.zeros(1, 1, len(IDS), len(IDS))
    with torch.no_grad():
        judged = llama(IDS[None], attention_mask=seen, output_hidden_states=True, use_cache=False)
    given = neobert.outputs(config, weights, IDS)
    close(given["last"], judged.last_hidden_state[0])
    close(given["hidden"][:-1], torch.cat(judged.hidden_states[:-1]))


class Gated(nn.Module):
    """act(g) · u, [g; u] = Wx, in the place of BERT's first half of the feed-forward."""

    def __init__(self, weight: Tensor, act: nn.Module) -> None:
        super().__init__()
        self.weight, self.act = weight, act

    def forward(self, x: Tensor) -> Tensor:
        gate, up = (x @ self.weight.T).chunk(2, dim=-1)
        product: Tensor = self.act(gate) * up
        return product


class AddedTwice(nn.Module):
    """LN(x + attention(x)) around an attention block that has added x and normed already."""

    def __init__(self, inner: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.inner, self.norm = inner, norm

    def forward(self, x: Tensor, *others: Any, **kwargs: Any) -> tuple[Tensor, Any]:
        mixed, seen = self.inner(x, *others, **kwargs)
        return self.norm(x + mixed), seen


RENAMED = {
    "mlp.wo.": "output.dense.",
    "mlp.down_layer.": "output.dense.",
    "mlp.layernorm.": "output.LayerNorm.",
    "layer_norm_2.": "output.LayerNorm.",
}
INSTALLED = ("mlp.gated_layers.", "mlp.up_gated_layer.", "layer_norm_1.", "layer_norm_q.", "layer_norm_k.")


def install(layer: Any, weights: State, config: Config) -> None:
    """Puts into a layer of BERT what BERT does not have."""

    def norm(name: str) -> nn.LayerNorm:
        made = nn.LayerNorm(config["hidden_size"], eps=config["layer_norm_eps"])
        made.load_state_dict({"weight": weights[f"{name}.weight"], "bias": weights[f"{name}.bias"]})
        return made

    act = nn.ReLU() if config.get("feed_forward_type") == "reglu" else nn.GELU()
    if "mlp.gated_layers.weight" in weights:
        layer.intermediate = Gated(weights["mlp.gated_layers.weight"], act)
    if "mlp.up_gated_layer.weight" in weights:
        up, gate = weights["mlp.up_gated_layer.weight"].chunk(2)
        layer.intermediate = Gated(torch.cat([gate, up]), act)
        inner = layer.attention.self
        inner.query = nn.Sequential(inner.query, norm("attention.self.layer_norm_q"))
        inner.key = nn.Sequential(inner.key, norm("attention.self.layer_norm_k"))
        layer.attention = AddedTwice(layer.attention, norm("layer_norm_1"))


def bert_with_alibi(config: Config, weights: State) -> Any:
    """BERT's class with the weights of jina-bert or MosaicBERT; its position table is all zeros."""
    settings = transformers.BertConfig(**{key: config[key] for key in SIZES}, attn_implementation="eager")
    bert = transformers.BertModel(settings).eval()
    theirs: State = {}
    for name, tensor in weights.items():
        if any(piece in name for piece in INSTALLED):
            continue
        for ours, bert_name in RENAMED.items():
            name = name.replace(ours, bert_name)
        split = zip(("query", "key", "value"), tensor.chunk(3), strict=True) if "Wqkv" in name else [("", tensor)]
        theirs |= {name.replace("Wqkv", third): rows for third, rows in split}
    missing, unexpected = bert.load_state_dict(theirs, strict=False)
    assert not unexpected
    assert all("position_embeddings" in name or "intermediate" in name for name in missing)
    bert.embeddings.position_embeddings.weight.data.zero_()
    for i, layer in enumerate(bert.encoder.layer):
        install(layer, part(weights, f"encoder.layer.{i}."), config)
    return bert


@pytest.mark.parametrize(
    ("module", "changes"),
    [
        (jina_bert, {}),
        (jina_bert, {"feed_forward_type": "reglu"}),
        (jina_bert, {"feed_forward_type": "original", "num_attention_heads": 4}),
        (jina_bert, {"code": CODE}),
        (jina_bert, {"code": CODE, "feed_forward_type": "reglu"}),
        (mosaic_bert, {}),
        (mosaic_bert, {"num_attention_heads": 12}),
    ],
)
def test_alibi_families_are_bert_under_an_alibi_mask(module: ModuleType, changes: Config) -> None:
    config = module.config(**changes)
    weights = module.state(config, ("pooler",))
    mask = torch.stack(alibi(config["num_attention_heads"], len(IDS))).float()[None]
    with torch.no_grad():
        judged = bert_with_alibi(config, weights)(
            IDS[None], attention_mask=mask, token_type_ids=SEGMENTS[None], output_hidden_states=True
        )
    given = module.outputs(config, weights, IDS, SEGMENTS)
    close(given["hidden"], torch.cat(judged.hidden_states))
    close(given["pooled"], judged.pooler_output[0])


@pytest.mark.parametrize("heads", [2, 3, 8, 12, 16])
def test_alibi_slopes_are_those_of_transformers(heads: int) -> None:
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    theirs = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
    close(torch.tensor(alibi_slopes(heads)), theirs)


EVERY = [
    (neobert, {}, ("mlm", "sequence")),
    *((jina_bert, {"feed_forward_type": kind}, ("mlm", "sequence")) for kind in ("geglu", "reglu", "original")),
    (jina_bert, {"code": CODE}, ("mlm", "sequence")),
    (mosaic_bert, {}, ("mlm", "sequence")),
    (nomic_published, {}, ("mlm", "sequence")),
    (
        nomic_published,
        {
            "activation_function": "gelu",
            "n_inner": 20,
            "qkv_proj_bias": True,
            "mlp_fc1_bias": True,
            "mlp_fc2_bias": True,
        },
        ("mlm", "token"),
    ),
    (gte_published, {}, ("mlm", "sequence")),
]


@pytest.mark.parametrize(("module", "changes", "heads"), EVERY)
def test_every_tensor_counts(module: ModuleType, changes: Config, heads: tuple[str, ...]) -> None:
    """No tensor of a state can change without changing what the heads give, and all of it is finite."""
    config = module.config(**changes)
    weights = {name: tensor.double().requires_grad_() for name, tensor in module.state(config, heads).items()}
    segments = SEGMENTS if config.get("type_vocab_size") == 2 else NO_SEGMENTS
    given = module.outputs(config, weights, IDS, segments)
    assert set(heads) <= set(given)
    assert all(torch.isfinite(tensor).all() for tensor in given.values())
    sum((tensor * torch.linspace(-1, 1, tensor.numel()).view_as(tensor)).sum() for tensor in given.values()).backward()
    unread = {name for name, tensor in weights.items() if tensor.grad is None or tensor.grad.abs().max() < 1e-9}
    # A constant added to every key moves all scores of a query alike, which the softmax does not see.
    assert all(name.endswith(("self.key.bias", "self.layer_norm_k.bias")) for name in unread)
