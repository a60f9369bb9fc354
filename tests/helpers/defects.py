"""Networks quantized to QDQ form as a good quantizer does, and what a bad one does to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from helpers.accuracy import ranges_of
from helpers.models import make_model

Arrays = dict[str, np.ndarray]
f32 = np.float32


class _Writer:
    """The nodes and constants of a float network, layer by layer."""

    def __init__(self, seed: int) -> None:
        self.rng, self.nodes, self.constants = np.random.default_rng(seed), list[onnx.NodeProto](), Arrays()

    def node(self, op: str, inputs: str, output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs.split(), [output], output, **attributes))
        return output

    def normal(self, name: str, *shape: int, gain: float = 1.0, middle: float = 0.0) -> str:
        self.constants[name] = (middle + self.rng.normal(0, gain, shape)).astype(f32)
        return name

    def conv(self, x: str, name: str, into: int, out: int, size: int, act: str = "Relu", group: int = 1) -> str:
        w = self.normal(f"{name}_w", out, into // group, size, size, gain=1.4 / np.sqrt(into // group * size**2))
        b = self.normal(f"{name}_b", out, gain=0.5)
        pads = [size // 2] * 4
        made = self.node("Conv", f"{x} {w} {b}", name if not act else f"{name}_raw", group=group, pads=pads)
        if act == "Clip":
            self.constants |= {"zero": np.array(0, f32), "six": np.array(6, f32)}
            return self.node("Clip", f"{made} zero six", name)
        return self.node(act, made, name) if act else made

    def product(self, x: str, name: str, into: int, out: int, act: str = "") -> str:
        w, b = self.normal(f"{name}_w", into, out, gain=1.2 / np.sqrt(into)), self.normal(f"{name}_b", out, gain=0.3)
        self.node("MatMul", f"{x} {w}", f"{name}_p")
        made = self.node("Add", f"{name}_p {b}", name if not act else f"{name}_raw")
        return self.node(act, made, name) if act else made

    def head(self, x: str, channels: int) -> None:
        self.node("GlobalAveragePool", x, "mean")
        self.node("Flatten", "mean", "flat")
        w, b = self.normal("fc_w", 10, channels, gain=0.8), self.normal("fc_b", 10, gain=0.3)
        self.node("Gemm", f"flat {w} {b}", "y", transB=1)


def _cnn() -> onnx.ModelProto:
    n = _Writer(0)
    n.conv("x", "c1", 3, 8, 3)
    n.conv("c1", "c2", 8, 8, 3)
    n.conv("c2", "c3", 8, 8, 1, act="")
    n.node("Add", "c3 c1", "sum")
    n.node("Relu", "sum", "act")
    n.node("MaxPool", "act", "pool", kernel_shape=[2, 2], strides=[2, 2])
    n.conv("pool", "c4", 8, 16, 3)
    n.head("c4", 16)
    return make_model(n.nodes, {"x": ["N", 3, 12, 12]}, {"y": ["N", 10]}, n.constants, opset=17)


def _depthwise() -> onnx.ModelProto:
    n = _Writer(1)
    n.conv("x", "c0", 3, 16, 3, act="Clip")
    n.conv("c0", "c1", 16, 16, 3, group=16)
    n.conv("c1", "c2", 16, 16, 1)
    n.conv("c2", "c3", 16, 16, 1, act="")
    n.node("Add", "c3 c2", "sum")
    n.conv("sum", "c4", 16, 16, 3, group=16, act="Clip")
    n.head("c4", 16)
    return make_model(n.nodes, {"x": ["N", 3, 12, 12]}, {"y": ["N", 10]}, n.constants, opset=17)


def _encoder() -> onnx.ModelProto:
    n, width, heads, length = _Writer(2), 16, 2, 6
    n.constants |= {"split": np.array([0, length, heads, width // heads]), "join": np.array([0, length, width])}
    n.constants["root"] = np.array(np.sqrt(width // heads), f32)
    for k in "qkv":
        n.product("x", k, width, width)
        n.node("Reshape", f"{k} split", f"{k}4")
        n.node("Transpose", f"{k}4", f"{k}t", perm=(0, 2, 3, 1) if k == "k" else (0, 2, 1, 3))
    n.node("MatMul", "qt kt", "raw")
    n.node("Div", "raw root", "scores")
    n.node("Softmax", "scores", "shares", axis=-1)
    n.node("MatMul", "shares vt", "seen")
    n.node("Transpose", "seen", "back", perm=(0, 2, 1, 3))
    n.node("Reshape", "back join", "joined")
    n.product("joined", "o", width, width)
    n.node("Add", "o x", "sum")
    n.normal("gamma", width, gain=0.3, middle=1)
    n.normal("beta", width, gain=0.5)
    n.node("LayerNormalization", "sum gamma beta", "norm", axis=-1)
    n.product("norm", "c1", width, 4 * width, act="Relu")
    n.product("c1", "c2", 4 * width, width)
    n.node("Add", "c2 norm", "y")
    return make_model(n.nodes, {"x": ["N", length, width]}, {"y": ["N", length, width]}, n.constants, opset=17)


NETWORKS: Mapping[str, Callable[[], onnx.ModelProto]] = {"cnn": _cnn, "depthwise": _depthwise, "encoder": _encoder}
SHAPES = {"cnn": (8, 3, 12, 12), "depthwise": (8, 3, 12, 12), "encoder": (8, 6, 16)}


@cache
def network(kind: str) -> onnx.ModelProto:
    return NETWORKS[kind]()


@cache
def batch(kind: str) -> Arrays:
    return {"x": np.random.default_rng(7).normal(0, 1, SHAPES[kind]).astype(f32)}


@cache
def _ranges(kind: str) -> dict[str, tuple[float, float]]:
    return ranges_of(network(kind), [batch(kind)])


_FOLLOW = ("Relu", "Clip")
_PRODUCTS = ("Conv", "Gemm", "MatMul")


def quantized(kind: str) -> onnx.ModelProto:
    """In QDQ form: int8 activations, weights of a scale per output channel, int32 biases of Conv and Gemm.

    The quantizers of tensor t are t_Q and t_DQ, its scale t_scale and zero point t_zero; so are those of weights.
    """
    model, made = network(kind), onnx.ModelProto()
    made.CopyFrom(model)
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    ranges, reads = _ranges(kind), [(name, node) for node in model.graph.node for name in node.input]
    nodes: list[onnx.NodeProto] = []
    new: Arrays = {}

    def pair(name: str) -> None:
        low, high = ranges[name]
        scale = f32(max(high - low, 1e-8) / 255)
        new[f"{name}_scale"], new[f"{name}_zero"] = scale, np.int8(np.clip(np.rint(-128 - low / scale), -128, 127))
        parameters = [f"{name}_scale", f"{name}_zero"]
        nodes.append(helper.make_node("QuantizeLinear", [name, *parameters], [f"{name}_q"], f"{name}_Q"))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", *parameters], [f"{name}_d"], f"{name}_DQ"))

    def weights(name: str, axis: int) -> str:
        value = constants[name]
        others = tuple(i for i in range(value.ndim) if i != axis)
        scale = (np.abs(value).max(others) / 127).astype(f32)
        shape = [-1 if i == axis else 1 for i in range(value.ndim)]
        new[f"{name}_q"] = np.rint(value / scale.reshape(shape)).astype(np.int8)
        new[f"{name}_scale"], new[f"{name}_zero"] = scale, np.zeros(scale.shape, np.int8)
        stored = [f"{name}_q", f"{name}_scale", f"{name}_zero"]
        nodes.append(helper.make_node("DequantizeLinear", stored, [f"{name}_d"], f"{name}_DQ", axis=axis))
        return f"{name}_d"

    def bias(name: str, x: str, w: str) -> str:
        scale = (new[f"{x}_scale"] * new[f"{w}_scale"]).astype(f32)
        new[f"{name}_q"], new[f"{name}_scale"] = np.rint(constants[name] / scale).astype(np.int32), scale
        stored = [f"{name}_q", f"{name}_scale"]
        nodes.append(helper.make_node("DequantizeLinear", stored, [f"{name}_d"], f"{name}_DQ", axis=0))
        return f"{name}_d"

    pair("x")
    for node in model.graph.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        inputs = [name if name in constants or f"{name}_scale" not in new else f"{name}_d" for name in node.input]
        if node.op_type in _PRODUCTS and node.input[1] in constants:
            inputs[1] = weights(node.input[1], 1 if node.op_type == "MatMul" else 0)
            if len(node.input) > 2:
                inputs[2] = bias(node.input[2], node.input[0], node.input[1])
        copy.input[:] = inputs
        nodes.append(copy)
        (y,) = node.output
        readers = [n for name, n in reads if name == y]
        follow = len(readers) == 1 and (readers[0].op_type in _FOLLOW or (node.op_type == "MatMul" and _is_bias(readers[0], constants)))  # fmt: skip
        if not follow:
            pair(y)
    nodes.append(helper.make_node("Identity", ["y_d"], ["result"], "end"))
    del made.graph.node[:], made.graph.initializer[:]
    made.graph.node.extend(nodes)
    used = {name for node in nodes for name in node.input}
    kept = {name: array for name, array in {**constants, **new}.items() if name in used}
    made.graph.initializer.extend(numpy_helper.from_array(np.asarray(array), name) for name, array in kept.items())
    made.graph.output[0].name = "result"
    return made


def _is_bias(node: onnx.NodeProto, constants: Mapping[str, np.ndarray]) -> bool:
    return node.op_type == "Add" and any(name in constants for name in node.input)


# What goes wrong


def value(model: onnx.ModelProto, name: str) -> np.ndarray:
    return numpy_helper.to_array(next(t for t in model.graph.initializer if t.name == name))


def store(model: onnx.ModelProto, name: str, array: Any) -> None:
    tensor = next(t for t in model.graph.initializer if t.name == name)
    tensor.CopyFrom(numpy_helper.from_array(np.asarray(array), name))


def node_of(model: onnx.ModelProto, output: str) -> onnx.NodeProto:
    return next(n for n in model.graph.node if output in n.output)


def drop(model: onnx.ModelProto, output: str, read: int = 0) -> None:
    """Without the node that makes this tensor: its readers read that node's input."""
    gone = node_of(model, output)
    for node in model.graph.node:
        node.input[:] = [gone.input[read] if name == output else name for name in node.input]
    model.graph.node.remove(gone)


def replace_node(model: onnx.ModelProto, output: str, op: str, **attributes: Any) -> None:
    """Another operator in place of the one that makes this tensor; what it reads stays."""
    old = node_of(model, output)
    inputs = old.input[:1] if op in ("LeakyRelu", "Relu", "Elu") else old.input
    old.CopyFrom(helper.make_node(op, list(inputs), list(old.output), old.name, **attributes))


def set_attributes(model: onnx.ModelProto, output: str, **attributes: Any) -> None:
    node = node_of(model, output)
    kept = [a for a in node.attribute if a.name not in attributes]
    del node.attribute[:]
    node.attribute.extend([*kept, *(helper.make_attribute(k, v) for k, v in attributes.items())])


def exchange(model: onnx.ModelProto, one: str, other: str) -> None:
    """Exchange the values of two initializers."""
    first, second = value(model, one), value(model, other)
    store(model, one, second)
    store(model, other, first)


def swap_rows(model: onnx.ModelProto, name: str, axis: int, one: int = 1, other: int = 4) -> None:
    array = np.moveaxis(value(model, name).copy(), axis, 0)
    array[[one, other]] = array[[other, one]]
    store(model, name, np.ascontiguousarray(np.moveaxis(array, 0, axis)))
