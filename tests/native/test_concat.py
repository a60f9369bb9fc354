"""Concatenations of 8-bit tensors, with and without requantization: axes, gaps, inputs in place, networks."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from helpers import models
from helpers.aarch64 import Foreign, every_aarch64, needs_qemu
from helpers.native import ISAS, OBJECTS, TYPES, Array, Guarded, codes, engine, every_isa, thin
from helpers.placed import natively, run_placed, same_everywhere, same_refusal, same_runs, schedules
from helpers.pointwise import FILL, Rows, guarded, rows_of
from helpers.support import MS, assert_equal, node_model
from onnx import helper, numpy_helper

import qrun
from qrun.native.errors import Declined
from qrun.native.kernels.rearrange import Concat
from qrun.native.machine.engine import Engine

F = np.float32


def made(
    native: Engine, shape: tuple[int, ...], lengths: tuple[int, ...], axis: int, kinds: str = "u", seed: int = 30
) -> tuple[Concat, list[Array], Array]:
    """A concatenation of uint8 ("u", a table), int8 ("s", a table) and copied ("=") inputs to uint8, and its result."""
    rng = np.random.default_rng(seed)
    arrays, tables, wants = [], [], []
    for i, length in enumerate(lengths):
        kind = kinds[i % len(kinds)]
        x = codes(rng, (*shape[:axis], length, *shape[axis + 1 :]), "s8" if kind == "s" else "u8")
        table = None if kind == "=" else codes(rng, (256,), "u8")
        arrays.append(x)
        tables.append(table)
        wants.append(x if table is None else table[x.view(np.uint8)])
    shapes, types = [x.shape for x in arrays], [x.dtype for x in arrays]
    operation = Concat(native, shapes, axis, tables, x_types=types, y_type=np.dtype(np.uint8))
    return operation, arrays, np.concatenate(wants, axis)


@every_isa
@pytest.mark.parametrize("threads", [1, 3])
def test_every_axis(isa: str, threads: int) -> None:
    native = engine(isa, threads)
    shapes = [(5,), (2, 3), (2, 3, 4), (2, 3, 4, 5), (1, 3, 40, 50), (2, 1, 3, 2, 4), (0, 3, 2)]
    for shape in shapes:
        for axis in range(len(shape)):
            for lengths in ((3, 70, 1), (64, 0, 65), (4,)):
                operation, arrays, want = made(native, shape, lengths, axis, "u=s")
                got = native.run(operation, arrays)
                assert_equal(np.ascontiguousarray(got), want, f"{shape} {axis} {lengths}")


@pytest.mark.parametrize("at_end", [True, False])
@every_isa
def test_gaps_and_guards(isa: str, at_end: bool) -> None:
    guard, native = Guarded(), engine(isa)
    v = 4 * native.isa.lanes
    for shape, axis in (((1, 1, 3), 1), ((5, 1), 1), ((2, 3, 1), 2)):
        for lengths in ((v - 1, 1), (v, v + 1), (2, 3 * v), (v, 0, 1)):
            operation, arrays, want = made(native, shape, lengths, axis, "u=s")
            total = sum(lengths)
            for extra, last in product((0, 3), (0, 5)):
                strides = [x.shape[axis] + extra if extra else 0 for x in arrays] + [total + last if last else 0]
                got = Rows(operation, strides, guarded(guard, at_end)).run(native, arrays)
                assert np.array_equal(got, rows_of(want, operation.order)), (shape, lengths, strides)


def test_inputs_in_place_are_left_alone() -> None:
    native = engine(ISAS[0])
    operation, arrays, want = made(native, (1, 1, 3, 2), (5, 70, 9), 1, "u=")
    assert operation.parts == (0, 5, 75)
    assert operation.copied == (False, True, False)
    sections = [section for section in operation.sections((0, 84, 0, 0)) if not section.extents[1]]
    assert {place for section in sections for place in (0, 1, 2) if section.extents[place]} == {0, 2}
    result = np.full(6 * 84, FILL, np.uint8)
    buffers = [np.ascontiguousarray(np.moveaxis(x, 1, -1)).reshape(-1) for x in arrays]
    native.execute(sections, [*buffers, result])
    rows = rows_of(want, "channels")
    rows[:, 5:75] = FILL
    assert np.array_equal(result.reshape(6, 84), rows)


def test_tables_that_change_nothing_are_copies() -> None:
    codes_of = np.arange(256, dtype=np.uint8)
    types = [np.dtype(np.uint8), np.dtype(np.int8)]
    tables = [codes_of, codes_of]
    operation = Concat(engine(ISAS[0]), [(2, 3)] * 2, 1, tables, x_types=types, y_type=types[0])
    assert operation.copied == (True, False)
    assert operation.tight[0].spec.form == "copy"


def test_what_is_refused() -> None:
    native, u8 = engine(ISAS[0]), np.dtype(np.uint8)
    with pytest.raises(Declined, match="more than 1024 tensors"):
        Concat(engine(ISAS[0]), [(1, 1)] * 1025, 1, [None] * 1025, x_types=[np.dtype(np.uint8)] * 1025,
               y_type=np.dtype(np.uint8))  # fmt: skip
    with pytest.raises(Declined, match="8-bit"):
        Concat(native, [(3,)], 0, [np.zeros(256, np.uint8)], x_types=[np.dtype(F)], y_type=u8)
    with pytest.raises(Declined, match="no native copies of complex128"):
        Concat(native, [(3,)], 0, [None], x_types=[np.dtype(complex)], y_type=np.dtype(complex))
    with pytest.raises(ValueError, match="axis"):
        Concat(native, [(3,)], 1, [None], x_types=[u8], y_type=u8)
    with pytest.raises(ValueError, match="copied"):
        Concat(native, [(3,)], 0, [None], x_types=[np.dtype(np.int8)], y_type=u8)
    with pytest.raises(ValueError, match="tables"):
        Concat(native, [(3,)], 0, [np.zeros(255, np.uint8)], x_types=[u8], y_type=u8)


@needs_qemu
@every_aarch64
def test_aarch64(isa: str, tmp_path: Path) -> None:
    native, found = Foreign(isa), []
    for shape, axis in product(((2, 3, 4, 5), (5, 33)), (0, 1)):
        operation, arrays, want = made(native, shape, (15, 16, 33, 2), axis, "u=s")
        found.append((native.run(operation, arrays), want))
    native.finish(tmp_path)
    for got, want in found:
        assert_equal(np.ascontiguousarray(got), want)


def joined(axis: int, scales: tuple[float, ...], kinds: tuple[str, ...], constants: Any = None) -> tuple[Any, Any]:
    """A QLinearConcat of random tensors to uint8 with scale 0.02 and zero point 3."""
    rng = np.random.default_rng(31)
    inputs: list[Any] = [np.array(F(0.02)), np.array(3, np.uint8)]
    for i, (scale, kind) in enumerate(zip(scales, kinds, strict=True)):
        shape = [2, 9, 5, 4]
        shape[axis] = 3 + 40 * i
        inputs += [codes(rng, tuple(shape), kind), np.array(F(scale)), np.array(3).astype(TYPES[kind])]
    parameters = [place for place in range(len(inputs)) if place < 2 or (place - 2) % 3]
    return node_model("QLinearConcat", inputs, {"axis": axis}, domain=MS, outputs=[np.uint8],
                      constants=parameters if constants is None else constants)  # fmt: skip


def typed(dtype: np.dtype[Any], axis: int) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A concatenation of three tensors of any bits, one of them empty."""
    rng = np.random.default_rng([axis, dtype.itemsize])
    shapes = [(*(2, 3, 4, 5)[:axis], n, *(2, 3, 4, 5)[axis + 1 :]) for n in (7, 0, 70)]
    inputs = [rng.integers(0, 2, shape).astype(dtype) * rng.normal(0, 9, shape).astype(dtype) for shape in shapes]
    return node_model("Concat", inputs, {"axis": axis}, outputs=[dtype])


