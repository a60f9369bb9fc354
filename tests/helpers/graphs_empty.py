"""Nodes of random networks around tensors without elements, and products of stacks of matrices (graphs.py)."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper

from helpers.graphs import MS, PROTO, F, Graph, Value

Array = np.ndarray[Any, Any]


def emptied(g: Graph, qdq: bool) -> None:
    """No element of some axis."""
    v = g.pick()
    if v is None or not v.shape:
        return
    axis = int(g.rng.integers(0, len(v.shape)))
    ends = [g.constant(np.array([n])) for n in (1, 1, axis)]
    name = g.node("Slice", [g.real(v) if qdq else v.name, *ends])
    shape = tuple(0 if i == axis else n for i, n in enumerate(v.shape))
    if qdq:
        g.quantize(name, shape, v.scale, np.asarray(v.zero, v.dtype))
    else:
        g.add(name, shape, v.scale, np.asarray(v.zero, v.dtype))


def refilled(g: Graph, qdq: bool) -> None:
    """Elements from nothing: padding, a sum over an axis, a shape for what has as few elements."""
    v, rng = g.pick(), g.rng
    empty = [w for w in g.values if 0 in w.shape]
    if empty and rng.random() < 0.8:
        v = empty[int(rng.integers(0, len(empty)))]
    if v is None or not v.shape:
        return
    kind = str(rng.choice(["pad", "sum", "reshape"]))
    shape = v.shape
    if kind == "pad" and int(np.prod([n + 1 for n in shape])) < 1 << 16:
        amounts = np.array([0] * len(shape) + [1] * len(shape))
        value = g.constant(F(0) if qdq else np.asarray(v.zero, v.dtype))
        name, shape = (
            g.node("Pad", [g.real(v) if qdq else v.name, g.constant(amounts), value]),
            tuple(n + 1 for n in shape),
        )
    elif kind == "sum":
        axis = int(rng.integers(0, len(shape)))
        qdq, shape = True, tuple(1 if i == axis else n for i, n in enumerate(shape))
        name = g.node("ReduceSum", [g.real(v), g.constant(np.array([axis]))])
    elif not np.prod(shape):
        shape = tuple(int(n) for n in rng.permutation([0, *rng.integers(0, 4, int(rng.integers(0, 4)))]))
        name = g.node("Reshape", [g.real(v) if qdq else v.name, g.constant(np.array(shape, np.int64))], allowzero=1)
    else:
        return
    if qdq:
        g.quantize(name, shape, v.scale, np.asarray(v.zero, v.dtype))
    else:
        g.add(name, shape, v.scale, np.asarray(v.zero, v.dtype))


def thin_conv(g: Graph, qdq: bool) -> None:
    """A convolution without output channels, or with padding around an image without pixels."""
    v, rng = g.pick(4), g.rng
    if v is None:
        return
    n, c, h, w = v.shape
    m, k = int(rng.choice([0, 0, 5])), int(rng.choice([1, 3])) if h and w else 1
    shape = (n, m, h + 3 - k, w + 3 - k)
    codes = rng.integers(-128, 128, (m, c, k, k)).astype(np.int8)
    ws = rng.uniform(0.003, 0.02, m if rng.random() < 0.5 else ()).astype(F)
    weights = [g.constant(codes), g.constant(ws), g.constant(np.zeros(ws.shape, np.int8))]
    scale, zero = g.parameters(float(v.scale))
    attributes: dict[str, Any] = {"kernel_shape": [k, k], "pads": [1, 1, 1, 1]}
    if qdq:
        right = g.node("DequantizeLinear", weights, **({"axis": 0} if ws.ndim else {}))
        g.quantize(g.node("Conv", [g.real(v), right], **attributes), shape, scale, zero)
    else:
        inputs = [*g.quantized(v), *weights, g.constant(scale), g.constant(zero)]
        g.add(g.node("QLinearConv", inputs, **attributes), shape, scale, zero)


def stacks(g: Graph, qdq: bool) -> None:
    """Up to three matrices on either side, constant or made in each run, with any axis of no elements."""
    rng = g.rng
    m, k, n = (int(size) for size in rng.choice([0, 1, 3, 5, 17], 3, p=[0.2, 0.15, 0.3, 0.2, 0.15]))
    k = 0 if rng.random() < 0.3 else k
    count = int(rng.integers(1, 4))
    left, right = _stack(g, count, (m, k)), _stack(g, count, (k, n))
    shape = (*np.broadcast_shapes(left.shape[:-2], right.shape[:-2]), m, n)
    FORMS[int(rng.integers(0, len(FORMS)))](g, left, right, shape)


def _stack(g: Graph, count: int, matrix: tuple[int, int]) -> Value:
    """`count` matrices or one, constant or not."""
    rng = g.rng
    leads = [(), (1,), (count,), (count,), (1, count), (count, 1)]
    shape = (*leads[int(rng.integers(0, len(leads)))], *matrix)
    dtype = np.dtype((np.uint8, np.int8)[int(rng.random() < 0.4)])
    name = g.constant(rng.integers(0, 256, shape).astype(np.uint8).view(dtype))
    if rng.random() < 0.6:
        g.replaceable.append(helper.make_tensor_value_info(name, PROTO[dtype], shape))
    return Value(name, shape, dtype, F(0.02), int(rng.choice([0, 0, 3])))


def _integer(g: Graph, a: Value, b: Value, shape: tuple[int, ...]) -> None:
    """MatMulInteger, perhaps with Cast and Mul, quantized."""
    rng = g.rng
    zeros = [g.constant(np.asarray(v.zero, v.dtype)) for v in (a, b)][: int(rng.integers(0, 3))]
    real = g.node("Cast", [g.node("MatMulInteger", [a.name, b.name, *zeros])], to=TensorProto.FLOAT)
    if rng.random() < 0.6:
        real = g.node("Mul", [real, g.constant(F(0.0004))])
    g.quantize(real, shape, *g.parameters(0.02))


def _dynamic(g: Graph, a: Value, b: Value, shape: tuple[int, ...]) -> None:
    """DynamicQuantizeLinear and MatMulInteger, as exporters write them."""
    rng = g.rng
    codes, scale, zero = (g.name() + part for part in ("q", "s", "z"))
    g.nodes.append(helper.make_node("DynamicQuantizeLinear", [g.real(a)], [codes, scale, zero], f"n{len(g.nodes)}"))
    zeros = [zero] + [g.constant(np.asarray(b.zero, b.dtype))] * int(rng.random() < 0.5)
    sums = g.node("MatMulInteger", [codes, b.name, *zeros])
    real = g.node("Mul", [g.node("Cast", [sums], to=TensorProto.FLOAT), g.node("Mul", [scale, g.constant(F(0.01))])])
    g.quantize(real, shape, *g.parameters(0.02))


def _to_float(g: Graph, a: Value, b: Value, shape: tuple[int, ...]) -> None:
    inputs = [a.name, b.name, g.constant(a.scale), g.constant(b.scale)]
    inputs += [g.constant(np.asarray(v.zero, v.dtype)) for v in (a, b)]
    g.quantize(g.node("MatMulIntegerToFloat", inputs, MS), shape, *g.parameters(0.02))


def _quantizes(g: Graph, a: Value, b: Value, shape: tuple[int, ...]) -> None:
    inputs = [g.real(a), b.name, g.constant(b.scale), g.constant(np.asarray(b.zero, b.dtype))]
    g.quantize(g.node("DynamicQuantizeMatMul", inputs, MS), shape, *g.parameters(0.02))


def _requantized(g: Graph, a: Value, b: Value, shape: tuple[int, ...]) -> None:
    scale, zero = g.parameters(0.02)
    inputs = [*g.quantized(a), *g.quantized(b), g.constant(scale), g.constant(zero)]
    g.add(g.node("QLinearMatMul", inputs), shape, scale, zero)


def _real(g: Graph, a: Value, b: Value, shape: tuple[int, ...]) -> None:
    g.quantize(g.node("MatMul", [g.real(a), g.real(b)]), shape, *g.parameters(0.02))


FORMS = (_integer, _integer, _dynamic, _to_float, _quantizes, _requantized, _real)
KINDS = (emptied, emptied, refilled, refilled, thin_conv, stacks, stacks, stacks, stacks)
