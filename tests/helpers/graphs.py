"""Random networks of quantized nodes, in QOperator and QDQ form mixed. Deterministic for a seed.

``cd tests; python -m helpers.graphs ROUNDS [SEED [ISA]]`` runs each on the native backend and compares every tensor
with the reference backend, node by node and as a program, with one to three threads. An x86 instruction set that this
CPU lacks is emulated, if it has AVX2. Memory that nobody has written to holds poison. Two in five graphs have axes
without elements and stacks of matrices (graphs_empty.py): those of the seeds that ``empty`` says; one in four has many
products of floats, one in six float16 and bfloat16, one in nine codes of 16 bits with scales of 16 bits.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.defs
from onnx import TensorProto, helper, numpy_helper

from helpers.models import make_model
from qrun.ir.types import NUMBERS

MS = "com.microsoft"
OPSET, CODED_OPSET = 17, 23
F = np.float32
NARROW = {np.dtype(np.float16): TensorProto.FLOAT16, np.dtype(ml_dtypes.bfloat16): TensorProto.BFLOAT16}
PROTO = {np.dtype(np.uint8): TensorProto.UINT8, np.dtype(np.int8): TensorProto.INT8}
SCALES = (0.02, 0.05, 1 / 90, 1 / 255, 2.0**-5, 0.0371)


@dataclass(frozen=True)
class Value:
    """A quantized tensor of the graph."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    scale: np.float32
    zero: int


@dataclass
class Graph:
    """A network under construction; `values` are the quantized tensors there are,
    `replaceable` constants are inputs too.

    narrow: the type of floats between quantized tensors, if that is not float32.
    opset:  a newer one for what only it has.
    """

    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    tensors: list[onnx.TensorProto] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    replaceable: list[onnx.ValueInfoProto] = field(default_factory=list)
    narrow: np.dtype[Any] | None = None
    opset: int = OPSET

    def name(self) -> str:
        return f"t{len(self.nodes)}_{len(self.tensors)}"

    def constant(self, array: Any) -> str:
        name, held = f"c{len(self.tensors)}", np.asarray(array)
        if self.narrow and held.dtype == F:
            held = held.astype(self.narrow)
        if held.dtype in NARROW:
            self.tensors.append(helper.make_tensor(name, NARROW[held.dtype], held.shape, held.tobytes(), raw=True))
        else:
            self.tensors.append(numpy_helper.from_array(held, name))
        return name

    @contextmanager
    def single(self) -> Iterator[int]:
        """While floats are float32; the element type of other floats."""
        before, self.narrow = self.narrow, None
        yield NARROW[before] if before else TensorProto.FLOAT
        self.narrow = before

    def node(self, op: str, inputs: list[str], domain: str = "", **attributes: Any) -> str:
        name = self.name()
        self.nodes.append(helper.make_node(op, inputs, [name], f"n{len(self.nodes)}", domain=domain, **attributes))
        return name

    def pick(self, rank: int = 0) -> Value | None:
        """A value, more often a late one."""
        fits = [v for v in self.values if not rank or len(v.shape) == rank]
        return fits[max(self.rng.integers(0, len(fits), 2))] if fits else None

    def parameters(self, scale: float, dtype: Any = None) -> tuple[np.float32, np.ndarray[Any, Any]]:
        """A scale near this one, and a zero point."""
        rng = self.rng
        dtype = np.dtype(dtype or (np.uint8, np.int8)[int(rng.random() < 0.4)])
        scale = scale or SCALES[0]
        zero = rng.choice([0, 1, 113, 128, 255]) - (128 if dtype == np.int8 else 0)
        near = scale * rng.uniform(0.6, 1.6) if rng.random() < 0.7 else 2.0 ** np.round(np.log2(scale))
        return F(near), np.asarray(zero, dtype)

    def quantized(self, v: Value) -> list[str]:
        return [v.name, self.constant(v.scale), self.constant(np.asarray(v.zero, v.dtype))]

    def real(self, v: Value) -> str:
        with self.single() as narrow:
            made = self.node("DequantizeLinear", self.quantized(v))
        return self.node("Cast", [made], to=narrow) if self.narrow else made

    def add(self, name: str, shape: tuple[int, ...], scale: np.float32, zero: np.ndarray[Any, Any]) -> None:
        self.values.append(Value(name, shape, zero.dtype, F(scale), int(zero)))

    def quantize(self, real: str, shape: tuple[int, ...], scale: np.float32, zero: np.ndarray[Any, Any]) -> None:
        real = self.node("Cast", [real], to=TensorProto.FLOAT) if self.narrow else real
        with self.single():
            name = self.node("QuantizeLinear", [real, self.constant(scale), self.constant(zero)])
        self.add(name, shape, scale, zero)


