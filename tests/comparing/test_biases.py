"""A dequantized bias whose codes count as multiples of x_scale * w_scale, in one operator for the whole graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import onnx
import pytest
from helpers.models import make_model, typed
from onnx import TensorProto, helper

import qrun
from qrun.comparing.comparison import ComparedTensor
from qrun.comparing.runtimes import compare_runtimes
from qrun.comparing.sides import PeerSide, QrunSide, Unit
from qrun.ir import Array, Model

f32, u8, i8, i32 = np.float32, np.uint8, np.int8, np.int32
RNG = np.random.default_rng(9)
X, W, B = RNG.integers(0, 9, (4, 6)).astype(u8), RNG.integers(-6, 7, (6, 3)).astype(i8), np.array([26, -21, -12], i32)
W_SCALE = np.array([0.25, 0.5, 1], f32)
FORMS = ("Gemm", "Gemm transB", "MatMul Add", "Conv")
BIASES = {
    "one scale": (f32(0.0625), i32(0)),
    "scales": (np.array([0.125, 0.125, 0.25], f32), np.zeros(3, i32)),
    "zero points": (W_SCALE * f32(0.5), np.array([5, 0, -9], i32)),
    "both": (np.array([0.125, 0.125, 0.25], f32), np.array([0, 7, 0], i32)),
}


@dataclass(frozen=True)
class Fused:
    """A side that runs the graph as one operator, and returns this."""

    model: Model
    y: Array
    name: str = "planted"
    label: str = "planted 1.0"

    @property
    def units(self) -> Sequence[Unit]:
        return [Unit(self.model.nodes[-1], self.model.nodes, ("y",))]

    def run(self, feeds: Mapping[str, Array]) -> Mapping[str, Array | None]:
        return {"y": self.y}

    def alone(self, unit: Unit, values: Mapping[str, Array]) -> Mapping[str, Array | None]:
        return {"y": self.y}


def product(form: str, bias: str) -> tuple[onnx.ModelProto, Array]:
    """A product with a bias, from codes to codes: every scale but the bias's is in the operator."""
    scale, zero = BIASES[bias]
    w, x, axis = (W.T, X, 0) if form == "Gemm transB" else (W, X, 1)
    if form == "Conv":
        w, x, axis = W.T[:, :, None], X.T[None], 0
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wf"], axis=axis),
        helper.make_node("DequantizeLinear", ["b", "bs", "bz"], ["bf"], axis=0),
    ]
    if form == "MatMul Add":
        nodes += [helper.make_node("MatMul", ["xf", "wf"], ["p"]), helper.make_node("Add", ["p", "bf"], ["yf"])]
    else:
        attributes = {"transB": 1} if form == "Gemm transB" else {}
        nodes.append(helper.make_node(form.split()[0], ["xf", "wf", "bf"], ["yf"], **attributes))
    nodes.append(helper.make_node("QuantizeLinear", ["yf", "ys", "yz"], ["y"]))
    stored = {"xs": f32(0.5), "xz": u8(2), "w": np.ascontiguousarray(w), "ws": W_SCALE, "wz": np.zeros(3, i8), "b": B}
    stored |= {"bs": scale, "bz": zero, "ys": f32(0.5), "yz": u8(100)}
    shape = (1, 3, 4) if form == "Conv" else (4, 3)
    io = {"x": typed(TensorProto.UINT8, x.shape)}, {"y": typed(TensorProto.UINT8, shape)}
    return make_model(nodes, *io, stored, opset=13), np.ascontiguousarray(x)


def in_one_operator(form: str) -> Array:
    """The codes if the bias has no scale of its own: integers times x_scale * w_scale / y_scale."""
    sums = (X.astype(int) - 2) @ W.astype(int) + B
    y = np.clip(np.rint(sums * (0.5 * W_SCALE / 0.5)) + 100, 0, 255).astype(u8)
    return y.T[None] if form == "Conv" else y


def only(model: Model, y: Array, x: Array) -> ComparedTensor:
    (found,) = compare_runtimes(QrunSide(model), Fused(model, y), {"x": x}).tensors
    return found


@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("form", FORMS)
def test_named(form: str, bias: str) -> None:
    proto, x = product(form, bias)
    model, y = qrun.load(proto.SerializeToString()), in_one_operator(form)
    found = only(model, y, x)
    assert found.guilt is not None
    reason = found.guilt.reason
    assert (reason.cause, reason.also) == ("bias-scale", ())
    assert reason.explained == found.pair.difference.differing > 0
    assert reason.text.startswith("takes the codes of the bias b as multiples of x_scale * w_scale")
    assert ("ignores its zero point" in reason.text) == bool(np.any(BIASES[bias][1]))


@pytest.mark.parametrize("form", FORMS)
def test_not_named_where_a_bit_contradicts(form: str) -> None:
    proto, x = product(form, "scales")
    y = in_one_operator(form).copy()
    y.reshape(-1)[-1] ^= 1
    found = only(qrun.load(proto.SerializeToString()), y, x)
    assert found.guilt is not None
    assert found.guilt.reason.cause != "bias-scale"


@pytest.mark.skipif(find_spec("onnxruntime") is None, reason="onnxruntime is not installed")
@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("form", FORMS[:3])
def test_onnxruntime_computes_so(form: str, bias: str) -> None:
    proto, x = product(form, bias)
    data = proto.SerializeToString()
    model = qrun.load(data)
    side = PeerSide(model, "ort", data=data, optimize=True)
    np.testing.assert_array_equal(side.run({"x": x})["y"], in_one_operator(form))
    found = compare_runtimes(QrunSide(model), side, {"x": x}).tensors[-1]
    assert found.guilt is not None
    assert found.guilt.reason.cause == "bias-scale"
