"""Native reductions of integers and bool have the bits of the reference, on every instruction set,
within their memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import edges
from helpers.native import ISAS, OBJECTS, assert_left, engine
from helpers.placed import run_placed, same_everywhere
from helpers.support import assert_equal, node_model
from helpers.widths import every_width
from native.test_elementwise import whole

import qrun
from qrun.native.kernels.reduce import IntegerReduction
from qrun.ops import reduce

pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")
KINDS = {
    "sum": reduce.reduce_sum, "product": reduce.reduce_prod, "sum_abs": reduce.reduce_l1,
    "sum_square": reduce.reduce_sum_square, "mean": reduce.reduce_mean, "greatest": reduce.reduce_max,
    "least": reduce.reduce_min,
}  # fmt: skip
OPERATORS = ("ReduceSum", "ReduceProd", "ReduceL1", "ReduceSumSquare", "ReduceMean", "ReduceMax", "ReduceMin")
INTEGERS = (np.int64, np.uint64, np.int32, np.uint32, np.int16, np.uint16, np.int8, np.uint8)


@pytest.mark.parametrize("kind", KINDS)
@every_width
def test_rows(isa: str, kind: str) -> None:
    rng = np.random.default_rng(1)
    for dtype in (*INTEGERS[2 * (kind == "mean") :], *([np.bool_] if kind in ("greatest", "least") else [])):
        for length in edges.ROWS:
            x = whole(rng, dtype, (7, length))
            x[0] = x[0].min()
            operation = IntegerReduction(engine(isa), kind, x.dtype, x.shape, length, (7,))
            for at_end in (True, False):
                got = run_placed(engine(isa), operation, [x], (0, 0), at_end)
                assert_equal(got, KINDS[kind](x, (1,), False), f"{x.dtype} rows of {length}")


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (-1, 0), (0, 1, 2)])
@pytest.mark.parametrize("op_type", OPERATORS)
def test_nodes(op_type: str, axes: tuple[int, ...]) -> None:
    rng = np.random.default_rng(2)
    for dtype in (np.int32, np.int64, np.uint32, np.uint64, *((np.int8, np.uint8) if op_type[-1] in "xn" else ())):
        if np.dtype(dtype).itemsize == 8 and op_type == "ReduceMean":
            continue
        if np.dtype(dtype).itemsize == 1 and op_type not in ("ReduceMax", "ReduceMin"):
            continue
        x = whole(rng, dtype, (4, 37, 10))
        attributes = {"keepdims": len(axes) % 2}
        model, feeds = node_model(op_type, [x, np.array(axes)], attributes, outputs=[dtype], opset=20, constants=[1])
        for threads in (1, 2):
            (event,) = same_everywhere(model, feeds, threads=threads).events
            assert event.backend == "native", dtype


def test_other_shapes() -> None:
    model, _ = node_model("ReduceSum", [np.zeros((2, 3), np.int64), np.array([1])], outputs=[np.int64], constants=[1])
    model.graph.input[0].type.tensor_type.ClearField("shape")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    session = qrun.Session(model, cache=OBJECTS, threads=2)
    for shape in ((2, 3), (1, 1), (2, 3), (0, 3), (3, 0), (5, 1000), (2, 3)):
        x = whole(np.random.default_rng(3), np.int64, shape)
        for _ in range(2):
            assert_equal(session.run({"i0": x})["y0"], x.sum(1, keepdims=True), f"{shape}")


@pytest.mark.parametrize(
    ("op_type", "x", "why"),
    [
        ("ReduceMean", np.ones((2, 3), np.int64), "no native mean of int64"),
        ("ReduceL2", np.ones((2, 3), np.int32), "no native norm of int32"),
        ("ReduceMax", np.ones((2, 0), np.int32), "no elements"),
        ("ReduceSum", np.ones((2, 3)), "no native kernel for float64"),
        ("ReduceProd", np.ones((2, 3), np.float32), "no native products of so many float32"),
    ],
)
def test_what_the_reference_runs(op_type: str, x: Any, why: str) -> None:
    model, feeds = node_model(op_type, [x], {}, outputs=[x.dtype], opset=18)
    assert_left(model, feeds, why)
