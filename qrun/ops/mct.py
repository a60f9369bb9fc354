"""Operators of Sony's Model Compression Toolkit (mct_quantizers), which quantize floats and keep floats."""

from __future__ import annotations

from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir.schema import MCT
from qrun.ops._op import Array, Context, bad_shape, op, refuse, require
from qrun.ops._signature import Attributes

_F32 = np.float32


@frozen
class WeightAttributes(Attributes):
    """num_bits, whether parameters are per channel, and the channels' axis; signed and mctq_version change nothing."""

    num_bits: int
    per_channel: int = 0
    channel_axis: int = 0
    signed: int = 1
    mctq_version: str = ""


def _along(value: Array, name: str, x: Array, per_channel: int, axis: int) -> Array:
    """A parameter of one number, or of one for each slice along the axis, shaped to broadcast to x."""
    if not per_channel:
        if value.shape != (1,):
            raise bad_shape(name, "[1]", value, "per_channel is 0.")
        return value.reshape((1,) * x.ndim)
    require("channel_axis", -x.ndim <= axis < x.ndim, f"{-x.ndim} to {x.ndim - 1}", axis)
    if value.shape != (x.shape[axis],):
        why = f"per_channel: one for each slice of axis {axis}."
        raise bad_shape(name, f"[{x.shape[axis]}]", value, why)
    shape = [1] * x.ndim
    shape[axis] = -1
    return value.reshape(shape)


def _check_bits(num_bits: int, name: str = "num_bits") -> None:
    require(name, 1 <= num_bits <= 32, "1 to 32", num_bits)


def _check_range(low: Any, high: Any, name: str) -> None:
    """Refuse ranges that are empty; NaN makes one so."""
    if not np.all(low < high):
        raise refuse(f"{name} leaves an empty range", name, "a range from a smaller to a larger number", code="QR202")


def _weights_symmetric(x: Array, threshold: Array, *, attributes: WeightAttributes, ctx: Context) -> Array:
    """Weights quantized to num_bits signed bits and back; float32 x of any shape.

    threshold float32: [1], or one for each slice of channel_axis if per_channel. Each step is one float32 operation:

        s = threshold / 2**(num_bits - 1)
        y = round to even(min(max(x, -threshold), threshold - s) / s) * s

    NaN stays NaN. Raises OperatorError for thresholds that are not positive, and shapes that do not fit.
    Source: mct_quantizers 1.7, whose code states the steps.
    """
    _check_bits(attributes.num_bits)
    top = _along(threshold, "threshold", x, attributes.per_channel, attributes.channel_axis)
    _check_range(-top, top, "threshold")
    ctx.claim(x.shape, 4)
    with np.errstate(all="ignore"):
        scale = top / _F32(2 ** (attributes.num_bits - 1))
        return np.asarray(np.rint(_limit(x, -top, top - scale) / scale) * scale)


_SYMMETRIC = {"T": ("float", "x threshold")}
weights_symmetric = op("WeightsSymmetricQuantizer", since=1, domain=MCT, types=_SYMMETRIC)(_weights_symmetric)
weights_pot = op("WeightsPOTQuantizer", since=1, domain=MCT, types=_SYMMETRIC)(_weights_symmetric)


def _limit(x: Array, low: Any, high: Any) -> Array:
    """x between two limits; NaN is unchanged."""
    return np.asarray(np.where(x > high, high, np.where(x < low, low, x)))


def _with_zero(low: Any, high: Any, steps: Any) -> tuple[Any, Any]:
    """The range, moved so that 0 is one of its numbers, or one of its ends."""
    scale = (high - low) / steps
    moved = scale * np.rint(low / scale)
    inside = (low <= 0) & (high >= 0)
    bottom, top = np.where(inside, moved, low), np.where(inside, high - low + moved, high)
    return np.minimum(bottom, 0), np.maximum(top, 0)


@op("WeightsUniformQuantizer", since=1, domain=MCT, types={"T": ("float", "x min_range max_range")})
def weights_uniform(
    x: Array, min_range: Array, max_range: Array, *, attributes: WeightAttributes, ctx: Context
) -> Array:
    """Weights quantized to 2**num_bits numbers of a range and back; float32 x of any shape.

    min_range, max_range float32: [1], or one for each slice of channel_axis if per_channel. Each step is one float32
    operation:

        s = (max_range - min_range) / (2**num_bits - 1)
        a = s * round to even(min_range / s),  b = max_range - min_range + a       a range on one side of 0 ends at 0
        s = (b - a) / (2**num_bits - 1)
        y = round to even(min(max(x, a), b) / s) * s

    NaN stays NaN. Raises OperatorError for empty ranges, and shapes that do not fit.
    Source: mct_quantizers 1.7, whose code states the steps.
    """
    _check_bits(attributes.num_bits)
    low, high = (
        _along(value, name, x, attributes.per_channel, attributes.channel_axis)
        for value, name in ((min_range, "min_range"), (max_range, "max_range"))
    )
    _check_range(low, high, "max_range")
    ctx.claim(x.shape, 4)
    steps = _F32(2**attributes.num_bits - 1)
    with np.errstate(all="ignore"):
        a, b = _with_zero(low, high, steps)
        scale = (b - a) / steps
        return np.asarray(np.rint(_limit(x, a, b) / scale) * scale)


