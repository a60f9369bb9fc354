"""Rounding shifts and fixed-point multipliers, exact in int64.

Products p are below 2^62 in magnitude: an int32 sum times a multiplier of at most 31 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from qrun.ir import Array

INT32 = -(1 << 31), (1 << 31) - 1
_DEEPEST = 62
"""From this shift on, every product becomes 0, or -1 by floor: 2^61 + p stays below 2^63."""

Shift = Callable[[Any, Any], Array]
"""(p, n): p / 2^n rounded to an integer; n below 0 shifts left. int64 arrays that broadcast."""


def shift_down(p: Any, n: Any) -> Array:
    """Round toward minus infinity: the arithmetic shift of every CPU."""
    p, n = _pair(p, n)
    return np.asarray(np.where(n > 0, p >> np.clip(n, 0, 63), p << np.clip(-n, 0, 63)))


def shift_half_up(p: Any, n: Any) -> Array:
    """Round to nearest, ties up: (p + 2^(n-1)) >> n."""
    p, n = _pair(p, n)
    inner = np.clip(n, 1, _DEEPEST)
    made = (p + (np.int64(1) << (inner - 1))) >> inner
    return np.where(n > _DEEPEST, 0, np.where(n > 0, made, p << np.clip(-n, 0, 63)))


def shift_half_away(p: Any, n: Any) -> Array:
    """Round to nearest, ties away from zero."""
    p, n = _pair(p, n)
    return np.asarray(np.sign(p) * shift_half_up(np.abs(p), n))


def shift_half_down(p: Any, n: Any) -> Array:
    """Round to nearest, ties down."""
    p, n = _pair(p, n)
    return np.asarray(-shift_half_up(-p, n))


def shift_half_to_zero(p: Any, n: Any) -> Array:
    """Round to nearest, ties toward zero."""
    p, n = _pair(p, n)
    return np.asarray(np.sign(p) * shift_half_down(np.abs(p), n))


def shift_half_even(p: Any, n: Any) -> Array:
    """Round to nearest, ties to even."""
    p, n = _pair(p, n)
    up, down = shift_half_up(p, n), shift_half_down(p, n)
    return np.where(up % 2 == 0, up, down)


def shift_to_zero(p: Any, n: Any) -> Array:
    """Drop the fraction."""
    p, n = _pair(p, n)
    return np.asarray(np.sign(p) * shift_down(np.abs(p), n))


def _pair(p: Any, n: Any) -> tuple[Array, Array]:
    """Both as int64."""
    return np.asarray(p, np.int64), np.asarray(n, np.int64)


def nearest_away(x: Array) -> Array:
    """Round float64 to nearest, ties away from zero, as C's round: exact, also just below one half."""
    whole = np.trunc(x)
    return np.asarray(whole + np.copysign(np.abs(x - whole) >= 0.5, x))


def nearest_up(x: Array) -> Array:
    """Round float64 to nearest, ties up."""
    whole = np.trunc(x)
    return np.asarray(whole + (x - whole >= 0.5) - (x - whole < -0.5))


def nearest_to_zero(x: Array) -> Array:
    """Round float64 to nearest, ties toward zero."""
    whole = np.trunc(x)
    return np.asarray(whole + np.copysign(np.abs(x - whole) > 0.5, x))


def nearest_down(x: Array) -> Array:
    """Round float64 to nearest, ties down."""
    whole = np.trunc(x)
    return np.asarray(whole + (x - whole > 0.5) - (x - whole <= -0.5))


ROUND: Mapping[str, tuple[Callable[[Array], Array], Shift]] = {
    "even": (np.rint, shift_half_even),
    "away": (nearest_away, shift_half_away),
    "up": (nearest_up, shift_half_up),
    "zero": (nearest_to_zero, shift_half_to_zero),
    "down": (nearest_down, shift_half_down),
    "floor": (np.floor, shift_down),
    "cut": (np.trunc, shift_to_zero),
}
"""Tie rules by name, for float64 values and for shifts. ``floor`` and ``cut`` round every fraction, not only ties."""


def wrap32(values: Any) -> Array:
    """Integers modulo 2^32, as int32 holds them."""
    return np.asarray(np.asarray(values, np.int64).astype(np.int32), np.int64)


def multiply_high(a: Any, q: Any) -> Array:
    """(a * q) / 2^31 rounded to nearest, ties up, saturated to int32: ARM's VQRDMULH, gemmlowp's
    SaturatingRoundingDoublingHighMul.

    Source: Arm Architecture Reference Manual, SQRDMULH; gemmlowp fixedpoint/fixedpoint.h.
    """
    return np.asarray(np.minimum((np.asarray(a, np.int64) * q + (1 << 30)) >> 31, INT32[1]))


def fixed_point(real: Array, bits: int) -> tuple[Array, Array]:
    """The multiplier as q * 2^-shift with q of `bits` bits, rounded half away, int64. Below 2^-32 q is 0.

    Source: tensorflow/lite/kernels/internal/quantization_util.cc, QuantizeMultiplier (31 bits).
    """
    fraction, exponent = np.frexp(np.asarray(real, np.float64))
    q = nearest_away(fraction * 2.0**bits).astype(np.int64)
    full = q == 1 << bits
    q, exponent = np.where(full, q >> 1, q), np.where(full, exponent + 1, exponent).astype(np.int64)
    gone = exponent < -31
    return np.where(gone, 0, q), np.where(gone, bits, bits - exponent)


def mantissa24(real: Array) -> tuple[Array, Array]:
    """A float32 multiplier as q * 2^-shift, exactly; int64."""
    fraction, exponent = np.frexp(np.asarray(real, np.float32).astype(np.float64))
    return (fraction * 2.0**24).astype(np.int64), 24 - exponent.astype(np.int64)
