"""Attention inside each sequence of a packed batch, and the backends that compute it.

N tokens in the batch · B sequences · H heads · D per head · L tokens of one sequence, or of a grid's longest.

    Attention(Q, K, V) = softmax(Q Kᵀ · scale + bias) V        over the keys of the query's own sequence

`make_plan` chooses a backend once per forward pass; `attend` runs it in every layer. This is the only
file that knows of padding, masks and kernels.

| backend   | where                     | window | bias | dropout |
|-----------|---------------------------|--------|------|---------|
| reference | anywhere, slow, in fp32   | yes    | yes  | yes     |
| dense     | anywhere (SDPA on a grid) | yes    | yes  | yes     |
| varlen    | CUDA, 16 bit (flash)      | yes    | no   | yes     |
| flex      | CUDA (compiled)           | yes    | yes  | no      |
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from bothways.errors import BothwaysError
from bothways.model.batch import Batch

Backend = Literal["auto", "reference", "dense", "varlen", "flex"]

Window = tuple[int, int]
"""How many tokens to the left and to the right a token sees; -1 is no limit. (-1, 0) is left to right."""

Pairwise = Callable[[Tensor, Tensor, Tensor], Tensor]
"""bias(h, i, j): what is added to the score of head h between query token i and key token j, where i and j
count through the whole batch. The three are whole numbers of shapes that broadcast."""

Take = Callable[[Tensor], Tensor]
"""What every token of the batch has, (N, …) → what the tokens of a grid have, row by row, (S · L, …)."""


class GridBias(ABC):
    """A bias that has a faster way for whole grids. Subclasses answer both."""

    @abstractmethod
    def pairwise(self) -> Pairwise:
        """For any two tokens."""

    @abstractmethod
    def grid(self, size: int, longest: int, take: Take) -> Tensor:
        """For `size` sequences side by side, each from its beginning, padded to L: (S or 1, H, L, L)."""


Bias = Pairwise | GridBias


# A grid holds sequences at least this full, so that at most a fifth of its places is padding. Equal lengths only
# would make many small products; one grid for all would pad a short text to the longest. A GPU would rather pad
# than be asked often.
_FULL = 0.8
_FULL_ON_GPU = 0.33


@dataclass(frozen=True)
class Grid:
    """Some sequences side by side, padded to the longest of them."""

    rows: Tensor
    """(sequences, L): which token of the batch stands where; padding repeats a token of its own sequence."""
    real: Tensor | None
    """(sequences, L): True where it is not padding. None if nothing is."""
    start: int | None
    """If the rows are simply the tokens from `start` on, then `start`: they need no gathering."""


def _no_table() -> Tensor:
    raise AssertionError("this model has no table of relative distances")


@dataclass(frozen=True)
class AttentionPlan:
    """How this batch will be attended: the same for every layer."""

    batch: Batch
    backend: Backend
    grids: tuple[Grid, ...] = ()
    order: Tensor | None = None
    """(N,) for `dense`: token n of the batch stands at place order[n] of the grids, one grid after the other."""
    masks: dict[Window | None, Any] = field(default_factory=dict)
    """For `flex`: the block masks by window, made by the first layer that has it."""
    rotations: dict[float, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """For rotary positions: cosines and sines by base, made by the first layer that has it."""
    relative: Callable[[], Tensor] = _no_table
    """For relative positions: the table of distances that all layers share."""


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
    """The backend to use. An explicit wish is fulfilled or refused, never silently replaced."""
    half = dtype in (torch.float16, torch.bfloat16)
    if wanted == "auto":
        if device != "cuda":
            return "dense"
        if bias:
            return "dense" if dropout else "flex"
        # Equal lengths without a window are a grid already, as a free view: nothing is left for varlen to save.
        plain = is_even and not window
        return "varlen" if half and not plain else "dense"
    obstacles: dict[str, list[tuple[bool, str]]] = {
        "reference": [],
        "dense": [],
        "varlen": [
            (device != "cuda", "a CUDA device"),
            (not half, "16-bit numbers"),
            (bias, "a model without score biases"),
        ],
        "flex": [(device != "cuda", "a CUDA device"), (dropout, "attention dropout 0")],
    }
    if wanted not in obstacles:
        raise BothwaysError(f"there is no attention backend {wanted!r}: expected auto, {', '.join(obstacles)}")
    missing = [need for stands, need in obstacles[wanted] if stands]
    if missing:
        raise BothwaysError(f"the attention backend {wanted!r} needs {' and '.join(missing)}")
    return wanted


def make_plan(batch: Batch, backend: Backend, relative: Callable[[], Tensor] = _no_table) -> AttentionPlan:
    """What `attend` and the layers' positions need to know of a batch, worked out once."""
    if backend != "dense" or batch.is_even:
        return AttentionPlan(batch, backend, relative=relative)
    if torch.compiler.is_compiling():
        return _static_plan(batch, relative)
    cu_seqlens = batch.cu_seqlens.tolist()
    grids = []
    full = _FULL_ON_GPU if batch.cu_seqlens.is_cuda else _FULL
    for members in _alike([end - start for start, end in itertools.pairwise(cu_seqlens)], full):
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
    """One grid for all, as long as the longest: lengths are not looked at, so that one compiled program serves any."""
    place = torch.arange(batch.longest, device=batch.cu_seqlens.device)
    # A filler without tokens sees one that is not its own, and nobody sees what comes of it.
    real = place < batch.lengths.clamp(min=1)[:, None]
    rows = (batch.cu_seqlens[:-1, None] + torch.where(real, place, 0)).clamp(max=len(batch.ids) - 1)
    owners = batch.owners
    inside = torch.arange(len(batch.ids), device=batch.cu_seqlens.device) - batch.cu_seqlens[owners]
    return AttentionPlan(batch, "dense", (Grid(rows, real, None),), owners * batch.longest + inside, relative=relative)


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


