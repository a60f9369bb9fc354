"""Whole graphs as onnxruntime runs them on CPUs without VNNI, against loops, and live."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import numpy as np
import onnx
import pytest
from helpers.models import make_model, typed
from onnx import TensorProto, helper

import qrun
from qrun.comparing.choices import sides
from qrun.comparing.emulated import EmulatedSide, run_emulated
from qrun.comparing.runtimes import compare_runtimes
from qrun.comparing.sides import PeerSide, QrunSide, Unit
from qrun.comparing.ties import real_operands
from qrun.errors import MemoryLimitError
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
    return make_model(nodes, {"x": typed(TensorProto.UINT8, x)}, {"y": typed(TensorProto.UINT8, y)}, stored, opset=13)


def in_pairs() -> np.ndarray:
    """`product` with products added two by two in int16."""
    pairs = (X.astype(i64)[:, :, None] * W.astype(i64)[None]).reshape(4, 3, 2, 3).sum(2)
    sums = np.clip(pairs, -(2**15), 2**15 - 1).sum(1)
    assert (sums != X.astype(i64) @ W.astype(i64)).all()
    return np.clip(np.rint(sums / 1000) + 3, 0, 255).astype(u8)


def saturating(proto: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    part = optimize(qrun.load(proto.SerializeToString()), frozenset(), "ort", "fused").model
    return run_emulated(part, {"x": x}, ["y"])["y"]


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


DIGITS = Path(__file__).resolve().parents[2] / "models/digits"
QEMU = "qemu-x86_64-static"
RUN = """
import sys
import numpy as np
import onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
np.save(sys.argv[3], session.run(None, {"images": np.load(sys.argv[2])})[0])
"""


def sides_of(model: Model) -> tuple[EmulatedSide, EmulatedSide]:
    return EmulatedSide(model, name="exact"), EmulatedSide(model, name="avx2", saturating=True)


def test_a_whole_model_as_cpus_without_vnni_compute_it() -> None:
    """What saturates is carried on; the exact side is what integers give."""
    model = qrun.load(product().SerializeToString())
    exact, avx2 = (side.run({"x": X})["y"] for side in sides_of(model))
    np.testing.assert_array_equal(avx2, in_pairs())
    np.testing.assert_array_equal(exact, qrun.Session(model).run({"x": X})["y"])


def test_the_cause_of_every_first_difference_is_the_saturation() -> None:
    model = qrun.load(DIGITS / "qoperator/model.onnx")
    found = compare_runtimes(*sides_of(model), {"images": np.load(DIGITS / "x.npy")})
    causes = {t.guilt.reason.cause for t in found.tensors if t.guilt is not None}
    assert causes == {"pair-saturation"}
    assert found.first is not None


def test_weights_with_a_scale_for_each_channel() -> None:
    """More channels than pixels in a row: scales lie along the weights' first axis."""
    rng = np.random.default_rng(4)
    nodes, stored = [], {"one": f32(1), "zero": u8(0)}
    for name, tensor, size in (("a", "x", 1), ("b", "a.q", 3)):
        stored |= {f"{name}.w": rng.integers(60, 128, (8, 8, size, size)).astype(i8)}
        stored |= {f"{name}.s": rng.uniform(0.5, 2, 8).astype(f32), f"{name}.z": np.zeros(8, i8)}
        stored |= {f"{name}.o": f32(600 * size * size)}
        nodes += [
            helper.make_node("DequantizeLinear", [tensor, "one", "zero"], [f"{name}.x"]),
            helper.make_node("DequantizeLinear", [f"{name}.{part}" for part in "wsz"], [f"{name}.f"], axis=0),
            helper.make_node("Conv", [f"{name}.x", f"{name}.f"], [f"{name}.y"], pads=[size // 2] * 4),
            helper.make_node("QuantizeLinear", [f"{name}.y", f"{name}.o", "zero"], [f"{name}.q" if size == 1 else "y"]),
        ]
    model = qrun.load(model_of(nodes, stored, (1, 8, 4, 4), (1, 8, 4, 4)).SerializeToString())
    x = rng.integers(150, 256, (1, 8, 4, 4)).astype(u8)
    found = compare_runtimes(*sides(model, "avx2"), {"x": x})
    assert [t.guilt.reason.cause for t in found.tensors if t.guilt] == ["pair-saturation"] * 2


@pytest.mark.parametrize(
    ("op", "scale", "axis", "attributes"),
    [("QLinearConv", np.array([1, 2], f32), 0, {}), ("QLinearConv", np.array([1, 2], f32), 0, {"channels_last": 1}),
     ("QLinearMatMul", np.array([1, 2], f32), 1, {})],
)  # fmt: skip
def test_real_operands(op: str, scale: np.ndarray, axis: int, attributes: dict[str, object]) -> None:
    x = np.full((2, 2) if op == "QLinearMatMul" else (1, 2, 2, 2), 4, u8)
    w = np.arange(4, dtype=i8).reshape((2, 2) if op == "QLinearMatMul" else (2, 2, 1, 1))
    node = helper.make_node(op, ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"], ["y"], **attributes)
    stored = {"xs": f32(2), "xz": u8(1), "w": w, "ws": scale, "wz": np.ones_like(scale, i8), "ys": f32(1), "yz": u8(0)}
    model = qrun.load(model_of([node], stored, x.shape, x.shape).SerializeToString())
    values = {**model.constants, "x": x}
    got = real_operands(model.nodes[0], [values[name] for name in model.nodes[0].inputs])
    lanes = [-1 if at == axis else 1 for at in range(w.ndim)]
    want = (w.astype(float) - 1) * scale.reshape(lanes)
    assert got is not None
    np.testing.assert_array_equal(got[0], (x.astype(float) - 1) * 2)
    np.testing.assert_array_equal(got[1], want)


@pytest.mark.skipif(
    which(QEMU) is None or find_spec("onnxruntime") is None or platform.machine() != "x86_64",
    reason="needs onnxruntime, and qemu to run it on a CPU without VNNI",
)
@pytest.mark.parametrize("form", ["qoperator", "qdq"])
def test_outputs_are_those_of_onnxruntime_on_such_a_cpu(form: str, tmp_path: Path) -> None:
    path, images, there = DIGITS / form / "model.onnx", DIGITS / "x.npy", tmp_path / "y.npy"
    call = [QEMU, "-cpu", "Haswell", sys.executable, "-c", RUN, path, images, there]
    subprocess.run(call, check=True, capture_output=True, timeout=300)
    model = qrun.load(path)
    name = model.outputs[0].name
    exact, avx2 = (side.run({"images": np.load(images)})[name] for side in sides_of(model))
    np.testing.assert_array_equal(avx2, np.load(there))
    assert avx2 is not None
    assert exact is not None
    assert (avx2 != exact).any()


def test_memory_is_bounded() -> None:
    model = qrun.load(DIGITS / "qdq/model.onnx")
    with pytest.raises(MemoryLimitError):
        EmulatedSide(model, name="avx2", saturating=True, max_memory=10_000).run({"images": np.load(DIGITS / "x.npy")})
