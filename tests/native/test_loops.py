"""Loops and Scans: the results and the nodes of the reference, in every turn."""

from __future__ import annotations

import signal
import threading
from typing import Any

import numpy as np
import onnx.parser
import pytest
from helpers.bodies import assert_same, by_threads
from helpers.native import ISAS, OBJECTS, Array
from helpers.support import assert_equal

import qrun
from qrun.running.dispatch import KernelBinding, NativeKernels
from qrun.running.plan import Step

pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")

F32, I64 = np.float32, np.int64
HEAD = '<ir_version: 10, opset_import: ["" : 17]>\n'
X = np.linspace(-2, 2, 24, dtype=F32).reshape(4, 6)
RNG = np.random.default_rng(11)
FEW = """main (float[N,4] x, bool c, int64 n) => (float[A,B] y, float[C,D] z)
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
    "a number of the run": f"y, z = Loop(n, , r) {BODY}",
    "many": f"y, z = Loop(many, , r) {BODY}",
    "a condition of the run": f"y, z = Loop(three, c, r) {BODY}",
}
OUTER = """main (float[N,4] x, int64 n, int64 m, bool d, float limit) => (float[N,4] y, float[K,4] s)
<float[4] w = {1, -2, 3, 4}, int64 zero = {0}, int64 many = {70}, bool yes = {1}> { r = Relu(x)
  y, s = Loop(n, , r) <body = b (int64 i, bool c, float[P,4] v) => (bool o, float[P,4] u, float[4] e)
    <float half = {0.5}> { o = Identity(c)  h = Mul(v, half)  LINES
      t = Tanh(z)  u = Add(t, r)  e = ReduceMax<axes = [0], keepdims = 0>(u) }> }"""
HEADING = "<body = g (int64 j, bool k, float[P,4] a) => (bool q, float[P,4] b"
PLAIN = f"{HEADING}) {{ q = Identity(k)  p = Mul(a, w)  b = Tanh(p) }}>"
ENDING = f"{HEADING}) {{ p = Mul(a, half)  b = Sub(p, w)  g = ReduceMax<keepdims = 0>(b)  q = Less(g, limit) }}>"
STACKED = f"""{HEADING}, float[P,4] f, int64 l) {{ q = Identity(k)  p = Mul(a, w)  b = Tanh(p)  f = Abs(b)  l = Add(j, j) }}>
    g1 = ReduceSum(l1)  g2 = Cast<to = 1>(g1)  f1 = ReduceSum<keepdims = 0>(fs)  f2 = Mul(f1, g2)  z = Add(z1, f2)"""
CHOICE = f"""{HEADING}) {{ q = Identity(k)  g = ReduceSum<keepdims = 0>(a)  gt = Greater(g, limit)
    b = If(gt) < then_branch = f1 () => (float[P,4] b1) {{ b1 = Sin(a) }},
                 else_branch = f2 () => (float[P,4] b2) {{ b0 = Mul(a, w)  b2 = Tanh(b0) }}> }}>"""
NESTED = {
    "a number": f"z = Loop(m, , h) {PLAIN}",
    "a condition": f"z = Loop(, yes, h) {ENDING}",
    "a number and a condition": f"z = Loop(m, d, h) {ENDING}",
    "a number that the turn decides": f"z = Loop(i, , h) {PLAIN}",
    "as many as before, with scan outputs": f"z1, fs, l1 = Loop(m, , h) {STACKED}",
    "many, with scan outputs": f"z1, fs, l1 = Loop(many, , h) {STACKED}",
    "scan outputs that nobody reads": "z = Loop(m, , h) " + STACKED[: STACKED.index("}>") + 2],
    "a choice in it": f"z = Loop(m, , h) {CHOICE}",
    "in a choice": f"""g0 = ReduceSum<keepdims = 0>(h)  gt0 = Greater(g0, limit)
        z = If(gt0) < then_branch = f8 () => (float[P,4] z8) {{ z8 = Loop(m, , h) {CHOICE} }},
                      else_branch = f9 () => (float[P,4] z9) {{ z9 = Sin(h) }}>""",
    "what goes around changes places": """z2, z3 = Loop(m, , h, r) <body = g (int64 j, bool k, float[P,4] a, float[P,4] a2) =>
        (bool q, float[P,4] a2, float[P,4] b) { q = Identity(k)  b = Add(a, w) }>  z = Sub(z2, z3)""",
    "what is from outside, or constant": """z2, z3, z4 = Loop(m, , h, w, v) <body = g (int64 j, bool k, float[P,4] a, float[4] a2,
        float[P,4] a3) => (bool q, float[P,4] h, float[4] w, float[P,4] b3) { q = Identity(k)  b3 = Sin(a3) }>
        z5 = Mul(z2, z3)  z = Add(z5, z4)""",
    "three of them": f"""z = Loop(m, , h) <body = g8 (int64 j8, bool k8, float[P,4] a8) => (bool q8, float[P,4] b8)
        {{ q8 = Identity(k8)  x8 = Mul(a8, half)  y8 = Loop(m, , x8) {CHOICE}  b8 = Add(y8, h) }}>""",
    "a scan": """st = Constant<value = float[4] {1, 2, 3, 4}>()  big = Gather<axis = 0>(h, ix)  z4, z5 = Scan(st, big)
        <num_scan_inputs = 1, body = g (float[4] a, float[4] el) => (float[4] b, float[4] f)
        { p = Mul(a, w)  p2 = Add(p, el)  b = Tanh(p2)  f = Sub(b, el) }>
        z6 = ReduceSum<keepdims = 0>(z5, ax)  z7 = Add(h, z4)  z = Add(z7, z6)  ax = Constant<value_ints = [0]>()
        ix = Constant<value_ints = [IX]>()""".replace("IX", ", ".join(["0"] * 80)),
    "integers": """c0 = Cast<to = 6>(h)  c1 = Loop(m, , c0) <body = g (int64 j, bool k, int32[P,4] a) => (bool q, int32[P,4] b)
        { q = Identity(k)  j1 = Cast<to = 6>(j)  b = Add(a, j1) }>  c2 = Cast<to = 1>(c1)  z = Mul(c2, half)""",
}  # fmt: skip
EXCHANGED = """main (float[4,6] x, int64 n) => (float[4,6] a, float[4,6] b, float[K,4,6] s, float[K,4,6] t, float[K,2] u)
<float[4,6] z = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24}, bool yes = {1}>
{
    a, b, s, t, u = Loop(n, yes, x, z) <body = l (int64 i, bool c, float[4,6] v, float[4,6] w)
        => (bool o, float[4,6] v2, float[4,6] w2, float[4,6] s1, float[4,6] t1, float[2] u1)
        <float[2] k = {5, 7}, float half = {0.5}>
        {
            o = Identity(c)
            v2 = Identity(w)
            h = Mul(v, half)
            w2 = Tanh(h)
            s1 = Identity(v)
            t1 = Add(w2, x)
            u1 = Identity(k)
        }>
}"""
ENDING = """main (float[4,6] x, float limit) => (float[4,6] y, float[K,4,6] s)
{
    y, s = Loop( , , x) <body = l (int64 i, bool c, float[4,6] v) => (bool o, float[4,6] u, float[4,6] e)
        <float step = {1.25}, float zero = {0}>
        { u = Add(v, step)  e = Neg(u)  f = Cast<to = 1>(i)  o = Less(f, limit) }>
}"""
SCANNED = """main (float[6,N,4] x, float[4] h) => (float[4] last, float[4,N] y)
<float[4,4] r = {0.1, 0.2, 0.3, -0.4, 0.5, -0.6, 0.7, 0.8, -0.9, 0.1, 0.2, 0.3, 0.4, -0.5, 0.6, 0.7}, float[6] w = {1, 2, 3, 4, 5, 6}>
{
    last, y = Scan<num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1], scan_output_axes = [1],
        scan_output_directions = [1], body = l (float[4] s, float[6,4] e) => (float[4] t, float[4] o) {
            p = MatMul(s, r)
            q = MatMul(w, e)
            b = Add(p, q)
            t = Sigmoid(b)
            o = Identity(t)
        }>(h, x)
}"""
FEEDS = {
    "exchanged": (EXCHANGED, [{"x": X, "n": np.array(n, I64)} for n in (1, 5, 70, 3, 200, 0)]),
    "ending": (ENDING, [{"x": X, "limit": np.array(n, F32)} for n in (300, 3, 0, 77)]),
    "scanned": (
        SCANNED,
        [{"x": np.resize(X * F32(0.3), (6, n, 4)), "h": X[0, :4]} for n in (50, 1, 130, 9)],
    ),
}
LEFT = ("CumSum", "MaxPool", "Det", "NonZero")
PARTLY = """main (float[4,6] x, int64 n, int64[2] j) => (float[4,6] y, float[K,4,6] s)
<int64 axis = {1}, int64[2] two = {0, 3}> { r = Relu(x)
  y, s = Loop(n, , r) <body = b (int64 i, bool c, float[4,6] v) => (bool o, float[4,6] u, float[4,6] e)
    <float half = {0.5}> { o = Identity(c)  LINES }> }"""
LINES = {
    "one result": "h = Mul(v, half)  e = CumSum(h, axis)  t = Tanh(e)  u = Add(t, r)",
    "several results": """t = Tanh(v)  d = Det(sq)  sq = Constant<value = float[2,2] {1, 2, 3, 4}>()
        a, k = MaxPool<kernel_shape = [3], pads = [1, 1]>(m)  m = Unsqueeze(t, z)  z = Constant<value_ints = [0]>()
        f = Cast<to = 1>(k)  g = Mul(f, half)  q = Tanh(g)  b2 = Squeeze(q, z)  a2 = Squeeze(a, z)
        w = Add(a2, b2)  e = Mul(w, d)  u = Add(t, w)""",
    "what shapes do not tell at first": "nz = NonZero(r)  k = Shape(nz)  f = Cast<to = 1>(k)  m = ReduceSum<keepdims = 0>(f)"
    "  t = Tanh(v)  e = Mul(t, m)  u = CumSum(t, axis)",
}  # fmt: skip


def ordered(text: str, kinds: str) -> onnx.ModelProto:
    """The model of this body, whose nodes are put in an order in which they can run."""
    made = onnx.parser.parse_model(HEAD + kinds.replace("LINES", text))
    (body,) = (a.g for node in made.graph.node for a in node.attribute if a.name == "body")
    left = list(body.node)
    del body.node[:]
    while left:
        later = {name for node in left for name in node.output}
        node = next(n for n in left if later.isdisjoint(n.input))
        left.remove(node)
        body.node.append(node)
    return made


def nested(turns: int, inner: int = 4, rows: int = 3, going: bool = True, limit: float = 0.5) -> dict[str, Array]:
    x = RNG.normal(0, 1, (rows, 4)).astype(F32)
    return {"x": x, "n": np.array(turns), "m": np.array(inner), "d": np.array(going), "limit": np.array(limit, F32)}


def partly(turns: int) -> dict[str, Array]:
    return {"x": X, "n": np.array(turns, I64), "j": np.array([0, 3], I64)}


@pytest.fixture
def left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some operators have no native kernel."""
    make = NativeKernels._make

    def without(self: NativeKernels, step: Step, *given: Any) -> KernelBinding:
        return KernelBinding(None, "left out") if step.node.op_type in LEFT else make(self, step, *given)

    monkeypatch.setattr(NativeKernels, "_make", without)


