"""BatchNormalization, LRN, Dropout, ReduceMean, ReduceSum, ArgMax."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from helpers.float import Peer, assert_close, qrun_node
from helpers.support import assert_equal

from qrun.errors import OperatorError
from qrun.ops._float import narrow

F, BF = np.float32, ml_dtypes.bfloat16


def channels(rng: np.random.Generator, shape: tuple[int, ...]) -> list[np.ndarray]:
    scale, bias, mean = (rng.standard_normal(shape).astype(F) for _ in range(3))
    return [scale, bias, mean, rng.random(shape).astype(F)]


@pytest.mark.parametrize("opset", [7, 9, 14, 15, 22])
def test_batch_normalization_equals_onnxruntime(opset: int) -> None:
    rng = np.random.default_rng(opset)
    peer = Peer()
    for shape in ((2, 3), (2, 3, 4), (1, 4, 5, 6), (2, 2, 3, 2, 2), (0, 3, 2)):
        x = rng.standard_normal(shape).astype(F)
        params = channels(rng, (shape[1],))
        for attributes in ({}, {"epsilon": 0.1}):
            message = f"seed {opset} {shape} {attributes}"
            got = peer.check("BatchNormalization", [x, *params], attributes, opset=opset, message=message)[0]
            scale, bias, mean, var = (p.astype("d").reshape(-1, *(1,) * (x.ndim - 2)) for p in params)
            epsilon = float(F(attributes.get("epsilon", 1e-5)))
            want = (x - mean) / np.sqrt(var + epsilon) * scale + bias
            assert_close(got, want.astype(F), message, rtol=1e-7, atol=0)
    peer.finish(0.8)


def test_batch_normalization_7_per_element() -> None:
    rng = np.random.default_rng(2)
    x, params = rng.standard_normal((2, 3, 4)).astype(F), channels(rng, (3, 4))
    peer = Peer()
    peer.check("BatchNormalization", [x, *params], {"spatial": 0}, opset=7, message="spatial 0")
    peer.finish(1)
    with pytest.raises(OperatorError, match="scale has shape"):
        qrun_node("BatchNormalization", [x, *params], opset=7)
    with pytest.raises(OperatorError, match="no attribute"):
        qrun_node("BatchNormalization", [x, *params], {"spatial": 0}, opset=9)


@pytest.mark.parametrize("opset", [14, 15])
def test_batch_normalization_in_training(opset: int) -> None:
    rng = np.random.default_rng(3)
    x, params = rng.standard_normal((4, 3, 5)).astype(F), channels(rng, (3,))
    peer = Peer()
    attributes = {"training_mode": 1, "momentum": 0.75}
    options = {"opset": opset, "outputs": [F] * 3}
    y, mean, var = peer.check("BatchNormalization", [x, *params], attributes, message="training", **options)
    peer.finish(1)
    assert_close(mean, params[2] * F(0.75) + x.mean((0, 2)) * F(0.25), "running mean")
    assert_close(var, params[3] * F(0.75) + x.var((0, 2)) * F(0.25), "running variance")
    assert abs(float(((y - params[1].reshape(-1, 1)) / params[0].reshape(-1, 1)).mean())) < 1e-6
    with pytest.raises(OperatorError, match="training"):
        qrun_node("BatchNormalization", [x, *params], opset=opset, outputs=[F] * 3)


def test_batch_normalization_9_trains_when_its_outputs_are_used() -> None:
    rng = np.random.default_rng(4)
    x, params = rng.standard_normal((4, 3, 5)).astype(F), channels(rng, (3,))
    y, mean, var, saved_mean, saved_var = qrun_node("BatchNormalization", [x, *params], opset=9, outputs=[F] * 5)
    assert_close(saved_mean, x.mean((0, 2)), "saved mean", atol=1e-6)
    assert_close(saved_var, x.var((0, 2)), "saved variance")
    assert_close(mean, params[2] * F(0.9) + x.mean((0, 2)) * F(0.1), "running mean")
    assert_close(var, params[3] * F(0.9) + x.var((0, 2)) * F(0.1), "running variance")
    assert y.shape == x.shape


def test_batch_normalization_of_other_types() -> None:
    x = np.array([1, 2, 3, 4], np.float16)
    one = [np.array([v], np.float16) for v in (2, 1, 2, 0)]
    rank1 = qrun_node("BatchNormalization", [x, *one], {"epsilon": 4.0}, opset=15)
    assert_equal(rank1, np.array([0, 1, 2, 3], np.float16))
    mixed = [np.array([2], F), np.array([1], F), np.array([2.0]), np.array([0.0])]
    assert_equal(qrun_node("BatchNormalization", [x.reshape(4, 1), *mixed], {"epsilon": 4.0}, opset=15).ravel(), rank1)
    negative = qrun_node("BatchNormalization", [x.reshape(4, 1), *[-v for v in mixed]], opset=15)
    assert negative.shape == (4, 1)


def test_lrn_equals_onnxruntime_and_the_formula() -> None:
    rng = np.random.default_rng(6)
    peer = Peer()
    for size in (1, 2, 3, 4, 5, 9, 99, 2**62):
        for count in (1, 4, 7):
            x = rng.standard_normal((2, count, 3, 2)).astype(F)
            attributes = {"size": size, "alpha": 0.5, "beta": 0.6, "bias": 1.5}
            if size % 2 and size < 100:
                got = peer.check("LRN", [x], attributes, opset=13, message=f"LRN {size} {count}")[0]
            else:
                got = qrun_node("LRN", [x], attributes, opset=13)
            for c in range(count):
                low, high = max(0, c - (size - 1) // 2), min(count - 1, c + size // 2)
                square = np.square(x[:, low : high + 1].astype("d")).sum(1)
                want = x[:, c] / (1.5 + 0.5 / size * square) ** float(F(0.6))
                assert_close(got[:, c], want.astype(F), f"LRN {size} {count} {c}", rtol=1e-6)
    peer.finish(1)
    with pytest.raises(OperatorError, match="size"):
        qrun_node("LRN", [np.ones((1, 1, 1), F)], {"size": 0})
    assert qrun_node("LRN", [np.ones((1, 0, 2), F)], {"size": 3}).shape == (1, 0, 2)


def test_dropout_in_inference() -> None:
    x = np.random.default_rng(7).standard_normal((3, 4)).astype(F)
    assert_equal(qrun_node("Dropout", [x], {"ratio": 0.9}, opset=7), x)
    y, mask = qrun_node("Dropout", [x], opset=7, outputs=[F, F])
    assert_equal(mask, np.ones_like(x))
    for opset in (10, 12, 22):
        y, mask = qrun_node("Dropout", [x], opset=opset, outputs=[F, bool])
        assert_equal(y, x)
        assert_equal(mask, np.ones(x.shape, bool))
    for ratio, training in ((F(0.5), np.False_), (F(0), np.True_)):
        y, mask = qrun_node("Dropout", [x, ratio, training], opset=13, outputs=[F, bool])
        assert_equal(y, x)
        assert mask.all()


def test_dropout_in_training_repeats_and_scales() -> None:
    x = np.ones((50, 40), F)
    inputs = [x, F(0.75), np.True_]
    y, mask = qrun_node("Dropout", inputs, {"seed": 7}, opset=13, outputs=[F, bool])
    assert_equal(y, np.where(mask, F(4), F(0)))
    assert 0.2 < mask.mean() < 0.3
    again = qrun_node("Dropout", inputs, {"seed": 7}, opset=13, outputs=[F, bool])[1]
    assert_equal(mask, again)
    assert (mask != qrun_node("Dropout", inputs, {"seed": -8}, opset=13, outputs=[F, bool])[1]).any()
    for ratio in (1, -0.1, np.nan):
        with pytest.raises(OperatorError, match="ratio"):
            qrun_node("Dropout", [x, F(ratio), np.True_], opset=13)


REDUCTIONS = [
    ((3, 4), (0,)),
    ((3, 4), (-1,)),
    ((2, 3, 4), (2, 0)),
    ((2, 3, 4), ()),
    ((5,), (0,)),
    ((), ()),
    ((2, 0, 3), (0,)),
]


@pytest.mark.parametrize("op_type", ["ReduceMean", "ReduceSum"])
@pytest.mark.parametrize("opset", [7, 11, 13, 18])
def test_reductions_equal_onnxruntime(op_type: str, opset: int) -> None:
    rng = np.random.default_rng(opset)
    peer = Peer()
    as_input = opset >= (18 if op_type == "ReduceMean" else 13)
    for shape, axes in REDUCTIONS:
        if opset < 11:
            axes = tuple(a % len(shape) for a in axes)
        for keepdims in (0, 1):
            for dtype in (F, np.float64, np.int32):
                x = np.asarray(rng.standard_normal(shape) * 1000).astype(dtype)
                attributes = {"keepdims": keepdims}
                inputs = [x]
                if axes and as_input:
                    inputs.append(np.array(axes, np.int64))
                elif axes:
                    attributes["axes"] = axes
                message = f"{op_type}-{opset} {shape} {axes} {dtype.__name__}"
                peer.check(op_type, inputs, attributes, opset=opset, message=message, atol=1e-4)
    peer.finish(0.9)


def test_empty_axes() -> None:
    x = np.arange(6, dtype=F).reshape(2, 3)
    for op_type, opset, total in (("ReduceMean", 18, 2.5), ("ReduceSum", 13, 15)):
        for extra in ([], [np.zeros(0, np.int64)]):
            assert qrun_node(op_type, [x, *extra], {"keepdims": 0}, opset=opset) == total
            assert qrun_node(op_type, [x, *extra], opset=opset).tolist() == [[total]]
            same = qrun_node(op_type, [x, *extra], {"noop_with_empty_axes": 1, "keepdims": 0}, opset=opset)
            assert_equal(same, x)


def test_reductions_over_nothing() -> None:
    empty = np.zeros((0, 2), F)
    axes = np.array([0], np.int64)
    assert qrun_node("ReduceSum", [empty, axes], {"keepdims": 0}).tolist() == [0, 0]
    assert np.isnan(qrun_node("ReduceMean", [empty, axes])).all()
    assert qrun_node("ReduceMean", [empty.astype(np.int64), axes]).tolist() == [[0, 0]]


def test_reductions_round_once() -> None:
    x = np.array([2.0**24, 1, 1, -(2.0**24)], F)
    assert qrun_node("ReduceSum", [x]) == 2
    assert qrun_node("ReduceMean", [x]) == 0.5
    assert np.isnan(qrun_node("ReduceSum", [np.array([np.inf, -np.inf], F)])).all()
    for dtype in (np.float16, BF):
        x = np.random.default_rng(9).standard_normal((40, 30)).astype(dtype)
        want = [[float(sum(Fraction(float(v)) for v in row)) for row in x]]
        axes = np.array([1], np.int64)
        got = qrun_node("ReduceSum", [x, axes], {"keepdims": 0})
        assert_equal(got, narrow(np.array(want[0]), np.dtype(dtype)), f"seed 9 {dtype.__name__}")


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64])
def test_integer_reductions(dtype: type) -> None:
    rng = np.random.default_rng(10)
    info = np.iinfo(dtype)
    for number in range(30):
        x = rng.integers(info.min if number % 2 else 0, info.max, int(rng.integers(1, 9)), dtype, endpoint=True)
        if number % 3 == 0:
            x = (x % 7 - 3 if info.min else x % 7).astype(dtype)
        values = x.tolist()
        total = sum(values)
        mean = qrun_node("ReduceMean", [x], {"keepdims": 0}, opset=18)
        assert int(mean) == abs(total) // len(values) * (1 if total >= 0 else -1), f"seed 10 case {number}: {values}"
        wrapped = int(qrun_node("ReduceSum", [x], {"keepdims": 0}, opset=13))
        assert (wrapped - total) % 2 ** (8 * x.itemsize) == 0, f"seed 10 case {number}: {values}"


@pytest.mark.parametrize("dtype", [F, np.float64, np.float16, BF, np.int8, np.uint8, np.int32, np.int64, np.uint16])
def test_arg_max(dtype: type) -> None:
    rng = np.random.default_rng(22)
    peer = Peer()
    for shape in ((5,), (3, 6), (2, 5, 3)):
        x = rng.integers(0, 4, shape).astype(dtype)
        for axis in range(-len(shape), len(shape)):
            for last in (0, 1):
                attributes = {"axis": axis, "keepdims": last, "select_last_index": last}
                want = x.astype("d").argmax(axis)
                if last:
                    want = x.shape[axis] - 1 - np.flip(x.astype("d"), axis).argmax(axis)
                    want = np.expand_dims(want, axis)
                message = f"seed 22 {shape} {attributes}"
                got = qrun_node("ArgMax", [x], attributes, opset=13, outputs=[np.int64])
                assert_equal(got, np.asarray(want, np.int64), message)
                if dtype in (F, np.float64, np.int8, np.uint8, np.int32):
                    options = {"opset": 13, "outputs": [np.int64], "rtol": 0, "atol": 0}
                    peer.check("ArgMax", [x], attributes, message=message, **options)
    if peer.ran or peer.skipped:
        peer.finish(0.9)


def test_arg_max_by_hand() -> None:
    x = np.array([[1, np.nan, 3, np.nan], [2, 5, 5, 1]], F)
    assert qrun_node("ArgMax", [x], {"axis": 1, "keepdims": 0}, opset=11, outputs=[np.int64]).tolist() == [1, 1]
    last = {"axis": 1, "keepdims": 0, "select_last_index": 1}
    assert qrun_node("ArgMax", [x], last, opset=12, outputs=[np.int64]).tolist() == [3, 2]
    assert qrun_node("ArgMax", [x[1:]], opset=7, outputs=[np.int64]).tolist() == [[0, 0, 0, 0]]
    assert qrun_node("ArgMax", [np.zeros((0, 3), F)], {"axis": 1}, outputs=[np.int64]).shape == (0, 1)


@pytest.mark.parametrize(
    ("op_type", "attributes", "axes", "text"),
    [
        ("ReduceSum", {}, [2], "axes 2"),
        ("ReduceSum", {}, [0, -2], "twice"),
        ("ReduceMean", {}, [[0]], "vector"),
        ("ReduceMean", {}, [-(2**40)], "axes"),
        ("ArgMax", {"axis": 2}, None, "axis 2"),
    ],
)
def test_refusals(op_type: str, attributes: dict, axes: list | None, text: str) -> None:
    inputs = [np.ones((2, 3), F)] + ([] if axes is None else [np.array(axes, np.int64)])
    with pytest.raises(OperatorError, match=text):
        qrun_node(op_type, inputs, attributes, outputs=[np.int64 if op_type == "ArgMax" else F])
    with pytest.raises(OperatorError, match="no elements"):
        qrun_node("ArgMax", [np.zeros((0, 3), F)], outputs=[np.int64])
