"""Native Max, Min, Sum, Mean and PRelu equal the reference kernels bit for bit."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import edges
from helpers.float32 import numbers
from helpers.native import OBJECTS, Array, assert_left, engine
from helpers.placed import run_placed, same_everywhere
from helpers.support import assert_equal, node_model
from helpers.widths import every_width

import qrun
from qrun.native.kernels.elementwise import Elementwise
from qrun.native.machine.operation import Operand
from qrun.ops import find

F = np.float32
FUNCTIONS = {"max": "Max", "min": "Min", "sum": "Sum", "mean": "Mean", "p_relu": "PRelu"}


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        ends = np.iinfo(dtype)
        return rng.integers(ends.min, ends.max, shape, dtype, endpoint=True)
    with np.errstate(all="ignore"):
        return numbers(rng, math.prod(shape)).reshape(shape).astype(dtype)


def same_bits(got: Array, want: Array, message: str) -> None:
    """As assert_equal, and zeros have the same signs."""
    assert_equal(got, want, message)
    if want.dtype.kind not in "iu":
        assert (np.signbit(got) == np.signbit(want))[~np.isnan(want)].all(), message


@pytest.mark.parametrize("name", FUNCTIONS)
@every_width
def test_operands_that_broadcast(isa: str, name: str) -> None:
    rng = np.random.default_rng(13)
    definition = find("", FUNCTIONS[name], 21)
    assert definition is not None
    for shapes in edges.BROADCASTS:
        x, y = (drawn(rng, shape, F) for shape in shapes)
        if name == "p_relu" and np.broadcast_shapes(*shapes) != shapes[0]:
            continue
        arrays = [x, y] if name == "p_relu" else [x, y, -x, drawn(rng, (1,), F)]
        want = np.asarray(definition(*arrays))
        operation = Elementwise(engine(isa), name, [Operand(v.shape, v.dtype) for v in arrays])
        for order in ("plain", "channels") if operation.order == "any" else ("plain",):
            got = run_placed(engine(isa), operation.lying(order), arrays, (0,) * (len(arrays) + 1), True)
            same_bits(np.ascontiguousarray(got).reshape(want.shape), want, f"{shapes} {order}")


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("op_type", ["Max", "Min", "Sum", "Mean"])
def test_nodes(op_type: str, count: int) -> None:
    rng = np.random.default_rng(count)
    others = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64, np.float64)
    for dtype in (F, np.float16, ml_dtypes.bfloat16, *(others if op_type in ("Max", "Min") else ())):
        inputs = [drawn(rng, ((2, 3, 71), (3, 1), (1,))[place % 3], dtype) for place in range(count)]
        model, feeds = node_model(op_type, inputs, opset=13, outputs=[dtype])
        result = same_everywhere(model, feeds, threads=2)
        assert [event.backend for event in result.events] == ["native"], dtype
        got = qrun.Session(model, cache=OBJECTS).run(feeds)["y0"]
        same_bits(got, qrun.Session(model, backend="reference").run(feeds)["y0"], f"{dtype}")


@pytest.mark.parametrize("dtype", [F, np.float16, ml_dtypes.bfloat16])
def test_p_relu(dtype: Any) -> None:
    rng = np.random.default_rng(3)
    for shape in ((), (5, 1, 1), (2, 5, 3, 7), (1,)):
        inputs = [drawn(rng, (2, 5, 3, 7), dtype), drawn(rng, shape, dtype)]
        model, feeds = node_model("PRelu", inputs, opset=16, outputs=[dtype])
        result = same_everywhere(model, feeds)
        assert [event.backend for event in result.events] == ["native"], shape


def test_zeros_of_both_signs() -> None:
    """+0 is the greater one, whichever comes first; a sum of zeros is +0."""
    x, y = np.array([0.0, -0.0, -0.0, 0.0], F), np.array([-0.0, 0.0, -0.0, 0.0], F)
    for op_type, want in (("Max", [0, 0, 1, 0]), ("Min", [1, 1, 1, 0]), ("Sum", [0] * 4), ("Mean", [0] * 4)):
        model, feeds = node_model(op_type, [x, y], opset=13)
        for backend in ("native", "reference"):
            got = qrun.Session(model, backend=backend, cache=OBJECTS).run(feeds)["y0"]
            assert np.signbit(got).tolist() == [bool(n) for n in want], (op_type, backend)


@pytest.mark.parametrize(
    ("op_type", "inputs", "why"),
    [
        ("Sum", [np.ones(3)] * 2, "no native kernel for float64"),
        ("Min", [np.ones(3, np.float16)] * 9, "more than 8 inputs"),
        ("Sum", [np.ones(3, F)] * 9, "more than 8 inputs"),
    ],
)
def test_what_the_reference_runs(op_type: str, inputs: list[Array], why: str) -> None:
    model, feeds = node_model(op_type, inputs, opset=13, outputs=[inputs[0].dtype])
    assert_left(model, feeds, why)


def test_a_slope_that_is_larger_is_refused() -> None:
    model, feeds = node_model("PRelu", [np.ones((2, 1), F), np.ones((2, 3), F)], opset=16)
    for backend in ("native", "reference"):
        with pytest.raises(qrun.OperatorError, match="slope"):
            qrun.Session(model, backend=backend, cache=OBJECTS).run(feeds)
