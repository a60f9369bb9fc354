"""Defects of integer requantizations whose registers are too narrow, and of conversions by float32 steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from defects.node import Node, Planted
from defects.products import Products
from qrun.ir import Array
from qrun.ops._quantize import is_integer

Whole = Callable[[int, np.float32], int]
"""A whole number from a sum and the float32 multiplier."""


def of_multipliers(whole: Whole) -> Callable[[Node], Array | None]:
    """The defect of a runtime that makes whole numbers from sums and one float32 multiplier of any value."""

    def defect(n: Node) -> Array | None:
        try:
            p = Products(n)
        except AssertionError:
            return None
        scales = [n.inputs.get(name) for name in ("x_scale", "a_scale", "w_scale", "b_scale", "y_scale")]
        x, w, y = (scale.reshape(-1).astype(np.float32) for scale in scales if scale is not None)
        if not x.size == w.size == y.size == 1:
            return None
        multiplier, sums = (x * w / y)[0], p.sums()
        made = [whole(int(each), multiplier) for each in sums.flat]
        return n.coded(np.array(made, np.float64).reshape(sums.shape) + n.zero())

    return defect


def nearest(total: int, multiplier: np.float32) -> int:
    return round(total * Fraction(float(multiplier)))


def right_shift_only(total: int, multiplier: np.float32) -> int:
    """Shifts of 31 bits to the right less the exponent, which unsigned becomes a huge count."""
    return nearest(total, multiplier) if abs(multiplier) < 2.0**31 else 0


def without_sign(total: int, multiplier: np.float32) -> int:
    return nearest(total, abs(multiplier)) if math.isfinite(multiplier) else 0


def half_in_int32(total: int, multiplier: np.float32) -> int:
    share, exponent = math.frexp(multiplier)
    if share != 0.5 or not -30 < exponent < 1:
        return nearest(total, multiplier)
    places = 1 - exponent
    size = (abs(total) + (1 << places >> 1) + (1 << 31)) % (1 << 32) - (1 << 31)
    moved = size >> places
    return -moved if total < 0 else moved


def almost_a_half(n: Node) -> Array | None:
    x, scale = n.inputs.get("x"), n.inputs.get("y_scale")
    if x is None or scale is None or scale.size != 1 or x.dtype != np.float32 or n.expected.dtype != np.uint8:
        return None
    if not np.isfinite(x).all() or np.any(n.zero() != n.zero().reshape(-1)[0]):
        return None
    single = x / scale.reshape(()) + np.float32(0.4999999) + n.zero().astype(np.float32)
    return n.coded(np.trunc(single.astype(np.float64)))


def rust_conversion(n: Node) -> Array | None:
    """`as i32`, then an addition that overflows."""
    x, scale = n.inputs.get("x"), n.inputs.get("y_scale")
    if x is None or scale is None or scale.size != 1 or x.dtype != np.float32 or not is_integer(n.expected.dtype):
        return None
    real = (x / scale.reshape(())).astype(np.float64)
    whole = [0 if math.isnan(v) else int(np.clip(np.rint(v), -(2.0**31), 2.0**31 - 1)) for v in real.flat]
    sums = [(w + int(n.zero()) + 2**31) % 2**32 - 2**31 for w in whole]
    return n.coded(np.array(sums, np.float64).reshape(x.shape))


def no_zero_points(n: Node) -> Array | None:
    names = [name for name in n.names if name in ("a_zero_point", "b_zero_point", "x_zero_point", "w_zero_point")]
    given = {name: array for name in names if (array := n.inputs.get(name)) is not None and np.any(array)}
    return n.made(None, **{k: np.zeros_like(v) for k, v in given.items()}) if len(given) > 1 else None


def reciprocal_of_the_range(n: Node) -> Array | None:
    x = n.inputs.get("x")
    if x is None or not x.size or not np.isfinite(x).all() or not np.any(x):
        return None
    low, high = min(x.min(), np.float32(0)), max(x.max(), np.float32(0))
    inverse = np.float32(1) / (high - low)
    real = x * inverse * np.float32(255)
    zero = np.clip(np.rint(-low * inverse * np.float32(255)), 0, 255)
    return np.asarray(np.clip(np.rint(real) + zero, 0, 255), np.uint8)


PLANTED = [
    Planted("multipliers from 2^31 on become 0", of_multipliers(right_shift_only), ["qlinearconv-10/edge/far-beyond-int32", "qlinearmatmul-10/edge/far-beyond-int32"], "register-overflow"),
    Planted("sign of the multiplier ignored", of_multipliers(without_sign), ["qlinearconv-10/edge/w-scale-negative", "qlinearconv-10/edge/x-scale-negative", "qlinearmatmul-10/edge/a-scale-negative", "qlinearmatmul-10/edge/b-scale-negative"], "register-overflow"),
    Planted("half added in int32 before the shift", of_multipliers(half_in_int32), ["qlinearconv-10/bias/wraps"], "register-overflow"),
    Planted("0.4999999 added", almost_a_half, ["QuantizeLinear"], "tie-rounding"),
    Planted("conversion that saturates, NaN to 0", rust_conversion, ["quantizelinear-13/edge", "quantizelinear-21/edge", "quantizelinear-25/edge"], "saturating-conversion", "converts to int32 so that NaN becomes 0"),
    Planted("both zero points ignored", no_zero_points, ["QLinearMatMul", "MatMulInteger"], "wrong-parameter"),
    Planted("reciprocal of the range", reciprocal_of_the_range, ["DynamicQuantizeLinear"], "wrong-range", "multiplies by float32(1 / range)"),
]  # fmt: skip
