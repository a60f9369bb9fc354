"""Loops and Scans in a loop whose turns one call of machine code makes, however many a run asks for."""

from __future__ import annotations

import signal
import threading
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from helpers.native import ISAS, OBJECTS, Array
from helpers.support import assert_equal

import qrun
from qrun.native.plan import repeated, turns
from qrun.native.plan.repeated import HeldTurns
from qrun.native.plan.turns import Turned
from qrun.running.flat import repeats

pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")

F32, I64 = np.float32, np.int64
HEAD = '<ir_version: 10, opset_import: ["" : 17]>\n'
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
LINES = {
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
SHOWN = [name for name in LINES if name != "a number that the turn decides"]
RNG = np.random.default_rng(11)


def model(lines: str) -> onnx.ModelProto:
    """The model, the nodes of each graph in an order in which they can run."""
    made = onnx.parser.parse_model(HEAD + OUTER.replace("LINES", lines))
    (body,) = (a.g for node in made.graph.node for a in node.attribute if a.name == "body")
    constants = [node for node in body.node if node.op_type == "Constant"]
    others = [node for node in body.node if node.op_type != "Constant"]
    del body.node[:]
    body.node.extend([*constants, *others])
    return made


def fed(turns: int, inner: int = 4, rows: int = 3, going: bool = True, limit: float = 0.5) -> dict[str, Array]:
    x = RNG.normal(0, 1, (rows, 4)).astype(F32)
    return {"x": x, "n": np.array(turns), "m": np.array(inner), "d": np.array(going), "limit": np.array(limit, F32)}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many turns were made in calls, at each time when somebody asks."""
    found: list[int] = []
    tell = HeldTurns.told

    def seen(self: HeldTurns, tick: float) -> Turned:
        made = tell(self, tick)
        found.append(made.count)
        return made

    monkeypatch.setattr(HeldTurns, "told", seen)
    return found


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", LINES)
def test_results_and_nodes_are_those_of_the_reference(name: str, threads: int, told: list[int]) -> None:
    text = model(LINES[name])
    reference = qrun.Session(text, backend="reference", fuse=False)
    session = qrun.Session(text, backend="native", threads=threads, cache=OBJECTS, fuse=False)
    runs = [
        (9, 4),
        (20, 4),
        (20, 4, 3, False),
        (20, 4, 2),
        (20, 4, 3, True, -9.0),
        (20, 7),
        (20, 7),
        (20, 0),
        (0, 3),
        (20, 4),
    ]
    for given in runs:
        feeds = fed(*given)
        want, got = (s.execute(feeds, observe=False) for s in (reference, session))
        for key, array in want.outputs.items():
            assert_equal(got.outputs[key], array, f"{name}, {given}: {key}")
            assert_equal(session.run(feeds)[key], array, f"{name}, {given}, untimed: {key}")
        told_of = [{(e.path, e.op, e.runs) for e in ran.inside if e.op != "Constant"} for ran in (want, got)]
        assert told_of[0] == told_of[1], given
    assert max(told, default=0) >= (20 if name in SHOWN else 0)


def test_nodes_in_turns_take_their_time(told: list[int]) -> None:
    session = qrun.Session(model(LINES["a number"]), backend="native", threads=1, cache=OBJECTS)
    for _ in range(3):
        result = session.execute(fed(40, 50), observe=False)
    (tanh,) = (e for e in result.inside if e.op == "Tanh" and e.path.count("/") == 4)
    (loop,) = (e for e in result.inside if e.op == "Loop")
    assert (tanh.runs, loop.runs, tanh.backend, loop.backend) == (2000, 40, "native", "native")
    assert 0 < tanh.duration_ns <= loop.duration_ns <= result.duration_ns
    assert told


@pytest.mark.parametrize("kept", [False, True])
def test_loops_that_take_long_go_one_by_one(kept: bool, monkeypatch: pytest.MonkeyPatch, told: list[int]) -> None:
    """More turns than a call makes, or more time; where a result is kept of each turn, another number than before."""
    text = model(LINES["as many as before, with scan outputs" if kept else "a number"])
    reference = qrun.Session(text, backend="reference")
    session = qrun.Session(text, backend="native", threads=1, cache=OBJECTS)
    monkeypatch.setattr(repeats, "AT_MOST", 100)
    for inner in (20, 20, 5 if kept else 130, 20):
        feeds = fed(20, inner)
        want, got = (s.execute(feeds, observe=False) for s in (reference, session))
        for key, array in want.outputs.items():
            assert_equal(got.outputs[key], array, f"{inner}: {key}")
        paths = [{(e.path, e.runs) for e in ran.inside if e.op != "Constant"} for ran in (got, want)]
        assert paths[0] == paths[1]
        assert told
    told.clear()
    session.execute(fed(20, 20), observe=False)
    assert not told


def test_turns_of_a_call_end_after_some_time(monkeypatch: pytest.MonkeyPatch, told: list[int]) -> None:
    text = model(LINES["three of them"])
    want = qrun.Session(text, backend="reference").run(feeds := fed(20, 6))
    monkeypatch.setattr(turns, "LONG", dict.fromkeys(turns.LONG, 0))
    session = qrun.Session(text, backend="native", threads=1, cache=OBJECTS)
    for _ in range(3):
        for key, array in session.run(feeds).items():
            assert_equal(array, want[key], key)


def test_an_interrupt_and_a_deadline_end_turns() -> None:
    session = qrun.Session(model(LINES["a number"]), backend="native", threads=1, cache=OBJECTS)
    session.run(fed(20))
    timer = threading.Timer(1.0, lambda: signal.raise_signal(signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        session.run(fed(1 << 40, 1 << 40))
    timer.join()
    session.max_time = 0.5
    for inner in (1 << 40, 10):
        with pytest.raises(qrun.errors.TimeLimitError) as caught:
            session.run(fed(1 << 40, inner))
        assert dict(caught.value.facts)["turn"]


@pytest.mark.parametrize("threads", [1, 2])
def test_what_a_turn_cannot_decide_is_the_reference_s(threads: int, told: list[int]) -> None:
    """DynamicQuantizeLinear refuses what is not finite: in which turn of which loop depends on the number."""
    lines = """z, z0 = Loop(m, , h, h) <body = g (int64 j, bool k, float[P,4] a, float[P,4] a2) =>
        (bool q, float[P,4] b, float[P,4] b2) <float ten = {-10.5}>
        { q = Identity(k)  b2 = Mul(a2, ten)  c, d9, e9 = DynamicQuantizeLinear(b2)  f = Cast<to = 1>(c)  b = Mul(f, d9) }>"""
    text = model(lines)
    reference = qrun.Session(text, backend="reference")
    session = qrun.Session(text, backend="native", threads=threads, cache=OBJECTS)
    for inner in (20, 20, 60, 20):
        feeds, texts = fed(20, inner), []
        for one in (reference, session):
            try:
                texts.append(
                    repr({key: array.tobytes() for key, array in one.execute(feeds, observe=False).outputs.items()})
                )
            except qrun.RunError as error:
                texts.append(str(error))
        assert texts[0] == texts[1]
    assert sum(told) > 300


def test_a_turn_that_divides_by_0_beside_a_function_that_may_be_in_doubt_is_no_interrupt(told: list[int]) -> None:
    lines = """i0 = Cast<to = 6>(h)  z1, i9 = Loop(m, , h, i0) <body = g (int64 j, bool k, float[P,4] a, int32[P,4] a2) =>
        (bool q, float[P,4] b, int32[P,4] b2) <int32 five = {5}>
        { q = Identity(k)  b = Tanh(a)  d = Sub(a2, five)  b2 = Div(a2, d) }>  f9 = Cast<to = 1>(i9)  z = Add(z1, f9)"""
    text = model(lines)
    reference = qrun.Session(text, backend="reference")
    session = qrun.Session(text, backend="native", threads=1, cache=OBJECTS)
    for zeros in (False, True, False, True):
        feeds = fed(20, 6)
        feeds["x"] = np.full((3, 4), 10 if zeros else 3, F32)
        want, got = (one.execute(feeds, observe=False) for one in (reference, session))
        for key, array in want.outputs.items():
            assert_equal(got.outputs[key], array, key)
    assert max(told) >= 20


def test_lengths_share_the_numbers_of_turns() -> None:
    """Of which memory is kept for good."""
    before = repeated._numbers.cache_info().currsize
    for length in range(2, 12):
        text = model(LINES["as many as before, with scan outputs"])
        session = qrun.Session(text, backend="native", threads=1, cache=OBJECTS, fuse=False)
        for _ in range(3):
            session.run(fed(9, length))
    assert 0 < repeated._numbers.cache_info().currsize - before <= 4


def test_several_runs_at_once_have_memory_of_their_own() -> None:
    session = qrun.Session(model(LINES["a choice in it"]), backend="native", threads=1, cache=OBJECTS)
    feeds = [fed(200, 6) for _ in range(4)]
    session.run(feeds[0])
    want = [qrun.Session(model(LINES["a choice in it"]), backend="reference").run(given) for given in feeds]
    wrong: list[Any] = []

    def many(place: int) -> None:
        for _ in range(20):
            got = session.run(feeds[place])
            wrong.extend(key for key, array in want[place].items() if got[key].tobytes() != array.tobytes())

    threads = [threading.Thread(target=many, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