@pytest.mark.parametrize(("name", "threads"), by_threads(TURNS))
def test_few_turns(name: str, threads: int) -> None:
    runs = ((3, True), (3, True), (3, False), (3, True), (5, True), (5, False), (3, False))
    feeds = [{"x": RNG.normal(0, 1, (rows, 4)).astype(F32), "c": np.array(c), "n": np.array(rows)} for rows, c in runs]
    assert_same(onnx.parser.parse_model(HEAD + FEW + TURNS[name] + "}"), feeds, threads)


@pytest.mark.parametrize(("name", "threads"), by_threads(NESTED))
def test_loops_in_loops(name: str, threads: int) -> None:
    runs = [(9, 4), (9, 4, 3, False), (9, 4, 2), (9, 4, 3, True, -9.0), (9, 7), (9, 0), (0, 3), (9, 4)]
    assert_same(ordered(NESTED[name], OUTER), [nested(*run) for run in runs], threads)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "threads"), by_threads(FEEDS))
def test_many_turns(name: str, threads: int) -> None:
    text, feeds = FEEDS[name]
    model = onnx.parser.parse_model(HEAD + text)
    onnx.checker.check_model(model)
    assert_same(model, feeds, threads)


@pytest.mark.usefixtures("left_out")
@pytest.mark.parametrize(("name", "threads"), by_threads(LINES))
def test_turns_with_nodes_that_have_no_native_kernel(name: str, threads: int) -> None:
    assert_same(ordered(LINES[name], PARTLY), [partly(count) for count in (20, 30, 0, 1, 30)], threads)


