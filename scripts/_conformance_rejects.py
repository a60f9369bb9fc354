"""Models that the specification forbids, which a runtime must refuse."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
from _conformance_case import Draft, Rng, family
from _conformance_conv import conv, replaced
from _conformance_matmul import matmul

from qrun.conform.suite import REFUSAL

f32, u8, i8, i32 = np.float32, np.uint8, np.int8, np.int32


@family("qlinearconv-10/rejects")
def convolutions(rng: Rng) -> Iterator[Draft]:
    def reject(id: str, clause: str, geometry: str = "2d", attributes: Any = None, **changes: Any) -> Draft:
        draft = conv(rng, id, "usu", geometry, forms="ttt", clause=clause, profile="edge", expects=REFUSAL)
        draft.attributes = {**draft.attributes, **(attributes or {})}
        return replaced(draft, outputs=(u8,), **changes)

    yield reject("zero-point-of-another-type", "G10", i2=i8(3))
    yield reject("w-zero-point-of-another-type", "G10", i5=u8(3))
    yield reject("w-scale-of-two-for-three-filters", "C2", i4=np.ones(2, f32))
    yield reject("w-scale-of-rank-2", "C2", i4=np.ones((3, 1), f32))
    yield reject("bias-of-two-for-three-filters", "C3", i8=np.zeros(2, i32))
    yield reject("bias-of-rank-2", "C3", i8=np.zeros((3, 1), i32))
    yield reject("x-zero-point-left-out", "G12", i2=None)
    yield reject("pads-and-auto-pad", "C4", "2d-same-upper", {"pads": [1, 1, 1, 1]})
    yield reject("kernel-larger-than-image", "C5", "2d", {"dilations": [4, 4]})
    yield reject("group-that-does-not-divide", "C2", "2d", {"group": 2})
    yield reject("channels-that-do-not-fit", "C2", i3=np.ones((3, 3, 2, 2), i8))
    yield reject("kernel-shape-that-is-not-the-weights", "C2", "2d", {"kernel_shape": [3, 3]})
    yield reject("stride-of-zero", "C4", "2d", {"strides": [0, 1]})
    yield reject("weights-of-another-rank", "C2", i3=np.ones((3, 2, 2), i8))


@family("qlinearmatmul-10/rejects")
def products(rng: Rng) -> Iterator[Draft]:
    def reject(id: str, clause: str, **changes: Any) -> Draft:
        return replaced(
            matmul(rng, id, "usu", clause=clause, profile="edge", expects=REFUSAL, outputs=(u8,)), **changes
        )

    yield reject("inner-dimensions-differ", "M1", i3=np.ones((3, 5), i8))
    yield reject("zero-point-of-another-type", "G10", i2=i8(1))
    yield reject("b-zero-point-of-another-type", "G10", i5=u8(1))
    yield reject("a-scale-of-too-many-rows", "M1", i1=np.ones(7, f32))
    yield reject("b-scale-as-long-as-k", "M1", i4=np.ones(4, f32))
    yield reject("y-scale-of-several", "M1", i6=np.ones(5, f32))
    yield reject("scale-of-shape-1-1", "G9", i6=np.ones((1, 1), f32))


@family("quantizelinear/rejects")
def quantizations(rng: Rng) -> Iterator[Draft]:
    x = np.zeros((2, 4), f32)

    def reject(id: str, version: int, scale: Any, zero: Any, clause: str = "Q4", **attributes: Any) -> Draft:
        return Draft(
            f"{version}-{id}",
            "QuantizeLinear",
            [x, np.asarray(scale), np.asarray(zero)],
            attributes,
            version,
            "",
            "edge",
            clause,
            expects=REFUSAL,
            outputs=(u8,),
        )

    for version in (13, 21, 25):
        yield reject("scale-of-another-length", version, np.ones(3, f32), np.zeros(3, u8), axis=1)
        yield reject("zero-point-of-another-shape", version, np.ones(4, f32), np.zeros(3, u8), axis=1)
        yield reject("axis-out-of-range", version, np.ones(4, f32), np.zeros(4, u8), axis=2)
    for version, block in product((21, 25), (1, 4)):
        yield reject(
            f"blocks-of-{block}-for-two-of-2",
            version,
            np.ones((2, 2), f32),
            np.zeros((2, 2), u8),
            "Q5",
            axis=1,
            block_size=block,
        )
    for version in (21, 25):
        yield reject("scalar-with-blocks", version, f32(1), u8(0), "Q5", axis=1, block_size=2)
        yield reject("negative-block", version, np.ones((2, 2), f32), np.zeros((2, 2), u8), "Q5", axis=1, block_size=-2)


@family("dequantizelinear/rejects")
def dequantizations(rng: Rng) -> Iterator[Draft]:
    x = np.zeros((2, 4), u8)

    def reject(id: str, version: int, scale: Any, zero: Any, clause: str = "Q4", **attributes: Any) -> Draft:
        return Draft(
            f"{version}-{id}",
            "DequantizeLinear",
            [x, np.asarray(scale), np.asarray(zero)],
            attributes,
            version,
            "",
            "edge",
            clause,
            expects=REFUSAL,
            outputs=(f32,),
        )

    for version in (13, 21, 25):
        yield reject("zero-point-of-another-type", version, f32(1), i8(0), "G10")
        yield reject("scale-of-another-length", version, np.ones(3, f32), np.zeros(3, u8), axis=1)
        yield reject("axis-out-of-range", version, np.ones(4, f32), np.zeros(4, u8), axis=2)
    for version in (21, 25):
        yield reject("scalar-with-blocks", version, f32(1), u8(0), "Q5", axis=1, block_size=2)
