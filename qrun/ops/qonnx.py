"""QONNX operators, whose quantized tensors remain floats: IntQuant (Quant in older files), BipolarQuant, Trunc and
MultiThreshold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qrun.declare.frozen import replace
from qrun.ir.schema import QONNX
from qrun.ops._float import broadcast
from qrun.ops._op import Array, Context, bad_shape, one_of, op, refuse
from qrun.ops.lowering.float32 import elementwise, elementwise_kernel
from qrun.ops.lowering.kernel import LoweringContext, NativeKernel, Stage, decline_error, elementwise_of, kernel_after

_NUMBERS = "float int8 uint8 int32 int64"
_NAMES = ("X", "scale", "zeropt", "bitwidth")


def _round_magnitude(size: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Round the magnitude and keep the sign."""
    return lambda v: np.copysign(size(np.abs(v)), v)


_ROUNDINGS: dict[str, Callable[[Array], Any]] = {
    "ROUND": np.rint,
    "HALF_EVEN": np.rint,
    "CEIL": np.ceil,
    "FLOOR": np.floor,
    "UP": _round_magnitude(np.ceil),
    "DOWN": np.trunc,
    "HALF_UP": _round_magnitude(lambda size: np.trunc(size) + (size - np.trunc(size) >= 0.5)),
    "HALF_DOWN": _round_magnitude(lambda size: np.ceil(size) - (np.ceil(size) - size >= 0.5)),
}


def _round(values: Array, mode: str) -> Array:
    """Round by QONNX's rounding_mode. Raises OperatorError for unknown ones."""
    one_of("rounding_mode", mode.upper(), _ROUNDINGS)
    return np.asarray(_ROUNDINGS[mode.upper()](values))


def _widths(bitwidth: Array, name: str) -> Array:
    """The numbers of bits, limited to 1000, which is more than float32 can distinguish."""
    wide = bitwidth.astype(np.float64)
    bad = ~((wide >= 1) & (wide == np.rint(wide)))
    if bad.any():
        raise refuse(f"{name} is not a positive integer", name, "1 or more bits", f"{wide[bad].reshape(-1)[0]:g}")
    return np.asarray(np.minimum(wide, 1000), np.int64)


def _limits(bits: Array, signed: int, narrow: int) -> tuple[Array, Array]:
    """The least and the greatest integer of this many bits, in float32."""
    count = np.ldexp(1.0, bits - bool(signed))
    low = bool(narrow) - count if signed else np.zeros(bits.shape)
    high = count - 1 - (bool(narrow) and not signed)
    with np.errstate(over="ignore"):
        return np.asarray(low, np.float32), np.asarray(high, np.float32)


def _clip(values: Array, low: Array, high: Array) -> None:
    """Clips in place; NaN and -0 are unchanged."""
    np.copyto(values, high, where=values > high)
    np.copyto(values, low, where=values < low)


def _int_quant(
    X: Array,
    scale: Array,
    zeropt: Array,
    bitwidth: Array,
    *,
    signed: int = 1,
    narrow: int = 0,
    rounding_mode: str = "ROUND",
    ctx: Context,
) -> Array:
    """X quantized to integers of `bitwidth` bits and dequantized again; any shapes that broadcast as in numpy.

    X, scale and Y float32; zeropt any number, converted to float32; bitwidth positive integers. Each step is one
    float32 operation:

        v = X / scale + zeropt
        v = min(max(v, low), high)      signed: -2**(bitwidth - 1) + narrow, 2**(bitwidth - 1) - 1
                                        else:   0, 2**bitwidth - 1 - narrow
        Y = (round(v) - zeropt) * scale

    rounding_mode, in any case: ROUND or HALF_EVEN (ties to even), CEIL, FLOOR, UP (away from 0), DOWN (towards 0),
    HALF_UP and HALF_DOWN (ties away from 0, towards 0); exact, and zeros keep the sign of v. Signed with 1 bit,
    round(v) is 1 where v >= 0, else -1, as in QONNX's tools. NaN stays NaN otherwise. Checks of QuantizeLinear and
    DequantizeLinear do not concern it. Quant is its former name; onnx.brevitas and finn.custom_op.general are former
    names of the domain, and files of 2021 have Quant and BipolarQuant without one.

    Raises OperatorError for shapes that do not broadcast, a bitwidth that is not a positive integer and other modes.
    """
    shape, bits = broadcast(ctx, (X, scale, zeropt, bitwidth), _NAMES), _widths(bitwidth, "bitwidth")
    zeropt = zeropt.astype(np.float32)
    with np.errstate(all="ignore"):
        v = np.array(np.broadcast_to(X / scale + zeropt, shape))
        sign = np.where(v >= 0, np.float32(1), np.float32(-1))
        _clip(v, *_limits(bits, signed, narrow))
        codes = np.where((bits == 1) & bool(signed), sign, _round(v, rounding_mode))
        return np.asarray((codes - zeropt) * scale)


