"""Steps that have no native kernel are called by the programs of graphs inside nodes,
so that turns follow each other."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from helpers.native import ISAS, OBJECTS, Array, engine, every_isa
from helpers.support import assert_equal

import qrun
from qrun.native.errors import Declined, Unplanned
from qrun.native.kernels.foreign import Foreign
from qrun.native.machine.operation import Operand
from qrun.native.plan import turns
from qrun.native.plan.turns import Turned, Turning
from qrun.running import foreignsteps
from qrun.running.dispatch import KernelBinding, NativeKernels
from qrun.running.plan import Step

pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")

F32, I64 = np.float32, np.int64
X = np.linspace(-2, 2, 24, dtype=F32).reshape(4, 6)
LEFT = ("CumSum", "MaxPool", "Det", "NonZero")
HEAD = '<ir_version: 10, opset_import: ["" : 17]>\n'
BODY = """main (float[4,6] x, int64 n, int64[2] j) => (float[4,6] y, float[K,4,6] s)
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


def ordered(text: str) -> onnx.ModelProto:
    """The model, the nodes of its body in an order in which they can run."""
    model = onnx.parser.parse_model(HEAD + BODY.replace("LINES", text))
    (body,) = (a.g for node in model.graph.node for a in node.attribute if a.name == "body")
    made, left = set("cvirj").union(("axis", "half", "two")), list(body.node)
    del body.node[:]
    while left:
        node = next(n for n in left if made.issuperset(n.input))
        left.remove(node)
        body.node.append(node)
        made.update(node.output)
    return model


@pytest.fixture(autouse=True)
def left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some operators have no native kernel."""
    make = NativeKernels._make

    def without(self: NativeKernels, step: Step, *given: Any) -> KernelBinding:
        return KernelBinding(None, "left out") if step.node.op_type in LEFT else make(self, step, *given)

    monkeypatch.setattr(NativeKernels, "_make", without)


@pytest.fixture
def turned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many turns each call of a program in a row made."""
    counts: list[int] = []
    run = Turning.run

    def counted(self: Turning, *args: Any) -> Turned:
        made = run(self, *args)
        counts.append(made.count)
        return made

    monkeypatch.setattr(Turning, "run", counted)
    return counts


def fed(turns: int, second: int = 3) -> dict[str, Array]:
    return {"x": X, "n": np.array(turns, I64), "j": np.array([0, second], I64)}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", LINES)
def test_turns_in_a_row_make_what_the_reference_makes(name: str, threads: int, turned: list[int]) -> None:
    model = ordered(LINES[name])
    reference = qrun.Session(model, backend="reference", fuse=False)
    session = qrun.Session(model, backend="native", threads=threads, cache=OBJECTS, fuse=False)
    for count in (20, 90, 0, 1, 90):
        want, got = (s.execute(fed(count), observe=False) for s in (reference, session))
        for key, array in want.outputs.items():
            assert_equal(got.outputs[key], array, f"{name}, {count} turns: {key}")
        told = [{(e.path, e.op, e.runs) for e in ran.inside if e.op != "Constant"} for ran in (want, got)]
        assert told[0] == told[1]
    assert max(turned) >= 80
    (event,) = (e for e in got.inside if e.op in ("CumSum", "MaxPool") and e.backend == "reference")
    assert event.duration_ns > 0


def test_a_refusal_is_that_of_the_turn(turned: list[int]) -> None:
    """What turns made before it stays; and a run after it is as if nothing had happened."""
    model = ordered(
        "sixty = Constant<value = int64 {60}>()  a = Div(i, sixty)  t = Tanh(v)  e = CumSum(t, a)  u = Add(t, r)"
    )
    texts = []
    sessions = [qrun.Session(model, backend=backend, threads=1) for backend in ("reference", "native")]
    for count in (20, 90, 130, 50):
        texts.clear()
        for session in sessions:
            try:
                texts.append(repr(session.run(fed(count))))
            except qrun.QrunError as error:
                texts.append(str(error))
        assert texts[0] == texts[1]
        assert ("axis" in texts[0]) == (count == 130)
    assert max(turned) > 80


def test_sequences_are_handed_on_by_python() -> None:
    """They are no bytes that a call could copy."""
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


def test_what_claims_much_memory_goes_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """There the run's own account tells whether that is allowed."""
    model = ordered(LINES["one result"])
    want = qrun.Session(model, backend="reference").run(fed(40))
    monkeypatch.setattr(foreignsteps, "SMALL", -(1 << 20))
    session = qrun.Session(model, backend="native", threads=1, cache=OBJECTS)
    for _ in range(3):
        for key, array in session.run(fed(40)).items():
            assert_equal(array, want[key], key)


def test_turns_come_back_after_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ordered(LINES["one result"])
    want = qrun.Session(model, backend="reference").run(fed(40))
    monkeypatch.setattr(turns, "LONG", dict.fromkeys(turns.LONG, 0))
    calls, lead = [], turns.Instance.repeat

    def seen(self: Any, *given: Any) -> Any:
        made = lead(self, *given)
        calls.append(made)
        return made

    monkeypatch.setattr(turns.Instance, "repeat", seen)
    session = qrun.Session(model, backend="native", threads=1, cache=OBJECTS)
    for key, array in session.run(fed(40)).items():
        assert_equal(array, want[key], key)
    assert len(calls) > 30
    assert set(calls) == {(1, None)}


def test_an_interrupt_ends_turns() -> None:
    session = qrun.Session(ordered(LINES["one result"]), backend="native", threads=1, cache=OBJECTS)
    session.run(fed(20))
    timer = threading.Timer(1.0, lambda: signal.raise_signal(signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        session.run(fed(1 << 40))
    timer.join()


@every_isa
def test_results_lie_behind_each_other(isa: str) -> None:
    """Of any type that kernels copy; and a result of another shape, or none, is told as it is."""
    made = [np.arange(5, dtype=np.int8), np.array(7.5), np.array([[True], [False]]), np.arange(3, dtype=np.float16)]
    given, seen = np.arange(6, dtype=F32), []

    def function(arrays: list[Array]) -> Sequence[Array]:
        seen.append(arrays[0].copy())
        return made

    forms = [Operand(array.shape, array.dtype) for array in made]
    operation = Foreign(engine(isa), [Operand((6,), given.dtype)], forms, function)
    whole = engine(isa).run(operation, [given])
    for part, array in zip(operation.outputs, made, strict=True):
        assert_equal(engine(isa).run(part, [whole]), array, "a part")
    assert_equal(seen[0], given, "what it reads")
    made[0] = made[0][:4]
    with pytest.raises(Unplanned, match="int8"):
        engine(isa).run(operation, [given])
    for error in (ValueError("told to"), KeyboardInterrupt()):

        def fails(arrays: list[Array], error: BaseException = error) -> Sequence[Array]:
            raise error

        with pytest.raises(type(error)):
            engine(isa).run(Foreign(engine(isa), [Operand((6,), given.dtype)], forms[:1], fails), [given])


def test_what_cannot_be_called_is_declined() -> None:
    form = Operand((2,), np.dtype(F32))
    for operands, made in (
        ([form] * 40, [form]),
        ([Operand((2,), np.dtype(object))], [form]),
        ([form], [Operand((0,), np.dtype(F32))]),
    ):
        with pytest.raises(Declined):
            Foreign(engine(ISAS[0]), operands, made, lambda arrays: arrays)
