"""Saturation that is missing, or at the wrong end, and integers that wrap around."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qrun.comparing.causes._cause import Hypothesis, cause
from qrun.comparing.causes._suspect import Suspect, spread
from qrun.ir import Array
from qrun.ops._quantize import limits

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
        made = s.coded(whole)
        if made is not None:
            yield Hypothesis(made, text)


def _converted(exact: Array, zero: Array) -> Iterator[tuple[str, Array]]:
    """Rounded values after a conversion to int32 without saturation, zero point added."""
    start = "conversion to int32 without saturation: overflow becomes -2147483648"
    with np.errstate(all="ignore"):
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
    with np.errstate(all="ignore"):
        whole = np.rint(s.exact - s.zero) + s.zero
        beyond = (whole < low) | (whole > high)
        if not beyond.any() or np.any(np.abs(whole) >= 2.0**62) or not np.isfinite(whole).all():
            return
        codes = (whole.astype(np.int64) - low) % (high - low + 1) + low
    made = s.coded(codes.astype(np.float64))
    if made is not None:
        yield Hypothesis(made, f"the result wraps modulo {high - low + 1} instead of saturating")


def _difference(s: Suspect) -> Iterator[Hypothesis]:
    x, scale, zero = (*s.args, None)[:3]
    if x is None or scale is None or zero is None or x.dtype != np.int32:
        return
    factor, shift = _along(s, scale), _along(s, zero)
    with np.errstate(all="ignore"):
        narrow = (x.astype(np.int64) - shift.astype(np.int64)).astype(np.int32)
        made = (narrow.astype(np.float32) * factor.astype(np.float32)).astype(s.mine.dtype)
    yield Hypothesis(np.asarray(made), "x - x_zero_point wraps modulo 2^32")


def _along(s: Suspect, parameter: Array) -> Array:
    return spread(parameter, s.mine, s.node.attributes.get("axis", 1))
