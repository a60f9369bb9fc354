"""Later runs of a program of kernels alone are one call: it gives what the reference gives,
and leaves all else to the others."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest
from helpers.models import make_model
from helpers.native import ISAS, OBJECTS
from helpers.poison import poisoned
from onnx import helper

import qrun
from qrun.errors import MemoryLimitError, QrunError, TimeLimitError
from qrun.native.machine.memory import elements_at
from qrun.native.plan import program
from qrun.native.plan.instance import Instance
from qrun.native.plan.program import Direct
from qrun.running.pythonsteps import BoundStep

F = np.float32
Array = np.ndarray[Any, Any]
ROWS, K = 3, 40
SEED = 5

pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")


def two_inputs() -> onnx.ModelProto:
    """y of two inputs, and z of one, in the order that nobody makes them in."""
    rng = np.random.default_rng(SEED)
    nodes = [
        helper.make_node("MatMul", ["b", "w"], ["m"]),
        helper.make_node("Relu", ["m"], ["z"]),
        helper.make_node("Add", ["a", "z"], ["s"]),
        helper.make_node("Tanh", ["s"], ["y"]),
    ]
    constants = {"w": rng.standard_normal((K, K)).astype(F)}
    return make_model(nodes, {"a": (ROWS, K), "b": (ROWS, K)}, "y z", constants)


def random_feeds(seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal((ROWS, K)).astype(F) for name in "ab"}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each run that was to be one call, whether it was."""
    found: list[bool] = []
    run = Direct.run

    def counted(self: Direct, *arrays: Any) -> dict[Any, Array] | None:
        made = run(self, *arrays)
        found.append(made is not None)
        return made

    monkeypatch.setattr(Direct, "run", counted)
    return found


def warm(session: qrun.Session, feeds: Mapping[str, Array]) -> None:
    """Until its program has run as often as it takes to know what it costs."""
    for _ in range(8):
        session.run(feeds)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("large", [0, 10**6])
def test_it_gives_what_the_reference_gives(
    threads: int, large: int, calls: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "_LARGE", large)
    model = two_inputs()
    reference = qrun.Session(model, backend="reference", fuse=True)
    with poisoned():
        session = qrun.Session(model, backend="native", threads=threads, cache=OBJECTS)
        warm(session, random_feeds(0))
        calls.clear()
        kept = []
        for seed in range(20):
            feeds = random_feeds(seed)
            got, want = session.run(feeds), reference.run(feeds)
            kept.append((got, want))
            assert list(got) == list(want)
    for got, want in kept:
        for name, array in want.items():
            assert got[name].tobytes() == array.tobytes(), name
            assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape)
            assert got[name].flags.writeable
    assert not any(np.may_share_memory(a["y"], b["y"]) for (a, _), (b, _) in zip(kept, kept[1:], strict=False))


def test_most_runs_are_one_call(calls: list[bool]) -> None:
    session = qrun.Session(two_inputs(), backend="native", threads=1, cache=OBJECTS)
    warm(session, random_feeds(0))
    calls.clear()
    for seed in range(5):
        session.run(random_feeds(seed))
    assert calls == [True] * 5


FORMS = {
    "read only": lambda a: np.frombuffer(a.tobytes(), F).reshape(a.shape),
    "on an odd byte": lambda a: np.frombuffer(b"x" + a.tobytes(), F, offset=1).reshape(a.shape),
    "with gaps": lambda a: np.repeat(a, 2, axis=1)[:, ::2],
    "turned": lambda a: np.asfortranarray(a),
    "part of another": lambda a: np.concatenate([a, a])[ROWS:],
    "a subclass": lambda a: a.view(np.matrix),
}


