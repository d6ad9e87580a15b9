"""References for families that transformers has no class for, and for the published files of two that it has.

Each module writes one family from its paper's equations: one sequence at a time, no padding, no cache, a loop over
heads. Each has `config(**changes)`, a tiny config.json with the published keys; `state(config, heads)`, loud weights
under the published names; and `outputs(config, state, ids, segments)`. The heads are "pooler", "mlm", "sequence" and
"token"; a state without heads has the bare names of a body, a state with heads the prefix that head files have.
`outputs` gives `hidden` (after the embeddings and after each layer), `last`, and what the weights allow of `pooled`,
`mlm`, `sequence` and `token`. The arithmetic follows the dtype of the weights.

N tokens · W width · H heads · D per head.
"""

import math
from typing import Any

import torch
from torch import Tensor

Config = dict[str, Any]
State = dict[str, Tensor]
Shapes = dict[str, tuple[int, ...]]


def loud(shapes: Shapes, seed: int = 0) -> State:
    """Weights large enough that every term matters: matrices and biases of std 0.5, norms within 1 ± 0.5."""
    generator = torch.Generator().manual_seed(seed)
    drawn = {}
    for name, shape in shapes.items():
        if name.endswith(".weight") and len(shape) == 1:
            drawn[name] = 0.5 + torch.rand(shape, generator=generator)
        else:
            drawn[name] = 0.5 * torch.randn(shape, generator=generator)
    return drawn


def weight_and_bias(name: str, *shape: int) -> Shapes:
    """The two tensors of a linear layer (out, in) or of a LayerNorm (width)."""
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}


def label_count(config: Config) -> int:
    """Labels of a classifier: two where config.json names none."""
    return len(config.get("id2label", ("", "")))


def part(state: State, prefix: str) -> State:
    """The tensors under `prefix`, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def body_of(state: State, prefix: str) -> State:
    """The body of a folder, whose names have `prefix` where a head stands beside it."""
    return part(state, prefix) or state


def linear(state: State, name: str, x: Tensor) -> Tensor:
    """x Wᵀ, plus the bias where the file has one."""
    y = x @ state[f"{name}.weight"].T
    return y + state[f"{name}.bias"] if f"{name}.bias" in state else y


def layer_norm(state: State, name: str, x: Tensor, eps: float) -> Tensor:
    """(x − mean) / sqrt(variance + ε) · weight + bias."""
    centred = x - x.mean(-1, keepdim=True)
    scaled = centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + eps)
    return scaled * state[f"{name}.weight"] + state[f"{name}.bias"]


def rms_norm(state: State, name: str, x: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x²) + ε) · weight."""
    return x / torch.sqrt((x**2).mean(-1, keepdim=True) + eps) * state[f"{name}.weight"]


def gelu(x: Tensor) -> Tensor:
    """x Φ(x), with the exact normal distribution function."""
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def silu(x: Tensor) -> Tensor:
    """x σ(x)."""
    return x / (1 + torch.exp(-x))


def relu(x: Tensor) -> Tensor:
    """max(x, 0)."""
    return x.clamp(min=0)


def attend(queries: list[Tensor], keys: list[Tensor], values: list[Tensor], bias: list[Tensor] | None = None) -> Tensor:
    """softmax(q kᵀ / √D + bias) v of each head (N, D), side by side: (N, W)."""
    contexts = []
    for head, (q, k, v) in enumerate(zip(queries, keys, values, strict=True)):
        scores = q @ k.T / math.sqrt(q.shape[1])
        if bias is not None:
            scores = scores + bias[head].to(scores.dtype)
        contexts.append(torch.softmax(scores, dim=-1) @ v)
    return torch.cat(contexts, dim=1)


def split_heads(x: Tensor, heads: int) -> list[Tensor]:
    """(N, W) as H tensors (N, D): head h has columns h·D to h·D + D."""
    size = x.shape[1] // heads
    return [x[:, h * size : (h + 1) * size] for h in range(heads)]


def frequencies(size: int, base: float) -> list[float]:
    """base^(−2i/D) for each pair i of a head's D dimensions (Su et al. 2021, arXiv 2104.09864)."""
    return [base ** (-2 * i / size) for i in range(size // 2)]


def rotate(x: Tensor, freqs: list[float], *, adjacent: bool) -> Tensor:
    """Turns pair i of the token at position p by the angle p · freqs[i], for one head x (N, D).

    The pairs are dimensions (2i, 2i + 1) if `adjacent`, else (i, i + D/2).
    """
    turned = x.clone()
    for position in range(x.shape[0]):
        for i, frequency in enumerate(freqs):
            first, second = (2 * i, 2 * i + 1) if adjacent else (i, i + x.shape[1] // 2)
            cos, sin = math.cos(position * frequency), math.sin(position * frequency)
            turned[position, first] = x[position, first] * cos - x[position, second] * sin
            turned[position, second] = x[position, first] * sin + x[position, second] * cos
    return turned


def alibi_slopes(heads: int) -> list[float]:
    """The slope of each head (Press et al. 2022, arXiv 2108.12409): 2^(−8/H), 2^(−16/H), … for H a power of two.

    For other H: the slopes of the largest power of two P below it, then every second slope of 2P.
    """
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    if power < heads:
        slopes += alibi_slopes(2 * power)[0::2][: heads - power]
    return slopes


def alibi(heads: int, length: int) -> list[Tensor]:
    """−slope · |i − j| for each head: the symmetric form, for attention that sees both ways."""
    positions = torch.arange(length)
    distance = (positions[:, None] - positions[None, :]).abs().double()
    return [-slope * distance for slope in alibi_slopes(heads)]


def classify(body: State, state: State, last: Tensor) -> dict[str, Tensor]:
    """What BERT's heads give: the pooled first token, and the classifier over it or, without a pooler, over each token."""
    given = {}
    if "pooler.dense.weight" in body:
        given["pooled"] = torch.tanh(linear(body, "pooler.dense", last[0]))
    if "classifier.weight" in state:
        pooled = given.get("pooled")
        task = "token" if pooled is None else "sequence"
        given[task] = linear(state, "classifier", last if pooled is None else pooled)
    return given
