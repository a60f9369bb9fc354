"""Models that the specification forbids, for one fault each.

A case names the section whose sentence it breaks; its twin without the fault is legal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from _conformance_case import Draft, Rng, family
from _conformance_conv import conv, replaced
from _conformance_matmul import matmul

from qrun.conform.suite import REFUSAL

f32, u8, i8, i32 = np.float32, np.uint8, np.int8, np.int32


def reject(legal: Draft, clause: str, attributes: Mapping[str, Any] | None = None, **changes: Any) -> Draft:
    """A model with one fault: inputs changed by place, i0=..., or attributes. legal: the model without it."""
    faulty = replaced(replace(legal), **changes)
    faulty.attributes = {**legal.attributes, **(attributes or {})}
    legal.id = f"{legal.id}-mended"
    return replace(faulty, clause=clause, expects=REFUSAL, mended=legal)


@family("qlinearconv-10/rejects")
def convolutions(rng: Rng) -> Iterator[Draft]:
    def legal(id: str, geometry: str = "2d", **more: Any) -> Draft:
        return conv(rng, id, "usu", geometry, profile="edge", **{"forms": "ttt", **more})

    two, column = np.ones(2, f32), np.ones((3, 1), f32)
    yield reject(legal("zero-point-of-another-type"), "G10", i2=i8(3))
    yield reject(legal("w-zero-point-of-another-type"), "G10", i5=u8(3))
    yield reject(legal("w-scale-of-two-for-three-filters", forms="tcc"), "C2/length", i4=two, i5=np.zeros(2, i8))
    yield reject(legal("w-scale-of-rank-2", forms="tcc"), "C2/rank", i4=column, i5=np.zeros((3, 1), i8))
    yield reject(legal("bias-of-two-for-three-filters"), "C3", i8=np.zeros(2, i32))
    yield reject(legal("bias-of-rank-2"), "C3", i8=np.zeros((3, 1), i32))
    yield reject(legal("x-zero-point-left-out"), "G12", i2=None)
    yield reject(legal("w-zero-point-left-out"), "G12", i5=None)
    yield reject(legal("pads-and-auto-pad", "2d-same-upper"), "C4/pads", {"pads": [0, 0, 1, 1]})
    yield reject(legal("kernel-larger-than-image"), "C5", {"dilations": [4, 4]})
    yield reject(replaced(legal("group-that-does-not-divide", channels=2, filters=4, group=2)), "C2/group",
                 i3=np.ones((3, 1, 2, 2), i8), i8=np.zeros(3, i32))  # fmt: skip
    yield reject(legal("channels-that-do-not-fit"), "C2/channels", i3=np.ones((3, 3, 2, 2), i8))
    yield reject(legal("kernel-shape-that-is-not-the-weights"), "C2/kernel-shape", {"kernel_shape": [3, 3]})
    yield reject(legal("stride-of-zero"), "C4/stride", {"strides": [0, 1]})
    yield reject(legal("weights-of-another-rank"), "C2/weights", i3=np.ones((3, 2, 2), i8))


@family("convinteger-10/rejects")
def integer_convolutions(rng: Rng) -> Iterator[Draft]:
    def legal(id: str, geometry: str = "2d", **more: Any) -> Draft:
        return conv(rng, id, "usu", geometry, op="ConvInteger", profile="edge", **{"forms": "ttt", **more})

    yield reject(legal("zero-point-of-another-type"), "G10", i2=i8(3))
    yield reject(legal("w-zero-point-of-another-type"), "G10", i3=u8(3))
    yield reject(legal("w-zero-point-of-two-for-three-filters", forms="ttc"), "C2/length", i3=np.zeros(2, i8))
    yield reject(legal("pads-and-auto-pad", "2d-same-upper"), "C4/pads", {"pads": [0, 0, 1, 1]})
    yield reject(legal("channels-that-do-not-fit"), "C2/channels", i1=np.ones((3, 3, 2, 2), i8))
    yield reject(legal("kernel-shape-that-is-not-the-weights"), "C2/kernel-shape", {"kernel_shape": [3, 3]})


@family("qlinearmatmul-10/rejects")
def products(rng: Rng) -> Iterator[Draft]:
    def legal(id: str, forms: str = "per-tensor") -> Draft:
        return matmul(rng, id, "usu", "matrix", forms, profile="edge")

    yield reject(legal("inner-dimensions-differ"), "M1/product", i3=np.ones((3, 5), i8))
    yield reject(legal("zero-point-of-another-type"), "G10", i2=i8(1))
    yield reject(legal("b-zero-point-of-another-type"), "G10", i5=u8(1))
    yield reject(legal("a-scale-of-too-many-rows", "per-row"), "M1/length", i1=np.ones(7, f32), i2=np.zeros(7, u8))


@family("matmulinteger-10/rejects")
def integer_products(rng: Rng) -> Iterator[Draft]:
    def legal(id: str, forms: str = "per-tensor") -> Draft:
        return matmul(rng, id, "usu", "matrix", forms, op="MatMulInteger", profile="edge")

    yield reject(legal("inner-dimensions-differ"), "M1/product", i1=np.ones((3, 5), i8))
    yield reject(legal("a-zero-point-of-too-many-rows", "per-row"), "M1/length", i2=np.zeros(7, u8))


def linear(op: str, x: Any, version: int, id: str, scale: Any, **attributes: Any) -> Draft:
    """A legal QuantizeLinear or DequantizeLinear."""
    inputs = [x, np.asarray(scale), np.zeros(np.shape(scale), u8)]
    return Draft(f"{version}-{id}", op, inputs, attributes, version, "", "edge", "Q4")


def both(op: str, x: Any) -> Iterator[Draft]:
    """What the pages of QuantizeLinear and DequantizeLinear forbid alike."""
    four = np.ones(4, f32)
    for version in (13, 21, 25):
        yield reject(
            linear(op, x, version, "scale-of-another-length", four, axis=1),
            "Q4/length",
            i1=np.ones(3, f32),
            i2=np.zeros(3, u8),
        )
        yield reject(
            linear(op, x, version, "zero-point-of-another-shape", four, axis=1), "Q4/shape", i2=np.zeros(3, u8)
        )
        yield reject(linear(op, x, version, "axis-out-of-range", four, axis=1), "Q4/axis", {"axis": 2})
    blocks = np.ones((2, 2), f32)
    for version in (21, 25):
        for block in (1, 4):
            yield reject(linear(op, x, version, f"blocks-of-{block}-for-two-of-2", blocks, axis=1, block_size=2), "Q5/range",
                         {"block_size": block})  # fmt: skip
        yield reject(
            linear(op, x, version, "negative-block", blocks, axis=1, block_size=2), "Q5/negative", {"block_size": -2}
        )


@family("quantizelinear/rejects")
def quantizations(rng: Rng) -> Iterator[Draft]:
    yield from both("QuantizeLinear", np.zeros((2, 4), f32))


@family("dequantizelinear/rejects")
def dequantizations(rng: Rng) -> Iterator[Draft]:
    x = np.zeros((2, 4), u8)
    yield from both("DequantizeLinear", x)
    for version in (13, 21, 25):
        yield reject(linear("DequantizeLinear", x, version, "zero-point-of-another-type", f32(1)), "G10", i2=i8(0))
