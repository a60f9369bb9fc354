"""Add, Sub, Mul, Div, Sum, the activations and Softmax."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from helpers.float import Peer, assert_close, qrun_node
from helpers.support import assert_equal, node_model, run_qrun

from qrun import Session
from qrun.errors import MemoryLimitError, OperatorError
from qrun.memory import Budget
from qrun.ops import Context
from qrun.ops._float import narrow
from qrun.ops.elementwise import add, div

F, H, BF = np.float32, np.float16, ml_dtypes.bfloat16
INTEGERS = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]
SHAPES = [((3, 4), (3, 4)), ((2, 3, 4), (4,)), ((3, 1), (1, 4)), ((), (2, 2)), ((5,), ()), ((), ()), ((0, 3), (1,))]


def extremes(rng: np.random.Generator, dtype: type, shape: tuple[int, ...]) -> np.ndarray:
    info = np.iinfo(dtype)
    values = rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    edge = rng.integers(0, 4, shape)
    return np.asarray(np.choose(edge, [values, info.min, info.max, values // 16 + 1]).astype(dtype))


@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_wrap(op_type: str, dtype: type) -> None:
    rng = np.random.default_rng(INTEGERS.index(dtype))
    peer = Peer()
    bits = np.dtype(dtype).itemsize * 8
    for shapes in SHAPES:
        a, b = (extremes(rng, dtype, s) for s in shapes)
        message = f"{op_type} {dtype.__name__} {shapes}"
        got = peer.check(op_type, [a, b], opset=14, message=message, rtol=0, atol=0)[0]
        plain = {"Add": int.__add__, "Sub": int.__sub__, "Mul": int.__mul__}[op_type]
        both = np.broadcast_arrays(a, b)
        for x, y, z in zip(*(v.ravel().tolist() for v in (*both, got)), strict=True):
            assert (plain(x, y) - z) % 2**bits == 0, f"{message}: {x}, {y} gives {z}"
    if np.dtype(dtype).itemsize >= 4:
        peer.finish(0.9)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_division_truncates(dtype: type) -> None:
    rng = np.random.default_rng(40)
    a, b = extremes(rng, dtype, (40, 1)), extremes(rng, dtype, (30,))
    got = qrun_node("Div", [a, b], opset=14)
    for (i, j), z in np.ndenumerate(got):
        x, y = int(a[i, 0]), int(b[j])
        want = 0 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        wrapped = np.array([want & (2 ** (8 * a.itemsize) - 1)], np.uint64).astype(dtype)[0]
        assert z == wrapped, f"seed 40: {x} / {y} gives {z}, want {want}"


def test_integer_division_by_zero_is_observed() -> None:
    model, feeds = node_model("Div", [np.array([5, 6], np.int32), np.array([2, 0], np.int32)], outputs=[np.int32])
    result = Session(model).execute(feeds)
    assert result.outputs["y0"].tolist() == [2, 0]
    seen = result.events[0].observations[0]
    assert (seen.kind, seen.count, seen.first) == ("division-by-zero", 1, (1,))


@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Div"])
def test_floats_equal_onnxruntime_and_numpy(op_type: str) -> None:
    rng = np.random.default_rng(12)
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan, 3e38, 1e-45], F)
    peer = Peer()
    pairs = [tuple(rng.standard_normal(s).astype(F) for s in shapes) for shapes in SHAPES]
    for opset in (7, 13, 14):
        for a, b in [*pairs, (special[:, None], special)]:
            peer.check(op_type, [a, b], opset=opset, message=f"{op_type} {a.shape} {b.shape}", rtol=0, atol=0)
            peer.check(op_type, [a.astype("d"), b.astype("d")], opset=opset, message="double", rtol=0, atol=0)
    peer.finish(1)


@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Div"])
@pytest.mark.parametrize("dtype", [H, BF])
def test_short_floats_are_correctly_rounded(op_type: str, dtype: type) -> None:
    rng = np.random.default_rng(13)
    a, b = (rng.standard_normal(500).astype(dtype) for _ in range(2))
    got = qrun_node(op_type, [a, b], opset=14)
    wide = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}[op_type]
    assert_equal(got, narrow(wide(a.astype(np.float64), b.astype(np.float64)), np.dtype(dtype)), op_type)


@pytest.mark.parametrize("dtype", [F, H, BF])
def test_narrowing_rounds_once_ties_to_even(dtype: type) -> None:
    rng = np.random.default_rng(14)
    low = np.abs(rng.standard_normal(300)).astype(dtype)
    high = (low.view(f"u{low.itemsize}") + 1).view(dtype)
    a, b = low.astype(np.float64), high.astype(np.float64)
    middle = (a + b) / 2
    values = np.concatenate([middle, np.nextafter(middle, 0), np.nextafter(middle, 9), -middle, a])
    got = narrow(values, np.dtype(dtype)).astype(np.float64)
    even = np.where(low.view(f"u{low.itemsize}") % 2 == 0, a, b)
    assert got.tolist() == np.concatenate([even, a, b, -even, a]).tolist()
    edge = narrow(np.array([np.inf, -np.inf, np.nan, 1e300, -0.0, 1e-300]), np.dtype(dtype)).astype(np.float64)
    assert_equal(edge, np.array([np.inf, -np.inf, np.nan, np.inf, -0.0, 0.0]))
    assert np.signbit(edge[4])


def test_sum_rounds_once() -> None:
    peer = Peer()
    rng = np.random.default_rng(15)
    for opset, shapes in ((8, [(2, 3), (3,), ()]), (13, [(4,)]), (7, [(2, 2)] * 3), (21, [(1, 3), (2, 1)])):
        peer.check("Sum", [rng.standard_normal(s).astype(F) for s in shapes], opset=opset, message=str(shapes))
    peer.finish(1)
    parts = [np.array(v, F) for v in (2.0**24, 1, 1, -(2.0**24))]
    assert qrun_node("Sum", parts) == 2
    xs = rng.standard_normal((5, 200)).astype(BF)
    want = [narrow(float(sum(Fraction(float(v)) for v in column)), np.dtype(BF)) for column in xs.T]
    assert_equal(qrun_node("Sum", list(xs)), np.array(want))
    with pytest.raises(OperatorError, match="has shape"):
        qrun_node("Sum", [np.ones((2, 2), F), np.ones(2, F)], opset=7)


def test_shapes_that_do_not_broadcast() -> None:
    for op_type in ("Add", "Sub", "Mul", "Div", "Sum"):
        with pytest.raises(OperatorError, match="broadcast"):
            qrun_node(op_type, [np.ones((2, 3), F), np.ones(2, F)])
    column = np.broadcast_to(F(1), (2**20, 1))
    with pytest.raises(MemoryLimitError):
        add(column, column.T, ctx=Context(budget=Budget(2**30)))
    view = np.arange(12, dtype=np.int32).reshape(3, 4)[::-1, ::2]
    view.flags.writeable = False
    assert div(view, np.int32(3) * np.ones_like(view)).tolist() == [[2, 3], [1, 2], [0, 0]]


UNARY = {
    "Relu": (6, 13, 14),
    "LeakyRelu": (7, 16),
    "Sigmoid": (7, 13),
    "HardSigmoid": (7, 22),
    "HardSwish": (14, 22),
    "Tanh": (7, 13),
    "Exp": (7, 13),
    "Sqrt": (7, 13),
}


@pytest.mark.parametrize("op_type", UNARY)
def test_functions_equal_onnxruntime(op_type: str) -> None:
    rng = np.random.default_rng(16)
    x = np.concatenate([rng.standard_normal(200) * 4, [0, -0.0, np.inf, np.nan, 80, -80, 3e38]]).astype(F)
    if op_type not in ("HardSwish", "HardSigmoid"):
        x = np.append(x, F(-np.inf))
    peer = Peer()
    for opset in UNARY[op_type]:
        for shape in ((-1, 1), (1, 1, -1)):
            peer.check(op_type, [x.reshape(shape)], opset=max(opset, 7), message=f"{op_type}-{opset}")
        attributes = {"LeakyRelu": {"alpha": -0.3}, "HardSigmoid": {"alpha": -0.7, "beta": 0.1}}.get(op_type)
        if attributes:
            peer.check(op_type, [x], attributes, opset=max(opset, 7), message=f"{op_type}-{opset} {attributes}")
    peer.finish(0.9)


@pytest.mark.parametrize("op_type", UNARY)
@pytest.mark.parametrize("dtype", [H, BF, np.float64])
def test_functions_in_other_types(op_type: str, dtype: type) -> None:
    x = (np.random.default_rng(17).standard_normal(300) * 4).astype(dtype)
    got = qrun_node(op_type, [x], opset=22)
    wide = qrun_node(op_type, [x.astype(np.float64)], opset=22)
    assert_equal(got, narrow(wide, np.dtype(dtype)), op_type)
    assert qrun_node(op_type, [np.zeros((2, 0), dtype)], opset=22).shape == (2, 0)
    assert qrun_node(op_type, [np.asarray(x[0])], opset=22).shape == ()


def test_functions_by_hand() -> None:
    d = np.array([-745.0, -800, 800, 0])
    assert_close(qrun_node("Sigmoid", [d]), np.array([5e-324, 0, 1, 0.5]), "Sigmoid", 0, 0)
    edge = np.array([-np.inf, np.inf, np.nan, -4, 4], F)
    assert_equal(qrun_node("HardSigmoid", [edge]), np.array([0, 1, np.nan, 0, 1], F))
    assert_equal(qrun_node("HardSwish", [edge]), np.array([np.nan, np.inf, np.nan, -0.0, 4], F))
    tie = narrow(float(np.float32(0.01)) * 3.0, np.dtype(F))
    assert qrun_node("LeakyRelu", [np.array([-3], F)])[0] == -tie


@pytest.mark.parametrize("dtype", [F, H, BF, np.float64])
def test_relu_and_clip_say_which_zero_they_mean(dtype: type) -> None:
    """Relu makes 0 of -0, in every type; Clip leaves what equals a limit as it is."""
    x = np.array([-0.0, 0.0, -1.0, np.nan]).astype(dtype)
    for backend in ("reference", "native"):
        cases: list[tuple[str, list[float], list[float]]] = [("Relu", [], [0.0, 0.0, 0.0])]
        cases += [("Clip", [zero, 6.0], [-0.0, 0.0, zero]) for zero in (0.0, -0.0)]
        for op_type, limits, want in cases:
            inputs = [x, *(np.array(limit).astype(dtype) for limit in limits)]
            (got,) = run_qrun(*node_model(op_type, inputs, outputs=[dtype]), backend=backend)
            assert_equal(got, np.array([*want, np.nan]).astype(dtype))
            signs = np.signbit(got.astype(np.float64))[:3].tolist()
            assert signs == np.signbit(want).tolist(), (op_type, limits, backend)


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
def test_relu_of_integers(dtype: type) -> None:
    x = extremes(np.random.default_rng(18), dtype, (50,))
    assert qrun_node("Relu", [x], opset=14).tolist() == [max(v, 0) for v in x.tolist()]


def test_clip_by_hand() -> None:
    x = np.array([-np.inf, -2, 0, 2, np.inf, np.nan], F)
    top = float(np.finfo(F).max)
    assert_equal(qrun_node("Clip", [x], opset=13), np.array([-top, -2, 0, 2, top, np.nan], F))
    assert_equal(qrun_node("Clip", [x, None, F(1)], opset=13), np.array([-top, -2, 0, 1, 1, np.nan], F))
    assert_equal(qrun_node("Clip", [x, F(5), F(1)], opset=11), np.array([1, 1, 1, 1, 1, np.nan], F))
    assert_equal(qrun_node("Clip", [x], {"min": 5.0, "max": 1.0}, opset=10), np.array([1, 1, 1, 1, 1, np.nan], F))
    assert_equal(qrun_node("Clip", [x], opset=7), np.array([-top, -2, 0, 2, top, np.nan], F))
    assert_equal(qrun_node("Clip", [x.astype("d")], opset=7)[[0, 4]], np.array([-top, top]))
    assert_equal(qrun_node("Clip", [x.astype(H)], opset=7)[[0, 4]], np.array([-np.inf, np.inf], H))
    most = float(ml_dtypes.finfo(BF).max)
    assert_equal(qrun_node("Clip", [x.astype(BF)])[[0, 4]], np.array([-most, most], BF))
    with pytest.raises(OperatorError, match="min is not a scalar"):
        qrun_node("Clip", [x, np.zeros(2, F)])
    with pytest.raises(OperatorError, match="no attribute"):
        qrun_node("Clip", [x], {"min": 0.0}, opset=11)


@pytest.mark.parametrize("dtype", [*INTEGERS, F, np.float64, H, BF])
def test_clip_of_every_type(dtype: type) -> None:
    rng = np.random.default_rng(19)
    x = rng.integers(0, 100, (3, 20)).astype(dtype)
    for low, high in ((10, 60), (None, 60), (10, None), (None, None), (60, 10)):
        limits = [None if v is None else np.array(v, dtype) for v in (low, high)]
        got = qrun_node("Clip", [x, *limits], opset=13)
        want = [min(100 if high is None else high, max(-1 if low is None else low, int(v))) for v in x.ravel()]
        assert [int(v) for v in got.ravel()] == want, f"{dtype.__name__} {low} {high}"
        assert got.dtype == x.dtype


def test_softmax_equals_onnxruntime() -> None:
    rng = np.random.default_rng(20)
    peer = Peer()
    for shape in ((3, 4), (2, 3, 4, 5), (7, 2), (2, 0), (1, 1)):
        x = (rng.standard_normal(shape) * 9).astype(F)
        for axis in range(-len(shape), len(shape)):
            for opset in (7, 11, 13, 22):
                if axis >= 0 or opset >= 11:
                    peer.check("Softmax", [x], {"axis": axis}, opset=opset, message=f"{shape} {axis} {opset}")
        for opset in (7, 13):
            peer.check("Softmax", [x], opset=opset, message=f"{shape} default axis {opset}")
    peer.finish(0.95)


def test_softmax_before_opset_13_flattens() -> None:
    x = np.log(np.array([[[1, 3], [4, 8]], [[1, 1], [1, 1]]], F))
    sixteenths = [[[1, 3], [4, 8]], [[4, 4], [4, 4]]]
    assert_close(qrun_node("Softmax", [x], opset=11) * 16, np.array(sixteenths, F), "axes 1 and 2 together", 1e-6)
    quarters = [[[1, 3], [4 / 3, 8 / 3]], [[2, 2], [2, 2]]]
    assert_close(qrun_node("Softmax", [x], opset=13) * 4, np.array(quarters, F), "the last axis", 1e-6)


def test_softmax_edges() -> None:
    big = np.array([[1e38, -3e38, 1e38], [-np.inf, 0, -np.inf]], F)
    assert qrun_node("Softmax", [big]).tolist() == [[0.5, 0, 0.5], [0, 1, 0]]
    assert np.isnan(qrun_node("Softmax", [np.array([-np.inf, -np.inf], F)])).all()
    assert np.isnan(qrun_node("Softmax", [np.array([np.inf, 1], F)])).all()
    for dtype in (H, BF):
        x = np.random.default_rng(21).standard_normal((3, 50)).astype(dtype)
        assert_equal(qrun_node("Softmax", [x]), narrow(qrun_node("Softmax", [x.astype("d")]), np.dtype(dtype)))
    for axis in (2, -3, 2**40):
        with pytest.raises(OperatorError, match="axis"):
            qrun_node("Softmax", [big], {"axis": axis})
    with pytest.raises(OperatorError, match="axis"):
        qrun_node("Softmax", [F(1)])
