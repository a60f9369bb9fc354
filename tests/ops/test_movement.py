"""Operators that move elements: reshapes, slices, pads, gathers, scatters, Split, Concat, TopK, Unique."""

from __future__ import annotations

import itertools
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.float import Peer, assert_refused, assert_rounded, qrun_node
from helpers.support import assert_equal, node_model, run_ort, run_qrun

import qrun
from qrun.errors import MemoryLimitError
from qrun.ir.types import DTYPES, NUMBERS, PACKED_BITS
from qrun.memory import Budget
from qrun.ops import Context, find

F, D, BF, I64 = np.float32, np.float64, ml_dtypes.bfloat16, np.int64
BIG = 2**62
TYPES = [F, np.float16, BF, D, np.int8, np.uint64, np.bool_, np.complex64, np.object_]


def ints(*values: int) -> np.ndarray:
    return np.array(values, I64)


def call(op_type: str, *args: Any, version: int = 28, **attributes: Any) -> Any:
    definition = find("", op_type, version)
    assert definition is not None
    if definition.takes_context:
        attributes.setdefault("ctx", Context(version=version, budget=Budget(2**26)))
    return definition(*args, **attributes)


def sample(dtype: Any, *shape: int) -> np.ndarray:
    count = int(np.prod(shape))
    if dtype is np.object_:
        return np.array([f"s{i}" for i in range(count)], object).reshape(shape)
    return (np.arange(count) % 7 - (0 if np.dtype(dtype).kind in "bu" else 3)).astype(dtype).reshape(shape)


def refused(text: str, op_type: str, *args: Any, **attributes: Any) -> None:
    with pytest.raises(qrun.QrunError, match=text):
        call(op_type, *args, **attributes)


@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_moves(dtype: Any) -> None:
    """Each operator on dtype against numpy, with an input that is not contiguous."""
    x = sample(dtype, 4, 3)[::-1].T
    y = sample(dtype, 4)
    assert_equal(call("Expand", x, ints(2, 1, 4)), np.stack([x, x]))
    assert_equal(call("Tile", x, ints(2, 1)), np.concatenate([x, x]))
    assert_equal(call("Where", np.array([[True], [False], [True]]), x, y), np.where([[1], [0], [1]], x, y))
    upper, lower = call("Trilu", x), call("Trilu", x, np.array(-1), upper=0)
    zero = "" if dtype is np.object_ else np.zeros((), dtype)[()]
    for i, j in np.ndindex(3, 4):
        assert upper[i, j] == (x[i, j] if j >= i else zero)
        assert lower[i, j] == (x[i, j] if j <= i - 1 else zero)
    assert call("NonZero", x).T.tolist() == [list(i) for i in np.ndindex(3, 4) if x[i] != zero]
    assert_equal(call("Compress", x, np.array([False, True]), axis=0), x[1:2])
    places = np.array([[0, -1, 2, -3]])
    assert_equal(call("GatherElements", x, places), np.stack([x[[0, 2, 2, 0], range(4)]]))
    assert_equal(call("GatherND", x, np.array([[1, -1], [-3, 0]])), x[[1, 0], [3, 0]])
    new = np.array(x)
    new[1, 3] = y[0]
    assert_equal(call("ScatterND", x, np.array([[1, -1]]), y[:1]), new)
    assert_equal(call("ScatterElements", x, np.array([[-1]]), y[:1].reshape(1, 1), axis=1)[0, 3:], y[:1])
    assert call("Size", x).tolist() == 12
    hot = call("OneHot", np.array([1, -3, 9]), np.array(3), y[:2])
    assert hot.dtype == y.dtype
    assert hot.tolist() == [[y[int(j == i)] for j in range(3)] for i in (1, 0, 9)]
    spread = call("DepthToSpace", x.reshape(1, 12, 1, 1), blocksize=2)
    assert_equal(spread, x.reshape(2, 2, 3).transpose(2, 0, 1).reshape(1, 3, 2, 2))


def test_expand() -> None:
    x = sample(F, 3, 1)
    assert call("Expand", x, ints()) is x
    assert call("Expand", x, ints(3, 1)) is x
    assert call("Expand", x, ints(1, 5)).shape == (3, 5)
    assert call("Expand", x, ints(2, 3, 0)).shape == (2, 3, 0)
    assert call("Expand", np.array(2, F), ints(2, 2)).tolist() == [[2, 2], [2, 2]]
    made = call("Expand", x, ints(3, 2))
    made[0, 0] = 9
    assert made[0, 1] == x[0, 0], "elements do not share memory"
    refused("does not expand", "Expand", x, ints(2, 3))
    refused("does not expand", "Expand", x, ints(-1))
    refused("not a list", "Expand", x, np.array([[1]]))


def test_tile() -> None:
    x = sample(np.int8, 2, 3)
    assert_equal(call("Tile", x, ints(2, 3)), np.tile(x, (2, 3)))
    assert call("Tile", x, ints(0, 2)).shape == (0, 6)
    assert call("Tile", np.array(5, F), ints()).tolist() == 5
    refused("1 numbers", "Tile", x, ints(2))
    refused("negative", "Tile", x, ints(2, -1))


def scalars(dtype: Any, *values: float) -> list[np.ndarray]:
    return [np.array(v, dtype) for v in values]


def test_range() -> None:
    cases = [(3, 9, 3), (10, 4, -2), (0, 0, 1), (5, 0, 1), (-(2**15), 2**15 - 1, 997), (1, 8, 2)]
    for dtype in (np.int16, np.int32, I64, F, D):
        for case in cases:
            assert call("Range", *scalars(dtype, *case)).tolist() == list(range(*case)), f"{dtype} {case}"
    far = call("Range", *scalars(I64, -(2**63), 2**63 - 1, 2**62))
    assert far.tolist() == list(range(-(2**63), 2**63 - 1, 2**62))
    tenth = call("Range", *scalars(F, 0, 1, 0.1))
    assert_equal(tenth, (np.arange(10) * D(F(0.1))).astype(F))
    shifted = call("Range", *scalars(F, 0.3, 9.95, 0.1))
    assert_equal(shifted, (D(F(0.3)) + np.arange(97) * D(F(0.1))).astype(F), "rounded once")
    half = call("Range", *scalars(np.float16, 0, 2500, 1))
    assert_equal(half, np.arange(2500).astype(np.float16))
    assert call("Range", *(v.reshape(1) for v in scalars(F, 0, 2, 1))).tolist() == [0, 1]
    for bad in ((0, 1, 0), (0, np.inf, 1), (np.nan, 1, 1), (0, 1, np.nan)):
        refused("delta is 0|no finite length", "Range", *scalars(F, *bad))
    refused("not a scalar", "Range", ints(1, 2), *scalars(I64, 1, 1))
    peer = Peer()
    for case in cases[:4]:
        for dtype in (np.int16, np.int32, I64, F, D):
            peer.check("Range", scalars(dtype, *case), message=f"{case}", rtol=0, atol=0)
    peer.finish()