def test_each_turn_counts_as_a_run_of_the_nodes_inside() -> None:
    session = qrun.Session(onnx.parser.parse_model(HEAD + EXCHANGED), cache=OBJECTS, threads=1)
    for n in (10, 150, 90):
        result = session.execute({"x": X, "n": np.array(n, I64)}, observe=False)
        assert {event.runs for event in result.inside} == {n}
        (tanh,) = [event for event in result.inside if event.op == "Tanh"]
        assert 0 < tanh.duration_ns < result.duration_ns


def test_nodes_in_turns_of_turns_take_their_time() -> None:
    session = qrun.Session(ordered(NESTED["a number"], OUTER), backend="native", threads=1, cache=OBJECTS)
    for _ in range(3):
        result = session.execute(nested(40, 50), observe=False)
    (tanh,) = (e for e in result.inside if e.op == "Tanh" and e.path.count("/") == 4)
    (loop,) = (e for e in result.inside if e.op == "Loop")
    assert (tanh.runs, loop.runs, tanh.backend) == (2000, 40, "native")
    assert 0 < tanh.duration_ns <= loop.duration_ns <= result.duration_ns


@pytest.mark.usefixtures("left_out")
def test_a_refusal_is_that_of_the_turn() -> None:
    """A run after it is as if nothing had happened."""
    model = ordered(
        "sixty = Constant<value = int64 {60}>()  a = Div(i, sixty)  t = Tanh(v)  e = CumSum(t, a)  u = Add(t, r)",
        PARTLY,
    )
    texts = []
    sessions = [qrun.Session(model, backend=backend, threads=1) for backend in ("reference", "native")]
    for count in (20, 90, 130, 50):
        texts.clear()
        for session in sessions:
            try:
                texts.append(repr(session.run(partly(count))))
            except qrun.QrunError as error:
                texts.append(str(error))
        assert texts[0] == texts[1]
        assert ("axis" in texts[0]) == (count == 130)


