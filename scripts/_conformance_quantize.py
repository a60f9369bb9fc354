"""Cases of QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import ml_dtypes as md
import numpy as np
from _conformance_case import Draft, Rng, family

from qrun.conform.suite import EITHER

f32, f16, bf16, u8, i8, u16, i16, i32 = (
    np.float32, np.float16, md.bfloat16, np.uint8, np.int8, np.uint16, np.int16, np.int32)  # fmt: skip
VERSIONS = (10, 13, 19, 21, 23, 24, 25)
EIGHT = {"uint8": u8, "int8": i8}
SIXTEEN = {"uint16": u16, "int16": i16}
FLOATS: dict[str, Any] = {"float32": f32, "float16": f16, "bfloat16": bf16}
LOW: dict[str, tuple[Any, int]] = {
    "uint4": (md.uint4, 21),
    "int4": (md.int4, 21),
    "uint2": (md.uint2, 25),
    "int2": (md.int2, 25),
}
FLOAT8: dict[str, Any] = {"float8e4m3fn": md.float8_e4m3fn, "float8e4m3fnuz": md.float8_e4m3fnuz, "float8e5m2": md.float8_e5m2,
                          "float8e5m2fnuz": md.float8_e5m2fnuz}  # fmt: skip
RANGE = {"uint8": (0, 255), "int8": (-128, 127), "uint16": (0, 65535), "int16": (-32768, 32767), "uint4": (0, 15), "int4": (-8, 7),
         "uint2": (0, 3), "int2": (-2, 1)}  # fmt: skip


def zero_of(rng: Rng, name: str, kind: Any, shape: Sequence[int] = (), odd: bool = False) -> Any:
    low, high = RANGE[name]
    values = rng.integers(low, high + 1, shape)
    values = np.clip(values | 1, low, high) if odd else values
    return np.asarray(values).astype(kind)


def reals(rng: Rng, shape: Sequence[int], scale: Any, name: str, kind: Any = f32, ties: bool = False) -> Any:
    """Numbers a few of which saturate; with `ties`, halves of the scale, which then is a power of two."""
    low, high = RANGE[name]
    spread = (high - low) * (0.6 if high < 1000 else 0.55)
    steps = rng.uniform(-spread, spread, shape)
    if ties:
        steps = np.floor(np.clip(steps, -200, 200)) + 0.5
    return (steps * np.asarray(scale, np.float64)).astype(kind)


def quantize(
    id: str,
    x: Any,
    scale: Any,
    zero: Any,
    version: int,
    clause: str = "Q1",
    profile: str = "core",
    fed: Any = None,
    **attributes: Any,
) -> Draft:
    return Draft(id, "QuantizeLinear", [x, np.asarray(scale), zero], attributes, version, "", profile, clause, fed)


@family("quantizelinear/types")
def quantize_types(rng: Rng) -> Iterator[Draft]:
    for version, (name, kind) in product(VERSIONS, EIGHT.items()):
        scale = f32(rng.uniform(0.01, 0.3))
        yield quantize(f"{version}-{name}", reals(rng, (3, 7), scale, name), scale, zero_of(rng, name, kind), version)
        yield quantize(
            f"{version}-{name}-ties",
            reals(rng, (3, 7), 0.25, name, ties=True),
            f32(0.25),
            zero_of(rng, name, kind, odd=True),
            version,
            "G1",
        )
    for version, (name, kind), (other, xt) in product(
        (19, 21, 23, 25), EIGHT.items(), (("float16", f16), ("bfloat16", bf16))
    ):
        scale = xt(rng.uniform(0.01, 0.3))
        yield quantize(
            f"{version}-{other}-{name}", reals(rng, (4, 6), scale, name, xt), scale, zero_of(rng, name, kind), version
        )
        yield quantize(
            f"{version}-{other}-{name}-ties",
            reals(rng, (3, 5), 0.5, name, xt, True),
            xt(0.5),
            zero_of(rng, name, kind, odd=True),
            version,
            "G1",
        )
    for version, (name, kind), (other, xt) in product((21, 23, 25), SIXTEEN.items(), FLOATS.items()):
        scale = xt(rng.uniform(0.001, 0.03))
        yield quantize(
            f"{version}-{other}-{name}", reals(rng, (4, 6), scale, name, xt), scale, zero_of(rng, name, kind), version
        )
    for version in VERSIONS:
        yield quantize(f"{version}-no-zero-point", reals(rng, (3, 4), 0.1, "uint8"), f32(0.1), None, version, "G12")
    for version, (name, kind) in product((10, 13, 19, 21, 23, 25), EIGHT.items()):
        scale = f32(2) if version < 23 else f32(3)
        yield quantize(f"{version}-int32-{name}", rng.integers(-400, 400, (3, 5)).astype(i32), scale.astype(i32) if version >= 19 and version < 23 else scale,
                       zero_of(rng, name, kind), version, "Q2")  # fmt: skip


@family("quantizelinear/lenient")
def lenient(rng: Rng) -> Iterator[Draft]:
    """A scale of shape [1] for the whole tensor, where the text has a scalar."""
    for version, (name, kind) in product(VERSIONS, EIGHT.items()):
        scale = np.full(1, rng.uniform(0.01, 0.3)).astype(f32)
        x, zero = reals(rng, (5,), scale, name), zero_of(rng, name, kind, (1,))
        draft = quantize(f"{version}-{name}-one-element", x, scale, zero, version, "G9", "lenient")
        draft.expects = EITHER
        yield draft


@family("quantizelinear/near-ties")
def near_ties(rng: Rng) -> Iterator[Draft]:
    """Quotients beside a tie, which a product with the reciprocal misses."""
    yield quantize("reciprocal", np.array([0.273939937], f32), f32(0.00214854861), u8(0), 13)
    for number, (name, kind) in product(range(6), {**EIGHT, **SIXTEEN}.items()):
        scale = f32(rng.uniform(0.001, 0.1))
        low, high = RANGE[name]
        ties = rng.integers(max(low, -high), high, 24) + 0.5
        x = (ties * float(scale)).astype(f32)
        x[::3] = np.nextafter(x[::3], f32(np.inf))
        x[1::3] = np.nextafter(x[1::3], f32(-np.inf))
        yield quantize(f"{name}-{number}", x, scale, np.asarray(0, kind), 21)


@family("quantizelinear/granularity")
def granularity(rng: Rng) -> Iterator[Draft]:
    for version, axis, (name, kind) in product((13, 19, 21, 23, 25), (0, 1, 2, -1), EIGHT.items()):
        shape = (2, 3, 4)
        n = shape[axis]
        scale = np.asarray(rng.uniform(0.02, 0.4, n)).astype(f32)
        along = scale.reshape([-1 if at == axis % 3 else 1 for at in range(3)])
        yield quantize(f"{version}-axis-{axis % 3}{'-from-end' if axis < 0 else ''}-{name}", reals(rng, shape, along, name), scale,
                       zero_of(rng, name, kind, (n,)), version, "Q4", axis=axis)  # fmt: skip
    for version in (13, 21, 25):
        scale = np.asarray(rng.uniform(0.02, 0.4, 3)).astype(f32)
        yield quantize(
            f"{version}-axis-by-default",
            reals(rng, (3, 3), scale, "uint8"),
            scale,
            zero_of(rng, "uint8", u8, (3,)),
            version,
            "Q4",
        )
        yield quantize(
            f"{version}-vector-axis-0",
            reals(rng, (3,), scale, "int8"),
            scale,
            zero_of(rng, "int8", i8, (3,)),
            version,
            "Q4",
            axis=0,
        )
        yield quantize(f"{version}-scalar-x", np.asarray(f32(1.3)), f32(0.02), u8(3), version, "Q4")
    for version, (name, kind) in product((21, 23, 25), {**EIGHT, **SIXTEEN}.items()):
        for shape, axis, block in (
            ((4, 6), 0, 2),
            ((4, 6), 1, 3),
            ((3, 5), 1, 2),
            ((5, 2), 0, 3),
            ((2, 4, 3), 1, 2),
            ((6,), 0, 2),
        ):
            blocks = tuple(-(-n // block) if at == axis else n for at, n in enumerate(shape))
            scale = np.asarray(rng.uniform(0.02, 0.3, blocks)).astype(f32)
            wide = np.repeat(scale, block, axis).take(range(shape[axis]), axis)
            yield quantize(f"{version}-blocks-{'x'.join(map(str, shape))}-axis-{axis}-of-{block}-{name}", reals(rng, shape, wide, name), scale,
                           zero_of(rng, name, kind, blocks), version, "Q5", axis=axis, block_size=block)  # fmt: skip
    for version in (21, 25):
        x = reals(rng, (2, 4), 0.1, "uint8")
        yield quantize(f"{version}-scalar-with-blocks", x, f32(0.1), u8(3), version, "Q5/scalar", axis=1, block_size=2)
    yield quantize(
        "21-one-block-of-a-vector",
        reals(rng, (3,), 0.1, "uint8"),
        np.full(1, 0.1, f32),
        u8([3]),
        21,
        "Q5",
        axis=0,
        block_size=3,
    )


@family("quantizelinear/division-type")
def division_type(rng: Rng) -> Iterator[Draft]:
    for version, (a, xt), (b, st), name in product((23, 25), FLOATS.items(), FLOATS.items(), ("uint8", "int16")):
        if a != b:
            kind = {**EIGHT, **SIXTEEN}[name]
            scale = st(rng.uniform(0.02, 0.3))
            yield quantize(
                f"{version}-{a}-by-{b}-{name}",
                reals(rng, (4, 5), float(scale), name, xt),
                scale,
                zero_of(rng, name, kind),
                version,
            )
    for version, xt, number, into in product((23, 25), ("float32", "float16"), (1, 10, 16), ("uint8",)):
        kind = FLOATS[xt]
        scale = kind(rng.uniform(0.02, 0.3))
        precision = {1: "float32", 10: "float16", 16: "bfloat16"}[number]
        draft = quantize(
            f"{version}-{xt}-precision-{precision}-{into}",
            reals(rng, (4, 5), float(scale), into, kind),
            scale,
            u8(7),
            version,
            precision=number,
        )
        draft.attributes = {**draft.attributes, "_precision": precision}
        yield draft


@family("quantizelinear/edge")
def edges(rng: Rng) -> Iterator[Draft]:
    far = [3e9, -3e9, 1e30, -1e30, np.inf, -np.inf, 2**31, -(2.0**31), 65504.0, 0.0, -0.0]
    for version, (name, kind), zero in product((10, 13, 21, 25), {**EIGHT, **SIXTEEN}.items(), (0, 5, -5)):
        if (zero < 0 and name.startswith("u")) or (version < 21 and name in SIXTEEN):
            continue
        yield quantize(
            f"{version}-{name}-far-beyond-zero-{zero}", np.array(far, f32), f32(1), kind(zero), version, "G4", "edge"
        )
        yield quantize(
            f"{version}-{name}-nan-zero-{zero}",
            np.array([np.nan, 1, np.nan], f32),
            f32(1),
            kind(zero),
            version,
            "G5",
            "edge",
        )
    for version, (name, kind), (other, xt) in product(
        (21, 25), {**EIGHT, **SIXTEEN}.items(), (("float16", f16), ("bfloat16", bf16))
    ):
        x = np.array([np.inf, -np.inf, 60000.0, -60000.0, 0], np.float32).astype(xt)
        yield quantize(f"{version}-{name}-{other}-far-beyond", x, xt(2**-20), kind(1), version, "G4", "edge")
    for version, name, (label, value) in product((13, 21, 25), EIGHT, (("subnormal", 1e-41), ("zero", 0.0), ("negative", -0.5), ("infinite", np.inf),
                                                                  ("nan", np.nan), ("huge", 1e38), ("least", 1.4e-45))):  # fmt: skip
        x = np.array([0.0, 1.0, -1.0, 1e-40, np.inf, 300.0], f32)
        yield quantize(
            f"{version}-{name}-scale-{label}",
            x,
            f32(value),
            EIGHT[name](7),
            version,
            {"nan": "G5", "huge": "G4"}.get(label, "G6"),
            "edge",
        )
    for version, shape in product((13, 21, 25), ((0,), (2, 0, 3))):
        yield quantize(
            f"{version}-no-elements-{len(shape)}d", np.zeros(shape, f32), f32(1), u8(3), version, "G11", "edge"
        )
    for version, (name, kind) in product((21, 25), EIGHT.items()):
        x = np.full((2, 4), 3e9, f32)
        x[1] *= -1
        for axis, block in ((0, 1), (1, 2)):
            shape = (2, 4) if axis == 0 else (2, 2)
            yield quantize(f"{version}-{name}-blocks-far-beyond-axis-{axis}", x, np.ones(shape, f32), np.zeros(shape, kind), version, "G4", "edge",
                           axis=axis, block_size=block)  # fmt: skip
        yield quantize(
            f"{version}-{name}-axis-far-beyond", x, np.ones(4, f32), np.zeros(4, kind), version, "G4", "edge", axis=1
        )
    for places in ((0, 1), (0, 1, 2)):
        yield quantize(f"fed-{len(places)}", reals(rng, (3, 4), 0.1, "uint8"), f32(0.1), u8(9), 13, fed=places)