@pytest.mark.parametrize("form", FORMS)
def test_feeds_of_any_form(form: str, calls: list[bool]) -> None:
    model = two_inputs()
    session = qrun.Session(model, backend="native", threads=1, cache=OBJECTS)
    warm(session, random_feeds(0))
    calls.clear()
    feeds = random_feeds(1)
    want = qrun.Session(model, backend="reference", fuse=True).run(feeds)
    for _ in range(2):
        got = session.run({"a": FORMS[form](feeds["a"]), "b": feeds["b"]})
        assert all(got[name].tobytes() == array.tobytes() for name, array in want.items())
    assert all(calls) == (form not in ("with gaps", "turned"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"a": np.zeros((ROWS, K))},
        {"a": np.zeros((ROWS, K), np.dtype(F).newbyteorder())},
        {"a": np.zeros((ROWS, K), ml_dtypes.bfloat16)},
        {"a": np.zeros((ROWS, K + 1), F)},
        {"a": np.zeros(ROWS * K, F)},
        {"a": [1.0]},
        {"c": np.zeros(1, F)},
    ],
    ids=lambda feeds: " ".join(map(str, feeds)),
)
def test_feeds_that_do_not_fit_are_refused_in_the_same_words(wrong: Any) -> None:
    model = two_inputs()
    texts = []
    for times in (0, 8):
        session = qrun.Session(model, backend="native", threads=1, cache=OBJECTS)
        for _ in range(times):
            session.run(random_feeds(0))
        with pytest.raises(QrunError) as caught:
            session.run({**random_feeds(1), **wrong})
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


def test_limits_hold() -> None:
    session = qrun.Session(two_inputs(), backend="native", threads=1, cache=OBJECTS)
    feeds = random_feeds(0)
    warm(session, feeds)
    peak = session.execute(feeds, observe=False).peak_bytes
    session.max_memory = peak // 2
    with pytest.raises(MemoryLimitError):
        session.run(feeds)
    session.max_memory = 2 * peak
    session.run(feeds)
    session.max_memory, session.max_time = None, 0.0
    with pytest.raises(TimeLimitError):
        session.run(feeds)


