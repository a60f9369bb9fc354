"""Cases of DequantizeLinear and DynamicQuantizeLinear: all legal types by pairs, sizes of vectors, output_dtype."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, product
from typing import Any

import numpy as np
from _conformance_case import Draft, Rng, family
from _conformance_power import SIZES, pairwise
from _conformance_power_types import (
    WHOLE,
    allowed,
    every_code,
    number,
    numpy_type,
    shape_of,
    some_codes,
    some_scales,
    some_zeros,
)

f32 = np.float32
VERSIONS = (10, 13, 19, 21, 23, 24, 25, 28)
NARROW = ("uint4", "int4", "uint2", "int2")


def codes_of(version: int) -> tuple[str, ...]:
    return allowed("DequantizeLinear", version, "T1" if version >= 19 else "T")


def scales_of(version: int) -> tuple[str, ...]:
    return allowed("DequantizeLinear", version, "T2") or ("float",)


def node(
    rng: Rng, id: str, version: int, x: str, scale: str, shape: Any = (3, 5), form: str = "tensor", axis: int = 1, block: int = 0,
    zero: bool = True, to: str = "", clause: str = "", data: Any = None, plain: bool = True,
) -> Draft:  # fmt: skip
    """form: ``tensor``, ``axis`` or ``block``. zero: is x_zero_point given? to: output_dtype."""
    parameters = shape_of(form, shape, axis, block)
    given: dict[str, Any] = {**({"axis": axis} if form != "tensor" else {}), **({"block_size": block} if block else {})}
    if to:
        given["output_dtype"] = number(to)
    zeros = some_zeros(rng, x, parameters) if zero and x != "int32" else None
    profile = "narrow" if x in NARROW or x not in WHOLE or scale == "float8e8m0" else "core"
    section = clause or (
        "Q5" if form == "block" else "Q8" if x in NARROW else "Q4" if form == "axis" and x in WHOLE else "D1"
    )
    codes = some_codes(rng, x, shape) if data is None else data
    return Draft(id, "DequantizeLinear", [codes, some_scales(rng, scale, parameters, plain), zeros], given, version, "", profile, section,
                 outputs=[numpy_type(to or scale)])  # fmt: skip


@family("dequantizelinear/pairs")
def pairs(rng: Rng) -> Iterator[Draft]:
    """Each legal pair of: version, types, granularity, axis, zero point, output_dtype."""
    rows = []
    for version in VERSIONS:
        forms = [
            ("tensor", 1),
            *product(("axis",), (0, 1, -1, -3) if version >= 13 else ()),
            *product(("block",), (0, 2, -1, -2) if version >= 21 else ()),
        ]
        outputs = ("", "float", "float16", "bfloat16") if version >= 23 else ("",)
        for x, scale, (form, axis), zero, to in product(
            codes_of(version), scales_of(version), forms, (True, False), outputs
        ):
            if to or scale != "float8e8m0":
                rows.append((version, x, scale, form, axis, zero, to))
    for version, x, scale, form, axis, zero, to in pairwise(rng, rows):
        at = "" if form == "tensor" else f"-{'minus-' if axis < 0 else ''}{abs(axis)}"
        yield node(rng, f"{version}-{x}-{scale}-{form}{at}{'' if zero else '-no-zero-point'}{'-to-' if to else ''}{to}", version, x, scale, (3, 4, 5), form, axis,
                   2 if form == "block" else 0, zero, to, plain=version < 23)  # fmt: skip


@family("dequantizelinear/output-dtype")
def output_dtype(rng: Rng) -> Iterator[Draft]:
    for version, scale, to in product(
        (23, 25, 28), ("float", "float16", "bfloat16", "float8e8m0"), ("float", "float16", "bfloat16")
    ):
        if scale in scales_of(version):
            for x in ("uint8", "int16") if scale != to else ("int8",):
                yield node(rng, f"{version}-{x}-{scale}-to-{to}", version, x, scale, (3, 11), to=to, plain=False)


@family("dequantizelinear/sizes")
def sizes(rng: Rng) -> Iterator[Draft]:
    """As many elements, channels and elements of a channel as fill vectors, or one more or less."""
    versions = cycle((13, 21, 25, 28))
    for n, x in product(SIZES, ("uint8", "int8", "int16", "uint4")):
        version = next(versions)
        version = 21 if version == 13 and x in ("int16", "uint4") else version
        scale = ("float", "float16", "bfloat16")[n % 3] if version >= 21 else "float"
        yield node(rng, f"{version}-{n}-{scale}-{x}", version, x, scale, (n,))
        if n > 1 and x == ("uint8", "int8")[n % 2]:
            yield node(rng, f"{version}-{n}-channels-{x}", version, x, scale, (2, n), "axis", -1)
            yield node(rng, f"{version}-3-channels-of-{n}-{x}", version, x, scale, (1, 3, n), "axis", -2)


@family("dequantizelinear/cubes")
def cubes(rng: Rng) -> Iterator[Draft]:
    """As many elements along each axis: only the numbers tell which one is meant."""
    for version, axis, x in product((13, 19, 21, 24, 28), (0, 2, -1, -2, -3), ("uint8", "int8")):
        yield node(
            rng,
            f"{version}-axis-{axis % 3}{'-from-end' if axis < 0 else ''}-{x}",
            version,
            x,
            "float",
            (3, 3, 3),
            "axis",
            axis,
        )
    for version, axis in product((21, 28), (0, 1, 2, -1, -2, -3)):
        yield node(
            rng,
            f"{version}-blocks-axis-{axis % 3}{'-from-end' if axis < 0 else ''}",
            version,
            "int8",
            "float",
            (3, 3, 3),
            "block",
            axis,
            2,
        )


@family("dequantizelinear/block-sizes")
def block_sizes(rng: Rng) -> Iterator[Draft]:
    """Blocks of the lengths that weights have, the last of them shorter, along any axis."""
    kinds, versions = cycle(("uint8", "int8", "int16", "int4", "uint4", "float8e4m3fn")), cycle((21, 23, 25, 28))
    for (block, length), (axis, shape) in product(((2, 7), (3, 8), (8, 17), (16, 33), (32, 65), (32, 64), (64, 129), (5, 6)),
                                                  ((0, (0, 2)), (1, (2, 0)), (-1, (2, 0)), (-2, (1, 0, 2)))):  # fmt: skip
        version, x = next(versions), next(kinds)
        scale = ("float", "float16", "bfloat16", "float8e8m0")[(block + axis) % (4 if version >= 24 else 3)]
        yield node(rng, f"{version}-{length}-of-{block}-axis-{axis % len(shape)}{'-from-end' if axis < 0 else ''}-{scale}-{x}", version, x, scale,
                   tuple(n or length for n in shape), "block", axis, block, to="float" if scale == "float8e8m0" else "")  # fmt: skip


@family("dequantizelinear/every-code")
def every(rng: Rng) -> Iterator[Draft]:
    """All codes of the types of float6, float8 and of few bits, NaN and infinities too."""
    for version in (25, 28):
        for x in codes_of(version):
            if x in NARROW or x not in WHOLE:
                for scale in ("float", "float16"):
                    yield node(rng, f"{version}-{x}-{scale}", version, x, scale, form="tensor", data=every_code(x))


@family("dynamicquantizelinear-11/sizes")
def dynamic_sizes(rng: Rng) -> Iterator[Draft]:
    """The least and the greatest number at either end of vectors of all lengths."""

    def case(id: str, x: Any) -> Draft:
        return Draft(id, "DynamicQuantizeLinear", [np.asarray(x, f32)], {}, 11, clause="Y1")

    for n in SIZES[1:]:
        x = np.round(rng.uniform(-100, 100, n)) / 8
        for label, center in (("around-zero", 0.0), ("one-sided", 20.0 if n % 2 else -20.0)):
            yield case(f"{n}-{label}", x + center)
        if n > 8:
            for label, place, value in (("greatest-last", -1, 63.0), ("least-last", -1, -51.0)):
                y = x.copy()
                y[place] = value
                yield case(f"{n}-{label}", y)
    inner = np.arange(-2, 3) / 8
    for tie in (0.5, 1.5, 2.5, 4.5, 10.5, 20.5, 99.5, 100.5, 127.5, 200.5, 253.5, 254.5):
        yield case(f"zero-point-at-tie-{tie:g}", [*inner, -tie, 255 - tie, 0.5])
        yield case(f"zero-point-beside-tie-{tie:g}", [*inner, np.nextafter(f32(-tie), f32(0)), 255 - tie, 0.5])
    for number_, (low, high) in enumerate(decided_by_float32(rng)[:12]):
        yield case(f"float32-decides-the-zero-point-{number_}", [*inner, low, high])


def decided_by_float32(rng: Rng) -> Any:
    """Ranges [n,2] whose zero point is another one when it is computed in float64."""
    low, high = (rng.uniform(0.1, 9, 1_000_000).astype(f32) for _ in range(2))
    step = (high + low) / f32(255)
    low = ((np.floor(low / step) + f32(0.5)) * step).astype(f32)
    narrow = np.rint(low / ((high + low) / f32(255)))
    wide = np.rint(low.astype(np.float64) / ((high.astype(np.float64) + low.astype(np.float64)) / 255))
    return np.stack([-low, high], 1)[narrow != wide]


@family("dynamicquantizelinear-11/exact")
def dynamic_exact(rng: Rng) -> Iterator[Draft]:
    """The range is 255 steps of a short number, and no step rounds: codes and halves of them, in several shapes."""
    shapes = cycle([(7,), (3, 5), (2, 3, 4), (1, 2, 5, 3), (33,), (2, 65)])
    for zero, step in product((0, 1, 100, 128, 254, 255), (1.0, 0.375, 2.0**-7)):
        shape = next(shapes)
        low, high = (3, 255) if not zero else (0, 252) if zero == 255 else (0, 255)
        codes = rng.integers(2 * low, 2 * high + 1, shape) / 2
        codes.ravel()[:2] = (high, high - 4.5) if not zero else (low, low + 4.5) if zero == 255 else (low, high)
        x = ((codes - zero) * step).astype(f32)
        label = {0: "positive", 255: "negative"}.get(zero, f"zero-{zero}")
        yield Draft(f"{label}-step-{step:g}", "DynamicQuantizeLinear", [x], {}, 11, clause="Y1")
