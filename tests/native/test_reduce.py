"""Native reductions and running sums have the reference's bits, over all axes that there may be."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import edges
from helpers.native import ISAS, OBJECTS, Array, engine
from helpers.placed import natively, run_placed, same_everywhere
from helpers.support import assert_equal, node_model
from helpers.widths import every_width
from native.test_elementwise import whole

import qrun
from qrun.native.errors import Declined
from qrun.native.kernels.reduce import Accumulated, IntegerReduction, Reduction
from qrun.native.machine.operation import Operand
from qrun.ops import reduce

pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")

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
    natively(*node_model(op_type, [x, *given], attributes, opset=13, constants=[1]), threads=2)


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
        natively(*node_model(op_type, [x, np.array([axis])], {}, outputs=[dtype], opset=18, constants=[1]))


@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (1, 40, 16), (2, 1, 3, 2, 2)])
def test_global_max_pool(shape: tuple[int, ...]) -> None:
    x = rows(np.random.default_rng(7), math.prod(shape[:2]), math.prod(shape[2:])).reshape(shape)
    natively(*node_model("GlobalMaxPool", [x], {}))


def test_zeros_of_both_signs() -> None:
    """+0 is the greater one, whichever comes first, over which axis it may be."""
    x = np.array([[0.0, -0.0], [-0.0, 0.0], [-0.0, -0.0], [0.0, 0.0], [-1.0, -0.0], [-0.0, 1.0]], F)
    for data, axis in ((x, 1), (np.ascontiguousarray(x.T), 0)):
        for op_type, want in (("ReduceMax", [0, 0, 1, 0, 1, 0]), ("ReduceMin", [1, 1, 1, 0, 1, 1])):
            model, feeds = node_model(op_type, [data], {"axes": [axis], "keepdims": 0}, opset=13)
            for backend in ("native", "reference"):
                got = qrun.Session(model, backend=backend, cache=OBJECTS).run(feeds)["y0"]
                assert np.signbit(got).tolist() == [bool(n) for n in want], (op_type, backend)


WHOLE_KINDS = {
    "sum": reduce.reduce_sum, "product": reduce.reduce_prod, "sum_abs": reduce.reduce_l1,
    "sum_square": reduce.reduce_sum_square, "mean": reduce.reduce_mean, "greatest": reduce.reduce_max,
    "least": reduce.reduce_min,
}  # fmt: skip
WHOLE_OPERATORS = ("ReduceSum", "ReduceProd", "ReduceL1", "ReduceSumSquare", "ReduceMean", "ReduceMax", "ReduceMin")
INTEGERS = (np.int64, np.uint64, np.int32, np.uint32, np.int16, np.uint16, np.int8, np.uint8)


@pytest.mark.parametrize("kind", WHOLE_KINDS)
@every_width
def test_rows_of_integers(isa: str, kind: str) -> None:
    rng = np.random.default_rng(1)
    for dtype in (*INTEGERS[2 * (kind == "mean") :], *([np.bool_] if kind in ("greatest", "least") else [])):
        for length in edges.ROWS:
            x = whole(rng, dtype, (7, length))
            x[0] = x[0].min()
            operation = IntegerReduction(engine(isa), kind, x.dtype, x.shape, length, (7,))
            for at_end in (True, False):
                got = run_placed(engine(isa), operation, [x], (0, 0), at_end)
                assert_equal(got, WHOLE_KINDS[kind](x, (1,), False), f"{x.dtype} rows of {length}")


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (-1, 0), (0, 1, 2)])
@pytest.mark.parametrize("op_type", WHOLE_OPERATORS)
def test_nodes_of_integers(op_type: str, axes: tuple[int, ...]) -> None:
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
            natively(model, feeds, threads=threads)


def test_other_shapes() -> None:
    model, _ = node_model("ReduceSum", [np.zeros((2, 3), np.int64), np.array([1])], outputs=[np.int64], constants=[1])
    model.graph.input[0].type.tensor_type.ClearField("shape")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    session = qrun.Session(model, cache=OBJECTS, threads=2)
    for shape in ((2, 3), (1, 1), (2, 3), (0, 3), (3, 0), (5, 1000), (2, 3)):
        x = whole(np.random.default_rng(3), np.int64, shape)
        for _ in range(2):
            assert_equal(session.run({"i0": x})["y0"], x.sum(1, keepdims=True), f"{shape}")


WHOLE = [np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (32, 64)]
RUNNING = [*WHOLE, np.dtype(np.float32), np.dtype(np.float64)]
NARROW = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
RUNNING_SHAPES = [
    ((1,), 0),
    ((9,), 0),
    ((3, 5), 1),
    ((3, 5), 0),
    ((2, 7, 3), 1),
    ((4, 6, 70), 1),
    ((5, 33), 0),
    ((2, 1, 9), 1),
]


def running_numbers(rng: np.random.Generator, dtype: Any, shape: tuple[int, ...]) -> Array:
    """Any bits of integers; floats whose sums and products float64 holds exactly, so that each is rounded once,
    and both zeros."""
    if dtype.kind in "iu":
        return np.frombuffer(rng.bytes(math.prod(shape) * dtype.itemsize), dtype).reshape(shape)
    made = rng.integers(-(2**11), 2**11, shape) * rng.choice([2.0**-11, 2.0**-7, 2.0**-4], shape)
    return np.asarray(np.where(rng.random(shape) < 0.3, rng.choice([0.0, -0.0], shape), made), dtype)


def wanted(x: Array, axis: int, what: str, exclusive: bool, reverse: bool) -> Array:
    """One line after the other."""
    made = np.empty(x.shape, x.dtype)
    lines, results = np.moveaxis(x, axis, -1), np.moveaxis(made, axis, -1)
    for place in np.ndindex(lines.shape[:-1]):
        line = lines[place].tolist()[:: -1 if reverse else 1]
        found: list[Any] = []
        for number in range(len(line)):
            part = line[: number + (not exclusive)]
            if x.dtype.kind in "iu":
                total = sum(part) if what == "sum" else math.prod(part)
                found.append(int(total) % 2 ** (8 * x.itemsize))
            elif not part:
                found.append(float(what == "product"))
            else:
                total = part[0]
                for more in part[1:]:
                    total = total + more if what == "sum" else total * more
                found.append(total)
        if x.dtype.kind in "iu":
            row = np.array(found, f"u{x.itemsize}").view(x.dtype)
        else:
            row = np.array(found, np.float64).astype(x.dtype)
        results[place] = row[:: -1 if reverse else 1]
    return made


@pytest.mark.parametrize("dtype", RUNNING, ids=str)
@every_width
def test_running_sums_and_products(isa: str, dtype: Any) -> None:
    rng = np.random.default_rng([61, dtype.itemsize])
    for shape, axis in RUNNING_SHAPES:
        x = running_numbers(rng, dtype, shape)
        for what in ("sum", "product"):
            for exclusive, reverse in ((False, False), (True, False), (False, True), (True, True)):
                for threads in (1, 3):
                    native = engine(isa, threads)
                    made = Accumulated(native, Operand(shape, dtype), axis, what, exclusive, reverse)
                    want = wanted(x, axis, what, exclusive, reverse)
                    for at_end in (True, False):
                        got = run_placed(native, made, [x], (0, 0), at_end)
                        assert got.tobytes() == want.tobytes(), (shape, axis, what, exclusive, reverse)


@every_width
def test_a_sum_of_float32_is_rounded_once(isa: str) -> None:
    """The oracle adds fractions; float64 holds these sums."""
    rng = np.random.default_rng(62)
    x = (rng.integers(-(2**23), 2**23, (60, 5)) * 2.0 ** rng.integers(-20, 4, (60, 5))).astype(np.float32)
    got = engine(isa).run(Accumulated(engine(isa), Operand(x.shape, x.dtype), 0, "sum", False, False), [x])
    for column in range(5):
        total = Fraction(0)
        for row, value in enumerate(x[:, column]):
            total += Fraction(float(value))
            assert Fraction(float(total)) == total
            assert got[row, column] == np.float32(float(total))


@pytest.mark.parametrize("op_type", ["CumSum", "CumProd"])
def test_running_nodes(op_type: str) -> None:
    rng = np.random.default_rng(63)
    for dtype in (*RUNNING, *NARROW):
        for shape, axis in (*RUNNING_SHAPES, ((0, 3), 0), ((3, 0), 0), ((2, 0, 3), 1), ((2, 3), -2), ((2, 3), -1)):
            x = running_numbers(rng, np.dtype(np.float32) if dtype in NARROW else dtype, shape).astype(dtype)
            for exclusive, reverse in ((0, 0), (1, 0), (0, 1), (1, 1)):
                attributes = {"exclusive": exclusive, "reverse": reverse}
                natively(
                    *node_model(op_type, [x, np.array(axis)], attributes, outputs=[dtype], opset=26, constants=[1]),
                    threads=1 + exclusive,
                )


def test_numbers_that_are_none() -> None:
    x = np.array([[1, np.inf, -np.inf, 2, np.nan, 3], [3e38, 3e38, -3e38, -3e38, 1e-45, 0]], np.float32)
    for dtype in (np.float32, np.float64, np.float16):
        for op_type in ("CumSum", "CumProd"):
            for axis in (0, 1):
                with np.errstate(all="ignore"):
                    model, feeds = node_model(
                        op_type, [x.astype(dtype), np.array(axis)], outputs=[dtype], opset=26, constants=[1]
                    )
                    same_everywhere(model, feeds)


def test_what_is_declined() -> None:
    with pytest.raises(Declined, match="no native running sum of complex64"):
        Accumulated(engine("generic"), Operand((2,), np.dtype(np.complex64)), 0, "sum", False, False)
