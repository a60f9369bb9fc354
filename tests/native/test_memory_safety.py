"""Kernels touch only what the plan says, beside unreadable memory, and write every byte of a result over poison."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import edges, graphs
from helpers.emulation import emulated_sets, emulation
from helpers.models import make_model, typed
from helpers.native import ISAS, OBJECTS, SETS, THOROUGH, Array, Guarded, codes, emulating, engine, needs_amx, thin
from helpers.native_cases import run, touched
from helpers.placed import same_runs
from helpers.poison import POISON, poisoned
from onnx import ModelProto, TensorProto, helper

import qrun
import qrun.native.kernels.copied
import qrun.native.kernels.layout
import qrun.native.kernels.product
import qrun.native.kernels.results
import qrun.native.kernels.tiled
import qrun.native.machine.call
import qrun.native.machine.compile
import qrun.native.machine.engine
from qrun.native import kernels, machine
from qrun.native.kernels.conv import Conv
from qrun.native.kernels.copy import Copy, Move
from qrun.native.machine.engine import Engine, stage
from qrun.native.machine.operation import Operand
from qrun.native.plan.items import Task
from qrun.native.plan.program import Program
from qrun.native.plan.schedule import Schedule
from qrun.native.proof.epilogue import Target

pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")

F = np.float32


def guard_constants(monkeypatch: pytest.MonkeyPatch, guard: Guarded, at_end: bool) -> None:
    """Put every array of a plan against a guard page, as far as its 64-byte alignment allows."""
    modules = (
        machine.engine, kernels.layout, kernels.product, kernels.results, machine.call,
        kernels.tiled, kernels.copied,
    )  # fmt: skip
    guard.hold(monkeypatch, at_end, *modules)
    monkeypatch.setattr(kernels.tiled, "tables", kernels.tiled.tables.__wrapped__)


@pytest.mark.parametrize("at_end", [True, False])
@thin("u8", "s8", None, name="out", products=True)
def test_nothing_beyond_the_buffers_is_touched(
    isa: str, at_end: bool, out: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(isa, at_end, out, monkeypatch)


@pytest.mark.parametrize("at_end", [True, False])
@pytest.mark.parametrize("out", ["u8", "s8", None])
@needs_amx
def test_nothing_beyond_the_buffers_is_touched_by_tiles(
    at_end: bool, out: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qrun.native.kernels.tiled, "_WASTE", 1 << 40)
    check("amx", at_end, out, monkeypatch)


@pytest.mark.parametrize("at_end", [True, False])
@pytest.mark.parametrize("out", ["u8", "s8"])
@pytest.mark.skipif("avx2" not in ISAS, reason="this CPU has no AVX2")
def test_nothing_beyond_the_buffers_is_touched_by_clipped_products(
    at_end: bool, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qrun.native.kernels.copied, "SMALL", 255)
    monkeypatch.setattr(qrun.native.kernels.copied, "_FEW", 1)
    check("avx2", at_end, out, monkeypatch)


def check(isa: str, at_end: bool, out: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = Guarded()
    guard_constants(monkeypatch, guard, at_end)
    rng = np.random.default_rng(2)
    engine = Engine.create(isa, OBJECTS)
    channels = engine.isa.lanes * engine.isa.vectors
    tiles = [((1, c, r), (m, c, 1), {}) for c in (4, 7) for r in (1, 4, 5, 6) for m in (1, channels - 1, channels + 1)]
    cases = edges.GUARDED + (tiles if isa in THOROUGH else tiles[::3])
    for number, (shape, w_shape, geometry) in enumerate(cases):
        kind = ("u8", "s8")[number % 2]
        w, x_zero = codes(rng, w_shape, "s8"), codes(rng, (), kind)
        scale = np.full(w_shape[0], 0.003, F) if number % 3 else np.full(w_shape[0], np.nan, F)
        target = None if out is None else Target(F(0.1), scale, F(0.1), out, 5)
        plan = Conv(engine, shape, w, x_zero_point=x_zero, target=target, **geometry)
        x = codes(rng, shape, kind)
        source = stage(x, plan, plan.tight, 0)
        held, y = (guard.take(nbytes, at_end) for nbytes in touched(plan))
        flat = np.ascontiguousarray(source).reshape(-1).view(np.uint8)[: held.size]
        held[: flat.size] = flat
        y[:] = 0xA5
        monkeypatch.setattr(qrun.native.machine.call, "_own", threading.local())
        engine.execute(plan.tight, [held, y])
        want = np.ascontiguousarray(np.moveaxis(run(plan, x), 1, -1)).reshape(-1).view(np.uint8)
        assert np.array_equal(y, want), (shape, w_shape, geometry)
        if qrun.native.kernels.tiled._WASTE > 100:
            assert plan.tiled or not shape[1] or "group" in geometry


def test_buffers_that_are_too_small_are_refused() -> None:
    engine = Engine.create()
    plan = Conv(engine, (1, 4, 5), np.zeros((3, 4, 1), np.int8), x_zero_point=np.uint8(0))
    x, y = (np.zeros(nbytes, np.uint8) for nbytes in touched(plan))
    engine.execute(plan.tight, [x, y])
    with pytest.raises(ValueError, match="smaller than the plan needs"):
        engine.execute(plan.tight, [x[1:], y])
    with pytest.raises(ValueError, match="smaller than the plan needs"):
        engine.execute(plan.tight, [x, y[1:]])


ZERO_POINTS = (None, 0, 3)
STACKS = [
    (a, b)
    for m, k, n in itertools.product((0, 3), (0, 5), (0, 4))
    for a, b in itertools.product(((m, k), (1, m, k), (2, m, k), (3, m, k)), ((k, n), (1, k, n), (2, k, n), (3, k, n)))
    if len(a) < 3 or len(b) < 3 or a[0] == b[0] or 1 in (a[0], b[0])
]


def _product(form: str, a: tuple[int, ...], b: tuple[int, ...], zero: int | None) -> onnx.ModelProto:
    """MatMulInteger; with Cast and Mul; of what DynamicQuantizeLinear makes."""
    codes, kind = ("codes", TensorProto.FLOAT) if form == "dynamic" else ("a", TensorProto.UINT8)
    tensors: dict[str, Any] = {"b": np.ones(b, np.int8), "half": np.float32(0.5)}
    if form != "dynamic" and zero is not None:
        tensors["zero"] = np.uint8(zero)
    inputs = [codes, "b", *["zero"] * (form == "dynamic" or zero is not None)]
    nodes = [helper.make_node("DynamicQuantizeLinear", ["a"], ["codes", "scale", "zero"])] * (form == "dynamic")
    nodes.append(helper.make_node("MatMulInteger", inputs, ["sums"]))
    if form == "scaled":
        nodes.append(helper.make_node("Cast", ["sums"], ["real"], to=TensorProto.FLOAT))
        nodes.append(helper.make_node("Mul", ["real", "half"], ["y"]))
    result = {"y": None} if form == "scaled" else {"sums": typed(np.int32)}
    return make_model(nodes, {"a": typed(kind, a)}, result, tensors, opset=17)


@emulating
@pytest.mark.parametrize("form", ["plain", "scaled", "dynamic"])
@pytest.mark.parametrize("isa", SETS)
def test_products_of_stacks_with_axes_of_any_length(isa: str, form: str) -> None:
    with poisoned():
        for number, (a, b) in enumerate(STACKS):
            zero = ZERO_POINTS[number % 3]
            model = _product(form, a, b, zero)
            feed: dict[str, Any] = {"a": np.ones(a, np.float32 if form == "dynamic" else np.uint8)}
            same_runs(model, feed, isa=isa, threads=1 + number % 2)


def test_a_program_whose_calls_end_before_the_result_is_refused() -> None:
    x = Operand((4, 8), np.dtype(np.uint8))
    half = Copy(engine(ISAS[0]), (x, x), ("plain", "plain"), [Move(2, 0, 1, 0, 1), Move(8, 1, 1, 1, 1)])
    with pytest.raises(ValueError, match="kernels write 16 of a result's 32 bytes"):
        Schedule(engine(ISAS[0]), [Task(half, ("x",), "y")], {"x": x}, {}, ["y"])


def test_what_no_call_writes_holds_poison() -> None:
    """Rows left out in the middle, which no plan can tell."""
    x = Operand((4, 8), np.dtype(np.uint8))
    some = Copy(engine(ISAS[0]), (x, x), ("plain", "plain"), [Move(2, 0, 3, 0, 3), Move(8, 1, 1, 1, 1)])
    array = np.arange(32, dtype=np.uint8).reshape(4, 8)
    alone = Program.of(Schedule(engine(ISAS[0]), [Task(some, ("x",), "y")], {"x": x}, {}, ["y"]))
    with poisoned():
        for _ in range(2):
            for made in (engine(ISAS[0]).run(some, [array]), _run(alone, array)):
                assert np.array_equal(made[::3], array[::3])
                assert (made[1:3] == POISON).all()


def _run(program: Program, array: np.ndarray[Any, Any]) -> Any:
    from qrun.memory import Budget

    return program.run({"x": array}, lambda item, arrays: (), Budget(None)).values["y"]


SETS = [*ISAS, *emulated_sets()]
CLAIM = re.compile(
    r"^  (%[\w.]+) = (atomicrmw add ptr %next, i64 1 monotonic)\n  (%[\w.]+) = icmp ult i64 \1, (%?[\w.]+)$", re.M
)
ROUNDS = "cmpxchg ptr %next"
"""Tiles that wait for those before them stay in order."""
BACKWARDS = r"  \1.raw = \2\n  \3 = icmp ult i64 \1.raw, \4\n  \1.end = sub i64 \4, 1\n  \1 = sub i64 \1.end, \1.raw"


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("backwards")


@pytest.fixture
def backwards() -> Iterator[None]:
    forwards, seen = qrun.native.machine.compile.emit_code, list[str]()

    def emitted(spec: Any) -> tuple[str, tuple[str, ...]]:
        text, names = forwards(spec)
        made, found = CLAIM.subn(BACKWARDS, text)
        assert found == 1 or ROUNDS in text, spec
        seen.append(spec.kind)
        return made, names

    with emulation(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(qrun.native.machine.compile, "emit_code", emitted)
        yield
    assert seen


def check_order(model: ModelProto, feeds: dict[str, Array], isa: str, objects: Path, label: str) -> None:
    names = [name for node in model.graph.node for name in node.output]
    ends = [value.name for value in model.graph.output]
    reference = qrun.Session(model, backend="reference", fuse=True)
    session = qrun.Session(model, backend="native", isa=isa, threads=2, cache=objects / isa, fuse=True)
    engine = session._engine
    assert engine is not None
    engine.pool = None
    for asked in (names, ends, ends):
        want = reference.run(feeds, asked)
        for name, array in session.run(feeds, asked).items():
            assert np.array_equal(array, want[name], equal_nan=array.dtype.kind == "f"), (label, isa, name)


@pytest.mark.usefixtures("backwards")
@pytest.mark.parametrize("isa", SETS)
def test_graphs(isa: str, objects: Path) -> None:
    first = 8000 + 8 * SETS.index(isa)
    for seed in range(first, first + (24 if isa == SETS[0] else 8)):
        model = graphs.random_graph(seed)
        check_order(model, graphs.feed(model, seed), isa, objects, f"seed {seed}")


@pytest.mark.usefixtures("backwards")
@pytest.mark.parametrize("isa", SETS)
def test_convolutions_of_few_rows_and_channels(isa: str, objects: Path) -> None:
    """Several images, so that they are tiles, with as many rows as a block has, or a few less or more."""
    rng = np.random.default_rng(11)
    for rows in (1, 2, 3, 4, 5, 6, 7, 8, 9, 17):
        for channels in (1, 3, 8, 9, 15, 16, 17, 33):
            model = convolution(rng, rows, channels)
            feeds = {"x": rng.integers(0, 256, (3, 17, rows)).astype(np.uint8)}
            check_order(model, feeds, isa, objects, f"{rows} rows, {channels} channels")


def convolution(rng: np.random.Generator, rows: int, channels: int) -> ModelProto:
    numbers = {
        "s": np.float32(0.02), "z": np.uint8(rng.choice([0, 3, 128])), "ys": np.float32(1.5), "yz": np.uint8(100),
        "w": rng.integers(-128, 128, (channels, 17, 1)).astype(np.int8), "wz": np.int8(0),
    }  # fmt: skip
    node = helper.make_node("QLinearConv", ["x", "s", "z", "w", "s", "wz", "ys", "yz"], ["y"])
    return make_model(
        [node], {"x": typed(TensorProto.UINT8, [3, 17, rows])}, {"y": typed(TensorProto.UINT8)}, numbers, opset=17
    )