def test_eye_like() -> None:
    x = np.zeros((3, 5), np.int32)
    for k in range(-5, 7):
        assert_equal(call("EyeLike", x, k=k), np.eye(3, 5, k, np.int32))
    for k in (-(2**63), 2**63 - 1):
        assert not call("EyeLike", x, k=k).any()
    assert call("EyeLike", x, dtype=16).dtype == ml_dtypes.bfloat16
    assert call("EyeLike", x[:0]).shape == (0, 5)
    refused("element type", "EyeLike", x, dtype=8)
    refused("element type", "EyeLike", x, dtype=16, version=9)
    refused("element type", "EyeLike", x, dtype=999)
    refused("not a matrix", "EyeLike", x[0])


def test_trilu_far_diagonals() -> None:
    x = np.ones((2, 3, 4), F)
    for k in range(-5, 6):
        assert_equal(call("Trilu", x, np.array(k)), np.triu(x, k))
        assert_equal(call("Trilu", x, np.array(k), upper=0), np.tril(x, k))
    assert not call("Trilu", x, np.array(2**63 - 1)).any()
    assert call("Trilu", x, np.array([-(2**63)])).all()
    refused("no matrices", "Trilu", x[0, 0])
    refused("not a scalar", "Trilu", x, ints(1, 2))


def test_one_hot() -> None:
    values = np.array([2, 5], np.int8)
    indices = np.array([[0, 2], [-1, 7]])
    for axis in (-3, -1, 0, 1, 2):
        got = call("OneHot", indices, ints(3), values, axis=axis)
        want = np.full((2, 2, 3), 2, np.int8)
        want[0, 0, 0] = want[0, 1, 2] = want[1, 0, 2] = 5
        assert_equal(got, np.moveaxis(want, -1, axis))
    assert (call("OneHot", indices, np.array(3), values, version=9)[1] == 2).all(), "no negative indices before 11"
    real = np.array([1.9, -0.5, -1.0, np.nan, np.inf], F)
    assert call("OneHot", real, np.array(2.5, F), values).tolist() == [[2, 5], [5, 2], [2, 5], [2, 2], [2, 2]]
    huge = np.array([2**64 - 1, 1], np.uint64)
    assert call("OneHot", huge, np.array(2, np.uint8), values).tolist() == [[2, 2], [2, 5]]
    assert call("OneHot", indices, np.array(0), values).shape == (2, 2, 0)
    refused("depth is out of range", "OneHot", indices, np.array(-1), values)
    refused("depth is out of range", "OneHot", indices, np.array(np.nan, F), values)
    refused("not a scalar", "OneHot", indices, ints(1, 2), values)
    refused(r"not \[off, on\]", "OneHot", indices, np.array(2), values[:1])
    refused("axis 3 does not exist", "OneHot", indices, np.array(2), values, axis=3)


def test_where_broadcasts() -> None:
    peer = Peer()
    rng = np.random.default_rng(5)
    for shapes in itertools.product([(), (4,), (3, 1)], repeat=3):
        c = rng.integers(0, 2, shapes[0]).astype(bool)
        x, y = (rng.normal(0, 1, s).astype(F) for s in shapes[1:])
        peer.check("Where", [c, x, y], outputs=[F], message=f"seed 5 {shapes}", rtol=0, atol=0)
    peer.finish()
    refused("do not broadcast", "Where", np.ones((2, 2), bool), np.ones(3, F), np.ones(1, F))


def test_non_zero() -> None:
    assert call("NonZero", np.array([0, -0.0, np.nan, 2], F)).tolist() == [[2, 3]]
    assert call("NonZero", np.array(3)).shape == (0, 1)
    assert call("NonZero", np.array(0)).shape == (0, 0)
    assert call("NonZero", np.zeros((2, 0, 3), F)).shape == (3, 0)


def test_compress() -> None:
    x = sample(np.int8, 3, 2)
    assert call("Compress", x, np.array([0, 1, 0, 0, 1], bool)).tolist() == [x[0, 1], x[2, 0]]
    assert_equal(call("Compress", x, np.array([True]), axis=-1), x[:, :1])
    assert call("Compress", x, np.zeros(0, bool), axis=0).shape == (0, 2)
    refused("condition does not fit", "Compress", x, np.ones(4, bool), axis=0)
    refused("condition does not fit", "Compress", x, np.ones((1, 1), bool))


def test_depth_and_space() -> None:
    peer = Peer()
    for seed, (n, c, h, w, b) in enumerate([(1, 8, 2, 3, 2), (2, 9, 1, 2, 3), (1, 3, 2, 2, 1), (0, 4, 2, 2, 2)]):
        x = np.random.default_rng(seed).normal(0, 1, (n, c, h, w)).astype(F)
        for mode in ("DCR", "CRD"):
            attributes = {"blocksize": b, "mode": mode}
            y = call("DepthToSpace", x, **attributes)
            for i, j, k, m in np.ndindex(y.shape):
                row, column, rest = k % b, m % b, c // (b * b)
                channel = (row * b + column) * rest + j if mode == "DCR" else (j * b + row) * b + column
                assert y[i, j, k, m] == x[i, channel, k // b, m // b]
            assert_equal(call("SpaceToDepth", y, **attributes), x, "inverse")
            if n:
                peer.check("DepthToSpace", [x], attributes, opset=13, message=mode, rtol=0, atol=0)
        if n:
            peer.check("SpaceToDepth", [y], {"blocksize": b}, opset=13, message="depth", rtol=0, atol=0)
        assert_equal(call("DepthToSpace", x, blocksize=b, version=1), call("DepthToSpace", x, blocksize=b))
    peer.finish()
    x = np.zeros((1, 4, 3, 2), F)
    for value in (0, -2, 2**62):
        refused("blocksize is out of range", "DepthToSpace", x, blocksize=value)
    refused("channels in multiples of 9", "DepthToSpace", x, blocksize=3)
    refused("rows in multiples of 2", "SpaceToDepth", x, blocksize=2)
    refused("mode", "SpaceToDepth", x, blocksize=1, mode="ABC")
    refused("N,C,H,W", "DepthToSpace", x[0], blocksize=1)


def test_cumulated() -> None:
    rng = np.random.default_rng(8)
    for dtype in (np.int32, np.uint64, F, D):
        x = rng.integers(0, 2**16, (3, 4, 2)).astype(dtype)
        for axis, exclusive, reverse in itertools.product((0, -2, 2), (0, 1), (0, 1)):
            flags = {"exclusive": exclusive, "reverse": reverse}
            for op_type, start, step in (("CumSum", 0, int.__add__), ("CumProd", 1, int.__mul__)):
                got = np.moveaxis(call(op_type, x, np.array(axis), **flags), axis, -1).reshape(-1, x.shape[axis])
                rows = np.moveaxis(x, axis, -1).reshape(-1, x.shape[axis])
                for row, made in zip(rows.tolist(), got, strict=True):
                    seen = [int(v) for v in (row[::-1] if reverse else row)]
                    run = list(itertools.accumulate(seen, step, initial=start))
                    want = (run[:-1] if exclusive else run[1:])[:: -1 if reverse else 1]
                    wrap = [w % 2**64 for w in want] if dtype is not D and dtype is not F else want
                    exact = np.array(wrap, np.uint64).astype(dtype) if np.dtype(dtype).kind in "iu" else want
                    np.testing.assert_allclose(made, exact, rtol=1e-7 if dtype is F else 1e-15 if dtype is D else 0)
    big = np.array([1, 2**-24, 2**-24], F)
    assert call("CumSum", big, np.array(0))[-1] == F(1 + 2**-23), "added in float64"
    assert call("CumSum", np.zeros((2, 0), F), ints(1)).shape == (2, 0)
    assert call("CumSum", np.zeros((0, 2), F), ints(0), exclusive=1).shape == (0, 2)
    refused("axis 2 does not exist", "CumSum", np.zeros((2, 2), F), np.array(2))
    refused("not a scalar", "CumSum", np.zeros((2, 2), F), ints(0, 1))
    refused("axis 0 does not exist", "CumSum", np.array(1, F), np.array(0))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, F, D, np.int8, np.uint64])
