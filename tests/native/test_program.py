"""Programs: the same results as node by node, for any number of threads, in memory that is used again."""

from __future__ import annotations

import ctypes
import sys
import threading
from time import process_time, sleep
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.models import make_model, typed
from helpers.native import ISAS, OBJECTS
from helpers.placed import same_runs
from onnx import TensorProto, helper, numpy_helper

import qrun
from qrun.errors import QrunError
from qrun.native.emit.spec import (
    DONE,
    DOZE,
    ENTRY,
    INSIDE,
    PASS,
    PLAN,
    SKIP,
    SLEEPERS,
    STATE,
    STRUCT,
    SYSCALL,
    TIMES,
    YIELD,
)
from qrun.native.kernels.conv import Conv
from qrun.native.machine.engine import Engine
from qrun.native.machine.memory import Need, address, aligned, arrange
from qrun.native.machine.threads import system_call, yield_address
from qrun.native.plan.items import Task
from qrun.native.plan.schedule import Schedule
from qrun.native.plan.stamps import _RUNS, Alone, Segment, Stamp
from qrun.native.proof.epilogue import Target
from qrun.running.compiled import Compiled

F = np.float32
pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")


def test_buffers_needed_at_once_do_not_overlap() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        firsts = rng.integers(0, 20, 30)
        needs = [
            Need(int(n), int(a), int(a + d))
            for n, a, d in zip(rng.integers(0, 999, 30), firsts, rng.integers(0, 9, 30), strict=True)
        ]
        offsets, whole = arrange(needs)
        for i, (a, at) in enumerate(zip(needs, offsets, strict=True)):
            assert at % 64 == 0
            assert at + a.nbytes <= whole
            for b, other in list(zip(needs, offsets, strict=True))[:i]:
                together = a.first <= b.last and b.first <= a.last
                assert not (together and at < other + b.nbytes and other < at + a.nbytes)


def test_memory_is_used_again() -> None:
    offsets, whole = arrange([Need(1000, i, i + 1) for i in range(10)])
    assert whole == 2048
    assert sorted(set(offsets)) == [0, 1024]


def chain(length: int = 4, rows: int = 33, k: int = 70, middle: str = "") -> onnx.ModelProto:
    """QLinearMatMul after QLinearMatMul, all [rows, k]; with a float operator in the middle if asked for."""
    rng = np.random.default_rng(1)
    nodes, tensors, x = [], [], "x"

    def constant(array: Any) -> str:
        tensors.append(numpy_helper.from_array(np.asarray(array), f"c{len(tensors)}"))
        return tensors[-1].name

    for i in range(length):
        w = rng.integers(-128, 128, (k, k)).astype(np.int8)
        scales = [F(0.1), np.uint8(7), w, F(0.01), np.int8(0), F(0.1 * 0.01 * 74 * 74 * k**0.5 / 60), np.uint8(128)]
        nodes.append(helper.make_node("QLinearMatMul", [x, *(constant(s) for s in scales)], [f"y{i}"], f"n{i}"))
        x = f"y{i}"
        if middle and i == length // 2:
            nodes.append(helper.make_node("DequantizeLinear", [x, constant(F(0.1)), constant(np.uint8(9))], ["real"]))
            nodes.append(helper.make_node(middle, ["real"], ["made"], "odd"))
            nodes.append(
                helper.make_node("QuantizeLinear", ["made", constant(F(0.1)), constant(np.uint8(9))], ["back"])
            )
            x = "back"
    values = [helper.make_tensor_value_info(n, TensorProto.UINT8, [rows, k]) for n in ("x", x)]
    return make_model(nodes, values[:1], values[1:], tensors, opset=17)


def codes(seed: int, rows: int = 33, k: int = 70) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (rows, k)).astype(np.uint8)


def program_of(session: qrun.Session) -> Compiled | None:
    made = [m for p in session._runs.plans.values() if p.programs for m in p.programs._made.values()]
    return next(iter(made), None)


