"""Reductions, ArgMin, GlobalMaxPool, LogSoftmax, Einsum and the normalizations; hostile attributes of all of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.float import Peer, assert_close, qrun_node
from helpers.support import assert_equal

from qrun.errors import MemoryLimitError, OperatorError, QrunError
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


def test_reductions_like_onnxruntime() -> None:
    peer = Peer()
    for seed, op_type in enumerate(REDUCTIONS):
        x = np.random.default_rng(seed).uniform(0.5, 2, (3, 4, 5)).astype(F)
        for axes in ([0], [-1], [0, 2], []):
            peer.check(op_type, [x, np.array(axes, I64)], opset=18, message=f"{op_type} seed {seed} {axes}")
            peer.check(op_type, [x], {"axes": axes} if axes else {}, opset=11, message=f"{op_type} seed {seed} {axes}")
    peer.finish()


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


def test_misfits_are_refused() -> None:
    x, three = np.ones((2, 4, 3), F), np.ones(3, F)
    refusals = [
        ("InstanceNormalization", [x, three, three], {}, "scale does not fit"),
        ("InstanceNormalization", [three, three, three], {}, "input does not fit"),
        ("GroupNormalization", [x, np.ones(4, F), three], {"num_groups": 2}, "bias does not fit"),
        ("GroupNormalization", [x, np.ones(4, F), np.ones(4, F)], {"num_groups": 3}, "num_groups is 3"),
        ("GroupNormalization", [x, np.ones(4, F), np.ones(4, F)], {"num_groups": 0}, "num_groups is 0"),
        ("LayerNormalization", [x, np.ones(4, F)], {}, "Scale does not fit"),
        ("LayerNormalization", [x, three, np.ones((1, 1, 1, 3), F)], {}, "B does not fit"),
        ("LayerNormalization", [x, three], {"stash_type": 7}, "stash_type"),
        ("LayerNormalization", [x, three], {"axis": 3}, "axis 3 does not exist"),
        ("RMSNormalization", [x, np.ones(2, F)], {}, "scale does not fit"),
        ("LpNormalization", [x], {"p": 3}, "p is 3"),
        ("MeanVarianceNormalization", [x], {}, "does not exist"),
        ("ReduceMax", [x, np.array([3])], {}, "axes 3 does not exist"),
        ("ReduceL2", [x, np.array([0, -3])], {}, "named twice"),
    ]
    for op_type, inputs, attributes, text in refusals:
        with pytest.raises(OperatorError, match=text):
            qrun_node(op_type, inputs, attributes, opset=23)


def attempt(op_type: str, inputs: list[Any], attributes: dict[str, Any]) -> str:
    """The code of the error, or nothing."""
    outputs = [F] * (1 + (op_type == "TopK"))
    try:
        qrun_node(op_type, inputs, attributes, opset=28, max_memory=2**27, outputs=outputs)
    except QrunError as error:
        return error.code
    return ""


@pytest.mark.parametrize("value", [-(2**63), -1, 0, 2**31, 2**63 - 1])
def test_hostile_integers_are_refused_or_harmless(value: int) -> None:
    """Whatever an attribute or an index says, the outcome is a result or a QrunError that says what is wrong."""
    x, k = np.ones((1, 4, 2, 2), F), np.array(value)
    square, four = np.ones((2, 2), F), np.ones(4, F)
    nodes: list[tuple[str, list[Any], dict[str, Any]]] = [
        *((name, [x], {"axis": value}) for name in ("LogSoftmax", "ArgMin", "LpNormalization")),
        *((name, [x, k.reshape(1)], {}) for name in ("ReduceMax", "ReduceLogSumExp", "Expand", "Tile", "TopK")),
        *((name, [x], {"blocksize": value}) for name in ("DepthToSpace", "SpaceToDepth")),
        ("LpNormalization", [x], {"p": value}),
        ("MeanVarianceNormalization", [x], {"axes": [value]}),
        ("GroupNormalization", [x, four, four], {"num_groups": value}),
        ("GroupNormalization", [x, four, four], {"num_groups": 2, "stash_type": value}),
        ("LayerNormalization", [x, np.ones(2, F)], {"axis": value}),
        ("LayerNormalization", [x, np.ones(2, F)], {"stash_type": value}),
        ("RMSNormalization", [x, np.ones(2, F)], {"axis": value}),
        ("EyeLike", [square], {"k": value}),
        ("EyeLike", [square], {"dtype": value}),
        ("Trilu", [square, k], {}),
        ("CumSum", [square, k], {}),
        ("Range", [np.array(0), k, np.array(1)], {}),
        ("Range", [k, np.array(5), np.array(2**62)], {}),
        ("Range", [np.array(3), np.array(5), k], {}),
        ("OneHot", [np.array([1]), k, np.ones(2, F)], {}),
        ("OneHot", [k.reshape(1), np.array(2), np.ones(2, F)], {"axis": value}),
        ("Compress", [square, np.ones(2, bool)], {"axis": value}),
        ("Mod", [np.array([7]), k], {"fmod": value}),
        ("Pow", [np.array([7]), k], {}),
        ("BitShift", [np.array([7]), k], {"direction": "LEFT"}),
        ("GatherElements", [square, k.reshape(1, 1)], {"axis": value}),
        ("ScatterElements", [square, k.reshape(1, 1), square[:1, :1]], {}),
        ("GatherND", [square, k.reshape(1, 1)], {"batch_dims": value}),
        ("ScatterND", [square, k.reshape(1, 1), square[:1]], {}),
        *((name, [np.array([value, 5]), k], {}) for name in ("Max", "Equal", "BitwiseXor")),
    ]
    for op_type, inputs, attributes in nodes:
        outcome = attempt(op_type, inputs, attributes)
        assert outcome not in ("QR210", "QR211"), f"{op_type} {attributes}: {outcome}"
