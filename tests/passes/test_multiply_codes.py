"""Products of weights of 2 and 4 bits read these as codes: the bits of the literal graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.passes import ARITHS, Graph, assert_same, ops, reasons, rewritten

import qrun

F = np.float32
TYPES = {name: getattr(ml_dtypes, name) for name in ("int4", "uint4", "int2", "uint2")}


def weights(rng: np.random.Generator, kind: str, shape: Sequence[int]) -> Any:
    info = ml_dtypes.iinfo(TYPES[kind])
    return rng.integers(int(info.min), int(info.max) + 1, shape).astype(np.int8).astype(TYPES[kind])


def multiplied(
    kind: str,
    scale: str,
    zero: bool,
    *,
    turned: bool = False,
    k: int = 70,
    n: int = 9,
    block: int = 32,
    rows: Any = (3,),
) -> tuple[Graph, str]:
    """A graph with the product of x [*rows, k] and dequantized weights; scale: ``blocks``, ``columns`` or ``one``. Gemm
    if turned. Returns it with the name of the weights in float."""
    rng = np.random.default_rng(k + n)
    g = Graph(25)
    x = g.feed(rng.standard_normal((*rows, k)).astype(F))
    shape, along = ((n, k), 1) if turned else ((k, n), 0)
    blocks = list(shape)
    blocks[along] = -(-k // block)
    sizes = {"blocks": tuple(blocks), "columns": (n,), "one": ()}[scale]
    attributes = {"axis": along, "block_size": block} if scale == "blocks" else {"axis": 1 - along}
    inputs = [g.const(weights(rng, kind, shape)), g.const(rng.uniform(0.01, 0.1, sizes).astype(F))]
    inputs += [g.const(weights(rng, kind, sizes))] if zero else []
    w = g.node("DequantizeLinear", *inputs, **attributes)
    if turned:
        g.output(g.node("Gemm", x, w, g.const(rng.standard_normal(n).astype(F)), transB=1))
    else:
        g.output(g.node("MatMul", x, w))
    return g, w


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("scale", ["blocks", "columns", "one"])
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_products(kind: str, scale: str, zero: bool, turned: bool) -> None:
    for k, n, block in ((70, 9, 32), (64, 5, 16), (1, 3, 16), (300, 4, 128)):
        g, _ = multiplied(kind, scale, zero, turned=turned, k=k, n=n, block=block)
        for arith in ARITHS:
            done = assert_same(g, arith, message=f"{k} {n} {arith}")
            alone = arith != "ort" and (k <= 256 or not turned)
            assert ops(done)[-1] == ("MatMulNBits" if alone else "Gemm" if turned else "MatMul")
            assert turned or arith == "ort" or done.groups == {1: (0, 1)}


@pytest.mark.parametrize("rows", [(), (2, 3), (1, 1, 4)])
def test_any_rank(rows: tuple[int, ...]) -> None:
    g, _ = multiplied("int4", "blocks", True, rows=rows)
    assert ops(assert_same(g)) == ["MatMulNBits"]


def test_nodes_run_natively() -> None:
    g, _ = multiplied("uint4", "blocks", True)
    session = qrun.Session(g.proto(), backend="native")
    assert [e.backend for e in session.execute(g.feeds).events] == ["native"]


def test_weights_that_others_read_stay() -> None:
    g, w = multiplied("int4", "blocks", False)
    assert "MatMulNBits" not in ops(assert_same(g, keep=[w]))
    g, w = multiplied("int4", "blocks", False)
    g.output(g.node("Relu", w))
    assert "MatMulNBits" not in ops(assert_same(g))


def refused(g: Graph) -> str:
    done = rewritten(g)
    assert "MatMulNBits" not in ops(done)
    return " ".join(reasons(done).values())


def test_what_is_refused() -> None:
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((2, 32)).astype(F), weights(rng, "int4", (32, 6))

    def product(scale: Any, operator: str = "MatMul", more: Sequence[Any] = (), **attributes: Any) -> Graph:
        g = Graph(25)
        made = g.node("DequantizeLinear", g.const(w), g.const(np.array(scale, F)), axis=attributes.pop("axis", 1),
                      block_size=attributes.pop("block_size", 0))  # fmt: skip
        a = g.feed(x, known=attributes.pop("known", True))
        return g.output(g.node(operator, a, made, *(g.const(c) for c in more), **attributes))

    for g in (
        product(np.full(32, 0.1), axis=0),
        product(np.full((4, 6), 0.1), axis=0, block_size=8),
        product(np.full((32, 1), 0.1), axis=1, block_size=6),
        product(-0.1),
        product(0.1, "Gemm", alpha=2.0),
        product(0.1, "Gemm", [np.zeros((2, 6), F)]),
        product(0.1, "Gemm", known=False),
    ):
        assert_same(g)
        refused(g)


def test_a_gemm_whose_weights_are_not_transposed() -> None:
    rng = np.random.default_rng(2)
    g = Graph(25)
    w = g.node("DequantizeLinear", g.const(weights(rng, "int4", (32, 6))), g.const(np.full(6, 0.1, F)), axis=1)
    g.output(g.node("Gemm", g.feed(rng.standard_normal((2, 32)).astype(F), known=True), w))
    done = assert_same(g)
    assert ops(done)[-1] == "MatMulNBits"
