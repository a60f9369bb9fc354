"""The operator QLinearConv of ai.onnx and com.microsoft."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir.types import shape_text
from qrun.ops._context import note_scale, per_channel, scalar
from qrun.ops._op import Array, Context, Real, contrib_op, op
from qrun.ops._quantize import requantize
from qrun.ops._signature import InputRecord
from qrun.ops._window import ConvGeometry, SlidingWindow, accumulate, check_bias, conv_macs, conv_params, conv_window
from qrun.ops.lowering.integers import conv_kernel, native_target, plan_conv
from qrun.ops.lowering.kernel import LoweringContext, NativeKernel

_EIGHT = "int8 uint8"
_macs = partial(conv_macs, w=3)


@frozen
class QLinearConvInputs(InputRecord):
    x: Array
    x_scale: Array
    x_zero_point: Array
    w: Array
    w_scale: Array
    w_zero_point: Array
    y_scale: Array
    y_zero_point: Array
    B: Array | None = None


@op("QLinearConv", since=10, cost=_macs, computes=Real("Conv", {"w": "channel"}, bias="B"))
def qlinear_conv(given: QLinearConvInputs, *, geometry: ConvGeometry, ctx: Context) -> Array:
    """Convolve quantized tensors and quantize the result.

    x [N,C,spatial...], w [M,C/group,kernel...], each int8 or uint8; B int32 [M], whose scale is x_scale * w_scale.
    x and y parameters are scalars; w_scale and w_zero_point scalars or [M]. Output: y_zero_point's type.

        acc = sum (x - x_zero_point) * (w - w_zero_point) + B        int32, wrapping; padding counts as real 0
        y   = saturate(RNE(acc * x_scale * w_scale / y_scale) + y_zero_point)

    Exact: the quotient is rounded once, as a real number, and before the zero point is added.
    ``ort``: float32(acc) times the float32 number x_scale * w_scale / y_scale, each step rounded to float32.
    ``onnx-ref``: the same multiplier times acc in float64, the zero point added before rounding.
    Raises OperatorError for shapes, types and geometry that the page forbids.
    """
    x, w, c = given.x, given.w, _check(given, geometry, ctx)
    group, channels, win = geometry.group, w.shape[0], c.window
    y = np.empty((x.shape[0], group, channels // group, *win.out), c.y_zero.dtype)
    lanes = (group, channels // group, *(1,) * len(win.out))
    factors = (c.x_scale, c.w_scale.reshape(lanes) if c.w_scale.ndim else c.w_scale)
    for index, acc in accumulate(x, w, c.x_zero, c.w_zero, given.B, win, group, ctx):
        requantize(acc, factors, c.y_scale, c.y_zero, ctx, y[index])
    return y.reshape(x.shape[0], channels, *win.out)


@frozen
class _Checked:
    """Parameters of rank 0, w's perhaps [channels], and the window."""

    x_scale: Array
    x_zero: Array | None
    w_scale: Array
    w_zero: Array | None
    y_scale: Array
    y_zero: Array
    window: SlidingWindow


def _check(given: QLinearConvInputs, geometry: ConvGeometry, ctx: Context) -> _Checked:
    """Refuse what the page forbids, observe scales, and claim the output."""
    x, w = given.x, given.w
    xz, wz = conv_params(x, w, given.x_zero_point, given.w_zero_point, "QLinearConv-10")
    win = conv_window(x, w, geometry)
    channels = w.shape[0]
    xs = scalar(given.x_scale, "x_scale", "QLinearConv-10")
    ws = per_channel(given.w_scale, "w_scale", channels, "QLinearConv-10")
    ys = scalar(given.y_scale, "y_scale", "QLinearConv-10")
    yz = scalar(given.y_zero_point, "y_zero_point", "QLinearConv-10")
    check_bias(given.B, channels, "QLinearConv-10: B is a 1-D tensor of M elements.")
    for name, scale in (("x_scale", xs), ("w_scale", ws), ("y_scale", ys)):
        note_scale(ctx, scale, name)
    if wz is not None and wz.shape != ws.shape:
        detail = f"w_scale {shape_text(ws.shape)}, w_zero_point {shape_text(wz.shape)}"
        ctx.observe("mixed-granularity", "w_zero_point", 1, 1, (), detail)
    ctx.claim((x.shape[0], channels, *win.out), 1)
    return _Checked(xs, xz, ws, wz, ys, yz, win)


@qlinear_conv.native
def _lower(site: LoweringContext) -> NativeKernel:
    return _native_conv(site, False)


def _native_conv(site: LoweringContext, channels_last: bool) -> NativeKernel:
    """The native kernel of a QLinearConv."""
    x, *parameters = site.inputs
    given = QLinearConvInputs(np.moveaxis(x, -1, 1) if channels_last else x, *parameters)
    c = _check(given, ConvGeometry.of(site.attributes), site.ctx)
    site.require_constants()
    target = native_target(site, c.x_scale, c.w_scale, c.y_scale, c.y_zero)
    conv = plan_conv(site, given.x, given.w, (c.x_zero, c.w_zero), c.window, given.B, target)
    return conv_kernel(site, conv, target, channels_last=channels_last)


@contrib_op(
    "QLinearConv",
    like=qlinear_conv,
    computes=Real("Conv", {"w": "channel"}, bias="B"),
    cost=_macs,
    types={
        "T1": (_EIGHT, "x"),
        "T2": (_EIGHT, "w"),
        "T3": (_EIGHT, "y"),
        "T4": ("int32", "B"),
    },
)
def ms_qlinear_conv(x: Array, *parameters: Array | None, channels_last: int = 0, **attributes: Any) -> Array:
    """QLinearConv; with channels_last, x and y are [N,spatial...,C] while w stays [M,C/group,kernel...]."""
    turned = bool(channels_last) and x.ndim > 2
    y = qlinear_conv(np.moveaxis(x, -1, 1) if turned else x, *parameters, **attributes)
    return np.ascontiguousarray(np.moveaxis(y, 1, -1)) if channels_last else y


@ms_qlinear_conv.native
def _lower_ms(site: LoweringContext) -> NativeKernel:
    x = site.inputs[0]
    return _native_conv(site, bool(site.attributes["channels_last"]) and x is not None and x.ndim > 2)
