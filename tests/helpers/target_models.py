"""Small quantized models, one operator each, for the rules of targets. The defaults fit every target: int8, zero point
0, scales that are powers of two, fixed shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

KINDS = {
    "uint8": (TensorProto.UINT8, np.uint8),
    "int8": (TensorProto.INT8, np.int8),
    "uint16": (TensorProto.UINT16, np.uint16),
    "int16": (TensorProto.INT16, np.int16),
    "int32": (TensorProto.INT32, np.int32),
    "bfloat16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
    "int4": (TensorProto.INT4, ml_dtypes.int4),
    "uint4": (TensorProto.UINT4, ml_dtypes.uint4),
    "float8e4m3fn": (TensorProto.FLOAT8E4M3FN, ml_dtypes.float8_e4m3fn),
    "float8e5m2": (TensorProto.FLOAT8E5M2, ml_dtypes.float8_e5m2),
    "float": (TensorProto.FLOAT, np.float32),
    "float16": (TensorProto.FLOAT16, np.float16),
    "double": (TensorProto.DOUBLE, np.float64),
    "int64": (TensorProto.INT64, np.int64),
}
MAPS = (1, 8, 8, 8)


@dataclass(frozen=True)
class Q:
    """A quantized tensor. scale, zero: numbers, or lists along `axis`. const: it is stored.

    block:  the block size of stored weights. zero None: no zero point input. real: the type outside the codes.
    fed:    scale is an input of the model. through: an operator between the stored zero point and its reader.
    """

    kind: str = "int8"
    scale: Any = 0.0625
    zero: Any = 0
    axis: int | None = None
    const: bool = False
    shape: Sequence[int | str] | None = None
    block: int = 0
    domain: str = ""
    real: str = "float"
    through: str = ""
    fed: bool = False


@dataclass(frozen=True)
class F:
    """A tensor that is not quantized: stored, or an input. value: what is stored."""

    kind: str = "float"
    const: bool = False
    shape: Sequence[int | str] | None = None
    value: Any = None


I8 = Q()


class Build:
    """A model that grows by one node after the other."""

    def __init__(self, opset: int = 21) -> None:
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.stored: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.infos: list[onnx.ValueInfoProto] = []

    def store(self, value: Any, kind: str = "float") -> str:
        """The name of a constant."""
        name = f"c{len(self.stored)}"
        array = np.asarray(value).astype(KINDS[kind][1])
        if kind in ("int4", "uint4") or kind.startswith("float8"):
            self.stored.append(helper.make_tensor(name, KINDS[kind][0], array.shape, array.astype(np.float32).ravel()))
        else:
            self.stored.append(numpy_helper.from_array(array, name))
        return name

    def feed(self, shape: Sequence[int | str], kind: str = "float") -> str:
        """The name of an input."""
        name = f"in{len(self.inputs)}"
        self.inputs.append(helper.make_tensor_value_info(name, KINDS[kind][0], shape))
        return name

    def add(self, op: str, inputs: Sequence[str], shape: Any = None, kind: str = "float", **more: Any) -> str:
        """Add a node; the name of its result."""
        domain = more.pop("domain", "")
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], f"{op}_{len(self.nodes)}", domain=domain, **more))
        if shape is not None:
            self.infos.append(helper.make_tensor_value_info(name, KINDS[kind][0], shape))
        return name

    def parameters(self, q: Q) -> list[str]:
        """Scale and zero point."""
        real = q.real if q.real in KINDS else "float"
        scale = np.asarray(q.scale, np.float64)
        names = [self.feed(scale.shape, real) if q.fed else self.store(scale, real)]
        if q.zero is not None:
            zero = np.broadcast_to(np.asarray(q.zero), scale.shape)
            names.append(self.store(zero, q.kind))
            if q.through:
                names[-1] = self.add(q.through, [names[-1]])
        return names

    def along(self, q: Q) -> dict[str, Any]:
        """The attributes of a QuantizeLinear or DequantizeLinear."""
        found = {} if q.axis is None else {"axis": q.axis}
        return found | ({"block_size": q.block} if q.block else {}) | {"domain": q.domain}

    def dequantize(self, codes: str, q: Q, names: Sequence[str], shape: Any) -> str:
        return self.add("DequantizeLinear", [codes, *names], shape, q.real, **self.along(q))

    def pair(self, name: str, q: Q, shape: Any) -> str:
        """QuantizeLinear and DequantizeLinear behind a tensor."""
        names = self.parameters(q)
        more = {"output_dtype": KINDS[q.kind][0]} if q.zero is None and self.opset >= 21 else {}
        codes = self.add("QuantizeLinear", [name, *names], shape, q.kind, **self.along(q), **more)
        return self.dequantize(codes, q, names, shape)

    def read(self, tensor: Q | F | str, shape: Any) -> str:
        """The real tensor that an operator reads."""
        if isinstance(tensor, str):
            return tensor
        shape = tensor.shape if tensor.shape is not None else shape
        if isinstance(tensor, F):
            if tensor.value is not None:
                return self.store(tensor.value, tensor.kind)
            return self.store(np.ones(shape), tensor.kind) if tensor.const else self.feed(shape, tensor.kind)
        if tensor.const:
            return self.dequantize(self.store(np.ones(shape), tensor.kind), tensor, self.parameters(tensor), shape)
        return self.pair(self.feed(shape, tensor.real), tensor, shape)

    def result(self, name: str, shape: Any, kind: str = "float") -> None:
        """Make a tensor an output."""
        self.outputs.append(helper.make_tensor_value_info(name, KINDS[kind][0], shape))

    def model(self) -> onnx.ModelProto:
        domains = {node.domain for node in self.nodes} - {""}
        opsets = [helper.make_opsetid("", self.opset), *(helper.make_opsetid(domain, 1) for domain in sorted(domains))]
        given = {info.name for info in self.outputs}
        infos = [info for info in self.infos if info.name not in given]
        graph = helper.make_graph(self.nodes, "g", self.inputs, self.outputs, self.stored, value_info=infos)
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def node(
    op: str,
    inputs: Sequence[Q | F | str],
    y: Q | None = I8,
    shape: Sequence[int | str] = MAPS,
    made: Sequence[int | str] | None = None,
    opset: int = 21,
    behind: str = "",
    readers: int = 0,
    output: bool = False,
    **more: Any,
) -> onnx.ModelProto:
    """A model of one operator.

    y: its result is quantized so; None: it is an output. shape: of the inputs that have none. made: of the result.
    behind: an operator between the result and its QuantizeLinear. readers: nodes that read the result besides.
    output: the result is an output too.
    """
    g = Build(opset)
    names = [g.read(each, shape) for each in inputs]
    made = shape if made is None else made
    kind = next((each.real for each in inputs if isinstance(each, Q)), "float")
    name = g.add(op, names, made, kind, **more)
    if output:
        g.result(name, made, kind)
    for _ in range(readers):
        g.result(g.add("Sin", [name]), made, kind)
    name = g.add(behind, [name], made, kind) if behind else name
    g.result(name if y is None else g.pair(name, y, made), made, kind)
    return g.model()


WEIGHTS = Q(scale=2.0**-5, const=True, shape=(8, 8, 3, 3))
BIAS = Q("int32", 2.0**-9, const=True, shape=(8,))
RESULT = Q(scale=0.125)
WINDOW = {"kernel_shape": [3, 3], "pads": [1] * 4, "strides": [1, 1], "dilations": [1, 1], "group": 1}
CHANNELS = [2.0**-5] * 7 + [2.0**-6]


def conv(
    x: Q | F = I8,
    w: Q | F = WEIGHTS,
    b: Q | F | None = BIAS,
    y: Q | None = RESULT,
    op: str = "Conv",
    without: str = "",
    **more: Any,
) -> onnx.ModelProto:
    """A convolution. without: an attribute to leave out."""
    w = w if w.shape is not None else replace(w, shape=(8, 8, 3, 3))
    attributes = {key: value for key, value in WINDOW.items() if key != without}
    return node(op, [x, w, *([b] if b is not None else [])], y, **{**attributes, **more})


def channels(kind: str = "int8", axis: int = 0, zero: Any = 0, **more: Any) -> Q:
    """Weights of a convolution with a scale for each channel."""
    return Q(kind, CHANNELS, zero, axis, **{"const": True, "shape": (8, 8, 3, 3), **more})


MATRIX = Q(scale=2.0**-5, const=True, shape=(16, 8))


def matmul(x: Q | F = I8, w: Q | F = MATRIX, y: Q | None = RESULT, **more: Any) -> onnx.ModelProto:
    w = w if w.shape is not None else replace(w, shape=(16, 8))
    return node("MatMul", [x, w], y, **{"shape": (1, 16), "made": (1, 8), **more})


def gemm(
    x: Q | F = I8, w: Q | F = MATRIX, b: Q | F | None = BIAS, y: Q | None = RESULT, **more: Any
) -> onnx.ModelProto:
    w = w if w.shape is not None else replace(w, shape=(16, 8))
    return node("Gemm", [x, w, *([b] if b is not None else [])], y, **{"shape": (1, 16), "made": (1, 8), **more})


def unary(op: str, x: Q | F = I8, y: Q | None = I8, **more: Any) -> onnx.ModelProto:
    return node(op, [x], y, **more)


def binary(op: str, a: Q | F = I8, b: Q | F = I8, y: Q | None = I8, **more: Any) -> onnx.ModelProto:
    return node(op, [a, b], y, **more)


def lone(q: Q = I8, shape: Sequence[int | str] = MAPS, opset: int = 21, dequantize: bool = True) -> onnx.ModelProto:
    """A QuantizeLinear with a DequantizeLinear behind, or a stored tensor's DequantizeLinear alone."""
    g = Build(opset)
    g.result(g.read(q, shape), q.shape or shape, q.real)
    return g.model()