INNER = """z, z0 = Loop(m, , h, h) <body = g (int64 j, bool k, float[P,4] a, float[P,4] a2) =>
        (bool q, float[P,4] b, float[P,4] b2) <float ten = {-10.5}>
        { q = Identity(k)  b2 = Mul(a2, ten)  c, d9, e9 = DynamicQuantizeLinear(b2)  f = Cast<to = 1>(c)  b = Mul(f, d9) }>"""
DIVIDING = """i0 = Cast<to = 6>(h)  z1, i9 = Loop(m, , h, i0) <body = g (int64 j, bool k, float[P,4] a, int32[P,4] a2) =>
        (bool q, float[P,4] b, int32[P,4] b2) <int32 five = {5}>
        { q = Identity(k)  b = Tanh(a)  d = Sub(a2, five)  b2 = Div(a2, d) }>  f9 = Cast<to = 1>(i9)  z = Add(z1, f9)"""


@pytest.mark.parametrize("threads", [1, 2])
def test_what_a_turn_cannot_decide_is_the_reference_s(threads: int) -> None:
    """DynamicQuantizeLinear refuses what is not finite: in which turn of which loop depends on the number."""
    model = ordered(INNER, OUTER)
    reference = qrun.Session(model, backend="reference")
    session = qrun.Session(model, backend="native", threads=threads, cache=OBJECTS)
    for inner in (20, 20, 60, 20):
        feeds, texts = nested(20, inner), []
        for one in (reference, session):
            try:
                outputs = one.execute(feeds, observe=False).outputs
                texts.append(repr({key: array.tobytes() for key, array in outputs.items()}))
            except qrun.RunError as error:
                texts.append(str(error))
        assert texts[0] == texts[1]


