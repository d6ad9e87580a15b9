"""Optimisers and schedules: BERT's groups, Muon against torch's own, learning rates at their corners."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bothways.model.config import ModelConfig
from bothways.model.model import Model
from bothways.train.fp32_master import MasterWeights
from bothways.train.optim import Muon, OptimSettings, lr_factor, make_optimizers, newton_schulz, set_lr
from helpers import TINY, refused


def named(model: Model) -> dict[str, torch.nn.Parameter]:
    return dict(model.named_parameters())


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_every_parameter_is_in_exactly_one_group(name: Any) -> None:
    model = Model.new(ModelConfig(TINY, ("pooler", "masked", "next")))
    optimizers = make_optimizers(named(model), OptimSettings(name=name))
    found = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    assert len(found) == len(set(found)) == len(named(model))


def test_decay_spares_biases_and_norms() -> None:
    model = Model.new(ModelConfig(TINY, ("pooler", "masked", "next")))
    (adamw,) = make_optimizers(named(model), OptimSettings(weight_decay=0.01))
    decayed = {p for group in adamw.param_groups if group["weight_decay"] == 0.01 for p in group["params"]}
    for name, parameter in named(model).items():
        spared = name.endswith("bias") or "norm" in name
        assert (parameter in decayed) is not spared, name


def test_muon_takes_the_hidden_matrices_only() -> None:
    model = Model.new(ModelConfig(TINY, ("pooler", "masked", "next")))
    adamw, muon = make_optimizers(named(model), OptimSettings(name="muon", lr=1e-3, muon_lr=0.02))
    hidden = {p for group in muon.param_groups for p in group["params"]}
    for name, parameter in named(model).items():
        assert (parameter in hidden) is ("blocks." in name and parameter.ndim == 2), name
    assert {group["weight_decay"] for group in muon.param_groups} == {0.1}
    assert {group["weight_decay"] for group in adamw.param_groups} == {0.0, 0.01}
    set_lr((adamw, muon), 0.5)
    assert {group["lr"] for group in adamw.param_groups} == {5e-4}
    assert {group["lr"] for group in muon.param_groups} == {0.01}


def test_layer_wise_decay_is_muons_too() -> None:
    """Each layer by its own rate; and they move as if each had an optimiser of its own."""
    model = Model.new(ModelConfig(TINY, ("pooler", "masked", "next")))
    _, muon = make_optimizers(named(model), OptimSettings(name="muon", muon_lr=0.02, layer_decay=0.5))
    start = {name: p.detach().clone() for name, p in named(model).items()}
    rates = {p: group["lr"] for group in muon.param_groups for p in group["params"]}
    for p in rates:
        p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(0))
    muon.step()
    for name, p in named(model).items():
        if p in rates:
            layer = int(name.split("blocks.")[1].split(".")[0])
            assert rates[p] == pytest.approx(0.02 * 0.5 ** (TINY.layers - layer)), name
            alone = torch.nn.Parameter(start[name])
            alone.grad = p.grad
            Muon([(name, alone)], lr=rates[p], weight_decay=0.1).step()
            assert torch.allclose(p, alone, atol=1e-6), name


def test_muon_equals_torchs_own() -> None:
    """On square and tall matrices; torch's computes in bf16, so the updates agree to its rounding."""
    draws = torch.Generator().manual_seed(0)
    shapes = {"a.weight": (16, 16), "b.weight": (32, 16), "c.weight": (16, 32), "d.weight": (16, 16)}
    start = {name: torch.randn(shape, generator=draws) for name, shape in shapes.items()}
    ours, theirs = ({name: torch.nn.Parameter(t.clone()) for name, t in start.items()} for _ in range(2))
    own = Muon(ours.items(), lr=0.02, momentum=0.95, weight_decay=0.1)
    judge = torch.optim.Muon(list(theirs.values()), lr=0.02, momentum=0.95, weight_decay=0.1, nesterov=True)
    for _ in range(5):
        for name in shapes:
            gradient = torch.randn(shapes[name], generator=draws)
            ours[name].grad, theirs[name].grad = gradient.clone(), gradient.clone()
        own.step()
        judge.step()
    for name in shapes:
        moved = (theirs[name] - start[name]).norm().item()
        assert (ours[name] - theirs[name]).norm().item() < 0.02 * moved, name