def test_top_k(dtype: type) -> None:
    rng = np.random.default_rng(9)
    for shape, axis in (((12,), 0), ((3, 9), -1), ((3, 9, 2), 1)):
        x = rng.integers(-3 if np.dtype(dtype).kind != "u" else 0, 4, shape).astype(dtype)
        rows = np.moveaxis(x, axis, -1).reshape(-1, x.shape[axis]).tolist()
        for k, largest in itertools.product((0, 1, 4, x.shape[axis]), (0, 1)):
            values, indices = call("TopK", x, ints(k), axis=axis, largest=largest)
            assert values.dtype == dtype
            assert indices.dtype == I64
            found = np.moveaxis(indices, axis, -1).reshape(-1, k) if k else []
            for row, places in zip(rows, found, strict=False):
                order = sorted(range(len(row)), key=lambda i: (-float(row[i]) if largest else float(row[i]), i))
                assert places.tolist() == order[:k], f"seed 9: {row}"
            assert_equal(values, np.take_along_axis(x, indices, axis))


def test_top_k_edges() -> None:
    x = np.array([1, np.nan, -np.inf, np.inf, 0.0, -0.0], F)
    assert call("TopK", x, ints(6))[1].tolist() == [1, 3, 0, 4, 5, 2]
    assert call("TopK", x, ints(6), largest=0)[1].tolist() == [2, 4, 5, 0, 3, 1]
    assert call("TopK", x.astype(ml_dtypes.bfloat16), ints(2))[1].tolist() == [1, 3]
    values, indices = call("TopK", np.array([3, 9, 9], F), version=1, k=2)
    assert (values.tolist(), indices.tolist()) == ([9, 9], [1, 2])
    refused("7 elements of 6", "TopK", x, ints(7))
    refused("-1 elements", "TopK", x, ints(-1))
    refused("not a scalar", "TopK", x, ints(1, 2))
    refused("does not exist", "TopK", np.array(1, F), ints(1))
    peer = Peer()
    for seed in range(6):
        data = np.random.default_rng(seed).integers(-5, 5, (4, 30)).astype(F)
        for largest in (0, 1):
            peer.check("TopK", [data, ints(7)], {"largest": largest}, outputs=[F, I64], message=f"seed {seed}")
    peer.finish()


def test_gathering_and_scattering_like_onnxruntime() -> None:
    peer = Peer()
    for seed in range(12):
        rng = np.random.default_rng(seed)
        shape = tuple(rng.integers(1, 5, 3))
        axis = int(rng.integers(-3, 3))
        size = shape[axis]
        data = rng.normal(0, 1, shape).astype(F)
        picked = [int(rng.integers(1, n + 1)) for n in shape]
        picked[axis] = int(rng.integers(1, 6))
        indices = rng.integers(-size, size, picked)
        message = f"seed {seed} {shape} {axis}"
        peer.check("GatherElements", [data, indices], {"axis": axis}, message=message, rtol=0, atol=0)
        updates = rng.normal(0, 1, picked).astype(F)
        for reduction in ("add", "mul", "max", "min"):
            attributes = {"axis": axis, "reduction": reduction}
            peer.check("ScatterElements", [data, indices, updates], attributes, opset=18, message=message)
        depth = int(rng.integers(1, 4))
        tuples = np.stack([rng.integers(-n, n, (2, 3)) for n in shape[:depth]], -1)
        peer.check("GatherND", [data, tuples], message=message, rtol=0, atol=0)
        slices = rng.normal(0, 1, (2, 3, *shape[depth:])).astype(F)
        for reduction in ("add", "mul", "max", "min"):
            peer.check("ScatterND", [data, tuples, slices], {"reduction": reduction}, opset=18, message=message)
        lead = int(rng.integers(0, 2))
        batched = rng.integers(-min(shape[lead:]), min(shape[lead:]), (*shape[:lead], 2, 3 - lead))
        peer.check("GatherND", [data, batched], {"batch_dims": lead}, message=message, rtol=0, atol=0)
    peer.finish()


