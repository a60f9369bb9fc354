"""Models to compare: a transformer block with a mask, a network quantized by hand, and names that say nothing."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

import qrun
from helpers.models import make_model

Arrays = dict[str, np.ndarray]


def transformer(seed: int, width: int = 16, heads: int = 2, length: int = 8) -> onnx.ModelProto:
    """x [N,length,width] and mask [N,1,1,length] (1: look at, 0: not) to y [N,length,width]: one encoder block."""
    rng = np.random.default_rng(seed)
    each = width // heads

    def weights(rows: int, columns: int, gain: float = 1.0) -> np.ndarray:
        return (rng.normal(0, gain / np.sqrt(rows), (rows, columns))).astype(np.float32)

    constants: Arrays = {
        "one": np.array(1, np.float32), "hidden": np.array(-10000, np.float32), "half": np.array(0.5, np.float32),
        "root": np.array(np.sqrt(2), np.float32), "shrink": np.array(1 / np.sqrt(each), np.float32),
        "split": np.array([0, length, heads, each], np.int64), "join": np.array([0, length, width], np.int64),
        **{f"w{n}": weights(width, width, 1.6) for n in "qkvo"},
        "w1": weights(width, 4 * width), "w2": weights(4 * width, width),
        "b1": rng.normal(0, 0.1, 4 * width).astype(np.float32), "b2": rng.normal(0, 0.1, width).astype(np.float32),
        **{f"{n}{at}": (1 - (n == "shift") + rng.normal(0, 0.1, width)).astype(np.float32)
           for n in ("gain", "shift") for at in (0, 1)},
    }  # fmt: skip
    nodes: list[onnx.NodeProto] = []

    def node(op: str, inputs: str, output: str, **attributes: Any) -> None:
        nodes.append(helper.make_node(op, inputs.split(), [output], f"{op}_{output}", **attributes))

    node("Sub", "one mask", "masked")
    node("Mul", "masked hidden", "bias")
    node("LayerNormalization", "x gain0 shift0", "n0", axis=-1)
    for n in "qkv":
        node("MatMul", f"n0 w{n}", n)
        node("Reshape", f"{n} split", f"{n}4")
        node("Transpose", f"{n}4", f"{n}t", perm=(0, 2, 3, 1) if n == "k" else (0, 2, 1, 3))
    node("MatMul", "qt kt", "raw")
    node("Mul", "raw shrink", "scores")
    node("Add", "scores bias", "hiding")
    node("Softmax", "hiding", "shares", axis=-1)
    node("MatMul", "shares vt", "seen")
    node("Transpose", "seen", "back", perm=(0, 2, 1, 3))
    node("Reshape", "back join", "flat")
    node("MatMul", "flat wo", "o")
    node("Add", "x o", "r0")
    node("LayerNormalization", "r0 gain1 shift1", "n1", axis=-1)
    node("MatMul", "n1 w1", "f1")
    node("Add", "f1 b1", "f1b")
    node("Div", "f1b root", "g0")
    node("Erf", "g0", "g1")
    node("Add", "g1 one", "g2")
    node("Mul", "f1b g2", "g3")
    node("Mul", "g3 half", "gelu")
    node("MatMul", "gelu w2", "f2")
    node("Add", "f2 b2", "f2b")
    node("Add", "r0 f2b", "y")
    inputs: dict[str, Sequence[int | str]] = {"x": ["N", length, width], "mask": ["N", 1, 1, length]}
    return make_model(nodes, inputs, {"y": ["N", length, width]}, constants)


def sentences(seed: int, count: int, width: int = 16, length: int = 8, batch: int = 4) -> list[Arrays]:
    """Inputs of the transformer: each sequence ends early, its mask says where."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        ends = rng.integers(length // 2, length, batch)
        mask = (np.arange(length) < ends[:, None]).astype(np.float32)[:, None, None]
        made.append({"x": rng.normal(0, 1, (batch, length, width)).astype(np.float32), "mask": mask})
    return made


