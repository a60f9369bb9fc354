"""MatMul and Gemm."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from helpers.float import Peer, assert_close, qrun_node
from helpers.support import assert_equal, node_model

from qrun import Session
from qrun.errors import MemoryLimitError, OperatorError
from qrun.memory import Budget
from qrun.ops import Context
from qrun.ops._float import narrow
from qrun.ops.matmul import matmul

F = np.float32
SHAPES = [
    ((3, 4), (4, 5)),
    ((4,), (4, 5)),
    ((3, 4), (4,)),
    ((4,), (4,)),
    ((2, 3, 4), (4, 5)),
    ((2, 1, 3, 4), (5, 4, 2)),
    ((3, 4), (2, 4, 5)),
    ((6, 2, 4), (4,)),
    ((3, 0), (0, 2)),
    ((2, 3, 0), (0, 2)),
    ((0, 4), (4, 3)),
    ((2, 3, 4), (4, 0)),
    ((1, 1), (1, 1)),
]


@pytest.mark.parametrize("opset", [7, 9, 13])
def test_matmul_equals_onnxruntime(opset: int) -> None:
    rng = np.random.default_rng(opset)
    peer = Peer()
    for shapes in SHAPES:
        a, b = (rng.integers(-9, 10, s).astype(F) for s in shapes)
        peer.check("MatMul", [a, b], opset=opset, message=f"exact {shapes}", rtol=0, atol=0)
        a, b = (rng.standard_normal(s).astype(F) for s in shapes)
        peer.check("MatMul", [a, b], opset=opset, message=str(shapes))
        peer.check("MatMul", [a.astype("d"), b.astype("d")], opset=opset, message=str(shapes), rtol=1e-12, atol=1e-12)
    peer.finish(0.9)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64])
def test_integer_matmul_wraps(dtype: type) -> None:
    rng = np.random.default_rng(5)
    info = np.iinfo(dtype)
    peer = Peer()
    for shapes in SHAPES:
        for low, high in ((0, 9), (info.min, info.max)):
            a, b = (np.asarray(rng.integers(low, high, s, dtype, endpoint=True)) for s in shapes)
            got = peer.check("MatMul", [a, b], opset=13, message=f"{shapes}", rtol=0, atol=0)[0]
            plain = np.matmul(a.astype(object), b.astype(object)) if min(*a.shape, *b.shape) else np.zeros(got.shape)
            bits = 8 * a.itemsize
            for x, y in zip(np.asarray(got).ravel().tolist(), np.asarray(plain).ravel().tolist(), strict=True):
                assert (x - int(y)) % 2**bits == 0, f"{dtype.__name__} {shapes}"


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_products_of_narrow_types_are_those_of_float32_rounded_once(dtype: type) -> None:
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((7, 300)).astype(dtype), rng.standard_normal((300, 9)).astype(dtype)
    want = narrow(matmul(a.astype(F), b.astype(F)), np.dtype(dtype))
    assert_equal(qrun_node("MatMul", [a, b]), want)
    assert_equal(qrun_node("Gemm", [a, b]), want)
    large = np.array([[2**15, 1, 1, -(2**15)]], dtype)
    assert matmul(large, np.full((4, 1), 0.5, dtype)).tolist() == [[1]]


def test_views() -> None:
    rng = np.random.default_rng(4)
    a, b = rng.integers(-9, 9, (6, 8)).astype(F), rng.integers(-9, 9, (5, 8)).astype("d")
    a.flags.writeable = False
    left, right = a[::2, ::-1], b.T.astype(F)
    assert_equal(matmul(left, right), matmul(left.copy(), right.copy()))
    spread = np.broadcast_to(b[0], (3, 8))
    assert_equal(matmul(spread, b.T), np.matmul(spread.copy(), b.T.copy()))


@pytest.mark.parametrize("opset", [7, 9, 11, 13])
def test_gemm_equals_onnxruntime(opset: int) -> None:
    rng = np.random.default_rng(30 + opset)
    peer = Peer()
    for number in range(60):
        m, k, n = (int(v) for v in rng.integers(1, 7, 3))
        ta, tb = (int(v) for v in rng.integers(0, 2, 2))
        a = rng.standard_normal((k, m) if ta else (m, k)).astype(F)
        b = rng.standard_normal((n, k) if tb else (k, n)).astype(F)
        c_shape = [(m, n), (n,), (1, n), (m, 1), (), (1,), (1, 1), None][number % 8]
        if c_shape is None and opset < 11:
            c_shape = (n,)
        inputs = [a, b] if c_shape is None else [a, b, np.asarray(rng.standard_normal(c_shape), F)]
        attributes = {"transA": ta, "transB": tb}
        if number % 3:
            attributes |= {"alpha": float(rng.standard_normal()), "beta": float(rng.standard_normal())}
        peer.check("Gemm", inputs, attributes, opset=opset, message=f"seed {30 + opset} case {number} {attributes}")
    peer.finish(0.95)


def test_gemm_by_hand() -> None:
    a, b = np.array([[1, 2]], F), np.array([[3], [4]], F)
    assert qrun_node("Gemm", [a, b, F(10)], {"alpha": 2.0, "beta": 0.5}).tolist() == [[27]]
    assert qrun_node("Gemm", [np.zeros((2, 0), F), np.zeros((0, 2), F), np.array([1, 2], F)]).tolist() == [[1, 2]] * 2
    assert np.isnan(qrun_node("Gemm", [a, b, F(np.nan)], {"beta": 0.0})).all()
    i, j = a.astype(np.int32), b.astype(np.int32)
    assert qrun_node("Gemm", [i, j, np.int32(3)], {"alpha": -2.0, "beta": 0.5}, opset=13).tolist() == [[-21]]
    top = np.array([[2**31 - 1]], np.int32)
    assert qrun_node("Gemm", [top, top, np.int32(5)], opset=13).tolist() == [[6]]
    assert qrun_node("Gemm", [i, j], {"alpha": float("inf")}, opset=13).shape == (1, 1)


def test_multiply_adds() -> None:
    for op_type, shapes, attributes, want in (
        ("MatMul", [(2, 3, 4), (4, 5)], {}, 120),
        ("Gemm", [(4, 3), (5, 4)], {"transA": 1, "transB": 1}, 60),
    ):
        model, feeds = node_model(op_type, [np.zeros(s, F) for s in shapes], attributes)
        assert Session(model).execute(feeds).events[0].macs == want


@pytest.mark.parametrize(
    ("op_type", "shapes", "attributes", "text"),
    [
        ("MatMul", [(2, 3), (2, 3)], {}, "multiplied"),
        ("MatMul", [(), (2,)], {}, "multiplied"),
        ("MatMul", [(2, 1, 3), (3, 3, 1)], {}, "multiplied"),
        ("Gemm", [(2, 3), (2, 3)], {}, "multiplied"),
        ("Gemm", [(1, 2, 3), (3, 1)], {}, "matrix"),
        ("Gemm", [(2, 3), (3, 4), (3,)], {}, "C has shape"),
        ("Gemm", [(2, 3), (3, 4), (1, 2, 4)], {}, "C has shape"),
        ("Gemm", [(1, 3), (3, 1), (2, 2)], {}, "C has shape"),
    ],
)
def test_refusals(op_type: str, shapes: list, attributes: dict, text: str) -> None:
    with pytest.raises(OperatorError, match=text):
        qrun_node(op_type, [np.zeros(s, F) for s in shapes], attributes)


def test_memory_is_claimed_before_it_is_taken() -> None:
    tall = np.broadcast_to(F(1), (2**17, 1))
    with pytest.raises(MemoryLimitError):
        matmul(tall, tall.T, ctx=Context(budget=Budget(2**30)))


def test_results_stay_close_to_float64() -> None:
    rng = np.random.default_rng(44)
    a, b = rng.standard_normal((3, 5, 64)).astype(F), rng.standard_normal((64, 8)).astype(F)
    assert_close(
        matmul(a, b), (a.astype("d") @ b.astype("d")).astype(F), "flattened rows", rtol=0, atol=64 * 2.0**-24 * 60
    )
