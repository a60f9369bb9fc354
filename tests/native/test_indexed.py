"""Native Gather, Scatter and their kin: the definition's, index after index, within their memory, and refused alike."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from helpers.native import ISAS, OBJECTS, Array, engine
from helpers.placed import assert_bits, natively, run_placed, same_everywhere, same_refusal, same_runs
from helpers.support import node_model
from helpers.widths import every_width, thin_width

import qrun
from qrun.native.errors import Declined, Undecided
from qrun.native.kernels.indexed import Gathered, NamedRows, Scattered
from qrun.native.machine.operation import Operand

pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")
Shape = tuple[int, ...]
GATHERING: list[tuple[str, Shape, Shape, dict[str, Any]]] = [
    ("Gather", (7,), (), {}),
    ("Gather", (7, 5), (3,), {}),
    ("Gather", (7, 40), (2, 3), {}),
    ("Gather", (3, 7, 5), (4, 1), {"axis": 1}),
    ("Gather", (3, 1000), (1, 1), {}),
    ("Gather", (2, 3, 9), (6,), {"axis": -1}),
    ("GatherElements", (9,), (40,), {}),
    ("GatherElements", (3, 4, 5), (3, 6, 5), {"axis": 1}),
    ("GatherElements", (3, 4), (3, 9), {"axis": -1}),
    ("GatherElements", (5, 33), (2, 33), {}),
    ("GatherND", (4, 5, 6), (3, 2), {}),
    ("GatherND", (4, 5, 6), (2, 7, 3), {}),
    ("GatherND", (2, 3, 5, 6), (2, 3, 4, 1), {"batch_dims": 2}),
    ("GatherND", (4, 50), (1,), {}),
]


def indices_of(op_type: str, shape: Shape, form: Shape, attributes: dict[str, Any], rng: np.random.Generator) -> Array:
    """Indices from both ends of each axis."""
    if op_type == "GatherND":
        lead = attributes.get("batch_dims", 0)
        ends = np.array(shape[lead : lead + form[-1]])
        return np.asarray(rng.integers(-ends, ends, form))
    size = shape[attributes.get("axis", 0)]
    return np.asarray(rng.integers(-size, size, form))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("op_type", "shape", "form", "attributes"), GATHERING)
def test_gathering_nodes(op_type: str, shape: Shape, form: Shape, attributes: dict[str, Any], threads: int) -> None:
    rng = np.random.default_rng(1)
    for dtype in (np.uint8, np.float16, np.float32, np.float64, np.bool_):
        for index in (np.int64, np.int32) if op_type != "GatherND" else (np.int64,):
            x = rng.integers(0, 100, shape).astype(dtype)
            indices = indices_of(op_type, shape, form, attributes, rng).astype(index)
            for constants in ([], [0]):
                natively(
                    *node_model(op_type, [x, indices], attributes, outputs=[dtype], constants=constants),
                    threads=threads,
                )


@every_width
def test_rows_of_all_lengths(isa: str) -> None:
    """Every bit is copied, and nothing besides what is named."""
    rng = np.random.default_rng(2)
    for dtype in (np.uint8, np.int16, np.float32, np.int64):
        for run in (1, 2, 3, 5, 8, 16, 31, 64, 100, 257, 1030):
            x = np.frombuffer(rng.bytes(2 * 5 * run * np.dtype(dtype).itemsize), dtype).reshape(2, 5, run)
            indices = np.array([4, -5, 0, -1], np.int32)
            places = NamedRows((5,), 2, False, 1, run)
            operation = Gathered(engine(isa), x.dtype, indices.dtype, (x.shape, (4,)), places, (2, 4, run))
            for at_end in (True, False):
                got = run_placed(engine(isa), operation, [x, indices], (0, 0, 0), at_end)
                assert got.tobytes() == x[:, [4, 0, 0, 4]].tobytes(), (dtype, run)


@every_width
def test_an_index_that_names_nothing_is_not_read(isa: str) -> None:
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    for bad in (5, -6, 2**31 - 1, -(2**31), 2**62, -(2**63)):
        indices = np.array([1, bad, 2])
        operation = Gathered(
            engine(isa), x.dtype, indices.dtype, (x.shape, (3,)), NamedRows((5,), 1, False, 1, 3), (3, 3)
        )
        with pytest.raises(Undecided):
            engine(isa).run(operation, [x, indices])


@pytest.mark.parametrize(("op_type", "shape", "form", "attributes"), GATHERING)
def test_the_first_index_out_of_range_is_named(
    op_type: str, shape: Shape, form: Shape, attributes: dict[str, Any]
) -> None:
    rng = np.random.default_rng(3)
    x, indices = np.ones(shape, np.float32), indices_of(op_type, shape, form, attributes, rng)
    model, feeds = node_model(op_type, [x, indices], attributes)
    session = qrun.Session(model, cache=OBJECTS)
    for _ in range(3):
        session.run(feeds)
    wrong = indices.copy()
    wrong.reshape(-1)[-1] = 100000
    with pytest.raises(qrun.OperatorError, match="100000"):
        session.run({**feeds, "i1": wrong})
    session.run(feeds)
    same_refusal(model, {**feeds, "i1": wrong})


def test_other_shapes_of_indices() -> None:
    """Indices come in other numbers, none of them too, between runs of the first ones."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(9, 20)).astype(np.float32)
    model, _ = node_model("Gather", [x, np.zeros((2, 3), np.int64)], constants=[0], opset=13)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    session = qrun.Session(model, cache=OBJECTS, threads=2)
    name = model.graph.input[0].name
    for form in ((2, 3), (5,), (2, 3), (0,), (), (3, 0), (40, 7), (2, 3)):
        indices = rng.integers(-9, 9, form)
        for _ in range(2):
            assert_bits(session.run({name: indices})["y0"], x[indices], f"{form}")


