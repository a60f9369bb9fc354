"""Causes in folded constants: scales and zero points that a runtime combines into one factor and one shift."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

from qrun.comparing.causes._cause import Hypothesis, Suspect, cause
from qrun.ir import Array
from qrun.ops._quantize import is_integer, limits

f32, f64 = np.float32, np.float64
_OPENVINO = "OpenVINO src/frontends/onnx: quantize_linear.cpp; src/plugins/intel_cpu: fake_quantize.cpp, FakeQuantize"


@cause("folded-zero-point", rank=55, source=_OPENVINO)
def folded_zero_point(s: Suspect) -> Iterator[Hypothesis]:
    """The runtime folds the zero point into a float constant. For DequantizeLinear it computes x * scale - zero_point *
    scale instead of (x - zero_point) * scale. For QuantizeLinear it computes x * factor + shift and derives both
    constants from the ends of the range.

    To confirm: With a zero point of 0, the difference disappears. Otherwise a code equal to the zero point dequantizes
    to a small nonzero number.

    To do: Nothing is wrong with the model: compare floats with a tolerance, and allow --lsb 1 for codes. If zeros must
    stay 0, use a zero point of 0.
    """
    if s.is_op("DequantizeLinear"):
        yield from _dequantize(s)
    elif s.is_op("QuantizeLinear") and is_integer(s.mine.dtype):
        yield from _fake_quantize(s)


def _dequantize(s: Suspect) -> Iterator[Hypothesis]:
    """x * scale + shift, shift = -zero_point * scale, with one rounding or two, in float32, in the scale's type or in
    the output's."""
    x, scale, zero = (*s.args, None)[:3]
    if x is None or scale is None or zero is None or not np.any(zero):
        return
    factor, shift = s.along(scale).astype(f32).astype(f64), s.along(zero)
    product = x.astype(f64) * factor
    for kind in dict.fromkeys((np.dtype(f32), scale.dtype, s.mine.dtype)):
        for more, rounded in _ROUNDINGS.items() if kind == _BFLOAT16 else [("", _nearest)]:
            folded = rounded(-shift * factor, kind)
            sums = {"": rounded(product, kind) + folded, ", with FMA": product + folded.astype(f64)}
            for fma, made in sums.items():
                text = f"computes x * scale - zero_point * scale in {kind.name}{fma}{more}"
                yield Hypothesis(rounded(np.asarray(made), s.mine.dtype), text)


def _nearest(values: Array, dtype: np.dtype[Any]) -> Array:
    """Round to nearest, ties to even."""
    return np.asarray(values).astype(dtype)


def _half_if_odd(values: Array, dtype: np.dtype[Any]) -> Array:
    """Round to bfloat16 by adding half a unit only where the last bit that remains is 1, and cutting the rest off."""
    bits = np.asarray(values, f32).view(np.uint32)
    made = (bits + ((bits >> 16 & 1) << 15)) >> 16
    return np.asarray(made.astype(np.uint16).view(_BFLOAT16).astype(dtype))


_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_ROUNDINGS = {"": _nearest, "; rounds up only where the last bit is 1": _half_if_odd}
"""Ways to round to bfloat16, by the words that name what deviates."""


def _fake_quantize(s: Suspect) -> Iterator[Hypothesis]:
    """The code as round(x * factor + shift), with both constants made from the ends of the range in float32."""
    x, scale, zero = (*s.args, None)[:3]
    if x is None or scale is None:
        return
    low, high = limits(s.mine.dtype)
    along, shift = s.along(scale).astype(f32), f32(0) if zero is None else s.along(zero).astype(f32)
    start, end = (along * (f32(limit) - shift) for limit in (low, high))
    factor = f32(high - low) / (end - start)
    offset = -start * factor
    single = np.asarray(x.astype(f32))
    with np.errstate(all="ignore"):
        inside = np.minimum(np.maximum(single, np.minimum(start, end)), np.maximum(start, end))
        wide: Any = inside.astype(f64) * factor.astype(f64)
        ways = {
            "with FMA": (wide + offset.astype(f64)).astype(f32),
            "without FMA": wide.astype(f32) + offset,
            "from the difference": (inside - start) * factor,
        }
    for text, value in ways.items():
        whole = np.rint(value.astype(f64)) + low
        whole = np.clip(np.nan_to_num(whole, nan=low, posinf=high, neginf=low), low, high)
        yield Hypothesis(
            whole.astype(np.int64).astype(s.mine.dtype),
            f"maps the ends of the range to codes in float32 (FakeQuantize), {text}",
            implies=("zero-point-before-rounding", "division-type"),
        )