@frozen
class TableAttributes(Attributes):
    """As WeightAttributes; num_bits is not used. input_rank is x's rank."""

    lut_values_bitwidth: int = 8
    eps: float = 1e-8
    per_channel: int = 0
    channel_axis: int = 0
    input_rank: int = 0
    num_bits: int = 0
    signed: int = 1
    mctq_version: str = ""


def _weights_table(
    x: Array, lut_values: Array, threshold: Array, *, attributes: TableAttributes, ctx: Context
) -> Array:
    """Weights replaced by the nearest numbers of a table; float32 x of any shape.

    lut_values float32, one number or more; threshold float32: [1], or one for each slice of channel_axis if
    per_channel. With h = 2**(lut_values_bitwidth - 1), each step is one float32 operation:

        v = min(max(x / (threshold + eps) * h, -h), h - 1)
        y = t / h * threshold           t: the number of lut_values with the smallest |v - t|, the first of several

    NaN takes the first number. Raises OperatorError for a table that is empty or has NaN, an input_rank that is not
    x's, and shapes that do not fit.
    Source: mct_quantizers 1.7, whose code states the steps.
    """
    _check_bits(attributes.lut_values_bitwidth, "lut_values_bitwidth")
    if not lut_values.size or np.isnan(lut_values).any():
        raise refuse("lut_values has no numbers, or NaN", "lut_values", "one number or more", lut_values, code="QR202")
    if attributes.per_channel:
        require("input_rank", attributes.input_rank == x.ndim, f"{x.ndim}, the rank of x", attributes.input_rank)
    top = _along(threshold, "threshold", x, attributes.per_channel, attributes.channel_axis)
    half = _F32(2 ** (attributes.lut_values_bitwidth - 1))
    ctx.claim(x.shape, 16)
    with np.errstate(all="ignore"):
        v = np.clip(x / (top + _F32(attributes.eps)) * half, -half, half - _F32(1))
        table = lut_values.reshape(-1)
        best, chosen = np.abs(v - table[0]), np.full(x.shape, table[0])
        for number in table[1:]:
            gap = np.abs(v - number)
            np.copyto(chosen, number, where=gap < best)
            np.fmin(best, gap, out=best)
        return np.asarray(chosen / half * top)


_TABLE = {"T": ("float", "x lut_values threshold")}
weights_table = op("WeightsLUTSymmetricQuantizer", since=1, domain=MCT, types=_TABLE)(_weights_table)
weights_table_pot = op("WeightsLUTPOTQuantizer", since=1, domain=MCT, types=_TABLE)(_weights_table)


def _activation_symmetric(
    x: Array, *, threshold: float, signed: int, num_bits: int, mctq_version: str = "", ctx: Context
) -> Array:
    """Activations quantized to num_bits bits and back; float32 x of any shape.

        signed: s = threshold / 2**(num_bits - 1), low = -threshold          else: s = threshold / 2**num_bits, low = 0
        y = round to even(min(max(x, low), threshold - s) / s) * s

    s and the limits are float64, then float32, as each step of y. NaN stays NaN. onnxruntime-extensions gives the
    package a threshold of six digits only.

    Raises OperatorError for a threshold that is not positive. Source: mct_quantizers 1.7, whose code states the steps.
    """
    _check_bits(num_bits)
    _check_range(-threshold if signed else 0.0, threshold, "threshold")
    ctx.claim(x.shape, 4)
    scale = threshold / 2 ** (num_bits - bool(signed))
    low, high = _F32(-threshold if signed else 0), _F32(threshold - scale)
    with np.errstate(all="ignore"):
        return np.asarray(np.rint(np.clip(x, low, high) / _F32(scale)) * _F32(scale))


_ACTIVATION = {"T": ("float", "x")}
activation_symmetric = op("ActivationSymmetricQuantizer", since=1, domain=MCT, types=_ACTIVATION, form="pointwise")(
    _activation_symmetric
)
activation_pot = op("ActivationPOTQuantizer", since=1, domain=MCT, types=_ACTIVATION, form="pointwise")(
    _activation_symmetric
)


@op("ActivationUniformQuantizer", since=1, domain=MCT, types=_ACTIVATION, form="pointwise")
def activation_uniform(
    x: Array, *, num_bits: int, min_range: float, max_range: float, mctq_version: str = "", ctx: Context
) -> Array:
    """Activations quantized to 2**num_bits numbers of a range and back; float32 x of any shape.

        s = (max_range - min_range) / (2**num_bits - 1)
        a = s * round to even(min_range / s),  b = max_range - min_range + a       a range on one side of 0 ends at 0
        s = (b - a) / (2**num_bits - 1)
        y = round to even((min(max(x, a), b) - a) / s) * s + a

    Each step is one float64 operation, and y is rounded to float32 at the end, as in the package with numpy 2; with
    numpy 1 the steps of y are float32 there. onnxruntime-extensions gives the package attributes of six digits only.
    NaN stays NaN.

    Raises OperatorError for an empty range. Source: mct_quantizers 1.7, whose code states the steps.
    """
    _check_bits(num_bits)
    _check_range(min_range, max_range, "max_range")
    ctx.claim(x.shape, 8)
    steps = 2**num_bits - 1
    a, b = (float(end) for end in _with_zero(np.float64(min_range), np.float64(max_range), steps))
    scale = (b - a) / steps
    with np.errstate(all="ignore"):
        return np.asarray((scale * np.rint((np.clip(x.astype(np.float64), a, b) - a) / scale) + a).astype(_F32))