SCATTERING: list[tuple[str, Shape, Shape, int]] = [
    ("ScatterElements", (9,), (40,), 0),
    ("ScatterElements", (3, 4, 5), (3, 6, 5), 1),
    ("ScatterElements", (3, 4), (3, 9), -1),
    ("ScatterElements", (5, 33), (2, 33), 0),
    ("ScatterElements", (7, 3, 70), (7, 2, 70), 1),
    ("ScatterND", (7, 5), (3, 1), 0),
    ("ScatterND", (7, 70), (20, 1), 0),
    ("ScatterND", (4, 5, 6), (3, 2), 0),
    ("ScatterND", (4, 5, 6), (2, 7, 3), 0),
    ("ScatterND", (3, 1000), (1, 1), 0),
]
"""Operator, shapes of data and indices, axis."""
REDUCTIONS = ("none", "add", "mul", "max", "min")


def case(op_type: str, shape: Shape, form: Shape, axis: int, dtype: Any, seed: int) -> list[Array]:
    """Data, indices from both ends, many of them equal, and updates."""
    rng, dtype = np.random.default_rng([71, seed]), np.dtype(dtype)
    ends = np.array(shape[: form[-1]]) if op_type == "ScatterND" else np.array(shape[axis])
    indices = np.asarray(rng.integers(-ends, ends, form))
    updates = (*form[:-1], *shape[form[-1] :]) if op_type == "ScatterND" else form

    def numbers(shape: Shape) -> Array:
        if dtype.kind == "b":
            return rng.random(shape) < 0.5
        if dtype.kind in "iu":
            return np.frombuffer(rng.bytes(math.prod(shape) * dtype.itemsize), dtype).reshape(shape)
        made = np.where(rng.random(shape) < 0.2, rng.choice([0.0, -0.0], shape), rng.normal(0, 3, shape))
        return np.asarray(made, dtype)

    return [numbers(shape), indices, numbers(updates)]


def wanted(op_type: str, data: Array, indices: Array, updates: Array, axis: int, how: str) -> Array:
    """By one element after the other, in Python's numbers."""
    made: dict[Shape, Any] = {place: data[place].item() for place in np.ndindex(*data.shape)}
    for place in np.ndindex(*updates.shape):
        if op_type == "ScatterND":
            lead = indices.ndim - 1
            named = (*indices[place[:lead]].tolist(), *place[lead:])
        else:
            named = tuple(int(indices[place]) if n == axis % data.ndim else i for n, i in enumerate(place))
        named = tuple(n % size for n, size in zip(named, data.shape, strict=True))
        old, new = made[named], updates[place].item()
        made[named] = {
            "none": lambda a, b: b, "add": lambda a, b: a + b, "mul": lambda a, b: a * b, "max": max, "min": min,
        }[how](old, new)  # fmt: skip
    if data.dtype.kind in "iu":
        made = {k: v % 2 ** (8 * data.itemsize) for k, v in made.items()}
        return np.array([*made.values()], f"u{data.itemsize}").view(data.dtype).reshape(data.shape)
    return np.array([*made.values()]).astype(data.dtype).reshape(data.shape)


@thin_width(bool, *(f"{s}int{n}" for s in ("", "u") for n in (8, 16, 32, 64)), np.float64, name="dtype")
def test_rows_that_indices_name(isa: str, dtype: Any) -> None:
    for seed, (op_type, shape, form, axis) in enumerate(SCATTERING):
        data, indices, updates = case(op_type, shape, form, axis, dtype, seed)
        at = axis % len(shape)
        places = (
            NamedRows(shape[: form[-1]], 1, True, 1, math.prod(shape[form[-1] :]))
            if op_type == "ScatterND"
            else NamedRows((shape[at],), math.prod(shape[:at]), True, math.prod(shape[at + 1 :]), 1)
        )
        for how in REDUCTIONS[: 3 if data.dtype.kind == "f" else 5]:
            want = wanted(op_type, data, indices, updates, axis, how)
            for kind in (np.int64, np.int32):
                given = [data, indices.astype(kind), updates]
                for threads in (1, 3):
                    native = engine(isa, threads)
                    made = Scattered(native, [Operand(x.shape, x.dtype) for x in given], places, how)
                    for at_end in (True, False):
                        got = run_placed(native, made, given, (0,) * 4, at_end)
                        assert got.tobytes() == want.tobytes(), (op_type, shape, how)