def ranges_of(model: onnx.ModelProto, feeds: Sequence[Mapping[str, np.ndarray]]) -> dict[str, tuple[float, float]]:
    """Smallest and largest value of every float tensor, 0 included."""
    names = [name for node in model.graph.node for name in node.output]
    session = qrun.Session(model, backend="reference")
    found: dict[str, tuple[float, float]] = {}
    for one in feeds:
        for name, array in {**one, **session.run(one, names)}.items():
            if array.dtype == np.float32:
                low, high = found.get(name, (0.0, 0.0))
                found[name] = min(low, float(array.min())), max(high, float(array.max()))
    return found


def by_hand(
    model: onnx.ModelProto,
    ranges: Mapping[str, tuple[float, float]],
    operators: Sequence[str] = ("MatMul", "Add", "Mul", "Softmax", "Conv", "Gemm"),
    dtype: type = np.uint8,
) -> onnx.ModelProto:
    """QDQ form: quantizers around the results and activations of these operators,
    and one scale per output column of weights.

    dtype: of activations.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    nodes: list[onnx.NodeProto] = []
    done: dict[str, str] = {}
    new: Arrays = {}
    info = np.iinfo(dtype)

    def quantized(name: str) -> str:
        if name in done:
            return done[name]
        value = constants.get(name)
        if value is not None and value.ndim > 1:
            axis = value.ndim - 1
            scale = np.maximum(np.abs(value).max(tuple(range(axis))), 1e-8).astype(np.float32) / np.float32(127)
            new[f"{name}.c"] = np.clip(np.rint(value / scale), -127, 127).astype(np.int8)
            new[f"{name}.s"], new[f"{name}.z"] = scale, np.zeros(scale.shape, np.int8)
            nodes.append(
                helper.make_node("DequantizeLinear", [f"{name}.c", f"{name}.s", f"{name}.z"], [f"{name}.d"], axis=axis)
            )
            done[name] = f"{name}.d"
        elif value is not None:
            return name
        else:
            low, high = ranges[name]
            scale = np.array(max(high - low, 1e-8) / (info.max - info.min), np.float32)
            zero = np.array(np.clip(np.rint(info.min - low / scale), info.min, info.max), dtype)
            new[f"{name}.s"], new[f"{name}.z"] = scale, zero
            nodes.append(helper.make_node("QuantizeLinear", [name, f"{name}.s", f"{name}.z"], [f"{name}.q"]))
            nodes.append(helper.make_node("DequantizeLinear", [f"{name}.q", f"{name}.s", f"{name}.z"], [f"{name}.d"]))
            done[name] = f"{name}.d"
        return done[name]

    outputs = {v.name for v in model.graph.output}
    for node in model.graph.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        if node.op_type in operators:
            copy.ClearField("input")
            copy.input.extend(quantized(name) for name in node.input)
            nodes.append(copy)
            for name in set(node.output) - outputs:
                quantized(name)
        else:
            copy.ClearField("input")
            copy.input.extend(done.get(name, name) if name not in constants else name for name in node.input)
            nodes.append(copy)
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    made.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in new.items())
    made.graph.ClearField("value_info")
    return made


def renamed(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """The same graph with random names for all nodes and tensors but the graph's inputs and outputs."""
    rng = random.Random(seed)
    made = onnx.ModelProto()
    made.CopyFrom(model)
    fixed = {v.name for v in (*model.graph.input, *model.graph.output)}
    names: dict[str, str] = {"": ""}

    def name(old: str) -> str:
        if old in fixed:
            return old
        return names.setdefault(old, f"{rng.getrandbits(48):x}")

    for node in made.graph.node:
        node.name = f"{rng.getrandbits(48):x}"
        for side in (node.input, node.output):
            side[:] = [name(old) for old in side]
    for tensor in made.graph.initializer:
        tensor.name = name(tensor.name)
    made.graph.ClearField("value_info")
    return made
