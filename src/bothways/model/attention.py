"""Attention inside each sequence of a packed batch, and the backends that compute it.

N tokens in the batch · B sequences · S sequences of a grid · L length of a sequence, or of a grid's longest one ·
H attention heads · D dimensions per head.

    Attention(Q, K, V) = softmax(Q Kᵀ · scale + bias) V        over the keys of the query's own sequence

The encoder chooses a backend (`choose`) and makes a plan (`make_plan`) once per forward pass; every layer calls
`attend`. Padding, attention masks and kernels are known to this file only.

| backend   | runs on                            | window | bias | dropout |
|-----------|------------------------------------|--------|------|---------|
| reference | any device, in fp32, slow          | yes    | yes  | yes     |
| dense     | any device (SDPA on padded grids)  | yes    | yes  | yes     |
| varlen    | CUDA, 16 bit (flash attention)     | yes    | no   | yes     |
| flex      | CUDA (compiled flex attention)     | yes    | yes  | no      |
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from bothways.errors import BothwaysError, require_choice
from bothways.model.batch import Batch

Backend = Literal["auto", "reference", "dense", "varlen", "flex"]

Window = tuple[int, int]
"""How many tokens to the left and to the right a token attends to; -1: no limit. (-1, 0) is causal attention."""

Pairwise = Callable[[Tensor, Tensor, Tensor], Tensor]
"""bias(h, i, j): the number added to the score of head h between query token i and key token j. Tokens are counted
through the whole batch; h, i and j are integer tensors of shapes that broadcast."""

Take = Callable[[Tensor], Tensor]
"""Gathers the tokens of a grid from those of the batch: (N, …) → (S · L, …)."""


class GridBias(ABC):
    """A bias that is computed faster for a whole grid than pair by pair."""

    @abstractmethod
    def pairwise(self) -> Pairwise:
        """The bias between any two tokens of the batch."""

    @abstractmethod
    def grid(self, size: int, longest: int, take: Take) -> Tensor:
        """The bias of a grid of `size` sequences, padded to `longest` tokens: (S or 1, H, L, L)."""


Bias = Pairwise | GridBias


# Sequences share a grid if they are at least this fraction of its longest one. Grids of equal lengths only would mean
# many small kernels; one grid for all would pad every short text to the longest. On a GPU a launch costs more than
# padding does.
_MIN_FILL = 0.8
_MIN_FILL_ON_GPU = 0.33


@dataclass(frozen=True)
class Grid:
    """Sequences of similar length, padded to the longest of them."""

    rows: Tensor
    """(S, L): the token of the batch at each place. Padding repeats the first token of its sequence."""
    real: Tensor | None
    """(S, L): False where there is padding; None if there is none."""
    start: int | None
    """The first token, if the grid's tokens are consecutive in the batch: then a view replaces the gather."""


def _no_table() -> Tensor:
    raise AssertionError("this model has no table of relative positions")