def test_a_turn_that_divides_by_0_beside_a_function_that_may_be_in_doubt_is_no_interrupt() -> None:
    feeds = [nested(20, 6) for _ in range(4)]
    for place, given in enumerate(feeds):
        given["x"] = np.full((3, 4), 10 if place % 2 else 3, F32)
    assert_same(ordered(DIVIDING, OUTER), feeds)


def test_an_endless_loop_ends_by_an_interrupt_or_a_deadline() -> None:
    session = qrun.Session(ordered(NESTED["a number"], OUTER), backend="native", threads=1, cache=OBJECTS)
    session.run(nested(20))
    timer = threading.Timer(1.0, lambda: signal.raise_signal(signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        session.run(nested(1 << 40, 1 << 40))
    timer.join()
    session.max_time = 0.5
    for inner in (1 << 40, 10):
        with pytest.raises(qrun.errors.TimeLimitError) as caught:
            session.run(nested(1 << 40, inner))
        assert dict(caught.value.facts)["turn"]


def test_several_runs_at_once_have_memory_of_their_own() -> None:
    model = ordered(NESTED["a choice in it"], OUTER)
    session = qrun.Session(model, backend="native", threads=1, cache=OBJECTS)
    feeds = [nested(50, 6) for _ in range(4)]
    session.run(feeds[0])
    want = [qrun.Session(model, backend="reference").run(given) for given in feeds]
    wrong: list[Any] = []

    def many(place: int) -> None:
        for _ in range(5):
            got = session.run(feeds[place])
            wrong.extend(key for key, array in want[place].items() if got[key].tobytes() != array.tobytes())

    threads = [threading.Thread(target=many, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_sequences_of_a_branch_are_handed_on() -> None:
    model = onnx.parser.parse_model(
        HEAD
        + """main (bool c, float[2] x) => (optional(seq(float[2])) s, float[2] e) {
        s, e = If(c) <then_branch = t () => (seq(float[2]) a, float[2] r) { r = Relu(x)  a = SequenceConstruct(r, x) },
          else_branch = f () => (optional(seq(float[2])) b, float[2] h)
            { h = Tanh(x)  q = SequenceConstruct(x)  b = Optional(q) }> }"""
    )
    reference, session = (qrun.Session(model, backend=b, cache=OBJECTS) for b in ("reference", "native"))
    for run in range(12):
        feeds = {"c": np.array(run % 3 > 0), "x": np.array([run - 5, 3], F32)}
        want, got = reference.run(feeds), session.run(feeds)
        for a, b in zip((*got["s"], got["e"]), (*want["s"], want["e"]), strict=True):
            assert_equal(a, b, f"run {run}")
