"""Activation functions by the names that config files use."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class FastGelu(torch.autograd.Function):
    """x · Φ(x) and its derivative Φ(x) + x · φ(x), with both from one exponential, and no branches.

    The tail Φ(-|x|) is φ(x) times a polynomial (Abramowitz and Stegun 7.1.26) with an error of at most 1e-7, far below
    the rounding of 16-bit numbers. On a GPU, computing erf takes longer than reading and writing the numbers.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        wide = x.float()
        return (wide * _normal(wide)[0]).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> Tensor:
        x: Tensor = ctx.saved_tensors[0]
        wide = x.float()
        below, density = _normal(wide)
        return (above[0].float() * (below + wide * density)).to(x.dtype)


def _normal(x: Tensor) -> tuple[Tensor, Tensor]:
    """The distribution function and the density of the normal distribution: Φ(x), φ(x)."""
    t = 1 / (1 + 0.3275911 * 0.5**0.5 * x.abs())
    bell = torch.exp(-0.5 * x * x)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    tail = 0.5 * series * bell
    return torch.where(x < 0, tail, 1 - tail), bell * (2 * math.pi) ** -0.5


def gelu(x: Tensor) -> Tensor:
    """The exact GELU, x · Φ(x), computed with erf."""
    if torch.compiler.is_compiling() and x.is_cuda and x.dtype in (torch.float16, torch.bfloat16):
        out: Tensor = FastGelu.apply(x)  # type: ignore[no-untyped-call]
        return out
    return F.gelu(x)


def without_fast_gelu(module: nn.Module) -> None:
    """Use torch's own GELU in a module: the compiler cannot trace an autograd function with dynamic shapes."""
    for part in module.modules():
        if getattr(part, "activation", None) is gelu:
            part.activation = cast(Any, F.gelu)


def _gelu_10(x: Tensor) -> Tensor:
    return F.gelu(x).clamp(-10, 10)


def _quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def _relu_squared(x: Tensor) -> Tensor:
    return F.relu(x).square()


def _linear(x: Tensor) -> Tensor:
    return x


_gelu_tanh = partial(F.gelu, approximate="tanh")

# The tanh approximation differs from the exact GELU by up to 4.7e-4: the two are not interchangeable.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "gelu_fast": _gelu_tanh,
    "gelu_accurate": _gelu_tanh,
    "gelu_python": gelu,
    "gelu_python_tanh": _gelu_tanh,
    "gelu_10": _gelu_10,
    "quick_gelu": _quick_gelu,
    "relu": F.relu,
    "relu2": _relu_squared,
    "relu6": F.relu6,
    "leaky_relu": F.leaky_relu,
    "hardswish": F.hardswish,
    "silu": F.silu,
    "swish": F.silu,
    "mish": F.mish,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "linear": _linear,
}
