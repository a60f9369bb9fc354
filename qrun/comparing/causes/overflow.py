"""A cause: numbers beyond the largest float8."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qrun.comparing.causes._cause import Hypothesis, Suspect, cause, recompute
from qrun.ir import Array

_ENDS = {
    "float8_e4m3fn": (448.0, 32.0),
    "float8_e4m3fnuz": (240.0, 16.0),
    "float8_e5m2": (57344.0, 8192.0),
    "float8_e5m2fnuz": (57344.0, 8192.0),
}
"""The largest number of each float8, and its distance to the one before."""


@cause("float8-overflow", rank=14, source="ONNX operators, Cast-25: saturate; onnxruntime core/framework/float8.h")
def float8_overflow(s: Suspect) -> Iterator[Hypothesis]:
    """The runtime converts numbers beyond the largest float8 in another way than the attribute saturate states: to the
    largest number instead of NaN or infinity, or the reverse, or to NaN instead of infinity.

    To confirm: Feed only numbers up to the largest of the type, such as 448 for float8e4m3fn and 57344 for float8e5m2.
    The difference disappears.

    To do: Clip to the largest number of the type before the node. Report the bug to the runtime's maintainers.
    """
    if not s.is_op("Cast", "QuantizeLinear") or s.mine.dtype.name not in _ENDS:
        return
    other = int(not s.node.attributes.get("saturate", 1))
    yield from recompute(s.evaluate(attributes={"saturate": other}), f"computes as if saturate were {other}")
    real = _real(s) if other else None
    if real is None or real.shape != s.mine.shape:
        return
    mine = s.mine.astype(np.float64)
    for text, where, value in _ways(s.mine.dtype.name, mine, real):
        if where.any():
            yield Hypothesis(np.where(where, np.copysign(value, real), mine).astype(s.mine.dtype), text)


def _real(s: Suspect) -> Array | None:
    """The float32 numbers that the node converts."""
    x, scale = s.args[0], s.args[1] if s.is_op("QuantizeLinear") else None
    single = None if x is None else x.astype(np.float32)
    return single if single is None or scale is None else np.asarray(single / s.along(scale).astype(np.float32))


def _ways(name: str, mine: Array, real: Array) -> Iterator[tuple[str, Array, float]]:
    """Yield other conversions without saturation: a text, the elements that they change, and what these become."""
    largest, step = _ENDS[name]
    size = np.abs(real)
    if name == "float8_e5m2":
        beyond = f"numbers beyond {largest:g} into NaN instead of infinity"
        yield f"turns {beyond}", np.isinf(mine) & np.isfinite(real), np.nan
        yield f"turns infinities and {beyond}", np.isinf(mine), np.nan
        text = f"turns numbers below {largest + step:g} that round up beyond {largest:g} into NaN instead of infinity"
        yield text, np.isinf(mine) & (size < largest + step), np.nan
    elif name == "float8_e4m3fn":
        # Cut to the bits of a float8, these numbers have the code of NaN, and do not round up.
        start, end = largest + step, largest + 1.5 * step
        text = f"turns numbers from {start:g} up to {end:g}, whose leading bits are the code of NaN, into {largest:g}"
        yield text, (size >= start) & (size < end), largest
