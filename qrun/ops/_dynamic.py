"""The scale and zero point that DynamicQuantizeLinear-11 derives from its input."""

from __future__ import annotations

import numpy as np

from qrun.errors import OperatorError
from qrun.ir import Array
from qrun.ops._context import Arith, refuse
from qrun.ops._quantize import BLOCK

_F32 = np.float32
_NO_ZERO_POINT = "DynamicQuantizeLinear-11 derives the zero point from min x; it would be NaN."
_LANES = (
    "onnxruntime's range of values with NaN depends on the NaN's place and on the CPU (in a vector lane it hides the "
    "elements before it), so that --arith ort has nothing to emulate."
)


def dynamic_parameters(x: Array, arith: Arith = "exact", name: str = "x") -> tuple[Array, Array]:
    """Scale (float32, rank 0) and zero point (uint8, rank 0) for quantizing x, float32 of any shape, to uint8.

        top = max(0, max x), bottom = min(0, min x)
        scale = (top - bottom) / 255                      zero_point = RNE(clip(0 - bottom / scale, 0, 255))

    Every step is one float32 operation, as in the function body of DynamicQuantizeLinear-11. Where it divides 0 by 0
    (x empty, all zeros, or so small that the scale is 0): scale 1 and zero point 0; ``onnx-ref`` says scale 1/255
    for all zeros. NaN and -inf in x are refused, since they leave no number as zero point; ``ort`` takes -inf as
    onnxruntime does, but refuses NaN: there the elements before a NaN that share its vector lane are forgotten, so that
    the range depends on its place and on the CPU. name: of x, as the operator calls it.
    """
    if not x.size:
        return np.array(1, _F32), np.array(0, np.uint8)
    with np.errstate(all="ignore"):
        bottom, top = _F32(np.min(x)), _F32(np.max(x))
    if np.isnan(bottom):
        raise _refused(name, "NaN", _LANES if arith == "ort" else _NO_ZERO_POINT)
    if bottom == -np.inf and arith != "ort":
        raise _refused(name, "-inf", _NO_ZERO_POINT)
    return range_parameters(bottom, top, arith)


def quantized(x: Array, arith: Arith = "exact", name: str = "x") -> tuple[Array, Array, Array]:
    """What DynamicQuantizeLinear makes of x, float32: codes (uint8), scale and zero point, as above."""
    scale, zero = dynamic_parameters(x, arith, name)
    codes = np.empty(x.shape, np.uint8)
    source, target = np.ascontiguousarray(x).reshape(-1), codes.reshape(-1)
    buffer = np.empty(min(BLOCK, x.size), np.float32)
    bottom, top = -float(zero), 255 - float(zero)
    with np.errstate(all="ignore"):
        for first in range(0, x.size, BLOCK):
            q = buffer[: min(BLOCK, x.size - first)]
            np.divide(source[first : first + BLOCK], scale, out=q)
            np.rint(q, out=q)
            np.clip(q, bottom, top, out=q)
            if np.isnan(q.max()):
                q[np.isnan(q)] = bottom
            np.subtract(q, bottom, out=q)
            np.copyto(target[first : first + BLOCK], q, casting="unsafe")
    return codes, scale, zero


def _refused(name: str, value: str, why: str) -> OperatorError:
    fix = "find the node that makes it: qrun run MODEL -t '*'"
    return refuse(f"{name} holds {value}", name, "numbers", value, why=why, fix=fix, code="QR202")


def range_parameters(bottom: np.float32, top: np.float32, arith: Arith) -> tuple[Array, Array]:
    """The same for values from bottom to top, which are numbers; top may be infinite, and in ``ort`` bottom too."""
    with np.errstate(all="ignore"):
        bottom, top = min(_F32(0), bottom), max(_F32(0), top)
        scale = (top - bottom) / _F32(255)
        if not scale:
            unit = _F32(1) / _F32(255) if arith == "onnx-ref" and top == bottom else _F32(1)
            return np.array(unit, _F32), np.array(0, np.uint8)
        zero = _F32(0) - bottom / scale
        zero = _F32(255) if np.isnan(zero) else np.rint(np.clip(zero, _F32(0), _F32(255)))
    return np.array(scale, _F32), np.array(zero, np.uint8)