def test_scattering_by_hand() -> None:
    zeros = np.zeros((2, 3), F)
    once = call("Scatter", zeros, np.array([[1, -2, 1]], np.int32), np.array([[1, 2, 3]], F), version=9)
    assert once.tolist() == [[0, 2, 0], [1, 0, 3]]
    assert not zeros.any(), "the input stays"
    twice = call("ScatterElements", zeros[0], ints(1, 1), np.array([4, 5], F))
    assert twice.tolist() == [0, 5, 0], "the last update stays"
    tiny = np.array([1], np.float16)
    many = np.full(8, 2**-11, np.float16)
    assert call("ScatterElements", tiny, np.zeros(8, I64), many, reduction="add")[0] == 1 + 2**-8, "rounded once"
    nan = call("ScatterND", np.ones(2, F), np.array([[0]]), np.array([np.nan], F), reduction="max")
    assert np.isnan(nan[0])
    bits = call("ScatterND", np.array([True, False]), np.array([[1], [0]]), np.array([True, False]), reduction="mul")
    assert bits.tolist() == [False, False]
    whole = call("ScatterND", zeros, np.zeros((1, 0), I64), np.ones((1, 2, 3), F))
    assert whole.all()
    ints8 = call("ScatterElements", np.array([100], np.int8), ints(0), np.array([100], np.int8), reduction="add")
    assert ints8.tolist() == [-56]
    assert call("ScatterND", np.zeros((0, 3), F), np.zeros((0, 1), I64), np.zeros((0, 3), F)).shape == (0, 3)
    assert call("GatherND", np.zeros((2, 0), F), np.array([[1]])).shape == (1, 0)
    assert call("GatherElements", np.zeros((2, 0), F), np.zeros((2, 0), I64), axis=1).shape == (2, 0)


@pytest.mark.parametrize("dtype", [F, np.float16, np.float64, ml_dtypes.bfloat16])
def test_the_greatest_of_zeros(dtype: Any) -> None:
    """-0 is less than +0, whatever the order, as in Max and Min."""
    seed = 7
    rng = np.random.default_rng(seed)
    data, updates = (rng.choice([0.0, -0.0, -1.0, 1.0], n) for n in (30, 90))
    places = rng.integers(0, 30, 90)
    for reduction, choose in (("max", max), ("min", min)):
        rows = [[data[n], *updates[places == n]] for n in range(30)]
        want = [choose(row, key=lambda v: (v, math.copysign(1, v))) for row in rows]
        given = data.astype(dtype), places, updates.astype(dtype)
        for backend in ("reference", None):
            model = node_model("ScatterElements", given, {"reduction": reduction}, opset=18, outputs=[dtype])
            (got,) = run_qrun(*model, backend=backend)
            assert_equal(got, np.array(want).astype(dtype), f"seed {seed} {reduction} {backend}")


def test_bad_indices_are_refused() -> None:
    data, one = np.zeros((2, 3), F), np.ones((1, 1), F)
    for index in (2, -3, 2**63 - 1, -(2**63)):
        where = np.array([[0], [index]])
        refused("out of range", "GatherElements", data, where[1:])
        refused("out of range", "ScatterElements", data, where[1:], one)
        refused("out of range", "GatherND", data, where)
        refused("out of range", "ScatterND", data, where, np.zeros((2, 3), F))
    refused("the axis is empty", "GatherElements", np.zeros((0, 3), F), np.array([[0]]))
    refused("indices has shape", "GatherElements", data, ints(0))
    refused("indices has shape", "GatherElements", data, np.zeros((1, 4), I64))
    refused("does not exist", "GatherElements", np.array(1, F), np.array(0))
    refused("updates do not fit", "ScatterElements", data, np.array([[0]]), np.ones((1, 2), F))
    refused("updates do not fit", "ScatterND", data, np.array([[0]]), np.ones(3, F))
    refused("indices has shape", "ScatterND", data, np.zeros((1, 3), I64), np.ones(1, F))
    refused("indices has shape", "GatherND", data, np.zeros((1, 3), I64))
    refused("indices has shape", "GatherND", data, np.zeros((1, 0), I64))
    refused("indices has shape", "GatherND", data, np.zeros((3, 1), I64), batch_dims=1)
    for lead in (-1, 2, 2**62):
        refused("batch_dims", "GatherND", data, np.zeros((2, 1), I64), batch_dims=lead)
    refused("reduction is sum", "ScatterND", data, np.array([[0]]), data[:1], reduction="sum")
    refused("reduction is max", "ScatterND", data, np.array([[0]]), data[:1], reduction="max", version=16)
    text = np.array(["a"], object)
    refused("reduction is add", "ScatterElements", text, ints(0), text, reduction="add")


def test_huge_outputs_are_refused_before_they_are_made() -> None:
    one = np.ones(1, F)
    calls: list[tuple[str, list[Any]]] = [
        ("Expand", [one, ints(2**40)]),
        ("Expand", [one, ints(*[2] * 60)]),
        ("Tile", [one, ints(2**62)]),
        ("Range", [np.array(0), np.array(2**62), np.array(1)]),
        ("Range", scalars(D, 0, 1e300, 1e-3)),
        ("OneHot", [ints(1), np.array(2**62), one.repeat(2)]),
        ("OneHot", [ints(1), np.array(1e18, F), one.repeat(2)]),
        ("EyeLike", [np.broadcast_to(one, (2**20, 2**20))]),
        ("Where", [np.ones((2**14, 1), bool), one, np.ones((1, 2**14), F)]),
    ]
    for op_type, args in calls:
        with pytest.raises(MemoryLimitError):
            call(op_type, *args)
    x = np.zeros((2, 3), np.float32)
    budget = {"ctx": Context(budget=Budget(10**6))}
    refused("memory", "Pad", x, ints(10**6, 0, 0, 0), **budget)
    refused("memory", "Pad", x, ints(BIG, 0, 0, 0), **budget)
    refused("memory", "Pad", x, ints(2**58, 0, 0, -3), mode="edge", **budget)
    refused("more memory", "Pad", x, ints(BIG, 0, 0, -3), mode="edge", **budget)
    refused("memory", "Pad", np.zeros((2, 0)), ints(2**58, 0, 0, 0), mode="edge", **budget)
    refused("memory", "Gather", x, np.zeros((1000, 1000), I64), **budget)
    refused("memory", "Concat", *[np.zeros(1000)] * 1000, axis=0, **budget)
    refused("memory", "ConstantOfShape", ints(10**6), **budget)
    refused("memory", "ConstantOfShape", ints(BIG, BIG, BIG), **budget)
    refused("more memory", "ConstantOfShape", ints(0, BIG, BIG), **budget)
    refused("negative", "ConstantOfShape", ints(3, -1))
    model, feeds = node_model("ConstantOfShape", [ints(2**40, 2**40)])
    with pytest.raises(qrun.MemoryLimitError):
        run_qrun(model, feeds)


def test_a_session_runs_the_oldest_and_newest_forms() -> None:
    x = sample(F, 2, 3)
    for opset in (8, 28):
        assert qrun_node("Expand", [x, ints(2, 1, 3)], opset=opset).shape == (2, 2, 3)
        assert qrun_node("Tile", [x, ints(1, 2)], opset=opset).shape == (2, 6)
    assert qrun_node("Scatter", [x, np.array([[0]]), x[:1, :1]], opset=9).shape == (2, 3)
    assert qrun_node("TopK", [x], {"k": 1}, opset=7, outputs=[F, I64])[1].tolist() == [[2], [2]]