@every_width
def test_an_index_that_names_nothing_changes_nothing_else(isa: str) -> None:
    """The copy lies between pages that must not be touched."""
    x, updates = np.arange(15, dtype=np.float32).reshape(5, 3), np.ones((3, 3), np.float32)
    for bad in (5, -6, 2**31 - 1, -(2**31), 2**62, -(2**63)):
        given = [x, np.array([1, bad, 2]).reshape(3, 1), updates]
        operands = [Operand(a.shape, a.dtype) for a in given]
        operation = Scattered(engine(isa), operands, NamedRows((5,), 1, True, 1, 3), "none")
        for at_end in (True, False):
            with pytest.raises(Undecided):
                run_placed(engine(isa), operation, given, (0,) * 4, at_end)


def is_native(op_type: str, how: str, dtype: Any) -> bool:
    kind = np.dtype(dtype)
    if how == "none":
        return kind.itemsize <= 8
    return kind.kind in "biu" or (how in ("add", "mul") and kind in (np.float32, np.float64))


@pytest.mark.parametrize("how", REDUCTIONS)
@pytest.mark.parametrize(("op_type", "shape", "form", "axis"), SCATTERING)
def test_scattering_nodes(op_type: str, shape: Shape, form: Shape, axis: int, how: str) -> None:
    for dtype in (np.float32, np.float16, np.float64, np.int64, np.int32, np.uint8, np.bool_):
        given = case(op_type, shape, form, axis, dtype, 7)
        attributes: dict[str, Any] = {"reduction": how} | ({"axis": axis} if op_type != "ScatterND" else {})
        for constants in ([], [1]):
            model, feeds = node_model(op_type, given, attributes, outputs=[dtype], opset=18, constants=constants)
            (event,) = same_everywhere(model, feeds, threads=1 + len(constants)).events
            assert (event.backend == "native") == is_native(op_type, how, dtype), (dtype, event.why)


def test_sums_of_float32_are_rounded_once() -> None:
    data, indices = np.ones(2, np.float32), np.zeros(3, np.int64)
    updates = np.array([2.0**-24, 2.0**-24, 2.0**-24], np.float32)
    result = natively(*node_model("ScatterElements", [data, indices, updates], {"reduction": "add"}, opset=18))
    assert result.outputs["y0"].tolist() == [1 + 2.0**-22, 1]


def test_the_ancestor() -> None:
    given = case("ScatterElements", (3, 4), (3, 2), 1, np.float32, 8)
    natively(*node_model("Scatter", given, {"axis": 1}, opset=9))


@pytest.mark.parametrize(("op_type", "shape", "form", "axis"), SCATTERING)
def test_the_first_index_to_scatter_by_that_is_out_of_range_is_named(
    op_type: str, shape: Shape, form: Shape, axis: int
) -> None:
    data, indices, updates = case(op_type, shape, form, axis, np.float32, 9)
    attributes = {"axis": axis} if op_type != "ScatterND" else {}
    model, feeds = node_model(op_type, [data, indices, updates], attributes, opset=16)
    session = qrun.Session(model, cache=OBJECTS)
    for _ in range(3):
        session.run(feeds)
    wrong = indices.copy()
    wrong.reshape(-1)[-1] = 100000
    with pytest.raises(qrun.OperatorError, match="100000"):
        session.run({**feeds, "i1": wrong})
    session.run(feeds)
    same_refusal(model, {**feeds, "i1": wrong})


def test_other_shapes() -> None:
    """Numbers of indices, none of them too, between runs of the first ones;
    indices that are views of every other one."""
    rng = np.random.default_rng(72)
    model, _ = node_model("ScatterND", case("ScatterND", (9, 20), (3, 1), 0, np.float32, 1), opset=16)
    for value in (*model.graph.input[1:], model.graph.output[0]):
        value.type.tensor_type.ClearField("shape")
    feeds = []
    for count in (3, 5, 3, 0, 40, 3):
        indices = rng.integers(-9, 9, (2 * count, 1))[::2]
        updates = rng.normal(size=(20, count)).astype(np.float32).T
        feeds.append({"i0": rng.normal(size=(20, 9)).astype(np.float32).T, "i1": indices, "i2": updates})
    same_runs(model, feeds, times=2, threads=2)


def test_what_is_declined() -> None:
    operands = [Operand((2,), np.dtype(object)), Operand((1, 1), np.dtype(np.int64)), Operand((1,), np.dtype(object))]
    with pytest.raises(Declined, match="no native copies of object"):
        Scattered(engine("generic"), operands, NamedRows((2,), 1, True, 1, 1), "none")
