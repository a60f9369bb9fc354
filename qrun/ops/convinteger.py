"""ConvInteger."""

from __future__ import annotations

import numpy as np

from qrun.ir import Array
from qrun.ops._context import Context
from qrun.ops._conv import ConvGeometry, accumulate, conv_macs, conv_params, conv_window
from qrun.ops._native import Inputs, LoweringContext, NativeKernel
from qrun.ops._native_dynamic import dynamic_sums_kernel
from qrun.ops._native_integers import conv_kernel, planned_conv
from qrun.ops._op import Real, op
from qrun.ops._window import SlidingWindow


@op("ConvInteger", since=10, cost=conv_macs, computes=Real("Conv", {"w": "channel"}))
def conv_integer(
    x: Array,
    w: Array,
    x_zero_point: Array | None = None,
    w_zero_point: Array | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: tuple[int, ...] = (),
    group: int = 1,
    kernel_shape: tuple[int, ...] = (),
    pads: tuple[int, ...] = (),
    strides: tuple[int, ...] = (),
    ctx: Context,
) -> Array:
    """Integer convolution with int32 result.

    x [N,C,spatial...], w [M,C/group,kernel...], each int8 or uint8; x_zero_point scalar, w_zero_point scalar or [M].

        y = sum (x - x_zero_point) * (w - w_zero_point)              int32, wrapping; padding counts as real 0

    Exact. Raises OperatorError for shapes, types and geometry that the page forbids.
    Source: ONNX operators, ConvInteger-10.
    """
    geometry = ConvGeometry(group, kernel_shape, strides, dilations, pads, auto_pad)
    xz, wz, win = _check((x, w, x_zero_point, w_zero_point), geometry, ctx)
    y = np.empty((x.shape[0], group, w.shape[0] // group, *win.out), np.int32)
    for index, acc in accumulate(x, w, xz, wz, None, win, group, ctx):
        y[index] = acc
    return y.reshape(x.shape[0], w.shape[0], *win.out)


def _check(inputs: Inputs, geometry: ConvGeometry, ctx: Context) -> tuple[Array | None, Array | None, SlidingWindow]:
    """Refuse what the page forbids and claim the output; the zero points, of x rank 0, and the window."""
    x, w, x_zero_point, w_zero_point = inputs
    xz, wz = conv_params(x, w, x_zero_point, w_zero_point, "ConvInteger-10")
    win = conv_window(x, w, geometry)
    ctx.claim((x.shape[0], w.shape[0], *win.out), 4)
    return xz, wz, win


@conv_integer.native
def _lower(site: LoweringContext) -> NativeKernel:
    from qrun.native.kernels.sums import KINDS

    x, w, *_ = site.inputs
    xz, wz, win = _check(site.inputs, ConvGeometry.of(site.attributes), site.ctx)
    site.require_constant(1)
    site.require_constant(3)
    if site.fixed[2]:
        return conv_kernel(site, x, w, (xz, wz), None, win, None)
    conv = planned_conv(site, x, w, (None, wz), None, win, None, kinds=KINDS, stores=False, memo=site.memo)
    return dynamic_sums_kernel(site, conv, w, wz, 2)