MOVES: list[tuple[str, list[np.ndarray], dict[str, Any], tuple[int, ...]]] = [
    ("Reshape", [ints(0, -1)], {}, (2, 12)),
    ("Reshape", [ints(4, -1, 2)], {}, (4, 3, 2)),
    ("Flatten", [], {"axis": -1}, (6, 4)),
    ("Flatten", [], {"axis": 0}, (1, 24)),
    ("Flatten", [], {"axis": 3}, (24, 1)),
    ("Unsqueeze", [ints(-1, 0)], {}, (1, 2, 3, 4, 1)),
    ("Transpose", [], {}, (4, 3, 2)),
    ("Transpose", [], {"perm": (1, 2, 0)}, (3, 4, 2)),
    ("Identity", [], {}, (2, 3, 4)),
    ("Slice", [ints(-1, 1), ints(-BIG, BIG), ints(2, -2), ints(-2, 1)], {}, (2, 2, 2)),
    ("Slice", [ints(BIG), ints(-(2**63)), ints(0), ints(-(2**63))], {}, (1, 3, 4)),
    ("Gather", [np.array([[0, -1], [1, 1]])], {"axis": 1}, (2, 2, 2, 4)),
    ("Gather", [np.array(-2, np.int32)], {"axis": -1}, (2, 3)),
    ("Gather", [np.zeros((0, 2), I64)], {}, (0, 2, 3, 4)),
    ("Pad", [ints(1, 0, 2, 0, 2, -3)], {}, (3, 5, 3)),
    ("Pad", [ints(1, 2), None, ints(-1)], {"mode": "reflect"}, (2, 3, 7)),
    ("Pad", [ints(4, -1), None, ints(1)], {"mode": "wrap"}, (2, 6, 4)),
    ("Pad", [ints(-1, 2), None, ints(1)], {"mode": "edge"}, (2, 4, 4)),
]


@pytest.mark.parametrize("dtype", [*TYPES, ml_dtypes.int4, ml_dtypes.float8_e4m3fn])
def test_elements_of_every_type_move_alike(dtype: Any) -> None:
    x = sample(dtype, 2, 3, 4)
    # zero and absent elements share code 0, so that padding is comparable
    places = np.arange(1, 25).reshape(2, 3, 4)
    for op_type, inputs, attributes, shape in MOVES:
        order = call(op_type, places, *inputs, **attributes)
        for source in (x, np.asfortranarray(x), x[::-1][::-1]):
            got = call(op_type, source, *inputs, **attributes)
            blank = np.array([""], object) if dtype is np.object_ else np.zeros(1, dtype)
            want = np.concatenate([blank, x.reshape(-1)])[order.reshape(-1)].reshape(order.shape)
            assert got.shape == shape, op_type
            assert_equal(got, want, op_type) if dtype is not np.object_ else np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", [*TYPES, ml_dtypes.int4, ml_dtypes.float8_e4m3fn])
def test_concat_undoes_split(dtype: Any) -> None:
    x = sample(dtype, 5, 3)
    parts = call("Split", x, ints(0, 1, 4), ctx=Context(outputs=3))
    assert [p.shape for p in parts] == [(0, 3), (1, 3), (4, 3)]
    assert all(np.shares_memory(p, x) for p in parts[1:])
    np.testing.assert_array_equal(call("Concat", *parts, axis=-2), x)


def test_views_share_memory() -> None:
    x = np.zeros((2, 1, 3), np.float32)
    x.flags.writeable = False
    for got in (
        call("Reshape", x, ints(3, 2)),
        call("Flatten", x),
        call("Squeeze", x),
        call("Unsqueeze", x, ints(0)),
        call("Transpose", x),
        call("Identity", x),
        call("Slice", x, ints(0), ints(1)),
        *call("Split", x, None, axis=2, num_outputs=2, ctx=Context(outputs=2)),
    ):
        assert np.shares_memory(got, x)


def test_random_slices_and_pads_agree_with_onnxruntime() -> None:
    rng = np.random.default_rng(11)
    compared = 0
    for case in range(40):
        shape = tuple(rng.integers(1, 6, 3))
        x = rng.standard_normal(shape).astype(np.float32)
        axes = rng.permutation(3)[: rng.integers(1, 4)]
        steps = rng.choice([-3, -1, 1, 2], len(axes))
        starts, ends = rng.integers(-8, 8, (2, len(axes)))
        mode = ("constant", "reflect", "edge", "wrap")[case % 4]
        low = [-2, 0, -1, 0][case % 4]
        pads = np.concatenate([np.minimum(rng.integers(low, 3, len(axes)), np.array(shape)[axes] - 1) for _ in "be"])
        if mode == "edge":
            pads[: len(axes)] = np.maximum(
                pads[: len(axes)], 1 - np.array(shape)[axes] + np.maximum(0, -pads[len(axes) :])
            )
        for op_type, inputs, attributes in (
            ("Slice", [x, starts, ends, axes, steps], {}),
            ("Pad", [x, pads, np.float32(2.5) if mode == "constant" else None, axes], {"mode": mode}),
        ):
            model, feeds = node_model(op_type, inputs, attributes, opset=21)
            message = f"seed 11, case {case}: {op_type} {shape} {inputs[1:]} {attributes}"
            try:
                want = run_ort(model, feeds)[0]
            except Exception as error:
                print(f"onnxruntime refuses {message}: {error}")
                continue
            assert_equal(run_qrun(model, feeds)[0], want, message)
            compared += 1
    assert compared >= 70


def test_pad_repeats_past_the_tensor_and_cuts_first() -> None:
    x = np.array([1, 2, 3], np.int8)
    assert call("Pad", x, ints(5, 5), mode="reflect").tolist() == np.pad(x, 5, "reflect").tolist()
    assert call("Pad", x, ints(4, 7), mode="wrap").tolist() == np.pad(x, (4, 7), "wrap").tolist()
    assert call("Pad", x, ints(-1, 2), mode="reflect").tolist() == [2, 3, 2, 3]
    assert call("Pad", x, ints(-5, 4)).tolist() == [0, 0]
    assert call("Pad", x[:1], ints(1, 1), mode="reflect").tolist() == [1, 1, 1]
    assert call("Pad", np.float32([1]), version=2, pads=(1, 0), value=0.5).tolist() == [0.5, 1]


