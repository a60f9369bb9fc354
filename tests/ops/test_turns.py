"""Loops and scans of many turns, which native programs make in a row: the bits of turns one by one."""

from __future__ import annotations

import signal
import threading

import numpy as np
import onnx
import onnx.parser
import pytest
from helpers.native import ISAS, OBJECTS

import qrun
from qrun.native.plan.turns import Turned, Turning

F32, I64 = np.float32, np.int64
HEAD = '<ir_version: 10, opset_import: ["" : 17]>\n'
X = np.linspace(-2, 2, 24, dtype=F32).reshape(4, 6)

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
natively = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")


@pytest.fixture
def turned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many turns each call of a program in a row made."""
    counts: list[int] = []
    run = Turning.run

    def counted(self: Turning, *args: object) -> Turned:
        made = run(self, *args)  # type: ignore[arg-type]
        counts.append(made.count)
        return made

    monkeypatch.setattr(Turning, "run", counted)
    return counts


@natively
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", FEEDS)
def test_turns_in_a_row_make_what_single_ones_make(name: str, threads: int, turned: list[int]) -> None:
    text, feeds = FEEDS[name]
    model = onnx.parser.parse_model(HEAD + text)
    onnx.checker.check_model(model)
    reference = qrun.Session(model, backend="reference")
    native = qrun.Session(model, backend="native", threads=threads, cache=OBJECTS)
    for fed in (*feeds, *feeds):
        want, got = reference.run(fed), native.run(fed)
        for tensor, array in want.items():
            assert (got[tensor].dtype, got[tensor].shape) == (array.dtype, array.shape)
            assert got[tensor].tobytes() == array.tobytes()
    assert max(turned) > 60


@natively
def test_each_turn_counts_as_a_run_of_the_nodes_inside(turned: list[int]) -> None:
    session = qrun.Session(onnx.parser.parse_model(HEAD + EXCHANGED), cache=OBJECTS, threads=1)
    for n in (10, 150, 90):
        result = session.execute({"x": X, "n": np.array(n, I64)}, observe=False)
        assert {event.runs for event in result.inside} == {n}
        (tanh,) = [event for event in result.inside if event.op == "Tanh"]
        assert 0 < tanh.duration_ns < result.duration_ns
    assert max(turned) > 60


@natively
def test_what_kernels_do_not_decide_is_made_alone(monkeypatch: pytest.MonkeyPatch, turned: list[int]) -> None:
    """As if they never did: each turn is then made step by step, from what the one before it made."""
    from qrun.native.errors import Undecided
    from qrun.native.plan.instance import Instance

    model, feeds = onnx.parser.parse_model(HEAD + EXCHANGED), {"x": X, "n": np.array(90, I64)}
    want = qrun.Session(model, backend="reference").run(feeds)
    session = qrun.Session(model, cache=OBJECTS, threads=1)
    repeat = Instance.repeat

    def doubting(self: Instance, segment: object, most: int, turns: np.ndarray) -> tuple[int, Exception]:
        turns[0] = min(most, 3)
        return repeat(self, segment, min(most, 3), turns)[0] if most > 1 else 0, Undecided()  # type: ignore[arg-type]

    monkeypatch.setattr(Instance, "repeat", doubting)
    monkeypatch.setattr(Instance, "doubt", lambda self: Undecided())
    got = session.run(feeds)
    assert all(got[name].tobytes() == array.tobytes() for name, array in want.items())
    assert 3 in turned


@natively
def test_an_endless_loop_ends_by_an_interrupt(turned: list[int]) -> None:
    text = """main (float[4] x) => (float[4] y)
    { y = Loop( , , x) <body = l (int64 i, bool c, float[4] v) => (bool o, float[4] u) { o = Identity(c)  u = Neg(v) }> }"""
    session = qrun.Session(onnx.parser.parse_model(HEAD + text), cache=OBJECTS, threads=1)
    timer = threading.Timer(1.0, lambda: signal.raise_signal(signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        session.run({"x": np.ones(4, F32)})
    timer.join()
    assert max(turned) > 1000


@natively
@pytest.mark.parametrize("threads", [1, 2])
def test_turns_end_before_the_one_that_cannot_be_decided(threads: int, turned: list[int]) -> None:
    """DynamicQuantizeLinear refuses what is not finite:
    the turn before it counts, and the refusal is the reference's."""
    text = """main (float[4,6] x, int64 n) => (float[4,6] y, uint8[K,4,6] s, float[K] t)
    <bool yes = {1}>
    {
        y, s, t = Loop(n, yes, x) <body = l (int64 i, bool c, float[4,6] v) => (bool o, float[4,6] u, uint8[4,6] q, float d)
            <float ten = {-10.5}>
            { o = Identity(c)  u = Mul(v, ten)  q, d, z = DynamicQuantizeLinear(u) }>
    }"""
    model = onnx.parser.parse_model(HEAD + text)
    reference = qrun.Session(model, backend="reference")
    native = qrun.Session(model, cache=OBJECTS, threads=threads)
    for count in (37, 60, 20, 60, 37):
        feeds = {"x": X, "n": np.array(count, I64)}
        if count < 60:
            want = reference.run(feeds)
            assert all(array.tobytes() == want[name].tobytes() for name, array in native.run(feeds).items())
            continue
        with pytest.raises(qrun.RunError) as wanted:
            reference.run(feeds)
        with pytest.raises(qrun.RunError) as got:
            native.run(feeds)
        assert str(got.value) == str(wanted.value)
    assert turned[-1] > 30
