"""Native reductions of float32 equal the reference kernels bit for bit, over all axes that there may be."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import edges
from helpers.native import OBJECTS, Array, assert_left, engine
from helpers.placed import run_placed, same_everywhere
from helpers.support import assert_equal, node_model
from helpers.widths import every_width

import qrun
from qrun.native.kernels.reduce import Reduction
from qrun.ops import reduce

F = np.float32
KINDS: dict[str, Callable[..., Array]] = {
    "sum": reduce.reduce_sum,
    "mean": reduce.reduce_mean,
    "sum_abs": reduce.reduce_l1,
    "sum_square": reduce.reduce_sum_square,
    "norm": reduce.reduce_l2,
    "log_sum": reduce.reduce_log_sum,
    "log_sum_exp": reduce.reduce_log_sum_exp,
    "greatest": reduce.reduce_max,
    "least": reduce.reduce_min,
}
OPERATORS = ("ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceMax", "ReduceMin",
             "ReduceLogSum", "ReduceLogSumExp")  # fmt: skip


def rows(rng: np.random.Generator, count: int, length: int) -> Array:
    """Plain ones, and ones that are whole numbers, huge, tiny, zeros of both signs, or not finite."""
    x = rng.normal(0, 2, (count, length))
    kind = rng.integers(0, 8, count)
    x[kind == 1] = np.round(x[kind == 1])
    x[kind == 2] *= 1e30
    x[kind == 3] *= 1e-40
    x[kind == 4] = rng.choice([0.0, -0.0], (int((kind == 4).sum()), length))
    x[kind == 5] = 1e8 + np.round(x[kind == 5]) * 64
    some = rng.random(x.shape) < 0.1
    x = np.where(some & (kind == 6)[:, None], rng.choice([np.inf, -np.inf, np.nan], x.shape), x)
    x = np.where(
        some & (kind == 7)[:, None], rng.choice([0.0, -0.0], x.shape), np.where((kind == 7)[:, None], -abs(x), x)
    )
    return x.astype(F)


def same_bits(got: Array, want: Array, message: str) -> None:
    """As assert_equal, and zeros have the same signs."""
    assert_equal(got, want, message)
    numbers = ~np.isnan(want)
    assert (np.signbit(got) == np.signbit(want))[numbers].all(), message


@pytest.mark.parametrize("at_end", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@every_width
def test_rows(isa: str, kind: str, at_end: bool) -> None:
    rng = np.random.default_rng(list(KINDS).index(kind))
    function = KINDS[kind]
    for length in edges.ROWS:
        x = rows(rng, 40, length)
        operation = Reduction(engine(isa), kind, x.shape, length, (40, 1))
        got = run_placed(engine(isa), operation, [x], (0, 0), at_end)
        same_bits(got, function(x, (1,), True), f"rows of {length}")


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (3,), (-1, 0), (0, 2), (1, 2), (2, 3), (3, 1, 2), (0, 1, 2, 3)])
@pytest.mark.parametrize("op_type", OPERATORS)
def test_nodes(
    op_type: str,
    axes: tuple[int, ...],
) -> None:
    x = rows(np.random.default_rng(5), 4 * 3 * 5, 10).reshape(4, 3, 5, 10)
    last, keepdims = op_type == "ReduceSum", len(axes) % 2
    given: list[Any] = [np.array(axes, np.int64)] if last else []
    attributes = {"keepdims": keepdims} if last else {"keepdims": keepdims, "axes": list(axes)}
    model, feeds = node_model(op_type, [x, *given], attributes, opset=13, constants=[1])
    result = same_everywhere(model, feeds, threads=2)
    assert [event.backend for event in result.events] == ["native"]


@pytest.mark.parametrize("dtype", [F, np.float16, ml_dtypes.bfloat16, np.int32, np.int64])
@pytest.mark.parametrize("op_type", [*OPERATORS, "ReduceProd"])
def test_axes_of_one_element(op_type: str, dtype: Any) -> None:
    """Of zeros of both signs, numbers of all sizes and NaN of all bits too;
    of that which log makes the sign is numpy's."""
    numbers = [0.0, -0.0, 1e-45, -1e-40, 1.5, -2.0, 3e4, np.inf, -np.inf, np.nan, -np.nan]
    x = np.array(numbers if np.dtype(dtype).kind not in "iu" else [0, 1, -2, 5, 100, -128, 127]).astype(dtype)
    if dtype == F:
        x = np.concatenate([x, np.array([0x7F800001, 0xFFC12345], np.uint32).view(F)])
    whole, unknown = np.dtype(dtype).kind in "iu", ("ReduceLogSum", "ReduceLogSumExp", "ReduceL2")
    for shape, axes, keepdims in (((1, -1), [0], 0), ((-1, 1), [1], 1), ((1, -1, 1, 1), [0, 2], 0), ((1, -1), [-2], 1)):
        data = x.reshape(shape)
        model, feeds = node_model(
            op_type, [data, np.array(axes)], {"keepdims": keepdims}, outputs=[dtype], opset=18, constants=[1]
        )
        result, want = (
            qrun.Session(model, backend=backend, cache=OBJECTS).execute(feeds) for backend in ("native", "reference")
        )
        made, expected = result.outputs["y0"], want.outputs["y0"]
        same_bits(made, expected, str(axes))
        assert op_type in ("ReduceLogSum", "ReduceLogSumExp") or made.tobytes() == expected.tobytes(), axes
        left = op_type in unknown if whole else op_type == "ReduceProd"
        assert [event.backend for event in result.events] == ["reference" if left else "native"]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("op_type", OPERATORS)
