"""Native Gather, GatherElements and GatherND by indices of the run:
bit for bit, within their memory, and refused alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.native import ISAS, OBJECTS, Array, engine
from helpers.placed import assert_bits, run_placed, same_everywhere, same_refusal
from helpers.support import node_model
from helpers.widths import every_width

import qrun
from qrun.native.errors import Undecided
from qrun.native.kernels.indexed import Gathered, NamedRows

pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")
Shape = tuple[int, ...]
NODES: list[tuple[str, Shape, Shape, dict[str, Any]]] = [
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
@pytest.mark.parametrize(("op_type", "shape", "form", "attributes"), NODES)
def test_nodes(op_type: str, shape: Shape, form: Shape, attributes: dict[str, Any], threads: int) -> None:
    rng = np.random.default_rng(1)
    for dtype in (np.uint8, np.float16, np.float32, np.float64, np.bool_):
        for index in (np.int64, np.int32) if op_type != "GatherND" else (np.int64,):
            x = rng.integers(0, 100, shape).astype(dtype)
            indices = indices_of(op_type, shape, form, attributes, rng).astype(index)
            for constants in ([], [0]):
                model, feeds = node_model(op_type, [x, indices], attributes, outputs=[dtype], constants=constants)
                (event,) = same_everywhere(model, feeds, threads=threads).events
                assert event.backend == "native", (dtype, index, event.why)


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


@pytest.mark.parametrize(("op_type", "shape", "form", "attributes"), NODES)
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


def test_other_shapes() -> None:
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


def test_what_the_reference_gathers() -> None:
    x = np.ones((2, 3), np.float32)
    for op_type, inputs, dtype, why in (
        ("Gather", [x, np.zeros(0, np.int64)], np.float32, "no elements"),
        ("Gather", [x[:, :0], np.zeros(2, np.int64)], np.float32, "no elements"),
        ("Gather", [x.astype(str).astype(object), np.zeros(2, np.int64)], np.dtype(object), "no native copies"),
        ("Gather", [x.astype(np.complex128), np.zeros(2, np.int64)], np.complex128, "no native copies"),
        ("GatherElements", [x, np.zeros((1, 2), np.int64)], np.float32, "its indices are not as many as data"),
    ):
        model, feeds = node_model(op_type, inputs, outputs=[dtype])
        (event,) = qrun.Session(model, cache=OBJECTS).execute(feeds).events
        assert event.backend == "reference"
        assert event.why.startswith(why)
