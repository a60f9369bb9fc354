"""Whole graphs as onnxruntime runs them on CPUs without VNNI, against loops, and live."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.numpy_helper import from_array

import qrun
from qrun.comparing.groups import run_saturating
from qrun.comparing.runtimes import compare_runtimes
from qrun.comparing.sides import PeerSide, QrunSide, Unit
from qrun.ir import Array, Model
from qrun.passes import optimize

f32, u8, i8, i64 = np.float32, np.uint8, np.int8, np.int64
X = np.random.default_rng(5).integers(150, 256, (4, 6)).astype(u8)
W = np.random.default_rng(6).integers(70, 128, (6, 3)).astype(i8)


def product() -> onnx.ModelProto:
    """QDQ: y = quantize(dequantize(x) @ dequantize(w)), scales 1, y's 1000 with zero point 3."""
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "one", "zero"], ["a"]),
        helper.make_node("DequantizeLinear", ["w", "one", "weights_zero"], ["b"]),
        helper.make_node("MatMul", ["a", "b"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "scale", "three"], ["y"]),
    ]
    stored = {"one": f32(1), "zero": u8(0), "w": W, "weights_zero": i8(0), "scale": f32(1000), "three": u8(3)}
    return model_of(nodes, stored, X.shape, (4, 3))


def model_of(
    nodes: list[onnx.NodeProto], stored: Mapping[str, np.ndarray | np.generic], x: tuple[int, ...], y: tuple[int, ...]
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.UINT8, x)],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, y)],
        [from_array(np.asarray(v), n) for n, v in stored.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def in_pairs() -> np.ndarray:
    """`product` with products added two by two in int16."""
    pairs = (X.astype(i64)[:, :, None] * W.astype(i64)[None]).reshape(4, 3, 2, 3).sum(2)
    sums = np.clip(pairs, -(2**15), 2**15 - 1).sum(1)
    assert (sums != X.astype(i64) @ W.astype(i64)).all()
    return np.clip(np.rint(sums / 1000) + 3, 0, 255).astype(u8)


def saturating(proto: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    part = optimize(qrun.load(proto.SerializeToString()), frozenset(), "ort", tables=False).model
    return run_saturating(part, {"x": x}, ["y"])["y"]


def test_products_saturate_in_pairs() -> None:
    np.testing.assert_array_equal(saturating(product(), X), in_pairs())


def test_depthwise_convolutions_are_exact() -> None:
    inputs = ["x", "one", "zero", "w", "one", "weights_zero", "scale", "zero"]
    nodes = [helper.make_node("QLinearConv", inputs, ["y"], group=2)]
    stored = {"one": f32(1), "zero": u8(0), "w": np.full((2, 1, 2), 127, i8), "weights_zero": i8(0), "scale": f32(1000)}
    proto = model_of(nodes, stored, (1, 2, 3), (1, 2, 2))
    y = saturating(proto, np.full((1, 2, 3), 255, u8))
    assert y.tolist() == [[[65, 65], [65, 65]]]
    assert round(2 * 255 * 127 / 1000) == 65 != round((2**15 - 1) / 1000)


def test_softmax_becomes_one_operator() -> None:
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "tenth", "zero"], ["a"]),
        helper.make_node("Softmax", ["a"], ["b"], axis=-1),
        helper.make_node("QuantizeLinear", ["b", "scale", "zero"], ["y"]),
    ]
    stored = {"tenth": f32(0.1), "zero": u8(0), "scale": f32(1 / 255)}
    proto = model_of(nodes, stored, (1, 3), (1, 3))
    x = np.array([[255, 250, 0]], u8)
    powers = np.exp((x - 255.0) * 0.1)
    want = np.rint(powers / powers.sum() * 254)
    assert want.tolist() == [[158, 96, 0]]
    np.testing.assert_array_equal(saturating(proto, x), want)
    assert qrun.Session(qrun.load(proto.SerializeToString())).run({"x": x})["y"].tolist() == [[159, 96, 0]]


@dataclass(frozen=True)
class Outputs:
    """A side that runs the graph as one, and gives this."""

    model: Model
    y: np.ndarray
    name: str = "planted"
    label: str = "planted 1.0"

    @property
    def units(self) -> Sequence[Unit]:
        return [Unit(self.model.nodes[-1], self.model.nodes, ("y",))]

    def run(self, feeds: Mapping[str, Array]) -> Mapping[str, Array | None]:
        return {"y": self.y}

    def alone(self, unit: Unit, values: Mapping[str, Array]) -> Mapping[str, Array | None]:
        return {"y": self.y}


@pytest.mark.parametrize(("more", "cause"), [(0, "pair-saturation"), (1, "unknown")])
def test_named(more: int, cause: str) -> None:
    model = qrun.load(product().SerializeToString())
    y = in_pairs()
    y[0, 0] += more
    (found,) = compare_runtimes(QrunSide(model), Outputs(model, y), {"x": X}).tensors
    assert found.guilt is not None
    assert found.guilt.reason.cause == cause


@pytest.mark.skipif(find_spec("onnxruntime") is None, reason="onnxruntime is not installed")
def test_live() -> None:
    data = product().SerializeToString()
    model = qrun.load(data)
    (found,) = compare_runtimes(QrunSide(model), PeerSide(model, "ort", data=data, optimize=True), {"x": X}).tensors
    if not found.differs:
        pytest.skip("this CPU adds uint8 * int8 products without saturation")
    assert found.guilt is not None
    assert found.guilt.reason.cause == "pair-saturation"
    assert found.guilt.reason.explained == found.pair.difference.differing