def test_backward_slice_is_clamped_as_the_text_says() -> None:
    x = np.arange(2)
    assert call("Slice", x, ints(-8), ints(-5), None, ints(-1)).tolist() == [0]
    assert call("Slice", x, ints(9), ints(-9), None, ints(-1)).tolist() == [1, 0]
    assert call("Slice", x[:0], ints(-8), ints(-5), None, ints(-1)).tolist() == []


def test_reshape_zero_and_minus_one() -> None:
    empty = np.zeros((0, 3), np.float32)
    assert call("Reshape", empty, ints(3, -1)).shape == (3, 0)
    assert call("Reshape", empty, ints(0, 5), allowzero=1).shape == (0, 5)
    assert call("Reshape", np.float32(3).reshape(()), ints(1, -1)).shape == (1, 1)
    assert call("Reshape", np.zeros((1,), np.float32), np.zeros(0, I64)).shape == ()
    refused("does not reshape", "Reshape", empty, ints(0, -1))
    refused("does not reshape", "Reshape", empty, ints(-1, -1))
    refused("does not reshape", "Reshape", empty, ints(0, -1), allowzero=1)
    refused("does not reshape", "Reshape", empty, ints(0, 0, 0))
    refused("does not reshape", "Reshape", np.zeros(6), ints(4, -1))
    refused("does not reshape", "Reshape", np.zeros(6), ints(BIG, BIG))
    refused("does not reshape", "Reshape", np.zeros(6), ints(-2, -3))
    refused("2\\^63", "Reshape", empty, ints(0, BIG, BIG))
    refused("at most 64", "Reshape", np.zeros(1), np.ones(65, I64))
    refused("list of integers", "Reshape", empty, np.zeros((1, 2), I64))


def test_axes_that_do_not_fit_are_refused() -> None:
    x = np.zeros((2, 1, 3), np.float32)
    assert call("Squeeze", x, ints()).shape == (2, 1, 3)
    assert call("Squeeze", x, version=1).shape == (2, 3)
    assert call("Unsqueeze", x, version=1, axes=(0,)).shape == (1, 2, 1, 3)
    refused("axis 0 has 2 elements", "Squeeze", x, ints(0))
    refused("named twice", "Squeeze", x, ints(1, -2))
    refused("axes 5 does not exist", "Unsqueeze", x, ints(0, 5))
    refused("at most 64", "Unsqueeze", x, np.arange(62))
    refused("perm", "Transpose", x, perm=(0, 1, 1))
    refused("perm", "Transpose", x, perm=(0, 1))
    refused("axis 4", "Flatten", x, axis=4)
    refused("axis 3", "Concat", x, axis=3)
    refused("axis 0", "Concat", np.zeros(()), axis=0)
    refused("does not fit", "Concat", x, np.zeros((2, 2, 2), np.float32), axis=1)
    refused("does not fit", "Concat", x, x.astype(np.int8), axis=1)
    refused("missing", "Concat", axis=0)
    refused("step is 0", "Slice", x, ints(0), ints(1), None, ints(0))
    refused("ends has 2", "Slice", x, ints(0), ints(1, 1))
    refused("starts has 4", "Slice", x, ints(0, 0, 0, 0), ints(1, 1, 1, 1))
    refused("named twice", "Slice", x, ints(0, 0), ints(1, 1), ints(0, -3))
    refused("a scalar", "Gather", np.zeros(()), ints(0))


def test_gather_names_the_index() -> None:
    x = np.zeros((3, 4), np.float32)
    with pytest.raises(qrun.OperatorError, match=r"index -4 at \[1, 0\] is out of range") as caught:
        call("Gather", x, np.array([[0], [-4]]))
    assert ("expected", "-3 to 2, as axis 0 of data [3,4]") in caught.value.facts
    refused("index 9223372036854775807 is out of range", "Gather", x, np.array(2**63 - 1), axis=1)
    refused("out of range", "Gather", np.zeros((0, 2)), ints(0))
    model, feeds = node_model("Gather", [x, ints(3)])
    with pytest.raises(qrun.OperatorError, match="index 3") as caught:
        run_qrun(model, feeds)
    assert "tensor i1 (input 1, indices)" in caught.value.where


def test_split_forms() -> None:
    x = np.arange(7)
    three = {"ctx": Context(outputs=3)}
    assert [p.tolist() for p in call("Split", x, num_outputs=3, **three)] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [p.size for p in call("Split", x[:6], version=13, ctx=Context(outputs=3, version=13))] == [2, 2, 2]
    assert [p.size for p in call("Split", x, version=2, split=(3, 4), ctx=Context(outputs=2))] == [3, 4]
    refused("add up to 7|do not fit", "Split", x, ints(3, 3), ctx=Context(outputs=2))
    refused("do not fit", "Split", x, ints(8, -1), ctx=Context(outputs=2))
    refused("names 3 outputs", "Split", x, ints(3, 4), **three)
    refused("names 3 outputs", "Split", x, num_outputs=2, **three)
    refused("either split or num_outputs", "Split", x, **three)
    refused("either split or num_outputs", "Split", x, ints(7), num_outputs=1)
    refused("do not fill", "Split", np.arange(5), num_outputs=4, ctx=Context(outputs=4))
    refused("equal parts", "Split", x, version=13, ctx=Context(outputs=3, version=13))


def test_pads_that_do_not_fit_are_refused() -> None:
    x = np.zeros((2, 3), np.float32)
    refused("remove more", "Pad", x, ints(0, -4, 0, 0))
    refused("pads has 3", "Pad", x, ints(0, 0, 0))
    refused("mode", "Pad", x, ints(0, 0, 0, 0), mode="symmetric")
    refused("mode", "Pad", x, ints(0, 0, 0, 0), mode="wrap", version=18)
    refused("nothing to edge", "Pad", x[:0], ints(1, 0, 0, 0), mode="edge")
    refused("nothing to wrap", "Pad", x, ints(0, -4, 0, 4), mode="wrap")
    refused("constant_value", "Pad", x, ints(0, 0, 0, 0), np.zeros(2, np.float32))
    assert call("Pad", x[:0], ints(0, 1, 0, 0)).shape == (0, 4)


def test_constant_of_shape() -> None:
    assert_equal(call("ConstantOfShape", ints(2, 0)), np.zeros((2, 0), np.float32))
    assert_equal(call("ConstantOfShape", ints(), value=np.array([7], np.int8)), np.array(7, np.int8))
    for number, dtype in DTYPES.items():
        value = np.array(["x"], object) if number == 8 else np.ones(1, np.int8).astype(dtype)
        got = call("ConstantOfShape", ints(2), value=value)
        assert got.dtype == dtype
        assert got.tolist() == value.tolist() * 2
    refused("2 elements", "ConstantOfShape", ints(2), value=np.zeros(2))