MODELS = {
    **{f"axis {axis}": joined(axis, (0.02, 0.03, 0.015), ("u8", "u8", "s8")) for axis in range(4)},
    "negative": joined(-2, (0.02, 0.03), ("s8", "u8")), "saturated": joined(1, (0.02, 5.0), ("u8", "u8")),
    "ties": joined(1, (0.01, 0.02 / 6), ("u8", "s8")), "bad scale": joined(1, (0.0, -0.02), ("u8", "s8")),
    "nan": joined(1, (np.nan, 0.02), ("u8", "s8")),
    "plain": node_model("Concat", [codes(np.random.default_rng(i), (2, i, 3, 3), "s8") for i in (5, 70)], {"axis": 1},
                        outputs=[np.int8]),
    **{f"plain {np.dtype(dtype)} {axis}": typed(np.dtype(dtype), axis)
       for dtype in (np.int64, F, np.float16, bool, np.float64) for axis in (0, 1, 3)},
    "plain last": node_model("Concat", [codes(np.random.default_rng(i), (2, i), "u8") for i in (5, 70)], {"axis": -1},
                             outputs=[np.uint8]),
}  # fmt: skip


@pytest.mark.parametrize("arith", ["exact", "ort"])
@thin(*MODELS, name="name", other=4)
def test_sessions_equal_the_reference(isa: str, name: str, arith: str) -> None:
    model, feeds = MODELS[name]
    natively(model, feeds, arith=arith, isa=isa, fuse=False)


