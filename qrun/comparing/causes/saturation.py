"""Saturation that is missing or at the wrong end; integers that wrap around; NaN and infinities."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

from qrun.comparing.causes._cause import Hypothesis, Suspect, cause, recomputed
from qrun.comparing.differences import differing
from qrun.ir import Array
from qrun.ops._quantize import is_integer, limits

_INT_MIN = -(2**31)


@cause("saturation", rank=10, source="Intel SDM, CVTTSS2SI: the integer indefinite value is 80000000H")
def saturation(s: Suspect) -> Iterator[Hypothesis]:
    """Values beyond int32 are converted to its smallest value, and so saturate at the wrong end.

    To confirm: The inputs divided by the scale are beyond 2147483647: clip them, and the difference is gone.

    To do: Clip the input of the node to the range of its codes, or use a larger scale.
    """
    if s.exact is None or not s.alone:
        return
    for text, whole in _converted(s.exact, s.zero):
        yield from recomputed(s.coded(whole), text)


def _converted(exact: Array, zero: Array) -> Iterator[tuple[str, Array]]:
    """Rounded values after a conversion to int32 without saturation, zero point added."""
    start = "conversion to int32 without saturation: overflow becomes -2147483648"
    whole = np.rint(exact - zero)
    fits = np.abs(whole) < 2**31
    if fits.all():
        return
    indefinite = np.where(fits, whole, _INT_MIN)
    yield start, indefinite + zero
    wrapped = (indefinite + zero).astype(np.int64).astype(np.int32).astype(np.float64)
    yield f"{start}, and wraps when the zero point is added", wrapped
    both = np.rint(exact)
    yield start, np.where(np.abs(both) < 2**31, both, _INT_MIN)


@cause(
    "wrap-around",
    rank=11,
    source="ONNX operators, QuantizeLinear: saturate; DequantizeLinear: (x - zero point) * scale",
)
def wrap_around(s: Suspect) -> Iterator[Hypothesis]:
    """An integer that leaves its type wraps around instead of saturating, or wraps earlier than it may.

    To confirm: The values before rounding are outside the range of the type: clip them, and the difference is gone.

    To do: Clip the input of the node to the range of its codes, or use a larger scale; report it to the runtime.
    """
    if s.is_op("DequantizeLinear"):
        yield from _difference(s)
    if s.exact is None or not s.alone:
        return
    try:
        low, high = limits(s.mine.dtype)
    except KeyError:
        return
    whole = np.rint(s.exact - s.zero) + s.zero
    beyond = (whole < low) | (whole > high)
    if not beyond.any() or np.any(np.abs(whole) >= 2.0**62) or not np.isfinite(whole).all():
        return
    codes = (whole.astype(np.int64) - low) % (high - low + 1) + low
    yield from recomputed(
        s.coded(codes.astype(np.float64)), f"the result wraps modulo {high - low + 1} instead of saturating"
    )


def _difference(s: Suspect) -> Iterator[Hypothesis]:
    x, scale, zero = (*s.args, None)[:3]
    if x is None or scale is None or zero is None or x.dtype != np.int32:
        return
    factor, shift = s.along(scale), s.along(zero)
    narrow = (x.astype(np.int64) - shift.astype(np.int64)).astype(np.int32)
    made = (narrow.astype(np.float32) * factor.astype(np.float32)).astype(s.mine.dtype)
    yield Hypothesis(np.asarray(made), "x - x_zero_point wraps modulo 2^32")


@cause("special-value", rank=12, source="numerics, D5 and D10; onnx/onnx#8437")
def special_value(s: Suspect) -> Iterator[Hypothesis]:
    """NaN or infinity, or a tensor without a range, for which the specification gives no answer or another one.

    To confirm: Replace NaN, infinities or the tensor of zeros in the input: the difference is gone.

    To do: Keep such values out of the input of the quantizing node (Clip, Where), as the specification leaves open
    what becomes of them.
    """
    yield from _zero_range(s)
    x = s.args[0] if s.alone and s.args else None
    if s.theirs is None or x is None or s.theirs.shape != s.mine.shape or s.theirs.dtype != s.mine.dtype:
        return
    if x.shape == s.mine.shape and x.dtype.kind in "fV":
        yield from _of_input(s, x)
    if s.is_op("QuantizeLinear") and not is_integer(s.mine.dtype):
        yield from _overflow(s)


def _zero_range(s: Suspect) -> Iterator[Hypothesis]:
    if not s.is_op("DynamicQuantizeLinear") or s.args[0] is None or np.any(s.args[0]):
        return
    values = {np.dtype(np.float32): (1 / 255, 0.0, np.nan), np.dtype(np.uint8): (0, 128, 255)}
    for value in values.get(s.mine.dtype, ()):
        text = f"of an input that is all 0, {s.tensor} is {value:.6g}: the formula divides 0 by 0"
        yield Hypothesis(np.full_like(s.mine, value), text)


def _of_input(s: Suspect, x: Array) -> Iterator[Hypothesis]:
    """The inputs that differ are all NaN, or all infinite: the other side has one value for them."""
    assert s.theirs is not None
    bad = differing(s.mine, s.theirs)
    odd = x[bad].astype(np.float64)
    for name, hit in (("NaN", np.isnan(odd)), ("infinity", np.isinf(odd)), ("NaN or infinity", ~np.isfinite(odd))):
        if hit.size and hit.all():
            for value in _ends(s):
                made = np.where(bad, np.asarray(value).astype(s.mine.dtype), s.mine)
                yield Hypothesis(made, f"{name} becomes {value:g}")


def _ends(s: Suspect) -> list[float]:
    """Values that implementations give for what has none: 0, the zero point, the ends of the type, NaN, infinities."""
    whole = is_integer(s.mine.dtype)
    ends = list(map(float, limits(s.mine.dtype))) if whole else [_largest(s.mine.dtype), -_largest(s.mine.dtype)]
    zero = [float(s.zero)] if s.zero.ndim == 0 else []
    return [0.0, *zero, *ends] + ([] if whole else [np.nan, np.inf, -np.inf])


def _largest(dtype: np.dtype[Any]) -> float:
    info: Any = ml_dtypes.finfo
    return float(info(dtype).max)


def _overflow(s: Suspect) -> Iterator[Hypothesis]:
    """Codes of float8 that only the range decides."""
    wide = s.mine.astype(np.float32)
    if np.isinf(wide).any():
        made = np.where(np.isinf(wide), np.float32(np.nan), wide).astype(s.mine.dtype)
        yield Hypothesis(made, "overflow becomes NaN where infinity is due")
    largest = _largest(s.mine.dtype)
    x, scale = s.args[0], s.args[1]
    if np.isnan(wide).any() and x is not None and scale is not None:
        full = np.where(np.isnan(wide) & ~np.isnan(x.astype(np.float32)), np.copysign(largest, x), wide)
        yield Hypothesis(full.astype(s.mine.dtype), "overflow saturates where saturate = 0 asks for NaN")
