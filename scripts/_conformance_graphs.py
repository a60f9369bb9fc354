"""A few nodes that an optimizer is tempted to rewrite: DequantizeLinear, float operators, QuantizeLinear.

Scales are powers of two and codes are small where ties are wanted, so that every float32 step is exact: the graph as
written, fused to one integer operator, and in real numbers gives the same codes, and whatever differs is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import onnx
from _conformance_case import Draft, Rng, family, modelled
from _conformance_conv import GEOMETRIES, TYPES, codes
from onnx import helper, numpy_helper
from oracle import qdq
from oracle.answers import Answer

from qrun.ir.types import NUMBERS

f32, u8, i8, i32 = np.float32, np.uint8, np.int8, np.int32
VERSIONS = (13, 21)
EXTRA: dict[str, Any] = {
    "Reshape": lambda x, shape, **_: x.reshape([int(n) for n in shape]),
    "Transpose": lambda x, perm: x.transpose(perm),
    "Sub": np.subtract,
    "Flatten": lambda x, axis=1: x.reshape(int(np.prod(x.shape[:axis])), -1),
}


class Graph:
    """A graph that is being written: constants and inputs get names in order."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.stored: list[Any] = []
        self.feeds: dict[str, Any] = {}

    def constant(self, value: Any) -> str:
        name = f"c{len(self.stored)}"
        self.stored.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def input(self, value: Any) -> str:
        name = f"x{len(self.feeds)}"
        self.feeds[name] = value
        return name

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=f"n{len(self.nodes)}", **attributes))
        return name

    def dequantize(self, x: str, scale: Any, zero: Any = None, **attributes: Any) -> str:
        more = [] if zero is None else [self.constant(zero)]
        return self.add("DequantizeLinear", x, self.constant(scale), *more, **attributes)

    def quantize(self, x: str, scale: Any, zero: Any) -> str:
        return self.add("QuantizeLinear", x, self.constant(scale), self.constant(zero))

    def draft(self, id: str, op: str, outputs: Sequence[str], version: int, clause: str) -> Draft:
        """The case, with the answer of the oracle in real numbers."""
        inputs = [helper.make_tensor_value_info(n, NUMBERS[a.dtype], a.shape) for n, a in self.feeds.items()]
        graph = modelled(
            self.nodes, inputs, [helper.make_empty_tensor_value_info(n) for n in outputs], self.stored, version
        )
        kept = dict(qdq._OPERATORS)
        qdq._OPERATORS.update(EXTRA)
        try:
            values = qdq.evaluate(
                graph, {n: qdq.fractions(a) if a.dtype.kind == "f" else a for n, a in self.feeds.items()}
            )
        finally:
            qdq._OPERATORS.clear()
            qdq._OPERATORS.update(kept)
        due = [values[name] for name in outputs]
        due = [v.astype(np.float64).astype(f32) if v.dtype == object else v for v in due]
        made = [helper.make_tensor_value_info(n, NUMBERS[v.dtype], v.shape) for n, v in zip(outputs, due, strict=True)]
        model: onnx.ModelProto = modelled(self.nodes, inputs, made, self.stored, version)
        return Draft(
            f"{op.lower()}-{id}",
            op,
            [],
            {},
            version,
            "",
            "graph",
            clause,
            answers=[Answer(v) for v in due],
            model=model,
            feeds=self.feeds,
        )


