"""Every attention backend against the written-out definition, and the choice among them."""

import itertools

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from bothways.model.attention import (
    Backend,
    Bias,
    Window,
    _no_table,
    _static_plan,
    attend,
    attention_weights,
    choose,
    make_plan,
)
from bothways.model.batch import Batch
from bothways.model.encoder import Encoder
from helpers import DEVICES, DIM, EVEN, HEADS, RAGGED, TINY, WINDOWS, distance_bias, make_loud, random_batch, refused

BIASES: list[Bias | None] = [None, distance_bias]


def slow(q: Tensor, k: Tensor, v: Tensor, lengths: tuple[int, ...], window: Window | None, bias: Bias | None) -> Tensor:
    """The equation token by token, in float64: shares no line with the library."""
    out = torch.zeros(q.shape, dtype=torch.float64)
    start = 0
    for length in lengths:
        for i in range(start, start + length):
            for h in range(HEADS):
                scores = {}
                for j in range(start, start + length):
                    if window and ((window[0] >= 0 and i - j > window[0]) or (window[1] >= 0 and j - i > window[1])):
                        continue
                    scores[j] = q[i, h].double() @ k[j, h].double() / DIM**0.5
                    if bias:
                        scores[j] = scores[j] + bias(torch.tensor(h), torch.tensor(i), torch.tensor(j))
                weights = torch.softmax(torch.stack(list(scores.values())), 0)
                out[i, h] = sum(w * v[j, h].double() for w, j in zip(weights, scores, strict=True))
        start += length
    return out


@pytest.mark.parametrize("bias", BIASES, ids=["plain", "bias"])
@pytest.mark.parametrize("window", WINDOWS)
def test_the_reference_is_the_equation(window: Window | None, bias: Bias | None) -> None:
    lengths = (4, 1, 9)
    batch, q, k, v = random_batch(lengths)
    out = attend(q, k, v, make_plan(batch, "reference"), scale=DIM**-0.5, window=window, bias=bias)
    assert torch.allclose(out.double(), slow(q, k, v, lengths, window, bias), atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bias", BIASES, ids=["plain", "bias"])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(
    "lengths", [RAGGED, EVEN, (1,), (7,), (4, 9, 4)], ids=["ragged", "even", "one-token", "one-text", "equal-but-apart"]
)
def test_dense_equals_reference(
    lengths: tuple[int, ...], window: Window | None, bias: Bias | None, device: str
) -> None:
    batch, q, k, v = random_batch(lengths, device)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    outs, grads = [], []
    for backend in ("dense", "reference"):
        out = attend(q, k, v, make_plan(batch, backend), scale=0.3, window=window, bias=bias)  # type: ignore[arg-type]
        outs.append(out)
        grads.append(torch.autograd.grad((out * torch.arange(DIM, device=device)).sum(), leaves))
    assert torch.allclose(outs[0], outs[1], atol=2e-5)
    for dense, reference in zip(grads[0], grads[1], strict=True):
        assert torch.allclose(dense, reference, atol=2e-3, rtol=1e-4)


