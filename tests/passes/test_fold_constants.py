"""Constants that nodes make: folded with their values, kept where that is unwise or impossible."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from helpers.passes import ARITHS, Graph, assert_same, codes, ops, rewritten, run
from onnx import helper

import qrun
from qrun.errors import QrunError
from qrun.passes.fold_constants import fold_constants

F, U8, S8, I64 = np.float32, np.uint8, np.int8, np.int64


def folded(g: Graph, **options: Any) -> list[str]:
    return [n.op_type for n in fold_constants(g.model(), (), "exact", **options).model.nodes]


def test_everything_before_the_first_input() -> None:
    g = Graph()
    two = g.node("Constant", value=onnx.numpy_helper.from_array(np.array([2, -1], I64)))
    shape = g.node("Concat", two, g.node("Shape", g.const(np.zeros((3,), F))), axis=0)
    ones = g.node("ConstantOfShape", shape, value=onnx.numpy_helper.from_array(np.array([7], F)))
    g.nodes.pop()
    scale = g.node("Unsqueeze", g.node("Constant", value_float=0.5), g.const(np.array([0], I64)))
    y = g.node("Mul", g.feed(np.ones((2, 3), F)), scale)
    g.output(y, shape)
    assert ones
    done = assert_same(g, keep=(scale, two))
    assert ops(done) == ["Mul"]
    assert [done.groups[n.index] for n in done.model.nodes] == [(5,)]
    assert not any(a.flags.writeable for a in done.model.constants.values())


@pytest.mark.parametrize("arith", ARITHS)
def test_in_the_arithmetic_of_the_session(arith: Any) -> None:
    g = Graph()
    rng = np.random.default_rng(1)
    c = g.const(rng.normal(0, 1, 1000).astype(F))
    y = g.node(
        "QLinearMul",
        *[g.q(c, 1 / 30, U8(99)), *g.params(1 / 30, U8(99))] * 2,
        *g.params(0.051, U8(3)),
        domain="com.microsoft",
    )
    assert ops(assert_same(g.output(y), arith)) == []


def test_weights_stay_small_where_they_are_only_read_as_integers() -> None:
    g = Graph()
    rng = np.random.default_rng(1)
    w = g.dq(g.const(codes(rng, S8, (4, 3))), 0.1, S8(0))
    g.output(g.q(g.node("MatMul", g.dq(g.feed(codes(rng, U8, (2, 3))), 0.1, U8(0)), w), 1, U8(9)))
    assert folded(g, dequantize=False).count("DequantizeLinear") == 2
    assert folded(g) == ["DequantizeLinear", "MatMul", "QuantizeLinear"]
    assert all(a.nbytes <= 12 for a in rewritten(g).model.constants.values())


def test_weights_that_stay_in_float_are_dequantized_once() -> None:
    g = Graph()
    w = g.dq(g.const(codes(np.random.default_rng(1), S8, (3, 4))), 0.1, S8(0))
    g.output(g.node("MatMul", g.feed(np.ones((2, 3), F)), w))
    assert ops(assert_same(g)) == ["MatMul"]


def test_large_results_are_left_to_the_run() -> None:
    g = Graph()
    big = g.node("ConstantOfShape", g.const(np.array([1 << 13, 1 << 12], I64)))
    g.output(g.node("ReduceMax", big, keepdims=0))
    assert folded(g) == ["ConstantOfShape", "ReduceMax"]
    some = Graph()
    for _ in range(9):
        some.output(some.node("ConstantOfShape", some.const(np.array([1 << 11, 1 << 10], I64))))
    assert folded(some) == ["ConstantOfShape"], "eight of 8 MiB fit"


@pytest.mark.parametrize(
    ("op_type", "values"),
    [
        ("Add", [np.ones(2, F), np.ones(3, F)]),
        ("Add", [np.ones(2, F), np.ones(2, I64)]),
        ("Gather", [np.ones(2, F), np.array(9)]),
        ("Relu", [np.ones(2, S8)]),
    ],
)
def test_a_node_that_refuses_its_constants_fails_when_run(op_type: str, values: Any) -> None:
    g = Graph(13)
    t = g.node(op_type, *(g.const(v) for v in values), label="bad")
    g.output(g.node("Shape", t), g.node("Neg", g.feed(F(1))))
    done = rewritten(g)
    assert ops(done) == [op_type, "Shape", "Neg"]
    errors = []
    for model in (g.model(), done.model):
        with pytest.raises(QrunError) as error:
            run(model, g)
        errors.append(str(error.value))
    assert errors[0] == errors[1]


@pytest.mark.parametrize(
    ("values", "scale", "left"),
    [
        (np.linspace(-9, 9, 100), 0.1, []),
        (np.linspace(-13.5, 13.5, 100), 0.1, ["QuantizeLinear"]),
        ([1, np.nan], 0.1, ["QuantizeLinear"]),
        ([1, 2], -0.1, ["QuantizeLinear"]),
    ],
    ids=["none", "saturated", "nan", "scale"],
)
def test_what_a_run_should_report_is_left_to_it(values: Any, scale: float, left: list[str]) -> None:
    g = Graph()
    g.output(g.q(g.const(np.array(values, F)), scale, S8(0)))
    assert folded(g) == left


def test_what_may_be_fed_is_no_constant() -> None:
    g = Graph()
    x = g.feed(np.array([1, 2], F))
    g.initializers.append(onnx.numpy_helper.from_array(np.array([3, 4], F), x))
    g.output(g.node("Neg", x))
    assert folded(g) == ["Neg"]


def test_nodes_with_subgraphs_stay_and_find_what_they_read() -> None:
    branch = helper.make_graph(
        [helper.make_node("Identity", ["moved"], ["out"])], "b", [], [onnx.ValueInfoProto(name="out")]
    )
    g = Graph()
    x = g.feed(codes(np.random.default_rng(1), U8, (2, 3)))
    t = g.dq(x, 0.1, U8(3))
    g.nodes.append(helper.make_node("Transpose", [t], ["moved"]))
    g.nodes.append(helper.make_node("Constant", [], ["yes"], value=onnx.numpy_helper.from_array(np.array(True))))
    g.nodes.append(helper.make_node("If", ["yes"], ["y"], then_branch=branch, else_branch=branch))
    g.output("y", g.q("moved", 0.1, U8(3)))
    done = rewritten(g)
    assert ops(done) == ["Transpose", "DequantizeLinear", "If", "Identity"] or ops(done) == [
        "Transpose",
        "DequantizeLinear",
        "If",
    ]
    made = {name for node in done.model.nodes for name in node.outputs} | set(done.model.constants)
    assert {"moved", "yes", "y"} <= made


def test_results_do_not_depend_on_it() -> None:
    g = Graph()
    big = g.const(np.arange(12).astype(F).reshape(3, 4))
    view = g.node("Transpose", g.node("Slice", big, *(g.const(np.array([i], I64)) for i in (1, 3, 1))))
    g.output(view, g.node("Add", view, g.feed(np.ones((2, 1), F))))
    done = assert_same(g)
    session = qrun.Session(done.model, backend="reference", fuse=False)
    first = session.run(g.feeds)
    assert all(np.array_equal(a, b) for a, b in zip(first.values(), session.run(g.feeds).values(), strict=True))


@pytest.mark.parametrize("op", ["Identity", "Transpose"])
def test_a_matrix_that_a_node_makes_is_not_stored_in_onnxruntimes_order(op: str) -> None:
    """Its blocks differ from those of a stored matrix: 128 products each, not 256."""
    rng = np.random.default_rng(5)
    g = Graph()
    made = g.node(op, g.node("Transpose", g.const(rng.normal(size=(300, 300)).astype(F))))
    g.output(g.node("MatMul", g.feed(rng.normal(size=(2, 300)).astype(F)), made))
    assert ops(assert_same(g, "ort")) == [op, "MatMul"]
