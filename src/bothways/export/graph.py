"""A graph of ONNX operators, built node by node.

Names of values are strings: every method that adds an operator returns the name of its output.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

OPSET = 17
"""The lowest with LayerNormalization: ONNX Runtime 1.12 and newer read it, and its build for browsers."""
Precision = Literal["fp32", "fp16", "int8", "int8-blocks", "int4", "int8-dynamic"]
"""How matrices are stored, and multiplied:

fp32, fp16    products in fp32
int8          products of 8-bit integers: the weights of an output have a scale, and so has each token's vector
int8-blocks   weights in blocks of 32 with a scale each (MatMulNBits of ONNX Runtime)
int4          the same in 4 bits
int8-dynamic  as int8, but all tokens of a batch share one scale, so that a text's result depends on its neighbours
"""
Array = NDArray[Any]
_BLOCK = 32
"""Neighbouring weights of a row that share a scale, in 8 and 4 bits."""


class Graph:
    """Nodes and constants under construction.

    >>> from bothways.export.graph import Graph
    >>> graph = Graph("fp32")
    >>> graph.add("Add", "a", graph.constant(1.0))
    'add_1'
    """

    def __init__(self, precision: Precision, table_precision: Precision | None = None) -> None:
        """`precision`: how matrices are stored; `table_precision`: how embedding tables are. Sums are in fp32."""
        self.precision, self.table_precision = precision, table_precision or precision
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self._counts: dict[str, int] = {}
        self._known: dict[Any, str] = {}
        """Names of constants and weights that are in the graph already."""
        self._shapes: dict[tuple[int | str, ...], str] = {}
        """Shapes that are put together when the graph runs."""
        self._inputs: dict[tuple[str, str], list[str]] = {}
        """Inputs of matrix products in 8 bits, with their scales."""
        self._kept: list[Tensor] = []
        """Their tensors: places in memory that are free would be given again."""

    # ------------------------------------------------------------------ nodes

    def add(self, operator: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """One operator with one output."""
        return self.split(operator, *inputs, outputs=1, domain=domain, **attributes)[0]

    def split(self, operator: str, *inputs: str, outputs: int, domain: str = "", **attributes: Any) -> list[str]:
        """One operator with several outputs."""
        names = [self._name(operator.lower()) for _ in range(outputs)]
        self.nodes.append(helper.make_node(operator, inputs, names, names[0], domain=domain, **attributes))
        return names

    def input(self, name: str, kind: int, shape: Sequence[str | int]) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def output(self, name: str, value: str, shape: Sequence[str | int]) -> None:
        """Makes a value an output, under another name."""
        self.nodes.append(helper.make_node("Identity", [value], [name], name))
        self.outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def _name(self, stem: str) -> str:
        self._counts[stem] = self._counts.get(stem, 0) + 1
        return f"{stem}_{self._counts[stem]}"

    # ------------------------------------------------------------------ constants

    def constant(self, value: float | Sequence[int] | Array) -> str:
        """A constant: a float is fp32, a list of integers is int64, and an array is as it is."""
        array = np.asarray(value, np.float32) if isinstance(value, float) else np.asarray(value)
        array = array.astype(np.int64) if array.dtype.kind == "i" and not isinstance(value, np.ndarray) else array
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._known:
            self._known[key] = self._store(self._name("constant"), array)
        return self._known[key]

    def number(self, value: int) -> str:
        """An int64 without dimensions."""
        return self.constant(np.asarray(value, np.int64))

    def weight(self, tensor: Tensor) -> str:
        """A parameter in fp32, stored in 16 bits if the matrices are stored in 16 bits or fewer."""
        return self._once(("weight", _place(tensor)), tensor, lambda: self._weight(tensor))

    def _weight(self, tensor: Tensor) -> str:
        array = _array(tensor)
        if self.precision == "fp32" or array.ndim < 2:
            return self._store(self._name("weight"), array)
        return self.add("Cast", self._store(self._name("weight"), array.astype(np.float16)), to=TensorProto.FLOAT)

    def _once(self, key: Any, tensor: Tensor, make: Callable[[], str]) -> str:
        if key not in self._known:
            self._known[key] = make()
            self._kept.append(tensor)
        return self._known[key]

    def _store(self, name: str, array: Array) -> str:
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    # ------------------------------------------------------------------ layers

    def linear(self, x: str, weight: Tensor, bias: Tensor | None) -> str:
        """x · weightᵀ + bias, for x of two dimensions."""
        if self.precision in ("int8", "int8-dynamic"):
            return self._integers(x, weight, bias, by_row=self.precision == "int8")
        if self.precision in ("int8-blocks", "int4") and weight.shape[1] % _BLOCK == 0:
            return self._quantised(x, weight, bias, bits=4 if self.precision == "int4" else 8)
        last = (self.weight(bias),) if bias is not None else ()
        return self.add("Gemm", x, self.weight(weight), *last, transB=1)

    def layer(self, x: str, module: nn.Module) -> str:
        """The output of a linear layer or of a norm."""
        match module:
            case nn.Linear():
                return self.linear(x, module.weight, module.bias)
            case nn.LayerNorm():
                last = (self.weight(module.bias),) if module.bias is not None else ()
                return self.add("LayerNormalization", x, self.weight(module.weight), *last, epsilon=module.eps)
            case nn.RMSNorm():
                square = self.add("ReduceMean", self.add("Mul", x, x), axes=[-1], keepdims=1)
                eps = module.eps if module.eps is not None else torch.finfo(torch.float32).eps
                norm = self.add("Sqrt", self.add("Add", square, self.constant(float(eps))))
                return self.add("Mul", self.add("Div", x, norm), self.weight(module.weight))
        raise AssertionError(f"no ONNX for {type(module).__name__}")

    def rows(self, table: Tensor, indices: str) -> str:
        """Rows of an embedding table."""
        if self.table_precision.startswith("int"):
            values, scales = self._stored(("rows", _place(table)), table, lambda: _scaled_rows(_array(table)))
            rows = self.add("Cast", self.add("Gather", values, indices), to=TensorProto.FLOAT)
            return self.add("Mul", rows, self.add("Gather", scales, indices))
        if self.table_precision == "fp16":
            stored = self._once(("fp16", _place(table)), table, lambda: self._half(table))
            return self.add("Cast", self.add("Gather", stored, indices), to=TensorProto.FLOAT)
        stored = self._once(("fp32", _place(table)), table, lambda: self._store(self._name("table"), _array(table)))
        return self.add("Gather", stored, indices)

    def _half(self, table: Tensor) -> str:
        return self._store(self._name("table"), _array(table).astype(np.float16))

    def _quantised(self, x: str, weight: Tensor, bias: Tensor | None, bits: int) -> str:
        """MatMulNBits of ONNX Runtime: weights in blocks with a scale each; a row of x never depends on the others."""
        packed, scales = self._stored(("blocks", bits, _place(weight)), weight, lambda: _blocks(_array(weight), bits))
        found = self.add(
            "MatMulNBits", x, packed, scales, domain="com.microsoft",
            K=weight.shape[1], N=weight.shape[0], bits=bits, block_size=_BLOCK, accuracy_level=4,
        )  # fmt: skip
        return found if bias is None else self.add("Add", found, self.weight(bias))

    def _integers(self, x: str, weight: Tensor, bias: Tensor | None, *, by_row: bool) -> str:
        """Products of 8-bit integers. x is rounded by the range of each row, or of the whole batch.

        MatMulIntegerToFloat of ONNX Runtime scales each sum as it writes it: a fifth of the time less than in operators
        of their own. It knows no scale of a row, which is multiplied afterwards.
        """
        key = ("columns", _place(weight))
        values, scales = self._stored(key, weight, lambda: _scaled_rows(_array(weight), transpose=True))
        last = () if bias is None else (self.weight(bias),)
        if not by_row:
            rounded, scale, zero = self._rounded_batch(x)
            return self.add(
                "MatMulIntegerToFloat", rounded, values, scale, scales, zero, *(("", *last) if last else ()),
                domain="com.microsoft",
            )  # fmt: skip
        rounded, scale = self._rounded(x)
        one, middle = self.constant(1.0), self.constant(np.asarray(128, np.uint8))
        product = self.add("MatMulIntegerToFloat", rounded, values, one, scales, middle, domain="com.microsoft")
        found = self.add("Mul", product, scale)
        return self.add("Add", found, *last) if last else found

    def _rounded(self, x: str) -> list[str]:
        """The rows of x in 8 bits around 128, and their scales (N, 1): once, for all the matrices that read x."""
        if ("rows", x) not in self._inputs:
            largest = self.add("ReduceMax", self.add("Abs", x), axes=[-1], keepdims=1)
            scale = self.add("Mul", self.add("Max", largest, self.constant(1e-9)), self.constant(1 / 127))
            scales = self.shaped(scale, -1)
            middle = self.add("ConstantOfShape", self.add("Shape", scales), value=_MIDDLE)
            self._inputs["rows", x] = [self.add("QuantizeLinear", x, scales, middle, axis=0), scale]
        return self._inputs["rows", x]

    def _rounded_batch(self, x: str) -> list[str]:
        """x in 8 bits by the range of all its numbers, their scale, and what stands for 0."""
        if ("batch", x) not in self._inputs:
            self._inputs["batch", x] = self.split("DynamicQuantizeLinear", x, outputs=3)
        return self._inputs["batch", x]

    def _stored(self, key: Any, tensor: Tensor, make: Callable[[], tuple[Array, Array]]) -> tuple[str, str]:
        """Two constants that are made of a tensor, once."""
        if key not in self._known:
            values, scales = make()
            self._known[key] = self._store(self._name("quantised"), values)
            self._known[(*key, "scales")] = self._store(self._name("scales"), scales)
            self._kept.append(tensor)
        return self._known[key], self._known[(*key, "scales")]

    # ------------------------------------------------------------------ shapes

    def shaped(self, x: str, *sizes: int | str) -> str:
        """x in another shape. A size is a number, 0 to keep that dimension, or the name of a value (1,)."""
        if all(isinstance(size, int) for size in sizes):
            return self.add("Reshape", x, self.constant([int(size) for size in sizes]))
        if sizes not in self._shapes:
            parts = [self.constant([size]) if isinstance(size, int) else size for size in sizes]
            self._shapes[sizes] = self.add("Concat", *parts, axis=0)
        return self.add("Reshape", x, self._shapes[sizes])

    def turned(self, x: str, *order: int) -> str:
        return self.add("Transpose", x, perm=list(order))

    def sliced(self, x: str, start: str, end: str, axis: int) -> str:
        return self.add("Slice", x, start, end, self.constant([axis]))

    def model(self, facts: Mapping[str, str] | None = None) -> onnx.ModelProto:
        """The whole graph as a model. `facts`: what it says about itself."""
        graph = helper.make_graph(self.nodes, "bothways", self.inputs, self.outputs, self.constants)
        opsets = [helper.make_opsetid("", OPSET)]
        if any(node.domain for node in self.nodes):
            opsets.append(helper.make_opsetid("com.microsoft", 1))
        # The version of the file format that came with the opset.
        found = helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="bothways")
        helper.set_model_props(found, {**(facts or {})})
        return found


_MIDDLE = numpy_helper.from_array(np.asarray([128], np.uint8))


def _place(tensor: Tensor) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Where a tensor is in memory: equal for the same part of the same weight."""
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride()


