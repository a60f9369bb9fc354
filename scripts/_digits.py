"""A small residual network on scikit-learn's digits: data, training, float model.

Every product runs on fixed-point values (see `grid`) whose sums fit float64 exactly, so training gives the same bits
whatever the BLAS library, its threads and its order of summation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Arrays = dict[str, np.ndarray]
SHAPES = {
    "conv1.weight": (16, 1, 3, 3),
    "conv1.bias": (16,),
    "depthwise.weight": (16, 1, 3, 3),
    "depthwise.bias": (16,),
    "pointwise.weight": (32, 16, 1, 1),
    "pointwise.bias": (32,),
    "conv2.weight": (32, 32, 3, 3),
    "conv2.bias": (32,),
    "dense.weight": (10, 128),
    "dense.bias": (10,),
}


def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Images [N,1,8,8] float32 in 0..1 (sixteenths) and labels: to train on, and held back (every fifth)."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images = (data.images[:, None] / 16).astype(np.float32)
    held = np.arange(len(images)) % 5 == 4
    return images[~held], data.target[~held], images[held], data.target[held]


def grid(values: np.ndarray, bits: int) -> np.ndarray:
    """Multiples of 2**-bits, so that sums of products of two of them are exact below 2**(53 - both numbers of bits)."""
    return np.rint(values * 2.0**bits) * 2.0**-bits


def windows(x: np.ndarray) -> np.ndarray:
    """The 3x3 neighbourhoods, zero-padded: [N,H,W,C] to [N,H,W,C,9]."""
    n, h, w, c = x.shape
    wide = np.zeros((n, h + 2, w + 2, c))
    wide[:, 1:-1, 1:-1] = x
    return np.stack([wide[:, i : i + h, j : j + w] for i in range(3) for j in range(3)], axis=-1)


def scatter(g: np.ndarray) -> np.ndarray:
    """The transpose of `windows`: [N,H,W,C,9] to [N,H,W,C]."""
    n, h, w, c, _ = g.shape
    wide = np.zeros((n, h + 2, w + 2, c))
    for k in range(9):
        wide[:, k // 3 : k // 3 + h, k % 3 : k % 3 + w] += g[..., k]
    return wide[:, 1:-1, 1:-1]


def flat(x: np.ndarray, columns: int) -> np.ndarray:
    return np.ascontiguousarray(x).reshape(-1, columns)


class Network:
    """conv 3x3 - depthwise 3x3 - pointwise - max pool - residual conv 3x3 - average pool - dense, channels last."""

    def __init__(self, parameters: Mapping[str, np.ndarray]) -> None:
        self.p = {k: grid(v.astype(np.float64), 16).reshape(v.shape[0], -1) for k, v in parameters.items()}

    def forward(self, images: np.ndarray) -> Arrays:
        """All activations, named as the tensors of the float model."""
        p, v = self.p, {}
        n = len(images)
        x = images.transpose(0, 2, 3, 1).astype(np.float64)
        v["images"] = x
        v["c1.patches"] = flat(windows(x), 9)
        v["c1"] = self.relu(v["c1.patches"] @ p["conv1.weight"].T + p["conv1.bias"].T).reshape(n, 8, 8, 16)
        v["dw.patches"] = windows(v["c1"])
        v["dw"] = self.relu((v["dw.patches"] * p["depthwise.weight"]).sum(-1) + p["depthwise.bias"].T)
        v["pw"] = self.relu(flat(v["dw"], 16) @ p["pointwise.weight"].T + p["pointwise.bias"].T).reshape(n, 8, 8, 32)
        v["pool"] = self.quads(v["pw"]).max(-1)
        v["c2.patches"] = flat(windows(v["pool"]), 288)
        v["c2"] = self.relu(v["c2.patches"] @ p["conv2.weight"].T + p["conv2.bias"].T).reshape(n, 4, 4, 32)
        v["sum"] = v["pool"] + v["c2"]
        v["mean"] = self.quads(v["sum"]).mean(-1)
        v["features"] = v["mean"].transpose(0, 3, 1, 2).reshape(n, 128)
        v["logits"] = v["features"] @ p["dense.weight"].T + p["dense.bias"].T
        return v

    def gradients(self, images: np.ndarray, labels: np.ndarray) -> Arrays:
        """Of the summed cross entropy."""
        p, v, n = self.p, self.forward(images), len(images)
        g: Arrays = {}
        shifted = np.exp(v["logits"] - v["logits"].max(1, keepdims=True))
        d = shifted / shifted.sum(1, keepdims=True)
        d[np.arange(n), labels] -= 1
        d = grid(d, 20)
        self.dense(g, "dense", v["features"], d)
        d = grid(d @ p["dense.weight"], 20).reshape(n, 32, 2, 2).transpose(0, 2, 3, 1)
        total = np.repeat(np.repeat(d, 2, 1), 2, 2) / 4
        d = flat(total * (v["c2"] > 0), 32)
        self.dense(g, "conv2", v["c2.patches"], d)
        back = grid(d @ p["conv2.weight"], 20).reshape(n, 4, 4, 32, 9)
        total = total + scatter(back)
        quads = self.quads(v["pw"])
        first = np.arange(4) == quads.argmax(-1)[..., None]
        d = (total[..., None] * first).reshape(n, 4, 4, 32, 2, 2).transpose(0, 1, 4, 2, 5, 3).reshape(n, 8, 8, 32)
        d = flat(d * (v["pw"] > 0), 32)
        self.dense(g, "pointwise", flat(v["dw"], 16), d)
        d = grid(d @ p["pointwise.weight"], 20).reshape(n, 8, 8, 16) * (v["dw"] > 0)
        g["depthwise.weight"] = (v["dw.patches"] * d[..., None]).sum((0, 1, 2))
        g["depthwise.bias"] = d.sum((0, 1, 2))[:, None]
        d = grid(scatter(d[..., None] * p["depthwise.weight"]), 20) * (v["c1"] > 0)
        self.dense(g, "conv1", v["c1.patches"], flat(d, 16))
        return g

    @staticmethod
    def dense(g: Arrays, name: str, x: np.ndarray, d: np.ndarray) -> None:
        g[f"{name}.weight"] = d.T @ x
        g[f"{name}.bias"] = d.sum(0)[:, None]

    @staticmethod
    def relu(x: np.ndarray) -> np.ndarray:
        return grid(np.maximum(x, 0), 14)

    @staticmethod
    def quads(x: np.ndarray) -> np.ndarray:
        """[N,2H,2W,C] to [N,H,W,C,4]: the 2x2 squares."""
        n, h, w, c = x.shape
        return x.reshape(n, h // 2, 2, w // 2, 2, c).transpose(0, 1, 3, 5, 2, 4).reshape(n, h // 2, w // 2, c, 4)


def train(epochs: int = 20, batch: int = 32, seed: int = 7) -> Arrays:
    """Adam on the training images; the parameters found, multiples of 2**-16."""
    images, labels, _, _ = digits()
    rng = np.random.default_rng(seed)
    parameters = {}
    for name, shape in SHAPES.items():
        fan_in = int(np.prod(shape[1:]))
        drawn = rng.uniform(-1, 1, shape) * np.sqrt(6 / fan_in) if len(shape) > 1 else np.zeros(shape)
        parameters[name] = drawn.reshape(shape[0], -1)
    first = {k: np.zeros_like(v) for k, v in parameters.items()}
    second = {k: np.zeros_like(v) for k, v in parameters.items()}
    steps = epochs * (len(images) // batch)
    for step in range(steps):
        if step % (len(images) // batch) == 0:
            order = rng.permutation(len(images))
        chosen = order[(step * batch) % (len(images) // batch * batch) :][:batch]
        gradients = Network(parameters).gradients(images[chosen], labels[chosen])
        rate = 6e-3 * (1 - step / steps)
        for name, g in gradients.items():
            g = g / batch
            first[name] = 0.9 * first[name] + 0.1 * g
            second[name] = 0.99 * second[name] + 0.01 * (g * g)
            parameters[name] = parameters[name] - rate * first[name] / (np.sqrt(second[name]) + 1e-8)
    return {k: grid(v, 16).reshape(SHAPES[k]) for k, v in parameters.items()}


def float_model(parameters: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """The trained network: images [N,1,8,8] to logits [N,10]."""

    def node(op_type: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
        return helper.make_node(op_type, inputs.split(), [output], name=f"{op_type}_{output}", **attributes)

    same: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    half: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        node("Conv", "images conv1.weight conv1.bias", "c1.raw", **same),
        node("Relu", "c1.raw", "c1"),
        node("Conv", "c1 depthwise.weight depthwise.bias", "dw.raw", group=16, **same),
        node("Relu", "dw.raw", "dw"),
        node("Conv", "dw pointwise.weight pointwise.bias", "pw.raw", kernel_shape=[1, 1]),
        node("Relu", "pw.raw", "pw"),
        node("MaxPool", "pw", "pool", **half),
        node("Conv", "pool conv2.weight conv2.bias", "c2.raw", **same),
        node("Relu", "c2.raw", "c2"),
        node("Add", "pool c2", "sum"),
        node("AveragePool", "sum", "mean", **half),
        node("Flatten", "mean", "features"),
        node("Gemm", "features dense.weight dense.bias", "logits", transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["N", 1, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 10])],
        [numpy_helper.from_array(parameters[name].astype(np.float32), name) for name in SHAPES],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], producer_name="qrun")
    model.ir_version = 8
    return model


def parameters_of(model: onnx.ModelProto) -> Arrays:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def ranges(parameters: Mapping[str, np.ndarray], images: np.ndarray) -> dict[str, tuple[float, float]]:
    """Smallest and largest value of each tensor of the float model, rounded outward to multiples of 2**-8."""
    values = Network(parameters).forward(images)
    found = {}
    for name in ("images", "c1", "dw", "pw", "pool", "c2", "sum", "mean", "features", "logits"):
        low, high = float(values[name].min()), float(values[name].max())
        found[name] = (np.floor(low * 256) / 256, np.ceil(high * 256) / 256)
        if name in ("c1", "dw", "pw", "c2"):
            found[f"{name}.raw"] = found[name]
    return found


def accuracy(logits: np.ndarray, labels: np.ndarray) -> float:
    return float((logits.argmax(1) == labels).mean())
