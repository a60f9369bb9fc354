"""Causes where numbers do not fit: a multiplier that its integer form cannot hold, products and sums that leave their
registers, conversions to int32 that saturate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from qrun.arithmetics.family import DERIVE, Scales
from qrun.arithmetics.primitives import INT32, shift_half_away, shift_half_even, shift_half_up, wrap32
from qrun.comparing.causes._cause import Hypothesis, Suspect, cause, recompute
from qrun.comparing.causes._steps import snap
from qrun.comparing.ties import unwrapped_sums
from qrun.ir import Array
from qrun.ops._quantize import is_integer

f32, f64 = np.float32, np.float64
_SHIFTS: Mapping[str, Callable[[Any, Any], Array]] = {
    "to even": shift_half_even,
    "away from zero": shift_half_away,
    "up": shift_half_up,
}
"""Rounding shifts by the direction of ties."""


@cause("register-overflow", rank=59, source="tract linalg/src/generic/rounding.rs, Scaler")
def register_overflow(s: Suspect) -> Iterator[Hypothesis]:
    """The runtime requantizes its int32 sums in integers, and something does not fit: the product exceeds its register,
    the half that is added before the shift overflows, or an integer and a shift cannot hold the multiplier, which is
    too large, zero, negative, infinite or NaN.

    To confirm: With a quotient x_scale * w_scale / y_scale between 2^-31 and 1, and sums far from the ends of int32,
    the difference disappears.

    To do: Use a larger output scale: all results saturate anyway. Report the bug to the runtime's maintainers.
    """
    known = unwrapped_sums(s.node, s.args) if s.alone and is_integer(s.mine.dtype) else None
    if known is None or not np.all(np.abs(known[0]) < 2.0**53):
        return
    acc, zero = wrap32(known[0]), known[2]
    for multiplier in _multipliers(s):
        q, shift, strange = _from_bits(multiplier)
        for text, whole in (
            *_low_bits(acc, q, shift, strange),
            *_overflowing_half(acc, q, shift),
            *_beyond(acc, multiplier),
        ):
            yield from recompute(s.to_codes(whole.astype(f64), zero), text)


def _multipliers(s: Suspect) -> Iterator[Array]:
    """The float32 multipliers x_scale * w_scale / y_scale that runtimes make, where they differ."""
    places = {"QLinearConv": (1, 4, 6), "QLinearMatMul": (1, 4, 6), "QGemm": (1, 4, 7)}[s.node.op_type]
    x, w, y = (np.asarray(s.args[at], f32) for at in places)
    if not x.size == w.size == y.size == 1 or s.node.attributes.get("alpha", 1.0) != 1.0:
        return
    made: list[Array] = []
    for name in ("single", "reciprocal"):
        value = DERIVE[name][1](Scales(x.reshape(()), w.reshape(()), y.reshape(()))).astype(f32)
        if not any(np.array_equal(value, other, equal_nan=True) for other in made):
            made.append(value)
            yield value


def _from_bits(multiplier: Array) -> tuple[Array, Array, str]:
    """A multiplier as q * 2^-shift, read from the exponent and the fraction of its float32 bits without a look at its
    sign or at special values, except that 0 becomes q = 1; and what is wrong then, "" for an ordinary number."""
    bits = multiplier.view(np.int32).astype(np.int64)
    exponent, fraction = (bits >> 23) & 255, bits & 0x7FFFFF
    q = np.where(fraction == 0, 1, fraction | 0x800000)
    shift = np.where(fraction == 0, 127 - exponent, 150 - exponent)
    if not np.isfinite(multiplier):
        return q, shift, "reads an infinite or NaN multiplier as a number of 2^128 or more"
    if multiplier == 0:
        return np.ones((), np.int64), np.zeros((), np.int64), "reads a multiplier of 0 as 1"
    return q, shift, "ignores the sign of the multiplier" if multiplier < 0 else ""


def _low_bits(acc: Array, q: Array, shift: Array, strange: str) -> Iterator[tuple[str, Array]]:
    """Products with a multiplier of which `strange` tells what is wrong, with descriptions."""
    for ties, rounded in _SHIFTS.items() if strange else ():
        whole = wrap32(np.where(shift < -63, 0, rounded(acc * q, np.maximum(shift, -63))))
        yield f"{strange}, and keeps the low 32 bits of the product, ties {ties}", whole


def _overflowing_half(acc: Array, q: Array, shift: Array) -> Iterator[tuple[str, Array]]:
    """Products with a multiplier of 2^-n, a shift of the sum, whose magnitude plus one half exceeds int32."""
    if q != 1 or not 0 < shift < 32:
        return
    half, size = np.int64(1) << (shift - 1), np.abs(acc)
    if not np.any(size + half > INT32[1]):
        return
    start = "adds half in int32, which overflows, before it shifts the sum"
    even = size + half - 1 + ((size >> shift) & 1)
    yield f"{start}'s magnitude to the right, ties to even", np.sign(acc) * (wrap32(even) >> shift)
    yield f"{start}'s magnitude to the right, ties away from zero", np.sign(acc) * (wrap32(size + half) >> shift)
    yield f"{start} to the right, ties up", wrap32(acc + half) >> shift


def _beyond(acc: Array, multiplier: Array) -> Iterator[tuple[str, Array]]:
    """Products that become 0, because the multiplier, or the product itself, is too large."""
    if multiplier >= 2.0**31:
        text = "takes the multiplier as an integer of 31 bits and a shift to the right; from 2^31 on, the product becomes 0"
        yield text, np.zeros_like(acc)
    real = acc * multiplier.astype(f64)
    if np.all(np.isfinite(real)) and np.any(np.abs(real) >= 2.0**31):
        fits = np.abs(real) < 2.0**63
        whole = wrap32(np.where(fits, np.rint(snap(np.where(fits, real, 0))), 0).astype(np.int64))
        yield "converts the product to int64, -2^63 if it does not fit, and keeps the low 32 bits", whole


@cause("saturating-conversion", rank=58, source="Rust, the operator as; WebAssembly, trunc_sat; Arm ARM, FCVTNS")
def saturating_conversion(s: Suspect) -> Iterator[Hypothesis]:
    """The runtime converts the quotient to int32, which turns NaN into 0 and saturates what does not fit; then it adds
    the zero point, perhaps with an overflow.

    To confirm: Quantize NaN: the result is the zero point. Quantize infinity with a zero point above 0: the result is
    the smallest code if the addition overflows.

    To do: Remove NaN and infinity before the node, and use a scale that is a normal number.
    """
    x, scale = (*s.args, None, None)[:2]
    if not s.is_op("QuantizeLinear") or x is None or scale is None or not is_integer(s.mine.dtype):
        return
    along = s.along(scale).astype(f32)
    ways = {"divides": s.exact - s.zero if s.exact is not None else x.astype(f64) / along}
    if x.dtype == scale.dtype == f32:
        ways["multiplies by float32(1 / y_scale)"] = (x * (f32(1) / along)).astype(f64)
    for start, real in ways.items():
        if real.shape != s.mine.shape or np.all(np.abs(real) < 2.0**31):
            continue
        whole = np.clip(np.nan_to_num(np.rint(snap(real)), nan=0.0), *INT32)
        text = f"{start}, and converts to int32 so that NaN becomes 0 and the rest saturates"
        made = s.to_codes(whole, s.zero)
        if made is not None:
            yield Hypothesis(made, text, implies=("special-value",))
        if np.any(np.abs(whole + s.zero) > INT32[1]):
            wrapped = wrap32((whole + s.zero).astype(np.int64)).astype(f64)
            yield from recompute(s.to_codes(wrapped), f"{text}; adding the zero point overflows")