def test_narrow_nodes(op_type: str, dtype: Any) -> None:
    x = np.random.default_rng(6).normal(0, 3, (3, 17, 5)).astype(dtype)
    for axis in (1, 2):
        model, feeds = node_model(op_type, [x, np.array([axis])], {}, outputs=[dtype], opset=18, constants=[1])
        result = same_everywhere(model, feeds)
        assert [event.backend for event in result.events] == ["native"]


@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (1, 40, 16), (2, 1, 3, 2, 2)])
def test_global_max_pool(shape: tuple[int, ...]) -> None:
    x = rows(np.random.default_rng(7), math.prod(shape[:2]), math.prod(shape[2:])).reshape(shape)
    model, feeds = node_model("GlobalMaxPool", [x], {})
    result = same_everywhere(model, feeds)
    assert [event.backend for event in result.events] == ["native"]


def test_zeros_of_both_signs() -> None:
    """+0 is the greater one, whichever comes first, over which axis it may be."""
    x = np.array([[0.0, -0.0], [-0.0, 0.0], [-0.0, -0.0], [0.0, 0.0], [-1.0, -0.0], [-0.0, 1.0]], F)
    for data, axis in ((x, 1), (np.ascontiguousarray(x.T), 0)):
        for op_type, want in (("ReduceMax", [0, 0, 1, 0, 1, 0]), ("ReduceMin", [1, 1, 1, 0, 1, 1])):
            model, feeds = node_model(op_type, [data], {"axes": [axis], "keepdims": 0}, opset=13)
            for backend in ("native", "reference"):
                got = qrun.Session(model, backend=backend, cache=OBJECTS).run(feeds)["y0"]
                assert np.signbit(got).tolist() == [bool(n) for n in want], (op_type, backend)


@pytest.mark.parametrize(
    ("op_type", "x", "attributes", "why"),
    [
        ("ReduceSum", np.ones((2, 3), F), {"noop_with_empty_axes": 1}, "over no axes"),
        ("ReduceMax", np.ones((2, 0), F), {}, "no elements"),
        ("ReduceMin", np.ones((2, 3)), {}, "no native kernel for float64"),
        ("GlobalMaxPool", np.ones((2, 3), F), {}, "no spatial axes"),
    ],
)
def test_what_the_reference_runs(op_type: str, x: Array, attributes: dict[str, Any], why: str) -> None:
    model, feeds = node_model(op_type, [x], attributes, outputs=[x.dtype], opset=18)
    assert_left(model, feeds, why)
