"""A transformer's encoder (Vaswani et al. 2017), as exporters write it, with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Encoder:
    """x [batch, length, width] to y of the same shape."""

    def __init__(
        self, layers: int, width: int, heads: int, length: int, rng: np.random.Generator, batch: int = 1
    ) -> None:
        self.width, self.heads, self.rng = width, heads, rng
        self.shape = (batch, length, width)
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []
        self.split = self._constant(np.array([batch, length, heads, width // heads], np.int64))
        self.joined = self._constant(np.array(self.shape, np.int64))
        self.numbers = {value: self._constant(np.float32(value)) for value in (1, 0.5, 2**0.5, (width / heads) ** -0.5)}
        x = "x"
        for _ in range(layers):
            x = self._add("Add", [x, self._attention(self._normalized(x))])
            x = self._add("Add", [x, self._forward(self._normalized(x))])
        self.nodes.append(helper.make_node("Identity", [self._normalized(x)], ["y"], "last"))

    def model(self, opset: int) -> onnx.ModelProto:
        x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, self.shape) for n in ("x", "y"))
        graph = helper.make_graph(self.nodes, "transformer", [x], [y], self.tensors)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])

    def _constant(self, array: Any) -> str:
        self.tensors.append(numpy_helper.from_array(np.asarray(array), f"c{len(self.tensors)}"))
        return str(self.tensors[-1].name)

    def _add(self, op_type: str, inputs: Sequence[str], **attributes: Any) -> str:
        count = len(self.nodes)
        self.nodes.append(helper.make_node(op_type, inputs, [f"t{count}"], f"{op_type}_{count}", **attributes))
        return str(self.nodes[-1].output[0])

    def _normalized(self, x: str) -> str:
        weights = [self._constant(self.rng.normal(mean, 0.1, self.width).astype(np.float32)) for mean in (1, 0)]
        return self._add("LayerNormalization", [x, *weights], axis=-1)

    def _linear(self, x: str, inputs: int, outputs: int) -> str:
        weight = self.rng.normal(0, inputs**-0.5, (inputs, outputs)).astype(np.float32)
        product = self._add("MatMul", [x, self._constant(weight)])
        return self._add("Add", [product, self._constant(self.rng.normal(0, 0.1, outputs).astype(np.float32))])

    def _attention(self, x: str) -> str:
        q, k, v = (
            self._add(
                "Transpose", [self._add("Reshape", [self._linear(x, self.width, self.width), self.split])], perm=perm
            )
            for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        )
        scores = self._add("Mul", [self._add("MatMul", [q, k]), self.numbers[(self.width / self.heads) ** -0.5]])
        seen = self._add("MatMul", [self._add("Softmax", [scores], axis=-1), v])
        back = self._add("Reshape", [self._add("Transpose", [seen], perm=[0, 2, 1, 3]), self.joined])
        return self._linear(back, self.width, self.width)

    def _forward(self, x: str) -> str:
        """Two layers with a Gelu between them, of the nodes that it consists of."""
        hidden = self._linear(x, self.width, 4 * self.width)
        error = self._add("Erf", [self._add("Div", [hidden, self.numbers[2**0.5]])])
        twice = self._add("Mul", [hidden, self._add("Add", [error, self.numbers[1]])])
        return self._linear(self._add("Mul", [twice, self.numbers[0.5]]), 4 * self.width, self.width)