def empty(seed: int) -> bool:
    """Whether the graph of this seed may have tensors without elements."""
    return seed % 5 > 2


def real(seed: int) -> bool:
    """Whether the graph of this seed may have products of floats."""
    return seed % 4 == 2


def short(seed: int) -> bool:
    """Whether the graph of this seed may have many floats of 16 bits."""
    return seed % 6 == 5


def coupled(seed: int) -> bool:
    """Whether the graph of this seed may have products of two tensors, and many dynamically quantized layers."""
    return seed % 7 == 1


def coded(seed: int) -> bool:
    """Whether the graph of this seed may have many codes of 16 bits, with scales of 16 bits too."""
    return seed % 9 == 5


def random_graph(seed: int) -> onnx.ModelProto:
    """3 to 12 quantized operators after the quantization of a float input."""
    from helpers import graphs_empty, graphs_products

    rng = np.random.default_rng(seed)
    graph = Graph(rng)
    kinds: tuple[Any, ...] = (
        *KINDS,
        *(graphs_empty.KINDS if empty(seed) else ()),
        *((products,) * 8 if real(seed) else ()),
    )
    kinds += graphs_products.KINDS if coupled(seed) else ()
    kinds += (narrow,) * 12 if short(seed) else ()
    if coded(seed):
        graph.opset, kinds = CODED_OPSET, (*kinds, *(long_codes,) * 8)
    shape = (
        int(rng.choice([1, 1, 2])),
        int(rng.choice([1, 3, 4, 7, 16, 24])),
        *(int(n) for n in rng.integers(1, 12, 2)),
    )
    if empty(seed) and rng.random() < 0.3:
        shape = tuple(0 if rng.random() < 0.3 else n for n in shape)
    scale, zero = graph.parameters(float(rng.choice(SCALES)))
    graph.quantize("x", shape, scale, zero)
    count = int(rng.integers(3, 13))
    while len(graph.values) <= count:
        kinds[int(rng.integers(0, len(kinds)))](graph, rng.random() < 0.5)
    return model_of(graph, shape)


def model_of(graph: Graph, shape: tuple[int, ...]) -> onnx.ModelProto:
    read = {name for node in graph.nodes for name in node.input}
    ends = [v for v in graph.values if v.name not in read] or graph.values[-1:]
    outputs = [helper.make_tensor_value_info(v.name, PROTO[v.dtype], None) for v in ends]
    last = graph.real(ends[-1])
    outputs.append(helper.make_tensor_value_info(last, TensorProto.FLOAT, None))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape), *graph.replaceable]
    return make_model(graph.nodes, inputs, outputs, graph.tensors, opset=graph.opset)