@dataclass(frozen=True)
class AttentionPlan:
    """What the attention of all layers shares for one batch."""

    batch: Batch
    backend: Backend
    grids: tuple[Grid, ...] = ()
    order: Tensor | None = None
    """(N,) for `dense`: token n of the batch is at index order[n] of the concatenated grids."""
    masks: dict[Window | None, Any] = field(default_factory=dict)
    """For `flex`: block masks by window, cached by the first layer that needs each."""
    rotations: dict[float, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """For rotary positions: cosines and sines by base, cached by the first layer that needs each."""
    relative: Callable[[], Tensor] = _no_table
    """For relative positions: gives the embedding table of distances that all layers share."""


def choose(
    wanted: Backend,
    *,
    device: str,
    dtype: torch.dtype,
    is_even: bool = False,
    window: bool = False,
    bias: bool = False,
    dropout: bool = False,
) -> Backend:
    """The backend to use. A backend given by name is used, or an error is raised: it is never silently replaced."""
    half = dtype in (torch.float16, torch.bfloat16)
    if wanted == "auto":
        if device != "cuda":
            return "dense"
        if bias:
            # Outside a compiled step, flex would compile again for every shape of a batch.
            return "flex" if torch.compiler.is_compiling() and not dropout else "dense"
        # Sequences of equal length without a window are a grid already, by a view: varlen would save nothing. But
        # without gradients, a text gets the same kernel alone and among others.
        is_grid = is_even and not window and torch.is_grad_enabled()
        return "varlen" if half and not is_grid else "dense"
    require_choice("backend", wanted, get_args(Backend))
    needs = {
        "device": ("a CUDA device", device == "cuda"),
        "dtype": ("a 16-bit dtype", half),
        "bias": ("a model without score biases", not bias),
        "dropout": ("an attention dropout of 0", not dropout),
    }
    required = {"varlen": ("device", "dtype", "bias"), "flex": ("device", "dropout")}.get(wanted, ())
    missing = [name for name in required if not needs[name][1]]
    if missing:
        raise BothwaysError(
            f"the attention backend {wanted!r} needs {' and '.join(needs[name][0] for name in missing)}",
            "unsupported-backend",
            (wanted, *missing),
        )
    return wanted


def make_plan(batch: Batch, backend: Backend, relative: Callable[[], Tensor] = _no_table) -> AttentionPlan:
    """The plan of a batch: for `dense`, its sequences are grouped into grids of similar length."""
    if backend != "dense" or batch.is_even:
        return AttentionPlan(batch, backend, relative=relative)
    if torch.compiler.is_compiling():
        return _static_plan(batch, relative)
    cu_seqlens = batch.cu_seqlens.tolist()
    grids = []
    min_fill = _MIN_FILL_ON_GPU if batch.cu_seqlens.is_cuda else _MIN_FILL
    for members in _group_by_length([end - start for start, end in itertools.pairwise(cu_seqlens)], min_fill):
        grids.append(_grid([(cu_seqlens[b], cu_seqlens[b + 1]) for b in members], batch.cu_seqlens.device))
    order = torch.empty_like(batch.ids)
    begin = 0
    for grid in grids:
        place = torch.arange(begin, begin + grid.rows.numel(), device=order.device).view(grid.rows.shape)
        begin += grid.rows.numel()
        if grid.real is None:
            order[grid.rows.flatten()] = place.flatten()
        else:
            order[grid.rows[grid.real]] = place[grid.real]
    return AttentionPlan(batch, backend, tuple(grids), order, relative=relative)


def _static_plan(batch: Batch, relative: Callable[[], Tensor]) -> AttentionPlan:
    """One grid for the whole batch. Its shape does not depend on the lengths, so that nothing is compiled again."""
    place = torch.arange(batch.max_seqlen, device=batch.cu_seqlens.device)
    # An empty sequence attends to one token of another, as a softmax over nothing is NaN; its output is not used.
    real = place < batch.lengths.clamp(min=1)[:, None]
    rows = (batch.cu_seqlens[:-1, None] + torch.where(real, place, 0)).clamp(max=len(batch.ids) - 1)
    owners = batch.owners
    inside = torch.arange(len(batch.ids), device=batch.cu_seqlens.device) - batch.cu_seqlens[owners]
    return AttentionPlan(
        batch, "dense", (Grid(rows, real, None),), owners * batch.max_seqlen + inside, relative=relative
    )


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: AttentionPlan,
    *,
    scale: float,
    window: Window | None = None,
    bias: Bias | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Attention inside each sequence. q, k, v: (N, H, D) → (N, H, D)."""
    run = {"reference": _reference, "dense": _dense, "varlen": _varlen, "flex": _flex}[plan.backend]
    return run(q, k, v, plan, scale, window, bias, dropout)


def attention_weights(
    q: Tensor, k: Tensor, batch: Batch, *, scale: float, window: Window | None = None, bias: Bias | None = None
) -> list[Tensor]:
    """softmax(Q Kᵀ · scale + bias) in fp32, for each sequence (H, L, L): one row per query, each sums to 1."""
    found, bias_of = [], _pairwise(bias)
    bounds = batch.cu_seqlens.tolist()
    for start, end in itertools.pairwise(bounds):
        scores = torch.einsum("ihd,jhd->hij", q[start:end].float(), k[start:end].float()) * scale
        i = torch.arange(start, end, device=q.device)
        if bias_of is not None:
            heads = torch.arange(q.shape[1], device=q.device)
            scores = scores + bias_of(heads[:, None, None], i[:, None], i[None, :])
        if window is not None:
            scores = scores.masked_fill(~_in_window(i[:, None], i[None, :], window), float("-inf"))
        found.append(scores.softmax(-1))
    return found


def _reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: AttentionPlan,
    scale: float,
    window: Window | None,
    bias: Bias | None,
    dropout: float,
) -> Tensor:
    """The definition of attention. Every other backend is tested against it."""
    weights = attention_weights(q, k, plan.batch, scale=scale, window=window, bias=bias)
    starts = plan.batch.cu_seqlens.tolist()
    outputs = [
        torch.einsum("hij,jhd->ihd", F.dropout(w, dropout), v[start : start + w.shape[-1]].float())
        for start, w in zip(starts, weights, strict=False)
    ]
    return torch.cat(outputs).to(q.dtype)


def _dense(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: AttentionPlan,
    scale: float,
    window: Window | None,
    bias: Bias | None,
    dropout: float,
) -> Tensor:
    batch = plan.batch
    if window and not torch.compiler.is_compiling() and all(n < 0 or n >= batch.max_seqlen - 1 for n in window):
        window = None  # it covers the longest sequence, and SDPA is faster without a mask
    if not plan.grids:  # all sequences have the same length: the batch is one grid, by a view
        shape = (batch.size, batch.max_seqlen)
        rows = torch.arange(q.shape[0], device=q.device).view(shape) if window or bias else None
        mask = None if rows is None else _mask(rows, None, q, window, bias, lambda x: x)
        return _sdpa(q, k, v, shape, mask, scale, dropout).reshape(q.shape)
    outputs = []
    for grid in plan.grids:
        shape = (grid.rows.shape[0], grid.rows.shape[1])
        mask = _mask(grid.rows, grid.real, q, window, bias, partial(_take, grid=grid))
        outputs.append(_sdpa(_take(q, grid), _take(k, grid), _take(v, grid), shape, mask, scale, dropout).flatten(0, 1))
    assert plan.order is not None
    return torch.cat(outputs).index_select(0, plan.order)


def _varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: AttentionPlan,
    scale: float,
    window: Window | None,
    bias: Bias | None,
    dropout: float,
) -> Tensor:
    # The public torch.nn.attention.varlen.varlen_attn calls the same operator, but has no dropout.
    assert bias is None
    cu_seqlens, max_seqlen = plan.batch.cu_seqlens, plan.batch.max_seqlen
    left, right = window or (None, None)
    out: Tensor = torch.ops.aten._flash_attention_forward(
        q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, dropout, False, False,
        scale=scale, window_size_left=left, window_size_right=right,
    )[0]  # fmt: skip
    return out


def _flex(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: AttentionPlan,
    scale: float,
    window: Window | None,
    bias: Bias | None,
    dropout: float,
) -> Tensor:
    assert dropout == 0.0
    flex_attention, _ = _compiled_flex()
    bias_of = _pairwise(bias)
    if window not in plan.masks:
        plan.masks[window] = _block_mask(plan.batch, window)

    def biased(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        assert bias_of is not None
        return score + bias_of(h, i, j)

    qkv = [x.transpose(0, 1)[None] for x in (q, k, v)]  # (1, H, N, D)
    # With a bias, the default of three pipeline stages does not always fit into a GPU's shared memory.
    options, score_mod = ({"num_stages": 2}, biased) if bias_of else (None, None)
    out: Tensor = flex_attention(
        *qkv, score_mod=score_mod, block_mask=plan.masks[window], scale=scale, kernel_options=options
    )
    return out[0].transpose(0, 1)


def _block_mask(batch: Batch, window: Window | None) -> Any:
    _, create_block_mask = _compiled_flex()
    tokens, device = batch.ids.shape[0], batch.cu_seqlens.device
    document = batch.owners
    # Tensors, not ints: the compiler makes ints that change symbolic, which its kernel cannot use.
    left, right = (torch.tensor(tokens if n < 0 else n, device=device) for n in window or (-1, -1))

    def visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (document[i] == document[j]) & (i - j <= left) & (j - i <= right)

    return create_block_mask(visible, None, None, tokens, tokens, device=device)


@cache
def _compiled_flex() -> tuple[Callable[..., Any], Callable[..., Any]]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    # Compiled, because the eager versions materialise all N × N scores.
    return torch.compile(flex_attention), torch.compile(create_block_mask)


def _sdpa(
    q: Tensor, k: Tensor, v: Tensor, shape: tuple[int, int], mask: Tensor | None, scale: float, dropout: float
) -> Tensor:
    """q, k, v: (S · L, H, D) → (S, L, H, D)."""
    q, k, v = (x.unflatten(0, shape).transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale).transpose(1, 2)


def _mask(
    rows: Tensor, real: Tensor | None, q: Tensor, window: Window | None, bias: Bias | None, take: Take
) -> Tensor | None:
    """The attention mask of SDPA, which broadcasts to (S, H, L, L): None, booleans, or numbers added to the scores."""
    i, j = rows[:, None, :, None], rows[:, None, None, :]
    visible = None if real is None else real[:, None, None, :]
    if window is not None:
        # A query of padding may have no real key in its window. It attends to all: a softmax over nothing is NaN.
        inside = _in_window(i, j, window)
        visible = inside if visible is None else (inside & visible) | ~real[:, None, :, None]  # type: ignore[index]
    if bias is None:
        return visible
    if isinstance(bias, GridBias):
        scores = bias.grid(rows.shape[0], rows.shape[1], take).to(q.dtype)
    else:
        scores = bias(torch.arange(q.shape[1], device=q.device)[None, :, None, None], i, j).to(q.dtype)
    return scores if visible is None else scores.masked_fill(~visible, float("-inf"))


def _pairwise(bias: Bias | None) -> Pairwise | None:
    return bias.pairwise() if isinstance(bias, GridBias) else bias


def _in_window(i: Tensor, j: Tensor, window: Window) -> Tensor:
    left, right = window
    distance = j - i
    inside = torch.ones_like(distance, dtype=torch.bool)
    if left >= 0:
        inside = inside & (distance >= -left)
    if right >= 0:
        inside = inside & (distance <= right)
    return inside


def _group_by_length(lengths: list[int], min_fill: float) -> list[list[int]]:
    """Indices of sequences in groups of similar length, longest first."""
    groups: list[list[int]] = []
    for b in sorted(range(len(lengths)), key=lambda b: -lengths[b]):
        if groups and lengths[b] >= min_fill * lengths[groups[-1][0]]:
            groups[-1].append(b)
        else:
            groups.append([b])
    return groups


def _grid(bounds: list[tuple[int, int]], device: torch.device) -> Grid:
    bounds = sorted(bounds)
    starts = torch.tensor([start for start, _ in bounds], device=device)
    lengths = torch.tensor([end - start for start, end in bounds], device=device)
    longest = max(end - start for start, end in bounds)
    place = torch.arange(longest, device=device)
    real = place < lengths[:, None]
    rows = starts[:, None] + torch.where(real, place, 0)
    if all(end - start == longest for start, end in bounds):
        is_consecutive = all(end == start for (_, end), (start, _) in itertools.pairwise(bounds))
        return Grid(rows, None, bounds[0][0] if is_consecutive else None)
    return Grid(rows, real, None)


def _take(x: Tensor, grid: Grid) -> Tensor:
    """The tokens of a grid: (N, H, D) → (S · L, H, D)."""
    if grid.start is not None:
        return x.narrow(0, grid.start, grid.rows.numel())
    return x.index_select(0, grid.rows.flatten())