def _array(tensor: Tensor) -> NDArray[np.float32]:
    found: NDArray[np.float32] = tensor.detach().float().cpu().numpy()
    return found


def _scaled_rows(array: Array, transpose: bool = False) -> tuple[Array, Array]:
    """Rows in 8 bits, each with its own scale. Transposed: for products from the left."""
    scales = np.maximum(np.abs(array).max(1, keepdims=True), 1e-12) / 127
    values = np.rint(array / scales).astype(np.int8)
    return (values.T, scales.astype(np.float32).reshape(-1)) if transpose else (values, scales.astype(np.float32))


def _blocks(array: Array, bits: int) -> tuple[Array, Array]:
    """Weights in blocks of a row, packed into bytes, and the scale of each block. The middle of the range means 0."""
    blocks = array.reshape(len(array), -1, _BLOCK)
    middle = 2 ** (bits - 1)
    # The number of the largest size becomes -middle: the other end of the range has one number less.
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(-1)[..., None], -1)
    scales = np.where(largest == 0, 1.0, -largest / middle)
    values = np.clip(np.rint(blocks / scales) + middle, 0, 2 * middle - 1).astype(np.uint8)
    packed = values if bits == 8 else values[..., ::2] | (values[..., 1::2] << 4)
    return packed, scales.astype(np.float32).reshape(-1)