def _lower(site: LoweringContext) -> NativeKernel:
    broadcast(site.ctx, site.inputs, _NAMES)
    site.require_constant(3)
    bitwidth, attributes = site.inputs[3], site.attributes
    mode, bits = attributes["rounding_mode"].upper(), _widths(bitwidth, "bitwidth")
    one_of("rounding_mode", mode, _ROUNDINGS)
    if bits.size != 1 or bits.ndim > max(x.ndim for x in site.inputs[:3]):
        raise decline_error("several bit widths")
    low, high = _limits(bits, attributes["signed"], attributes["narrow"])
    way, ends = {"ROUND": "half_even"}.get(mode, mode.lower()), (low.item(), high.item())
    if attributes["signed"] and bits.item() == 1:
        way, ends = "sign", (-np.inf, np.inf)
    wide = replace(site, inputs=tuple(x.astype(np.float32) if n == 2 else x for n, x in enumerate(site.inputs)))
    kernel = elementwise_kernel(wide, f"fake_quantize_{way}", _NAMES[:3], ends)
    if site.inputs[2].dtype == np.float32:
        return kernel
    cast = Stage(elementwise_of(site, "cast", site.inputs[2]), (2,), "zero")
    return kernel_after(site, kernel, (0, 1, 2), {2: cast})


_TYPES = {"T": ("float", "X scale"), "Z": (_NUMBERS, "zeropt"), "B": (_NUMBERS, "bitwidth")}
int_quant = op("IntQuant", since=1, domain=QONNX, types=_TYPES, form="broadcast", native=_lower)(_int_quant)
quant = op("Quant", since=1, domain=QONNX, types=_TYPES, form="broadcast", native=_lower)(_int_quant)


@op(
    "BipolarQuant",
    since=1,
    domain=QONNX,
    types={"T": ("float", "X scale")},
    form="broadcast",
    native=elementwise("bipolar", "X", "scale"),
)
def bipolar_quant(X: Array, scale: Array, *, ctx: Context) -> Array:
    """Return scale where X >= 0, else -scale, also for NaN; float32, any shapes that broadcast as in numpy.

    Raises OperatorError for shapes that do not broadcast.
    """
    broadcast(ctx, (X, scale), ("X", "scale"))
    return np.where(X >= 0, scale, -scale)


_SCALES = "X scale"
_TRUNC_BITS = {"Z": (_NUMBERS, "zeropt"), "B1": (_NUMBERS, "in_bitwidth"), "B2": (_NUMBERS, "out_bitwidth")}


@op("Trunc", since=1, domain=QONNX, types={"T": ("float", _SCALES), **_TRUNC_BITS})
def trunc_1(
    X: Array,
    scale: Array,
    zeropt: Array,
    in_bitwidth: Array,
    out_bitwidth: Array,
    *,
    rounding_mode: str = "FLOOR",
    ctx: Context,
) -> Array:
    """Integers without their last bits; any shapes that broadcast as in numpy.

    X, scale and Y float32; zeropt any number, converted to float32; bit widths positive integers. Each step is one
    float32 operation:

        v = round to even(X / scale + zeropt) / 2**(in_bitwidth - out_bitwidth)
        Y = (round(v) - zeropt) * scale

    rounding_mode: as in IntQuant. Raises OperatorError for shapes that do not broadcast, bit widths that are no
    positive integers and other modes.
    """
    names = ("X", "scale", "zeropt", "in_bitwidth", "out_bitwidth")
    broadcast(ctx, (X, scale, zeropt, in_bitwidth, out_bitwidth), names)
    zeropt = zeropt.astype(np.float32)
    lost = _widths(in_bitwidth, names[3]) - _widths(out_bitwidth, names[4])
    with np.errstate(all="ignore"):
        v = np.rint(X / scale + zeropt) / np.ldexp(np.float32(1), lost)
        return np.asarray((_round(v, rounding_mode) - zeropt) * scale)