def qlinear_conv(
    x: str = "uint8",
    w: str = "int8",
    y: str = "uint8",
    zeros: Any = 0,
    inner: int = 8,
    shape: Sequence[int] = (),
    zero: int = 0,
) -> onnx.ModelProto:
    """A QLinearConv on codes.

    zeros: of the weights, one or a list. inner: input channels. shape: of x's scale. zero: of x.
    """
    g = Build(13)
    scale, xz = g.store(np.full(shape, 0.0625)), g.store(np.full(shape, zero), x)
    wide = np.ndim(zeros) > 0
    ws = g.store([2.0**-5] * 8 if wide else 2.0**-5)
    wz, codes = g.store(zeros, w), g.store(np.ones((8, inner, 3, 3)), w)
    read = [g.feed((1, inner, 8, 8), x), scale, xz, codes, ws, wz, g.store(0.125), g.store(0, y)]
    g.result(g.add("QLinearConv", read, MAPS, y, pads=[1] * 4, kernel_shape=[3, 3]), MAPS, y)
    return g.model()


def qlinear_matmul(w: str = "int8", zeros: Any = 0, reshaped: bool = False) -> onnx.ModelProto:
    """A QLinearMatMul on codes of uint8. zeros: of the weights, one or a list. reshaped: it reads a Reshape."""
    g = Build(13)
    x, y = [g.store(0.0625), g.store(0, "uint8")], [g.store(0.125), g.store(0, "uint8")]
    weights = [g.store(np.ones((8, 8)), w), g.store(np.full(np.shape(zeros), 0.0625)), g.store(zeros, w)]
    codes = g.feed((1, 8), "uint8")
    codes = g.add("Reshape", [codes, g.store([1, 8], "int64")], (1, 8), "uint8") if reshaped else codes
    g.result(g.add("QLinearMatMul", [codes, *x, *weights, *y], (1, 8), "uint8"), (1, 8), "uint8")
    return g.model()


