"""The backends that need a CUDA device. Collected only where there is one: see conftest.py."""

from pathlib import Path

import pytest
import torch

from bothways.model.attention import Backend, Window, attend, make_plan
from bothways.pretraining.pretrain import pretrain
from test_attention import EVEN, RAGGED, WINDOWS, distance_bias, random_batch

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
def test_a_run_goes_on_bit_for_bit_on_a_gpu(packed: Path, tmp_path: Path, compiled: bool) -> None:
    """In bf16 with fp32 masters, dropout on, deterministic kernels."""
    from test_fit import losses, recipe, run_until

    plan = recipe(packed, save_every=5, device="cuda", deterministic=True, compile=compiled)
    pretrain(plan, tmp_path / "whole")
    run_until(plan, tmp_path / "parts", 13)
    pretrain(plan, tmp_path / "parts")
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")


def test_precisions_and_the_compiler_agree(packed: Path, tmp_path: Path) -> None:
    from test_fit import calm, losses, recipe

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

    from test_fit import calm, losses, recipe

    plan = calm(recipe(packed, device="cuda", compile=False))
    pretrain(plan, tmp_path / "whole")
    pretrain(replace(plan, run=replace(plan.run, micro_tokens=64)), tmp_path / "parts")
    whole, parts = losses(tmp_path / "whole"), losses(tmp_path / "parts")
    assert max(abs(whole[step] - parts[step]) for step in whole) < 0.03
