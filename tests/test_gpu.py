"""The backends that need a CUDA device. Collected only where there is one: see conftest.py."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch

from bothways.model.attention import Backend, Window, attend, make_plan
from bothways.model.batch import Batch
from bothways.model.config import EncoderConfig, Learned, ModelConfig
from bothways.model.families import FAMILIES
from bothways.model.model import Model
from bothways.pretraining.pretrain import pretrain
from bothways.search.nearest import nearest
from helpers import EVEN, RAGGED, WINDOWS, distance_bias, random_batch

pytestmark = pytest.mark.filterwarnings("default")  # torch's compiler warns about itself


@pytest.mark.parametrize("backend", ["varlen", "flex"])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("lengths", [RAGGED, EVEN, (300, 7, 128)])
def test_fast_backends_equal_reference(lengths: tuple[int, ...], window: Window | None, backend: Backend) -> None:
    batch, q, k, v = random_batch(lengths, "cuda")
    q, k, v = (x.bfloat16().requires_grad_() for x in (q, k, v))
    outs, grads = [], []
    for name in (backend, "reference"):
        out = attend(q, k, v, make_plan(batch, name), scale=0.3, window=window)  # type: ignore[arg-type]
        outs.append(out.detach().float())
        grads.append(torch.autograd.grad(out.float().square().sum(), (q, k, v)))
    assert float((outs[0] - outs[1]).abs().max()) < 0.03  # bf16 carries 8 bits: 4e-3 of values up to 3
    for fast, reference in zip(grads[0], grads[1], strict=True):
        error = float((fast - reference).float().norm() / reference.float().norm())
        assert error < 0.02


def test_flex_takes_a_bias() -> None:
    batch, q, k, v = random_batch(RAGGED, "cuda")
    fast, reference = (
        attend(q, k, v, make_plan(batch, name), scale=0.3, bias=distance_bias) for name in ("flex", "reference")
    )
    assert float((fast - reference).abs().max()) < 5e-3


def test_hashed_dropout_under_the_compiler() -> None:
    """About a tenth is dropped, another tenth each time, and the gradient knows which."""
    from bothways.model.dropout import Dropout

    drop = torch.compile(Dropout(0.1))
    x = torch.ones(512, 768, device="cuda", requires_grad=True)
    masks = []
    for _ in range(2):
        out = drop(x)
        (grad,) = torch.autograd.grad(out.sum(), x)
        assert torch.equal(out, grad)
        masks.append(out == 0)
        share = float(masks[-1].float().mean())
        assert abs(share - 0.1) < 5 * (0.09 / x.numel()) ** 0.5
        assert float(out.detach().max()) == pytest.approx(1 / 0.9)
    both = float((masks[0] & masks[1]).float().mean())
    assert abs(both - 0.01) < 0.002


@pytest.mark.parametrize("compiled", [False, True])
def test_dropout_inside_attention(compiled: bool) -> None:
    """With the identity as values, attention shows the weights that it kept: the gradients must be theirs."""
    size, heads, length, depth, p = 8, 4, 64, 64, 0.1
    batch, *_ = random_batch((length,) * size, "cuda")
    plan = make_plan(batch, "dense")
    draws = torch.Generator("cuda").manual_seed(1)
    q, k, v = (
        torch.randn(size * length, heads, depth, device="cuda", generator=draws).bfloat16().requires_grad_()
        for _ in range(3)
    )

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attend(q, k, v, plan, scale=0.3, dropout=p)

    run = torch.compile(call, dynamic=False) if compiled else call
    unit = torch.eye(depth, device="cuda", dtype=torch.bfloat16).repeat(size, 1)[:, None].expand(-1, heads, -1)
    outs = []
    for values in (unit.contiguous().requires_grad_(), v):
        torch.manual_seed(7)
        outs.append(run(q, k, values))
    kept = outs[0].detach().unflatten(0, (size, length)).transpose(1, 2) > 0  # (size, heads, query, key)
    assert abs(float((~kept).float().mean()) - p) < 0.01
    grid = [x.detach().float().unflatten(0, (size, length)).transpose(1, 2).requires_grad_() for x in (q, k, v)]
    weights = (grid[0] @ grid[1].transpose(2, 3) * 0.3).softmax(-1)
    slow = (weights * kept / (1 - p)) @ grid[2]
    above = torch.randn(slow.shape, device="cuda", generator=draws)
    expected = torch.autograd.grad(slow, grid, above)
    found = torch.autograd.grad(outs[1], (q, k, v), above.transpose(1, 2).flatten(0, 1).bfloat16())
    for fast, reference in zip((outs[1], *found), (slow, *expected), strict=True):
        reference = reference.transpose(1, 2).flatten(0, 1)
        assert float((fast.float() - reference).detach().norm() / reference.detach().norm()) < 0.02


def test_logits_and_gelu_as_on_the_cpu() -> None:
    """Where the GPU has code of its own: the same numbers and gradients, to the rounding of bf16."""
    from bothways.model.heads import MaskedLMHead

    head = MaskedLMHead(EncoderConfig(vocab_size=1001, width=64, layers=1, num_heads=1, ffn_width=64))
    torch.nn.init.normal_(head.bias)
    x, table = torch.randn(33, 64), torch.randn(1001, 64)
    above = torch.randn(33, 1001)
    results = []
    for device, dtype, wrap in (("cpu", torch.float64, lambda f: f), ("cuda", torch.bfloat16, torch.compile)):
        head = head.to(device, dtype)
        inputs = [x.to(device, dtype).requires_grad_(), table.to(device, dtype).requires_grad_()]
        out = wrap(head)(*inputs)
        grads = torch.autograd.grad(out, [*inputs, *head.parameters()], above.to(device, dtype))
        results.append([out.double().cpu(), *(g.double().cpu() for g in grads)])
    for exact, fast in zip(*results, strict=True):
        assert exact.shape == fast.shape
        assert float((exact - fast).norm() / exact.norm()) < 0.02


@pytest.mark.parametrize("compiled", [False, True])
def test_a_run_goes_on_bit_for_bit_on_a_gpu(packed: Path, tmp_path: Path, compiled: bool) -> None:
    """In bf16 with fp32 masters, dropout on, deterministic kernels."""
    from helpers.runs import losses, recipe, run_until

    plan = recipe(packed, save_every=5, device="cuda", deterministic=True, compile=compiled)
    pretrain(plan, tmp_path / "whole")
    run_until(plan, tmp_path / "parts", 13)
    pretrain(plan, tmp_path / "parts")
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")


def test_precisions_and_the_compiler_agree(packed: Path, tmp_path: Path) -> None:
    from helpers.runs import calm, losses, recipe

    found = {}
    for name, settings in {
        "fp32": {"precision": "fp32", "compile": False},
        "bf16": {"precision": "bf16", "compile": False},
        "compiled": {"precision": "bf16", "compile": True},
        "fp16": {"precision": "fp16", "compile": False},
        "cpu": {"device": "cpu"},
    }.items():
        plan = calm(recipe(packed, **({"device": "cuda"} | settings)))
        pretrain(plan, tmp_path / name)
        found[name] = losses(tmp_path / name)
    for name, curve in found.items():
        worst = max(abs(curve[step] - found["cpu"][step]) for step in curve)
        assert worst < (1e-3 if name in ("fp32", "cpu") else 0.1), (name, worst)


def test_accumulation_in_bf16_adds_up_in_fp32(packed: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    from helpers.runs import calm, losses, recipe

    plan = calm(recipe(packed, device="cuda", compile=False))
    pretrain(plan, tmp_path / "whole")
    pretrain(replace(plan, run=replace(plan.run, micro_tokens=64)), tmp_path / "parts")
    whole, parts = losses(tmp_path / "whole"), losses(tmp_path / "parts")
    assert max(abs(whole[step] - parts[step]) for step in whole) < 0.03


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("lengths", [(70, 3, 41), (64, 64)])
@pytest.mark.parametrize("family", [name for name, family in FAMILIES.items() if "masked" in family.heads])
def test_every_family_computes_and_learns_as_in_fp32(family: str, lengths: tuple[int, ...], compiled: bool) -> None:
    """bf16, the backend that is chosen by itself, eager and compiled: states and gradients of the definition in fp32."""
    shape = EncoderConfig(
        vocab_size=200, width=128, layers=3, num_heads=2, ffn_width=192, positions=Learned(128), dropout=0.0,
        attention_dropout=0.0, init_std=0.08,
    )  # fmt: skip
    model = Model.new(ModelConfig(FAMILIES[family].fresh(shape), ("masked",), family=family)).cuda().train()
    draws = torch.Generator().manual_seed(1)
    batch = Batch.pack([torch.randint(5, 200, (n,), generator=draws).tolist() for n in lengths]).to("cuda")
    above = torch.randn(sum(lengths), 128, generator=draws).cuda()
    model.encoder.backend = "reference"
    states = model.encoder(batch)
    expected = torch.autograd.grad(states, list(model.encoder.parameters()), above, allow_unused=True)
    fast = copy.deepcopy(model).bfloat16()
    fast.encoder.backend = "auto"
    run = torch.compile(fast.encoder, dynamic=False) if compiled else fast.encoder
    found_states = run(batch)
    found = torch.autograd.grad(found_states, list(fast.encoder.parameters()), above.bfloat16(), allow_unused=True)
    assert float((found_states.float() - states).norm() / states.norm()) < 0.03
    for (name, _), one, other in zip(model.encoder.named_parameters(), found, expected, strict=True):
        assert (one is None) == (other is None), name
        if one is not None and other is not None:
            error = float((one.float() - other).norm() / (other.norm() + 1e-3 * above.norm()))
            assert error < 0.08, (name, error)


def test_a_gpu_finds_the_same_nearest_rows() -> None:
    draw = np.random.default_rng(0)
    queries, corpus = draw.standard_normal((23, 48)), draw.standard_normal((5000, 48))
    there = nearest(queries, corpus, 10, budget=300_000, device="cuda")
    here = nearest(queries, corpus, 10, device="cpu")
    np.testing.assert_array_equal(there[1], here[1])
    np.testing.assert_array_equal(there[0], here[0])
