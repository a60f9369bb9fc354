"""Graphs with batches, residuals, groups, depthwise filters, shared nodes and moves, as networks have them.

All scales are powers of two and sums stay below 2^24, so that every float32 step is exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
from _conformance_case import Draft, Rng, family
from _conformance_conv import GEOMETRIES, TYPES, codes
from _conformance_graphs import EXTRA, VERSIONS, Graph, odd, small
from _conformance_power import patterned
from oracle.float_windows import geometry, inside, places

f32, u8, i8, i32 = np.float32, np.uint8, np.int8, np.int32
PAIRS = ("uu", "us", "ss")


def max_pool(x: Any, *, kernel_shape: Any, strides: Any = (), pads: Any = ()) -> Any:
    size, kernel = x.shape[2:], tuple(kernel_shape)
    ones = (1,) * len(size)
    steps, around = tuple(strides) or ones, tuple(pads) or (0, 0) * len(size)
    begin, _, out = geometry(size, kernel, steps, ones, around, "NOTSET", False)
    y = np.empty((*x.shape[:2], *out), object)
    for n, c, *at in product(*map(range, y.shape)):
        y[(n, c, *at)] = max(x[(n, c, *p)] for _, p in places(tuple(at), kernel, steps, ones, begin) if inside(p, size))
    return y


def pad(x: Any, pads: Any, value: Any = None) -> Any:
    widths = list(zip(pads[: x.ndim].tolist(), pads[x.ndim :].tolist(), strict=True))
    return np.pad(x, widths, constant_values=Fraction(0) if value is None else Fraction(float(value)))


def resize(x: Any, roi: Any, scales: Any, **_: Any) -> Any:
    """Nearest, asymmetric, floor, by whole numbers."""
    for axis, times in enumerate(scales):
        x = np.repeat(x, int(times), axis)
    return x


EXTRA.update(MaxPool=max_pool, Pad=pad, Resize=resize)


def weights(rng: Rng, g: Graph, kind: Any, shape: Sequence[int]) -> str:
    """Weights with a scale per filter and zero points of 0."""
    scale = (2.0 ** rng.integers(-2, 1, shape[0])).astype(f32)
    return g.dequantize(g.constant(small(rng, kind, shape)), scale, np.zeros(shape[0], kind), axis=0)


def some_bias(rng: Rng, g: Graph, count: int) -> str:
    values, scale = rng.integers(-40, 40, count).astype(i32), np.full(count, 0.125, f32)
    return g.dequantize(g.constant(values), scale, np.zeros(count, i32), axis=0)


def image(rng: Rng, g: Graph, kind: Any, shape: Sequence[int], scale: float = 0.5) -> str:
    return g.dequantize(g.input(small(rng, kind, shape)), f32(scale), small(rng, kind, ()))


def quantized(rng: Rng, g: Graph, x: str, kind: Any, scale: float = 1) -> str:
    return g.quantize(x, f32(scale), odd(rng, kind))


@family("graph.conv/batch")
def batches(rng: Rng) -> Iterator[Draft]:
    for version, name, pair in product(VERSIONS, ("1d-stride-dilation", "2d-stride", "2d-asymmetric-pads"), PAIRS):
        xt, wt = TYPES[pair[0]], TYPES[pair[1]]
        size, kernel, attributes = GEOMETRIES[name]
        g = Graph()
        y = g.add(
            "Conv",
            image(rng, g, xt, (3, 2, *size)),
            weights(rng, g, wt, (3, 2, *kernel)),
            some_bias(rng, g, 3),
            **attributes,
        )
        yield g.draft(f"{name}-{pair}", "Conv", [quantized(rng, g, y, xt)], version, "G1")


@family("graph.conv/groups")
def groups(rng: Rng) -> Iterator[Draft]:
    for version, pair, (name, group, channels, filters, attributes) in product(VERSIONS, PAIRS, (
        ("depthwise", 4, 4, 4, {}), ("depthwise-doubled", 3, 3, 6, {"strides": [2, 1]}), ("groups-strides", 2, 4, 6, {"strides": [2, 2]}),
        ("groups-dilations", 2, 4, 4, {"dilations": [2, 1]}), ("depthwise-17", 17, 17, 17, {"strides": [2, 2]}))):  # fmt: skip
        xt, wt = TYPES[pair[0]], TYPES[pair[1]]
        g = Graph()
        y = g.add("Conv", image(rng, g, xt, (2, channels, 4, 4)), weights(rng, g, wt, (filters, channels // group, 2, 3)), some_bias(rng, g, filters),
                  group=group, **attributes)  # fmt: skip
        yield g.draft(f"{name}-{pair}", "Conv", [quantized(rng, g, y, xt)], version, "G1")


@family("graph.conv/residual")
def residuals(rng: Rng) -> Iterator[Draft]:
    """y = Q(Relu(DQ(Q(Conv(x))) + x)), x dequantized once for both."""
    for version, pair, tail in product(VERSIONS, PAIRS, ("", "Relu", "Clip")):
        xt, wt = TYPES[pair[0]], TYPES[pair[1]]
        g = Graph()
        x = image(rng, g, xt, (2, 3, 3, 3))
        y = g.add("Conv", x, weights(rng, g, wt, (3, 3, 3, 3)), some_bias(rng, g, 3), pads=[1, 1, 1, 1])
        zero = odd(rng, xt)
        y = g.dequantize(g.quantize(y, f32(2), zero), f32(2), zero)
        y = g.add("Add", y, x)
        y = g.add(tail, y, *([g.constant(f32(0)), g.constant(f32(6))] if tail == "Clip" else [])) if tail else y
        yield g.draft(f"{tail.lower() or 'add'}-{pair}", "Conv", [quantized(rng, g, y, xt)], version, "G1")


@family("graph.conv/chain")
def chains(rng: Rng) -> Iterator[Draft]:
    """Two convolutions with codes between them, the second of 1x1; Relu is folded into the zero point, or not."""
    for version, pair, zero_least in product(VERSIONS, PAIRS, (False, True)):
        xt, wt = TYPES[pair[0]], TYPES[pair[1]]
        g = Graph()
        y = g.add("Relu", g.add("Conv", image(rng, g, xt, (2, 2, 3, 4)), weights(rng, g, wt, (5, 2, 2, 2))))
        zero = np.asarray(np.iinfo(xt).min, xt) if zero_least else odd(rng, xt)
        y = g.dequantize(g.quantize(y, f32(1), zero), f32(1), zero)
        y = g.add("Conv", y, weights(rng, g, wt, (3, 5, 1, 1)), some_bias(rng, g, 3))
        yield g.draft(
            f"relu-{'least' if zero_least else 'odd'}-zero-{pair}", "Conv", [quantized(rng, g, y, xt, 4)], version, "G1"
        )


@family("graph.conv/clips")
def clips(rng: Rng) -> Iterator[Draft]:
    """Bounds that lie within the range of the codes, at its end, between two codes, and beyond."""
    for version, pair, (name, low, high) in product(VERSIONS, ("us", "ss"), (("within", 0.0, 6.0), ("between-codes", -1.25, 3.75), ("beyond", -1e6, 1e6),
                                                                             ("negative", -9.5, -0.5))):  # fmt: skip
        xt, wt = TYPES[pair[0]], TYPES[pair[1]]
        g = Graph()
        y = g.add("Conv", image(rng, g, xt, (2, 3, 3, 3)), weights(rng, g, wt, (4, 3, 2, 2)))
        y = g.add("Clip", y, g.constant(f32(low)), g.constant(f32(high)))
        yield g.draft(f"{name}-{pair}", "Conv", [quantized(rng, g, y, xt)], version, "G1")


@family("graph.matmul/sizes")
def products(rng: Rng) -> Iterator[Draft]:
    """Gemm with B as layers store it, batches of matrices, depths of vectors."""
    for version, pair, (name, k, n) in product(
        VERSIONS, PAIRS, (("small", 5, 3), ("17-deep", 17, 5), ("65-deep", 65, 2), ("33-columns", 4, 33))
    ):
        xt, wt = TYPES[pair[0]], TYPES[pair[1]]
        g = Graph()
        b = weights(rng, g, wt, (n, k))
        y = g.add("Gemm", image(rng, g, xt, (3, k)), b, some_bias(rng, g, n), transB=1)
        yield g.draft(f"transposed-{name}-{pair}", "Gemm", [quantized(rng, g, y, xt, 2)], version, "G1")
    for version, pair, (name, a, b) in product(
        VERSIONS,
        PAIRS,
        (("weights", (3, 2, 8), (8, 5)), ("both", (2, 3, 9), (2, 9, 4)), ("17-deep", (2, 2, 17), (2, 17, 3))),
    ):
        xt, wt = TYPES[pair[0]], TYPES[pair[1]]
        g = Graph()
        right = g.input(small(rng, wt, b)) if len(b) == 3 else g.constant(small(rng, wt, b))
        y = g.add("MatMul", image(rng, g, xt, a), g.dequantize(right, f32(0.25), small(rng, wt, ())))
        yield g.draft(f"batch-{name}-{pair}", "MatMul", [quantized(rng, g, y, xt)], version, "G1")
    for version, k, sign in product(VERSIONS, (2, 16, 17, 64), "us"):
        g = Graph()
        a = g.dequantize(g.input(np.full((2, k), 255, u8)), f32(1), u8(0))
        codes_ = np.full((k, 3), 127, i8)
        codes_[:, 1], codes_[::2, 2] = -128, -128
        b = g.dequantize(g.constant(codes_), f32(1), i8(0))
        y = g.quantize(g.add("MatMul", a, b), f32(2.0 ** int(8 + np.log2(k))), odd(rng, TYPES[sign]))
        yield g.draft(f"pairs-beyond-int16-{k}-{sign}", "MatMul", [y], version, "G7")


@family("graph.elementwise/sizes")
def elementwise(rng: Rng) -> Iterator[Draft]:
    for version, sign, op, n in product(VERSIONS, "us", ("Add", "Mul", "Sub"), (17, 65)):
        kind = TYPES[sign]
        g = Graph()
        a = g.dequantize(g.input(patterned(rng, kind, (2, n))), f32(0.5), odd(rng, kind))
        b = g.dequantize(g.input(patterned(rng, kind, (2, n))), f32(0.25), odd(rng, kind))
        yield g.draft(
            f"other-scales-{n}-{sign}",
            op,
            [quantized(rng, g, g.add(op, a, b), kind, 1 if op != "Mul" else 64)],
            version,
            "G1",
        )
    for version, sign, axis in product(VERSIONS, "us", (0, 1, 3)):
        kind = TYPES[sign]
        g = Graph()
        parts = [image(rng, g, kind, (2, 3, 2, 3), s) for s in (0.5, 0.25, 1)]
        yield g.draft(
            f"batch-axis-{axis}-{sign}",
            "Concat",
            [quantized(rng, g, g.add("Concat", *parts, axis=axis), kind)],
            version,
            "G1",
        )


@family("graph.pool/batch")
def pools(rng: Rng) -> Iterator[Draft]:
    for version, sign, other in product(VERSIONS, "us", (False, True)):
        kind = TYPES[sign]
        for name, op, attributes in (
            ("plain", "MaxPool", {"kernel_shape": [2, 2]}),
            ("pads", "MaxPool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}),
            ("pads", "AveragePool", {"kernel_shape": [2, 2], "pads": [1, 0, 1, 0], "strides": [2, 2]}),
        ):
            g = Graph()
            zero = odd(rng, kind)
            x = g.dequantize(g.input(codes(rng, kind, (2, 3, 4, 4))), f32(0.5), zero)
            y = g.quantize(g.add(op, x, **attributes), f32(1 if other else 0.5), odd(rng, kind) if other else zero)
            yield g.draft(f"{name}-{'other' if other else 'same'}-scale-{sign}", op, [y], version, "G1")


@family("graph.moves/batch")
def moves(rng: Rng) -> Iterator[Draft]:
    for version, sign, other in product(VERSIONS, "us", (False, True)):
        kind = TYPES[sign]
        for name, op, extra, attributes in (
            ("zero", "Pad", [np.array([0, 0, 1, 2, 0, 0, 0, 1])], {}),
            ("value", "Pad", [np.array([0, 1, 0, 2, 0, 0, 1, 1]), f32(2.5)], {}),
            ("nearest", "Resize", [np.zeros(0, f32), f32([1, 1, 2, 3])],
             {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}),
            ("channels-last", "Transpose", [], {"perm": [0, 2, 3, 1]}),
        ):  # fmt: skip
            g = Graph()
            zero = odd(rng, kind)
            x = g.dequantize(g.input(codes(rng, kind, (2, 3, 2, 3))), f32(0.5), zero)
            y = g.add(op, x, *(g.constant(v) for v in extra), **attributes)
            y = g.quantize(y, f32(1 if other else 0.5), odd(rng, kind) if other else zero)
            yield g.draft(f"{name}-{'other' if other else 'same'}-scale-{sign}", op, [y], version, "G1")
    for version, pair in product(VERSIONS, PAIRS):
        xt, wt = TYPES[pair[0]], TYPES[pair[1]]
        g = Graph()
        x = image(rng, g, xt, (2, 3, 3, 3))
        first = quantized(rng, g, g.add("Conv", x, weights(rng, g, wt, (2, 3, 2, 2))), xt)
        second = quantized(rng, g, g.add("MaxPool", x, kernel_shape=[2, 2]), xt)
        third = quantized(rng, g, g.add("Add", x, x), xt, 2)
        yield g.draft(f"shared-dequantize-{pair}", "DequantizeLinear", [first, second, third], version, "G1")
