"""Defects of rounding and of the arithmetic that makes codes from sums and from floats."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from defects.node import Defect, Node, Planted
from defects.products import Products
from qrun.ir import Array
from qrun.ops import Context, find
from qrun.ops._quantize import is_integer, limits


def zero_point_before_rounding(n: Node) -> Array | None:
    return None if n.exact is None else n.coded(np.rint(n.exact + n.zero()))


def half_away_from_zero(n: Node) -> Array | None:
    return None if n.exact is None else n.coded(np.copysign(np.floor(np.abs(n.exact) + 0.5), n.exact) + n.zero())


def half_up(n: Node) -> Array | None:
    return None if n.exact is None else n.coded(np.floor(n.exact + 0.5) + n.zero())


def half_toward_zero(n: Node) -> Array | None:
    return None if n.exact is None else n.coded(np.copysign(np.ceil(np.abs(n.exact) - 0.5), n.exact) + n.zero())


def truncation(n: Node) -> Array | None:
    return None if n.exact is None else n.coded(np.trunc(n.exact) + n.zero())


def floor(n: Node) -> Array | None:
    return None if n.exact is None else n.coded(np.floor(n.exact) + n.zero())


def wrap_instead_of_saturation(n: Node) -> Array | None:
    if n.exact is None or not np.isfinite(n.exact).all() or np.abs(n.exact).max(initial=0) > 1e9:
        return None
    low, high = limits(n.expected.dtype)
    return ((np.rint(n.exact) + n.zero() - low) % (high - low + 1) + low).astype(np.int64).astype(n.expected.dtype)


def int32_overflow_becomes_least(n: Node) -> Array | None:
    if n.exact is None or np.isnan(n.exact).any() or not is_integer(n.expected.dtype):
        return None
    whole = np.rint(n.exact)
    return n.coded(np.where(np.abs(whole) < 2**31, whole, -(2.0**31)) + n.zero())


def float32_division(n: Node) -> Array | None:
    x, scale = n.inputs.get("x"), n.inputs.get("y_scale")
    if (
        x is None
        or scale is None
        or scale.size != 1
        or n.node.op_type != "QuantizeLinear"
        or x.dtype == np.float32
        or not is_integer(n.expected.dtype)
    ):
        return None
    return n.coded(np.rint((x.astype(np.float32) / scale.astype(np.float32)).astype(np.float64)) + n.zero())


def floor_of_reciprocal(n: Node) -> Array | None:
    found = find(n.node.domain, n.node.op_type, n.node.version)
    assert found is not None
    values = [n.inputs.get(name) for name in n.names[: len(n.node.inputs)]]
    return np.asarray(found(*values, **found.bind(n.node), ctx=Context("ort", n.node.version, observing=False)))


def of_sums(codes: Callable[[Array, Array], Array]) -> Defect:
    """The defect of a runtime that makes codes from sums and multipliers in this way; zero points are added after."""

    def defect(n: Node) -> Array | None:
        try:
            p = Products(n)
        except AssertionError:
            return None
        ratio = p.multiplier()
        if ratio is None or p.answer(p.left @ p.right) is None:
            return None
        sums = p.sums()
        return n.coded(codes(sums, np.broadcast_to(ratio, sums.shape)) + n.zero())

    return defect


def half_up_shift(value: int, shift: int) -> int:
    return (value + (1 << (shift - 1))) >> shift if shift > 0 else value << -shift


def half_away_shift(value: int, shift: int) -> int:
    return half_up_shift(abs(value), shift) * (-1 if value < 0 else 1)


def fixed_point(bits: int, codes: Callable[[int, int, int], int]) -> Callable[[Array, Array], Array]:
    """Codes from a multiplier of so many bits: codes(sum, mantissa, exponent) for mantissa * 2^(exponent - bits)."""

    def one(total: int, ratio: float) -> int:
        share, exponent = math.frexp(ratio)
        mantissa = math.floor(share * 2**bits + 0.5)
        return codes(int(total), mantissa, exponent)

    def made(sums: Array, ratio: Array) -> Array:
        return np.array([one(t, float(r)) for t, r in zip(sums.flat, ratio.flat, strict=True)], np.float64).reshape(
            sums.shape
        )

    return made


def single(bits: int, shift: Callable[[int, int], int]) -> Defect:
    """One rounding after a multiplier of so many bits."""
    return of_sums(fixed_point(bits, lambda total, mantissa, exponent: shift(total * mantissa, bits - exponent)))


def double(shift: Callable[[int, int], int]) -> Defect:
    """A doubled high product of 31 bits, rounded, then a shift that rounds."""

    def codes(total: int, mantissa: int, exponent: int) -> int:
        high = half_up_shift((total << max(exponent, 0)) * mantissa, 31)
        return shift(high, max(-exponent, 0)) if exponent < 0 else high

    return of_sums(fixed_point(31, codes))


def float32_product(sums: Array, ratio: Array) -> Array:
    return np.rint(sums.astype(np.float32) * ratio.astype(np.float32)).astype(np.float64)


def float16_product(sums: Array, ratio: Array) -> Array:
    return np.rint((sums.astype(np.float32) * ratio.astype(np.float32)).astype(np.float16)).astype(np.float64)


def power_of_two(sums: Array, ratio: Array) -> Array:
    return np.rint(sums * 2.0 ** np.rint(np.log2(ratio)))


def twice_rounded(sums: Array, ratio: Array) -> Array:
    """First to eighths, then to whole numbers."""
    return np.rint(np.rint(sums * ratio * 8) / 8)


def of_quotients(codes: Callable[[Array, Array], Array]) -> Defect:
    """The defect of a QuantizeLinear of float32 that makes whole numbers from x and y_scale in this way."""

    def defect(n: Node) -> Array | None:
        x, scale, zero = n.inputs.get("x"), n.inputs.get("y_scale"), n.inputs.get("y_zero_point")
        if x is None or scale is None or x.dtype != np.float32 or scale.dtype != np.float32 or scale.size != 1:
            return None
        if not is_integer(n.expected.dtype) or (zero is not None and zero.size != 1):
            return None
        if not np.isfinite(x).all() or not (np.isfinite(scale).all() and (scale > 0).all()):
            return None
        s = scale.reshape(())
        if not np.array_equal(n.coded(np.rint((x / s).astype(np.float64)) + n.zero()), n.expected):
            return None
        return n.coded(codes(x, s).astype(np.float64) + n.zero())

    return defect


def float32_zero_point(x: Array, s: Array) -> Array:
    """Added in float32 before rounding, and taken off again."""
    return np.rint(x / s + np.float32(7)) - np.float32(7)


CONV, MATMUL, QUANTIZE = ["qlinearconv-10"], ["qlinearmatmul-10"], ["quantizelinear-"]
LINEAR = [*CONV, *MATMUL]
TIES = ["qlinearconv-10/ties", "qlinearmatmul-10/ties"]
PLANTED = [
    Planted("zero point before rounding", zero_point_before_rounding, LINEAR, "zero-point-before-rounding"),
    Planted("half away from zero", half_away_from_zero, TIES, "tie-rounding"),
    Planted("half up", half_up, TIES, "tie-rounding"),
    Planted("half toward zero", half_toward_zero, TIES, "tie-rounding"),
    Planted("truncation", truncation, LINEAR, "truncation"),
    Planted("floor", floor, LINEAR, "truncation"),
    Planted("truncation in AveragePool", truncation, ["ms.qlinearaveragepool-1"], "truncation"),
    Planted("truncation in QuantizeLinear", truncation, ["quantizelinear-13/types"], "truncation", "drops the fraction"),
    Planted("QLinearAdd without rounding", truncation, ["QLinearAdd"], "truncation"),
    Planted("wrap instead of saturation", wrap_instead_of_saturation, LINEAR, "wrap-around"),
    Planted("int32 overflow becomes the least", int32_overflow_becomes_least, ["qlinearconv-10/edge", "quantizelinear-13/edge", "quantizelinear-21/edge"], "saturation"),
    Planted("division in float32", float32_division, QUANTIZE, "division-type"),
    Planted("floor(1 / y_scale) in QLinearSoftmax", floor_of_reciprocal, ["QLinearSoftmax"], "reciprocal-floor"),
    Planted("multiplier of 8 bits", single(8, half_away_shift), LINEAR, "requantization"),
    Planted("multiplier of 15 bits, half up", single(15, half_up_shift), LINEAR, "tie-rounding"),
    Planted("multiplier of 16 bits, half away", single(16, half_away_shift), LINEAR, "tie-rounding"),
    Planted("multiplier of 24 bits, half up", single(24, half_up_shift), LINEAR, "tie-rounding"),
    Planted("multiplier of 31 bits, half up", single(31, half_up_shift), LINEAR, "tie-rounding"),
    Planted("multiplier of 31 bits, half away", single(31, half_away_shift), LINEAR, "tie-rounding"),
    Planted("multiplier of 31 bits, floor", single(31, lambda value, shift: value >> shift), LINEAR, "truncation"),
    Planted("double rounding, half away", double(half_away_shift), LINEAR, "requantization"),
    Planted("double rounding, half up twice", double(half_up_shift), LINEAR, "requantization"),
    Planted("multiplier rounded to float32", of_sums(float32_product), LINEAR, "float32-multiplier"),
    Planted("product rounded to float16", of_sums(float16_product), LINEAR, "near-tie", "rounds the value to float16"),
    Planted("multiplier rounded to a power of two", of_sums(power_of_two), LINEAR, "requantization"),
    Planted("rounded to eighths first", of_sums(twice_rounded), LINEAR, "requantization", "rounds the product to 3 bits"),
    Planted("floor(q + 0.5f)", of_quotients(lambda x, s: np.floor(x / s + np.float32(0.5))), QUANTIZE, "tie-rounding"),
    Planted("roundf in QuantizeLinear", of_quotients(lambda x, s: np.copysign(np.floor(np.abs((x / s).astype(np.float64)) + 0.5), x)), QUANTIZE, "tie-rounding"),
    Planted("product with the reciprocal", of_quotients(lambda x, s: np.rint(x * (np.float32(1) / s))), QUANTIZE, "division-type"),
    Planted("quotient in float16", of_quotients(lambda x, s: np.rint((x / s).astype(np.float16))), QUANTIZE, "division-type"),
    Planted("zero point added in float32 before rounding", of_quotients(float32_zero_point), QUANTIZE),
    Planted("quotient cut to 16 bits", of_quotients(lambda x, s: np.clip(np.rint((x / s).astype(np.float64)), -(2**15), 2**15 - 1)), QUANTIZE, "saturation"),
]  # fmt: skip