def odd(rng: Rng, kind: Any) -> Any:
    info = np.iinfo(kind)
    return np.asarray(int(rng.integers(info.min // 4, info.max // 4)) * 2 + 1, kind)


def small(rng: Rng, kind: Any, shape: Sequence[int]) -> Any:
    return codes(rng, kind, shape, -6, 6)


@family("graph.conv/qdq")
def convolutions(rng: Rng) -> Iterator[Draft]:
    for version, geometry, pair, tail in product(
        VERSIONS, ("1d", "2d-asymmetric-pads", "3d"), ("uu", "us", "ss"), ("plain", "bias", "relu", "clip")
    ):
        xt, wt = TYPES[pair[0]], TYPES[pair[1]]
        size, kernel, attributes = GEOMETRIES[geometry]
        g = Graph()
        x = g.dequantize(g.input(small(rng, xt, (1, 2, *size))), f32(0.5), small(rng, xt, ()))
        w = g.dequantize(g.constant(small(rng, wt, (3, 2, *kernel))), f32([0.5, 1, 0.25]), np.zeros(3, wt), axis=0)
        parts = [x, w]
        if tail != "plain":
            parts.append(
                g.dequantize(
                    g.constant(rng.integers(-9, 9, 3).astype(i32)), f32([0.25, 0.5, 0.125]), np.zeros(3, i32), axis=0
                )
            )
        y = g.add("Conv", *parts, **attributes)
        if tail == "relu":
            y = g.add("Relu", y)
        if tail == "clip":
            y = g.add("Clip", y, g.constant(f32(0)), g.constant(f32(6)))
        kind = u8 if pair[0] == "u" else i8
        yield g.draft(f"{geometry}-{pair}-{tail}", "Conv", [g.quantize(y, f32(1), odd(rng, kind))], version, "G1")


@family("graph.matmul/qdq")
def products(rng: Rng) -> Iterator[Draft]:
    for version, pair, op in product(VERSIONS, ("uu", "us", "ss"), ("MatMul", "Gemm")):
        xt, wt = TYPES[pair[0]], TYPES[pair[1]]
        for column in (False, True):
            g = Graph()
            a = g.dequantize(g.input(small(rng, xt, (3, 4))), f32(0.5), small(rng, xt, ()))
            b = g.dequantize(
                g.constant(small(rng, wt, (4, 5))),
                f32([0.5, 1, 0.25, 2, 1]) if column else f32(0.5),
                np.zeros(5 if column else (), wt),
                axis=1,
            )
            c = [] if op == "MatMul" else [g.dequantize(g.constant(rng.integers(-9, 9, 5).astype(i32)), f32([0.25, 0.5, 0.125, 1, 0.5]) if column else f32(0.25),
                                                         np.zeros(5 if column else (), i32), axis=0)]  # fmt: skip
            yield g.draft(
                f"{pair}-{'columns' if column else 'tensor'}",
                op,
                [g.quantize(g.add(op, a, b, *c), f32(1), odd(rng, xt))],
                version,
                "G1",
            )
    for version in VERSIONS:
        g = Graph()
        a = g.dequantize(g.input(np.full((1, 8), 255, u8)), f32(1), u8(0))
        b = g.dequantize(g.constant(np.full((8, 2), 127, i8)), f32(1), i8(0))
        yield g.draft(
            "pairs-beyond-int16", "MatMul", [g.quantize(g.add("MatMul", a, b), f32(2048), u8(1))], version, "G7"
        )


@family("graph.elementwise/qdq")
def elementwise(rng: Rng) -> Iterator[Draft]:
    for version, sign, op in product(VERSIONS, "us", ("Add", "Mul", "Sub")):
        kind = TYPES[sign]
        for name, (sa, sb) in {"same": ((3, 5), (3, 5)), "row": ((3, 5), (5,))}.items():
            g = Graph()
            a = g.dequantize(g.input(codes(rng, kind, sa)), f32(0.5), odd(rng, kind))
            b = g.dequantize(g.input(codes(rng, kind, sb)), f32(0.5), odd(rng, kind))
            yield g.draft(
                f"equal-scales-{name}-{sign}", op, [g.quantize(g.add(op, a, b), f32(1), odd(rng, kind))], version, "G1"
            )
    for version, sign, axis in product(VERSIONS, "us", (0, 1)):
        kind = TYPES[sign]
        g = Graph()
        parts = [g.dequantize(g.input(codes(rng, kind, (2, 3))), f32(s), odd(rng, kind)) for s in (0.5, 0.25, 1)]
        yield g.draft(
            f"other-scales-axis-{axis}-{sign}",
            "Concat",
            [g.quantize(g.add("Concat", *parts, axis=axis), f32(1), odd(rng, kind))],
            version,
            "G1",
        )
    for version, sign, op in product(VERSIONS, "us", ("Relu", "Clip")):
        kind = TYPES[sign]
        g = Graph()
        x = g.dequantize(g.input(codes(rng, kind, (4, 6))), f32(0.5), odd(rng, kind))
        y = g.add("Relu", x) if op == "Relu" else g.add("Clip", x, g.constant(f32(-3)), g.constant(f32(5.5)))
        yield g.draft(f"between-other-scales-{sign}", op, [g.quantize(y, f32(1), odd(rng, kind))], version, "G1")


@family("graph.pool/qdq")
def pools(rng: Rng) -> Iterator[Draft]:
    for version, sign, (label, attributes) in product(VERSIONS, "us", (("2x2", {"kernel_shape": [2, 2]}), ("2x2-strides", {"kernel_shape": [2, 2], "strides": [2, 2]}),
                                                                      ("2x2-pads-counted", {"kernel_shape": [2, 2], "pads": [1, 1, 0, 0], "count_include_pad": 1}))):  # fmt: skip
        kind = TYPES[sign]
        g = Graph()
        zero = odd(rng, kind)
        x = g.dequantize(g.input(codes(rng, kind, (1, 2, 4, 4))), f32(0.5), zero)
        yield g.draft(
            f"{label}-same-scale-{sign}",
            "AveragePool",
            [g.quantize(g.add("AveragePool", x, **attributes), f32(0.5), zero)],
            version,
            "G1",
        )
    for version, sign in product(VERSIONS, "us"):
        kind = TYPES[sign]
        g = Graph()
        zero = odd(rng, kind)
        x = g.dequantize(g.input(codes(rng, kind, (1, 3, 4, 4))), f32(0.5), zero)
        yield g.draft(
            f"same-scale-{sign}",
            "GlobalAveragePool",
            [g.quantize(g.add("GlobalAveragePool", x), f32(0.5), zero)],
            version,
            "G1",
        )


@family("graph.moves/qdq")
def moves(rng: Rng) -> Iterator[Draft]:
    for version, sign, zero in product(VERSIONS, "us", (True, False)):
        kind = TYPES[sign]
        for op, attributes, extra in (
            ("Reshape", {}, np.array([4, 6])),
            ("Transpose", {"perm": [1, 0]}, None),
            ("Flatten", {"axis": 1}, None),
        ):
            g = Graph()
            x = g.dequantize(g.input(codes(rng, kind, (6, 4))), f32(0.5), odd(rng, kind) if zero else None)
            y = g.add(op, x, *([g.constant(extra)] if extra is not None else []), **attributes)
            yield g.draft(
                f"{sign}-{'zero-point' if zero else 'no-zero-point'}",
                op,
                [g.quantize(y, f32(1), odd(rng, kind))],
                version,
                "G1",
            )
    for version, sign in product(VERSIONS, "us"):
        kind = TYPES[sign]
        g = Graph()
        shared = g.dequantize(g.input(codes(rng, kind, (3, 4))), f32(0.5), odd(rng, kind))
        first = g.quantize(g.add("Relu", shared), f32(1), odd(rng, kind))
        second = g.quantize(g.add("Add", shared, shared), f32(2), odd(rng, kind))
        yield g.draft(f"shared-dequantize-{sign}", "DequantizeLinear", [first, second, shared], version, "G1")
        g = Graph()
        x = g.dequantize(
            g.quantize(g.input((rng.integers(-40, 40, (3, 5)) / 2).astype(f32)), f32(1), odd(rng, kind)),
            f32(1),
            odd(rng, kind),
        )
        yield g.draft(f"requantize-{sign}", "QuantizeLinear", [g.quantize(x, f32(2), odd(rng, kind))], version, "G1")
