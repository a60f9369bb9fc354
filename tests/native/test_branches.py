"""Ifs, in a graph and in turns of a loop: the results and the nodes of the reference, whichever branch a run takes."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from helpers.bodies import assert_same, by_threads
from helpers.native import ISAS
from helpers.support import assert_equal

import qrun

pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")

F32 = np.float32
HEAD = '<ir_version: 10, opset_import: ["" : 17]>\n'
TURNS = 8
RNG = np.random.default_rng(3)
W = RNG.normal(0, 0.2, (2, 48, 48)).astype(F32)
BODY = """main (float[N,4] x, int64 n) => (float[M,4] y, float[K,4] s)
<float[4] w = {1, 2, 3, 4}, int64 three = {3}, int64 zero = {0}, int64 two = {2}>
{ r = Relu(x)
  y, s = Loop(n, , r) <body = b (int64 i, bool c, float[P,4] v) => (bool o, float[Q,4] u, float[4] e)
    <float half = {0.5}> { o = Identity(c)  LINES  e = ReduceSum<keepdims = 0>(u, axes) }>
}"""
TURN = """f = Cast<to = 1>(i)  h = Mul(f, half)  l = Floor(h)  d = Sub(h, l)  q = Greater(d, quarter)
    axes = Constant<value_ints = [0]>()  quarter = Constant<value = float {0.25}>()"""
"""Odd turns."""
RANK = "d = Shape(v)  l = Gather(d, zero)  q = Equal(l, three)  axes = Constant<value_ints = [0]>()"
LINES = {
    "one or the other": f"""{RANK}  t = If(q) <
        then_branch = f () => (float[P,4] g) {{ k = Mul(v, half)  g = Tanh(k) }},
        else_branch = h () => (float[P,4] g) {{ k = Add(v, w)  g = Sigmoid(k) }}>  u = Add(t, r)""",
    "what it makes is from outside, or constant": f"""{RANK}  t, z = If(q) <
        then_branch = f () => (float[P,4] v, float[4] k) {{ k = Neg(w) }},
        else_branch = h () => (float[P,4] r, float[4] w) {{ }}>  m = Tanh(t)  u = Mul(m, z)""",
    "one value twice": f"""{RANK}  t, z = If(q) <
        then_branch = f () => (float[P,4] k, float[P,4] k) {{ k = Mul(v, half) }},
        else_branch = h () => (float[P,4] k, float[P,4] m) {{ k = Add(v, w)  m = Tanh(k) }}>  u = Add(t, z)""",
    "one in the other": f"""{RANK}  t = If(q) <
        then_branch = f () => (float[P,4] g) {{ k = Tanh(v)  a = Shape(k)  b2 = Size(a)  p = Equal(b2, two)
            g = If(p) < then_branch = f2 () => (float[P,4] m) {{ m = Mul(k, w) }},
                        else_branch = h2 () => (float[P,4] m) {{ m = Exp(k) }}> }},
        else_branch = h () => (float[P,4] g) {{ k = Add(v, w)  g = Sigmoid(k) }}>  u = Add(t, r)""",
    "a loop in it that reads its values": f"""{RANK}  t = If(q) <
        then_branch = f () => (float[P,4] g) {{ k = Tanh(v)
            g = Loop(two, , k) <body = b2 (int64 j, bool c2, float[P,4] a) => (bool o2, float[P,4] a2)
                {{ o2 = Identity(c2)  a1 = Mul(a, half)  a2 = Add(a1, k) }}> }},
        else_branch = h () => (float[P,4] g) {{ g = Sigmoid(v) }}>  u = Add(t, r)""",
    "every other turn": f"""{TURN}  t = If(q) <
        then_branch = f () => (float[P,4] g) {{ k = Mul(v, half)  g = Tanh(k) }},
        else_branch = h () => (float[P,4] g) {{ k = Add(v, w)  g = Sigmoid(k) }}>  u = Add(t, r)""",
    "every other turn, what is from outside, or constant": f"""{TURN}  t, z = If(q) <
        then_branch = f () => (float[P,4] v, float[4] k) {{ k = Neg(w) }},
        else_branch = h () => (float[P,4] r, float[4] w) {{ }}>  m = Tanh(t)  u = Mul(m, z)""",
    "every other turn, one in the other": f"""{TURN}  one = Constant<value = float {{3}}>()  p = Greater(f, one)
        t = If(p) <
        then_branch = f () => (float[P,4] g) {{ k = Tanh(v)  n2 = Not(q)
            g = If(n2) < then_branch = f2 () => (float[P,4] m) {{ m = Mul(k, w) }},
                         else_branch = h2 () => (float[P,4] m) {{ e2 = Exp(k)  m = Neg(e2) }}> }},
        else_branch = h () => (float[P,4] g) {{ k = Add(v, w)
            g = If(q) < then_branch = f2 () => (float[P,4] k) {{ }},
                        else_branch = h2 () => (float[P,4] m) {{ m = Sin(k) }}> }}>  u = Add(t, r)""",
    "a value decides a shape that decides": """nz = NonZero(v)  d = Shape(nz)  one = Constant<value = int64 {1}>()
        l = Gather(d, one)  lim = Constant<value = int64 {6}>()  q = Less(l, lim)  axes = Constant<value_ints = [0]>()
        t = If(q) < then_branch = f () => (float[P,4] g) { g = Add(v, w) },
                    else_branch = h () => (float[P,4] g) { k = Sub(v, w)  g = Relu(k) }>  u = Relu(t)""",
}
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


def in_turns(name: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEAD + BODY.replace("LINES", LINES[name]))


def model(name: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEAD + CALM + GRAPHS[name] + "}")


def fed(rows: int, count: int) -> dict[str, np.ndarray]:
    return {"x": RNG.normal(0, 1, (rows, 4)).astype(F32), "n": np.array(count)}


def feeds(rows: int, c: bool, d: bool) -> dict[str, np.ndarray]:
    x = RNG.normal(0, 1, (rows, 48)).astype(F32)
    x[:, :3] = np.nan, np.inf, -0.0
    return {"x": x, "c": np.array(c), "d": np.array(d), "w0": W[0], "w1": W[1]}


@pytest.mark.parametrize(("name", "threads"), by_threads(LINES))
def test_choices_in_turns(name: str, threads: int) -> None:
    runs = ((3, TURNS), (3, TURNS), (2, TURNS), (3, 0), (1, 1), (0, 5), (2, 20), (3, 3))
    assert_same(in_turns(name), [fed(*run) for run in runs], threads)


@pytest.mark.parametrize(("name", "threads"), by_threads(GRAPHS))
def test_choices_of_a_graph(name: str, threads: int) -> None:
    """Whichever branch the first runs take, in which helpers learn what to leave to the leader."""
    runs = [(5, False, False)] * 7 + [(5, True, True), (5, True, False), (5, False, True), (0, True, True)]
    more = [(0, False, False), (1, True, True), (1, False, True), (200, True, False)]
    assert_same(model(name), [feeds(*run) for run in (*runs, *more, *runs)], threads)


def test_what_a_value_decides_is_decided_in_each_run() -> None:
    """Also where it decides by the shape of what no native kernel makes."""
    text = in_turns("a value decides a shape that decides")
    session, reference = qrun.Session(text, backend="native"), qrun.Session(text, backend="reference")
    for zeros in (0, 0, 12, 9, 0, 3, 6):
        x = np.ones((3, 4), F32)
        x.reshape(-1)[:zeros] = 0
        for count in (TURNS, 1):
            feeds = {"x": x, "n": np.array(count)}
            want = reference.run(feeds)
            for key, array in session.run(feeds).items():
                assert_equal(array, want[key], f"{zeros} zeros: {key}")


def test_a_node_that_refuses_is_named_as_in_the_file() -> None:
    lines = f"""{RANK}  t = If(q) <
        then_branch = f () => (float[P,4] g) {{ k = Tanh(v)  g = Gather(k, j) }},
        else_branch = h () => (float[P,4] g) {{ g = Sigmoid(v) }}>  u = Identity(t)"""
    text = BODY.replace("LINES", lines).replace("int64 n)", "int64 n, int64[3] j)")
    texts = []
    for backend in ("reference", "native"):
        session = qrun.Session(onnx.parser.parse_model(HEAD + text), backend=backend)
        x, many = np.ones((3, 4), F32), np.array(TURNS)
        for _ in range(2):
            session.run({"x": x, "n": many, "j": np.array([0, 2, 1])})
        with pytest.raises(qrun.QrunError) as caught:
            session.run({"x": x, "n": many, "j": np.array([0, 3, 1])})
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


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


def test_a_constant_output_is_the_caller_s_own() -> None:
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
