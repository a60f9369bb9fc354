"""Graphs inside nodes run as native programs when they come again with the same shapes,
with the results of their steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.models import make_model, typed
from helpers.native import ISAS, Array
from helpers.support import assert_equal
from onnx import TensorProto, helper, numpy_helper

import qrun
from qrun.native.errors import Undecided
from qrun.native.plan.program import Direct, Program
from qrun.native.plan.turns import LoopBody

pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")

F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
TURNS, WIDE = 12, 24
RNG = np.random.default_rng(5)
W, X = (RNG.normal(0, 0.3, shape).astype(np.float32) for shape in ((WIDE, WIDE), (3, WIDE)))


def value(name: str, kind: int, shape: Any = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def loop(
    nodes: list[onnx.NodeProto], outputs: list[str], carried: list[str], constants: dict[str, Array]
) -> onnx.ModelProto:
    """A loop of TURNS turns that begins with s = x; outputs: of the body, the condition `c` not among them."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["go"]), *nodes],
        "body",
        [value("i", I64, []), value("c", BOOL, []), *(value(name, F32) for name in carried)],
        [value("go", BOOL, []), *(value(name, F32) for name in outputs)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    names = [f"y{n}" for n in range(len(outputs))]
    inputs = ["turns", "", *["x"] * len(carried)]
    made = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Loop", inputs, names, body=body)]
    return make_model(made, {"x": ["n", WIDE], "turns": typed(I64, [])}, dict.fromkeys(names), opset=17)


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


def inner(op: str) -> onnx.GraphProto:
    """The body of a loop: a function of what goes around, whose absolute value is a scan output."""
    nodes = [node("Identity", "e", "q"), node(op, "v", "u"), node("Abs", "u", "b")]
    inputs = [value("j", I64, []), value("e", BOOL, []), value("v", F32)]
    return helper.make_graph(nodes, "inner", inputs, [value("q", BOOL, []), value("u", F32), value("b", F32)])


def branch(op: str) -> onnx.GraphProto:
    return helper.make_graph([node(op, "p", f"b_{op}")], op, [], [value(f"b_{op}", F32)])


LOOPS: dict[str, Callable[[], onnx.ModelProto]] = {
    "a product and functions": lambda: loop(
        [node("MatMul", "s w", "m"), node("Tanh", "m", "t"), node("Add", "t r", "s2"), node("Sigmoid", "s2", "o")],
        ["s2", "o"], ["s"], {"w": W},
    ),
    "what it takes from around it is a result": lambda: loop(
        [node("Add", "s r", "s2"), node("Identity", "r", "o")], ["s2", "o"], ["s"], {}
    ),
    "what it is fed with is a result": lambda: loop([node("Neg", "s", "n")], ["n", "s"], ["s"], {}),
    "a constant is a result": lambda: loop([node("Neg", "s", "n")], ["n", "w"], ["s"], {"w": W}),
    "the turn's number": lambda: loop(
        [node("Cast", "i", "f", to=F32), node("Mul", "s f", "p"), node("Tanh", "p", "s2")], ["s2", "p"], ["s"], {}
    ),
    "shapes that grow": lambda: loop([node("Concat", "s r", "s2", axis=0), node("Neg", "r", "o")], ["s2", "o"], ["s"], {}),
    "shapes that depend on values": lambda: loop(
        [node("Cast", "i", "f", to=F32), node("Sub", "r f", "d"), node("Relu", "d", "e"), node("NonZero", "e", "z"),
         node("Shape", "z", "k"), node("Cast", "k", "l", to=F32), node("ReduceSum", "l", "q", keepdims=0),
         node("Add", "s q", "s2")], ["s2"], ["s"], {},
    ),
    "a loop inside": lambda: loop(
        [node("Relu", "s", "p"), helper.make_node("Loop", ["two", "", "p"], ["l", "a"], body=inner("Tanh")),
         node("Add", "l r", "s2"), node("ReduceSum", "a", "o", keepdims=0)], ["s2", "o"], ["s"], {"two": np.array(2)},
    ),
    "a choice inside": lambda: loop(
        [node("Mod", "i two", "m"), node("Cast", "m", "d", to=BOOL), node("Neg", "s", "p"),
         helper.make_node("If", ["d"], ["t"], then_branch=branch("Tanh"), else_branch=branch("Sigmoid")),
         node("Add", "t r", "s2")], ["s2", "t"], ["s"], {"two": np.array(2)},
    ),
    "a loop inside that grows with the turn": lambda: loop(
        [helper.make_node("Loop", ["i", "", "s"], ["l", "a"], body=inner("Tanh")), node("Add", "l r", "s2"),
         node("ReduceSum", "a", "o", keepdims=0)], ["s2", "o"], ["s"], {},
    ),
}  # fmt: skip


def runs(monkeypatch: pytest.MonkeyPatch) -> list[Program | LoopBody]:
    """The programs that run from now on, once for each run, also where many follow each other."""
    found: list[Program | LoopBody] = []
    run, directly, many = Program.run, Direct.run, LoopBody.run

    def seen(self: Program, *given: Any, **more: Any) -> Any:
        found.append(self)
        return run(self, *given, **more)

    def seen_directly(self: Direct, *given: Any) -> dict[Any, Array] | None:
        made = directly(self, *given)
        found.extend([self.program] * (made is not None))
        return made

    def seen_many(self: LoopBody, *given: Any) -> tuple[int, bool, list[Array]]:
        made = many(self, *given)
        found.extend([self] * made[0])
        return made

    monkeypatch.setattr(Program, "run", seen)
    monkeypatch.setattr(Direct, "run", seen_directly)
    monkeypatch.setattr(LoopBody, "run", seen_many)
    return found


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", LOOPS)
def test_results_are_those_of_the_reference(name: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = LOOPS[name]()
    reference = qrun.Session(model, backend="reference")
    session, ran = qrun.Session(model, backend="native", threads=threads), runs(monkeypatch)
    for rows in (3, 3, 2, 3, 0, 1):
        feeds = {"x": X[:rows], "turns": np.array(TURNS)}
        want = reference.run(feeds)
        for got in (session.run(feeds), session.execute(feeds).outputs):
            for key, array in want.items():
                assert_equal(got[key], array, f"{name}, {rows} rows: {key}")
    assert len(set(ran)) > 1 or "grow" in name
    assert len(ran) > 2 * TURNS or "grow" in name


def test_what_turns_take_from_around_them_may_lie_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan output is a value of the graph around, which no kernel reads, as its caller or another node laid it."""
    model = loop(
        [node("Add", "s s", "s2"), node("Identity", "x", "o"), node("Identity", "t", "p")], ["s2", "o", "p"], ["s"], {}
    )
    model.graph.node.insert(1, node("Transpose", "square", "t", perm=[1, 0]))
    model.graph.input.append(value("square", F32, [WIDE, WIDE]))
    reference = qrun.Session(model, backend="reference")
    session, ran = qrun.Session(model, backend="native", threads=1), runs(monkeypatch)
    for x in (X, np.asfortranarray(X), np.repeat(X, 2, axis=1)[:, ::2], X[::-1, ::-1]):
        feeds = {"x": x, "turns": np.array(TURNS), "square": W}
        want = reference.run(feeds)
        for _ in range(2):
            for name, array in session.run(feeds).items():
                assert_equal(array, want[name], name)
    assert len(ran) > 4 * TURNS


def test_a_program_is_made_when_shapes_came_often(monkeypatch: pytest.MonkeyPatch) -> None:
    session, ran = qrun.Session(LOOPS["a product and functions"](), backend="native", threads=1), runs(monkeypatch)
    session.run({"x": X, "turns": np.array(3)})
    assert not ran
    session.run({"x": X, "turns": np.array(5)})
    assert len(ran) >= 5


def test_events_tell_of_every_turn() -> None:
    """Nodes that became part of another one take no time."""
    session = qrun.Session(LOOPS["a product and functions"](), backend="native", threads=1)
    feeds = {"x": X, "turns": np.array(TURNS)}
    for _ in range(3):
        inside = session.execute(feeds, observe=False).inside
        assert [event.op for event in inside] == ["Identity", "MatMul", "Tanh", "Add", "Sigmoid"]
        assert {event.runs for event in inside} == {TURNS}
        assert {event.backend for event in inside if event.op != "Identity"} == {"native"}
        assert sum(event.duration_ns for event in inside) > 0
        assert all(event.path.startswith("Loop_1/body/") for event in inside)


def test_events_tell_of_graphs_inside_graphs() -> None:
    """Each time that they ran, also where a program that was to run them failed, and their steps ran again."""
    feeds = {"x": X, "turns": np.array(TURNS)}
    counts = {"a loop inside": 2 * TURNS, "a loop inside that grows with the turn": TURNS * (TURNS - 1) // 2}
    for name, count in counts.items():
        session = qrun.Session(LOOPS[name](), backend="native", threads=1)
        for _ in range(4):
            inside = {event.path: event for event in session.execute(feeds, observe=False).inside}
            (tanh,) = (event for path, event in inside.items() if "Tanh" in path)
            assert tanh.path.startswith("Loop_1/body/Loop_")
            assert tanh.runs == count, name
            (add,) = (event for path, event in inside.items() if event.op == "Add")
            assert (add.runs, add.path.rpartition("/")[0]) == (TURNS, "Loop_1/body")
    session = qrun.Session(LOOPS["a choice inside"](), backend="native", threads=1)
    for _ in range(4):
        inside = {event.op: event for event in session.execute(feeds, observe=False).inside}
        assert (inside["Tanh"].runs, inside["Sigmoid"].runs) == (TURNS // 2, TURNS // 2)
        assert inside["Tanh"].path.startswith("Loop_1/body/If_")
        assert inside["Tanh"].path.split("/")[3] == "then_branch"


@pytest.mark.parametrize("failure", [Undecided, ValueError])
def test_a_program_that_fails_leaves_the_graph_to_its_steps(
    failure: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A result that it could not decide says nothing of the next run; after anything else it is used no more."""
    model, calls = LOOPS["a product and functions"](), []
    feeds = {"x": X, "turns": np.array(TURNS)}
    want = qrun.Session(model, backend="reference").run(feeds)
    session = qrun.Session(model, backend="native", threads=1)

    def fails(*given: Any, **more: Any) -> None:
        calls.append(given)
        raise failure("told to")

    monkeypatch.setattr(Program, "run", fails)
    monkeypatch.setattr(Direct, "run", lambda *given: None)
    for name, array in session.run(feeds).items():
        assert_equal(array, want[name], name)
    assert len(calls) == (TURNS - 3 if failure is Undecided else 1)


def test_memory_of_a_turn_is_given_back() -> None:
    """Many turns need no more than few, but for what they make that stays."""
    grown = []
    for backend in ("reference", "native"):
        session = qrun.Session(LOOPS["what it is fed with is a result"](), backend=backend, threads=1)
        few, many = (session.execute({"x": X, "turns": np.array(n)}, observe=False).peak_bytes for n in (20, 40))
        grown.append(many - few)
    assert grown[0] == grown[1] > 0


def test_runs_of_a_branch_need_no_account_of_every_array(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody asks for times, and no time is set."""
    then = helper.make_graph([node("Concat", "r x", "g", axis=0)], "f", [], [value("g", F32)])
    other = helper.make_graph([node("Tanh", "r", "h")], "h", [], [value("h", F32)])
    nodes = [node("Relu", "x", "r"), helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)]
    model = make_model(nodes, {"x": [3, WIDE], "c": typed(BOOL, [])}, {"y": None}, opset=17)
    reference, ran, calls = qrun.Session(model, backend="reference"), runs(monkeypatch), list[dict[Any, Array] | None]()
    directly = Direct.run

    def seen(self: Direct, *given: Any) -> dict[Any, Array] | None:
        calls.append(directly(self, *given))
        return calls[-1]

    monkeypatch.setattr(Direct, "run", seen)
    for limits in ({}, {"max_time": 100.0}, {"max_memory": 6 * X.nbytes}):
        session = qrun.Session(model, backend="native", threads=1, **limits)
        calls.clear()
        for c in [True] * 8 + [False] * 8 + [True, False]:
            feeds = {"x": X, "c": np.array(c)}
            assert_equal(session.run(feeds)["y"], reference.run(feeds)["y"], f"{limits}, {c}")
        (natives,) = (p.natives for p in session._runs.plans.values() if p.natives is not None)
        own = {made.program for inside in natives._inside.values() for made in _programs_of(inside)}
        assert len(own) == 2
        made = [call for call in calls if call is not None and not call.keys() <= {"y", "r"}]
        assert (len(made) >= 8) == ("max_time" not in limits), limits
    assert ran


def _programs_of(natives: Any) -> list[Any]:
    return [made for made in natives.bodies._programs._made.values() if made is not None]
