"""Turns of loops that follow each other in one kernel call: which ones do, and that nobody can tell."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import onnx.parser
import pytest
from helpers.bodies import assert_same, by_threads
from helpers.native import ISAS, OBJECTS, Array
from helpers.support import assert_equal

import qrun
from qrun.errors import MemoryLimitError, TimeLimitError
from qrun.native.plan.turns import MOVED, LoopBody

pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")

F32 = np.float32
HEAD = '<ir_version: 10, opset_import: ["" : 17]>\n'
X = np.linspace(-1, 1, 8, dtype=F32)
STEP = "o = Identity(c)  h = Mul(v, half)  u = Add(h, x)"
BODY = f"<body = b (int64 i, bool c, float[N] v) => (bool o, float[N] u) {{ {STEP} }}>"
KEPT = f"<body = b (int64 i, bool c, float[N] v) => (bool o, float[N] u, float[N] e) {{ {STEP}  e = Neg(u) }}>"
ENDING = """<body = b (int64 i, bool c, float[N] v) => (bool o, float[N] u, float[N] e)
    { u = Add(v, half)  e = Neg(u)  f = Cast<to = 1>(i)  o = Less(f, limit) }>"""
INNER = "<body = d (int64 j, bool k, float[N] a) => (bool q, float[N] s) { q = Identity(k)  p = Mul(a, half)  s = Add(p, x) }>"
LOOPS = {
    "a number of turns": f"y = Loop(n, , x) {BODY}  z = Neg(y)",
    "a number and a condition that stays true": f"y = Loop(n, yes, x) {BODY}  z = Neg(y)",
    "scan outputs": f"y, z = Loop(n, , x) {KEPT}",
    "a condition that the turn makes": f"y, z = Loop(n, , x) {ENDING}",
    "no number of turns": f"y, z = Loop( , go, x) {ENDING}",
    "what goes around changes places": """y, w = Loop(n, , x, r) <body = b (int64 i, bool c, float[N] v, float[N] t)
        => (bool o, float[N] t, float[N] u, float[N] v) { o = Identity(c)  u = Tanh(v) }>  z = Neg(w)""".replace(
        "u, float[N] v)", "u)"
    ),
    "the number of the turn goes around": """y, w = Loop(n, , x, zero) <body = b (int64 i, bool c, float[N] v, int64 t)
        => (bool o, float[N] u, int64 i) { o = Identity(c)  u = Tanh(v) }>  z = Cast<to = 1>(w)""",
    "a value from around it is kept": """y, z = Loop(n, , x) <body = b (int64 i, bool c, float[N] v)
        => (bool o, float[N] u, float[N] r) { o = Identity(c)  u = Tanh(v) }>""",
    "no node": """y, w = Loop(n, , x, r) <body = b (int64 i, bool c, float[N] v, float[N] t) => (bool c, float[N] t, float[N] v) { }>
        z = Neg(w)""",
    "a loop in it": f"""y = Loop(n, , x) <body = b (int64 i, bool c, float[N] v) => (bool o, float[N] u)
        {{ o = Identity(c)  w = Loop(m, , v) {INNER}  u = Tanh(w) }}>  z = Neg(y)""",
    "a loop of as many turns as the turn's number": f"""y = Loop(n, , x) <body = b (int64 i, bool c, float[N] v)
        => (bool o, float[N] u) {{ o = Identity(c)  w = Loop(i, , v) {INNER}  u = Tanh(w) }}>  z = Neg(y)""",
    "a choice in it": """y = Loop(n, , x) <body = b (int64 i, bool c, float[N] v) => (bool o, float[N] u)
        { o = Identity(c)  s = ReduceSum<keepdims = 0>(v)  g = Greater(s, limit)
          w = If(g) <then_branch = t () => (float[N] t1) { t1 = Mul(v, half) }, else_branch = e () => (float[N] e1) { e1 = Add(v, one) }>
          u = Tanh(w) }>  z = Neg(y)""",
    "a choice of two results in it": """y = Loop(n, , x) <body = b (int64 i, bool c, float[N] v) => (bool o, float[N] u)
        { o = Identity(c)  s = ReduceSum<keepdims = 0>(v)  g = Greater(s, limit)
          w, m1 = If(g) <then_branch = t () => (float[N] t1, float t2) { t1 = Mul(v, half)  t2 = Neg(s) },
              else_branch = e () => (float[N] v, float one) { }>
          w1 = Mul(w, m1)  u = Tanh(w1) }>  z = Neg(y)""",
    "a choice that is always the same": """y = Loop(n, , x) <body = b (int64 i, bool c, float[N] v) => (bool o, float[N] u)
        { o = Identity(c)  w = If(no) <then_branch = t () => (float[N] t1) { t0 = Mul(v, half)  t1 = Exp(t0) },
          else_branch = e () => (float[N] e1) { e1 = Add(v, one) }>  u = Tanh(w) }>  z = Neg(y)""",
    "a scan in it": """y = Loop(n, , x) <body = b (int64 i, bool c, float[N] v) => (bool o, float[N] u)
        { o = Identity(c)  w, ws = Scan(v, rows) <num_scan_inputs = 1, body = d (float[N] a, float[N] el) => (float[N] s, float[N] f)
          { p = Mul(a, half)  s = Add(p, el)  f = Sub(s, el) }>  r2 = ReduceSum<keepdims = 0>(ws, ax)  u0 = Add(w, r2)  u = Tanh(u0) }>
        z = Neg(y)""",
}  # fmt: skip
SCANS = {
    "along the first axis": "",
    "backward": ", scan_input_directions = [1], scan_output_directions = [1]",
    "along the second axis": ", scan_input_axes = [1], scan_output_axes = [1]",
    "backward along the second axis": ", scan_input_axes = [1], scan_input_directions = [1]",
}
SLOW = {
    "shapes that grow": """y, z = Loop(n, , x) <body = b (int64 i, bool c, float[P] v) => (bool o, float[Q] u, float e)
        { o = Identity(c)  u = Concat<axis = 0>(v, half1)  e = ReduceSum<keepdims = 0>(u) }>""",
    "a node that runs in Python": """y = Loop(n, , x) <body = b (int64 i, bool c, float[N] v) => (bool o, float[N] u)
        { o = Identity(c)  k = NonZero(v)  s = Shape(k)  f = Cast<to = 1>(s)  g = ReduceSum<keepdims = 0>(f)  u = Mul(v, g) }>  z = Neg(y)""",
}  # fmt: skip


def model(text: str) -> onnx.ModelProto:
    head = "main (float[N] x, int64 n, int64 m, bool go, float limit) => (float[A] y, float[B] z)\n"
    given = "<float half = {0.5}, float[1] half1 = {0.5}, float one = {1}, int64 zero = {0}, bool yes = {1}, bool no = {0}, "
    rows = "float[3,8] rows = {" + ", ".join(str(n / 8) for n in range(24)) + "}, int64[1] ax = {0}>"
    made = onnx.parser.parse_model(HEAD + head + given + rows + "{ r = Relu(x)\n" + text + "}")
    for value in made.graph.output:
        value.type.tensor_type.ClearField("shape")
    return made


def feeds(n: int, m: int = 3, go: bool = True, limit: float = 5) -> dict[str, Array]:
    return {"x": X, "n": np.array(n), "m": np.array(m), "go": np.array(go), "limit": np.array(limit, F32)}


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many turns each call makes."""
    found: list[int] = []
    run: Callable[..., Any] = LoopBody.run

    def seen(self: LoopBody, *given: Any) -> Any:
        made = run(self, *given)
        found.append(made[0])
        return made

    monkeypatch.setattr(LoopBody, "run", seen)
    return found