def on_codes(op: str, shape: Sequence[int] = (), without: str = "") -> onnx.ModelProto:
    """An integer operator of one input and its scales: QLinearSigmoid and the like; QLinearAdd and the like of two.

    shape: of the scales. without: x or y, whose zero point is left out.
    """
    g, kind = Build(13), "uint8"
    scale, zero = g.store(np.full(shape, 0.0625)), g.store(np.zeros(shape), kind)
    x, y = ([scale, "" if port == without else zero] for port in "xy")
    two = op in ("QLinearAdd", "QLinearMul")
    read = [g.feed(MAPS, kind), *x, *([g.feed(MAPS, kind), scale, zero] if two else []), *y]
    if op == "QLinearConcat":
        read = [*y, g.feed(MAPS, kind), *x]
    more = {"axis": 1} if op == "QLinearConcat" else {}
    g.result(g.add(op, read, MAPS, kind, domain="com.microsoft", **more), MAPS, kind)
    return g.model()


def conv_integer(kind: str = "int8") -> onnx.ModelProto:
    """What quantize_dynamic makes of a convolution."""
    g = Build(13)
    x = g.feed(MAPS)
    g.nodes.append(helper.make_node("DynamicQuantizeLinear", [x], ["q", "s", "z"], "DynamicQuantizeLinear_0"))
    w = g.store(np.ones((8, 8, 3, 3)), kind)
    made = g.add("ConvInteger", ["q", w, "z", g.store(0, kind)], MAPS, "int32", pads=[1] * 4)
    g.result(g.add("Cast", [made], MAPS, to=TensorProto.FLOAT), MAPS)
    return g.model()
