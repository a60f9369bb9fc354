"""Causes that are proved against their rivals: each on a model where it is the cause, and on one where a rival is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from helpers.cli import ROOT
from helpers.models import make_model, typed
from helpers.support import MS, node_model
from llvmlite.binding import get_host_cpu_features
from onnx import TensorProto, helper

import qrun
from qrun.comparing.causes import Reason
from qrun.comparing.comparison import ComparedTensor, Comparison
from qrun.comparing.runtimes import compare_runtimes
from qrun.comparing.sides import PeerSide, QrunSide, Unit
from qrun.ir import Array, Model
from qrun.report.compare import first_facts

f32, f16, u8, i8 = np.float32, np.float16, np.uint8, np.int8
RNG = np.random.default_rng(5)


@dataclass(frozen=True)
class Given:
    """A side that gives these tensors."""

    model: Model
    tensors: Mapping[str, Array]
    name: str = "given"
    label: str = "given 1.0"

    @property
    def units(self) -> Sequence[Unit]:
        return [Unit(node, (node,)) for node in self.model.nodes]

    def run(self, feeds: Mapping[str, Array]) -> Mapping[str, Array | None]:
        return dict(self.tensors)

    def alone(self, unit: Unit, values: Mapping[str, Array]) -> Mapping[str, Array | None]:
        return dict(self.tensors)


def with_ort(proto: onnx.ModelProto, feeds: Mapping[str, Array], **more: Any) -> Comparison:
    pytest.importorskip("onnxruntime")
    data = proto.SerializeToString()
    model = qrun.load(data)
    return compare_runtimes(QrunSide(model), PeerSide(model, "ort", data=data), feeds, **more)


def with_given(proto: onnx.ModelProto, feeds: Mapping[str, Array], **tensors: Array) -> Comparison:
    model = qrun.load(proto.SerializeToString())
    return compare_runtimes(QrunSide(model), Given(model, tensors), feeds)


def reason_of(tensor: ComparedTensor | None) -> Reason:
    assert tensor is not None
    assert tensor.guilt is not None
    return tensor.guilt.reason


def means(x: Array, counted: bool) -> Array:
    """3x3 windows of a padded image, stride 3, added in float32 one by one; counted: is padding in the divisor?"""
    padded, ones = (np.pad(part, [(0, 0), (0, 0), (1, 1), (1, 1)]) for part in (x, np.ones_like(x)))
    made = np.zeros((1, 2, 3, 3), f32)
    for row, column in np.ndindex(3, 3):
        window = slice(3 * row, 3 * row + 3), slice(3 * column, 3 * column + 3)
        total = np.zeros((1, 2), f32)
        for at in np.ndindex(3, 3):
            total += padded[(..., *window)][(..., *at)]
        made[..., row, column] = total / (f32(9) if counted else ones[(..., *window)].sum((-2, -1)))
    return made


IMAGE = RNG.standard_normal((1, 2, 7, 7)).astype(f32)
POOL = {"kernel_shape": [3, 3], "strides": [3, 3], "pads": [1, 1, 1, 1]}


@pytest.mark.parametrize(("asked", "counted"), [(0, True), (1, False)])
def test_padding_in_the_divisor_of_a_pool(asked: int, counted: bool) -> None:
    proto, feeds = node_model("AveragePool", [IMAGE], {**POOL, "count_include_pad": asked}, opset=19, outputs=(f32,))
    found = reason_of(with_given(proto, feeds, y0=means(IMAGE, counted)).first)
    assert found.cause == "pool-divisor"
    assert ("counts padding" if counted else "does not count padding") in found.text


def test_another_order_is_no_other_divisor() -> None:
    large = IMAGE * f32(1e3)
    proto, feeds = node_model("AveragePool", [large], POOL, opset=19, outputs=(f32,))
    theirs = means(large, False)
    theirs[0, 0, 1, 1] += np.spacing(f32(1e3))
    model = qrun.load(proto.SerializeToString())
    exactly = qrun.comparing.differences.EXACT
    first = compare_runtimes(QrunSide(model), Given(model, {"y0": theirs}), feeds, exactly).first
    assert reason_of(first).cause == "float-order"


def test_onnxruntime_divides_by_the_whole_kernel_where_a_window_reaches_past_the_image() -> None:
    codes = RNG.integers(0, 256, (1, 2, 7, 7)).astype(u8)
    inputs = [codes, f32(0.1), u8(3), f32(0.02), u8(100)]
    attributes = {"kernel_shape": [3, 3], "strides": [3, 3], "ceil_mode": 1, "count_include_pad": 1}
    proto, feeds = node_model(
        "QLinearAveragePool", inputs, attributes, opset=17, domain=MS, outputs=(u8,), constants=range(1, 5)
    )
    found = reason_of(with_ort(proto, feeds).first)
    assert (found.cause, found.explained > 0) == ("pool-divisor", True)
    assert "all 9 elements of the kernel" in found.text


def test_another_divisor_of_a_fused_pool_is_no_requantization() -> None:
    """onnxruntime makes one operator of DequantizeLinear, AveragePool and QuantizeLinear: off by many steps."""
    pytest.importorskip("onnxruntime")
    window: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [3, 3], "ceil_mode": 1, "count_include_pad": 1}
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("AveragePool", ["d"], ["p"], **window),
        helper.make_node("QuantizeLinear", ["p", "t", "v"], ["y"]),
    ]
    stored = {"s": f32(0.1), "z": u8(3), "t": f32(0.04), "v": u8(100)}
    codes = RNG.integers(0, 60, (1, 2, 7, 7)).astype(u8)
    proto = make_model(nodes, {"q": typed(u8, codes.shape)}, {"y": typed(u8, [1, 2, 3, 3])}, stored, opset=19)
    data = proto.SerializeToString()
    model = qrun.load(data)
    first = compare_runtimes(QrunSide(model), PeerSide(model, "ort", data=data, optimize=True), {"q": codes}).first
    assert first is not None
    assert first.pair.difference.largest > 5
    found = reason_of(first)
    assert (found.cause, found.also) == ("pool-divisor", ())


def test_a_pool_without_padding_has_one_divisor() -> None:
    """The groups of the digits' model round another way; nothing is divided by another number."""
    folder = ROOT / "models" / "digits"
    model, feeds = qrun.load(folder / "qdq/model.onnx"), {"images": np.load(folder / "x.npy")}
    found = compare_runtimes(QrunSide(model), QrunSide(model, fuse=True), feeds)
    assert reason_of(found.first) == Reason(
        "fused-requantization", "groups run as integer operators, each result rounded once", 17, None, 17, 0.0, 0.0
    )


