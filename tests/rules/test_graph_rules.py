"""QR110 to QR118: what is reported of the file and its graph, and that onnx.checker and onnxruntime agree."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest
from helpers.cli import call
from helpers.support import node_model
from onnx import TensorProto, helper, numpy_helper

import qrun
from qrun.checking.rules import Finding
from qrun.ir.schema import OPSETS
from qrun.report.modelfacts import ModelFacts

RELU = '<ir_version: 8, opset_import: ["" : 13]> main (float[2] x) => (float[2] y) { y = Relu(x) }'


def relu(change: Callable[[onnx.ModelProto], Any]) -> onnx.ModelProto:
    model = onnx.parser.parse_model(RELU)
    change(model)
    return model


def rules(model: onnx.ModelProto) -> list[str]:
    return [f.rule for f in qrun.check(model)]


def only(model: onnx.ModelProto, rule: str) -> Finding:
    found = qrun.check(model)
    assert [f.rule for f in found] == [rule], found
    return found[0]


def checker_refuses(model: onnx.ModelProto) -> bool:
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError:
        return True
    return False


def ort_refuses(model: onnx.ModelProto) -> bool:
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception:
        return True
    return False


@pytest.mark.parametrize("version", [-1, 0, 1, 2, 3, 4, 8, 13, 14, 15, 99])
def test_ir_version(version: int) -> None:
    model = relu(lambda m: setattr(m, "ir_version", version))
    found = rules(model)
    newest = onnx.IR_VERSION >= 14
    if version != 14 or newest:
        assert ("QR110" in found) == checker_refuses(model), found
    assert len(found) == (not 3 <= version <= 14)


@pytest.mark.parametrize("ir_version", [13, 14])
def test_onnxruntime_reads_the_newest_opset(ir_version: int) -> None:
    """So no rule speaks of models that are too new for it."""
    model = relu(lambda m: setattr(m.opset_import[0], "version", OPSETS[-1]))
    model.ir_version = ir_version
    assert rules(model) == []
    if pytest.importorskip("onnxruntime").__version__ == "1.32.0":
        assert not ort_refuses(model)


@pytest.mark.parametrize(
    ("domain", "version", "bad"),
    [("com.microsoft", 1, 0), ("com.microsoft", 2, 1), ("com.microsoft", 0, 1), ("com.acme", 7, 0), ("com.acme", 0, 1)],
)
def test_versions_of_other_domains(domain: str, version: int, bad: int) -> None:
    model = relu(lambda m: m.opset_import.append(helper.make_opsetid(domain, version)))
    assert rules(model) == ["QR118"] * bad
    if domain == "com.microsoft" and version:
        assert ort_refuses(model) == bool(bad)


def test_duplicate_node_names() -> None:
    def name_all(model: onnx.ModelProto) -> None:
        model.graph.node.append(helper.make_node("Sigmoid", ["y"], ["z"]))
        model.graph.node.append(helper.make_node("Sigmoid", ["z"], ["u"]))
        model.graph.output[0].name = "u"
        for node in model.graph.node:
            node.name = "a"

    model = relu(name_all)
    found = only(model, "QR111")
    assert (found.node, found.index, found.got) == ("a", 1, "Relu #0 and Sigmoid #1, and 1 more")
    assert ort_refuses(model)
    for place, node in enumerate(model.graph.node):
        node.name = f"a{place}"
    assert rules(model) == []
    assert not ort_refuses(model)


def test_calls_of_one_function_have_no_duplicate_names() -> None:
    text = """
        <ir_version: 8, opset_import: ["" : 13, "f" : 1]>
        main (float[2] x) => (float[2] y) { [one] t = f.F(x) [two] y = f.F(t) }
        <domain: "f", opset_import: ["" : 13]> F (a) => (b) { [inner] b = Relu(a) }
        """
    assert rules(onnx.parser.parse_model(text)) == []


def added(ir_version: int, as_input: bool) -> onnx.ModelProto:
    text = RELU.replace("Relu(x)", "Add(x, w)").replace("8", str(ir_version), 1)
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "w"))
    if as_input:
        model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [2]))
    return model


@pytest.mark.parametrize(("ir_version", "as_input", "expected"), [(3, False, "QR112"), (3, True, ""), (4, False, ""),
                                                                 (4, True, "QR115"), (8, True, "QR115")])  # fmt: skip
def test_initializers_and_inputs(ir_version: int, as_input: bool, expected: str) -> None:
    model = added(ir_version, as_input)
    assert rules(model) == [expected] * bool(expected)
    assert checker_refuses(model) == (expected == "QR112")


@pytest.mark.parametrize(
    ("dtype", "opset", "ir_version"),
    [(ml_dtypes.float8_e4m3fn, 21, 9), (ml_dtypes.int4, 21, 10), (ml_dtypes.uint4, 21, 10), (ml_dtypes.int2, 25, 13),
     (ml_dtypes.float4_e2m1fn, 23, 11)],
)  # fmt: skip
def test_types_and_ir_versions(dtype: Any, opset: int, ir_version: int) -> None:
    model, _ = node_model(
        "DequantizeLinear", [np.zeros(2, dtype), np.float32(1)], opset=opset, constants=[1], ir_version=ir_version
    )
    assert "QR113" not in rules(model)
    model.ir_version = ir_version - 1
    (found,) = [f for f in qrun.check(model) if f.rule == "QR113"]
    assert found.expected == f"IR version {ir_version} or later"


BRANCHES = """
    <ir_version: 8, opset_import: ["" : 13]>
    main (bool c, float[2] x, float[2] z) => (float[2] y)
    {{
        s = Sigmoid(x)
        y = If (c) <
            then_branch = a () => (float[2] {made}) {{ {made} = Relu(z) }},
            else_branch = b () => (float[2] v) {{ v = Relu(s) }}
        >
        late = Neg(y)
    }}
    """


def branches(made: str) -> list[Finding]:
    model = onnx.parser.parse_model(BRANCHES.format(made=made))
    found = [f for f in qrun.check(model) if f.rule != "QR201"]
    assert [f.node for f in found if f.rule == "QR117"] == ["Neg_2"] * (made != "late")
    assert checker_refuses(model) == any(f.level == "error" for f in found)
    return [f for f in found if f.rule != "QR117"]


def test_what_only_a_subgraph_reads_is_used() -> None:
    assert branches("w") == []


@pytest.mark.parametrize(("made", "where"), [("s", "made by Sigmoid_0 outside"), ("x", "a graph input outside")])
def test_shadowed_names(made: str, where: str) -> None:
    (found,) = branches(made)
    assert (found.rule, found.node) == ("QR114", "If_1/then_branch/Relu_0")
    assert found.message.endswith(where)


def test_paths_tell_branches_apart(tmp_path: Path) -> None:
    """Both store a tensor `k`, which no node reads: two places, two tensors."""
    text = BRANCHES.replace("=> (float[2] {made}) {{", "=> (float[2] {made}) <float[2] k = {{1, 2}}> {{")
    text = text.replace("=> (float[2] v) {{", "=> (float[2] v) <float[2] k = {{3, 4}}> {{")
    model = onnx.parser.parse_model(text.format(made="w"))
    found = [f.node for f in qrun.check(model) if f.rule == "QR109"]
    assert found == ["If_1/then_branch", "If_1/else_branch"]
    facts = ModelFacts(qrun.load(model))
    assert {name: array.tolist() for name, array in facts.stored.items()} == {
        "If_1/then_branch/k": [1, 2],
        "If_1/else_branch/k": [3, 4],
    }
    assert facts.parameters == 4
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    shown = call("check", "-v", path).out
    assert re.search(r"m\.onnx  node 1 If_1/else_branch$", shown, re.MULTILINE), shown
    assert "If_1/else_branch/Relu_0" in call("inspect", "--nodes", path).out


def test_names_made_later_are_not_visible() -> None:
    assert branches("late") == []


def test_a_node_with_one_used_output_is_alive() -> None:
    text = RELU.replace("y = Relu(x)", "y, other = Split<axis = 0>(x)").replace("float[2] y", "float[1] y")
    assert rules(onnx.parser.parse_model(text)) == []


def test_an_input_that_is_an_output_is_used() -> None:
    model = relu(lambda m: m.graph.input.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [2])))
    assert rules(model) == ["QR116"]
    model.graph.output.append(model.graph.input[1])
    assert rules(model) == []


# QR120 stated-shape


def stated(output: list[int | str] | None, inner: list[int | str] | None = None) -> onnx.ModelProto:
    """x [N,2,3], its greatest element as m, and that as y; shapes as they are stated of m and y."""
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["m"], "max", keepdims=1),
        helper.make_node("Relu", ["m"], ["y"], "relu"),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", ["N", 2, 3]), ("y", output)))
    info = [helper.make_tensor_value_info("m", TensorProto.FLOAT, inner)] if inner is not None else []
    graph = helper.make_graph(nodes, "g", [x], [y], value_info=info)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def test_a_stated_shape_that_does_not_follow() -> None:
    f = only(stated([]), "QR120")
    assert (f.level, f.node, f.tensor) == ("warning", "relu", "y (output 0)")
    assert f.message == "y is stated as scalar, but the node produces [1,1,1]"
    with pytest.raises(Exception, match="rank"):
        onnx.checker.check_model(stated([]), full_check=True)
    assert only(stated([1, 1, 2]), "QR120").message == "y is stated as [1,1,2], but the node produces [1,1,1]"


def test_the_first_tensor_tells_for_what_follows() -> None:
    assert only(stated([1, 4], [1, 4]), "QR120").node == "max"


@pytest.mark.parametrize("output", [None, [1, 1, 1], ["N", 1, "anything"], ["a", "b", "c"]])
def test_shapes_that_may_be_right(output: list[int | str] | None) -> None:
    assert rules(stated(output)) == []


def test_the_command_reports_it_too(tmp_path: Path) -> None:
    onnx.save(stated([]), tmp_path / "m.onnx")
    assert "QR120 stated-shape: y is stated as scalar" in call("check", tmp_path / "m.onnx").out


# QR121 stored-copies


def choice_of_copies(change: float, size: int = 64) -> onnx.ModelProto:
    """An If whose branches store their weights; change: of the last weight of the second."""

    def branch(name: str, last: float) -> onnx.GraphProto:
        w = np.arange(size, dtype=np.float32)
        w[-1] += last
        out = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, [size])
        nodes = [helper.make_node("Add", ["x", f"{name}_w"], [f"{name}_y"])]
        return helper.make_graph(nodes, name, [], [out], [numpy_helper.from_array(w, f"{name}_w")])

    node = helper.make_node("If", ["c"], ["y"], "choose", then_branch=branch("a", 0), else_branch=branch("b", change))
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [size]) for n in "xy")
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("c", TensorProto.BOOL, []), x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def test_weights_in_both_choice_of_copies() -> None:
    f = only(choice_of_copies(0), "QR121")
    assert f.level == "note"
    assert f.message == "choose/else_branch/b_w is stored again as choose/then_branch/a_w: 256 bytes of copies"
    assert rules(choice_of_copies(1)) == []
    assert rules(choice_of_copies(0, 63)) == []
