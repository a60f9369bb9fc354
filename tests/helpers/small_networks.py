"""Ten small float networks, one for each way that layers are put together, with weights from a seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from helpers.models import make_model

Array = np.ndarray[Any, Any]
SIZE = 8


class Net:
    """A graph that grows: every method adds nodes, and returns the name of what they make."""

    def __init__(self, shape: Sequence[int]) -> None:
        self.rng = np.random.default_rng(7)
        self.nodes: list[onnx.NodeProto] = []
        self.stored: list[onnx.TensorProto] = []
        self.shape = list(shape)

    def store(self, array: Array) -> str:
        name = f"c{len(self.stored)}"
        self.stored.append(numpy_helper.from_array(array, name))
        return name

    def weight(self, *shape: int) -> str:
        return self.store((self.rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32))

    def bias(self, size: int) -> str:
        return self.store(self.rng.uniform(-0.5, 0.5, size).astype(np.float32))

    def add(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], name=f"{op_type}_{len(self.nodes)}", **attributes))
        return name

    def conv(self, x: str, channels: int, out: int, kernel: int = 3, group: int = 1, **more: Any) -> str:
        pads = {"pads": [kernel // 2] * 4} if "pads" not in more else {}
        weight = self.weight(out, channels // group, kernel, kernel)
        return self.add("Conv", x, weight, self.bias(out), kernel_shape=[kernel, kernel], group=group, **pads, **more)

    def norm(self, x: str, channels: int) -> str:
        parts = [self.rng.uniform(0.5, 1.5, channels).astype(np.float32) for _ in range(4)]
        return self.add("BatchNormalization", x, *map(self.store, parts))

    def linear(self, x: str, terms: int, out: int) -> str:
        return self.add("Add", self.add("MatMul", x, self.weight(terms, out)), self.bias(out))

    def model(self, y: str, opset: int = 17) -> onnx.ModelProto:
        model = make_model(self.nodes, {"x": self.shape}, {y: None}, self.stored, opset=opset)
        return onnx.shape_inference.infer_shapes(model, strict_mode=True)

    def sample(self, seed: int) -> Array:
        return np.random.default_rng(seed).uniform(-1, 1, self.shape).astype(np.float32)


def image(channels: int = 3) -> Net:
    return Net((1, channels, SIZE, SIZE))


def cnn() -> tuple[Net, str]:
    n = image()
    x = n.add("MaxPool", n.add("Relu", n.conv("x", 3, 8)), kernel_shape=[2, 2], strides=[2, 2])
    x = n.add("Flatten", n.add("Relu", n.conv(x, 8, 8)))
    return n, n.add("Gemm", x, n.weight(8 * 16, 5), n.bias(5))


def depthwise() -> tuple[Net, str]:
    n = image()
    x = n.add("Clip", n.conv("x", 3, 8, 1), n.store(np.float32(0)), n.store(np.float32(6)))
    x = n.add("Clip", n.conv(x, 8, 8, group=8), n.store(np.float32(0)), n.store(np.float32(6)))
    return n, n.add("LeakyRelu", n.conv(x, 8, 4, 1), alpha=0.1)


def residual() -> tuple[Net, str]:
    n = image()
    x = n.add("Relu", n.conv("x", 3, 8))
    y = n.conv(n.add("Relu", n.conv(x, 8, 8)), 8, 8)
    return n, n.add("Relu", n.add("Add", x, y))


def mlp() -> tuple[Net, str]:
    n = Net((2, 16))
    x = n.add("Sigmoid", n.linear("x", 16, 32))
    return n, n.add("Softmax", n.linear(n.add("Tanh", n.linear(x, 32, 32)), 32, 4), axis=-1)


def transformer() -> tuple[Net, str]:
    n = Net((1, 6, 32))
    heads = n.store(np.int64([1, 6, 2, 16]))

    def part(x: str, perm: list[int]) -> str:
        return n.add("Transpose", n.add("Reshape", n.linear(x, 32, 32), heads), perm=perm)

    q, k, v = part("x", [0, 2, 1, 3]), part("x", [0, 2, 3, 1]), part("x", [0, 2, 1, 3])
    scores = n.add("Softmax", n.add("Mul", n.add("MatMul", q, k), n.store(np.float32(0.25))), axis=-1)
    mixed = n.add("Transpose", n.add("MatMul", scores, v), perm=[0, 2, 1, 3])
    x = n.add("Add", "x", n.linear(n.add("Reshape", mixed, n.store(np.int64([1, 6, 32]))), 32, 32))
    x = n.add("LayerNormalization", x, n.weight(32), n.bias(32), axis=-1)
    return n, n.add("Add", x, n.linear(n.add("Relu", n.linear(x, 32, 64)), 64, 32))


def gemm() -> tuple[Net, str]:
    n = Net((3, 16))
    x = n.add("Relu", n.add("Gemm", "x", n.weight(24, 16), n.bias(24), transB=1))
    return n, n.add("Gemm", x, n.weight(5, 24), n.bias(5), transB=1)


def transposed() -> tuple[Net, str]:
    n = image()
    x = n.add("Relu", n.conv("x", 3, 6, strides=[2, 2]))
    return n, n.add("ConvTranspose", x, n.weight(6, 4, 2, 2), n.bias(4), kernel_shape=[2, 2], strides=[2, 2])


def concat() -> tuple[Net, str]:
    n = image()
    a, b = n.add("Relu", n.conv("x", 3, 4, 1)), n.add("Relu", n.conv("x", 3, 4, 3))
    pooled = n.add("AveragePool", "x", kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    x = n.add("GlobalAveragePool", n.add("Concat", a, b, pooled, axis=1))
    return n, n.add("Gemm", n.add("Flatten", x), n.weight(11, 3), n.bias(3))


def batch_norm() -> tuple[Net, str]:
    n = image()
    x = n.add("Relu", n.norm(n.conv("x", 3, 8), 8))
    gate = n.add("Sigmoid", n.conv(n.add("GlobalAveragePool", x), 8, 8, 1))
    return n, n.norm(n.add("Mul", x, gate), 8)


def upsampling() -> tuple[Net, str]:
    n = image()
    x = n.add("Relu", n.conv("x", 3, 8, strides=[2, 2]))
    x = n.add("Resize", x, "", n.store(np.float32([1, 1, 2, 2])), mode="nearest")
    x = n.add("Pad", n.add("Slice", x, n.store(np.int64([1])), n.store(np.int64([7])), n.store(np.int64([2]))),
              n.store(np.int64([0, 0, 1, 0, 0, 0, 1, 0])))  # fmt: skip
    return n, n.conv(n.add("Concat", x, "x", axis=1), 11, 4)


NETWORKS: dict[str, Callable[[], tuple[Net, str]]] = {
    f.__name__: f
    for f in (cnn, depthwise, residual, mlp, transformer, gemm, transposed, concat, batch_norm, upsampling)
}
