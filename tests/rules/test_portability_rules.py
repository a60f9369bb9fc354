"""QR601 to QR605: groups of DequantizeLinear, an operator and QuantizeLinear, and what onnxruntime makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.models import make_model
from onnx import TensorProto, helper, numpy_helper

import qrun
from qrun.checking.rules import Finding

F32, U8, I8 = np.float32, np.uint8, np.int8
node = helper.make_node
CASES = {
    "plain": ("", ""),
    "result is an output": ("QR601", "its result is asked for"),
    "result has a float reader": ("QR601", "its result has 2 readers"),
    "result is not quantized": ("QR601", "its result goes to LRN, not to QuantizeLinear"),
    "float weights": ("QR601", "W is not dequantized"),
    "float input": ("", ""),
    "float result": ("", ""),
    "16 bits": ("QR603", "X is uint16"),
    "relu": ("", ""),
}
"""What is found, and the reason given."""
FUSED_BY_ORT = ("plain", "relu", "float weights")
"""onnxruntime 1.32.0 quantizes stored float weights of such a group itself."""


def group(case: str) -> onnx.ModelProto:
    """Q, DQ, Conv, Q, DQ with one thing changed."""
    rng = np.random.default_rng(0)
    code: Any = np.uint16 if case == "16 bits" else U8
    stored = {"xs": F32(0.02), "xz": code(128), "ys": F32(0.05), "ws": F32(0.01), "wz": I8(0), "yz": code(0),
              "w": rng.integers(-64, 65, (4, 3, 3, 3)).astype(I8)}  # fmt: skip
    if case == "float weights":
        stored["wd"] = rng.normal(size=(4, 3, 3, 3)).astype(F32)
    nodes = [
        node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
        *([] if case == "float weights" else [node("DequantizeLinear", ["w", "ws", "wz"], ["wd"])]),
        node("Conv", ["x" if case == "float input" else "xd", "wd"], ["f"], name="conv"),
    ]
    made, outputs = "f", ["y"]
    if case in ("result is not quantized", "relu"):
        nodes.append(node("LRN", ["f"], ["r"], size=3) if case != "relu" else node("Relu", ["f"], ["r"]))
        made = "r"
    if case == "float result":
        nodes.append(node("Softmax", ["f"], ["y"]))
    else:
        nodes.append(node("QuantizeLinear", [made, "ys", "yz"], ["yq"]))
        nodes.append(node("DequantizeLinear", ["yq", "ys", "yz"], ["y"]))
    if case == "result is an output":
        outputs.append("f")
    if case == "result has a float reader":
        nodes.append(node("LRN", ["f"], ["r"], size=3))
        outputs.append("r")
    used = {name for n in nodes for name in n.input}
    return make_model(
        nodes, {"x": [1, 3, 8, 8]}, dict.fromkeys(outputs), {k: v for k, v in stored.items() if k in used}
    )


def ours(model: onnx.ModelProto) -> list[Finding]:
    return [f for f in qrun.check(model) if f.rule.startswith("QR6")]


@pytest.mark.parametrize("case", CASES)
def test_groups(case: str) -> None:
    rule, reason = CASES[case]
    found = ours(group(case))
    assert [(f.rule, f.got) for f in found] == ([(rule, reason)] if rule else [])
    assert all(f.node == "conv" for f in found)


@pytest.mark.parametrize("case", CASES)
def test_onnxruntime_agrees(tmp_path: Path, case: str) -> None:
    """Reported groups do not become QLinearConv there either, or only by changing the weights."""
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    ort.InferenceSession(group(case).SerializeToString(), options, providers=["CPUExecutionProvider"])
    fused = "QLinearConv" in {n.op_type for n in onnx.load(tmp_path / "optimized.onnx").graph.node}
    assert fused == (case in FUSED_BY_ORT)


def elementwise(op_type: str, a_type: str = "uint8", b_type: str = "uint8") -> onnx.ModelProto:
    zero = {"uint8": 128, "int8": 0}
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 13]>
        main ({a_type}[1,4] a, {b_type}[1,4] b) => ({a_type}[1,4] y)
        <float s = {{0.5}}, {a_type} az = {{{zero[a_type]}}}, {b_type} bz = {{{zero[b_type]}}}>
        {{
            af = DequantizeLinear(a, s, az)
            bf = DequantizeLinear(b, s, bz)
            c = {op_type}(af, bf)
            y = QuantizeLinear(c, s, az)
        }}"""
    )


def test_different_types() -> None:
    assert ours(elementwise("Add")) == []
    (f,) = ours(elementwise("Add", "uint8", "int8"))
    assert (f.rule, f.message) == ("QR601", "Add runs in float: A is uint8, but B is int8")


