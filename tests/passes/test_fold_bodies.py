"""Constants inside graphs inside nodes: folded with their values, with those around them, where they stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest
from helpers.placed import same_everywhere

import qrun
from qrun.ir import Model
from qrun.passes import optimize
from qrun.passes.fold_constants import fold_constants

F32 = np.float32
HEAD = '<ir_version: 10, opset_import: ["" : 17]>\n'
X = np.arange(6, dtype=F32).reshape(2, 3) - 2
CHOICE = """main (float[2,3] x, bool c) => (float[2,3] y)
<float[3] w = {1, 2, 3}, int64[1] first = {0}>
{
    y = If(c) <
        then_branch = a () => (float[2,3] ay) {
            k = Constant<value = float {2}>()
            p = Mul(w, k)
            q = Unsqueeze(p, first)
            ay = Add(x, q)
        },
        else_branch = b () => (float[2,3] by) {
            n = Neg(w)
            d = Constant<value = bool {1}>()
            by = If(d) <
                then_branch = e () => (float[2,3] ey) { m = Exp(n)  ey = Mul(x, m) },
                else_branch = f () => (float[2,3] fy) { fy = Mul(x, n) }
            >
        }
    >
}"""
MADE = """main (float[2,3] x, bool c) => (float[3] y)
<float[3] w = {1, 2, 3}>
{
    y = If(c) < then_branch = a () => (float[3] ay) { ay = Neg(w) },
                else_branch = b () => (float[3] by) { r = ReduceSum<keepdims = 0>(x)  by = Add(w, r) } >
}"""
LOOP = """main (float[2,3] x, int64 n) => (float[2,3] y, float[K,3] s)
<float[3] w = {1, 2, 3}>
{
    y, s = Loop(n, , x) <body = b (int64 i, bool c, float[2,3] v) => (bool o, float[2,3] u, float[3] e)
        { o = Identity(c)  t = Sqrt(w)  u = Mul(v, t)  e = Neg(t) }>
}"""


def loaded(text: str) -> Model:
    return qrun.load(onnx.parser.parse_model(HEAD + text))


def bodies(model: Model) -> dict[str, Model]:
    return {name: graph for node in model.nodes for name, graph in node.graphs()}


def test_nodes_of_constants_are_gone_and_the_others_keep_their_names() -> None:
    model = loaded(CHOICE)
    done = fold_constants(model, (), "exact")
    branches = bodies(done.model)
    assert [node.op_type for node in branches["then_branch"].nodes] == ["Add"]
    assert (branches["then_branch"].nodes[0].index, branches["then_branch"].nodes[0].label) == (3, "Add_3")
    assert set(branches["then_branch"].constants) == {"q"}
    inner = bodies(branches["else_branch"])
    assert [[node.op_type for node in graph.nodes] for graph in inner.values()] == [["Mul"], ["Mul"]]
    assert done.origins == ((0,),)
    assert branches["then_branch"].captured == ("x",)
    assert "w" not in inner["else_branch"].constants


def test_what_has_nothing_to_fold_is_the_same_model() -> None:
    text = """main (float[2,3] x, bool c) => (float[2,3] y)
        <float[3] w = {1, 2, 3}>
        { y = If(c) < then_branch = a () => (float[2,3] ay) { ay = Add(x, w) },
                      else_branch = b () => (float[2,3] by) { by = Mul(x, w) } > }"""
    model = loaded(text)
    assert fold_constants(model, (), "exact").model is model


def test_constants_around_stay_there() -> None:
    (body,) = bodies(fold_constants(loaded(LOOP), (), "exact").model).values()
    assert [node.op_type for node in body.nodes] == ["Identity", "Mul"]
    assert set(body.constants) == {"t", "e"}
    assert not any(array.flags.writeable for array in body.constants.values())


@pytest.mark.parametrize(
    ("text", "feeds"),
    [
        *((text, {"x": X, "c": np.array(c)}) for text in (CHOICE, MADE) for c in (True, False)),
        *((LOOP, {"x": X, "n": np.array(n)}) for n in (0, 1, 5)),
    ],
)
def test_results_are_the_same(text: str, feeds: dict[str, Any]) -> None:
    same_everywhere(onnx.parser.parse_model(HEAD + text), feeds)


def test_it_is_one_of_the_passes() -> None:
    (body,) = bodies(optimize(loaded(LOOP), frozenset(), "exact").model).values()
    assert "Sqrt" not in body.op_types
