"""What onnxruntime's optimizer leaves in a saved model: Gelu and its relatives, FusedMatMul of com.microsoft."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.float import Peer, qrun_node
from helpers.placed import same_everywhere
from helpers.support import MS, assert_equal, node_model

import qrun
from qrun.memory import Budget
from qrun.ops import Context, find
from qrun.ops._float import narrow

F, H, BF, D = np.float32, np.float16, ml_dtypes.bfloat16, np.float64
FLOATS = [H, BF, F, D]
NAMES = ("transA", "transB", "transBatchA", "transBatchB")


def gelu(x: float) -> float:
    return x / 2 * math.erfc(-x / math.sqrt(2))


def by_tanh(x: float) -> float:
    return x / (1 + math.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def quick(x: float, alpha: float = float(F(1.702))) -> float:
    return x / (1 + math.exp(-alpha * x))


GELUS: list[tuple[str, dict[str, Any], Callable[[float], float], int]] = [
    ("Gelu", {}, gelu, 0),
    ("QuickGelu", {}, quick, 0),
    ("QuickGelu", {"alpha": 0.75}, lambda x: quick(x, 0.75), 0),
    ("BiasGelu", {}, gelu, 1),
    ("FastGelu", {}, by_tanh, 0),
    ("FastGelu", {}, by_tanh, 1),
]


@pytest.mark.parametrize(("op_type", "attributes", "real", "biased"), GELUS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_gelus(
    op_type: str, attributes: dict[str, Any], real: Callable[[float], float], biased: int, dtype: Any
) -> None:
    """Of the sum as it is in the type; within half a unit, and what float32 loses, of the truth."""
    rng = np.random.default_rng(5)
    x = rng.uniform(-6, 6, (3, 5, 7)).astype(dtype)
    bias = rng.normal(size=7).astype(dtype)
    got = qrun_node(op_type, [x, bias][: 1 + biased], attributes, domain=MS)
    total = x + bias if biased else x
    assert got.dtype == total.dtype == dtype
    want = np.array([real(float(v)) for v in total.reshape(-1)]).reshape(x.shape)
    near = np.abs(got.astype(D) - want) <= 4e-14 * np.abs(want)
    if dtype is not D:
        low, high = (narrow(want + side * 5e-6 * np.abs(want), np.dtype(dtype)) for side in (-1, 1))
        near |= (low <= got) & (got <= high)
    assert near.all()


def test_fused_gelus_have_the_bits_of_the_nodes_they_were() -> None:
    rng = np.random.default_rng(6)
    for dtype in FLOATS:
        x, bias = rng.normal(0, 3, (40, 33)).astype(dtype), rng.normal(size=33).astype(dtype)
        total = qrun_node("Add", [x, bias])
        for op_type, kind in (("BiasGelu", "none"), ("FastGelu", "tanh")):
            want = qrun_node("Gelu", [total], {"approximate": kind})
            assert_equal(qrun_node(op_type, [x, bias], domain=MS), want, f"{op_type} {np.dtype(dtype)}")


def test_gelus_are_native() -> None:
    rng = np.random.default_rng(7)
    special = F([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 88])
    for shape in ((7,), (1, 7), (3, 50, 7), (0, 7)):
        x = np.resize(np.concatenate([special, rng.normal(0, 3, 500).astype(F)]), shape).astype(F)
        for op_type, attributes, _, biased in GELUS:
            inputs = [x, rng.normal(size=7).astype(F)][: 1 + biased]
            for constants in ([], [1])[: 1 + biased]:
                model, feeds = node_model(op_type, inputs, attributes, domain=MS, constants=constants)
                event = same_everywhere(model, feeds).events[0]
                assert event.backend == "native", f"{op_type} {shape}: {event.why}"


def fractions(a: np.ndarray, b: np.ndarray, alpha: float, dtype: Any) -> np.ndarray:
    """The real product of two stacks of matrices, rounded once; and once more to a narrow type. The sums themselves are
    float32 numbers."""
    exact = np.vectorize(lambda v: Fraction(float(v)), otypes=[object])
    total = np.matmul(exact(a), exact(b)) * Fraction(alpha)
    made: np.ndarray = np.vectorize(float, otypes=[D])(total)
    return made if dtype is D else narrow(made.astype(F), np.dtype(dtype))


def operands(rng: np.random.Generator, rank: int, flags: tuple[int, ...], dtype: Any) -> list[np.ndarray]:
    """A, B as a node has them, and A', B' as they are multiplied."""
    batch, found, turned = (2, 5, 3)[: rank - 2], [], []
    for (rows, columns), turn, first in zip(((3, 6), (6, 4)), flags[:2], flags[2:], strict=True):
        x = (rng.integers(-64, 65, (*batch, rows, columns)) / 8).astype(dtype)
        turned.append(x)
        x = x.swapaxes(-1, -2) if turn else x
        found.append(np.ascontiguousarray(np.moveaxis(x, -2, 0) if first else x))
    return [*found, *turned]


@pytest.mark.parametrize("flags", list(itertools.product((0, 1), repeat=4)))
def test_fused_matmul(flags: tuple[int, ...]) -> None:
    rng = np.random.default_rng(8)
    peer = Peer()
    attributes = dict(zip(NAMES, flags, strict=True))
    for rank, dtype in itertools.product((2, 3, 4), FLOATS):
        if rank == 2 and any(flags[2:]):
            continue
        a, b, *turned = operands(rng, rank, flags, dtype)
        for alpha in (1.0, 0.125, float(F(0.3))):
            got = qrun_node("FusedMatMul", [a, b], {**attributes, "alpha": alpha}, domain=MS)
            rtol, want = (1e-15 if dtype is D else 0), fractions(*turned, alpha, dtype)
            np.testing.assert_allclose(got.astype(D), want.astype(D), rtol=rtol)
            assert got.dtype == dtype
        if dtype in (F, D):
            peer.check("FusedMatMul", [a, b], {**attributes, "alpha": 0.125}, message=f"{rank}", domain=MS)
        if dtype is F:
            for constants in ([], [1], [0, 1]):
                model, feeds = node_model(
                    "FusedMatMul", [a, b], {**attributes, "alpha": 0.3}, domain=MS, constants=constants
                )
                events = same_everywhere(model, feeds).events
                assert not events or events[0].backend == "native", events[0].why
    peer.finish(1.0)


def test_fused_matmul_of_vectors_and_of_other_ranks() -> None:
    rng = np.random.default_rng(9)
    cases: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, int], str]] = [
        ((6,), (6, 4), {"transA": 1}, "k,kn->n"), ((6,), (4, 6), {"transB": 1}, "k,nk->n"),
        ((3, 6), (6,), {"transB": 1}, "mk,k->m"), ((6, 3), (6,), {"transA": 1}, "km,k->m"),
        ((2, 6, 3), (6, 4), {"transA": 1}, "bkm,kn->bmn"), ((3, 2, 6), (4, 6), {"transBatchA": 1, "transB": 1}, "mbk,nk->bmn"),
    ]  # fmt: skip
    for first, second, attributes, sums in cases:
        a, b = (rng.integers(-9, 9, shape).astype(F) for shape in (first, second))
        model, feeds = node_model("FusedMatMul", [a, b], attributes, domain=MS)
        assert_equal(same_everywhere(model, feeds).outputs["y0"], np.einsum(sums, a, b), sums, signed_zeros=False)


def test_beside_onnxruntime() -> None:
    peer, rng = Peer(), np.random.default_rng(10)
    for op_type, attributes, _, biased in GELUS:
        inputs = [rng.normal(0, 2, (2, 3, 8)).astype(F), rng.normal(size=8).astype(F)][: 1 + biased]
        peer.check(op_type, inputs, attributes, message=op_type, domain=MS)
    peer.finish(1.0)


def test_refusals() -> None:
    x = np.ones((2, 3), F)
    for text, op_type, inputs in (
        ("B does not fit", "BiasGelu", [x, x]),
        ("B does not fit", "BiasGelu", [x, x[0, :2]]),
        ("B does not fit", "BiasGelu", [x[0, 0], x[0, 0]]),
        ("bias does not fit", "FastGelu", [x, x[0, :1]]),
        ("cannot be multiplied", "FusedMatMul", [x, x]),
    ):
        with pytest.raises(qrun.QrunError, match=text):
            qrun_node(op_type, inputs, domain=MS)
    for op_type, others in (("BiasGelu", 1), ("FastGelu", 0), ("FastGelu", 1)):
        with pytest.raises(qrun.MemoryLimitError):
            find(MS, op_type, 1)(x, *[x[0]] * others, ctx=Context(budget=Budget(20)))


def test_costs() -> None:
    cost = find(MS, "FusedMatMul", 1).cost
    assert cost([(2, 6, 3), (2, 6, 4)], [(2, 3, 4)], {"transA": 1}) == 144
    assert cost([(3, 2, 6), (2, 6, 4)], [(2, 3, 4)], {"transBatchA": 1}) == 144