@pytest.mark.parametrize(("min_fill", "count"), [(0.8, 4), (0.33, 2), (0.0, 1)])
def test_grids_are_as_full_as_required(min_fill: float, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bothways.model.attention._MIN_FILL", min_fill)
    batch, q, k, v = random_batch((20, 3, 17, 9, 8, 2), "cpu")
    plan = make_plan(batch, "dense")
    assert len(plan.grids) == count
    assert all(grid.real is None or float(grid.real.float().mean(1).min()) >= min_fill for grid in plan.grids)
    dense, reference = (attend(q, k, v, p, scale=0.3) for p in (plan, make_plan(batch, "reference")))
    assert float((dense - reference).abs().max()) < 1e-5


@pytest.mark.parametrize("device", DEVICES)
def test_attention_weights_give_the_output(device: str) -> None:
    batch, q, k, v = random_batch(RAGGED, device)
    weights = attention_weights(q, k, batch, scale=0.3)
    out = attend(q, k, v, make_plan(batch, "dense"), scale=0.3)
    for w, values, expected in zip(weights, v.split(RAGGED), out.split(RAGGED), strict=True):
        assert torch.allclose(w.sum(-1), torch.ones_like(w[..., 0]))
        assert torch.allclose(torch.einsum("hij,jhd->ihd", w, values), expected, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("lengths", [RAGGED, EVEN])
@pytest.mark.parametrize("backend", ["dense", "reference"])
def test_dropout_drops_and_keeps_the_mean(backend: Backend, lengths: tuple[int, ...], device: str) -> None:
    torch.manual_seed(0)
    batch, q, k, v = random_batch(lengths, device)
    plan = make_plan(batch, backend)
    clean = attend(q, k, v, plan, scale=0.3)
    noisy = torch.stack([attend(q, k, v, plan, scale=0.3, dropout=0.3) for _ in range(400)])
    assert not torch.allclose(noisy[0], noisy[1])
    spread = noisy.std(0) / 400**0.5
    assert float(((noisy.mean(0) - clean).abs() / (spread + 1e-4)).mean()) < 1.5


def test_a_sequence_does_not_see_its_neighbours() -> None:
    batch, q, k, v = random_batch(RAGGED)
    before = attend(q, k, v, make_plan(batch, "dense"), scale=1.0)
    k[:5], v[:5] = 100.0, -100.0  # the first sequence changes, and no other
    after = attend(q, k, v, make_plan(batch, "dense"), scale=1.0)
    assert torch.equal(before[5:], after[5:])
    assert not torch.allclose(before[:5], after[:5])


def test_the_choice() -> None:
    half, full = torch.bfloat16, torch.float32
    assert choose("auto", device="cpu", dtype=full) == "dense"
    assert choose("auto", device="cpu", dtype=half, bias=True) == "dense"
    assert choose("auto", device="cuda", dtype=half) == "varlen"
    assert choose("auto", device="cuda", dtype=half, is_even=True) == "dense"
    with torch.no_grad():
        assert choose("auto", device="cuda", dtype=half, is_even=True) == "varlen"
    assert choose("auto", device="cuda", dtype=half, is_even=True, window=True) == "varlen"
    assert choose("auto", device="cuda", dtype=full) == "dense"
    assert choose("auto", device="cuda", dtype=half, bias=True) == "dense"
    assert choose("auto", device="cuda", dtype=half, bias=True, dropout=True) == "dense"
    assert choose("reference", device="cpu", dtype=half, bias=True, dropout=True) == "reference"


@pytest.mark.parametrize(
    ("wanted", "missing", "facts"),
    [
        ("varlen", "device", {"device": "cpu", "dtype": torch.bfloat16}),
        ("varlen", "dtype", {"device": "cuda", "dtype": torch.float32}),
        ("varlen", "bias", {"device": "cuda", "dtype": torch.float16, "bias": True}),
        ("flex", "dropout", {"device": "cuda", "dtype": torch.float16, "dropout": True}),
        ("flex", "device", {"device": "cpu", "dtype": torch.float16}),
    ],
)
def test_a_backend_that_cannot_serve_is_refused(wanted: Backend, missing: str, facts: dict[str, object]) -> None:
    with refused("unsupported-backend", (wanted, missing)):
        choose(wanted, **facts)  # type: ignore[arg-type]


def test_an_unknown_backend_is_refused() -> None:
    with refused("unknown-choice", "cudnn"):
        choose("cudnn", device="cuda", dtype=torch.float16)


def test_the_flash_op_is_still_called_as_we_call_it() -> None:
    """The varlen backend uses an op without a public name; its signature is checked even where no GPU is."""
    names = [argument.name for argument in torch.ops.aten._flash_attention_forward.default._schema.arguments]
    assert names[:10] == [
        "query", "key", "value", "cum_seq_q", "cum_seq_k", "max_q", "max_k", "dropout_p", "is_causal", "return_debug_mask",
    ]  # fmt: skip
    assert {"scale", "window_size_left", "window_size_right"} <= set(names[10:])


@pytest.mark.parametrize("backend", ["dense", "reference"])
def test_an_encoder_gives_the_same_on_each_backend(backend: Backend) -> None:
    encoder = Encoder(TINY).eval()
    make_loud(encoder)
    batch = Batch.pack([[5] * 9, [7, 8], [6] * 30])
    expected = encoder(batch)
    encoder.backend = backend
    assert torch.allclose(encoder(batch), expected, atol=1e-5)
    encoder.backend = "varlen"
    with refused("unsupported-backend", ("varlen", "device", "dtype")):
        encoder(batch)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("bias", [None, distance_bias])
def test_one_compiled_program_serves_uneven_batches(window: Window | None, bias: Bias | None) -> None:
    """Lengths change from batch to batch, shapes do not: nothing is compiled again, and gradients are right.

    The last sequence of a batch of one shape may be an empty filler.
    """
    torch.compiler.reset()
    counter = CompileCounter()

    def call(q: Tensor, k: Tensor, v: Tensor, batch: Batch) -> Tensor:
        return attend(q, k, v, make_plan(batch, "dense"), scale=0.3, window=window, bias=bias)

    run = torch.compile(call, backend=counter, fullgraph=True, dynamic=False)
    for lengths in ((7, 2, 5), (1, 7, 6), (7, 7, 0)):
        whole = Batch.pack([[1] * n for n in lengths if n])
        cu_seqlens = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
        batch = Batch(whole.ids, whole.segments, whole.positions, cu_seqlens, 7)
        (grid,) = _static_plan(batch, _no_table).grids
        assert grid.real is not None
        assert grid.real.any(1).all()  # a row that sees nothing is NaN to some kernels
        draws = torch.Generator().manual_seed(sum(lengths[:2]))
        q, k, v = (torch.randn(14, HEADS, DIM, generator=draws).requires_grad_() for _ in range(3))
        found = run(q, k, v, batch)
        expected = attend(q, k, v, make_plan(whole, "reference"), scale=0.3, window=window, bias=bias)
        assert torch.allclose(found, expected, atol=1e-5)
        grads = [torch.autograd.grad(out.square().sum(), (q, k, v)) for out in (found, expected)]
        for one, other in zip(*grads, strict=True):
            assert torch.allclose(one, other, atol=1e-4)
    assert counter.frame_count == 1