@op(
    "Trunc",
    since=2,
    domain=QONNX,
    types={"T": ("float", f"{_SCALES} out_scale"), **_TRUNC_BITS},
)
def trunc(
    X: Array,
    scale: Array,
    zeropt: Array,
    in_bitwidth: Array,
    out_scale: Array,
    out_bitwidth: Array,
    *,
    rounding_mode: str = "FLOOR",
    signed: int = 1,
    narrow: int = 0,
    ctx: Context,
) -> Array:
    """Integers with a coarser scale and fewer bits; any shapes that broadcast as in numpy.

    X, scales and Y float32; zeropt any number, converted to float32; bit widths positive integers, in_bitwidth not
    used. Each step is one float32 operation:

        s = 2**(round to even(log2(out_scale / scale)))
        v = min(max(round to even(X / scale + zeropt) / s, low), high)     low, high: as in IntQuant, of out_bitwidth
        Y = (round(v) - zeropt / s) * out_scale

    rounding_mode: as in IntQuant. Raises OperatorError for shapes that do not broadcast, bit widths that are no
    positive integers and other modes.
    """
    names = ("X", "scale", "zeropt", "in_bitwidth", "out_scale", "out_bitwidth")
    shape = broadcast(ctx, (X, scale, zeropt, in_bitwidth, out_scale, out_bitwidth), names)
    zeropt = zeropt.astype(np.float32)
    _widths(in_bitwidth, names[3])
    limits = _limits(_widths(out_bitwidth, names[5]), signed, narrow)
    with np.errstate(all="ignore"):
        step = _nearest_power(out_scale / scale)
        v = np.array(np.broadcast_to(np.rint(X / scale + zeropt) / step, shape))
        _clip(v, *limits)
        return np.asarray((_round(v, rounding_mode) - zeropt / step) * out_scale)


def _nearest_power(ratio: Array) -> Array:
    """2 to the nearest integer to log2(ratio), float32. No float32 number lies in the middle, because the root of 1/2
    is irrational."""
    fraction, exponent = np.frexp(np.asarray(ratio, np.float64))
    power = np.ldexp(1.0, exponent - (fraction * fraction < 0.5))
    return np.where(ratio > 0, np.where(np.isfinite(ratio), power, ratio), np.where(ratio == 0, 0, np.nan)).astype(
        np.float32
    )


_LAYOUTS = {2: "NC", 3: "NWC", 4: "NCHW"}
"""The layout of a tensor by its rank, if a node states none."""


@op("MultiThreshold", since=1, domain=QONNX, types={"T": ("float", "X thresholds")})
def multi_threshold(
    X: Array,
    thresholds: Array,
    *,
    out_dtype: str = "",
    out_scale: float = 1.0,
    out_bias: float = 0.0,
    data_layout: str = "",
    ctx: Context,
) -> Array:
    """The number of thresholds that each element reaches, scaled; float32 X of two or more axes.

    thresholds float32 [C, B], or [1, B] for all channels; in any order.

        n = the number of thresholds t of the element's channel with X >= t         0 for NaN
        Y = n * out_scale + out_bias                                                two float32 operations

    The channels' axis is that of C in data_layout, such as NCHW or NHWC. Without it, as in QONNX's tools, it is the
    last of three axes, and axis 1 of any others. out_dtype, the type that hardware stores, does not change numbers.

    Raises OperatorError for an X without channels and thresholds that do not fit.
    Source: FINN documentation, MultiThreshold; qonnx 1.0, whose code states the axis.
    """
    layout = data_layout or _LAYOUTS.get(X.ndim, "")
    axis = layout.index("C") if "C" in layout else 1
    if X.ndim <= max(axis, 1):
        raise bad_shape("X", f"{max(axis, 1) + 1} or more axes", X, f"channels are axis {axis}.")
    channels = X.shape[axis]
    if thresholds.ndim != 2 or thresholds.shape[0] not in (1, channels):
        why = f"MultiThreshold: thresholds have a row for each slice of axis {axis}, or one row."
        raise bad_shape("thresholds", f"[{channels}, B] or [1, B]", thresholds, why)
    ctx.claim(X.shape, 8, "counts")
    counts, rows = np.empty(X.shape, np.float32), np.sort(thresholds, axis=1)
    lanes, places = np.moveaxis(X, axis, 0), np.moveaxis(counts, axis, 0)
    for channel in range(channels):
        reached = np.searchsorted(rows[channel % len(rows)], lanes[channel], side="right")
        places[channel] = np.where(np.isnan(lanes[channel]), 0, reached)
    return counts * np.float32(out_scale) + np.float32(out_bias)
