"""Rules on scales, zero points, biases and weights, QR309 to QR317: what they report, and what they must not."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from helpers.models import make_model
from helpers.support import MS, node_model
from onnx import helper, numpy_helper

import qrun
from qrun.checking.rules import Finding

U8, I8, F32, I32 = np.uint8, np.int8, np.float32, np.int32
rng = np.random.default_rng(20261121)
SPREAD = rng.integers(-64, 65, (16, 3, 3, 3)).astype(I8)
SPREAD[:, 0, 0, 0] = 64


def conv(w: Any = SPREAD, **changes: Any) -> onnx.ModelProto:
    """A QLinearConv of 16 channels whose parameters are stored."""
    values: dict[str, Any] = {
        "x": np.zeros((1, 3, 4, 4), U8), "x_scale": F32(0.02), "x_zero_point": U8(128),
        "w": w, "w_scale": np.full(len(w), 0.01, F32), "w_zero_point": np.zeros(len(w), w.dtype),
        "y_scale": F32(0.05), "y_zero_point": U8(128), "B": np.arange(len(w)).astype(I32),
    } | changes  # fmt: skip
    return node_model("QLinearConv", list(values.values()), opset=13, outputs=[U8], constants=range(1, 9))[0]


def qdq(op_type: str = "Conv", w: Any = SPREAD, *, axis: int | None = 0, scale: Any = None) -> onnx.ModelProto:
    """Q, DQ, Conv or MatMul or Gemm with a DQ of the weights, Q, DQ."""
    ws = np.linspace(0.01, 0.02, w.shape[axis if axis is not None else 1]) if scale is None else scale
    stored = {"xs": F32(0.02), "xz": U8(128), "ws": np.asarray(ws, F32), "w": w}
    node = helper.make_node
    nodes = [
        node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
        node("DequantizeLinear", ["w", "ws"], ["wd"], name="dq", **({} if axis is None else {"axis": axis})),
        node(op_type, ["xd", "wd"], ["f"], name="node"),
        node("QuantizeLinear", ["f", "xs", "xz"], ["yq"]),
        node("DequantizeLinear", ["yq", "xs", "xz"], ["y"]),
    ]
    shape = [1, w.shape[1], 8, 8] if op_type == "Conv" else [2, w.shape[0]]
    return make_model(nodes, {"x": shape}, "y", stored, opset=13)


def ours(model: onnx.ModelProto) -> list[Finding]:
    return [f for f in qrun.check(model) if f.rule[:3] in ("QR3", "QR4", "QR6")]


def only(model: onnx.ModelProto, rule: str) -> Finding:
    found = ours(model)
    assert [f.rule for f in found] == [rule], found
    return found[0]


def test_the_right_models_have_no_findings() -> None:
    assert ours(conv()) == []
    assert ours(qdq()) == []
    assert ours(qdq("MatMul", SPREAD.reshape(16, 27), axis=1)) == []


# QR309 subnormal-scale


@pytest.mark.parametrize(
    ("dtype", "value", "wrong"),
    [(F32, 2.0**-127, True), (F32, 2.0**-126, False), (np.float16, 2.0**-15, True), (np.float16, 2.0**-14, False),
     (ml_dtypes.bfloat16, 2.0**-127, True), (ml_dtypes.bfloat16, 2.0**-126, False)],
)  # fmt: skip
def test_subnormal_scales(dtype: Any, value: float, wrong: bool) -> None:
    model, _ = node_model("DequantizeLinear", [np.zeros(4, I8), np.array(value, dtype)], opset=21, constants=[1])
    assert [f.rule for f in ours(model)] == ["QR309"] * wrong


def test_subnormal_scale_of_one_channel() -> None:
    scales = np.full(16, 0.01, F32)
    scales[[3, 9]] = 1e-40
    f = only(conv(w_scale=scales), "QR309")
    assert f.message == "w_scale[3] is 9.99995e-41, subnormal in float32; 2 of 16 scales"


def test_scale_0_is_not_subnormal() -> None:
    only(conv(x_scale=F32(0)), "QR306")


# QR306 scale-value


def stored_codes(scale: np.ndarray, codes: np.ndarray, zero: np.ndarray | None = None) -> onnx.ModelProto:
    values = [codes, scale] + ([] if zero is None else [zero])
    return node_model("DequantizeLinear", values, {"axis": 0, "block_size": 2}, opset=21, constants=True)[0]


def test_a_negative_scale_of_stored_codes_is_what_the_formula_says() -> None:
    """4-bit quantizers give a block a negative scale where its largest weight is positive:
    -8 reaches further than 7."""
    codes = np.arange(-4, 4, dtype=I8).reshape(4, 2)
    assert ours(stored_codes(F32([[-0.5, 0.25], [0.5, -0.125]]), codes)) == []
    only(conv(y_scale=F32(-0.5)), "QR306")
    only(conv(x_scale=F32(-0.5)), "QR306")


def test_a_scale_of_0_is_right_for_codes_that_are_the_zero_point() -> None:
    codes = np.array([[3, 1], [3, 2], [7, 3], [8, 4]], I8)
    scale = F32([[0, 0.25], [0.5, -0.125]])
    assert ours(stored_codes(scale, codes, np.array([[3, 0], [0, 0]], I8))) == []
    f = only(stored_codes(scale, codes), "QR306")
    assert f.tensor.startswith("i1[0,0] ")
    assert f.got == "0; 1 of 4 scales"
    f = only(stored_codes(F32([[-0.5, 0.25], [np.inf, np.nan]]), codes), "QR306")
    assert f.got == "inf; 2 of 4 scales"


# QR310 block-size


@pytest.mark.parametrize(("axis", "wrong"), [(-3, True), (-2, False), (0, False), (2, True)])
def test_axis_of_blocks(axis: int, wrong: bool) -> None:
    values = [np.zeros((4, 2), I8), np.full((2, 2), 0.5, F32)]
    model, _ = node_model("DequantizeLinear", values, {"axis": axis, "block_size": 2}, opset=21, constants=[1])
    found = ours(model)
    assert [f.rule for f in found] == ["QR310"] * wrong
    if wrong:
        assert (found[0].expected, found[0].got) == ("-2 to 1", str(axis))


def test_negative_block_size() -> None:
    values = [np.zeros((4, 2), I8), np.full((2, 2), 0.5, F32)]
    f = only(node_model("DequantizeLinear", values, {"block_size": -1}, opset=21, constants=[1])[0], "QR310")
    assert f.got == "-1"


# QR311 float-zero-point


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float4_e2m1fn])
@pytest.mark.parametrize("value", [0.0, -0.0, 1.0])
def test_float_zero_points(dtype: Any, value: float) -> None:
    values = [np.zeros(4, dtype), F32(0.5), np.array(value, dtype)]
    model, _ = node_model("DequantizeLinear", values, opset=23, constants=[1, 2])
    assert [f.rule for f in ours(model)] == ["QR311"] * (value != 0)


# QR312 bias-clipped, QR313 shared-bias


@pytest.mark.parametrize(
    ("value", "rule"), [(2**31 - 1, "QR312"), (-(2**31), "QR312"), (2**31 - 2, "QR406"), (-(2**31) + 1, "QR406")]
)
def test_clipped_bias(value: int, rule: str) -> None:
    bias = np.arange(16).astype(I32)
    bias[5] = value
    f = only(conv(B=bias), rule)
    assert f.tensor.startswith("i8 (input 8, B)" if rule == "QR312" else "i3 (input 3, w)")
    if rule == "QR312":
        assert f.message == f"bias was clipped: i8[5] is {value}, the limit of int32; 1 of 16 values"


def two(second_scale: float, bias: Any, same: bool = True) -> onnx.ModelProto:
    model = conv(B=bias)
    other = model.graph.node.add()
    other.CopyFrom(model.graph.node[0])
    other.name, other.output[0], other.input[4] = "n2", "y1", "vs"
    model.graph.initializer.append(numpy_helper.from_array(np.full(16, second_scale, F32), "vs"))
    if not same:
        other.input[8] = "b2"
        model.graph.initializer.append(numpy_helper.from_array(bias, "b2"))
    return model


def test_a_bias_with_two_scales() -> None:
    bias = np.arange(16).astype(I32)
    f = only(two(0.02, bias), "QR313")
    assert f.node == "n2"
    assert f.message == "bias i8 has the scale 0.0004 here and 0.0002 in n"
    assert f.got == "0.0004 for i8[1]", "the first value that is not 0"


@pytest.mark.parametrize("case", ["equal scales", "zeros", "own bias"])
def test_a_bias_that_may_be_shared(case: str) -> None:
    bias = np.zeros(16, I32) if case == "zeros" else np.arange(16).astype(I32)
    assert ours(two(0.01 if case == "equal scales" else 0.02, bias, same=case != "own bias")) == []


# QR314 codes-unused, QR315 zero-channel, QR316 asymmetric-weights


@pytest.mark.parametrize(("largest", "wrong"), [(127, False), (64, False), (32, False), (31, True), (5, True)])
@pytest.mark.parametrize("form", ["operator", "qdq"])
@pytest.mark.parametrize("per_channel", [False, True])
def test_unused_codes(largest: int, wrong: bool, form: str, per_channel: bool) -> None:
    w = np.rint(SPREAD.astype(float) * largest / 64).astype(I8)
    scale = np.linspace(0.01, 0.02, 16).astype(F32) if per_channel else F32(0.01)
    model = conv(w, w_scale=scale, w_zero_point=np.zeros_like(scale, I8))
    found = ours(model if form == "operator" else qdq(w=w, scale=scale))
    assert [f.rule for f in found if f.rule != "QR409"] == ["QR314"] * wrong
    if wrong:
        assert found[0].message.startswith(
            f"weights use only {largest} of 127 levels: the scale is about {127 / largest:.0f}x too large"
        )


def test_few_small_channels_pass() -> None:
    w = SPREAD.copy()
    w[:8] //= 16
    assert ours(conv(w)) == []
    w[8] //= 16
    assert "9 of 16 channels" in only(conv(w), "QR314").got


@pytest.mark.parametrize("values", [[0], [1], [-1, 1], [-1, 0, 1]])
def test_constant_and_ternary_weights_pass(values: list[int]) -> None:
    w = np.resize(np.array(values, I8), (16, 3, 3, 3))
    assert ours(conv(w)) == []


def test_unsigned_weights_are_measured_from_their_zero_point() -> None:
    w = (SPREAD.astype(int) // 4 + 128).astype(U8)
    assert "only 16 of 127" in only(conv(w, w_zero_point=np.full(16, 128, U8)), "QR314").message
    assert ours(conv(w, w_zero_point=np.zeros(16, U8))) == []


def test_zero_channels() -> None:
    w = SPREAD.copy()
    w[[2, 7]] = 0
    f = only(conv(w), "QR315")
    assert (f.level, f.message) == ("note", "2 of 16 output channels have only zero weights: 2, 7")
    f = only(qdq("MatMul", np.where(np.arange(27) == 4, I8(0), SPREAD.reshape(16, 27)), axis=1), "QR315")
    assert f.got == "channels 4"


def test_a_zero_channel_equals_its_zero_point() -> None:
    w = np.full((2, 3, 3, 3), 9, I8)
    w[1, 0, 0, 0] = 64
    found = ours(conv(w, w_zero_point=np.full(2, 9, I8)))
    assert [f.rule for f in found] == ["QR316", "QR315"]


@pytest.mark.parametrize("zero", [0, 3])
@pytest.mark.parametrize("dtype", [I8, U8])
def test_asymmetric_weights(dtype: Any, zero: int) -> None:
    w = np.abs(SPREAD).astype(dtype)
    found = ours(conv(w, w_zero_point=np.full(16, zero, dtype)))
    assert [f.rule for f in found if f.rule != "QR409"] == ["QR316"] * (dtype == I8 and zero != 0)


# QR317 weight-axis


def test_default_axis_of_conv_weights() -> None:
    square = np.resize(SPREAD, (3, 3, 3, 3))
    f = only(qdq(w=square, axis=None), "QR317")
    assert f.node == "dq"
    assert f.tensor == "w [3,3,3,3], feeds Conv node"
    assert (f.expected, f.got) == ("axis=0, the output channels", "axis 1, the default")


def test_equal_scales_have_no_axis() -> None:
    assert ours(qdq(w=np.resize(SPREAD, (3, 3, 3, 3)), axis=1, scale=np.full(3, 0.01))) == []


@pytest.mark.parametrize(("op_type", "axis", "wrong"), [("MatMul", 0, True), ("MatMul", 1, False), ("Gemm", 0, True)])
def test_axis_of_matrices(op_type: str, axis: int, wrong: bool) -> None:
    found = ours(qdq(op_type, np.resize(SPREAD, (16, 16)), axis=axis))
    assert [f.rule for f in found] == ["QR317"] * wrong


@pytest.mark.parametrize("op_type", ["QGemm", "MatMulIntegerToFloat", "DynamicQuantizeMatMul"])
def test_hostile_weights_do_no_harm(op_type: str) -> None:
    for shape in [(), (0,), (3,), (0, 3), (3, 0), (2, 0, 2)]:
        w = np.zeros(shape, I8)
        for zero in (np.zeros(0, I8), np.zeros(5, I8), F32(1)):
            values = [np.zeros((2, 3), U8), F32(1), U8(0), w, np.ones(2, F32), zero, np.zeros(3, I32)]
            qrun.check(node_model(op_type, values, domain=MS, constants=range(1, 7))[0])
