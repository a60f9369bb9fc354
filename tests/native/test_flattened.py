"""Ifs inside graphs whose conditions follow from shapes: their branches are part of the graph's native program."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest
from helpers.native import ISAS
from helpers.support import assert_equal

import qrun
from qrun.native.plan.turns import Turned, Turning
from qrun.running.bodies import BodyPrograms

pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")

F32 = np.float32
HEAD = '<ir_version: 10, opset_import: ["" : 17]>\n'
TURNS = 8
RNG = np.random.default_rng(3)
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


def model(name: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEAD + BODY.replace("LINES", LINES[name]))


def turns(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many turns each call in machine code made, from now on."""
    found, run = [], Turning.run

    def seen(self: Turning, *given: Any) -> Turned:
        made = run(self, *given)
        found.append(made.count)
        return made

    monkeypatch.setattr(Turning, "run", seen)
    return found


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", LINES)
def test_results_are_those_of_the_reference(name: str, threads: int) -> None:
    reference = qrun.Session(model(name), backend="reference")
    session = qrun.Session(model(name), backend="native", threads=threads)
    for rows, count in ((3, TURNS), (3, TURNS), (2, TURNS), (3, 0), (1, 1), (0, 5), (2, 20), (3, 3)):
        feeds = {"x": RNG.normal(0, 1, (rows, 4)).astype(F32), "n": np.array(count)}
        want = reference.run(feeds)
        for got in (session.run(feeds), session.execute(feeds).outputs):
            for key, array in want.items():
                assert_equal(got[key], array, f"{name}, {rows} rows, {count} turns: {key}")


@pytest.mark.parametrize("name", [n for n in LINES if "value d" not in n and "loop" not in n and "rank" not in n])
def test_turns_run_in_machine_code(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = turns(monkeypatch)
    session = qrun.Session(model(name), backend="native", threads=1)
    for rows in (3, 2):
        made.clear()
        for _ in range(2):
            session.run({"x": RNG.normal(0, 1, (rows, 4)).astype(F32), "n": np.array(50)})
        assert max(made, default=0) >= 40, rows


def test_branches_keep_their_kernels() -> None:
    """What these make of constants is made once, by the branch or by the graph around it."""
    session = qrun.Session(model("one or the other"), backend="native", threads=1)
    for rows in (3, 2):
        session.run({"x": RNG.normal(0, 1, (rows, 4)).astype(F32), "n": np.array(TURNS)})
    (natives,) = (p.natives for p in session._runs.plans.values() if p.natives is not None)
    (body,) = natives._inside.values()
    assert isinstance(body.bodies, BodyPrograms)
    made = [compiled for compiled in body.bodies._programs._made.values() if compiled is not None]
    assert [compiled.flat is not None for compiled in made] == [True, True]
    own = [b for n in (body, *body._inside.values()) for kept in n._bound.values() for b in kept.values()]
    for compiled in made:
        inner = [b for b, node in zip(compiled.bounds, compiled.plan.model.nodes, strict=True) if "branch" in node.name]
        assert len(inner) == 2
        assert all(any(b is one for one in own) for b in inner)


def test_what_a_value_decides_is_decided_in_each_run() -> None:
    """Also where it decides by the shape of what no native kernel makes."""
    text = model("a value decides a shape that decides")
    session, reference = qrun.Session(text, backend="native"), qrun.Session(text, backend="reference")
    for zeros in (0, 0, 12, 9, 0, 3, 6):
        x = np.ones((3, 4), F32)
        x.reshape(-1)[:zeros] = 0
        for count in (TURNS, 1):
            feeds = {"x": x, "n": np.array(count)}
            want = reference.run(feeds)
            for key, array in session.run(feeds).items():
                assert_equal(array, want[key], f"{zeros} zeros: {key}")


@pytest.mark.parametrize("name", LINES)
def test_nodes_are_told_by_the_same_paths(name: str) -> None:
    feeds = {"x": np.ones((3, 4), F32), "n": np.array(TURNS)}
    told = qrun.Session(model(name), backend="reference").execute(feeds, observe=False).inside
    want = {event.path: (event.op, event.runs) for event in told if event.op != "Constant"}
    session = qrun.Session(model(name), backend="native", threads=1, fuse=False)
    for _ in range(4):
        found = {event.path: event for event in session.execute(feeds, observe=False).inside}
        kinds = {path: (event.op, event.runs) for path, event in found.items() if event.op != "Constant"}
        copies = {path for path, event in found.items() if path not in want and event.op == "Identity"}
        assert {path: kind for path, kind in kinds.items() if path not in copies} == want
        assert len(copies) <= 2
        (choice,) = (e for path, e in found.items() if e.op == "If" and path.count("/") == 2)
        assert choice.duration_ns <= sum(event.duration_ns for event in found.values())


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
