"""Activation functions in ONNX's operators."""

from collections.abc import Callable

import numpy as np
from torch import Tensor

from bothways.export.graph import Graph
from bothways.model.activations import ACTIVATIONS


def activate(g: Graph, x: str, function: Callable[[Tensor], Tensor]) -> str:
    """The activation function of a module."""
    return _BY_FUNCTION[function](g, x)


def _gelu(g: Graph, x: str) -> str:
    """x · (1 + erf(x / √2)) / 2, in the order that ONNX Runtime fuses, but not behind a product of its own (int8)."""
    if g.precision == "int8":
        return g.add("Gelu", x, domain="com.microsoft")
    erf = g.add("Erf", g.add("Div", x, g.constant(2.0**0.5)))
    return g.add("Mul", g.add("Mul", x, g.add("Add", erf, g.constant(1.0))), g.constant(0.5))


def _gelu_tanh(g: Graph, x: str) -> str:
    cube = g.add("Mul", g.add("Mul", x, x), x)
    inner = g.add("Add", x, g.add("Mul", cube, g.constant(0.044715)))
    tanh = g.add("Tanh", g.add("Mul", inner, g.constant((2 / np.pi) ** 0.5)))
    return g.add("Mul", g.add("Mul", x, g.add("Add", tanh, g.constant(1.0))), g.constant(0.5))


def _clipped(low: float, high: float) -> Callable[[Graph, str], str]:
    return lambda g, x: g.add("Clip", x, g.constant(low), g.constant(high))


def _gated_by_sigmoid(factor: float) -> Callable[[Graph, str], str]:
    def activation(g: Graph, x: str) -> str:
        scaled = x if factor == 1 else g.add("Mul", x, g.constant(factor))
        return g.add("Mul", x, g.add("Sigmoid", scaled))

    return activation


def _relu_squared(g: Graph, x: str) -> str:
    positive = g.add("Relu", x)
    return g.add("Mul", positive, positive)


BY_NAME: dict[str, Callable[[Graph, str], str]] = {
    "gelu": _gelu,
    "gelu_new": _gelu_tanh,
    "gelu_10": lambda g, x: _clipped(-10.0, 10.0)(g, _gelu(g, x)),
    "quick_gelu": _gated_by_sigmoid(1.702),
    "relu": lambda g, x: g.add("Relu", x),
    "relu2": _relu_squared,
    "relu6": _clipped(0.0, 6.0),
    "leaky_relu": lambda g, x: g.add("LeakyRelu", x, alpha=0.01),
    "hardswish": lambda g, x: g.add("HardSwish", x),
    "silu": _gated_by_sigmoid(1.0),
    "mish": lambda g, x: g.add("Mul", x, g.add("Tanh", g.add("Softplus", x))),
    "tanh": lambda g, x: g.add("Tanh", x),
    "sigmoid": lambda g, x: g.add("Sigmoid", x),
    "linear": lambda g, x: x,
}
_BY_FUNCTION = {ACTIVATIONS[name]: make for name, make in BY_NAME.items()}
"""By function, since several names of config files mean the same one."""
