"""Networks beside those of images and texts: taggers with a recurrent layer, one product with 4-bit weights."""

from __future__ import annotations

import re

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

STEPS, INPUTS, UNITS, CLASSES = 64, 64, 128, 16
"""Of a tagger."""
SIDE, BLOCK = 4096, 32
"""Rows and columns of 4-bit weights, and how many share a scale."""
NAMES = (
    "tagger-lstm-1", "tagger-lstm-8", "tagger-gru-1", "tagger-gru-8", "4bit-level0-1", "4bit-level4-1", "4bit-level0-32",
    "4bit-level4-32", "4bit-level0-128",
    "4bit-short-1", "4bit-short-4", "4bit-qdq-1",
)  # fmt: skip
"""What it is, and how many sequences, rows or samples a run has; 4bit: the accuracy_level; short: scales that were
float16; qdq: these with DequantizeLinear and MatMul."""
_GATES = {"lstm": 4, "gru": 3}


def formats(name: str) -> tuple[str, ...]:
    """Only products of a graph are quantized dynamically, and LSTM, which GRU is not."""
    return ("dynamic", "float") if name.startswith("tagger-lstm") else ("float",)


def shape(name: str) -> tuple[int, ...]:
    """Of the input."""
    rows = int(re.findall(r"\d+$", name)[0])
    return {"tagger": (STEPS, rows, INPUTS), "4bit": (rows, SIDE)}[name.split("-")[0]]


def network(name: str, opset: int, rng: np.random.Generator) -> onnx.ModelProto:
    """The network of this name, with random weights."""
    kind, form, *_ = name.split("-")
    made = {"tagger": _tagger, "4bit": _coded}[kind](form, rng)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape(name))
    sizes = {"tagger": (*shape(name)[:-1], CLASSES), "4bit": shape(name)}
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, sizes[kind])
    graph = helper.make_graph(made[0], name, [x], [y], made[1])
    domains = [("", max(opset, 21) if form == "qdq" else opset), ("com.microsoft", 1)]
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid(*domain) for domain in domains], producer_name="qrun"
    )


Parts = tuple[list[onnx.NodeProto], list[onnx.TensorProto]]


def _tagger(op: str, rng: np.random.Generator) -> Parts:
    """A recurrent layer of one direction, as PyTorch writes and initializes it, and a product that makes classes."""
    reach, columns = 1 / np.sqrt(UNITS), _GATES[op] * UNITS
    shapes = {"W": (1, columns, INPUTS), "R": (1, columns, UNITS), "B": (1, 2 * columns), "P": (UNITS, CLASSES)}
    tensors = [
        numpy_helper.from_array(rng.uniform(-reach, reach, size).astype(np.float32), n) for n, size in shapes.items()
    ]
    tensors.append(numpy_helper.from_array(np.array([1], np.int64), "axes"))
    more = {"linear_before_reset": 1} if op == "gru" else {}
    nodes = [
        helper.make_node(op.upper(), ["x", "W", "R", "B"], ["states"], name="layer", hidden_size=UNITS, **more),
        helper.make_node("Squeeze", ["states", "axes"], ["rows"], name="squeeze"),
        helper.make_node("MatMul", ["rows", "P"], ["y"], name="classes"),
    ]
    return nodes, tensors


def _coded(form: str, rng: np.random.Generator) -> Parts:
    blocks = SIDE // BLOCK
    codes = rng.integers(0, 256, (SIDE, blocks, BLOCK // 2)).astype(np.uint8)
    scales = rng.uniform(0.001, 0.02, (SIDE, blocks)).astype(np.float32)
    if not form.startswith("level"):
        scales = scales.astype(np.float16).astype(np.float32)
    if form == "qdq":
        return _dequantized(codes, scales)
    sizes = {"K": SIDE, "N": SIDE, "bits": 4, "block_size": BLOCK, "accuracy_level": 4 if form == "level4" else 0}
    node = helper.make_node(
        "MatMulNBits", ["x", "codes", "scales"], ["y"], name="product", domain="com.microsoft", **sizes
    )
    return [node], [numpy_helper.from_array(codes, "codes"), numpy_helper.from_array(scales, "scales")]


def _dequantized(codes: np.ndarray, scales: np.ndarray) -> Parts:
    """The same weights as int4, with a scale for each block of a column."""
    both = np.stack([codes & 15, codes >> 4], axis=-1).reshape(SIDE, SIDE).T.astype(np.int64) - 8
    weights = helper.make_tensor("weights", TensorProto.INT4, both.shape, both.reshape(-1).tolist())
    nodes = [
        helper.make_node("DequantizeLinear", ["weights", "scales"], ["wide"], name="wide", axis=0, block_size=BLOCK),
        helper.make_node("MatMul", ["x", "wide"], ["y"], name="product"),
    ]
    return nodes, [weights, numpy_helper.from_array(np.ascontiguousarray(scales.T), "scales")]
