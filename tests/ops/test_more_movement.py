"""Expand, Tile, Range, EyeLike, OneHot, Trilu, Where, NonZero, Compress, DepthToSpace, CumSum, TopK,
Gather*, Scatter*."""

from __future__ import annotations

import itertools
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.float import Peer, qrun_node
from helpers.support import assert_equal, node_model, run_qrun

import qrun
from qrun.errors import MemoryLimitError
from qrun.memory import Budget
from qrun.ops import Context, find

F, D, I64 = np.float32, np.float64, np.int64
TYPES = [F, np.float16, ml_dtypes.bfloat16, D, np.int8, np.uint64, np.bool_, np.complex64, np.object_]


def ints(*values: int) -> np.ndarray:
    return np.array(values, I64)


def sample(dtype: Any, *shape: int) -> np.ndarray:
    count = int(np.prod(shape))
    if dtype is np.object_:
        return np.array([f"s{i}" for i in range(count)], object).reshape(shape)
    return (np.arange(count) % 7 - (0 if np.dtype(dtype).kind in "bu" else 3)).astype(dtype).reshape(shape)


def call(op_type: str, *args: Any, version: int = 28, **attributes: Any) -> Any:
    definition = find("", op_type, version)
    assert definition is not None
    if definition.takes_context:
        attributes.setdefault("ctx", Context(version=version, budget=Budget(2**26)))
    return definition(*args, **attributes)


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


def test_a_session_runs_the_oldest_and_newest_forms() -> None:
    x = sample(F, 2, 3)
    for opset in (8, 28):
        assert qrun_node("Expand", [x, ints(2, 1, 3)], opset=opset).shape == (2, 2, 3)
        assert qrun_node("Tile", [x, ints(1, 2)], opset=opset).shape == (2, 6)
    assert qrun_node("Scatter", [x, np.array([[0]]), x[:1, :1]], opset=9).shape == (2, 3)
    assert qrun_node("TopK", [x], {"k": 1}, opset=7, outputs=[F, I64])[1].tolist() == [[2], [2]]
