"""Cases of QuantizeLinear: all legal types by pairs, sizes of vectors, output_dtype, near ties, opset 28."""

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
    number,
    numpy_type,
    shape_of,
    some_scales,
    some_zeros,
    to_quantize,
    widened,
)

f32 = np.float32
VERSIONS = (10, 13, 19, 21, 23, 24, 25, 28)
NARROW = ("uint4", "int4", "uint2", "int2")


def types_of(version: int) -> Iterator[tuple[str, str, str]]:
    """The legal types of x, y_scale and y_zero_point."""
    targets = allowed("QuantizeLinear", version, "T3" if version >= 23 else "T2")
    for x, target in product(allowed("QuantizeLinear", version, "T1"), targets):
        scales = allowed("QuantizeLinear", version, "T2") if version >= 23 else (x,) if version >= 19 else ("float",)
        for scale in scales:
            yield x, scale, target


def clause_of(form: str, target: str, x: str = "float", scale: str = "float") -> str:
    """The section of numerics.md that decides."""
    if form == "block":
        return "Q5"
    if target in NARROW:
        return "Q8"
    if target not in WHOLE:
        return "Q6"
    if "int32" in (x, scale) or scale == "float8e8m0":
        return "Q2"
    return "Q4" if form == "axis" else "Q1"


def node(
    rng: Rng, id: str, version: int, x: str, scale: str, target: str, shape: Any = (3, 5), form: str = "tensor", axis: int = 1,
    block: int = 0, zero: bool = True, clause: str = "", **attributes: Any,
) -> Draft:  # fmt: skip
    """form: ``tensor``, ``axis`` or ``block``. zero: is y_zero_point given?"""
    parameters = shape_of(form, shape, axis, block)
    scales = some_scales(rng, scale, parameters, plain=version < 23)
    data = to_quantize(rng, shape, widened(scales, shape, axis, block), target, x)
    given = {**({"axis": axis} if form != "tensor" else {}), **({"block_size": block} if block else {}), **attributes}
    zeros = some_zeros(rng, target, parameters) if zero else None
    profile = "narrow" if target in NARROW or target not in WHOLE or scale == "float8e8m0" else "core"
    return Draft(
        id,
        "QuantizeLinear",
        [data, scales, zeros],
        given,
        version,
        "",
        profile,
        clause or clause_of(form, target, x, scale),
    )


PRECISIONS = {"float": "float32", "float16": "float16", "bfloat16": "bfloat16"}


@family("quantizelinear/pairs")
def pairs(rng: Rng) -> Iterator[Draft]:
    """Each legal pair of: version, types, granularity, axis, saturate, output_dtype."""
    rows = []
    for version in VERSIONS:
        forms = [
            ("tensor", 1),
            *product(("axis",), (0, 1, -1, -3) if version >= 13 else ()),
            *product(("block",), (0, 2, -1, -2) if version >= 21 else ()),
        ]
        for (x, scale, target), (form, axis), saturate, how in product(
            types_of(version), forms, (1, 0), ("zero", "both", "output_dtype")
        ):
            if not saturate and not target.startswith("float8"):
                continue
            if how != "zero" and version < 21:
                continue
            if x == "int32" and target not in WHOLE:
                continue
            rows.append((version, x, scale, target, form, axis, saturate, how))
    for version, x, scale, target, form, axis, saturate, how in pairwise(rng, rows):
        more: dict[str, Any] = {} if saturate else {"saturate": 0}
        if how != "zero":
            more["output_dtype"] = number(target)
        at = "" if form == "tensor" else f"-{'minus-' if axis < 0 else ''}{abs(axis)}"
        yield node(rng, f"{version}-{x}-{scale}-{target}-{form}{at}{'' if saturate else '-no-saturation'}-{how.replace('_', '-')}", version, x, scale, target,
                   (3, 4, 5), form, axis, 2 if form == "block" else 0, how != "output_dtype", **more)  # fmt: skip