def conv(g: Graph, qdq: bool) -> None:
    v = g.pick(4)
    if v is None:
        return
    rng, c = g.rng, v.shape[1]
    group = int(rng.choice([n for n in (1, 1, 2, 4, c) if n and c % n == 0]))
    m = group * int(rng.choice([1, 1, 2, 5, 17] if group > 1 else [1, 8, 24, 33]))
    kernel = [int(rng.choice([1, 1, 3, 2])) for _ in range(2)]
    attributes: dict[str, Any] = {"strides": [int(s) for s in rng.integers(1, 3, 2)], "group": group}
    pads = [int(p) for p in rng.integers(0, 2, 4)]
    attributes |= {"pads": pads, "kernel_shape": kernel}
    spatial = [
        (n + a + b - k) // s + 1
        for n, a, b, k, s in zip(v.shape[2:], pads[:2], pads[2:], kernel, attributes["strides"], strict=True)
    ]
    if min(spatial) < 1:
        return
    w = rng.integers(-128, 128, (m, c // group, *kernel)).astype(np.int8)
    ws = rng.uniform(0.003, 0.02, m if rng.random() < 0.5 else ()).astype(F)
    terms = c // group * kernel[0] * kernel[1]
    ys, yz = g.parameters(float(v.scale) * float(np.mean(ws)) * 74 * 74 * terms**0.5 / 50)
    bias = rng.integers(-5000, 5000, m).astype(np.int32)
    shape = (v.shape[0], m, *spatial)
    wz = np.zeros(ws.shape, np.int8)
    if not qdq:
        inputs = [*g.quantized(v), g.constant(w), g.constant(ws), g.constant(wz), g.constant(ys), g.constant(yz)]
        if rng.random() < 0.6:
            inputs.append(g.constant(bias))
        g.add(g.node("QLinearConv", inputs, **attributes), shape, ys, yz)
        return
    axis = {"axis": 0} if ws.ndim else {}
    inputs = [g.real(v), g.node("DequantizeLinear", [g.constant(w), g.constant(ws), g.constant(wz)], **axis)]
    if rng.random() < 0.6:
        bs = np.asarray(v.scale * ws, F)
        inputs.append(g.node("DequantizeLinear", [g.constant(bias), g.constant(bs)], **axis))
    real = g.node("Conv", inputs, **attributes)
    if rng.random() < 0.4:
        real = g.node("Relu", [real])
    g.quantize(real, shape, ys, yz)


def binary(g: Graph, qdq: bool) -> None:
    a = g.pick()
    others = [v for v in g.values if a and meet(a.shape, v.shape) and (qdq or v.dtype == a.dtype)]
    if a is None or not others:
        return
    b = others[int(g.rng.integers(0, len(others)))]
    a, b = (a, b) if g.rng.random() < 0.5 else (b, a)
    shape = np.broadcast_shapes(a.shape, b.shape)
    op = str(g.rng.choice(["Add", "Mul"]))
    size = float(a.scale) * 74
    other = float(b.scale) * 74
    scale, zero = g.parameters((size**2 + other**2) ** 0.5 / 50 if op == "Add" else size * other / 50, a.dtype)
    if qdq:
        g.quantize(g.node(op, [g.real(a), g.real(b)]), shape, scale, zero)
        return
    inputs = [*g.quantized(a), *g.quantized(b), g.constant(scale), g.constant(zero)]
    g.add(g.node(f"QLinear{op}", inputs, MS), shape, scale, zero)


def meet(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether shapes broadcast, to something not too large."""
    pairs = list(zip(reversed(a), reversed(b), strict=False))
    return all(n == m or 1 in (n, m) for n, m in pairs) and int(np.prod(a or (1,)) * np.prod(b or (1,))) < 1 << 22


def constant_binary(g: Graph, qdq: bool) -> None:
    """With a constant per channel, or along any other axes."""
    v = g.pick()
    if v is None:
        return
    op = str(g.rng.choice(["Add", "Mul"]))
    scale, zero = g.parameters(float(v.scale), v.dtype)
    shape = (v.shape[1], 1, 1) if len(v.shape) == 4 else v.shape[-1:]
    if g.rng.random() < 0.4:
        kept = tuple(n if g.rng.random() < 0.5 else 1 for n in v.shape)
        shape = kept[int(g.rng.integers(0, len(kept) + 1)) :]
    code = g.rng.integers(0, 256, shape).astype(np.uint8).view(v.dtype)
    if qdq:
        reals = [g.real(v), g.constant(g.rng.normal(1, 0.5, shape).astype(F))]
        g.quantize(g.node(op, reals[:: 1 if g.rng.random() < 0.7 else -1]), v.shape, scale, zero)
        return
    operands = [g.quantized(v), [g.constant(code), g.constant(F(0.02)), g.constant(np.asarray(3, v.dtype))]]
    first, second = operands[:: 1 if g.rng.random() < 0.7 else -1]
    g.add(g.node(f"QLinear{op}", [*first, *second, g.constant(scale), g.constant(zero)], MS), v.shape, scale, zero)


def aside(g: Graph, qdq: bool) -> None:
    """A float node, whose result nobody reads or which is the sum of all elements; a product of constants."""
    v, rng = g.pick(), g.rng
    if v is None or rng.random() < 0.5:
        return
    if rng.random() < 0.4:
        m, k, n = (int(x) for x in rng.choice([1, 2, 5, 33], 3))
        ws, wz = F(0.02), np.int8(rng.integers(-3, 4))
        left, right = (g.constant(rng.integers(-128, 128, shape).astype(np.int8)) for shape in ((m, k), (k, n)))
        scale, zero = g.parameters(0.02)
        sides = [[x, g.constant(ws), g.constant(wz)] for x in (left, right)]
        g.add(g.node("QLinearMatMul", [*sides[0], *sides[1], g.constant(scale), g.constant(zero)]), (m, n), scale, zero)
    elif qdq:
        g.quantize(g.node("ReduceSum", [g.real(v)], keepdims=0), (), *g.parameters(float(v.scale)))
    else:
        g.node("Abs", [g.real(v)])


def concat(g: Graph, qdq: bool) -> None:
    a = g.pick(4)
    if a is None:
        return
    axis = int(g.rng.choice([1, 1, 1, 3]))
    fits = [v for v in g.values if len(v.shape) == 4 and v.dtype == a.dtype]
    fits = [v for v in fits if all(n == m for i, (n, m) in enumerate(zip(v.shape, a.shape, strict=True)) if i != axis)]
    chosen = [a] + [fits[int(i)] for i in g.rng.integers(0, len(fits), int(g.rng.integers(1, 3)))]
    same = g.rng.random() < 0.6
    scale, zero = (a.scale, np.asarray(a.zero, a.dtype)) if same else g.parameters(float(a.scale), a.dtype)
    shape = tuple(sum(v.shape[axis] for v in chosen) if i == axis else n for i, n in enumerate(a.shape))
    if shape[1] > 200:
        return
    if qdq:
        g.quantize(g.node("Concat", [g.real(v) for v in chosen], axis=axis), shape, scale, zero)
        return
    inputs = [g.constant(scale), g.constant(zero), *(name for v in chosen for name in g.quantized(v))]
    g.add(g.node("QLinearConcat", inputs, MS, axis=axis), shape, scale, zero)


def pool(g: Graph, qdq: bool) -> None:
    v = g.pick(4)
    if v is None or min(v.shape[2:]) < 2:
        return
    rng = g.rng
    attributes: dict[str, Any] = {"kernel_shape": [int(rng.integers(1, 4)) for _ in range(2)]}
    attributes |= {
        "strides": [int(s) for s in rng.integers(1, 3, 2)],
        "pads": [int(rng.integers(0, 2)) for _ in range(4)],
    }
    pairs = zip(attributes["kernel_shape"], attributes["pads"][:2], attributes["pads"][2:], strict=True)
    if any(max(a, b) >= k for k, a, b in pairs):
        attributes["pads"] = [0] * 4
    pads, kernel, strides = attributes["pads"], attributes["kernel_shape"], attributes["strides"]
    spatial = [(n + pads[i] + pads[i + 2] - kernel[i]) // strides[i] + 1 for i, n in enumerate(v.shape[2:])]
    if min(spatial) < 1:
        return
    shape = (*v.shape[:2], *spatial)
    if rng.random() < 0.5:
        g.add(g.node("MaxPool", [v.name], **attributes), shape, v.scale, np.asarray(v.zero, v.dtype))
        return
    attributes["count_include_pad"] = int(rng.random() < 0.5)
    scale, zero = g.parameters(float(v.scale), v.dtype)
    if qdq:
        g.quantize(g.node("AveragePool", [g.real(v)], **attributes), shape, scale, zero)
        return
    inputs = [*g.quantized(v), g.constant(scale), g.constant(zero)]
    g.add(g.node("QLinearAveragePool", inputs, MS, **attributes), shape, scale, zero)


def global_pool(g: Graph, qdq: bool) -> None:
    v = g.pick(4)
    if v is None or g.rng.random() < 0.6:
        return
    scale, zero = g.parameters(float(v.scale) / 2, v.dtype)
    shape = (*v.shape[:2], 1, 1)
    if qdq:
        g.quantize(g.node("GlobalAveragePool", [g.real(v)]), shape, scale, zero)
        return
    inputs = [*g.quantized(v), g.constant(scale), g.constant(zero)]
    g.add(g.node("QLinearGlobalAveragePool", inputs, MS), shape, scale, zero)


def unary(g: Graph, qdq: bool) -> None:
    v = g.pick()
    if v is None:
        return
    op = str(g.rng.choice(["Sigmoid", "LeakyRelu", "Relu", "Requantize"]))
    scale, zero = g.parameters(1 / 256 if op == "Sigmoid" else float(v.scale), v.dtype)
    attributes = {"alpha": 0.1} if op == "LeakyRelu" else {}
    if qdq or op in ("Relu", "Requantize"):
        real = g.real(v)
        g.quantize(real if op == "Requantize" else g.node(op, [real], **attributes), v.shape, scale, zero)
        return
    inputs = [*g.quantized(v), g.constant(scale), g.constant(zero)]
    g.add(g.node(f"QLinear{op}", inputs, MS, **attributes), v.shape, scale, zero)


def normalize(g: Graph, qdq: bool) -> None:
    """BatchNormalization in float between quantized tensors."""
    v = g.pick(4)
    if v is None:
        return
    n = v.shape[1]
    drawn = [g.rng.uniform(0.5, 1.5, n), g.rng.normal(0, 1, n), g.rng.normal(0, 1, n), g.rng.uniform(0.5, 2, n)]
    real = g.node("BatchNormalization", [g.real(v), *(g.constant(a.astype(F)) for a in drawn)])
    if qdq:
        real = g.node("Relu", [real])
    g.quantize(real, v.shape, *g.parameters(float(v.scale)))


def move(g: Graph, qdq: bool) -> None:
    v = g.pick(4)
    if v is None:
        return
    n, c, h, w = v.shape
    kind = str(g.rng.choice(["shuffle", "transpose", "pad", "slice", "flatten"]))
    name, shape = g.real(v) if qdq else v.name, v.shape
    if kind == "shuffle" and c % 4 == 0:
        groups = int(g.rng.choice([2, 4]))
        zeros = {} if all(v.shape) else {"allowzero": 1}
        name = g.node("Reshape", [name, g.constant(np.array([n, groups, c // groups, h, w]))], **zeros)
        name = g.node("Transpose", [name], perm=[0, 2, 1, 3, 4])
        name = g.node("Reshape", [name, g.constant(np.array([n, c, h, w]))], **zeros)
    elif kind == "transpose":
        perm = [int(p) for p in g.rng.permutation(4)]
        name, shape = g.node("Transpose", [name], perm=perm), tuple(v.shape[p] for p in perm)
    elif kind == "pad" and not qdq:
        zero = g.constant(np.asarray(v.zero, v.dtype))
        name = g.node("Pad", [name, g.constant(np.array([0, 0, 1, 0, 0, 1, 0, 2])), zero])
        shape = (n, c + 1, h + 1, w + 2)
    elif kind == "slice" and c > 1:
        ends = [g.constant(np.array([a])) for a in (1, c, 1, 1)]
        name, shape = g.node("Slice", [name, *ends]), (n, c - 1, h, w)
    elif kind == "flatten":
        name, shape = g.node("Flatten", [name]), (n, c * h * w)
    if qdq:
        g.quantize(name, shape, v.scale, np.asarray(v.zero, v.dtype))
    else:
        g.add(name, shape, v.scale, np.asarray(v.zero, v.dtype))


def matmul(g: Graph, qdq: bool) -> None:
    v = g.pick()
    if v is None or not v.shape or v.shape[-1] > 500:
        return
    k, m = v.shape[-1], int(g.rng.choice([1, 5, 16, 40]))
    w = g.rng.integers(-128, 128, (k, m)).astype(np.int8)
    scale, zero = g.parameters(float(v.scale) * 0.01 * 74 * 74 * k**0.5 / 50)
    shape, ws, wz = (*v.shape[:-1], m), F(0.01), np.int8(0)
    if qdq:
        right = g.node("DequantizeLinear", [g.constant(w), g.constant(ws), g.constant(wz)])
        g.quantize(g.node("MatMul", [g.real(v), right]), shape, scale, zero)
    else:
        inputs = [*g.quantized(v), g.constant(w), g.constant(ws), g.constant(wz), g.constant(scale), g.constant(zero)]
        g.add(g.node("QLinearMatMul", inputs), shape, scale, zero)


FUNCTIONS = (
    "Erf", "Tanh", "Sigmoid", "Abs", "Neg", "HardSigmoid", "HardSwish", "LeakyRelu", "Relu", "Elu", "Softplus", "Sin", "Cos",
    "Atan", "Asinh",
)  # fmt: skip


def floats(g: Graph, qdq: bool) -> None:
    """Float arithmetic between quantized tensors: functions, sums of tensors that broadcast, rows, moves, choices,
    shapes that are computed."""
    v = g.pick()
    if v is None or not v.shape:
        return
    rng, real, shape = g.rng, g.real(v), v.shape
    kinds = ["function", "binary", "constant", "rows", "transpose", "choice", "halves", "computed"]
    for kind in rng.choice(kinds, int(rng.integers(1, 6))):
        if kind == "function":
            real = g.node(str(rng.choice(FUNCTIONS)), [real])
        elif kind == "binary":
            others = [w for w in g.values if meet(shape, w.shape)]
            other = others[int(rng.integers(0, len(others)))] if others else v
            if others and rng.random() < 0.8:
                both = [real, g.real(other)]
                shape = np.broadcast_shapes(shape, other.shape)
            else:
                both = [real, real]
            real = g.node(
                str(rng.choice(["Add", "Sub", "Mul", "Max", "Min"])), both[:: 1 if rng.random() < 0.5 else -1]
            )
        elif kind == "constant":
            kept = tuple(n if rng.random() < 0.5 else 1 for n in shape)[int(rng.integers(0, len(shape) + 1)) :]
            real = g.node(str(rng.choice(["Add", "Div"])), [real, g.constant(rng.uniform(0.5, 3, kept).astype(F))])
        elif kind == "rows":
            op = str(rng.choice(["Softmax", "LayerNormalization", "ReduceMean", "ReduceL2", "ReduceMax"]))
            scale = [g.constant(rng.normal(1, 0.2, shape[-1]).astype(F))] if op == "LayerNormalization" else []
            axis = -1 if op == "LayerNormalization" else int(rng.integers(0, len(shape)))
            reduces = op.startswith("Reduce")
            along = [g.constant(np.array([axis]))] if reduces and g.opset > OPSET else []
            options = {} if along else {"axes": [axis]} if reduces else {"axis": axis}
            real = g.node(op, [real, *scale, *along], **options)
            shape = tuple(1 if place == axis and reduces else n for place, n in enumerate(shape))
        elif kind == "choice":
            test = str(rng.choice(["Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Equal"]))
            found = g.node(test, [real, g.constant(rng.normal(0, 1, shape[-1:]).astype(F))])
            found = g.node("Not", [found]) if rng.random() < 0.5 else found
            real = g.node("Where", [found, real, g.node("Neg", [real]) if rng.random() < 0.5 else g.constant(F(-0.0))])
        elif kind == "halves":
            axis = int(rng.integers(0, len(shape)))
            if shape[axis] < 100:
                real = g.node("Concat", [g.node("Neg", [real]), real, real][: int(rng.integers(1, 4))], axis=axis)
                count = len(g.nodes[-1].input)
                shape = tuple(n * count if i == axis else n for i, n in enumerate(shape))
        elif kind == "computed":
            lengths = g.node("Shape", [real])
            first = g.node("Slice", [lengths, *(g.constant(np.array([n])) for n in (0, len(shape) - 1))])
            rest = g.constant(np.array([1, shape[-1]]))
            sizes = g.node("Concat", [first, rest], axis=0)
            real = g.node("Reshape", [real, sizes], **({} if all(shape) else {"allowzero": 1}))
            real = g.node("Squeeze", [real, g.constant(np.array([len(shape) - 1]))])
        else:
            perm = [int(p) for p in rng.permutation(len(shape))]
            real, shape = g.node("Transpose", [real], perm=perm), tuple(shape[p] for p in perm)
    g.quantize(real, shape, *g.parameters(0.02))


def products(g: Graph, qdq: bool) -> None:
    """Products of floats between quantized tensors: with constants, with themselves, and convolutions."""
    v = g.pick(4 if g.rng.random() < 0.5 else 0)
    if v is None or not v.shape:
        return
    rng, name, shape = g.rng, g.real(v), v.shape

    def numbers(*sizes: int, terms: int = 1) -> str:
        kind = rng.choice(["normal", "whole", "zeros"], p=[0.7, 0.15, 0.15])
        made = rng.normal(0, 1, sizes) if kind == "normal" else rng.integers(-3, 4, sizes)
        return g.constant((made * (rng.random(sizes) < 0.3 if kind == "zeros" else 1) / max(terms, 1) ** 0.5).astype(F))

    for _ in range(int(rng.integers(1, 4))):
        kind, k, m = (
            str(rng.choice(["matmul", "self", "attention", "gemm", "conv", "relu"])),
            shape[-1],
            int(rng.choice([1, 5, 24, 70])),
        )
        if kind == "matmul" and 0 < k < 600:
            lead = shape[:1] if len(shape) == 3 and rng.random() < 0.5 else ()
            name, shape = g.node("MatMul", [name, numbers(*lead, k, m, terms=k)]), (*shape[:-1], m)
        elif kind == "self" and len(shape) > 1 and 0 < k < 200 and shape[-2] < 200:
            turned = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
            other = g.node("Transpose", [name], perm=turned)
            name, shape = g.node("MatMul", [name, other]), (*shape[:-1], shape[-2])
            name = g.node("Div", [name, g.constant(F(k))])
        elif kind == "attention" and len(shape) > 1 and 0 < k < 200 and 0 < shape[-2] < 200:
            other = g.node("Transpose", [name], perm=[*range(len(shape) - 2), len(shape) - 1, len(shape) - 2])
            scores = g.node("Div", [g.node("MatMul", [name, other]), g.constant(F(k))])
            name = g.node("MatMul", [g.node("Softmax", [scores], axis=-1), name])
        elif kind == "gemm" and len(shape) == 2 and min(shape) > 0 and max(shape) < 600:
            turned = rng.integers(0, 2, 2)
            rows, k = shape[::-1] if turned[0] else shape
            size = [(m,), (rows, m), (1, m), (rows, 1), ()][int(rng.integers(0, 5))]
            c = [numbers(*size)] if rng.random() < 0.7 else []
            factors = {"alpha": 0.3, "beta": -1.5} if rng.random() < 0.4 else {}
            inputs = [name, numbers(*((m, k) if turned[1] else (k, m)), terms=k), *c]
            name = g.node("Gemm", inputs, transA=int(turned[0]), transB=int(turned[1]), **factors)
            shape = (rows, m)
        elif kind == "conv" and len(shape) == 4 and all(shape) and min(shape[2:]) > 1:
            group = int(rng.choice([n for n in (1, 1, 2, shape[1]) if shape[1] % n == 0]))
            outputs = group * int(rng.choice([1, 1, 3] if group > 1 else [2, 9, 33]))
            kernel, step = [int(n) for n in rng.integers(1, 3, 2)], [int(n) for n in rng.integers(1, 3, 2)]
            inputs = [name, numbers(outputs, shape[1] // group, *kernel, terms=shape[1] // group * 4)]
            inputs += [numbers(outputs)] if rng.random() < 0.6 else []
            name = g.node("Conv", inputs, group=group, strides=step, pads=[1, 0, 0, 1])
            sizes = zip(shape[2:], kernel, step, strict=True)
            shape = (shape[0], outputs, *((n + 1 - k) // s + 1 for n, k, s in sizes))
        elif kind == "transposed" and len(shape) == 4 and all(shape) and int(np.prod(shape[2:])) < 400:
            kernel, step = [int(n) for n in rng.integers(1, 4, 2)], [int(n) for n in rng.integers(1, 3, 2)]
            name = g.node("ConvTranspose", [name, numbers(shape[1], 3, *kernel, terms=shape[1] * 4)], strides=step)
            shape = (shape[0], 3, *((n - 1) * s + k for n, k, s in zip(shape[2:], kernel, step, strict=True)))
        elif kind == "relu":
            name = g.node("Relu", [name])
    g.quantize(name, shape, *g.parameters(0.02))


def narrow(g: Graph, qdq: bool) -> None:
    """Floats, and products of them, of a narrower type: float16 where an operator of the opset takes no bfloat16."""
    build, wanted = floats if g.rng.random() < 0.5 else products, list(NARROW)[int(g.rng.random() < 0.4)]
    parts: tuple[list[Any], ...] = (g.nodes, g.tensors, g.values, g.replaceable)
    before = [len(part) for part in parts]
    for g.narrow in (wanted, np.dtype(np.float16)):
        build(g, qdq)
        if g.narrow == np.float16 or all(takes_bfloat16(node) for node in g.nodes[before[0] :]):
            break
        for part, count in zip(parts, before, strict=True):
            del part[count:]
    g.narrow = None


def takes_bfloat16(node: onnx.NodeProto) -> bool:
    """Whether an operator does; those that are given float32 do not matter."""
    if node.domain or node.op_type in ("QuantizeLinear", "DequantizeLinear"):
        return True
    return "tensor(bfloat16)" in onnx.defs.get_schema(node.op_type, OPSET).inputs[0].types


def long_codes(g: Graph, qdq: bool) -> None:
    """Codes of 16 bits, dequantized by scales of all floats into floats of all types."""
    v, rng = g.pick(), g.rng
    if v is None:
        return
    code = np.dtype((np.uint16, np.int16, v.dtype)[int(rng.integers(0, 3))])
    scale, zero = F(rng.choice([2.0**-9, 0.0037])), np.asarray(rng.integers(0, 100), code)
    codes = g.node("QuantizeLinear", [g.real(v), g.constant(scale), g.constant(zero)])
    kinds = [np.dtype(F), *NARROW]
    of_scale, made = (kinds[int(rng.integers(0, 3))] for _ in range(2))
    states = {} if made == of_scale and rng.random() < 0.5 else {"output_dtype": NUMBERS[made]}
    real = g.node("DequantizeLinear", [codes, g.constant(scale.astype(of_scale)), g.constant(zero)], **states)
    if rng.random() < 0.3:
        real = g.node("Mul", [real, real])
    real = g.node("Cast", [real], to=TensorProto.FLOAT) if made != F or rng.random() < 0.3 else real
    g.quantize(real, v.shape, *g.parameters(0.02))


def dynamic(g: Graph, qdq: bool) -> None:
    """A product whose left operand is quantized in each run."""
    v = g.pick()
    if v is None or not v.shape or v.shape[-1] > 500:
        return
    k, m = v.shape[-1], int(g.rng.choice([1, 5, 16, 24, 40]))
    codes, scale, zero = (g.name() + part for part in ("q", "s", "z"))
    g.nodes.append(helper.make_node("DynamicQuantizeLinear", [g.real(v)], [codes, scale, zero], f"n{len(g.nodes)}"))
    weights = g.rng.integers(-128, 128, (k, m)).astype(np.int8 if g.rng.random() < 0.7 else np.uint8)
    sums = g.node("MatMulInteger", [codes, g.constant(weights), zero])
    real = g.node("Mul", [g.node("Cast", [sums], to=TensorProto.FLOAT), g.node("Mul", [scale, g.constant(F(0.01))])])
    g.quantize(real, (*v.shape[:-1], m), *g.parameters(float(v.scale) * 0.01 * 74 * 74 * k**0.5 / 50))


KINDS = (
    conv,
    conv,
    conv,
    binary,
    binary,
    constant_binary,
    concat,
    concat,
    pool,
    global_pool,
    unary,
    normalize,
    move,
    matmul,
    aside,
    floats,
    dynamic,
)


def feed(model: onnx.ModelProto, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed + 10**6)
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    return {"x": (rng.standard_normal(shape) * rng.choice([0.5, 3])).astype(F)}


def compare(seed: int, isa: str = "", **options: Any) -> int:
    """In how many of its runs both backends refuse the graph of this seed.

    Raise AssertionError where the native backend differs from the reference backend on any tensor.
    """
    from helpers.poison import poisoned

    with poisoned(), small_attentions():
        return _compare(random_graph(seed), seed, isa, **options)


@contextmanager
def small_attentions() -> Iterator[None]:
    """Attentions whose scores the cache holds anyway are one step, too."""
    from qrun.native.kernels import attention

    near, attention.NEAR = attention.NEAR, 0
    try:
        yield
    finally:
        attention.NEAR = near


def _compare(model: onnx.ModelProto, seed: int, isa: str, **options: Any) -> int:
    from qrun import Session

    refused = 0
    every = [name for node in model.graph.node for name in node.output]
    fuse = seed % 3 != 0
    for arith in ("exact", "ort") if seed % 4 == 0 else ("exact",):
        reference = Session(model, arith=arith, backend="reference", fuse=fuse)
        feeds = [feed(model, seed), feed(model, seed + 1)]
        threads = 1 + (seed // 4 % 3 if real(seed) else seed % 2)
        native = Session(model, backend="native", arith=arith, isa=isa, threads=threads, fuse=fuse, **options)
        ends = [v.name for v in model.graph.output]
        for turn in range(3):
            for names in (every, ends):
                where = f"seed {seed} {isa} {arith} turn {turn} {'all' if names is every else 'ends'}"
                want = outcome(reference, feeds[turn % 2], names)
                got = outcome(native, feeds[turn % 2], names)
                if isinstance(want, str) or isinstance(got, str):
                    assert got == want, where
                    refused += 1
                    continue
                for name in names:
                    assert got[name].dtype == want[name].dtype, f"{where}: {name}"
                    assert same_values(got[name], want[name]), f"{where}: {name}"
    return refused


def same_values(got: np.ndarray, want: np.ndarray) -> bool:
    """Whether they are equal, zeros in their signs too; one NaN is as good as another."""
    floats = got.dtype.kind in "fV"
    if not np.array_equal(got, want, equal_nan=floats):
        return False
    return got.dtype.kind != "f" or bool(((np.signbit(got) == np.signbit(want)) | np.isnan(got)).all())


def outcome(session: Any, feeds: dict[str, Any], names: list[str]) -> Any:
    """What the session's run returns, or the text of the error with which it refuses the model."""
    from qrun import QrunError

    try:
        return session.run(feeds, names)
    except QrunError as error:
        return f"{type(error).__name__}: {error}"


def main() -> None:
    from helpers.emulation import emulated_sets, emulation

    rounds, seed, isa = (*sys.argv[1:], *("100", "0", "")[len(sys.argv) - 1 :])
    bad, empties, refused = 0, 0, 0
    with emulation(), tempfile.TemporaryDirectory() as objects:
        options = {"cache": objects} if isa in emulated_sets() else {}
        for number in range(int(seed), int(seed) + int(rounds)):
            try:
                empties += empty(number)
                refused += compare(number, isa, **options) > 0
            except Exception as error:
                bad += 1
                print(f"seed {number}: {type(error).__name__}: {str(error)[:300]}", flush=True)
    print(
        f"{rounds} graphs{' emulated' * bool(options)} from seed {seed}{' on ' * bool(isa)}{isa}, {empties} of them with "
        f"tensors without elements, {refused} refused by both backends, {bad} bad"
    )


if __name__ == "__main__":
    main()
