"""Loops and Scans of few turns, whose number follows from shapes: the nodes of all turns are part of the program."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from helpers.native import ISAS
from helpers.support import assert_equal

import qrun

pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")

F32 = np.float32
HEAD = """<ir_version: 10, opset_import: ["" : 17]>
main (float[N,4] x, bool c, int64 n) => (float[A,B] y, float[C,D] z)
<float[4] w = {1, -2, 3, 4}, int64 zero = {0}, int64 one = {1}, int64 three = {3}, int64 many = {1000}, bool no = {0}>
{ r = Relu(x)
"""
STEP = "o = Identity(k)  p = Mul(a, w)  b = Tanh(p)  s = ReduceSum<keepdims = 0>(b)  e = Add(s, w)"
BODY = f"<body = g (int64 i, bool k, float[P,4] a) => (bool o, float[P,4] b, float[4] e) {{ {STEP} }}>"
SCAN = """h0 = Mul(w, w)  i4 = Constant<value_ints = [0, 1, 0, 2]>()  x4 = Gather<axis = 0>(x, i4)
    v, z = Scan(h0, x4, x4)<num_scan_inputs = 2, scan_input_axes = [0, 1], scan_input_directions = [1, 0],
    scan_output_axes = [1], scan_output_directions = [1], body = g (float[4] a, float[4] q, float[M] t) =>
    (float[4] b, float[4] e) { h = Tanh(q)  b = Add(a, h)  m = ReduceMax<keepdims = 0>(t)  e = Mul(b, m) }>  y = Add(x, v)"""
TURNS = {
    "three": f"y, z = Loop(three, , r) {BODY}",
    "one": f"y, z = Loop(one, , x) {BODY}",
    "none": "y = Loop(zero, , x) <body = g (int64 i, bool k, float[P,4] a) => (bool o, float[P,4] b) "
    "{ o = Identity(k)  b = Neg(a) }>  z = Tanh(y)",
    "none, as the condition is false": "y = Loop(three, no, x) <body = g (int64 i, bool k, float[P,4] a) => (bool o, "
    "float[P,4] b) { o = Identity(k)  b = Neg(a) }>  z = Tanh(y)",
    "as many as there are sizes": f"d = Shape(x)  l = Gather(d, one)  y, z = Loop(l, , r) {BODY}",
    "a condition that the turn's number decides": f"y, z = Loop(many, , r) {BODY.replace('o = Identity(k)', 'o = Less(i, one)')}",
    "shapes that grow": """y, z = Loop(three, , r) <body = g (int64 i, bool k, float[P,4] a) => (bool o, float[Q,4] b, float[4] e)
        { o = Identity(k)  b = Concat<axis = 0>(a, x)  f = Cast<to = 1>(i)  e = Mul(w, f) }>""",
    "what goes around changes places": """v, u, z = Loop(three, , r, x) <body = g (int64 i, bool k, float[P,4] a, float[P,4] b)
        => (bool o, float[P,4] b, float[P,4] a, float[4] w) { o = Identity(k) }>  y = Sub(v, u)""",
    "a loop in it": f"""y, z = Loop(three, , r) <body = g0 (int64 j, bool k0, float[P,4] a0) => (bool o0, float[P,4] b0, float[4] e0)
        {{ o0 = Identity(k0)  v = Sigmoid(a0)  b0, q0 = Loop(three, , v) {BODY}  e0 = ReduceMax<axes = [0], keepdims = 0>(q0) }}>""",
    "in the branch of an If": f"""y = If(c) < then_branch = h () => (float[P,4] g0) {{ g0, g1 = Loop(three, , r) {BODY} }},
        else_branch = h () => (float[P,4] g0) {{ g0 = Neg(r) }}>  z = Relu(y)""",
    "an If in it": """y = Loop(three, , r) <body = g (int64 i, bool k, float[P,4] a) => (bool o, float[P,4] b)
        { o = Identity(k)  b = If(c) < then_branch = h () => (float[P,4] g0) { p = Mul(a, w)  g0 = Tanh(p) },
        else_branch = h () => (float[P,4] g0) { g0 = Neg(a) }> }>  z = Relu(y)""",
    "a scan": SCAN,
}
KEPT = {
    "a number of the run": f"y, z = Loop(n, , r) {BODY}",
    "many": f"y, z = Loop(many, , r) {BODY}",
    "a condition of the run": f"y, z = Loop(three, c, r) {BODY}",
}
RNG = np.random.default_rng(8)


def model(lines: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEAD + lines + "}")


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", [*TURNS, *KEPT])
def test_results_and_nodes_are_those_of_the_reference(name: str, threads: int) -> None:
    lines = {**TURNS, **KEPT}[name]
    reference = qrun.Session(model(lines), backend="reference", fuse=False)
    session = qrun.Session(model(lines), backend="native", threads=threads, fuse=False)
    for rows, c in ((3, True), (3, True), (3, False), (3, True), (5, True), (5, False), (3, False)):
        given = {"x": RNG.normal(0, 1, (rows, 4)).astype(F32), "c": np.array(c), "n": np.array(rows)}
        want, got = (s.execute(given, observe=False) for s in (reference, session))
        for key, array in want.outputs.items():
            assert_equal(got.outputs[key], array, f"{name}, {rows} rows, {c}: {key}")
        told = [{(e.path, e.op, e.runs) for e in ran.inside if e.op != "Constant"} for ran in (want, got)]
        assert told[0] == told[1]
    programs = [m for p in session._runs.plans.values() if p.programs for m in p.programs._made.values() if m]
    assert programs
    for made in programs:
        assert (made.flat is not None) == (name in TURNS)
        assert bool(made.program.listing.steps) == (name in KEPT)