@family("quantizelinear/sizes")
def sizes(rng: Rng) -> Iterator[Draft]:
    """As many elements, channels and elements of a channel as fill vectors, or one more or less."""
    versions = cycle((13, 21, 25, 28))
    for n, target in product(SIZES, ("uint8", "int8", "uint16", "int4")):
        version = next(versions)
        if version == 13 and target in ("uint16", "int4"):
            version = 21
        x = ("float", "float16", "bfloat16")[n % 3] if version >= 21 else "float"
        yield node(rng, f"{version}-{n}-{x}-{target}", version, x, x, target, (n,))
        if n > 1 and target == ("uint8", "int8")[n % 2]:
            yield node(rng, f"{version}-{n}-channels-{target}", version, x, x, target, (2, n), "axis", -1)
            yield node(rng, f"{version}-3-channels-of-{n}-{target}", version, x, x, target, (1, 3, n), "axis", -2)


@family("quantizelinear/cubes")
def cubes(rng: Rng) -> Iterator[Draft]:
    """As many elements along each axis: only the numbers tell which one is meant."""
    for version, axis, target in product((13, 19, 21, 24, 28), (0, 2, -1, -2, -3), ("uint8", "int8")):
        yield node(
            rng,
            f"{version}-axis-{axis % 3}{'-from-end' if axis < 0 else ''}-{target}",
            version,
            "float",
            "float",
            target,
            (3, 3, 3),
            "axis",
            axis,
        )


@family("quantizelinear/block-sizes")
def block_sizes(rng: Rng) -> Iterator[Draft]:
    """Blocks of the lengths that weights have, the last of them shorter, along any axis."""
    targets, versions = cycle(("uint8", "int8", "uint16", "int4", "uint4", "float8e4m3fn")), cycle((21, 23, 25, 28))
    for (block, length), (axis, shape) in product(((2, 7), (3, 8), (8, 17), (16, 33), (32, 65), (32, 64), (64, 129), (5, 6)),
                                                  ((0, (0, 2)), (1, (2, 0)), (-1, (2, 0)), (-2, (1, 0, 2)))):  # fmt: skip
        version, target = next(versions), next(targets)
        scale = ("float", "float16", "bfloat16", "float8e8m0")[(block + axis) % (4 if version >= 24 else 3)]
        x = "float" if scale == "float8e8m0" else scale
        yield node(rng, f"{version}-{length}-of-{block}-axis-{axis % len(shape)}{'-from-end' if axis < 0 else ''}-{scale}-{target}", version, x, scale, target,
                   tuple(n or length for n in shape), "block", axis, block)  # fmt: skip
    for version, scale, target, axis in product(
        (24, 28), ("float8e8m0", "float16", "bfloat16"), ("uint8", "int4", "float8e5m2"), (0, 1)
    ):
        yield node(
            rng,
            f"{version}-scales-{scale}-axis-{axis}-{target}",
            version,
            "float",
            scale,
            target,
            (4, 6),
            "block",
            axis,
            2,
        )


@family("quantizelinear/output-dtype")
def output_dtype(rng: Rng) -> Iterator[Draft]:
    """Every type that y may have, from output_dtype alone, and with a zero point."""
    for version in (21, 23, 24, 25, 28):
        for target in allowed("QuantizeLinear", version, "T3" if version >= 23 else "T2"):
            clause = "Q3" if target in WHOLE else ""
            yield node(
                rng,
                f"{version}-{target}",
                version,
                "float",
                "float",
                target,
                (2, 7),
                zero=False,
                output_dtype=number(target),
                clause=clause,
            )


NEAR = [0.49999997, -0.49999997, 0.50000006, 1.4999999, 2.4999998, -2.4999998, 2.5000002, 126.49999, 126.5, 127.49999, 127.5, 8388607.5, 8388608.0, 8388609.0,
        -8388607.5, 32766.498, 32766.5, 32767.498, 65534.496, 65534.5, 12344.499, 12345.5, -0.5, 0.5, 1.5, -1.5, -12345.5, 4194303.75]  # fmt: skip


