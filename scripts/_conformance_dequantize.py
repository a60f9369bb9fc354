"""Cases of DequantizeLinear and DynamicQuantizeLinear."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import ml_dtypes as md
import numpy as np
from _conformance_case import Draft, Rng, family
from _conformance_quantize import (
    EIGHT,
    FLOAT8,
    FLOATS,
    LOW,
    RANGE,
    SIXTEEN,
    VERSIONS,
    bf16,
    f16,
    f32,
    i32,
    u8,
    zero_of,
)

from qrun.conform.suite import EITHER, Alternative


def dequantize(
    id: str,
    x: Any,
    scale: Any,
    zero: Any,
    version: int,
    clause: str = "D1",
    profile: str = "core",
    fed: Any = None,
    **attributes: Any,
) -> Draft:
    return Draft(
        id, "DequantizeLinear", [np.asarray(x), np.asarray(scale), zero], attributes, version, "", profile, clause, fed
    )


def all_codes(rng: Rng, name: str, kind: Any, shape: Sequence[int]) -> Any:
    low, high = RANGE[name]
    return rng.integers(low, high + 1, shape).astype(kind)


@family("dequantizelinear/types")
def dequantize_types(rng: Rng) -> Iterator[Draft]:
    for version, (name, kind) in product(VERSIONS, EIGHT.items()):
        for zero in ("some", None):
            z = zero_of(rng, name, kind) if zero else None
            yield dequantize(
                f"{version}-{name}{'' if zero else '-no-zero-point'}",
                all_codes(rng, name, kind, (3, 7)),
                f32(rng.uniform(0.001, 0.3)),
                z,
                version,
            )
    for version, (name, kind), (other, to) in product(
        (19, 21, 23, 25), EIGHT.items(), (("float16", f16), ("bfloat16", bf16))
    ):
        yield dequantize(
            f"{version}-{name}-{other}",
            all_codes(rng, name, kind, (3, 6)),
            to(rng.uniform(0.01, 0.3)),
            zero_of(rng, name, kind),
            version,
        )
    for version, (name, kind), (other, to) in product((21, 23, 25), SIXTEEN.items(), FLOATS.items()):
        yield dequantize(
            f"{version}-{name}-{other}",
            all_codes(rng, name, kind, (3, 6)),
            to(rng.uniform(0.001, 0.03)),
            zero_of(rng, name, kind),
            version,
        )
    for version in VERSIONS:
        x = rng.integers(-(2**31), 2**31, (2, 6)).astype(i32)
        yield dequantize(f"{version}-int32", x, f32(rng.uniform(0.0001, 0.01)), None, version)
        yield dequantize(f"{version}-int32-small", x % 1000, f32(0.01), None, version)


@family("dequantizelinear/granularity")
def dequantize_granularity(rng: Rng) -> Iterator[Draft]:
    for version, axis, (name, kind) in product((13, 19, 21, 23, 25), (0, 1, 2, -1), EIGHT.items()):
        shape = (2, 3, 4)
        n = shape[axis]
        yield dequantize(f"{version}-axis-{axis % 3}{'-from-end' if axis < 0 else ''}-{name}", all_codes(rng, name, kind, shape),
                         np.asarray(rng.uniform(0.02, 0.4, n)).astype(f32), zero_of(rng, name, kind, (n,)), version, "Q4", axis=axis)  # fmt: skip
    for version, (name, kind) in product((21, 23, 25), {**EIGHT, **SIXTEEN}.items()):
        for shape, axis, block in (((4, 6), 0, 2), ((4, 6), 1, 3), ((3, 5), 1, 2), ((2, 4, 3), 1, 2), ((6,), 0, 2)):
            blocks = tuple(-(-n // block) if at == axis else n for at, n in enumerate(shape))
            yield dequantize(f"{version}-blocks-{'x'.join(map(str, shape))}-axis-{axis}-of-{block}-{name}", all_codes(rng, name, kind, shape),
                             np.asarray(rng.uniform(0.02, 0.3, blocks)).astype(f32), zero_of(rng, name, kind, blocks), version, "Q5", axis=axis,
                             block_size=block)  # fmt: skip

    for version in (21, 25):
        x = all_codes(rng, "uint8", u8, (2, 4))
        yield dequantize(
            f"{version}-scalar-with-blocks", x, f32(0.1), u8(3), version, "Q5/scalar", axis=1, block_size=2
        )


@family("dequantizelinear/edge")
def dequantize_edges(rng: Rng) -> Iterator[Draft]:
    for version, (label, value) in product((13, 21, 25), (("subnormal", 1e-41), ("zero", 0.0), ("negative", -0.5), ("infinite", np.inf), ("nan", np.nan),
                                                      ("overflow", 3e38))):  # fmt: skip
        for name, kind in EIGHT.items():
            yield dequantize(
                f"{version}-{name}-scale-{label}",
                np.array([RANGE[name][0], 3, 4, RANGE[name][1]], kind),
                f32(value),
                kind(3),
                version,
                "D1" if label == "overflow" else "G6",
                "edge",
            )
    for version, shape in product((13, 21), ((0,), (2, 0, 3))):
        yield dequantize(
            f"{version}-no-elements-{len(shape)}d", np.zeros(shape, u8), f32(1), u8(3), version, "G11", "edge"
        )
    for places in ((0, 1), (0, 1, 2)):
        yield dequantize(f"fed-{len(places)}", all_codes(rng, "uint8", u8, (3, 4)), f32(0.1), u8(9), 13, fed=places)
    yield dequantize("float16-overflow", np.array([0, 255], u8), f16(300), u8(0), 21, "D1", "edge")
    yield dequantize("scalar", u8(200), f32(0.5), u8(100), 13, "D1", "edge")


@family("dequantizelinear/lenient")
def dequantize_lenient(rng: Rng) -> Iterator[Draft]:
    """int32 with a zero point, which the text excludes."""
    for version in (19, 21, 25):
        wide = np.array([2**31 - 1, -(2**31), 16777217, -16777217, 0], i32)
        for label, zero in (("one", 1), ("large", 16777216), ("greatest", 2**31 - 1), ("least", -(2**31))):
            draft = dequantize(f"{version}-int32-zero-point-{label}", wide, f32(1), i32(zero), version, "D2", "lenient")
            draft.expects = EITHER
            yield draft


@family("dequantizelinear/narrow")
def dequantize_narrow(rng: Rng) -> Iterator[Draft]:
    for (name, (kind, since)), version in product(LOW.items(), (21, 23, 25)):
        if version >= since:
            low, high = RANGE[name]
            every = np.arange(low, high + 1).astype(kind)
            for label, to in FLOATS.items():
                yield dequantize(
                    f"{version}-{name}-{label}", every, to(0.3), zero_of(rng, name, kind), version, "Q8", "narrow"
                )
            yield dequantize(
                f"{version}-{name}-odd-count", every[:3], f32(0.3), zero_of(rng, name, kind), version, "Q8", "narrow"
            )
            yield dequantize(f"{version}-{name}-blocks", all_codes(rng, name, kind, (4, 3)), rng.uniform(0.1, 1, (2, 3)).astype(f32), zero_of(rng, name, kind, (2, 3)),
                             version, "Q5", "narrow", axis=0, block_size=2)  # fmt: skip
            yield dequantize(f"{version}-{name}-axis", all_codes(rng, name, kind, (2, 4)), rng.uniform(0.1, 1, 4).astype(f32), zero_of(rng, name, kind, (4,)), version,
                             "Q8", "narrow", axis=1)  # fmt: skip
    for (name, kind), version in product(FLOAT8.items(), (19, 21, 23, 25)):
        every = np.arange(0, 256, 5, dtype=u8).view(kind)
        for label, to in (("float32", f32), ("float16", f16)):
            yield dequantize(f"{version}-{name}-{label}", every, to(0.3), np.zeros((), kind), version, "D1", "narrow")
    for version in (23, 24, 25):
        four = np.arange(16).astype(u8).view(md.float4_e2m1fn)
        yield dequantize(
            f"{version}-float4e2m1", four, f32(0.3), np.zeros((), md.float4_e2m1fn), version, "D1", "narrow"
        )


@family("dynamicquantizelinear-11/range")
def dynamic(rng: Rng) -> Iterator[Draft]:
    def case(id: str, x: Any, clause: str = "Y1", profile: str = "core", others: Any = ()) -> Draft:
        return Draft(id, "DynamicQuantizeLinear", [np.asarray(x, f32)], {}, 11, "", profile, clause, others=others)

    for number, shape in enumerate([(6,), (3, 5), (2, 3, 4), (1,), (40,)]):
        for label, center, spread in (
            ("around-zero", 0, 3),
            ("positive", 9, 2),
            ("negative", -9, 2),
            ("wide", 0, 1e6),
            ("tiny", 0, 1e-30),
        ):
            yield case(f"{label}-{number}", rng.normal(center, spread, shape))
    for top in (1.0, 255.0, 510.0, 3.0, 0.1):
        yield case(f"ties-up-to-{top:g}", np.append(np.arange(11) * top / 510, top))
    yield case("scalar", f32(3.7))
    yield case("one-side-ties", np.array([-63.75, 191.25, 0.375, 1.125, 1.875, -0.375]))
    zeros = np.zeros(3, f32)
    others = [Alternative("zero-range", f"returns a scale of {text}", True, (who,), {"y0": np.zeros(3, u8), "y1": np.asarray(f32(value)), "y2": np.asarray(u8(0))})
              for text, value, who in (("1/255, as in onnx.reference", 1 / 255, "onnx-ref"), ("0, as the formula's numerator", 0.0, "openvino"))]  # fmt: skip
    yield case("all-zeros", zeros, "Y2", "edge", others)
    empty = [
        Alternative(
            "zero-range",
            "returns a scale of 0",
            True,
            ("openvino",),
            {"y0": np.zeros(0, u8), "y1": np.asarray(f32(0)), "y2": np.asarray(u8(0))},
        )
    ]
    yield case("no-elements", np.zeros(0, f32), "Y2", "edge", empty)
    yield case("largest", np.array([3e38, 1e38, 0]), "Y1", "edge")
    yield case("subnormal", np.array([1e-40, -3e-41, 5e-42]), "Y1", "edge")