@pytest.mark.parametrize(("name", "threads"), by_threads(LOOPS))
def test_turns_follow_each_other_without_python(name: str, threads: int, counts: list[int]) -> None:
    runs = [feeds(60), feeds(60), feeds(60, 4, limit=20), feeds(1), feeds(0), feeds(60, 0, False), feeds(60, limit=-1)]
    assert_same(model(LOOPS[name]), runs, threads)
    counts.clear()
    session = qrun.Session(model(LOOPS[name]), threads=threads, cache=OBJECTS)
    for _ in range(4):
        session.run(feeds(60, limit=59))
    assert counts[-1] == 60, counts


@pytest.mark.parametrize("name", SCANS)
def test_scans_follow_each_other_without_python(name: str, counts: list[int]) -> None:
    made = onnx.parser.parse_model(f"""{HEAD}main (float[A,B] x, float[8] h) => (float[8] y, float[C,D] z)
        {{ y, z = Scan(h, x) <num_scan_inputs = 1{SCANS[name]}, body = b (float[8] v, float[8] e) => (float[8] u, float[8] f)
        {{ p = Tanh(v)  u = Add(p, e)  f = Sub(u, v) }}> }}""")
    wide = np.resize(np.sin(np.arange(83)), (40, 8)).astype(F32)
    turned = [wide[:n].T if "axes" in SCANS[name] else wide[:n] for n in (40, 40, 3, 1, 0, 40)]
    assert_same(made, [{"x": x, "h": X} for x in turned])
    assert max(counts) > 30


@pytest.mark.parametrize("name", SLOW)
def test_other_turns_are_made_one_by_one(name: str, counts: list[int]) -> None:
    assert_same(model(SLOW[name]), [feeds(n) for n in (12, 12, 0, 1, 12)])
    assert not counts


