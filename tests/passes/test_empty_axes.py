"""Rewriting graphs whose tensors have axes of no elements: the literal graph's bits, and no failure."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from helpers.passes import Graph, assert_same

F = np.float32


def _dequantized(g: Graph, shape: tuple[int, ...], channels: int | None, constant: bool, axis: int = 0) -> str:
    """8-bit codes behind DequantizeLinear; channels: how many scales, along `axis`, None for one."""
    rng = np.random.default_rng(len(g.nodes))
    array = rng.integers(-9, 9, shape).astype(np.int8)
    x = g.const(array) if constant else g.feed(array)
    if channels is None:
        return g.dq(x, 0.5, np.int8(1))
    return g.dq(x, np.full(channels, 0.25), np.zeros(channels, np.int8), axis=axis)


def _shapes(*shape: int) -> list[tuple[int, ...]]:
    """The shape with no elements along any of its axes, one or several."""
    return [tuple(s) for s in itertools.product(*((0, n) for n in shape)) if 0 in s]


@pytest.mark.parametrize("w", [*_shapes(3, 2, 3, 3), (3, 2, 3, 3)], ids=str)
def test_convolutions(w: tuple[int, ...]) -> None:
    m, c = w[:2]
    for x, many, biased in itertools.product([(1, c, 4, 5), (0, c, 4, 5), (2, c, 0, 5)], (False, True), (False, True)):
        g = Graph()
        inputs = [_dequantized(g, x, None, False), _dequantized(g, w, m if many else None, True)]
        if biased:
            bias = g.const(np.zeros(m, np.int32))
            inputs.append(
                g.dq(bias, np.full(m, 0.125) if many else 0.125, np.zeros(m if many else (), np.int32), axis=0)
            )
        y = g.node("Relu", g.node("Conv", *inputs, pads=[1, 1, 1, 1]))
        _equal_or_refused(g.output(g.q(y, 0.5, np.int8(3))))


@pytest.mark.parametrize("op_type", ["MatMul", "Gemm"])
def test_products(op_type: str) -> None:
    for (m, k, n), many, constant in itertools.product([*_shapes(2, 3, 4), (2, 3, 4)], (False, True), (False, True)):
        g = Graph()
        right = _dequantized(g, (k, n), n if many else None, constant, axis=1)
        inputs = [_dequantized(g, (m, k), None, False), right]
        if op_type == "Gemm":
            inputs.append(g.dq(g.const(np.zeros(n, np.int32)), np.full(n, 0.125), np.zeros(n, np.int32), axis=0))
        _equal_or_refused(g.output(g.q(g.node(op_type, *inputs), 0.5, np.uint8(3))))


@pytest.mark.parametrize("shape", [*_shapes(2, 3, 2, 4), (2, 3, 2, 4)], ids=str)
def test_everything_else(shape: tuple[int, ...]) -> None:
    def float_node(g: Graph, op_type: str, x: str) -> Any:
        channel = g.const(np.ones((shape[1], 1, 1), F))
        more = {
            "Add": [x], "Mul": [channel], "PRelu": [channel], "Concat": [x], "Reshape": [g.const(np.array(shape))],
            "Slice": [g.const(np.array([n])) for n in (0, 1, 1)], "Pad": [g.const(np.array([0, 0, 1, 0] * 2))],
            "Expand": [g.const(np.array([1, *shape]))], "Gather": [g.const(np.zeros(0, np.int64))],
            "BatchNormalization": [g.const(np.ones(shape[1], F))] * 4, "Unsqueeze": [g.const(np.array([0]))],
        }.get(op_type, [])  # fmt: skip
        attributes = {
            "Concat": {"axis": 1}, "Reshape": {"allowzero": 1}, "Transpose": {"perm": [0, 2, 3, 1]},
            "MaxPool": {"kernel_shape": [2, 2], "pads": [1, 1, 1, 1]},
            "AveragePool": {"kernel_shape": [2, 2], "pads": [1, 1, 1, 1]}, "Gather": {"axis": 1},
        }.get(op_type, {})  # fmt: skip
        return g.node(op_type, x, *more, **attributes)

    for op_type in (
        "Add", "Mul", "PRelu", "Concat", "Reshape", "Slice", "Pad", "Expand", "Gather", "BatchNormalization", "Unsqueeze",
        "Transpose", "MaxPool", "AveragePool", "GlobalAveragePool", "Relu", "Sigmoid", "LeakyRelu", "Softmax", "Flatten",
        "Identity", "Shape", "Clip",
    ):  # fmt: skip
        for many, constant in itertools.product((False, True), (False, True)):
            g = Graph()
            y = float_node(g, op_type, _dequantized(g, shape, shape[1] if many else None, constant, axis=1))
            quantized = [y] if op_type == "Shape" else [g.q(y, 0.5, np.int8(3)), g.q(y, 0.5, np.int8(3))]
            _equal_or_refused(g.output(*quantized), op_type)


def _equal_or_refused(g: Graph, message: str = "") -> None:
    """Both graphs give the same bits, or the literal one refuses its inputs and the rewritten one does as well."""
    import qrun

    try:
        qrun.Session(g.proto(), backend="reference", fuse=False).run(g.feeds)
    except qrun.QrunError:
        with pytest.raises(qrun.QrunError):
            qrun.Session(g.proto(), backend="reference", fuse=True).run(g.feeds)
        return
    assert_same(g, message=message)