def test_a_run_never_holds_more_than_it_is_allowed(calls: list[bool]) -> None:
    """Whatever the limit: what a run of one call takes is never more than what an account would count."""
    session = qrun.Session(two_inputs(), backend="native", threads=1, cache=OBJECTS)
    feeds = random_feeds(0)
    warm(session, feeds)
    peak = session.execute(feeds, observe=False).peak_bytes
    once = []
    for limit in range(0, 3 * peak, peak // 50):
        session.max_memory = limit
        calls.clear()
        with suppress(MemoryLimitError):
            session.run(feeds)
        once += [limit] if True in calls else []
        session.max_memory = 9 * peak
        warm(session, feeds)
    assert once
    assert min(once) >= peak


def test_what_kernels_do_not_decide_runs_as_it_did(calls: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    model, feeds = two_inputs(), random_feeds(3)
    session = qrun.Session(model, backend="native", threads=1, cache=OBJECTS)
    warm(session, feeds)
    want, doubt, asked = session.run(feeds), Instance.doubt, list[object]()
    (compiled,) = {id(m): m for p in session._runs.plans.values() for m in p.programs._made.values() if m}.values()
    for instance in compiled.program.free:
        instance.direct = None
        instance.doubtful = np.array([0], np.int64)
        instance.doubts[0] = 1

    def doubting(self: Instance) -> bool:
        asked.append(doubt(self))
        return len(asked) < 3

    monkeypatch.setattr(Instance, "doubt", doubting)
    calls.clear()
    got = session.run(feeds)
    assert calls == [False]
    assert len(asked) > 1
    assert all(got[name].tobytes() == array.tobytes() for name, array in want.items())


def test_feeds_that_others_put_into_the_dict_meanwhile_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    session, feeds = qrun.Session(two_inputs(), backend="native", threads=1, cache=OBJECTS), random_feeds(3)
    warm(session, feeds)
    want, run = session.run(feeds), Direct.run

    def late(self: Direct, *arrays: Any) -> Any:
        feeds.update(random_feeds(4))
        return run(self, *arrays)

    monkeypatch.setattr(Direct, "run", late)
    got = session.run(feeds)
    assert all(got[name].tobytes() == array.tobytes() for name, array in want.items())


def test_several_threads_run_it_at_once() -> None:
    model = two_inputs()
    session = qrun.Session(model, backend="native", threads=1, cache=OBJECTS)
    reference = qrun.Session(model, backend="reference", fuse=True)
    feeds = [random_feeds(seed) for seed in range(4)]
    wanted = [reference.run(fed) for fed in feeds]
    warm(session, feeds[0])
    wrong: list[str] = []

    def work(number: int) -> None:
        for _ in range(300):
            got = session.run(feeds[number])
            wrong.extend(n for n, array in wanted[number].items() if got[n].tobytes() != array.tobytes())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    "nodes",
    [
        [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Identity", ["x"], ["z"])],
        [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Reshape", ["y", "flat"], ["z"])],
        [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Identity", ["flat"], ["z"])],
        [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("LpNormalization", ["y"], ["z"])],
    ],
    ids=["an input", "the same memory", "a constant", "the reference"],
)
def test_other_results_are_the_caller_s_own_too(nodes: list[onnx.NodeProto]) -> None:
    constants = {"flat": np.array([-1], np.int64)}
    kind = np.int64 if nodes[1].input[0] == "flat" else F
    outputs = {"y": None, "z": helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(np.dtype(kind)), None)}
    model = make_model(nodes, {"x": (2, 4)}, outputs, constants)
    session = qrun.Session(model, backend="native", threads=1, cache=OBJECTS)
    feeds = {"x": np.arange(8, dtype=F).reshape(2, 4)}
    want = qrun.Session(model, backend="reference").run(feeds)
    for _ in range(8):
        got = session.run(feeds)
        for name, array in want.items():
            assert np.array_equal(got[name], array)
        for array in got.values():
            array[...] = 77


def test_arrays_have_their_memory_where_numpy_says() -> None:
    assert elements_at() > 0


def test_without_that_runs_are_as_they_were(calls: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "elements_at", lambda: -1)
    session = qrun.Session(two_inputs(), backend="native", threads=1, cache=OBJECTS)
    warm(session, random_feeds(0))
    want = qrun.Session(two_inputs(), backend="reference", fuse=True).run(random_feeds(0))
    got = session.run(random_feeds(0))
    assert all(got[name].tobytes() == array.tobytes() for name, array in want.items())
    assert not calls


def with_steps() -> onnx.ModelProto:
    """Steps without a native kernel before, between and behind those with one;
    w, which the caller gets, is read by both."""
    nodes = [
        helper.make_node("LpNormalization", ["a"], ["n"]),
        helper.make_node("Add", ["n", "b"], ["s"]),
        helper.make_node("Relu", ["s"], ["r"]),
        helper.make_node("LpNormalization", ["r"], ["w"]),
        helper.make_node("Mul", ["w", "r"], ["m"]),
        helper.make_node("Tanh", ["m"], ["y"]),
        helper.make_node("LpNormalization", ["y"], ["z"], p=1),
    ]
    return make_model(nodes, {"a": (ROWS, K), "b": (ROWS, K)}, "z w y", opset=17)


@pytest.mark.parametrize("threads", [1, 2])
def test_steps_of_the_reference_between_kernels(threads: int, calls: list[bool]) -> None:
    model = with_steps()
    reference = qrun.Session(model, backend="reference")
    with poisoned():
        session = qrun.Session(model, backend="native", threads=threads, cache=OBJECTS)
        warm(session, random_feeds(0))
        calls.clear()
        kept = []
        for seed in range(10):
            feeds = random_feeds(seed)
            kept.append((session.run(feeds), reference.run(feeds)))
    assert calls == [True] * 10
    for got, want in kept:
        assert list(got) == list(want) == ["z", "w", "y"]
        assert all(got[name].tobytes() == array.tobytes() for name, array in want.items())
        assert all(array.flags.writeable for array in got.values())
    arrays = [array for got, _ in kept for array in got.values()]
    assert not any(np.may_share_memory(a, b) for place, a in enumerate(arrays) for b in arrays[:place])


CHANGES: dict[str, tuple[Any, bool]] = {
    "a view of its own": (lambda a: np.concatenate([a, a])[ROWS:], True),
    "what nobody may write to": (lambda a: np.frombuffer(a.tobytes(), F).reshape(a.shape), True),
    "with gaps": (np.asfortranarray, False),
    "another type": (lambda a: a.astype(np.float64), False),
    "another shape": (lambda a: a.reshape(-1), False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_step_makes_is_looked_at(change: str, calls: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is: where kernels could not read it the run is the one of before, here step by step."""
    session, feeds = qrun.Session(with_steps(), backend="native", threads=1, cache=OBJECTS), random_feeds(1)
    warm(session, feeds)
    want, run, (made, serves) = session.run(feeds), BoundStep.run, CHANGES[change]
    changing = [True]

    def changed(self: BoundStep, given: Any, of: Any) -> Any:
        found = run(self, given, of)
        return [made(array) for array in found] if changing[0] and self.step.node.outputs[0] == "w" else found

    monkeypatch.setattr(BoundStep, "run", changed)
    calls.clear()
    got = session.run(feeds)
    assert calls == [serves]
    for name, array in want.items():
        assert np.array_equal(got[name], array)
        assert got[name].flags.writeable
        assert not np.may_share_memory(got[name], feeds["a"])


@pytest.mark.parametrize("outputs", ["y z same", "z"])
def test_a_step_that_gives_on_what_it_was_given(outputs: str, calls: list[bool]) -> None:
    """Results are the caller's own, also where the reference kernel passes its input on."""
    nodes = [
        helper.make_node("OptionalGetElement", ["x"], ["same"]),
        helper.make_node("Relu", ["same"], ["y"]),
        helper.make_node("OptionalGetElement", ["y"], ["z"]),
    ]
    model = make_model(nodes, {"x": (2, 3)}, outputs, opset=18)
    session = qrun.Session(model, backend="native", threads=1, cache=OBJECTS)
    feeds = {"x": np.arange(-3, 3, dtype=F).reshape(2, 3)}
    before = feeds["x"].copy()
    earlier: list[Array] = []
    for _ in range(9):
        made = session.run(feeds)
        assert all((array >= 5).all() for array in earlier)
        for name, array in made.items():
            assert np.array_equal(array, before if name == "same" else np.maximum(before, 0))
        for number, array in enumerate(made.values()):
            array[...] = number + 5
        earlier += made.values()
        assert [array.ravel()[0] for array in made.values()] == list(range(5, 5 + len(made)))
        assert np.array_equal(feeds["x"], before)
    assert any(calls)


def test_a_step_that_refuses_says_what_it_says_at_first(calls: list[bool]) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("ArrayFeatureExtractor", ["r", "place"], ["y"], domain="ai.onnx.ml"),
    ]
    place = helper.make_tensor_type_proto(onnx.TensorProto.INT64, (1,))
    model = make_model(nodes, {"x": (1, 4), "place": place}, "y", opset=17)
    good = {"x": np.arange(4, dtype=F)[None], "place": np.array([2], np.int64)}
    bad = {**good, "place": np.array([4], np.int64)}
    texts = []
    for times in (0, 8):
        session = qrun.Session(model, backend="native", threads=1, cache=OBJECTS)
        for _ in range(times):
            assert session.run(good)["y"].tolist() == [[2]]
        with pytest.raises(QrunError) as caught:
            session.run(bad)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]
    assert calls[0]
    assert session.run(good)["y"].tolist() == [[2]]


def test_what_steps_make_and_claim_counts(calls: list[bool]) -> None:
    """With less than a run takes, it is refused, or makes no call that nobody counts."""
    session, feeds = qrun.Session(with_steps(), backend="native", threads=1, cache=OBJECTS), random_feeds(0)
    warm(session, feeds)
    peak = session.execute(feeds, observe=False).peak_bytes
    served = []
    for limit in range(0, 4 * peak, peak // 10):
        session.max_memory = limit
        calls.clear()
        with suppress(MemoryLimitError):
            session.run(feeds)
        served += [limit] if True in calls else []
        session.max_memory = 9 * peak
        warm(session, feeds)
    assert served
    assert min(served) >= peak


def test_what_steps_made_before_counts(calls: list[bool]) -> None:
    """Each of two results is less than the limit, both are more."""
    nodes = [
        helper.make_node("OneHotEncoder", ["x"], [name], domain="ai.onnx.ml", cats_int64s=range(3000)) for name in "yz"
    ]
    model = make_model([helper.make_node("Relu", ["a"], ["x"]), *nodes], {"a": (1, 40)}, "y z", opset=17)
    session = qrun.Session(model, backend="native", threads=1, cache=OBJECTS)
    feeds = {"a": np.arange(40, dtype=F)[None]}
    nbytes = session.run(feeds)["y"].nbytes
    for _ in range(2):
        session.max_memory = None
        warm(session, feeds)
        session.max_memory = 2 * nbytes - 1
        calls.clear()
        with pytest.raises(MemoryLimitError):
            session.run(feeds)
    assert True not in calls


def test_maps_come_out_as_they_did(calls: list[bool]) -> None:
    nodes = [
        helper.make_node("Softmax", ["x"], ["p"]),
        helper.make_node("ZipMap", ["p"], ["z"], domain="ai.onnx.ml", classlabels_strings=["a", "b", "c"]),
    ]
    of = helper.make_map_type_proto(
        onnx.TensorProto.STRING, helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None)
    )
    model = make_model(nodes, {"x": (2, 3)}, {"z": helper.make_sequence_type_proto(of)}, opset=17)
    feeds = {"x": np.arange(6, dtype=F).reshape(2, 3)}
    want = qrun.Session(model, backend="reference").run(feeds)["z"]
    session = qrun.Session(model, backend="native", threads=1, cache=OBJECTS)
    warm(session, feeds)
    calls.clear()
    assert session.run(feeds)["z"] == want
    assert calls == [True]


CHOICES = """<ir_version: 10, opset_import: ["" : 17]>
main (float[3,4] a, bool c, int64[2] i) => (float[3,4] y, float[P,Q] z) <float zero = {0}> {
  s = ReduceSum<keepdims = 0>(a)  g = Greater(s, zero)
  t = If(g) < then_branch = f () => (float[3,4] p) { p = Tanh(a) }, else_branch = h () => (float[3,4] q) { q = Exp(a) }>
  y = If(c) < then_branch = f () => (float[3,4] p2) { p2 = Neg(t) }, else_branch = h () => (float[3,4] q2) { q2 = Abs(t) }>
  LAST }"""
LAST = {
    "both branches": "z = Sin(t)",
    "a branch that refuses": """z = If(g) < then_branch = f () => (float[3,4] p3) { p3 = Sin(t) },
        else_branch = h () => (float[3,4] q3) { w = Constant<value = float[5] {1, 2, 3, 4, 5}>()  q3 = Add(t, w) }>""",
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", LAST)
def test_choices_of_a_run_are_its_own(name: str, threads: int) -> None:
    """Also where one of the branches refuses."""
    model = onnx.parser.parse_model(CHOICES.replace("LAST", LAST[name]))
    reference = qrun.Session(model, backend="reference")
    session = qrun.Session(model, backend="native", threads=threads, cache=OBJECTS)
    ones = np.abs(np.random.default_rng(SEED).standard_normal((3, 4))).astype(F)
    places = np.zeros(2, np.int64)
    warm(session, {"a": ones, "c": np.array(True), "i": places})
    for sign, c in ((1, True), (-1, False), (-1, True), (1, False), (1, True)):
        feeds = {"a": F(sign) * ones, "c": np.array(c), "i": places}
        told: list[Any] = []
        for one in (reference, session):
            try:
                told.append({name: array.tobytes() for name, array in one.run(feeds).items()})
            except QrunError as error:
                told.append(str(error))
        assert told[0] == told[1]