def test_turns_that_move_much_are_made_one_by_one(counts: list[int]) -> None:
    made = model(LOOPS["a number of turns"])
    for size in (MOVED // 8, MOVED):
        wide = {**feeds(20), "x": np.resize(X, size)}
        assert_same(made, [wide] * 2)
        assert bool(counts) == (size < MOVED // 4)
        counts.clear()


def test_the_next_run_makes_turns_in_the_same_memory() -> None:
    session = qrun.Session(model(LOOPS["scan outputs"]), threads=1, cache=OBJECTS)
    kept = [session.run(feeds(n)) for n in (30, 30, 30, 5, 50)]
    copies = [{name: array.copy() for name, array in got.items()} for got in kept]
    session.run({**feeds(50), "x": -X})
    for got, before, n in zip(kept, copies, (30, 30, 30, 5, 50), strict=True):
        assert got["z"].shape == (n, 8)
        assert_equal(got["z"], before["z"], "nobody wrote to what was returned")
        assert_equal(got["y"], -got["z"][-1], "the last turn")


def test_a_turn_that_is_undecided_is_made_again_in_python(counts: list[int]) -> None:
    """An index that a kernel cannot decide, in a turn of an inner loop: the reference has the words for it."""
    text = """y = Loop(n, , x) <body = b (int64 i, bool c, float[N] v) => (bool o, float[N] u) { o = Identity(c)
        w = Loop(m, , v) <body = d (int64 j, bool k, float[N] a) => (bool q, float[N] s)
            { q = Identity(k)  t = Add(i, j)  g = Gather(a, t)  p = Mul(a, half)  s = Add(p, g) }>  u = Tanh(w) }>  z = Neg(y)"""
    texts = []
    for backend in ("reference", "native"):
        session = qrun.Session(model(text), backend=backend, threads=1)
        for _ in range(4):
            session.run(feeds(6))
        with pytest.raises(qrun.RunError) as caught:
            session.run(feeds(20))
        texts.append(str(caught.value))
        assert_equal(
            session.run(feeds(6))["y"], qrun.Session(model(text), backend="reference").run(feeds(6))["y"], "after"
        )
    assert texts[0] == texts[1]
    assert max(counts) == 6


@pytest.mark.parametrize("name", ["a number of turns", "a loop in it"])
def test_long_turns_end_when_they_are_told_to(name: str, counts: list[int]) -> None:
    session = qrun.Session(model(LOOPS[name]), threads=1, cache=OBJECTS)
    for _ in range(3):
        session.run(feeds(30))
    for m in (3, 1 << 40):
        threading.Timer(0.4, signal.raise_signal, [signal.SIGINT]).start()
        begin = perf_counter()
        with pytest.raises(KeyboardInterrupt):
            session.run(feeds(1 << 40, m))
        assert 0.3 < perf_counter() - begin < 5
        session.max_time = 0.3
        with pytest.raises(TimeLimitError) as caught:
            session.run(feeds(1 << 40, m))
        assert int(dict(caught.value.facts)["turn"].split(",")[0]) > 1000 or m > 3
        session.max_time = None
    assert sum(counts) > 10000
    assert_equal(
        session.run(feeds(30))["y"], qrun.Session(model(LOOPS[name]), backend="reference").run(feeds(30))["y"], "after"
    )


def test_scan_outputs_of_many_turns_count_as_memory(counts: list[int]) -> None:
    session = qrun.Session(model(LOOPS["scan outputs"]), threads=1, cache=OBJECTS, max_memory=1 << 24)
    assert session.run(feeds(100000))["z"].shape == (100000, 8)
    assert max(counts) > 10000
    with pytest.raises(MemoryLimitError):
        session.run(feeds(1 << 20))


def test_runs_at_once_make_turns_in_memory_of_their_own() -> None:
    made = model(LOOPS["a choice in it"])
    session, wrong = qrun.Session(made, threads=1, cache=OBJECTS), list[int]()
    limits = [0.5, 1, 2, 4]
    want = [qrun.Session(made, backend="reference").run(feeds(200, limit=limit))["y"].tobytes() for limit in limits]

    def many(place: int) -> None:
        wrong.extend(
            place for _ in range(10) if session.run(feeds(200, limit=limits[place]))["y"].tobytes() != want[place]
        )

    threads = [threading.Thread(target=many, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_each_turn_counts_where_turns_are_undecided_now_and_then() -> None:
    """A loop inside that stacks a number of results which changes from turn to turn is foreseen only sometimes."""
    text = """y = Loop(n, , x) <body = b (int64 i, bool c, float[N] v) => (bool o, float[N] u) { o = Identity(c)
        five = Constant<value = int64 {5}>()  nine = Constant<value = int64 {9}>()  k = Mod(i, nine)
        l = Min(k, five)  w, ws = Loop(l, , v) <body = d (int64 j, bool k1, float[N] a) => (bool q, float[N] s, float[N] e)
            { q = Identity(k1)  p = Mul(a, half)  s = Add(p, x)  e = Neg(s) }>
        t = ReduceSum<keepdims = 0>(ws)  u0 = Mul(w, t)  u = Tanh(u0) }>  z = Neg(y)"""
    assert_same(model(text), [feeds(40)] * 3)