def maps(
    q: Tensor, k: Tensor, batch: Batch, *, scale: float, window: Window | None = None, bias: Bias | None = None
) -> list[Tensor]:
    """The attention weights themselves, in fp32: for each sequence (H, L, L), rows are queries and sum to 1."""
    found, added = [], _pairwise(bias)
    bounds = batch.cu_seqlens.tolist()
    for start, end in itertools.pairwise(bounds):
        scores = torch.einsum("ihd,jhd->hij", q[start:end].float(), k[start:end].float()) * scale
        i = torch.arange(start, end, device=q.device)
        if added is not None:
            heads = torch.arange(q.shape[1], device=q.device)
            scores = scores + added(heads[:, None, None], i[:, None], i[None, :])
        if window is not None:
            scores = scores.masked_fill(~_sees(i[:, None], i[None, :], window), float("-inf"))
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
    """The definition, written down. Every other backend is tested against it."""
    weights = maps(q, k, plan.batch, scale=scale, window=window, bias=bias)
    starts = plan.batch.cu_seqlens.tolist()
    seen = [
        torch.einsum("hij,jhd->ihd", F.dropout(w, dropout), v[start : start + w.shape[-1]].float())
        for start, w in zip(starts, weights, strict=False)
    ]
    return torch.cat(seen).to(q.dtype)


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
    if not plan.grids:  # all sequences equally long: the grid is a view
        shape = (batch.size, batch.longest)
        rows = torch.arange(q.shape[0], device=q.device).view(shape) if window or bias else None
        mask = None if rows is None else _mask(rows, None, q, window, bias, lambda x: x)
        return _sdpa(q, k, v, shape, mask, scale, dropout).reshape(q.shape)
    seen = []
    for grid in plan.grids:
        shape = (grid.rows.shape[0], grid.rows.shape[1])
        mask = _mask(grid.rows, grid.real, q, window, bias, partial(_take, grid=grid))
        seen.append(_sdpa(_take(q, grid), _take(k, grid), _take(v, grid), shape, mask, scale, dropout).flatten(0, 1))
    assert plan.order is not None
    return torch.cat(seen).index_select(0, plan.order)


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
    # The public torch.nn.attention.varlen.varlen_attn calls this same op, but has no dropout.
    assert bias is None
    cu_seqlens, longest = plan.batch.cu_seqlens, plan.batch.longest
    left, right = window or (None, None)
    out: Tensor = torch.ops.aten._flash_attention_forward(
        q, k, v, cu_seqlens, cu_seqlens, longest, longest, dropout, False, False,
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
    added = _pairwise(bias)
    if window not in plan.masks:
        plan.masks[window] = _block_mask(plan.batch, window)

    def biased(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        assert added is not None
        return score + added(h, i, j)

    grid = [x.transpose(0, 1)[None] for x in (q, k, v)]  # (1, H, N, D)
    # With a bias, three stages of its tiles beside the keys and values do not always fit into the memory of a block.
    options, score_mod = ({"num_stages": 2}, biased) if added else (None, None)
    out: Tensor = flex_attention(
        *grid, score_mod=score_mod, block_mask=plan.masks[window], scale=scale, kernel_options=options
    )
    return out[0].transpose(0, 1)


def _block_mask(batch: Batch, window: Window | None) -> Any:
    _, create_block_mask = _compiled_flex()
    tokens, device = batch.ids.shape[0], batch.cu_seqlens.device
    document = batch.owners
    # Tensors, not numbers: the compiler makes numbers that change symbolic, and its kernel cannot use those.
    left, right = (torch.tensor(tokens if n < 0 else n, device=device) for n in window or (-1, -1))

    def visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (document[i] == document[j]) & (i - j <= left) & (j - i <= right)

    return create_block_mask(visible, None, None, tokens, tokens, device=device)


@cache
def _compiled_flex() -> tuple[Callable[..., Any], Callable[..., Any]]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    # Compiled, because the plain versions write out all N × N scores.
    return torch.compile(flex_attention), torch.compile(create_block_mask)


def _sdpa(
    q: Tensor, k: Tensor, v: Tensor, shape: tuple[int, int], mask: Tensor | None, scale: float, dropout: float
) -> Tensor:
    """q, k, v: (sequences · L, H, D) → (sequences, L, H, D)."""
    q, k, v = (x.unflatten(0, shape).transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale).transpose(1, 2)


def _mask(
    rows: Tensor, real: Tensor | None, q: Tensor, window: Window | None, bias: Bias | None, take: Take
) -> Tensor | None:
    """What SDPA adds to the scores, broadcasting to (sequences, H, L, L): None, True where seen, or numbers."""
    i, j = rows[:, None, :, None], rows[:, None, None, :]
    seen = None if real is None else real[:, None, None, :]
    if window is not None:
        # Padding repeats its sequence's first token, and a query must see something: its own place always is.
        inside = _sees(i, j, window)
        seen = inside if seen is None else (inside & seen) | ~real[:, None, :, None]  # type: ignore[index]
    if bias is None:
        return seen
    if isinstance(bias, GridBias):
        added = bias.grid(rows.shape[0], rows.shape[1], take).to(q.dtype)
    else:
        added = bias(torch.arange(q.shape[1], device=q.device)[None, :, None, None], i, j).to(q.dtype)
    return added if seen is None else added.masked_fill(~seen, float("-inf"))


def _pairwise(bias: Bias | None) -> Pairwise | None:
    return bias.pairwise() if isinstance(bias, GridBias) else bias


def _sees(i: Tensor, j: Tensor, window: Window) -> Tensor:
    left, right = window
    ahead = j - i
    seen = torch.ones_like(ahead, dtype=torch.bool)
    if left >= 0:
        seen = seen & (ahead >= -left)
    if right >= 0:
        seen = seen & (ahead <= right)
    return seen


def _alike(lengths: list[int], full: float) -> list[list[int]]:
    """Sequence numbers in groups of similar length, longest first."""
    groups: list[list[int]] = []
    for b in sorted(range(len(lengths)), key=lambda b: -lengths[b]):
        if groups and lengths[b] >= full * lengths[groups[-1][0]]:
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
        together = all(end == start for (_, end), (start, _) in itertools.pairwise(bounds))
        return Grid(rows, None, bounds[0][0] if together else None)
    return Grid(rows, real, None)


def _take(x: Tensor, grid: Grid) -> Tensor:
    """The tokens of a grid, (sequences · L, H, D)."""
    if grid.start is not None:
        return x.narrow(0, grid.start, grid.rows.numel())
    return x.index_select(0, grid.rows.flatten())
