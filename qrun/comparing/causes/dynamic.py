"""A cause: DynamicQuantizeLinear takes its range, scale or zero point in another way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from qrun.comparing.causes._cause import Hypothesis, Suspect, cause
from qrun.ir import Array

_F32 = np.float32
_SPEC = "ONNX operators, DynamicQuantizeLinear-11: y_scale and y_zero_point; the range includes 0"


@cause("wrong-range", rank=33, source=_SPEC)
def wrong_range(s: Suspect) -> Iterator[Hypothesis]:
    """DynamicQuantizeLinear derives its scale and zero point in another way: from a range without 0 or without some
    elements, in float64, with another divisor or with reciprocals, or it rounds the zero point in another way.

    To confirm: Print the second and third output, the scale and the zero point. They, or the codes, are those of the
    formula shown.

    To do: Quantize with a fixed scale (QuantizeLinear), or report the bug to the runtime's maintainers.
    """
    x = s.args[0] if s.is_op("DynamicQuantizeLinear") and s.args else None
    if x is None or x.dtype != _F32 or not x.size or not np.isfinite(x).all():
        return
    place = s.node.outputs.index(s.tensor)
    with np.errstate(all="ignore"):
        ways = [(text, scale, zero, x / _F32(scale)) for text, scale, zero in _ways(x)]
        for text, scale, zero, quotients in (*ways, *_reciprocals(x)):
            if np.isfinite(scale) and scale > 0 and np.isfinite(zero):
                code = np.clip(zero, 0, 255)
                if place:
                    made = np.asarray((scale, code)[place - 1]).astype(s.mine.dtype).reshape(s.mine.shape)
                else:
                    made = np.clip(np.rint(quotients.astype(np.float64)) + code, 0, 255).astype(np.uint8)
                yield Hypothesis(made, text)


def _ways(x: Array) -> Iterator[tuple[str, Any, Any]]:
    """Yield a text, the scale and the zero point."""
    low, high = _ends(x)
    scale = (high - low) / _F32(255)
    yield "rounds the zero point down", scale, np.floor(-low / scale)
    yield "rounds the zero point half up", scale, np.floor(-low / scale + _F32(0.5))
    least, most = _F32(x.min()), _F32(x.max())
    tight = (most - least) / _F32(255)
    yield "takes the range from min to max without 0", tight, np.rint(-least / tight)
    wide = (float(high) - float(low)) / 255
    yield "computes scale and zero point in float64", wide, np.rint(-float(low) / wide) if wide else 0.0
    other = (high - low) / _F32(256)
    yield "divides the range by 256 instead of 255", other, np.rint(-low / other)
    size = np.abs(x).max()
    yield "takes a symmetric range", size * _F32(2) / _F32(255), 128
    yield "takes a symmetric range, divided by 127", size / _F32(127), 128
    flat = x.reshape(-1)
    for width in (4, 8, 16, 32, 64):
        if flat.size > width and flat.size % width:
            low, high = _ends(flat[: flat.size // width * width])
            some = (high - low) / _F32(255)
            yield f"takes the range without the elements beyond vectors of {width}", some, np.rint(-low / some)


_ONE, _MOST = _F32(1), _F32(255)
_QUOTIENTS: Mapping[str, Callable[[Any, Any, Any], Any]] = {
    "": lambda v, scale, span: v / scale,
    "multiplies by float32(1 / scale)": lambda v, scale, span: v * (_ONE / scale),
    "multiplies by float32(1 / range), then by 255": lambda v, scale, span: v * (_ONE / span) * _MOST,
    "multiplies by float32(255 / range)": lambda v, scale, span: v * (_MOST / span),
    "multiplies by 255, then divides by the range": lambda v, scale, span: v * _MOST / span,
}
"""The float32 steps from a number, the scale and the range to a quotient, by what they do instead of a division."""


def _reciprocals(x: Array) -> Iterator[tuple[str, Any, Any, Array]]:
    """Yield a text, the scale, the zero point and the quotients, with other float32 steps than two divisions."""
    low, high = _ends(x)
    span = high - low
    for start, scale in (("", span / _MOST), ("multiplies the range by float32(1 / 255)", span * (_ONE / _MOST))):
        for text, divide in _QUOTIENTS.items():
            told = " and ".join(filter(None, (start, text)))
            if told:
                zero = np.rint(-divide(low, scale, span))
                yield f"{told} instead of dividing", scale, zero, divide(x, scale, span)


def _ends(x: Array) -> tuple[np.float32, np.float32]:
    """The range of x, 0 included."""
    return _F32(min(x.min(), 0)), _F32(max(x.max(), 0))
