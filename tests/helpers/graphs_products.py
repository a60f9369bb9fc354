"""Nodes of random networks around products whose operands, or whose zero points, come with the run (graphs.py)."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper

from helpers.graphs import F, Graph, Value

_MOST = 64


def attention(g: Graph, qdq: bool) -> None:
    """A tensor times its own transpose, perhaps through a softmax, and that times the tensor."""
    fits = [v for v in g.values if len(v.shape) > 1 and max(v.shape[-2:]) <= _MOST and int(np.prod(v.shape)) < 1 << 14]
    if not fits:
        return
    v = fits[int(g.rng.integers(0, len(fits)))]
    scores = _product(g, v, _turned(g, v, qdq), qdq)
    if g.rng.random() < 0.5:
        g.quantize(g.node("Softmax", [g.real(scores)], axis=-1), scores.shape, *g.parameters(1 / 255))
        scores = g.values[-1]
    if g.rng.random() < 0.7:
        _product(g, scores, v, qdq)


def _turned(g: Graph, v: Value, qdq: bool) -> Value:
    perm = [*range(len(v.shape) - 2), len(v.shape) - 1, len(v.shape) - 2]
    shape = tuple(v.shape[p] for p in perm)
    if qdq:
        g.quantize(g.node("Transpose", [g.real(v)], perm=perm), shape, *g.parameters(float(v.scale)))
    else:
        g.add(g.node("Transpose", [v.name], perm=perm), shape, v.scale, np.asarray(v.zero, v.dtype))
    return g.values[-1]


def _product(g: Graph, a: Value, b: Value, qdq: bool) -> Value:
    shape = (*a.shape[:-1], b.shape[-1])
    scale, zero = g.parameters(float(a.scale) * float(b.scale) * 74 * 74 * max(a.shape[-1], 1) ** 0.5 / 50)
    if qdq:
        g.quantize(g.node("MatMul", [g.real(a), g.real(b)]), shape, scale, zero)
    else:
        g.add(
            g.node("QLinearMatMul", [*g.quantized(a), *g.quantized(b), g.constant(scale), g.constant(zero)]),
            shape,
            scale,
            zero,
        )
    return g.values[-1]


def dynamic_layer(g: Graph, qdq: bool) -> None:
    """A convolution or a product with constant weights, or of two tensors, quantized in the run, and float32 operations
    on its sums, of which some are read twice."""
    v, rng = g.pick(4 if g.rng.random() < 0.6 else 0), g.rng
    if v is None or len(v.shape) < 2 or v.shape[-1] > _MOST:
        return
    names = _codes(g, g.real(v))
    kind = np.int8 if rng.random() < 0.6 else np.uint8
    if len(v.shape) == 4 and all(v.shape[2:]) and rng.random() < 0.7:
        sums, shape = _convolution(g, v, names, kind)
    elif rng.random() < 0.5:
        k, n = v.shape[-1], int(rng.choice([1, 7, 16, 33]))
        zeros = rng.integers(0, 256, n if rng.random() < 0.5 else ()).astype(np.uint8).view(kind)
        inputs = [names[0], g.constant(rng.integers(0, 256, (k, n)).astype(np.uint8).view(kind)), names[2]]
        sums = g.node("MatMulInteger", [*inputs, *([g.constant(zeros)] if rng.random() < 0.6 else [])])
        shape = (*v.shape[:-1], n)
    else:
        perm = [*range(len(v.shape) - 2), len(v.shape) - 1, len(v.shape) - 2]
        other = _codes(g, g.node("Transpose", [g.real(v)], perm=perm))
        sums = g.node("MatMulInteger", [names[0], other[0], names[2], other[2]])
        shape = (*v.shape[:-1], v.shape[-2])
    g.quantize(_tail(g, sums, names[1], shape), shape, *g.parameters(0.05))


def _codes(g: Graph, real: str) -> list[str]:
    """Codes, scale and zero point of a float tensor."""
    names = [g.name() + part for part in "qsz"]
    g.nodes.append(helper.make_node("DynamicQuantizeLinear", [real], names, f"n{len(g.nodes)}"))
    return names


def _convolution(g: Graph, v: Value, names: list[str], kind: Any) -> tuple[str, tuple[int, ...]]:
    rng, c = g.rng, v.shape[1]
    group = int(rng.choice([n for n in (1, 1, 2, c) if n and c % n == 0]))
    m = group * int(rng.choice([1, 1, 3] if group > 1 else [2, 9, 33]))
    kernel, pads = [int(n) for n in rng.integers(1, 4, 2)], [int(n) for n in rng.integers(0, 2, 4)]
    out = [n + pads[i] + pads[i + 2] - kernel[i] + 1 for i, n in enumerate(v.shape[2:])]
    if min(out) < 1:
        kernel, pads, out = [1, 1], [0] * 4, list(v.shape[2:])
    w = rng.integers(0, 256, (m, c // group, *kernel)).astype(np.uint8).view(kind)
    zeros = rng.integers(0, 256, m if rng.random() < 0.3 else ()).astype(np.uint8).view(kind)
    inputs = [names[0], g.constant(w), names[2], *([g.constant(zeros)] if rng.random() < 0.6 else [])]
    return g.node("ConvInteger", inputs, group=group, pads=pads, kernel_shape=kernel), (v.shape[0], m, *out)


def _tail(g: Graph, sums: str, scale: str, shape: tuple[int, ...]) -> str:
    rng = g.rng
    made = [g.node("Cast", [sums], to=TensorProto.FLOAT)]
    factor = g.node("Mul", [scale, g.constant(F(0.01))])
    for _ in range(int(rng.integers(0, 6))):
        op = str(rng.choice(["Mul", "Add", "Relu", "Clip", "Sigmoid"], p=[0.35, 0.3, 0.15, 0.15, 0.05]))
        channels = (shape[1], *(1,) * (len(shape) - 2)) if rng.random() < 0.6 else shape[-1:]
        other = g.constant(rng.normal(0, 2, channels if rng.random() < 0.8 else ()).astype(F))
        if rng.random() < 0.2:
            other = made[int(rng.integers(0, len(made)))]
        more = {"Mul": [factor if rng.random() < 0.5 else other], "Add": [other]}
        limits = [g.constant(F(limit)) for limit in sorted(rng.normal(0, 20, 2))]
        made.append(g.node(op, [made[-1], *more.get(op, limits if op == "Clip" else [])]))
    return made[-1]


KINDS = (attention, dynamic_layer) * 8
