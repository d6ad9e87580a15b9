"""The backends that need a CUDA device. Collected only where there is one: see conftest.py."""

import pytest
import torch

from bothways.model.attention import Backend, Window, attend, make_plan
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
