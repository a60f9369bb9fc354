"""Random QDQ models for what a runtime makes of them: every way in which a group can be whole or broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Array = np.ndarray[Any, Any]
CODES = {"uint8": np.uint8, "int8": np.int8, "uint16": np.uint16, "int16": np.int16}
OPSETS = (13, 17, 19, 21)


@dataclass
class Value:
    """A tensor of the graph. real: its name in float, or "". codes: its name quantized, or "", with its parameters."""

    shape: tuple[int, ...]
    real: str = ""
    codes: str = ""
    scale: str = ""
    zero: str = ""
    read: int = 0


class Graph:
    """A graph that grows by one random operator after the other."""

    def __init__(self, seed: int, real: type[np.floating[Any]] = np.float32) -> None:
        self.real = real
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.stored: list[onnx.TensorProto] = []
        self.outputs: list[str] = []
        kinds = ["uint8", "int8", "uint8", "int8", "uint16", "int16"]
        self.opset = int(self.rng.choice(OPSETS if real is np.float32 else OPSETS[2:]))
        self.kind = kinds[int(self.rng.integers(6 if self.opset >= 21 else 4))]
        self.dedicated, self.broken = self.chance(0.2), 0.25 if self.chance(0.5) else 0.0
        self.values = [Value((1, 4, 8, 8), real="x"), Value((2, 8), real="z")]
        self.values = [self.quantized(v) for v in self.values]

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def store(self, array: Array) -> str:
        """The name of a constant; real numbers are of the graph's type."""
        array = np.asarray(array)
        return self.store_as_is(array.astype(self.real) if array.dtype == np.float32 else array)

    def store_as_is(self, array: Array) -> str:
        self.stored.append(numpy_helper.from_array(array, f"c{len(self.stored)}"))
        return self.stored[-1].name

    def add(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        several = attributes.pop("outputs", 0)
        names = [f"{name}_{k}" for k in range(several)] or [name]
        self.nodes.append(helper.make_node(op_type, inputs, names, f"{op_type}_{len(self.nodes)}", **attributes))
        return name

    def parameters(self, kind: str, low: bool = False) -> tuple[str, str]:
        info = np.iinfo(CODES[kind])
        zero = info.min if low else int(self.rng.integers(info.min // 2, info.max // 2 + 1))
        return self.store(np.float32(self.rng.choice([0.02, 0.05, 0.1]))), self.store(CODES[kind](zero))

    def quantized(self, value: Value, like: Value | None = None, low: bool = False) -> Value:
        kind = self.kind if not self.chance(self.broken / 3) else str(self.rng.choice(["uint8", "int8"]))
        value.scale, value.zero = (like.scale, like.zero) if like is not None else self.parameters(kind, low)
        value.codes = self.add("QuantizeLinear", value.real, value.scale, value.zero)
        if self.chance(self.broken):
            return value  # what reads the result reads the codes, or the float tensor too
        if not self.dedicated:
            value.real = ""
        return value

    def pick(self, rank: int = 0) -> Value:
        fitting = [v for v in self.values if not rank or len(v.shape) == rank]
        return fitting[int(self.rng.integers(max(0, len(fitting) - 3), len(fitting)))]

    def read(self, value: Value) -> str:
        """The float tensor of a value: dequantized, by a node of its own or one that others read."""
        if not value.codes or (value.real and not self.dedicated and self.chance(0.3)):
            return value.real
        codes = value.codes
        if self.dedicated and value.real and value.read:
            codes = self.add("QuantizeLinear", value.real, value.scale, value.zero)
        value.read += 1
        return self.add("DequantizeLinear", codes, value.scale, value.zero)

    def result(self, name: str, shape: tuple[int, ...], like: Value | None = None) -> None:
        """Quantize what an operator made, mostly; behind Relu or Clip, sometimes."""
        value, low = Value(shape, real=name), False
        if like is None and self.chance(0.25):
            low = self.chance(0.7)
            if self.chance(0.6):
                value.real = self.add("Relu", name)
            else:
                value.real = self.add("Clip", name, self.store(np.float32(0)), self.store(np.float32(6)))
        if self.chance(0.1):
            self.outputs.append(value.real)
        self.values.append(value if self.chance(0.12) else self.quantized(value, like, low))

    def weight(self, shape: tuple[int, ...], axis: int, x: Value, bias: int | None) -> list[str]:
        """Weights, and a bias of so many elements: quantized, or float."""
        if self.chance(self.broken / 2):
            floats = [self.store(self.rng.normal(size=shape).astype(np.float32))]
            return floats + ([self.store(self.rng.normal(size=bias).astype(np.float32))] if bias else [])
        kind = np.int8 if self.chance(0.7) else np.uint8
        info = np.iinfo(kind)
        axis = axis if not self.chance(self.broken / 2) else 1 - axis
        many = self.chance(0.5)
        scales = self.rng.uniform(0.005, 0.02, shape[axis] if many else ()).astype(np.float32)
        scale = self.store(scales)
        along = {"axis": axis} if many else {}
        codes = self.store(self.rng.integers(info.min + 1, info.max + 1, shape).astype(kind))
        zero = self.store(np.zeros(scales.shape, kind))
        made = [self.add("DequantizeLinear", codes, scale, zero, **along)]
        if bias and self.chance(0.2):
            made.append(self.store(self.rng.normal(size=bias).astype(np.float32)))
        elif bias:
            by = next((numpy_helper.to_array(t) for t in self.stored if t.name == x.scale), np.float32(0.1))
            real = np.asarray(by * scales if scales.size in (1, bias) else by * scales[:1].repeat(bias), np.float32)
            real = real * np.float32(2) if self.chance(self.broken / 3) else real
            along = {"axis": 0} if real.size > 1 else {}
            names = [self.store(np.zeros(bias, np.int32)), self.store(real), self.store(np.zeros(real.shape, np.int32))]
            made.append(self.add("DequantizeLinear", *names, **along))
        return made


def conv(g: Graph) -> None:
    x = g.pick(4)
    channels = x.shape[1]
    weights = g.weight((4, channels, 3, 3), 0, x, 4 if g.chance(0.7) else None)
    g.result(g.add("Conv", g.read(x), *weights, pads=[1] * 4, kernel_shape=[3, 3]), (1, 4, *x.shape[2:]))


def gemm(g: Graph) -> None:
    x = g.pick(2)
    turned = g.chance(0.5)
    shape = (8, x.shape[1]) if turned else (x.shape[1], 8)
    weights = g.weight(shape, 0 if turned else 1, x, 8 if g.chance(0.7) else None)
    more = {"alpha": 2.0} if g.chance(g.broken / 3) else {}
    g.result(g.add("Gemm", g.read(x), *weights, transB=int(turned), **more), (x.shape[0], 8))


def matmul(g: Graph) -> None:
    x = g.pick(2)
    if g.chance(0.3) and x.shape[0] == x.shape[1]:
        g.result(g.add("MatMul", g.read(x), g.read(x)), x.shape)
        return
    made = g.add("MatMul", g.read(x), *g.weight((x.shape[1], 8), 1, x, None))
    if g.chance(0.3):
        made = g.add("Add", made, g.store(g.rng.normal(size=8).astype(np.float32)))
    g.result(made, (x.shape[0], 8))


def binary(g: Graph) -> None:
    x = g.pick()
    others = [v for v in g.values if v.shape == x.shape]
    y = others[int(g.rng.integers(len(others)))]
    op_type = str(g.rng.choice(["Add", "Mul", "Add", "Mul", "Div", "Sub"]))
    g.result(g.add(op_type, g.read(x), g.read(y)), x.shape)


def with_constant(g: Graph) -> None:
    x = g.pick()
    kind = np.int8 if g.chance(0.5) else np.uint8
    names = [g.store(g.rng.integers(0, 100, x.shape).astype(kind)), g.store(np.float32(0.1)), g.store(kind(3))]
    stored = g.add("DequantizeLinear", *names) if g.chance(0.8) else g.store(np.ones(x.shape, np.float32))
    g.result(g.add(str(g.rng.choice(["Add", "Mul"])), g.read(x), stored), x.shape)


def concat(g: Graph) -> None:
    x = g.pick(4)
    others = [v for v in g.values if v.shape == x.shape]
    y = others[int(g.rng.integers(len(others)))]
    g.result(g.add("Concat", g.read(x), g.read(y), axis=2), (*x.shape[:2], 2 * x.shape[2], x.shape[3]))


def silu(g: Graph) -> None:
    x = g.pick()
    gate = Value(x.shape, real=g.add("Sigmoid", g.read(x)))
    g.result(g.add("Mul", g.read(x), g.read(g.quantized(gate))), x.shape)


def curve(g: Graph) -> None:
    x = g.pick()
    op_type = str(g.rng.choice(["Sigmoid", "Softmax", "LeakyRelu", "Tanh", "HardSwish" if g.opset > 13 else "Elu"]))
    g.result(g.add(op_type, g.read(x)), x.shape)


def pool(g: Graph) -> None:
    x = g.pick(4)
    op_type = str(g.rng.choice(["AveragePool", "MaxPool", "GlobalAveragePool"]))
    window = {} if op_type == "GlobalAveragePool" else {"kernel_shape": [2, 2], "pads": [0, 0, 1, 1]}
    shape = (*x.shape[:2], 1, 1) if not window else x.shape
    g.result(g.add(op_type, g.read(x), **window), shape, x if x.codes and g.chance(0.6) else None)


def move(g: Graph) -> None:
    x = g.pick()
    like = x if x.codes and g.chance(0.7) else None
    flat = (int(np.prod(x.shape[:-1])), x.shape[-1])
    for _ in range(1 + g.chance(0.3)):
        which = int(g.rng.integers(4))
        if which == 0:
            g.result(g.add("Reshape", g.read(x), g.store(np.array(flat, np.int64))), flat, like)
        elif which == 1:
            order = list(range(len(x.shape) - 2)) + [len(x.shape) - 1, len(x.shape) - 2]
            g.result(g.add("Transpose", g.read(x), perm=order), tuple(x.shape[k] for k in order), like)
        elif which == 2:
            bounds = [g.store(np.array([k], np.int64)) for k in (0, 1, 0)]
            g.result(g.add("Slice", g.read(x), *bounds), (1, *x.shape[1:]), like)
        else:
            g.result(g.add("Unsqueeze", g.read(x), g.store(np.array([0], np.int64))), (1, *x.shape), like)


def chain(g: Graph) -> None:
    """Moves one behind the other, without pairs in between."""
    x = g.pick(4)
    made = g.add("Transpose", g.read(x), perm=[0, 2, 3, 1])
    if g.chance(0.5):
        made = g.add("MaxPool", made, kernel_shape=[1, 1])
    shape = (int(np.prod(x.shape)) // 4, 4)
    g.result(g.add("Reshape", made, g.store(np.array(shape, np.int64))), shape)


def resize(g: Graph) -> None:
    x = g.pick(4)
    more = {"mode": "nearest" if g.chance(0.7) else "linear", "coordinate_transformation_mode": "asymmetric"}
    made = g.add("Resize", g.read(x), "", g.store_as_is(np.array([1, 1, 1, 1], np.float32)), **more)
    g.result(made, x.shape, x if x.codes and g.chance(0.7) else None)


def split(g: Graph) -> None:
    x = next((v for v in reversed(g.values) if len(v.shape) == 4 and v.shape[1] % 2 == 0), g.values[0])
    more = {"num_outputs": 2} if g.opset >= 18 else {}
    made = g.add("Split", g.read(x), axis=1, outputs=2, **more)
    half = (1, x.shape[1] // 2, *x.shape[2:])
    for k in range(2):
        value = Value(half, real=f"{made}_{k}")
        g.values.append(g.quantized(value, x if x.codes and g.chance(0.9) else None))


STEPS: tuple[Callable[[Graph], None], ...] = (
    *(conv, conv, gemm, matmul, binary, binary, with_constant, concat, silu, silu, curve, pool, pool),
    *(move, move, chain, resize, split),
)


def random_quantized(seed: int, real: type[np.floating[Any]] = np.float32) -> onnx.ModelProto:
    """A QDQ model of 6 to 18 operators; what nobody reads is an output. real: the type of scales and real numbers."""
    g = Graph(seed, real)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(real))
    for _ in range(int(g.rng.integers(6, 19))):
        STEPS[int(g.rng.integers(len(STEPS)))](g)
    read = {name for node in g.nodes for name in node.input}
    ends = [v for v in g.values if (v.codes or v.real) not in read and v.real not in ("x", "z")]
    outputs = [g.read(v) for v in ends]
    made = {name for node in g.nodes for name in node.output}
    outputs = list(dict.fromkeys(name for name in (*outputs, *g.outputs) if name in made))
    infos = [helper.make_tensor_value_info(n, kind, s) for n, s in (("x", (1, 4, 8, 8)), ("z", (2, 8)))]
    results = [helper.make_tensor_value_info(name, kind, None) for name in outputs]
    graph = helper.make_graph(g.nodes, f"random_{seed}", infos, results, g.stored)
    made_model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", g.opset)], ir_version=10)
    return onnx.shape_inference.infer_shapes(made_model, strict_mode=True)