@family("quantizelinear/halves")
def halves(rng: Rng) -> Iterator[Draft]:
    """The floats before, at and after a tie: floor(q + 0.5) rounds 0.49999997 to 1, and loses bits beyond 2^22."""
    for version, target in product(VERSIONS, ("uint8", "int8", "uint16", "int16")):
        if target not in allowed("QuantizeLinear", version, "T3" if version >= 23 else "T2"):
            continue
        zero = np.asarray(3, numpy_type(target))
        for scale in (1.0, 0.25) if version in (13, 25) else (1.0,):
            x = np.array(NEAR, f32) * f32(scale)
            yield Draft(
                f"{version}-{target}-scale-{scale:g}", "QuantizeLinear", [x, f32(scale), zero], {}, version, clause="G1"
            )
    for version, (name, kind), target in product(
        (21, 25, 28), (("float16", np.float16), ("bfloat16", numpy_type("bfloat16").type)), ("uint8", "int16")
    ):
        ties = np.arange(-8, 9) + 0.5
        x = np.concatenate(
            [np.nextafter(ties.astype(np.float16), np.float16(s)).astype(f32) for s in (-99, 99)] + [ties]
        ).astype(kind)
        yield Draft(
            f"{version}-{name}-{target}",
            "QuantizeLinear",
            [x, kind(1), np.asarray(5, numpy_type(target))],
            {},
            version,
            clause="G1",
        )


@family("quantizelinear/reciprocal")
def reciprocals(rng: Rng) -> Iterator[Draft]:
    """Quotients that are exact ties though 1 / y_scale is not exact, and the floats beside: a product misses them."""
    for number_, (version, target) in enumerate(
        product((10, 13, 19, 21, 24, 28), ("uint8", "int8", "uint16", "int16"))
    ):
        if target not in allowed("QuantizeLinear", version, "T3" if version >= 23 else "T2"):
            continue
        odd = (3, 5, 7, 11, 13, 49)[number_ % 6]
        scale = f32(odd * 2.0 ** -rng.integers(2, 9))
        most = 120 if "8" in target else 30000
        ties = rng.integers(0, most, 33) + 0.5
        x = (ties * float(scale)).astype(f32)
        x[1::3], x[2::3] = np.nextafter(x[1::3], f32(np.inf)), np.nextafter(x[2::3], f32(0))
        yield Draft(
            f"{version}-{odd}-{target}",
            "QuantizeLinear",
            [x, scale, np.asarray(7, numpy_type(target))],
            {},
            version,
            clause="G1",
        )


@family("quantizelinear/float6")
def float6(rng: Rng) -> Iterator[Draft]:
    """Every number of float6 and float4, every tie between two, what is beyond, and the least."""
    for target in ("float6e2m3", "float6e3m2", "float4e2m1"):
        kind = numpy_type(target)
        bits = 16 if target == "float4e2m1" else 64
        every = np.unique(np.arange(bits, dtype=np.uint8).view(kind).astype(f32))
        middle = (every[1:] + every[:-1]) / 2
        special = np.array(
            [0.0, -0.0, 1e-30, -1e-30, 1e9, -1e9, np.inf, -np.inf, every[-1] * 1.04, every[-1] * 1.07], f32
        )
        for label, x in (("all", every), ("ties", middle), ("above-ties", np.nextafter(middle, f32(np.inf))), ("below-ties", np.nextafter(middle, f32(-np.inf))),
                         ("special", special)):  # fmt: skip
            for xt in ("float", "float16", "bfloat16")[: 1 if "-ties" in label else 3]:
                with np.errstate(over="ignore"):
                    wide = x.astype(numpy_type(xt))
                yield Draft(
                    f"28-{target}-{label}-{xt}",
                    "QuantizeLinear",
                    [wide, numpy_type(xt).type(1), np.zeros((), kind)],
                    {},
                    28,
                    "",
                    "narrow",
                    "Q6",
                )
