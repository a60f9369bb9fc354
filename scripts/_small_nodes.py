"""A network of many small nodes: shape arithmetic, slices, comparisons and small products, as exporters write for
detectors and tokenizers. Little is computed, so that the time per node is what is measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ROWS, WIDTH = 16, 32


class SmallNodes:
    """Blocks of 25 nodes from x [batch, ROWS, WIDTH] to a tensor of the same shape; the batch is known at run time."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []

    def constant(self, array: Any) -> str:
        self.tensors.append(numpy_helper.from_array(np.asarray(array), f"c{len(self.tensors)}"))
        return str(self.tensors[-1].name)

    def add(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op_type, inputs, [f"t{len(self.nodes)}"], **attributes))
        return str(self.nodes[-1].output[0])

    def block(self, x: str) -> str:
        """Heads of x, made with shapes that are computed; their small product; half of it where it is positive."""
        heads = self.reshaped(x, [4, WIDTH // 4])
        first = self.sliced(heads, 0, WIDTH // 8)
        second = self.sliced(heads, WIDTH // 8, WIDTH // 4)
        turned = self.add("Concat", self.add("Neg", second), first, axis=-1)
        rows = self.reshaped(turned, [WIDTH])
        scale = self.constant(self.rng.uniform(0.5, 1.5, WIDTH).astype(np.float32))
        bias = self.constant(self.rng.normal(0, 0.1, WIDTH).astype(np.float32))
        weight = self.constant(self.rng.normal(0, WIDTH**-0.5, (WIDTH, WIDTH)).astype(np.float32))
        scaled = self.add("Add", self.add("Mul", rows, scale), bias)
        product = self.add("MatMul", scaled, weight)
        positive = self.add("Greater", product, self.constant(np.float32(0)))
        half = self.add("Mul", product, self.constant(np.float32(0.5)))
        kept = self.add("Where", positive, half, scaled)
        return self.add("Tanh", self.add("Add", x, kept))

    def reshaped(self, x: str, ending: Sequence[int]) -> str:
        """x with the shape [batch, ROWS, *ending], the batch taken from x."""
        batch = self.add("Gather", self.add("Shape", x), self.constant(np.int64(0)))
        axes = self.constant(np.array([0], np.int64))
        sizes = self.constant(np.array([ROWS, *ending], np.int64))
        return self.add("Reshape", x, self.add("Concat", self.add("Unsqueeze", batch, axes), sizes, axis=0))

    def sliced(self, x: str, start: int, end: int) -> str:
        """Elements start to end of the last axis."""
        return self.add("Slice", x, *(self.constant(np.array([v], np.int64)) for v in (start, end, 3)))


def small_nodes(opset: int, rng: np.random.Generator, count: int = 500) -> onnx.ModelProto:
    """A network of at least `count` nodes: x [batch, ROWS, WIDTH] float32 to y of the same shape."""
    made, x = SmallNodes(rng), "x"
    while len(made.nodes) < count:
        x = made.block(x)
    made.nodes[-1].output[0] = "y"
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", ROWS, WIDTH]) for n in ("x", "y")]
    graph = helper.make_graph(made.nodes, "small-nodes", values[:1], values[1:], made.tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
