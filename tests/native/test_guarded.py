"""Ifs by a condition of the run: the calls of both branches are in one program, those of the one that it does not take
are left out."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from helpers.native import ISAS
from helpers.support import assert_equal

import qrun

pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")

F32 = np.float32
HEAD = '<ir_version: 10, opset_import: ["" : 17]>\n'
RNG = np.random.default_rng(11)
W = RNG.normal(0, 0.2, (2, 48, 48)).astype(F32)
CALM = """main (float[N,48] x, bool c, bool d, float[48,48] w0, float[48,48] w1) => (float[N,48] y, float[N,48] z)
<float[1] one = {1}, bool yes = {1}, int64[2] last = {-1, 48}> { r = Relu(x)
"""
GRAPHS = {
    "products": """t = If(c) < then_branch = f () => (float[N,48] g) { k = MatMul(r, w0)  g = Tanh(k) },
        else_branch = h () => (float[N,48] g) { k = MatMul(r, w1)  l = MatMul(k, w0)  g = Sigmoid(l) }>
        y = Add(t, x)  z = Relu(t)""",
    "one in the other, of the same condition": """t = If(c) < then_branch = f () => (float[N,48] g) {
        g = If(c) < then_branch = f2 () => (float[N,48] m) { m = MatMul(r, w0) },
                    else_branch = h2 () => (float[N,48] m) { m = Neg(r) }> },
        else_branch = h () => (float[N,48] g) { e = Xor(c, d)  k = MatMul(r, w1)
        g = If(e) < then_branch = f2 () => (float[N,48] m) { m = Exp(k) },
                    else_branch = h2 () => (float[N,48] m) { m = MatMul(k, w1) }> }>
        y = Add(t, x)  z = Neg(t)""",
    "what is from outside": """t, y = If(c) < then_branch = f () => (float[N,48] x, float[N,48] g) { g = Neg(x) },
        else_branch = h () => (float[N,48] r, float[N,48] x) { }>  z = Add(t, r)""",
    "results of the graph": """y, z = If(c) < then_branch = f () => (float[N,48] g, float[N,48] k) { k = MatMul(r, w0)  g = Abs(k) },
        else_branch = h () => (float[N,48] g, float[N,48] g) { g = Softmax(r) }>""",
    "one after the other": """t = If(c) < then_branch = f () => (float[N,48] g) { g = MatMul(r, w0) },
        else_branch = h () => (float[N,48] g) { g = MatMul(r, w1) }>
        y = If(d) < then_branch = f () => (float[N,48] g) { g = MatMul(t, w0) },
        else_branch = h () => (float[N,48] g) { g = Add(t, one) }>  z = MatMul(y, w1)""",
    "shapes that differ": """t = If(c) < then_branch = f () => (float[M,48] g) { g = Concat<axis = 0>(r, x) },
        else_branch = h () => (float[M,48] g) { g = Neg(r) }>  y = Tanh(t)  z = Relu(t)""",
    "a node that runs elsewhere": """t = If(c) < then_branch = f () => (float[N,48] g) { g = LpNormalization(r) },
        else_branch = h () => (float[N,48] g) { g = Neg(r) }>  y = Tanh(t)  z = LpNormalization(t)""",
    "conditions that a node makes": """m = ReduceMax<keepdims = 0>(w0)  h0 = ReduceMax<keepdims = 0>(w1)  q = Less(m, h0)
        e = Xor(q, c)  e1 = Reshape(e, s1)  s1 = Constant<value_ints = [1]>()
        y = If(e1) < then_branch = f () => (float[N,48] g) { g = MatMul(r, w0) },
        else_branch = h () => (float[N,48] g) { g = Softmax(r) }>  z = MatMul(y, w1)""",
}
GUARDED = [name for name in GRAPHS if name not in ("shapes that differ", "a node that runs elsewhere")]


def model(name: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEAD + CALM + GRAPHS[name] + "}")


def feeds(rows: int, c: bool, d: bool) -> dict[str, np.ndarray]:
    x = RNG.normal(0, 1, (rows, 48)).astype(F32)
    x[:, :3] = np.nan, np.inf, -0.0
    return {"x": x, "c": np.array(c), "d": np.array(d), "w0": W[0], "w1": W[1]}


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("name", GRAPHS)
def test_results_and_nodes_are_those_of_the_reference(name: str, threads: int) -> None:
    """Whichever branch the first runs take, in which helpers learn what to leave to the leader."""
    reference = qrun.Session(model(name), backend="reference", fuse=False)
    session = qrun.Session(model(name), backend="native", threads=threads, fuse=False)
    runs = [(5, False, False)] * 7 + [(5, True, True), (5, True, False), (5, False, True), (0, True, True)]
    for rows, c, d in [*runs, (0, False, False), (1, True, True), (1, False, True), (200, True, False), *runs]:
        given = feeds(rows, c, d)
        want, got = (s.execute(given, observe=False) for s in (reference, session))
        for key, array in want.outputs.items():
            assert_equal(got.outputs[key], array, f"{name}, {rows} rows, {c} {d}: {key}")
        told = [{(e.path, e.op, e.runs) for e in ran.inside if e.op != "Constant"} for ran in (want, got)]
        assert told[0] == told[1]
        assert [e.node.label for e in got.events if e.node] == [e.node.label for e in want.events if e.node]


@pytest.mark.parametrize("name", GUARDED)
def test_nothing_runs_in_python_between_calls(name: str) -> None:
    session = qrun.Session(model(name), backend="native", threads=1)
    for c in (True, False, True):
        result = session.execute(feeds(5, c, c), observe=False)
    (made,) = [m for p in session._runs.plans.values() if p.programs for m in p.programs._made.values() if m]
    assert made.flat is not None
    listing = made.program.listing
    assert not listing.steps
    assert all(listing.guards.get(item) == listing.guards.get(doer) for item, doer in listing.joined.items())
    assert [e.backend for e in result.events if e.node and e.node.op_type == "If"] == ["native"] * sum(
        e.node.op_type == "If" for e in result.events if e.node
    )
    assert all(event.duration_ns >= 0 for event in result.events)


def test_time_is_that_of_the_branch_that_ran() -> None:
    session = qrun.Session(model("products"), backend="native", threads=1)
    for _ in range(3):
        for c, count in ((True, 2), (False, 3)):
            result = session.execute(feeds(200, c, c), observe=False)
            (choice,) = (e for e in result.events if e.node and e.node.op_type == "If")
            assert len(result.inside) == count
            assert 0 < sum(e.duration_ns for e in result.inside) <= choice.duration_ns


REFUSING = """t = If(c) < then_branch = f () => (float[N,48] g) { k = MatMul(r, w0)  g = Tanh(k) },
        else_branch = h () => (float[N,48] g) { k = Transpose(r)  l = MatMul(k, w1)  g = Reshape(l, last) }>
        y = LpNormalization(t)  z = Relu(t)"""


@pytest.mark.parametrize("threads", [1, 2])
def test_a_branch_that_refuses_its_inputs_says_so_when_it_is_taken(threads: int) -> None:
    """The program has the other one only; for other shapes it has both."""
    text = onnx.parser.parse_model(HEAD + CALM + REFUSING + "}")
    session, reference = (qrun.Session(text, backend=b, threads=threads) for b in ("native", "reference"))
    for rows, c in (
        (5, True),
        (5, True),
        (5, False),
        (5, True),
        (48, True),
        (48, False),
        (48, True),
        (5, False),
        (5, True),
    ):
        given, said, made = feeds(rows, c, c), [], []
        for one in (session, reference):
            try:
                made.append(one.execute(given, observe=False))
            except qrun.QrunError as error:
                said.append(str(error))
        assert len(said) == (0 if c or rows == 48 else 2)
        assert len(set(said)) < 2
        for key in made[1].outputs if made else ():
            assert_equal(made[0].outputs[key], made[1].outputs[key], f"{rows} rows, {c}: {key}")
        assert len({tuple(sorted((e.path, e.runs) for e in ran.inside)) for ran in made}) < 2
    programs = [
        m for p in session._runs.plans.values() if p.programs for m in p.programs._made.values() if m and m.flat
    ]
    assert sorted(len(made.flat.needed) for made in programs if made.flat) == [0, 1]


def test_a_constant_output_is_the_caller_s_own() -> None:
    """Also of a program that returns a condition besides what is asked for."""
    lines = REFUSING.replace("LpNormalization", "Abs").replace("t = If(c)", "e0 = Or(c, d)  t = If(e0)")
    text = onnx.parser.parse_model(HEAD + CALM + lines + "}")
    text.graph.output.append(onnx.helper.make_tensor_value_info("one", onnx.TensorProto.FLOAT, [1]))
    session = qrun.Session(text, backend="native", threads=1)
    for _ in range(4):
        one = session.run(feeds(5, True, True))["one"]
        assert one[0] == 1
        one[0] = 7


@pytest.mark.parametrize("limit", [{"max_time": 60.0}, {"max_memory": 1 << 24}])
def test_limits_hold(limit: dict[str, float]) -> None:
    session = qrun.Session(model("one after the other"), backend="native", threads=2, **limit)
    reference = qrun.Session(model("one after the other"), backend="reference")
    for c, d in ((True, False), (False, True), (True, True), (False, False)):
        given = feeds(7, c, d)
        want = reference.run(given)
        for key, array in session.run(given).items():
            assert_equal(array, want[key], key)