def test_what_the_lowering_leaves_to_the_reference() -> None:
    for (model, feeds), why in (
        (joined(1, (0.02, 0.03), ("u8", "u8"), [0, 1, 3, 4, 6]), "a parameter of inputs[3] is not constant"),
        (joined(1, (0.02, 0.03), ("u8", "u8"), [1, 3, 4, 6, 7]), "a parameter of inputs[0] is not constant"),
        (
            node_model("Concat", [np.ones(3, complex)] * 2, {"axis": 0}, outputs=[complex]),
            "no native copies of complex128",
        ),
    ):
        event = qrun.Session(model, backend="native", cache=OBJECTS, fuse=False).execute(feeds).events[0]
        assert event.backend == "reference"
        assert why in event.why


def test_refusals_are_those_of_the_reference() -> None:
    x, s, z = np.zeros((2, 3), np.uint8), np.array(F(1)), np.array(0, np.uint8)
    cases = [
        [s, z, x, s, z, x.T, s, z], [s, z, x, s], [s, z], [s, z, x, np.ones(2, F), z], [s, z, x, s, np.array(0, np.int8)],
        [s, z, x.astype(F), s, z], [s, np.zeros(2, np.uint8), x, s, z], [s, z, x, s, z, x, np.ones(2, F), z],
    ]  # fmt: skip
    for inputs in cases:
        fixed = [place for place in range(len(inputs)) if place != 2]
        same_refusal(*node_model("QLinearConcat", inputs, {"axis": 0}, domain=MS, outputs=[np.uint8], constants=fixed))


@every_isa
@pytest.mark.parametrize("at_end", [True, False])
def test_wide_elements_in_either_order(isa: str, at_end: bool) -> None:
    rng = np.random.default_rng(32)
    for threads, dtype in product((1, 2), (F, np.float64, np.int64)):
        arrays = [rng.normal(0, 9, (2, n, 3, 5)).astype(dtype) for n in (5, 0, 33)]
        types, shapes = [x.dtype for x in arrays], [x.shape for x in arrays]
        operation = Concat(engine(isa, threads), shapes, 1, [None] * 3, x_types=types, y_type=np.dtype(dtype))
        want, each = np.concatenate(arrays, 1), np.dtype(dtype).itemsize
        assert operation.order == "any"
        assert_equal(np.ascontiguousarray(engine(isa, threads).run(operation, arrays)), want)
        for order in ("channels", "plain"):
            lying = operation.with_layout(order)
            assert lying.parts == tuple(np.cumsum([0, 5, 0]) * each * (1 if order == "channels" else 15))
            for strides in [(0,) * 4] + [(7 * each, 0, 40 * each, 41 * each)] * (order == "channels"):
                got = run_placed(engine(isa, threads), lying, arrays, strides, at_end)
                assert_equal(np.ascontiguousarray(got), want, f"{order} {strides}")


def test_one_channel_of_a_concatenation_of_floats() -> None:
    """Its elements lie as far apart as the channels of the whole are many."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        main (float[1,4,9,9] x, float[8,4,3,3] w, float[1,4,3,3] v, float[1,1,1,1] k) => (float[1,9,9,9] y) {
            a = Conv<pads=[1,1,1,1]>(x, w)  b = Conv<pads=[1,1,1,1]>(x, v)
            c = Mul(b, k)  d = Sigmoid(c)  y = Concat<axis=1>(a, d) }"""
    )
    random = np.random.default_rng(0)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
    feeds = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    model.graph.initializer.extend(numpy_helper.from_array(feeds.pop(name), name) for name in "wvk")
    del model.graph.input[1:]
    same_runs(model, feeds)


