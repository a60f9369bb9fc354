"""A cache that grows with each run: one program for all its lengths,
in which what depends on them is bound to no shapes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.models import make_model, typed
from helpers.native import ISAS
from helpers.support import assert_equal
from onnx import TensorProto, helper

import qrun
from qrun.ir.types import NUMBERS
from qrun.running import pythonsteps
from qrun.running.programs import Programs
from qrun.running.pythonsteps import LooseStep

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]
F, WIDTH, HEADS = np.float32, 16, 2
pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")


def decoder(more: list[onnx.NodeProto] | None = None, outputs: tuple[str, ...] = ()) -> onnx.ModelProto:
    """Two layers of attention over what earlier runs left, and of this run's word;
    and nodes of its second layer's cache."""
    rng = np.random.default_rng(1)
    constants: dict[str, Array] = {"split": np.array([0, 0, HEADS, -1]), "joined": np.array([0, 0, WIDTH])}
    inputs: dict[str, Any] = {"x": [1, 1, WIDTH]}
    made: dict[str, Any] = {name: onnx.TypeProto() for name in outputs}
    nodes: list[onnx.NodeProto] = []

    def add(op_type: str, *names: str, name: str = "", **attributes: Any) -> str:
        nodes.append(helper.make_node(op_type, names, [name or f"{op_type}{len(nodes)}"], **attributes))
        return nodes[-1].output[0]

    def linear(x: str) -> str:
        constants[f"w{len(constants)}"] = rng.normal(0, 0.3, (WIDTH, WIDTH)).astype(F)
        return add("MatMul", x, f"w{len(constants) - 1}")

    y = "x"
    for layer in "01":
        q, k, v = (add("Transpose", add("Reshape", linear(y), "split"), perm=[0, 2, 1, 3]) for _ in range(3))
        inputs |= {f"{name}{layer}": [1, HEADS, "past", WIDTH // HEADS] for name in "kv"}
        k, v = (add("Concat", f"{n}{layer}", new, axis=2, name=f"all_{n}{layer}") for n, new in (("k", k), ("v", v)))
        shares = add("Softmax", add("MatMul", q, add("Transpose", k, perm=[0, 1, 3, 2])), axis=-1)
        mixed = add("Reshape", add("Transpose", add("MatMul", shares, v), perm=[0, 2, 1, 3]), "joined")
        y = add("Add", y, linear(mixed), name="y" if layer == "1" else "")
        made |= {k: onnx.TypeProto(), v: onnx.TypeProto()}
    constants |= {"one": np.array([1]), "two": np.array(2), "first": np.array([0]), "four": np.array([4])}
    constants["axis"] = np.array([2])
    return make_model([*nodes, *(more or [])], inputs, {"y": onnx.TypeProto(), **made}, constants, opset=17)


def step(past: int, seed: int = 0) -> Feeds:
    rng, shape = np.random.default_rng([past, seed]), (1, HEADS, past, WIDTH // HEADS)
    caches = {f"{name}{layer}": rng.normal(0, 1, shape).astype(F) for layer in "01" for name in "kv"}
    return {"x": rng.normal(0, 1, (1, 1, WIDTH)).astype(F), **caches}


class Loosely:
    """Counts the steps that are bound to no shapes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, run = 0, LooseStep.run

        def counted(own: LooseStep, *args: Any) -> Any:
            self.count += 1
            return run(own, *args)

        monkeypatch.setattr(LooseStep, "run", counted)

    def taken(self) -> int:
        """How many there were since the last call."""
        count, self.count = self.count, 0
        return count


@pytest.fixture
def loosely(monkeypatch: pytest.MonkeyPatch) -> Loosely:
    return Loosely(monkeypatch)


def same(session: qrun.Session, reference: qrun.Session, feeds: Feeds) -> None:
    found = session.run(feeds)
    for name, array in reference.run(feeds).items():
        assert_equal(found[name], array)
        found[name][...] = 7  # the caller's own


def sessions(model: onnx.ModelProto, threads: int = 1) -> tuple[qrun.Session, qrun.Session]:
    native = qrun.Session(model, backend="native", threads=threads, cache=False)
    return native, qrun.Session(model, backend="reference", fuse=True)


@pytest.mark.parametrize("few", [0, pythonsteps.FEW])
@pytest.mark.parametrize("threads", [1, 2])
def test_one_program_runs_every_length(
    few: int, threads: int, loosely: Loosely, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pythonsteps, "FEW", few)
    native, reference = sessions(decoder(), threads)
    lengths = (0, 1, 2, 3, 4, 50, 5, 0, 6, 1, 300, 7)
    wanted = [reference.run(step(past)) for past in lengths]
    for number, (past, arrays) in enumerate(zip(lengths, wanted, strict=True)):
        if number == 3:
            monkeypatch.setattr("qrun.running.runs.execute", None)
            monkeypatch.setattr("qrun.running.runs.program_ahead", None)
        found = native.run(step(past))
        for name, array in arrays.items():
            assert_equal(found[name], array)
        known = number < 2 or past < 2  # lengths that have programs of their own
        assert loosely.taken() == (0 if known else 12)


def test_lengths_that_come_again_have_programs_of_their_own(loosely: Loosely) -> None:
    native, reference = sessions(decoder())
    for past in range(20):
        same(native, reference, step(past))
    loosely.taken()
    for seed in range(1, 5):
        for past in range(10, 20):
            same(native, reference, step(past, seed))
        assert not loosely.taken()


def nodes_of_lengths() -> list[onnx.NodeProto]:
    """Values that follow from the cache's length: of shapes that are always the same, and that are not."""
    return [
        helper.make_node("Shape", ["all_k1"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "two"], ["length"]),
        helper.make_node("Cast", ["length"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["y", "number"], ["moved"]),
        helper.make_node("Range", ["zero", "length", "unit"], ["places"]),
        helper.make_node("Unsqueeze", ["length", "first"], ["count"]),
        helper.make_node("Concat", ["count", "one"], ["column"], axis=0),
        helper.make_node("Reshape", ["places", "column"], ["rows"]),
        helper.make_node("Sub", ["count", "one"], ["last"]),
        helper.make_node("Gather", ["all_v1", "last"], ["newest"], axis=2),
    ]


def test_what_follows_from_lengths_is_made_in_each_run(loosely: Loosely) -> None:
    outputs = ("sizes", "length", "moved", "places", "rows", "newest")
    made = decoder(nodes_of_lengths(), outputs)
    made.graph.initializer.extend(
        helper.make_tensor(name, TensorProto.INT64, [], [value]) for name, value in (("zero", 0), ("unit", 1))
    )
    native, reference = sessions(made)
    for past in (4, 5, 6, 7, 30, 8, 0, 31):
        same(native, reference, step(past))
    assert loosely.taken() > 12 * 5


def test_a_tensor_whose_shape_was_the_same_may_differ_later(loosely: Loosely) -> None:
    """The first four words of a cache are four only where there are as many."""
    more = [
        helper.make_node("Slice", ["k1", "first", "four", "axis"], ["start"]),
        helper.make_node("Mul", ["start", "start"], ["squares"]),
    ]
    native, reference = sessions(decoder(more, ("squares",)))
    steps = []
    for past in (4, 5, 6, 7, 3, 2, 9, 1, 0, 10):
        same(native, reference, step(past))
        steps.append(loosely.taken())
    assert steps[2:4] == [13, 13]
    assert steps[5:] == [14] * 5  # what the squares are made of is no longer taken for four


def test_another_input_may_change_too(loosely: Loosely) -> None:
    model = decoder([helper.make_node("Neg", ["z"], ["m"])], ("m",))
    model.graph.input.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, ["n"]))
    native, reference = sessions(model)
    steps = []
    for past, n in ((0, 3), (1, 3), (2, 3), (3, 3), (4, 5), (5, 3), (6, 6), (7, 7)):
        same(native, reference, step(past) | {"z": np.arange(n).astype(F)})
        steps.append(loosely.taken())
    assert steps == [0, 0, 12, 12, 13, 13, 13, 13]


def test_events_tell_the_shapes_of_their_run() -> None:
    native, _ = sessions(decoder())
    for past in (3, 4, 5, 6, 200):
        found = native.execute(step(past), observe=False)
        shapes = {info.name: info.shape for event in found.events for info in event.outputs}
        assert shapes["all_k1"] == (1, HEADS, past + 1, WIDTH // HEADS)
        assert shapes["y"] == (1, 1, WIDTH)
        assert all(event.backend == "native" or event.why for event in found.events)


def test_a_model_of_which_all_depends_on_the_length_has_no_such_program(loosely: Loosely) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Softmax", ["r"], ["y"])]
    model = make_model(nodes, {"x": ["n", 8]}, {"y": typed(TensorProto.FLOAT)}, {}, opset=17)
    native, reference = sessions(model)
    for rows in range(1, 9):
        same(native, reference, {"x": np.random.default_rng(rows).normal(0, 1, (rows, 8)).astype(F)})
    assert not loosely.taken()


def test_inputs_that_do_not_fit_are_refused() -> None:
    native, reference = sessions(decoder())
    for past in range(5):
        native.run(step(past))
    with pytest.raises(qrun.CallError, match="past") as refused:
        native.run(step(6) | {"k1": step(7)["k1"]})
    assert refused.value.code == "QR003"
    same(native, reference, step(6))


def test_memory_of_a_length_is_counted() -> None:
    native = qrun.Session(decoder(), backend="native", threads=1, cache=False, max_memory=200_000)
    for past in range(6):
        native.run(step(past))
    with pytest.raises(qrun.QrunError) as refused:
        native.run(step(4000))
    assert "limit" in str(refused.value)
    native.run(step(7))


@pytest.mark.parametrize(
    "dtype", [t for t in NUMBERS if t.kind != "O" and not t.name.startswith("float6")], ids=lambda t: t.name
)
def test_inputs_of_every_type(dtype: np.dtype[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Some types have one letter in common: the program for any lengths is made once for each of them."""
    made, make = list[object](), Programs._of_any_shapes

    def counted(*args: Any) -> Any:
        made.append(make(*args))
        return made[-1]

    monkeypatch.setattr(Programs, "_of_any_shapes", counted)
    names = ["z", *(f"m{i}" for i in range(8))]
    nodes = [helper.make_node("Tanh", [a], [b]) for a, b in itertools.pairwise(names)]
    nodes.append(helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0]))
    outputs = {"y": onnx.TypeProto(), names[-1]: typed(TensorProto.FLOAT)}
    model = make_model(nodes, {"z": [3]}, outputs, {}, opset=25)
    model.graph.input.append(helper.make_tensor_value_info("x", NUMBERS[dtype], ["n", 2]))
    session = qrun.Session(model, backend="native")
    for rows in range(1, 9):
        x = np.resize(np.array([0, 1, 1], np.uint8), (rows, 2)).astype(dtype)
        assert_equal(session.run({"z": np.ones(3, F), "x": x})["y"], x.T)
    assert sum(found is not None for found in made) == 1