@pytest.mark.parametrize("middle", ["", "LpNormalization"])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_second_run_is_a_program_with_the_same_results(threads: int, middle: str) -> None:
    model = chain(middle=middle)
    reference = qrun.Session(model, backend="reference")
    native = qrun.Session(model, backend="native", threads=threads, cache=OBJECTS)
    for seed in range(6):
        feeds = {"x": codes(seed)}
        for names in (None, ["y0", "y2"]):
            got, want = native.run(feeds, names), reference.run(feeds, names)
            assert all(np.array_equal(got[n], want[n]) for n in want), (seed, names)
    assert program_of(native) is not None


@pytest.mark.parametrize("seed", range(8))
def test_whatever_calls_are_the_leader_s_alone(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which runs say that they are small; here chance does. Helpers stay, as runs follow each other."""
    rng, asked = np.random.default_rng(seed), list[bool]()

    def measure(self: Alone, stamps: object) -> None:
        self.runs = _RUNS if seed % 2 else self.runs + 1
        self.work[:] = rng.choice([0, 10**6], len(self.work), p=[0.6, 0.4])
        asked.append(self.known)

    monkeypatch.setattr(Alone, "measure", measure)
    model = chain(length=8, rows=700)
    same_runs(model, {"x": codes(seed, 700)}, times=60, threads=2 + seed % 3)
    assert asked.pop()
    assert not any(asked)


def test_helpers_leave_out_small_calls_and_waits_that_only_such_follow() -> None:
    alone = Alone([1, 4, 4, 0, 1, 1], [True, False, True, True, True, True])
    alone.work[:] = 100, 9000, 100, 100, 100, 100
    assert alone.flags().tolist() == [SKIP, 0, SKIP, PASS, SKIP | PASS, SKIP | PASS]
    alone.work[4] = 9000
    assert alone.flags().tolist() == [SKIP, 0, SKIP, 0, PASS, SKIP | PASS]


@pytest.mark.parametrize(("patience", "given"), [(0, 0), (256, 0), (1000, 47)])
def test_a_thread_that_waits_long_gives_way(patience: int, given: int) -> None:
    calls: list[int] = []
    told = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: calls.append(1) or 0)
    engine, state = Engine.create(ISAS[-1], OBJECTS), aligned(STATE // 8, np.int64, 0)
    for function in (ctypes.cast(told, ctypes.c_void_p).value, yield_address(), 0):
        state[YIELD // 8] = function
        engine.runner.follow(0, address(state), patience, 0, 0)
    assert len(calls) == given


def test_a_thread_that_waits_long_for_others_sleeps_until_one_wakes_it() -> None:
    """The leader's one step is done at once, but a helper is inside: it leaves while the leader sleeps."""
    engine, state = Engine.create("", OBJECTS), aligned(STATE // 8, np.int64, 0)
    plan, struct, times = (aligned(n, np.int64, 0) for n in (ENTRY // 8, STRUCT // 8, 4))
    asked: list[tuple[int, int, int]] = []

    def call(number: int, counter: int, what: int, value: int, *_: int) -> int:
        asked.append((counter, what, value))
        assert state[SLEEPERS // 8] == 1
        state[INSIDE // 8] = 0
        return 0

    kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 7)
    told = kind(call)
    plan[:3] = engine.runner.meter.empty, address(struct), 1
    state[SYSCALL // 8], state[PLAN // 8] = ctypes.cast(told, ctypes.c_void_p).value, address(plan)
    state[TIMES // 8], state[INSIDE // 8] = address(times), 1
    engine.runner.lead(address(state), 0, 1, 0)
    assert asked == [(address(state) + INSIDE, 128, 1)]
    assert state[SLEEPERS // 8] == 0
    state[SLEEPERS // 8] = 1
    engine.runner.lead(address(state), 0, 1, 0)
    assert asked[1:] == [(address(struct) + DONE, 129, 2**31 - 1)], "who ends a step wakes those that wait for it"


@pytest.mark.skipif(sys.platform != "linux", reason="futexes are Linux's")
def test_threads_sleep_and_wake_on_linux() -> None:
    engine, state = Engine.create("", OBJECTS), aligned(STATE // 8, np.int64, 0)
    plan, struct, times = (aligned(n, np.int64, 0) for n in (ENTRY // 8, STRUCT // 8, 4))
    plan[:3] = engine.runner.meter.empty, address(struct), 1
    state[SYSCALL // 8], state[PLAN // 8], state[TIMES // 8] = system_call(), address(plan), address(times)
    state[INSIDE // 8], state[DOZE // 8 + 1] = 1, 10**6
    leader = threading.Thread(target=engine.runner.lead, args=(address(state), 0, 1, 0))
    before = process_time()
    leader.start()
    sleep(0.5)
    assert leader.is_alive()
    assert process_time() - before < 0.25, "it would have spun for half a second"
    state[INSIDE // 8] = 0
    leader.join(10)
    assert not leader.is_alive()


def test_the_shortest_of_some_runs_says_what_a_call_costs() -> None:
    """The leader's clock ticks twice a nanosecond here. The helper was not there in the second run."""
    alone, runs = Alone([1, 8], [True, True]), 0
    for leader, helped in ((900, 800), (2000, 0)):
        ticks = np.zeros((2, 3, 2), np.int64)
        ticks[0] = [[5000, 5100], [5100, 5100 + leader], [5100 + leader, 0]]
        ticks[1] = [[5050, 5050], [5200, 5200 + helped], [0, 0]] if helped else [[10, 400], [400, 900], [900, 0]]
        alone.measure([Stamp(Segment(0, 2), 70000, 70000 + (100 + leader) // 2, ticks, 0.5)])
        runs += 1
    assert alone.work.tolist() == [50, 850]
    assert alone.runs == runs


def test_results_do_not_change_with_the_next_run() -> None:
    native = qrun.Session(chain(), backend="native", cache=OBJECTS)
    native.run({"x": codes(0)})
    first = native.run({"x": codes(1)})["y3"]
    kept = first.copy()
    native.run({"x": codes(2)})
    assert np.array_equal(first, kept)


@pytest.mark.parametrize("threads", [1, 2])
def test_results_are_made_in_arrays_of_their_own(threads: int) -> None:
    """Not in the arena: a cache goes into the array that is returned, from where later nodes read it. Who has the array
    may write to it. Where two results are the same bytes, one is a copy; one that lies otherwise is copied too."""
    nodes = [
        helper.make_node("Add", ["x", "x"], ["a"]),
        helper.make_node("Reshape", ["a", "flat"], ["b"]),
        helper.make_node("Concat", ["cache", "a"], ["c"], axis=1),
        helper.make_node("Transpose", ["c"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["c", "t"], ["d"]),
        helper.make_node("LpNormalization", ["c"], ["e"]),
        helper.make_node("Relu", ["e"], ["f"]),
    ]
    model = make_model(nodes, {"x": [64, 3], "cache": [64, 200]}, "c a b d e f", {"flat": np.array([-1])})
    session = qrun.Session(model, backend="native", cache=OBJECTS, threads=threads)
    reference, rng = qrun.Session(model, backend="reference"), np.random.default_rng(0)
    for names in (None, list("cadef"), list("tb")):
        for _ in range(6):
            feeds = {name: rng.normal(0, 1, shape).astype(F) for name, shape in (("x", (64, 3)), ("cache", (64, 200)))}
            got, want = session.run(feeds, names), reference.run(feeds, names)
            for name, array in got.items():
                assert np.array_equal(array, want[name]), name
                assert array.flags.writeable
                array[...] = 9
            arrays = [*got.values(), *feeds.values()]
            assert not any(np.may_share_memory(a, b) for n, a in enumerate(arrays) for b in arrays[:n])
    listing = program_of(session).program.listing
    assert {"c", "d", "f"} <= listing.returned.keys()
    assert listing.arena == 64 * 203 * 4  # t


@pytest.mark.parametrize("threads", [1, 2])
def test_images_that_are_returned_are_made_in_c_order(threads: int) -> None:
    """By the program, into arrays of their own, whether or not later nodes read them channels-last."""
    rng = np.random.default_rng(4)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["a", "v"], ["b"]),
        helper.make_node("Transpose", ["b"], ["t"], perm=[0, 2, 3, 1]),
        helper.make_node("Sigmoid", ["b"], ["s"]),
    ]
    weights = {"w": rng.normal(0, 1, (6, 3, 3, 3)).astype(F), "v": rng.normal(0, 1, (5, 6, 1, 1)).astype(F)}
    model = make_model(nodes, {"x": [2, 3, 8, 9]}, "a b t s", weights)
    session = qrun.Session(model, backend="native", cache=OBJECTS, threads=threads)
    reference = qrun.Session(model, backend="reference")
    for names in (None, ["a"], ["s", "t"]):
        for turn in range(4):
            feeds = {"x": rng.normal(0, 1, (2, 3, 8, 9)).astype(F)}
            got, want = session.run(feeds, names), reference.run(feeds, names)
            for name, array in got.items():
                assert array.flags.c_contiguous or not turn, name
                assert np.array_equal(array, want[name]), name
            assert not any(
                np.may_share_memory(a, b) for n, a in enumerate(got.values()) for b in list(got.values())[:n]
            )
    assert {"a", "b", "s"} <= program_of(session).program.listing.returned.keys()


def test_barriers_are_the_same_wherever_results_lie() -> None:
    """Calls that read what others wrote wait for them, in the arena and outside."""
    found = []
    for names in (None, ["y0", "y1", "y2", "y3"]):
        session = qrun.Session(chain(rows=700), backend="native", cache=OBJECTS, threads=2)
        for seed in range(2):
            session.run({"x": codes(seed, 700)}, names)
        found.append(program_of(session).program.listing.counts[:, 1].tolist())
    assert found[0] == found[1]
    assert sum(found[0]) >= 1  # how many depends on the instruction set: AMX splits less


def test_one_thread_waits_for_nobody() -> None:
    session = qrun.Session(chain(rows=700), backend="native", cache=OBJECTS, threads=1)
    for seed in range(2):
        session.run({"x": codes(seed, 700)})
    assert sum(program_of(session).program.listing.counts[:, 1].tolist()) == 1


def test_arrays_of_any_strides_are_taken() -> None:
    native = qrun.Session(chain(), backend="native", cache=OBJECTS)
    x = codes(3)
    want = native.run({"x": x})["y3"]
    wide = np.zeros((66, 140), np.uint8)
    wide[::2, ::2] = x
    assert np.array_equal(native.run({"x": wide[::2, ::2]})["y3"], want)
    assert np.array_equal(native.run({"x": x[::-1]})["y3"], want[::-1])


def test_several_threads_may_run_a_session() -> None:
    model = chain(middle="LpNormalization")
    want = {seed: qrun.Session(model, backend="reference").run({"x": codes(seed)}) for seed in range(4)}
    native = qrun.Session(model, backend="native", threads=2, cache=OBJECTS)
    bad: list[int] = []

    def work(seed: int) -> None:
        for _ in range(30):
            got = native.run({"x": codes(seed)})
            bad.extend(seed for n in got if not np.array_equal(got[n], want[seed][n]))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bad == []


def test_events_are_those_of_the_nodes() -> None:
    native = qrun.Session(chain(middle="LpNormalization"), backend="native", cache=OBJECTS, fuse=False)
    native.run({"x": codes(0)})
    result = native.execute({"x": codes(0)}, observe=False)
    assert program_of(native) is not None
    stepwise = native.execute({"x": codes(0)})
    assert [(e.index, e.inputs, e.outputs, e.macs, e.backend) for e in result.events] == [
        (e.index, e.inputs, e.outputs, e.macs, e.backend) for e in stepwise.events
    ]
    spans = [(e.start_ns, e.start_ns + e.duration_ns) for e in result.events if e.duration_ns]
    assert all(a < b <= c for (a, b), (c, _) in zip(spans, spans[1:], strict=False))
    assert sum(b - a for a, b in spans) <= result.duration_ns


def test_other_shapes_make_other_programs() -> None:
    model = chain()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "N"
    same_runs(model, ({"x": codes(rows, rows)} for rows in (1, 5, 0, 1, 64, 5, 33, 7, 1, 1)), times=1)


def test_an_error_within_a_program_names_the_node() -> None:
    """A program over the memory limit gives way to single nodes, and their error says where."""
    model = chain(middle="LpNormalization")
    native = qrun.Session(model, backend="native", cache=OBJECTS, max_memory=10**9)
    native.run({"x": codes(0)})
    native.run({"x": codes(0)})
    native.max_memory = codes(0).nbytes + 100
    with pytest.raises(QrunError) as caught:
        native.run({"x": codes(0)})
    assert any("node" in place for place in caught.value.where)


def test_a_shape_that_another_tensor_gives() -> None:
    """Reshape to the shape of y: the same x with another y is another kernel."""
    nodes = [
        helper.make_node("MaxPool", ["x"], ["p"], kernel_shape=[1, 1]),
        helper.make_node("Shape", ["y"], ["s"]),
        helper.make_node("Reshape", ["p", "s"], ["r"]),
        helper.make_node("Relu", ["r"], ["z"]),
    ]
    inputs = {"x": typed(np.int8, [1, 6, 2, 2]), "y": ["A", "B"]}
    model = make_model(nodes, inputs, {"z": typed(np.int8)}, opset=17)
    native = qrun.Session(model, backend="native", cache=OBJECTS)
    x = np.arange(-12, 12, dtype=np.int8).reshape(1, 6, 2, 2)
    for shape in ((2, 12), (2, 12), (2, 12), (4, 6), (4, 6), (2, 12), (24, 1), (24, 1), (24, 1)):
        z = native.run({"x": x, "y": np.zeros(shape, F)})["z"]
        assert np.array_equal(z, np.maximum(x, 0).reshape(shape))
    made = program_of(native)
    assert made is not None
    assert len(made.program.listing.segments) == 1


def test_zero_points_of_convolutions_need_no_copies_between_them() -> None:
    """What an operand's padding would be does not matter where it has none."""
    engine = Engine.create(cache=OBJECTS)
    rng = np.random.default_rng(9)
    target = Target(np.float32(0.1), np.array([0.02], np.float32), np.float32(0.3), "u8", 77, "exact")
    tasks = []
    for number, zero in enumerate((3, 77)):
        w = rng.integers(-128, 128, (8, 8, 1, 1)).astype(np.int8)
        conv = Conv(engine, (1, 8, 5, 5), w, x_zero_point=np.array(zero, np.uint8), target=target)
        tasks.append(Task(conv, (number,), number + 1))
    schedule = Schedule(engine, tasks, {0: tasks[0].operation.operands[0]}, {}, [2])
    assert [placed.operation for placed in schedule.placement.placed][1:3] == [task.operation for task in tasks]


def test_copies_of_the_same_shape_are_planned_once() -> None:
    engine = Engine.create(cache=OBJECTS)
    w = np.ones((8, 8, 1, 1), np.int8)
    convs = [Conv(engine, (1, 8, 5, 5), w, x_zero_point=np.array(3, np.uint8)) for _ in range(2)]
    tasks = [Task(conv, (f"x{number}",), f"y{number}") for number, conv in enumerate(convs)]
    given = {f"x{number}": conv.operands[0] for number, conv in enumerate(convs)}
    schedule = Schedule(engine, tasks, given, {}, ["y0", "y1"])
    copies = [placed.operation for placed in schedule.placement.placed if placed.operation not in convs]
    assert len(copies) == 4
    assert len(set(copies)) == 2