def test_convolutions_write_into_a_concatenation_of_floats() -> None:
    """No copy is made, and a convolution reads the parts where they lie; tensors in C order stay in it."""
    rng, shape = np.random.default_rng(33), (1, 16, 9, 8)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["x", "v"], ["b"]),
        helper.make_node("Concat", ["a", "b"], ["c"], axis=1),
        helper.make_node("Conv", ["c", "u"], ["d"]),
        helper.make_node("Concat", ["d", "c"], ["e"], axis=1),
        helper.make_node("Conv", ["e", "t"], ["y"]),
    ]
    sizes = {"w": (24, 16, 3, 3), "v": (10, 16, 1, 1), "u": (7, 34, 1, 1), "t": (5, 41, 1, 1)}
    constants = {n: rng.normal(0, 1, s).astype(F) for n, s in sizes.items()}
    feeds = {"x": rng.normal(0, 1, shape).astype(F)}
    model = models.make_model(nodes, feeds, "y", constants)
    same_everywhere(model, feeds)
    session = qrun.Session(model, backend="native", cache=OBJECTS)
    for _ in range(3):
        session.run(feeds)
    (schedule,) = schedules(session)
    copies = [call for call in schedule.calls if call.section.spec.kind in ("runs", "blocks", "elements")]
    assert {type(call.placed.operation).__name__ for call in copies} <= {"Copy"}
    assert len(copies) <= 3, "the input's, with and without a border, and the output's own"


def network(equal: bool) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Two convolutions and an addition into a concatenation that is read by a convolution and an output."""
    rng = np.random.default_rng(32)
    constants: dict[str, Any] = {"s": np.array(F(0.02)), "t": np.array(F(0.02 if equal else 0.03)), "z": np.array(7, np.uint8),
                                 "ws": np.array(F(0.01)), "wz": np.array(0, np.int8)}  # fmt: skip
    nodes = []

    def conv(x: str, y: str, outputs: int, inputs: int, scale: str) -> None:
        constants[f"w_{y}"] = rng.integers(-60, 60, (outputs, inputs, 3, 3)).astype(np.int8)
        names = [x, "s", "z", f"w_{y}", "ws", "wz", scale, "z"]
        nodes.append(helper.make_node("QLinearConv", names, [y], pads=[1, 1, 1, 1]))

    conv("x", "a", 24, 3, "s")
    conv("x", "b", 40, 3, "t")
    conv("a", "c", 24, 24, "s")
    nodes.append(helper.make_node("QLinearAdd", ["a", "s", "z", "c", "s", "z", "s", "z"], ["d"], domain=MS))
    parts = [name for n, scale in (("d", "s"), ("b", "t"), ("a", "s")) for name in (n, scale, "z")]
    nodes.append(helper.make_node("QLinearConcat", ["s", "z", *parts], ["e"], domain=MS, axis=1))
    conv("e", "f", 8, 88, "t")
    nodes.append(helper.make_node("QLinearConcat", ["s", "z", "e", "s", "z", "f", "t", "z"], ["g"], domain=MS, axis=1))
    feeds = {"x": codes(rng, (2, 3, 9, 8), "u8")}
    return models.make_model(nodes, feeds, dict.fromkeys("gdf", models.typed(np.uint8)), constants, opset=17), feeds


@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize("threads", [1, 3])
@every_isa
def test_networks_that_concatenate(isa: str, threads: int, equal: bool) -> None:
    model, feeds = network(equal)
    names = [name for node in model.graph.node for name in node.output]
    want = qrun.Session(model, backend="reference").execute(feeds, names).outputs
    session = qrun.Session(model, backend="native", isa=isa, threads=threads, cache=OBJECTS)
    assert {event.backend for event in session.execute(feeds).events} == {"native"}
    for keep in (["g", "d", "f"], ["g"], names):
        for _ in range(3):
            got = session.execute(feeds, keep).outputs
            for name in keep:
                assert_equal(got[name], want[name], f"{name} of {keep}")
