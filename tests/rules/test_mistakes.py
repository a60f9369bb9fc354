"""The mistakes that onnx.checker, onnx.reference or onnxruntime accept or blur: one clear finding each."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from helpers.models import make_model, typed
from helpers.support import MS, node_model
from onnx import TensorProto, helper, numpy_helper

import qrun
from qrun.checking.rules import Finding

U8, I8, F32 = np.uint8, np.int8, np.float32


def conv(**changes: Any) -> onnx.ModelProto:
    """A QLinearConv of 16 channels whose parameters are stored."""
    values: dict[str, Any] = {
        "x": np.zeros((1, 3, 4, 4), U8), "x_scale": F32(0.02), "x_zero_point": U8(128),
        "w": np.ones((16, 3, 3, 3), I8), "w_scale": np.full(16, 0.01, F32), "w_zero_point": np.zeros(16, I8),
        "y_scale": F32(0.05), "y_zero_point": U8(128), "B": np.zeros(16, np.int32),
    } | changes  # fmt: skip
    model, _ = node_model("QLinearConv", list(values.values()), opset=13, outputs=[U8], constants=range(1, 9))
    return model


def dequantize(scale: Any, zero: Any, shape: tuple[int, ...] = (4, 2), **attributes: Any) -> onnx.ModelProto:
    x = np.zeros(shape, I8)
    model, _ = node_model("DequantizeLinear", [x, scale, zero], attributes, opset=21, constants=[1, 2])
    return model


def only(model: onnx.ModelProto, rule: str) -> Finding:
    found = qrun.check(model)
    assert [f.rule for f in found] == [rule], found
    return found[0]


def test_the_right_model_has_no_findings() -> None:
    assert qrun.check(conv()) == []
    assert qrun.check(conv(w_scale=F32(0.01), w_zero_point=I8(0))) == []
    assert [f.rule for f in qrun.check(conv(w_zero_point=I8(0)))] == ["QR307"]
    assert qrun.check(conv(x_scale=np.array([0.02], F32))) == []


def test_w_scale_of_the_wrong_length() -> None:
    f = only(conv(w_scale=np.full(3, 0.01, F32)), "QR301")
    assert f.message == "w_scale has shape [3], expected scalar, or [16]"
    assert f.expected == "scalar, or [16]: one per output channel of i3 [16,3,3,3]"
    assert f.got == "[3]"
    assert f.node == "n"
    assert f.op == "QLinearConv-10"
    assert f.tensor == "i4 (input 4, w_scale)"
    assert f.why == "QLinearConv-10: a 1-D w_scale has as many elements as output channels."
    assert f.level == "error"


@pytest.mark.parametrize("zero", [np.zeros((), I8), np.zeros(1, I8)], ids=["scalar", "[1]"])
def test_zero_point_of_another_shape_than_its_scale(zero: np.ndarray) -> None:
    f = only(dequantize(np.full(4, 0.5, F32), zero, axis=0), "QR302")
    assert "expected [4] like x_scale" in f.message
    assert f.why == "DequantizeLinear-21: x_zero_point must match x_scale in shape."
    assert f.fix == "store it as np.full((4,), 0, np.int8)"


@pytest.mark.parametrize(
    ("shape", "scale", "zero"),
    [((4, 2), (), (1,)), ((4, 2), (1,), ()), ((4, 2), (4,), (4,)), ((2, 3), (2,), (2,)), ((4,), (4,), (4,))],
    ids=str,
)
def test_legal_forms_of_dequantize(shape: tuple[int, ...], scale: tuple[int, ...], zero: tuple[int, ...]) -> None:
    assert qrun.check(dequantize(np.full(scale, 0.5, F32), np.zeros(zero, I8), shape, axis=0)) == []


def test_blocked_scales() -> None:
    good = dequantize(np.full((2, 2), 0.5, F32), np.zeros((2, 2), I8), (4, 2), axis=0, block_size=2)
    assert qrun.check(good) == []
    f = only(dequantize(np.full((3, 2), 0.5, F32), np.zeros((3, 2), I8), (4, 2), axis=0, block_size=2), "QR301")
    assert f.expected == "[2,2]: one per block of 2 along axis 0 of i0 [4,2]"
    assert qrun.check(dequantize(F32(0.5), np.int8(0), (4, 2), axis=0, block_size=2)) == []  # a scalar is per tensor


def test_axis_out_of_range_of_a_vector() -> None:
    f = only(dequantize(np.full(4, 0.5, F32), np.zeros(4, I8), (4,)), "QR301")
    assert "axis 1 is out of range" in f.expected
    assert "write axis=0" in f.expected


def test_int8_zero_point_for_uint8_data() -> None:
    f = only(conv(x_zero_point=I8(0)), "QR303")
    assert f.message == "x_zero_point is int8, but x (i0) is uint8"
    assert (f.expected, f.got) == ("uint8", "int8")


def test_zero_point_type_against_the_stated_output() -> None:
    assert only(conv(y_zero_point=I8(0)), "QR303").message == "y_zero_point is int8, but output y0 is stated as uint8"


@pytest.mark.parametrize("value", [0.0, float("nan"), -0.02, float("inf")], ids=str)
def test_scale_value(value: float) -> None:
    f = only(conv(x_scale=F32(value)), "QR306")
    assert f.got == f"{value:.6g}"
    assert f.expected == "a positive, finite number"


def test_scale_value_in_one_channel_is_one_finding() -> None:
    scales = np.full(16, 0.01, F32)
    scales[[3, 9]] = 0
    f = only(conv(w_scale=scales), "QR306")
    assert f.message == "w_scale[3] is 0; 2 of 16 scales"


def test_a_shared_scale_is_one_finding() -> None:
    model = conv(x_scale=F32(0))
    second = model.graph.node.add()
    second.CopyFrom(model.graph.node[0])
    second.name, second.output[0] = "n2", "y1"
    model.graph.output.append(helper.make_tensor_value_info("y1", TensorProto.UINT8, None))
    assert "read by 2 nodes" in only(model, "QR306").tensor


def test_bias_of_the_wrong_length() -> None:
    f = only(conv(B=np.zeros(3, np.int32)), "QR305")
    assert f.message == "bias B has shape [3], expected [16]"
    assert f.expected == "[16]: one per output channel of i3 [16,3,3,3]"


def test_bias_of_the_wrong_type() -> None:
    assert only(conv(B=np.zeros(16, F32)), "QR305").got == "float32"


@pytest.mark.parametrize("count", [1, 3])
def test_nan_input_at_run_time(count: int) -> None:
    model, feeds = node_model(
        "QuantizeLinear", [np.ones((1, 3, 2, 2), F32), F32(0.5), U8(0)], outputs=[U8], constants=[1, 2]
    )
    feeds["i0"].reshape(-1)[5 : 5 + count] = np.nan
    found = qrun.check(model, qrun.Session(model).execute(feeds))
    assert [f.rule for f in found] == ["QR401"], found
    assert f"NaN in {count} of 12 elements" in found[0].got
    assert found[0].level == "warning"
    assert found[0].tensor == "i0 (input 0, x)"


@pytest.mark.parametrize("zero", [U8(0), U8(128), I8(-128)], ids=lambda z: f"{z.dtype.name}-{z}")
@pytest.mark.parametrize("backend", ["reference", None])
def test_infinity_at_run_time(backend: str | None, zero: Any) -> None:
    """One of many elements; its code is the largest, as that of numbers beyond the range, which QR402 counts."""
    x = np.linspace(1, 3, 1000, dtype=F32)
    x[7] = np.inf
    model, feeds = node_model("QuantizeLinear", [x, F32(0.05), zero], outputs=[zero.dtype], constants=[1, 2])
    (f,) = qrun.check(model, qrun.Session(model, backend=backend).execute(feeds))
    assert (f.rule, f.tensor, f.got) == ("QR411", "i0 (input 0, x)", "infinity in 1 of 1000 elements, first at [7]")
    x[100:] = np.inf
    assert [f.rule for f in qrun.check(model, qrun.Session(model, backend=backend).execute(feeds))] == ["QR411"]


def test_nan_from_a_bad_scale_is_reported_once() -> None:
    model, feeds = node_model("QuantizeLinear", [np.zeros(4, F32), F32(np.nan), U8(0)], outputs=[U8], constants=[1, 2])
    found = qrun.check(model, qrun.Session(model).execute(feeds))
    assert [f.rule for f in found] == ["QR306"], found


def test_a_fed_scale_of_zero() -> None:
    model, feeds = node_model("QuantizeLinear", [np.ones(4, F32), F32(0), U8(0)], outputs=[U8])
    assert qrun.check(model) == []
    found = qrun.check(model, qrun.Session(model).execute(feeds))
    assert "QR405" in [f.rule for f in found]
    assert "QR401" not in [f.rule for f in found]


# Operators of the table beside QLinearConv


def matmul(a: Any, b: Any, **changes: Any) -> onnx.ModelProto:
    values = {
        "a": np.zeros(a, U8), "a_scale": F32(0.02), "a_zero_point": U8(128),
        "b": np.ones(b, I8), "b_scale": F32(0.01), "b_zero_point": I8(0),
        "y_scale": F32(0.05), "y_zero_point": U8(128),
    } | changes  # fmt: skip
    return node_model("QLinearMatMul", list(values.values()), opset=21, outputs=[U8], constants=range(1, 8))[0]


@pytest.mark.parametrize("shape", [(), (1,), (5,), (1, 5)], ids=str)
def test_legal_b_scales_of_qlinearmatmul(shape: tuple[int, ...]) -> None:
    assert qrun.check(matmul((2, 3), (3, 5), b_scale=np.ones(shape, F32), b_zero_point=np.zeros(shape, I8))) == []


@pytest.mark.parametrize("shape", [(), (1,), (2, 1, 5), (1, 1, 5)], ids=str)
def test_legal_b_scales_of_batched_qlinearmatmul(shape: tuple[int, ...]) -> None:
    assert qrun.check(matmul((2, 4, 3), (2, 3, 5), b_scale=np.ones(shape, F32), b_zero_point=np.zeros(shape, I8))) == []


def test_k_long_b_scale_is_explained() -> None:
    f = only(matmul((2, 3), (3, 5), b_scale=np.ones(3, F32)), "QR301")
    assert f.expected == "scalar, or [5], or [1,5]: one per column of i3 [3,5]"
    assert "slip for N" in f.why


def test_row_parameters() -> None:
    rows = matmul((2, 3), (3, 5), a_scale=np.ones((2, 1), F32), a_zero_point=np.zeros((2, 1), U8))
    assert only(rows, "QR218").level == "warning"
    assert only(matmul((2, 3), (3, 5), a_zero_point=np.zeros(3, U8)), "QR302").got == "[3]"
    assert only(matmul((2, 3), (3, 5), y_scale=np.ones(5, F32)), "QR301").expected == "scalar: one for y0"


@pytest.mark.parametrize("turned", [0, 1])
def test_qgemm_columns_follow_trans_b(turned: int) -> None:
    b = np.ones((5, 3) if turned else (3, 5), I8)
    values = [
        np.zeros((2, 3), U8),
        F32(1),
        U8(0),
        b,
        np.ones(5, F32),
        np.zeros(5, I8),
        np.zeros(5, np.int32),
        F32(1),
        U8(0),
    ]
    good, _ = node_model("QGemm", values, {"transB": turned}, domain=MS, outputs=[U8], constants=range(1, 9))
    assert [f for f in qrun.check(good) if f.level != "note"] == []
    bad, _ = node_model("QGemm", values, {"transB": 1 - turned}, domain=MS, outputs=[U8], constants=range(1, 9))
    assert {f.rule for f in qrun.check(bad) if f.level != "note"} == {"QR208"}


def test_every_part_of_qlinearconcat_is_checked() -> None:
    part = [np.zeros((1, 2), U8), F32(0.5), U8(0)]
    wrong = [np.zeros((1, 2), U8), np.ones(2, F32), U8(0)]
    model, _ = node_model("QLinearConcat", [F32(1), U8(0), *part, *wrong], {"axis": 1}, domain=MS, outputs=[U8])
    errors = [f for f in qrun.check(model) if f.level == "error"]
    assert [(f.rule, f.tensor) for f in errors] == [("QR301", "i6 (input 6, scale[1])")]


def test_types_flow_from_zero_points() -> None:
    """The type of an intermediate tensor that the file does not state is that of the zero point that made it."""
    model = conv()
    graph = model.graph
    graph.node[0].output[0] = "t"
    graph.initializer.append(numpy_helper.from_array(I8(0), "z"))
    graph.node.append(helper.make_node("DequantizeLinear", ["t", "i6", "z"], ["y0"], name="d"))
    graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    f = only(model, "QR303")
    assert f.node == "d"
    assert f.message == "x_zero_point is int8, but x (t) is uint8"


# Operators, attributes, types, order


def test_type_of_a_later_opset() -> None:
    model, _ = node_model("DequantizeLinear", [np.zeros(2, np.uint16), F32(1)], opset=13)
    f = only(model, "QR203")
    assert f.fix.startswith("opset 21 allows uint16")


def test_operators_that_qrun_lacks_are_still_checked() -> None:
    model, _ = node_model("Gradient", [np.zeros(2, F32)], {"sead": 1}, domain="ai.onnx.preview.training")
    found = qrun.check(model)
    assert {f.rule for f in found} >= {"QR201", "QR204"}, found
    assert next(f for f in found if f.rule == "QR204").got == "sead"


def test_inputs_of_different_types() -> None:
    model, _ = node_model("MatMul", [np.zeros((2, 2), F32), np.zeros((2, 2), np.float64)], opset=13)
    assert only(model, "QR203").message == "B is float64, but A is float32"


def test_nodes_inside_subgraphs_are_checked_and_located() -> None:
    inner = """
        <ir_version: 8, opset_import: ["" : 13]>
        main (bool c, uint8[1,1,2,2] x) => (uint8[1,2,2,2] y)
        <float s = {0.5}, uint8 z = {0}, int8[2,1,1,1] w = {1, 2}, float[3] ws = {1, 1, 1}, int8 wz = {0}>
        {
            [outer] y = If (c) <
                then_branch = a () => (uint8[1,2,2,2] ya) { [inner] ya = QLinearConv(x, s, z, w, ws, wz, s, z) },
                else_branch = b () => (uint8[1,2,2,2] yb) { yb = QLinearConv(x, s, z, w, s, wz, s, z) }
            >
        }
        """
    found = [f for f in qrun.check(onnx.parser.parse_model(inner)) if f.level != "note"]
    assert [(f.rule, f.node, f.index) for f in found] == [("QR301", "outer/then_branch/inner", 0)]


def test_worst_first() -> None:
    model = conv(x_scale=F32(0))
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(5, F32), "spare"))
    assert [f.level for f in qrun.check(model)] == ["error", "note"]


@pytest.mark.parametrize("kind", [np.float32, np.int64])
def test_hostile_attributes_do_no_harm(kind: type) -> None:
    """Attributes of any kind where a rule expects an int."""
    tensor = numpy_helper.from_array(np.zeros(3, kind))
    for op_type, attribute, domain in [("DequantizeLinear", "axis", ""), ("DequantizeLinear", "block_size", ""),
                                       ("QuantizeLinear", "output_dtype", ""), ("QGemm", "transB", MS)]:  # fmt: skip
        values = [np.zeros((2, 2), I8), F32(1), I8(0), np.zeros((2, 2), I8), np.ones(2, F32), np.zeros(2, I8)]
        model, _ = node_model(op_type, values, {attribute: tensor}, domain=domain, constants=True)
        qrun.check(model)


def test_long_chains_do_not_recurse() -> None:
    nodes = [helper.make_node("Identity", [f"t{i}"], [f"t{i + 1}"]) for i in range(3000)]
    nodes.append(helper.make_node("DequantizeLinear", ["t3000", "s"], ["y"]))
    qrun.check(make_model(nodes, {"t0": typed(TensorProto.INT8, [2])}, "y", {"s": np.ones(4, F32)}))


def saturating(zero: int, made: bool) -> list[Finding]:
    """Findings on quantizing [-1, -2, 1000, 2000] to uint8 at scale 0.5, as an input or as another node's output."""
    x = np.array([-1, -2, 1000, 2000], F32)
    model, feeds = node_model("QuantizeLinear", [x, F32(0.5), U8(zero)], outputs=[U8], constants=[1, 2])
    if made:
        model.graph.node[0].input[0] = "t"
        model.graph.node.insert(0, helper.make_node("Identity", ["i0"], ["t"]))
    return qrun.check(model, qrun.Session(model).execute(feeds))


@pytest.mark.parametrize(("zero", "made", "found"), [(128, False, 1), (128, True, 1), (0, False, 1), (0, True, 0)])
def test_saturation_but_no_folded_relu(zero: int, made: bool, found: int) -> None:
    assert [f.rule for f in saturating(zero, made)] == ["QR402"] * found


def requantized(zero: int, scale: float) -> list[Finding]:
    """Findings on QLinearConv of real values -4 to 7."""
    x = (np.arange(-4, 8) + 128).astype(U8).reshape(1, 1, 3, 4)
    values = [x, F32(1), U8(128), np.ones((1, 1, 1, 1), I8), F32(1), I8(0), F32(scale), U8(zero)]
    model, feeds = node_model("QLinearConv", values, opset=13, outputs=[U8], constants=range(1, 8))
    return qrun.check(model, qrun.Session(model).execute(feeds))


def test_folded_relu_and_relu6_of_qlinearconv() -> None:
    assert requantized(0, 0.1) == []
    assert requantized(0, 6 / 255) == []
    assert [f.rule for f in requantized(0, 5 / 255)] == ["QR402"]
    assert [f.rule for f in requantized(128, 0.02)] == ["QR402"]
