"""What fuse_qdq refuses: the graph stays as it is, with its bits, and the node tells why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.passes import Graph, assert_same, codes, ops, reasons, rewritten, run

F, U8, S8, S32 = np.float32, np.uint8, np.int8, np.int32
RNG = np.random.default_rng(0)
Z8, Z0 = U8(3), S8(0)


def conv(g: Graph, **changes: Any) -> None:
    """x and w dequantized, Conv, QuantizeLinear, with parts replaced."""
    x = changes.get("x") or g.dq(g.feed(codes(RNG, U8, (1, 2, 4, 4))), 0.1, Z8)
    w = changes.get("w") or g.dq(g.const(codes(RNG, S8, (3, 2, 2, 2))), 0.02, Z0)
    y = g.node("Conv", x, w, *changes.get("more", ()), label="n")
    finish(g, y)


def finish(g: Graph, y: str) -> None:
    g.output(g.q(y, 0.9, U8(100)))


def bias(g: Graph, scale: Any, dtype: Any = S32, zero: int = 0, shape: Any = (3,), fed: bool = False) -> str:
    value = np.arange(int(np.prod(shape))).astype(dtype).reshape(shape)
    return g.dq(g.feed(value) if fed else g.const(value), scale, np.full(np.shape(scale), zero, dtype), axis=0)


CONVS: dict[str, tuple[Callable[[Graph], Any], str]] = {
    "float x": (lambda g: conv(g, x=g.feed(np.ones((1, 2, 4, 4), F))), "X is not dequantized"),
    "float w": (lambda g: conv(g, w=g.const(np.ones((3, 2, 2, 2), F))), "W is not dequantized"),
    "fed w": (lambda g: conv(g, w=g.dq(g.feed(codes(RNG, S8, (3, 2, 2, 2))), 0.1, Z0)), "W is not constant"),
    "uint16": (
        lambda g: conv(g, x=g.dq(g.feed(np.full((1, 2, 4, 4), 999, np.uint16)), 0.1, np.uint16(3))),
        "X is uint16",
    ),
    "per axis x": (
        lambda g: conv(g, x=g.dq(g.feed(codes(RNG, U8, (1, 2, 4, 4))), [0.1, 0.2], np.array([3, 4], U8))),
        "X has one scale per place along axis 1",
    ),
    "w per input channel": (
        lambda g: conv(g, w=g.dq(g.const(codes(RNG, S8, (3, 2, 2, 2))), [0.1, 0.2], np.zeros(2, S8), axis=1)),
        "W has one scale per place along axis 1, not 0",
    ),
    "blocked w": (
        lambda g: conv(
            g,
            w=g.dq(g.const(codes(RNG, S8, (3, 2, 2, 2))), np.full((3, 1, 2, 2), 0.1), np.zeros((3, 1, 2, 2), S8), block_size=2),
        ),
        "W is not quantized per tensor or per axis",
    ),
    "negative scale": (
        lambda g: conv(g, x=g.dq(g.feed(codes(RNG, U8, (1, 2, 4, 4))), -0.1, Z8)),
        "the scale of X is not a positive finite number",
    ),
    "infinite scale": (
        lambda g: conv(g, w=g.dq(g.const(codes(RNG, S8, (3, 2, 2, 2))), [0.1, np.inf, 1], np.zeros(3, S8), axis=0)),
        "the scale of W is not a positive finite number",
    ),
    "fed scale": (
        lambda g: conv(
            g, x=g.node("DequantizeLinear", g.feed(codes(RNG, U8, (1, 2, 4, 4))), g.feed(F(0.1)), g.const(Z8))
        ),
        "the scale of X is not constant",
    ),
    "fed zero point": (
        lambda g: conv(
            g, x=g.node("DequantizeLinear", g.feed(codes(RNG, U8, (1, 2, 4, 4))), g.const(F(0.1)), g.feed(Z8))
        ),
        "the zero point of X is not constant",
    ),
    "float16 scale": (
        lambda g: conv(
            g,
            x=g.node("Cast", g.node("DequantizeLinear", g.feed(codes(RNG, U8, (1, 2, 4, 4))), g.const(np.float16(0.1)), g.const(Z8)), to=1),
        ),
        "X comes from Cast, not from DequantizeLinear",
    ),
    "other bias scale": (
        lambda g: conv(g, more=[bias(g, F(0.1) * F(0.02) * F(1.0001))]),
        "the scale of B is not the product of the operands' scales",
    ),
    "bias scale of another length": (
        lambda g: conv(g, more=[bias(g, np.array([F(0.1) * F(0.02), 1, 2]))]),
        "the scale of B is not the product of the operands' scales",
    ),
    "bias zero point": (
        lambda g: conv(g, more=[bias(g, F(0.1) * F(0.02), zero=1)]),
        "B has a zero point, or one scale per row",
    ),
    "fed bias": (lambda g: conv(g, more=[bias(g, F(0.1) * F(0.02), fed=True)]), "B is not constant"),
    "int8 bias": (lambda g: conv(g, more=[bias(g, F(0.1) * F(0.02), S8)]), "B is int8"),
    "float bias": (
        lambda g: conv(g, more=[g.const(np.array([1, 2, 3.001], F))]),
        "B is not an integer number of the product of the operands' scales",
    ),
    "fed float bias": (
        lambda g: conv(g, more=[g.feed(np.array([1, 2, 3.001], F))]),
        "B is neither constant nor dequantized",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVS)
def test_conv(name: str) -> None:
    build, reason = CONVS[name]
    g = Graph(21)
    build(g)
    done = assert_same(g, message=name)
    assert "Conv" in ops(done)
    assert reasons(done)["n"] == reason


def dequantized(g: Graph, shape: Any = (2, 3), dtype: Any = U8, scale: Any = 0.1) -> str:
    return g.dq(g.feed(codes(RNG, dtype, shape)), scale, dtype(7))


def gemm(g: Graph, **attributes: Any) -> None:
    finish(g, g.node("Gemm", dequantized(g), g.dq(g.const(codes(RNG, S8, (3, 4))), 0.1, Z0), label="n", **attributes))


def pool(g: Graph, shape: Any = (1, 1, 6), known: bool = True, **attributes: Any) -> None:
    x = g.dq(g.feed(codes(RNG, U8, shape), known=known), 0.1, Z8)
    op_type = "AveragePool" if attributes else "GlobalAveragePool"
    finish(g, g.node(op_type, x, label="n", **attributes))


def twice(g: Graph) -> None:
    y = g.node("Add", dequantized(g), dequantized(g), label="n")
    finish(g, y)
    finish(g, g.node("Softmax", y))


OTHERS: dict[str, tuple[Callable[[Graph], Any], str]] = {
    "alpha": (lambda g: gemm(g, alpha=0.5), "alpha or beta is not 1"),
    "beta": (lambda g: gemm(g, beta=2.0), "alpha or beta is not 1"),
    "gemm columns": (
        lambda g: finish(g, g.node("Gemm", dequantized(g), g.dq(g.const(codes(RNG, S8, (3, 4))), [1.0, 2, 3], np.zeros(3, S8), axis=0), label="n")),
        "B has one scale per place along axis 0, not 1",
    ),
    "matmul columns": (
        lambda g: finish(g, g.node("MatMul", dequantized(g, (2, 3)), g.dq(g.const(codes(RNG, S8, (2, 3, 4))), [1.0, 2, 3], np.zeros(3, S8), axis=1), label="n")),
        "B has one scale per column, but is not a matrix",
    ),
    "matmul of large K": (
        lambda g: finish(g, g.node("MatMul", *(g.dq(g.feed(codes(RNG, U8, s)), 0.1, Z8) for s in ((1, 40000), (40000, 1))), label="n")),
        "its sums may not fit int32",
    ),
    "constant matmul of large sums": (
        lambda g: finish(g, g.node("MatMul", dequantized(g, (1, 40000)), g.dq(g.const(np.full((40000, 1), 255, U8)), 0.1, U8(0)), label="n")),
        "its sums may not fit int32",
    ),
    "mixed types": (
        lambda g: finish(g, g.node("Add", dequantized(g), dequantized(g, dtype=S8), label="n")),
        "A is uint8, but B is int8",
    ),
    "another result type": (
        lambda g: g.output(g.q(g.node("Mul", dequantized(g), dequantized(g), label="n"), 0.1, S8(0))),
        "A is uint8, but the result is int8",
    ),
    "three axes": (
        lambda g: conv(g, x=dequantized(g, (1, 2, 4, 4, 4)), w=g.dq(g.const(codes(RNG, S8, (3, 2, 2, 2, 2))), 0.1, S8(0))),
        "integer convolutions over 3 axes have no native kernel",
    ),
    "many joined": (
        lambda g: finish(g, g.node("Concat", *[dequantized(g)] * 257, axis=0, label="n")),
        "joins of more than 256 quantized tensors have no native kernel",
    ),
    "float operand": (lambda g: finish(g, g.node("Add", dequantized(g), g.feed(np.ones((2, 3), F)), label="n")), "B is not dequantized"),
    "dilated pool": (lambda g: pool(g, kernel_shape=[2], dilations=[2]), "it has dilations"),
    "pool of padding": (lambda g: pool(g, kernel_shape=[2], pads=[1, 1]), "a window may lie wholly in the padding"),
    "rank 2": (lambda g: pool(g, (4, 5)), "X is not known to have spatial axes"),
    "unknown rank": (lambda g: pool(g, (4, 5, 2), known=False), "X is not known to have spatial axes"),
    "not quantized": (lambda g: g.output(g.node("Add", dequantized(g), dequantized(g), label="n")), "its result is asked for"),
    "two readers": (lambda g: twice(g), "its result has 2 readers"),
    "float reader": (
        lambda g: finish(g, g.node("Softmax", g.node("Add", dequantized(g), dequantized(g), label="n"))),
        "its result goes to Softmax, not to QuantizeLinear",
    ),
    "fed clip": (
        lambda g: finish(g, g.node("Clip", g.node("Add", dequantized(g), dequantized(g), label="n"), g.feed(F(0)))),
        "its result goes to Clip, not to QuantizeLinear",
    ),
    "16 bits": (
        lambda g: g.output(g.q(g.node("Add", dequantized(g), dequantized(g), label="n"), 0.1, np.int16(0))),
        "its result is int16",
    ),
    "per axis result": (
        lambda g: g.output(g.q(g.node("Add", dequantized(g), dequantized(g), label="n"), [0.1, 0.2, 0.3], np.zeros(3, U8))),
        "its result has one scale per place along axis 1",
    ),
    "negative result scale": (
        lambda g: g.output(g.q(g.node("Add", dequantized(g), dequantized(g), label="n"), -0.1, U8(0))),
        "the scale of its result is not a positive finite number",
    ),
    "double precision": (
        lambda g: g.output(g.q(g.node("Add", dequantized(g), dequantized(g), label="n"), 0.1, U8(0), precision=11)),
        "its result is not quantized in float32 precision",
    ),
    "no integer form": (
        lambda g: finish(g, g.node("LogSoftmax", dequantized(g), label="n")),
        "LogSoftmax has no integer form",
    ),
    "softmax to another type": (
        lambda g: g.output(g.q(g.node("Softmax", dequantized(g), label="n"), 0.1, S8(0))),
        "input is uint8, but the result is int8",
    ),
    "elementwise, then float": (
        lambda g: g.output(g.node("Softmax", g.node("Tanh", dequantized(g), label="n"))),
        "its result is not quantized",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_others(name: str) -> None:
    build, reason = OTHERS[name]
    g = Graph(23 if name == "double precision" else 21)
    build(g)
    done = assert_same(g, message=name)
    assert not [op for op in ops(done) if op.startswith(("QLinear", "QGemm"))], ops(done)
    assert reasons(done).get("n") == reason


def test_large_sums_that_fit_are_fused() -> None:
    g = Graph()
    finish(g, g.node("MatMul", dequantized(g, (1, 40000)), g.dq(g.const(np.full((40000, 1), 9, U8)), 0.0001, U8(0))))
    assert ops(rewritten(g)) == ["QLinearMatMul"]


def test_a_bias_folded_to_float_is_an_integer_again() -> None:
    unit, counts = F(0.1) * F(0.02), np.array([70000, -12345678, 1], np.int32)
    g, same = Graph(), Graph()
    for graph in (g, same):
        graph.feeds.clear()
    x, w = codes(RNG, U8, (1, 2, 4, 4)), codes(RNG, S8, (3, 2, 2, 2))
    for graph, folded in ((g, True), (same, False)):
        a, b = graph.dq(graph.feed(x), 0.1, Z8), graph.dq(graph.const(w), 0.02, Z0)
        held = graph.const(counts.astype(F) * unit) if folded else graph.dq(graph.const(counts), unit, S32(0))
        graph.output(graph.q(graph.node("Conv", a, b, held), 9, U8(100)))
        assert ops(rewritten(graph)) == ["QLinearConv"]
    np.testing.assert_array_equal(run(rewritten(g).model, g)[0], run(rewritten(same).model, same)[0])


def test_omitted_zero_points_are_zeros() -> None:
    g = Graph(21)
    scale = g.const(F(0.1))
    x = g.node("DequantizeLinear", g.feed(codes(RNG, U8, (1, 2, 4, 4))), scale)
    w = g.node("DequantizeLinear", g.const(codes(RNG, S8, (3, 2, 1, 1))), g.const(np.full(3, 0.1, F)), axis=0)
    g.output(g.node("QuantizeLinear", g.node("Conv", x, w), scale, output_dtype=3))
    done = rewritten(g)
    assert ops(done) == ["QLinearConv"]
    (y,) = run(done.model, g)
    assert y.dtype == np.int8
    assert np.abs(y.astype(int) - run(g.model(), g)[0]).max() <= 1


@pytest.mark.parametrize("arith", ["ort", "onnx-ref"])
def test_other_arithmetics_are_those_of_the_integer_operators(arith: Any) -> None:
    g = Graph()
    conv(g)
    done = rewritten(g, arith)
    assert ops(done) == ["QLinearConv"]
    got, literal = run(done.model, g, arith)[0], run(g.model(), g, arith)[0]
    assert np.abs(got.astype(int) - literal.astype(int)).max() <= 1