def test_operators_without_an_integer_form() -> None:
    (f,) = ours(elementwise("Div"))
    assert (f.rule, f.level, f.got) == ("QR602", "note", "Div of several tensors has no integer form")


def test_bias_scale_is_reported_once() -> None:
    model = group("plain")
    for name, value in (("b", np.arange(4, dtype=np.int32)), ("bs", F32(0.1))):
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    model.graph.node.insert(3, node("DequantizeLinear", ["b", "bs"], ["bd"], axis=0))
    model.graph.node[4].input.append("bd")
    assert [f.rule for f in qrun.check(model) if f.level != "note"] == ["QR304"]


def test_shared_dequantize() -> None:
    model = group("plain")
    model.graph.node.append(node("LRN", ["xd"], ["r"], size=3))
    model.graph.output.append(helper.make_tensor_value_info("r", TensorProto.FLOAT, None))
    (f,) = ours(model)
    assert (f.rule, f.level, f.tensor) == ("QR604", "note", "xd, read by conv, LRN_6")
    assert f.fix.startswith("for such a compiler, give every reader a separate DequantizeLinear")


def test_shared_dequantize_of_int8() -> None:
    """onnxruntime keeps the readers of an int8 tensor in float on x86, so the fix is uint8 there."""
    model = elementwise("Add", "int8", "int8")
    add = onnx.helper.make_node("Mul", ["af", "bf"], ["d"])
    model.graph.node.extend([add, onnx.helper.make_node("QuantizeLinear", ["d", "s", "az"], ["v"])])
    model.graph.output.append(helper.make_tensor_value_info("v", TensorProto.INT8, [1, 4]))
    (f,) = [f for f in ours(model) if f.rule == "QR604"]
    assert f.fix.startswith("quantize activations to uint8 for onnxruntime on x86 CPUs")


def pool(op_type: str, side: int, x_scale: float, y_scale: float) -> onnx.ModelProto:
    kernel = f"<kernel_shape = [{side}, {side}]>" if op_type == "AveragePool" else ""
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 13]>
        main (uint8[1,1,{side},{side}] x) => (uint8[1,1,1,1] y)
        <float xs = {{{x_scale}}}, float ys = {{{y_scale}}}, uint8 z = {{127}}>
        {{
            xf = DequantizeLinear(x, xs, z)
            p = {op_type}{kernel}(xf)
            y = QuantizeLinear(p, ys, z)
        }}"""
    )


@pytest.mark.parametrize("op_type", ["AveragePool", "GlobalAveragePool"])
@pytest.mark.parametrize(
    ("side", "x_scale", "y_scale", "found"),
    [(2, 0.3, 0.3, True), (3, 0.3, 0.3, False), (7, 0.3, 0.3, False), (2, 0.3, 0.29, False), (3, 0.25, 0.5, True),
     (2, 0.5, 0.125, False)],
)  # fmt: skip
def test_pools_with_ties(op_type: str, side: int, x_scale: float, y_scale: float, found: bool) -> None:
    assert [f.rule for f in ours(pool(op_type, side, x_scale, y_scale))] == ["QR605"] * found


def test_models_are_not_mixed_up() -> None:
    """Findings are those of the model at hand, however often others were asked in between."""
    wrong, right = group("result is an output"), group("plain")
    for _ in range(3):
        assert len(ours(wrong)) == 1
        assert ours(right) == []


@pytest.mark.parametrize("case", ["plain", "result is not quantized", "16 bits", "float weights"])
def test_groups_inside_a_subgraph(case: str) -> None:
    """The nodes in the body of an If, the constants outside: the same finding, at the node inside."""
    model = group(case)
    outputs = [helper.make_tensor_value_info(v.name, TensorProto.FLOAT, None) for v in model.graph.output]
    body = helper.make_graph(list(model.graph.node), "body", [], outputs)
    other = helper.make_graph(
        [node("Identity", ["x"], [f"{v.name}_else"]) for v in outputs], "other", [],
        [helper.make_tensor_value_info(f"{v.name}_else", TensorProto.FLOAT, None) for v in outputs],
    )  # fmt: skip
    inside = node("If", ["c"], [v.name for v in outputs], name="choice", then_branch=body, else_branch=other)
    del model.graph.node[:]
    model.graph.node.append(inside)
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    want = [(f.rule, f"choice/then_branch/{f.node}", f.got) for f in ours(group(case))]
    assert [(f.rule, f.node, f.got) for f in ours(model)] == want
    assert bool(want) == (case != "plain")
