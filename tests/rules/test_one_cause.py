"""One cause, one finding, with how many nodes it concerns; and a fix that works."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from helpers.cli import value
from helpers.models import make_model, typed
from onnx import TensorProto, helper, version_converter

import qrun
from qrun.checking.rules import Finding
from qrun.errors import QrunError

FLOAT = TensorProto.FLOAT


def chain(count: int, opset: int, kind: str = "uint8", written: bool = True) -> onnx.ModelProto:
    """Convolutions in a row, quantized per channel, each with its own weights."""
    stored = {"s": np.float32(0.5), "z": np.zeros((), kind)}
    nodes, x = [], "x"
    axis = {"axis": 0} if written else {}
    for place in range(count):
        stored |= {f"w{place}": np.ones((3, 3, 1, 1), np.int8), f"ws{place}": np.full(3, 0.1 + place, np.float32),
                   f"wz{place}": np.zeros(3, np.int8)}  # fmt: skip
        nodes += [
            helper.make_node("QuantizeLinear", [x, "s", "z"], [f"q{place}"], name=f"quant{place}"),
            helper.make_node("DequantizeLinear", [f"q{place}", "s", "z"], [f"f{place}"], name=f"dequant{place}"),
            helper.make_node("DequantizeLinear", [f"{n}{place}" for n in ("w", "ws", "wz")], [f"wf{place}"],
                             name=f"weight{place}", **axis),
            helper.make_node("Conv", [f"f{place}", f"wf{place}"], [f"y{place}"], name=f"conv{place}"),
        ]  # fmt: skip
        x = f"y{place}"
    nodes += [helper.make_node("QuantizeLinear", [x, "s", "z"], ["last"], name="quant"),
              helper.make_node("DequantizeLinear", ["last", "s", "z"], ["y"], name="dequant")]  # fmt: skip
    shape = [1, 3, 2, 2]
    return make_model(nodes, {"x": shape}, {"y": shape}, stored, opset=opset)


def errors(model: onnx.ModelProto) -> list[Finding]:
    return [f for f in qrun.check(model) if f.level == "error"]


def test_scales_per_channel_below_opset_13() -> None:
    model = chain(40, 12)
    (found,) = errors(model)
    assert (found.rule, found.node) == ("QR301", "weight0")
    assert "and 39 more nodes like it: weight1, weight2, weight3 and 36 more" in found.message
    assert "convert_version" in found.fix
    assert "opset 13" in found.fix.split(";")[0]
    converted = version_converter.convert_version(model, 13)
    assert errors(converted) == []
    x = np.arange(12, dtype=np.float32).reshape(1, 3, 2, 2)
    np.testing.assert_equal(qrun.Session(converted).run({"x": x})["y"], qrun.Session(chain(40, 13)).run({"x": x})["y"])


def test_the_error_of_a_run_has_the_same_fix() -> None:
    with pytest.raises(QrunError) as caught:
        qrun.Session(chain(2, 12, written=False), backend="reference").run({"x": np.zeros((1, 3, 2, 2), np.float32)})
    assert caught.value.code == "QR301"
    assert any("convert_version" in fix for fix in caught.value.fixes)


def test_one_attribute_that_the_operator_does_not_have() -> None:
    nodes = [
        helper.make_node("Relu", ["x" if not i else f"t{i}"], [f"t{i + 1}"], name=f"relu{i}", alpha=1.0)
        for i in range(9)
    ]
    model = make_model(nodes, {"x": [2]}, {"t9": [2]})
    (found,) = errors(model)
    assert found.rule == "QR204"
    assert "and 8 more nodes like it" in found.message


@pytest.mark.parametrize("kind", ["uint16", "int16"])
def test_sixteen_bits_are_one_choice(kind: str) -> None:
    counts = Counter(f.rule for f in qrun.check(chain(12, 21, kind)))
    assert counts["QR603"] == 1


def test_groups_that_stay_in_float_for_one_reason() -> None:
    stored = {"s": np.float32(0.5), "z": np.uint8(0)}
    nodes, x = [], "x"
    for i in range(8):
        nodes += [helper.make_node("QuantizeLinear", [x, "s", "z"], [f"q{i}"], name=f"quant{i}"),
                  helper.make_node("DequantizeLinear", [f"q{i}", "s", "z"], [f"f{i}"], name=f"dequant{i}"),
                  helper.make_node("LogSoftmax", [f"f{i}"], [f"y{i}"], name=f"log{i}")]  # fmt: skip
        x = f"y{i}"
    nodes.append(helper.make_node("QuantizeLinear", [x, "s", "z"], ["y"], name="quant"))
    model = make_model(nodes, {"x": [2]}, {"y": typed(TensorProto.UINT8, [2])}, stored)
    (found,) = [f for f in qrun.check(model) if f.rule == "QR602"]
    assert "and 7 more nodes like it: log1, log2, log3 and 4 more" in found.message


def branches() -> onnx.ModelProto:
    """If, whose branches hold Frobnicate, one of them inside another If."""

    def branch(name: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
        return helper.make_graph(list(nodes), name, [], [helper.make_tensor_value_info(f"{name}_y", FLOAT, None)])

    def chance(name: str) -> onnx.NodeProto:
        return helper.make_node("Frobnicate", ["x"], [f"{name}_y"], name=f"{name}_chance")

    deep = helper.make_node(
        "If", ["c"], ["else_y"], name="deep", then_branch=branch("a", chance("a")), else_branch=branch("b", chance("b"))
    )
    then = branch("then", chance("then"))
    outer = helper.make_node("If", ["c"], ["y"], name="choose", then_branch=then, else_branch=branch("else", deep))
    stored = {"i": np.zeros((1, 1, 1, 1), np.int64)}
    inputs = [value("x", FLOAT, [1, 1, 1, 1]), value("c", TensorProto.BOOL, [])]
    return make_model([outer], inputs, "y", stored, opset=20)


def test_a_run_names_what_is_missing_in_subgraphs_too() -> None:
    with pytest.raises(QrunError) as caught:
        qrun.Session(branches())
    error = caught.value
    assert error.message == "qrun cannot run 1 operator of this model"
    assert dict(error.facts) == {"Frobnicate": "3 nodes, first choose/else_branch/deep/else_branch/b_chance"}
    assert not any("--backend ort" in fix for fix in error.fixes)
    assert {f.op.partition("-")[0] for f in qrun.check(branches()) if f.rule == "QR211"} == {"Frobnicate"}


def test_the_operator_sets_of_a_model_without_those_of_onnx() -> None:
    node = helper.make_node("TreeEnsemble", ["x"], ["y"], name="mapper", domain="ai.onnx.ml")
    graph = helper.make_graph([node], "g", [value("x", FLOAT, [2])], [value("y", FLOAT, [2])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("ai.onnx.ml", 3)], ir_version=8)
    with pytest.raises(QrunError) as caught:
        qrun.Session(model)
    assert caught.value.where[1] == "opset ai.onnx.ml 3"


@pytest.mark.parametrize(
    ("op_type", "fix"), [("Quant", "did you mean"), ("Relu", "if this is Relu of ai.onnx, clear"), ("Zzyzx", "")]
)
def test_a_domain_that_is_not_imported(op_type: str, fix: str) -> None:
    node = helper.make_node(op_type, ["x"], ["y"], name="n", domain="qonnx.custom")
    graph = helper.make_graph([node], "g", [value("x", FLOAT, [2])], [value("y", FLOAT, [2])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(QrunError) as caught:
        qrun.Session(model)
    assert caught.value.code == "QR105"
    text = "; ".join(caught.value.fixes)
    assert "the standard" not in text
    assert "import qonnx.custom" in text
    assert ("ai.onnx" in text) == (op_type == "Relu")
    if op_type == "Relu":
        assert fix in text