def blocks(dtype: Any, level: int, depth: int = 256) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A MatMulNBits of 4 bits in blocks of 32."""
    rng, columns, count = np.random.default_rng(3), 64, depth // 32
    a = rng.standard_normal((3, depth)).astype(dtype)
    codes = rng.integers(0, 256, (columns, count, 16)).astype(u8)
    scales = rng.uniform(0.005, 0.02, (columns, count)).astype(dtype)
    numbers = {"K": depth, "N": columns, "bits": 4, "block_size": 32, "accuracy_level": level}
    inputs = [a, codes, scales]
    return node_model("MatMulNBits", inputs, numbers, opset=17, domain=MS, outputs=(dtype,), constants=(1, 2))


@pytest.mark.parametrize("dtype", [f16, f32])
@pytest.mark.parametrize("depth", [256, 2048])
def test_onnxruntime_rounds_activations_at_accuracy_level_4(dtype: Any, depth: int) -> None:
    found = reason_of(with_ort(*blocks(dtype, 4, depth)).first)
    assert (found.cause, "accuracy_level 4" in found.text) == ("int8-activations", True), found


def test_level_4_is_not_blamed_for_sums_in_another_order() -> None:
    """The side has accuracy_level 4, and rounds no activations: it only adds in another order."""
    proto, feeds = blocks(f32, 4)
    exact = qrun.Session(qrun.load(proto.SerializeToString())).run(feeds)["y0"]
    theirs = exact + RNG.uniform(-4e-6, 4e-6, exact.shape).astype(f32)
    model = qrun.load(proto.SerializeToString())
    exactly = qrun.comparing.differences.EXACT
    first = compare_runtimes(QrunSide(model), Given(model, {"y0": theirs}), feeds, exactly).first
    assert reason_of(first).cause == "float-order"


def test_two_hypotheses_that_fit_are_both_named() -> None:
    """Without a negative tie nothing tells away from zero and up apart."""
    x = np.array([0.5, 2.5, 1.25, 7], f32)
    for values, others in ((x, ["tie-rounding: rounds exact ties up"]), (np.append(x, f32(-2.5)), [])):
        proto, feeds = node_model("QuantizeLinear", [values, f32(1), u8(4)], outputs=(u8,))
        theirs = (np.copysign(np.floor(np.abs(values) + 0.5), values) + 4).astype(u8)
        found = with_given(proto, feeds, y0=theirs)
        reason = reason_of(found.first)
        assert (reason.cause, reason.text) == ("tie-rounding", "rounds exact ties away from zero")
        assert list(reason.also) == others
        assert found.first is not None
        assert [text for label, text in first_facts(found, found.first) if label == "also fits"] == others


def chain() -> tuple[onnx.ModelProto, dict[str, Array]]:
    """x * g -> t, t @ w -> y, in float16."""
    nodes = [helper.make_node("Mul", ["x", "g"], ["t"], "mul"), helper.make_node("MatMul", ["t", "w"], ["y"], "matmul")]
    rng = np.random.default_rng(0)
    stored = {"g": rng.uniform(0.5, 2, 64).astype(f16), "w": rng.standard_normal((64, 32)).astype(f16)}
    kind = TensorProto.FLOAT16
    proto = make_model(nodes, {"x": typed(kind, [4, 64])}, {"y": typed(kind, [4, 32])}, stored, opset=21)
    return proto, {"x": rng.standard_normal((4, 64)).astype(f16)}


def test_onnxruntime_keeps_float32_between_float16_nodes() -> None:
    proto, feeds = chain()
    found = with_ort(proto, feeds)
    first = found.first
    reason = reason_of(first)
    assert first is not None
    assert (reason.cause, reason.explained) == ("kept-in-float32", first.pair.other_bits)
    assert reason.explained > 10
    assert first.inputs is None
    facts = dict(first_facts(found, first))
    assert "bit for bit" not in facts["inputs"]
    assert facts["inputs"] == "equal in the outputs of ort; but its node read t in float32, unrounded"


def test_rounding_between_float16_nodes_with_another_order_is_not_kept_in_float32() -> None:
    proto, feeds = chain()
    g, w = (onnx.numpy_helper.to_array(t) for t in proto.graph.initializer)
    t = (feeds["x"].astype(f32) * g.astype(f32)).astype(f16)
    backwards = np.zeros((4, 32), f32)
    for k in range(63, -1, -1):
        backwards += t[:, k, None].astype(f32) * w[k].astype(f32)
    exact = t.astype(float) @ w.astype(float)
    theirs = exact.astype(f16)
    tie = np.unravel_index(np.argmin(np.abs(exact)), exact.shape)
    model = qrun.load(proto.SerializeToString())
    exactly = qrun.comparing.differences.EXACT
    theirs[tie] = np.nextafter(theirs[tie], f16(np.inf))
    found = compare_runtimes(QrunSide(model), Given(model, {"t": t, "y": backwards.astype(f16)}), feeds, exactly)
    assert {reason_of(x).cause for x in found.differing} <= {"float-steps"}
    found = compare_runtimes(QrunSide(model), Given(model, {"t": t, "y": theirs + f16(0.5)}), feeds, exactly)
    assert reason_of(found.first).cause == "unknown"


def test_inputs_of_float32_nodes_are_equal_bit_for_bit() -> None:
    """Only narrow floats between nodes may be read in another precision than they are given out."""
    proto, feeds = blocks(f16, 4)
    first = with_ort(proto, feeds).first
    assert first is not None
    assert first.inputs is True


def test_onnxruntime_rounds_where_it_casts_to_int4() -> None:
    for to in (TensorProto.INT4, TensorProto.UINT4):
        nodes = [helper.make_node("Cast", ["x"], ["q"], to=to), helper.make_node("Cast", ["q"], ["y"], to=1)]
        proto = make_model(nodes, {"x": [7]}, {"y": [7]}, {}, opset=21)
        found = with_ort(proto, {"x": np.array([-2.5, -0.6, 0.5, 2.7, 7.5, 9.5, 100], f32)})
        reason = reason_of(found.first)
        assert (reason.cause, reason.also) == ("cast-rounding", ()), reason
        assert (
            reason.text
            == "rounds to nearest, ties away from zero, and keeps the low bits of values that are out of range"
        )


def test_another_wrong_cast_is_unknown() -> None:
    proto, feeds = node_model("Cast", [np.array([-2.5, 0.5, 2.7], f32)], {"to": TensorProto.INT8}, outputs=(i8,))
    assert reason_of(with_given(proto, feeds, y0=np.array([-1, 0, 2], i8)).first).cause == "unknown"


def test_onnxruntime_divides_float16_in_float32_for_float8() -> None:
    kind = ml_dtypes.float8_e4m3fn
    x = (np.random.default_rng(0).standard_normal(64) * 30).astype(f16)
    proto, feeds = node_model("QuantizeLinear", [x, f16(0.123), np.array(0, kind)], outputs=(kind,), constants=[1, 2])
    reason = reason_of(with_ort(proto, feeds).first)
    assert (reason.cause, reason.text) == ("division-type", "divides in float32")


ADDED = (
    ("MatMul", ((7, 600), (600, 16)), {}, "blocks of 1024 fused multiply-adds"),
    ("MatMul", ((16, 600), (600, 384)), {}, "blocks of 128 fused multiply-adds"),
    ("MatMul", ((1, 600), (600, 48)), {}, "groups of 4 products"),
    ("Gemm", ((3, 600), (300, 600)), {"transB": 1, "alpha": 0.5}, "blocks of 128 fused multiply-adds"),
    ("Conv", ((1, 64, 9, 15), (32, 64, 3, 3)), {"pads": [1] * 4}, "blocks of 128 fused multiply-adds"),
    ("Conv", ((1, 32, 1, 1), (5, 32, 1, 1)), {}, "8 partial sums"),
)


@pytest.mark.skipif(not get_host_cpu_features().get("fma"), reason="the orders are those of x86 CPUs with FMA")
@pytest.mark.parametrize(("op", "shapes", "attributes", "order"), ADDED)
def test_onnxruntimes_order_of_products_is_proved(
    op: str, shapes: Sequence[tuple[int, ...]], attributes: Mapping[str, Any], order: str
) -> None:
    inputs = [np.random.default_rng(8).standard_normal(shape).astype(f32) for shape in shapes]
    proto, feeds = node_model(op, inputs, attributes, opset=17, outputs=(f32,))
    first = with_ort(proto, feeds, tolerance=qrun.comparing.differences.EXACT).first
    assert first is not None
    found = reason_of(first)
    assert (found.cause, found.also) == ("float-order", ())
    assert found.text == f"adds the products in onnxruntime's order: {order}"
    assert found.explained == first.pair.difference.differing
    data = proto.SerializeToString()
    model = qrun.load(data)
    assert compare_runtimes(QrunSide(model, arith="ort"), PeerSide(model, "ort", data=data), feeds).equal
