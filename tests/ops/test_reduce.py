"""Reductions, ArgMin, ArgMax, GlobalMaxPool, LogSoftmax, Einsum, the normalizations and Dropout."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.float import Peer, assert_close, assert_refused, qrun_node
from helpers.support import assert_equal

from qrun.errors import MemoryLimitError, OperatorError
from qrun.memory import Budget
from qrun.ops import Context, find
from qrun.ops._float import narrow

F, H, BF, D, I64 = np.float32, np.float16, ml_dtypes.bfloat16, np.float64, np.int64
FLOATS = [H, BF, F, D]
INTEGERS = [np.int32, np.int64, np.uint32, np.uint64]


def call(op_type: str, *args: Any, version: int = 28, **attributes: Any) -> Any:
    definition = find("", op_type, version)
    assert definition is not None
    if definition.takes_context:
        attributes.setdefault("ctx", Context(version=version, budget=Budget(2**26)))
    return definition(*args, **attributes)


def log_sum(values: list[Fraction]) -> float:
    total = float(sum(values))
    return math.log(total) if total > 0 else -math.inf if total == 0 else math.nan


def log_sum_exp(values: list[Fraction]) -> float:
    top = max(values)
    return float(top) + math.log(math.fsum(math.exp(float(v - top)) for v in values))


def root(values: list[Fraction]) -> float:
    """The square root of the exact sum of squares, which is below 2**53 for integers here."""
    return math.sqrt(sum(v * v for v in values))


REDUCTIONS: dict[str, Callable[[list[Fraction]], Any]] = {
    "ReduceMax": max,
    "ReduceMin": min,
    "ReduceProd": math.prod,
    "ReduceL1": lambda values: sum(map(abs, values)),
    "ReduceL2": root,
    "ReduceSumSquare": lambda values: sum(v * v for v in values),
    "ReduceLogSum": log_sum,
    "ReduceLogSumExp": log_sum_exp,
    "ReduceSum": sum,
    "ReduceMean": lambda values: sum(values) / len(values),
}
EMPTY = {"ReduceMax": -np.inf, "ReduceMin": np.inf, "ReduceProd": 1.0, "ReduceLogSum": -np.inf,
         "ReduceLogSumExp": -np.inf, "ReduceMean": np.nan}  # fmt: skip


def rows(x: np.ndarray, axes: tuple[int, ...]) -> list[list[Fraction]]:
    kept = [a for a in range(x.ndim) if a not in axes]
    matrix = x.transpose(*kept, *axes).reshape(math.prod(x.shape[a] for a in kept), -1)
    return [[Fraction(v) for v in row] for row in matrix.astype(D if x.dtype.kind not in "iu" else object).tolist()]


@pytest.mark.parametrize("op_type", REDUCTIONS)
def test_reductions_by_exact_arithmetic(op_type: str) -> None:
    for seed, (dtype, axes) in enumerate(itertools.product([*FLOATS, *INTEGERS], [(0,), (1, 2), (0, 1, 2), (2, 0)])):
        rng = np.random.default_rng(seed)
        integer = np.dtype(dtype).kind in "iu"
        low = 0 if np.dtype(dtype).kind == "u" else -9
        x = (rng.integers(low, 10, (2, 3, 4)) if integer else rng.normal(1, 2, (2, 3, 4))).astype(dtype)
        if integer and seed % 2 and op_type in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"):
            x = rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, (2, 3, 4), dtype, endpoint=True)
        if integer and op_type.startswith("ReduceLog"):
            x = abs(x) + x.dtype.type(1)
        for keep in (0, 1):
            made = qrun_node(op_type, [x, np.array([a - 3 for a in axes])], {"keepdims": keep}, opset=18)
            assert made.shape == tuple((1 if a in axes else n) for a, n in enumerate(x.shape) if keep or a not in axes)
            older = call(op_type, x, axes=axes, keepdims=keep, version=11)
            assert_equal(older, made, f"{op_type} seed {seed}")
        for got, values in zip(made.reshape(-1), rows(x, axes), strict=True):
            want = REDUCTIONS[op_type](values)
            message = f"{op_type} seed {seed} {np.dtype(dtype)}: {[float(v) for v in values]}"
            if integer:
                bits = 8 * x.itemsize
                assert (int(got) - int(want)) % 2**bits == 0, message
            else:
                near = narrow(float(want), np.dtype(dtype)).astype(D)
                spare = 1e-12 if dtype is D else 0
                np.testing.assert_allclose(got.astype(D), near, rtol=spare, atol=spare, err_msg=message)


@pytest.mark.parametrize("op_type", REDUCTIONS)
def test_reductions_of_nothing_and_of_no_axes(op_type: str) -> None:
    for dtype in FLOATS:
        got = qrun_node(op_type, [np.zeros((2, 0, 3), dtype), np.array([1])], opset=18)
        assert got.shape == (2, 1, 3)
        np.testing.assert_array_equal(got.astype(D), EMPTY.get(op_type, 0.0))
    for dtype in INTEGERS:
        got = qrun_node(op_type, [np.zeros((0, 2), dtype)], {"keepdims": 0}, opset=18)
        info = np.iinfo(dtype)
        if not op_type.startswith("ReduceLog"):
            assert got.tolist() == {"ReduceMax": info.min, "ReduceMin": info.max, "ReduceProd": 1}.get(op_type, 0)
    x = np.array([[1.5, -2.0]], F)
    none = np.zeros(0, I64)
    kept = qrun_node(op_type, [x, none], {"noop_with_empty_axes": 1}, opset=18)
    alone = [REDUCTIONS[op_type]([Fraction(float(v))]) for v in x[0]]
    np.testing.assert_allclose(kept, np.array([alone], D), rtol=1e-7)
    assert qrun_node(op_type, [x, none], opset=18).shape == (1, 1)
    assert qrun_node(op_type, [np.array(2.0, F)], opset=18).shape == ()
    nan = qrun_node(op_type, [np.array([1, np.nan, 2], F)], opset=18)
    assert np.isnan(nan).all()


def test_reductions_by_hand() -> None:
    bools = np.array([[True, False], [False, False]])
    assert qrun_node("ReduceMax", [bools, np.array([1])], {"keepdims": 0}, opset=20).tolist() == [True, False]
    assert qrun_node("ReduceMin", [bools, np.array([0])], {"keepdims": 0}, opset=20).tolist() == [False, False]
    assert not qrun_node("ReduceMax", [bools[:0]], {"keepdims": 0}, opset=20)
    big = np.array([1000.0, 1000.0], F)
    assert_close(qrun_node("ReduceLogSumExp", [big], opset=18), np.array([1000 + math.log(2)], F), rtol=1e-7)
    ends = np.array([[np.inf, 1], [-np.inf, -np.inf], [-np.inf, 3]], F)
    got = qrun_node("ReduceLogSumExp", [ends, np.array([1])], {"keepdims": 0}, opset=18)
    assert got.tolist() == [np.inf, -np.inf, 3]
    large = np.array([2e4, 2e4], H)
    assert qrun_node("ReduceL2", [large], opset=18)[0] == H(2e4 * math.sqrt(2)), "no overflow on the way"
    assert qrun_node("ReduceSumSquare", [np.array([2**31 - 1], np.int32)], opset=18).tolist() == [1]


@pytest.mark.parametrize("dtype", [*FLOATS, np.int8, np.uint64])
def test_arg_min(dtype: type) -> None:
    x = np.array([[3, 1, 1, 2], [5, 5, 5, 5]]).astype(dtype)
    for last, want in ((0, [[1], [0]]), (1, [[2], [3]])):
        got = qrun_node("ArgMin", [x], {"axis": 1, "select_last_index": last}, opset=13, outputs=[I64])
        assert got.tolist() == want
    assert call("ArgMin", x, axis=-2, keepdims=0, version=11).tolist() == [0, 0, 0, 0]
    with pytest.raises(OperatorError, match="no elements"):
        qrun_node("ArgMin", [x[:0]], opset=13, outputs=[I64])


def test_global_max_pool() -> None:
    peer = Peer()
    for seed, shape in enumerate([(2, 3, 4, 5), (1, 2, 7), (2, 1, 2, 3, 2)]):
        x = np.random.default_rng(seed).normal(0, 1, shape).astype(F)
        peer.check("GlobalMaxPool", [x], message=f"seed {seed}", rtol=0, atol=0)
    peer.finish()
    for dtype in FLOATS:
        x = np.array([[[1, np.nan], [-3, -2]]]).astype(dtype)
        got = qrun_node("GlobalMaxPool", [x], opset=22)
        assert np.isnan(got[0, 0, 0])
        assert got[0, 1, 0] == dtype(-2)
        assert np.isneginf(qrun_node("GlobalMaxPool", [x[..., :0]], opset=22).astype(D)).all()
    with pytest.raises(OperatorError, match="no spatial axes"):
        qrun_node("GlobalMaxPool", [np.zeros(3, F)])


def test_log_softmax() -> None:
    peer = Peer()
    for seed in range(4):
        x = np.random.default_rng(seed).normal(0, 20, (2, 3, 4)).astype(F)
        for axis in (-1, 0, 1):
            peer.check("LogSoftmax", [x], {"axis": axis}, opset=13, message=f"seed {seed}")
            peer.check("LogSoftmax", [x], {"axis": axis}, opset=11, message=f"seed {seed}")
    peer.finish()
    x = np.array([[0, 0, 200], [1, np.inf, 2], [-np.inf, 5, -np.inf]], F)
    got = qrun_node("LogSoftmax", [x], opset=13)
    assert got[0].tolist() == [-200, -200, 0]
    assert np.isnan(got[1, 1])
    assert got[2].tolist() == [-np.inf, 0, -np.inf]
    assert qrun_node("LogSoftmax", [x[:0]], opset=13).shape == (0, 3)


EQUATIONS: list[tuple[str, list[tuple[int, ...]]]] = [
    ("ij,jk->ik", [(2, 3), (3, 4)]),
    ("ij,jk", [(2, 3), (3, 4)]),
    ("ba,ca", [(2, 3), (4, 3)]),
    ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
    ("bhqk,bhkd->bqhd", [(2, 3, 4, 6), (2, 3, 6, 5)]),
    ("ii->i", [(4, 4)]),
    ("ii", [(4, 4)]),
    ("iji->j", [(3, 2, 3)]),
    ("iii->i", [(3, 3, 3)]),
    ("ij->ji", [(2, 3)]),
    ("ij->", [(2, 3)]),
    ("i,j->ij", [(2,), (3,)]),
    ("i,i", [(3,), (3,)]),
    (",->", [(), ()]),
    ("ij,kl->", [(2, 3), (4, 5)]),
    ("...ij,...jk->...ik", [(2, 1, 3, 4), (5, 4, 2)]),
    ("... i j , ... j k", [(2, 3, 4), (4, 2)]),
    ("...,...->...", [(2, 1), (3,)]),
    ("i...->...i", [(2, 3, 4)]),
    ("...->...", [(2, 3)]),
    ("...i->i...", [(2, 3)]),
    ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
    ("ij,ij,ij->i", [(2, 3), (2, 3), (2, 3)]),
    ("bij,bjk,bk->bi", [(2, 3, 4), (2, 4, 5), (2, 5)]),
    ("aB,Bc->ca", [(2, 3), (3, 4)]),
    ("bA,bc", [(2, 3), (2, 4)]),
    ("ij,jk->ik", [(0, 3), (3, 4)]),
    ("ij,jk->ik", [(2, 0), (0, 4)]),
    ("iij,jkk->ki", [(3, 3, 2), (2, 4, 4)]),
]


def test_einsum() -> None:
    peer = Peer()
    for seed, (equation, shapes) in enumerate(EQUATIONS):
        rng = np.random.default_rng(seed)
        for dtype in (F, D, np.int32, H):
            arrays = [rng.integers(-5, 6, s).astype(dtype) for s in shapes]
            message = f"{equation} seed {seed} {np.dtype(dtype)}"
            got = qrun_node("Einsum", arrays, {"equation": equation}, opset=28)
            want = np.einsum(equation, *(a.astype(I64) for a in arrays)).astype(dtype)
            assert_equal(got, np.asarray(want), message)
            if dtype is F and all(a.size for a in arrays):
                peer.check("Einsum", arrays, {"equation": equation}, opset=13, message=message)
    peer.finish(0.8)
    wrapped = qrun_node("Einsum", [np.full(3, 100, np.int8)] * 2, {"equation": "i,i"}, opset=13)
    assert wrapped.tolist() == (30000 + 128) % 256 - 128
    ones = np.full((1, 4), 3, F)
    assert qrun_node("Einsum", [ones, np.ones((4, 4), F)], {"equation": "ij,ij->ij"}, opset=13).shape == (4, 4)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk", [(2, 3)]),
        ("ij", [(2, 3), (3, 4)]),
        ("ijk", [(2, 3)]),
        ("i", [(2, 3)]),
        ("ij->ijk", [(2, 3)]),
        ("ij->ii", [(2, 3)]),
        ("ij->...", [(2, 3)]),
        ("i.j", [(2, 3)]),
        ("......", [(2, 3)]),
        ("i1", [(2, 3)]),
        ("", [(2, 3)]),
        ("ij->j->i", [(2, 3)]),
        ("ij,jk", [(2, 3), (4, 5)]),
        ("ii", [(2, 3)]),
        ("...i,...i", [(2, 3), (4, 3)]),
    ],
)
def test_einsum_refuses(equation: str, shapes: list[tuple[int, ...]]) -> None:
    with pytest.raises(OperatorError):
        qrun_node("Einsum", [np.ones(s, F) for s in shapes], {"equation": equation}, opset=13)


def test_einsum_claims_its_products() -> None:
    one = np.ones(10**4, F)
    with pytest.raises(MemoryLimitError):
        call("Einsum", one, one, equation="i,j->ij")
    with pytest.raises(MemoryLimitError):
        call("Einsum", one, one[:1], one, equation="i,j,k->ijk")
    assert call("Einsum", one, one, one, equation="i,j,k->i").tolist() == [1e8] * 10**4


def standardized(x: np.ndarray, axes: tuple[int, ...], epsilon: float) -> np.ndarray:
    wide = x.astype(D)
    mean = wide.mean(axis=axes, keepdims=True)
    return (wide - mean) / np.sqrt(((wide - mean) ** 2).mean(axis=axes, keepdims=True) + epsilon)


def test_normalizations_like_onnxruntime() -> None:
    peer = Peer()
    for seed in range(5):
        rng = np.random.default_rng(seed)
        x = rng.normal(3, 2, (2, 6, 4, 5)).astype(F)
        scale, bias = (rng.normal(0, 1, 6).astype(F) for _ in range(2))
        message = f"seed {seed}"
        peer.check("InstanceNormalization", [x, scale, bias], {"epsilon": 1e-3}, message=message, atol=1e-5)
        for axis in (-1, 1, 3, -2):
            shape = x.shape[axis:]
            w, b = (rng.normal(0, 1, shape).astype(F) for _ in range(2))
            peer.check(
                "LayerNormalization", [x, w, b], {"axis": axis}, outputs=[F] * 3, opset=17, message=message, atol=1e-5
            )
            peer.check("LayerNormalization", [x, w], {"axis": axis}, opset=17, message=message, atol=1e-5)
            peer.check("RMSNormalization", [x, w], {"axis": axis}, opset=23, message=message, atol=1e-5)
        for groups in (1, 2, 6):
            attributes = {"num_groups": groups}
            peer.check("GroupNormalization", [x, scale, bias], attributes, opset=21, message=message, atol=1e-5)
        peer.check("MeanVarianceNormalization", [x], opset=13, message=message, atol=1e-5)
        for p, axis in itertools.product((1, 2), (-1, 0, 2)):
            peer.check("LpNormalization", [x], {"p": p, "axis": axis}, message=message)
    peer.finish()


@pytest.mark.parametrize("dtype", FLOATS)
def test_normalizations_are_rounded_once(dtype: type) -> None:
    rng = np.random.default_rng(21)
    x = rng.normal(5, 2, (3, 4, 7)).astype(dtype)
    scale, bias = (rng.normal(0, 1, 4).astype(dtype) for _ in range(2))
    s, b = scale.astype(D).reshape(4, 1), bias.astype(D).reshape(4, 1)
    eps = float(F(1e-5))
    groups = standardized(x.reshape(3, 2, 14), (2,), eps).reshape(x.shape)
    wide = x.astype(D)
    root_mean = np.sqrt((wide**2).mean(axis=(1, 2), keepdims=True) + eps)
    layer = {"axis": 1}
    cases = [
        ("InstanceNormalization", [x, scale, bias], {}, standardized(x, (2,), eps) * s + b),
        ("GroupNormalization", [x, scale, bias], {"num_groups": 2}, groups * s + b),
        (
            "LayerNormalization",
            [x, scale.reshape(4, 1), bias.reshape(4, 1)],
            layer,
            standardized(x, (1, 2), eps) * s + b,
        ),
        ("RMSNormalization", [x, scale.reshape(4, 1)], layer, wide / root_mean * s),
        ("LpNormalization", [x], {"p": 1}, wide / np.abs(wide).sum(-1, keepdims=True)),
    ]
    for op_type, inputs, attributes, want in cases:
        got = qrun_node(op_type, inputs, attributes, opset=23)
        if dtype is D:
            np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-14)
        else:
            differ = got != narrow(want, np.dtype(dtype))
            assert differ.mean() < 0.01, f"{op_type} seed 21: {got[differ][:3]}"


def test_normalizations_by_hand() -> None:
    x = np.array([[[2.0, 2.0]]], F)
    one, two = np.ones(1, F), np.full(1, 2, F)
    assert qrun_node("InstanceNormalization", [x, one, two]).tolist() == [[[2, 2]]]
    assert qrun_node("LpNormalization", [np.zeros((2, 2), F)]).tolist() == [[0, 0], [0, 0]]
    constant = np.full((1, 1, 2, 2), 4, F)
    assert not qrun_node("MeanVarianceNormalization", [constant], opset=13).any()
    rows, mean, inverse = qrun_node(
        "LayerNormalization", [np.array([[1, 3], [5, 5]], BF), np.ones(2, BF)], {"epsilon": 0.25}, outputs=[BF, F, F]
    )
    assert mean.tolist() == [[2], [5]]
    assert_close(inverse, np.array([[1 / math.sqrt(1.25)], [2]], F), rtol=1e-7)
    assert rows[1].tolist() == [0, 0]
    stashed = qrun_node("LayerNormalization", [x, one], {"stash_type": 16}, outputs=[F, BF, BF])
    assert stashed[1].dtype == BF
    mixed = qrun_node("RMSNormalization", [np.array([[3, 4]], F), np.ones(2, H)], opset=23, outputs=[H])
    assert mixed.dtype == H
    assert qrun_node("InstanceNormalization", [np.zeros((0, 1, 3), F), one, two]).shape == (0, 1, 3)
    assert qrun_node("InstanceNormalization", [np.zeros((2, 0, 3), F), one[:0], one[:0]]).shape == (2, 0, 3)
    assert np.isnan(qrun_node("GroupNormalization", [x * np.inf, one, two], {"num_groups": 1})).all()


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


def test_empty_axes() -> None:
    x = np.arange(6, dtype=F).reshape(2, 3)
    for op_type, opset, total in (("ReduceMean", 18, 2.5), ("ReduceSum", 13, 15)):
        for extra in ([], [np.zeros(0, np.int64)]):
            assert qrun_node(op_type, [x, *extra], {"keepdims": 0}, opset=opset) == total
            assert qrun_node(op_type, [x, *extra], opset=opset).tolist() == [[total]]
            same = qrun_node(op_type, [x, *extra], {"noop_with_empty_axes": 1, "keepdims": 0}, opset=opset)
            assert_equal(same, x)


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


SHAPES = [
    ((3, 4), (0,)),
    ((3, 4), (-1,)),
    ((2, 3, 4), (2, 0)),
    ((2, 3, 4), ()),
    ((5,), (0,)),
    ((), ()),
    ((2, 0, 3), (0,)),
]


@pytest.mark.parametrize("op_type", REDUCTIONS)
def test_reductions_like_onnxruntime(op_type: str) -> None:
    """Of no elements it has another idea, but of sums and means."""
    peer = Peer()
    summing, rng = op_type in ("ReduceSum", "ReduceMean"), np.random.default_rng(7)
    for opset, (shape, axes), keep in itertools.product((7, 11, 13, 18), SHAPES, (0, 1)):
        as_input = opset >= (13 if op_type == "ReduceSum" else 18)
        for dtype in (F, D, np.int32) if summing else (F,):
            if not summing and 0 in shape:
                continue
            x = np.asarray(rng.standard_normal(shape) * 1000 if summing else rng.uniform(0.5, 2, shape)).astype(dtype)
            along = tuple(a % len(shape) for a in axes) if opset < 11 else axes
            inputs = [x, np.array(along, I64)] if along and as_input else [x]
            attributes = {"keepdims": keep, **({"axes": along} if along and not as_input else {})}
            message = f"seed 7 {op_type}-{opset} {shape} {along} {np.dtype(dtype)}"
            peer.check(op_type, inputs, attributes, opset=opset, message=message, atol=1e-4 if summing else 1e-6)
    peer.finish(0.9)


def test_refusals() -> None:
    x, three, four = np.ones((2, 4, 3), F), np.ones(3, F), np.ones(4, F)
    assert_refused(
        [
            ("scale does not fit", "InstanceNormalization", [x, three, three], {}),
            ("input does not fit", "InstanceNormalization", [three, three, three], {}),
            ("bias does not fit", "GroupNormalization", [x, four, three], {"num_groups": 2}),
            ("num_groups is 3", "GroupNormalization", [x, four, four], {"num_groups": 3}),
            ("num_groups is 0", "GroupNormalization", [x, four, four], {"num_groups": 0}),
            ("Scale does not fit", "LayerNormalization", [x, four], {}),
            ("B does not fit", "LayerNormalization", [x, three, np.ones((1, 1, 1, 3), F)], {}),
            ("stash_type", "LayerNormalization", [x, three], {"stash_type": 7}),
            ("axis 3 does not exist", "LayerNormalization", [x, three], {"axis": 3}),
            ("scale does not fit", "RMSNormalization", [x, np.ones(2, F)], {}),
            ("p is 3", "LpNormalization", [x], {"p": 3}),
            ("does not exist", "MeanVarianceNormalization", [x], {}),
            ("axes 3 does not exist", "ReduceMax", [x, np.array([3])], {}),
            ("named twice", "ReduceL2", [x, np.array([0, -3])], {}),
            ("axes 3", "ReduceSum", [x, np.array([3])], {}),
            ("twice", "ReduceSum", [x, np.array([0, -3])], {}),
            ("vector", "ReduceMean", [x, np.array([[0]])], {}),
            ("axes", "ReduceMean", [x, np.array([-(2**40)])], {}),
            ("axis 3", "ArgMax", [x], {"axis": 3}),
            ("no elements", "ArgMax", [x[:0]], {}),
        ],
        opset=23,
    )