@pytest.mark.parametrize(
    ("attributes", "want"),
    [
        ({"value_float": 0.1}, np.array(0.1, np.float32)),
        ({"value_floats": [0.5, 2.0]}, np.array([0.5, 2], np.float32)),
        ({"value_int": -(2**63)}, np.array(-(2**63))),
        ({"value_ints": [1, 2]}, np.array([1, 2])),
        ({"value_string": "é"}, np.array("é", object)),
        ({"value_strings": ["a", ""]}, np.array(["a", ""], object)),
    ],
)
def test_constant(attributes: dict[str, Any], want: np.ndarray) -> None:
    model, _ = node_model("Constant", [], attributes, outputs=[NUMBERS[want.dtype]], opset=13)
    (got,) = run_qrun(model, {})
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    assert got.tolist() == want.tolist()


def test_constant_needs_exactly_one_value() -> None:
    refused("0 values", "Constant")
    refused("2 values", "Constant", value_int=1, value_float=1.0)
    x = np.arange(3, dtype=ml_dtypes.bfloat16)
    assert call("Constant", value=x) is x
    assert call("Constant", version=9, value=x) is x


@pytest.mark.parametrize(
    ("start", "end"), [(0, None), (1, None), (-2, -1), (-9, 9), (2, 1), (3, None), (-(2**63), 2**63 - 1)]
)
def test_shape(start: int, end: int | None) -> None:
    x = np.zeros((2, 0, 5), np.int8)
    attributes = {"start": start, **({} if end is None else {"end": end})}
    model, feeds = node_model("Shape", [x], attributes, outputs=[I64], opset=15)
    assert_equal(run_qrun(model, feeds)[0], run_ort(model, feeds)[0])


def words(x: np.ndarray) -> np.ndarray:
    made = np.empty(x.shape, object)
    made[...] = [[f"w{v}" for v in row] for row in x.tolist()]
    return made