def test_muon_counts_query_key_and_value_as_three_matrices() -> None:
    draws = torch.Generator().manual_seed(0)
    gradient = torch.randn(48, 16, generator=draws)
    stacked = torch.nn.Parameter(torch.zeros(48, 16))
    apart = [torch.nn.Parameter(torch.zeros(16, 16)) for _ in range(3)]
    stacked.grad = gradient.clone()
    Muon([("blocks.0.attention.qkv.weight", stacked)], lr=0.1).step()
    for part, own in zip(apart, gradient.chunk(3), strict=True):
        part.grad = own.clone()
        Muon([("x.weight", part)], lr=0.1).step()
    assert torch.allclose(stacked, torch.cat([*apart]), atol=1e-6)


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 4, 16), (2, 16, 4)])
def test_newton_schulz_makes_singular_values_alike(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(newton_schulz(x))
    assert values.min().item() > 0.3
    assert values.max().item() < 1.3


def test_masters_move_by_less_than_bf16_can_tell() -> None:
    """A thousand steps of 1e-5 from 1.0: bf16 alone would stay where it is."""
    layer = torch.nn.Linear(4, 4)
    torch.nn.init.ones_(layer.weight)
    weights = MasterWeights(layer, torch.bfloat16)
    assert layer.weight.dtype == torch.bfloat16
    assert {p.dtype for p in weights.named.values()} == {torch.float32}
    optimizer = torch.optim.SGD(list(weights.trained.values()), lr=1e-5)
    for _ in range(1_000):
        layer(torch.eye(4, dtype=torch.bfloat16)).sum().backward()
        weights.gather()
        optimizer.step()
        optimizer.zero_grad()
        weights.publish()
    assert weights.named["weight"].mean().item() == pytest.approx(0.99, abs=1e-4)
    assert layer.weight.float().mean().item() == pytest.approx(0.99, abs=4e-3)


def test_masters_add_up_gradients_in_fp32() -> None:
    """256 + 1 is 256 in bf16."""
    layer = torch.nn.Linear(1, 1, bias=False)
    weights = MasterWeights(layer, torch.bfloat16)
    for value in (256.0, 1.0, 1.0):
        layer(torch.tensor([[value]], dtype=torch.bfloat16)).sum().backward()
        weights.gather()
    assert layer.weight.grad is None
    gradient = weights.named["weight"].grad
    assert gradient is not None
    assert gradient.item() == 258.0


# ---------------------------------------------------------------------- learning rates


def curve(steps: int, **settings: Any) -> list[float]:
    return [lr_factor(OptimSettings(**settings), step, step / steps) for step in range(steps)]


def test_linear_rises_to_one_and_falls_to_zero() -> None:
    found = curve(100, warmup=10)
    assert found[:10] == pytest.approx([(i + 1) / 10 for i in range(10)])
    assert found[10:] == pytest.approx([(100 - i) / 90 for i in range(10, 100)])


def test_warmup_as_a_share_or_as_steps_is_the_same_line() -> None:
    for schedule in ("linear", "cosine", "wsd", "constant"):
        share, steps = (curve(1000, warmup=w, schedule=schedule) for w in (0.1, 100))
        assert max(abs(a - b) for a, b in zip(share, steps, strict=True)) < 0.0101


def test_cosine_and_wsd_have_their_shapes() -> None:
    cosine = curve(1000, warmup=0, schedule="cosine")
    assert cosine[500] == pytest.approx(0.5, abs=1e-3)
    assert cosine[250] == pytest.approx(0.854, abs=1e-3)
    wsd = curve(1000, warmup=0.1, schedule="wsd", cooldown=0.2)
    assert set(wsd[100:800]) == {1.0}
    assert wsd[900] == pytest.approx(0.5, abs=1e-3)


@given(
    schedule=st.sampled_from(["linear", "cosine", "wsd", "constant"]),
    warmup=st.one_of(st.floats(0, 0.5), st.integers(1, 50).map(float)),
    steps=st.integers(60, 300),
)
def test_rates_stay_between_zero_and_one_and_end_low(schedule: Any, warmup: float, steps: int) -> None:
    found = curve(steps, schedule=schedule, warmup=warmup)
    assert all(0 <= value <= 1 for value in found)
    assert max(found) > 0.9
    if schedule != "constant":
        assert found[-1] < 0.11


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        *((name, 0.0, "out-of-range") for name in ("eps", "muon_lr", "cooldown", "layer_decay")),
        *(
            (name, -1.0, "out-of-range")
            for name in ("lr", "weight_decay", "muon_weight_decay", "clip", "warmup", "head_lr")
        ),
        ("betas", (0.9, 1.0), "out-of-range"),
        ("layer_decay", 1.1, "out-of-range"),
        ("name", "sgd", "unknown-choice"),
        ("schedule", "step", "unknown-choice"),
    ],
)
def test_settings_that_cannot_work_are_refused(name: str, value: Any, code: str) -> None:
    with refused(code, value):
        OptimSettings(**{name: value})