def test_center_crop_pad() -> None:
    for seed in range(24):
        rng = np.random.default_rng(seed)
        old, new = rng.integers(0, 6, 3), rng.integers(0, 6, 3)
        x = rng.integers(1, 99, old).astype((F, np.uint8, np.int64, BF)[seed % 4])
        axes = None if seed % 3 else [2, -3]
        if axes:
            new[1] = old[1]
        want = np.zeros(new, x.dtype)
        for at in np.ndindex(*new):
            place = []
            for n, o, w in zip(at, old, new, strict=True):
                place.append(n + (o - w) // 2 if o >= w else n - (w - o) // 2)
            if all(0 <= p < o for p, o in zip(place, old, strict=True)):
                want[at] = x[tuple(place)]
        shape = new if axes is None else np.array([new[2], new[0]])
        made = qrun_node("CenterCropPad", [x, shape], {"axes": axes} if axes else {})
        assert_equal(made, want, f"seed {seed}")


@pytest.mark.parametrize("dtype", [F, D, BF, np.int8, np.uint32])
def test_col2im(dtype: Any) -> None:
    peer = Peer()
    for seed in range(24):
        rng = np.random.default_rng(seed)
        rank = 1 + seed % 3 if dtype == D else 2
        image, block, step, gap = (rng.integers(low, high, rank) for low, high in ((3, 6), (1, 4), (1, 3), (1, 3)))
        pads = rng.integers(0, 2, 2 * rank)
        out = (image + pads[:rank] + pads[rank:] - (block - 1) * gap - 1) // step + 1
        if out.min() < 1:
            continue
        x = (rng.normal(size=(2, 2 * int(block.prod()), int(out.prod()))) * 9).astype(dtype)
        want = np.zeros((2, 2, *image), D if np.dtype(dtype).kind not in "iu" else np.int64)
        for c, (tap, kernel) in itertools.product(range(2), enumerate(np.ndindex(*block))):
            for number, at in enumerate(np.ndindex(*out)):
                place = np.array(at) * step + np.array(kernel) * gap - pads[:rank]
                if (place >= 0).all() and (place < image).all():
                    want[(slice(None), c, *place)] += x[:, c * int(block.prod()) + tap, number].astype(want.dtype)
        attributes = {"strides": step.tolist(), "dilations": gap.tolist(), "pads": pads.tolist()}
        made = qrun_node("Col2Im", [x, image, block], attributes)
        if want.dtype == D:
            assert_rounded(made, want, f"seed {seed}")
        else:
            assert_equal(made, want.astype(dtype), f"seed {seed}")
        if dtype == F:
            peer.check("Col2Im", [x, image, block], attributes, message=f"seed {seed}", rtol=1e-4, atol=1e-4)
    if dtype == F:
        peer.finish(0.9)


def test_reverse_sequence() -> None:
    peer = Peer()
    for seed in range(16):
        rng = np.random.default_rng(seed)
        x = rng.integers(0, 99, (3, 4, 2)).astype((F, np.int64, np.uint8, D)[seed % 4])
        time = seed % 2
        lengths = rng.integers(0, x.shape[time] + 1, x.shape[1 - time])
        want = x.copy()
        for b, length in enumerate(lengths):
            for t in range(length):
                there, here = ((b, length - 1 - t), (b, t)) if time else ((length - 1 - t, b), (t, b))
                want[here] = x[there]
        attributes = {"time_axis": time, "batch_axis": 1 - time}
        assert_equal(qrun_node("ReverseSequence", [x, lengths], attributes), want, f"seed {seed}")
        peer.check("ReverseSequence", [x, lengths], attributes, message=f"seed {seed}", rtol=0, atol=0)
    peer.finish(0.9)


def test_tensor_scatter() -> None:
    for seed in range(24):
        rng = np.random.default_rng(seed)
        shape = (2, 3, 4, 5)
        axis, circular = (1, 2, 3, -2)[seed % 4], seed // 4 % 2
        longest, rows = shape[axis], int(rng.integers(0, shape[axis] + 1))
        cache = rng.normal(size=shape).astype(F)
        update = rng.normal(size=[rows if a == axis % 4 else n for a, n in enumerate(shape)]).astype(F)
        starts = rng.integers(0, longest if circular else longest - rows + 1, 2)
        given = starts if seed % 3 else None
        want = cache.copy()
        for prefix in np.ndindex(*shape[: axis % 4]):
            for row in range(rows):
                place = (row + (int(starts[prefix[0]]) if given is not None else 0)) % longest
                want[(*prefix, place)] = update[(*prefix, row)]
        attributes = {"axis": axis, "mode": "circular" if circular else "linear"}
        made = qrun_node("TensorScatter", [cache, update, given], attributes, opset=24)
        assert_equal(made, want, f"seed {seed}")


def test_bit_cast_between_all_types_of_as_many_bits() -> None:
    rng = np.random.default_rng(0)
    sizes: dict[int, list[np.dtype[Any]]] = {}
    for number, kind in DTYPES.items():
        if kind.kind != "O" and PACKED_BITS.get(number) != 6:
            sizes.setdefault(PACKED_BITS.get(number, 8 * kind.itemsize), []).append(kind)
    for bits, kinds in sizes.items():
        for a, b in itertools.product(kinds, kinds):
            count = 1 if a.kind == "b" else bits
            codes = rng.integers(0, 2**count if count < 63 else 2**63, 24, np.uint64)
            code = np.dtype(f"u{a.itemsize}" if a.itemsize <= 8 else "u8")
            x = np.resize(codes, 24 * max(a.itemsize // 8, 1)).astype(code).view(a)
            made = qrun_node("BitCast", [x], {"to": NUMBERS[b]}, opset=26, outputs=[b], ir_version=13)
            assert made.dtype == b
            back = made.view(np.uint8) & (2**bits - 1 if bits < 8 else 255)
            there = x.view(np.uint8) & (2**bits - 1 if bits < 8 else 255)
            assert back.tobytes() == ((there != 0).astype(np.uint8) if b.kind == "b" else there).tobytes(), (a, b)


def unique_by_hand(x: list[Any], ascending: bool) -> tuple[list[Any], list[int], list[int], list[int]]:
    seen: list[Any] = []
    for item in x:
        if item not in seen:
            seen.append(item)
    if ascending:
        seen.sort()
    return seen, [x.index(v) for v in seen], [seen.index(v) for v in x], [x.count(v) for v in seen]


def test_unique() -> None:
    peer = Peer()
    for seed in range(40):
        rng = np.random.default_rng(seed)
        shape = tuple(int(n) for n in rng.integers(1, 5, 3))
        x = rng.integers(0, 3, shape).astype((F, np.int64, np.int8, D, np.uint16)[seed % 5])
        axis = (None, 0, 1, -1)[seed % 4]
        ascending = seed // 4 % 2
        rows = x.reshape(-1).tolist() if axis is None else np.moveaxis(x, axis, 0).reshape(shape[axis], -1).tolist()
        want, *places = unique_by_hand(rows, bool(ascending))
        attributes = {"sorted": ascending, **({} if axis is None else {"axis": axis})}
        outputs = [x.dtype, *[np.int64] * 3]
        y, *told = qrun_node("Unique", [x], attributes, outputs=outputs)
        got = y.tolist() if axis is None else np.moveaxis(y, axis, 0).reshape(len(want), -1).tolist()
        assert got == want, f"seed {seed}"
        assert [t.tolist() for t in told] == places, f"seed {seed}"
        peer.check("Unique", [x], attributes, message=f"seed {seed}", rtol=0, atol=0, outputs=outputs)
    peer.finish(0.5)


def test_unique_of_other_elements() -> None:
    y, places, inverse, counts = qrun_node(
        "Unique", [words(np.array([[2, 1], [2, 3]]))], outputs=[np.dtype(object), *[np.int64] * 3]
    )
    assert (y.tolist(), places.tolist(), inverse.tolist(), counts.tolist()) == (
        ["w1", "w2", "w3"], [1, 0, 3], [1, 0, 1, 2], [1, 2, 1],
    )  # fmt: skip
    y, places, _, counts = qrun_node("Unique", [np.array([np.nan, 0, -0.0, np.nan], F)], outputs=[F, *[np.int64] * 3])
    assert y[0] == 0
    assert np.isnan(y[1:]).all()
    assert (places.tolist(), counts.tolist()) == ([1, 0, 3], [2, 1, 1])
    assert [a.shape for a in qrun_node("Unique", [np.zeros((0, 2), F)], outputs=[F, *[np.int64] * 3])] == [(0,)] * 4


def test_max_unpool_undoes_max_pool() -> None:
    for seed in range(12):
        rng = np.random.default_rng(seed)
        x = rng.permutation(2 * 2 * 4 * 6).reshape(2, 2, 4, 6).astype(F)
        size = {"kernel_shape": [2, 2], "strides": [2, 2]}
        y, places = qrun_node("MaxPool", [x], size, outputs=[F, np.int64])
        made = qrun_node("MaxUnpool", [y, places], size)
        assert_equal(made, np.where(np.isin(x, y), x, F(0)))
        wide = qrun_node("MaxUnpool", [y, places, np.array([2, 2, 5, 7])], size)
        assert_equal(wide, np.pad(made, ((0, 0), (0, 0), (0, 1), (0, 1))))


X = np.ones((2, 3, 4), F)


def test_refusals() -> None:
    assert_refused(
        [
            ("shape has 2 numbers", "CenterCropPad", [X, np.array([1, 1])], {}),
            ("a length is negative", "CenterCropPad", [X, np.array([1, 1, -1])], {}),
            ("axis is named twice", "CenterCropPad", [X, np.array([1, 1])], {"axes": [0, -3]}),
            ("geometry does not fit", "Col2Im", [X, np.array([3, 3]), np.array([2])], {}),
            ("geometry does not fit", "Col2Im", [X, np.array([3, 3]), np.array([1, 1])], {"pads": [0, 1, 0, 1, 0]}),
            ("input does not fit the image", "Col2Im", [X, np.array([3, 3]), np.array([1, 3])], {}),
            ("axes are not 0 and 1", "ReverseSequence", [X, np.array([1, 1])], {"time_axis": 2}),
            ("a sequence has length 4", "ReverseSequence", [X, np.array([1, 4])], {"time_axis": 1, "batch_axis": 0}),
            ("sequence_lens has 1 numbers", "ReverseSequence", [X, np.array([1])], {"time_axis": 1, "batch_axis": 0}),
            ("update does not fit", "TensorScatter", [X, X[:1]], {}),
            ("update does not fit", "TensorScatter", [X, X], {"axis": 0}),
            ("mode is bad", "TensorScatter", [X, X], {"mode": "bad"}),
            ("write_indices has 1", "TensorScatter", [X, X, np.array([0, 1])], {}),
            ("write_indices do not fit", "TensorScatter", [X, X, np.array([0])], {}),
            ("sorted is 2", "Unique", [X], {"sorted": 2}),
            ("index 30 is out of bounds", "MaxUnpool", [X, np.full(X.shape, 30)], {"kernel_shape": [2]}),
        ],
        opset=24,
    )
    assert_refused([("the types have other bits", "BitCast", [X], {"to": kind}) for kind in (11, 8)], opset=26)
