"""Conv and ConvInteger."""

from __future__ import annotations

import numpy as np

from qrun.ops._chains import chained_products
from qrun.ops._complete import Settled
from qrun.ops._conv import ConvGeometry, accumulate, check_bias, conv_macs, conv_params, conv_window
from qrun.ops._op import Array, Context, Real, op
from qrun.ops._ortorder import SumOrder, conv_order, ordered_products
from qrun.ops._window import SlidingWindow, padded, patches
from qrun.ops.lowering.dynamic import LIMIT, Given
from qrun.ops.lowering.integers import conv_kernel, planned_conv
from qrun.ops.lowering.kernel import Inputs, LoweringContext, NativeKernel, Stage, staged_kernel
from qrun.ops.lowering.products import float_conv_kernel, require_order

COLUMN_ELEMENTS = 1 << 19


@op("Conv", since=1, cost=conv_macs, computes=Real("Conv", {"W": "channel"}, bias="B"))
def conv(X: Array, W: Array, B: Array | None = None, *, geometry: ConvGeometry, ctx: Context) -> Array:
    """Convolution: X [N,C,spatial...], W [M,C/group,kernel...], B [M], floating point of one type.

        Y[n,m,o] = sum over c, k of X[n,c,o*stride + k*dilation - pad] * W[m,c,k] + B[m]      padding counts as 0

    Sums have the order of docs/numerics.md, F1, plus B at the end; float64 is added in float64.
    Raises OperatorError for shapes and geometry that the page forbids.
    """
    win = _checked(X, W, B, geometry, ctx)
    group, channels = geometry.group, W.shape[0]
    y = np.empty((X.shape[0], group, channels // group, *win.out), X.dtype)
    with np.errstate(all="ignore"):
        if y.size:
            _convolve(X, W, B, win, y, ctx, _order(X, W, win, geometry.group, ctx))
    return y.reshape(X.shape[0], channels, *win.out)


def _order(x: Array, w: Array, win: SlidingWindow, group: int, ctx: Context) -> SumOrder:
    return conv_order(x.shape, w.shape, win, group) if ctx.arith == "ort" and x.dtype == np.float32 else SumOrder()


def _convolve(
    x: Array, w: Array, bias: Array | None, win: SlidingWindow, y: Array, ctx: Context, order: SumOrder
) -> None:
    """Fill y [N,group,M/group,out...], some output rows at a time."""
    ctx.sums.append(order.text)
    group, m = y.shape[1:3]
    k = w[0].size
    weights = w.reshape(group, m, k)
    addend = None if bias is None else bias.reshape(group, m, 1)
    source = padded(x, win, 0, ctx)
    width = int(np.prod(win.out[1:], dtype=np.int64))
    rows = max(1, min(win.out[0], COLUMN_ELEMENTS // max(group * (k + m) * width, 1)))
    rows = win.out[0] if order.kind == "lanes" else rows  # results are made four at a time
    ctx.claim((group * (k + m), rows, width), 8, "convolution columns")
    for n in range(x.shape[0]):
        for first in range(0, win.out[0], rows):
            last = min(first + rows, win.out[0])
            columns = np.array(patches(source[n], win, first, last), order="C")
            columns = columns.reshape(group, k, (last - first) * width)
            if y.dtype == np.float32:
                made = ordered_products(weights, columns, order, bias=addend)
            else:
                made = chained_products(weights, columns, y.dtype, bias=addend)
            y[n, :, :, first:last] = made.reshape(group, m, last - first, *win.out[1:])


def _checked(x: Array, w: Array, bias: Array | None, geometry: ConvGeometry, ctx: Context) -> SlidingWindow:
    """Refuse what the page forbids, and claim the result."""
    win = conv_window(x, w, geometry, ("X", "W"))
    check_bias(bias, w.shape[0])
    ctx.claim((x.shape[0], w.shape[0], *win.out), x.itemsize)
    return win


@conv.native
def _lower(site: LoweringContext) -> NativeKernel:
    x, w, bias = site.inputs
    geometry = ConvGeometry.of(site.attributes)
    win = _checked(x, w, bias, geometry, site.ctx)
    require_order(_order(x, w, win, geometry.group, site.ctx), w[0].size if len(w) else 0)
    return float_conv_kernel(site, x, w, bias, win)


@op("ConvInteger", since=10, cost=conv_macs, computes=Real("Conv", {"w": "channel"}))
def conv_integer(
    x: Array,
    w: Array,
    x_zero_point: Array | None = None,
    w_zero_point: Array | None = None,
    *,
    geometry: ConvGeometry,
    ctx: Context,
) -> Array:
    """Integer convolution with int32 result.

    x [N,C,spatial...], w [M,C/group,kernel...], each int8 or uint8; x_zero_point scalar, w_zero_point scalar or [M].

        y = sum (x - x_zero_point) * (w - w_zero_point)              int32, wrapping; padding counts as real 0

    Exact. Raises OperatorError for shapes, types and geometry that the page forbids.
    """
    xz, wz, win = _check((x, w, x_zero_point, w_zero_point), geometry, ctx)
    y = np.empty((x.shape[0], geometry.group, w.shape[0] // geometry.group, *win.out), np.int32)
    for index, acc in accumulate(x, w, xz, wz, None, win, geometry.group, ctx):
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
def _lower_integer(site: LoweringContext) -> NativeKernel:
    from qrun.native.kernels.conv import KINDS, dynamic_sums, reach

    x, w, *_ = site.inputs
    xz, wz, win = _check(site.inputs, ConvGeometry.of(site.attributes), site.ctx)
    site.require_constant(1)
    site.require_constant(3)
    if site.fixed[2]:
        return conv_kernel(site, planned_conv(site, x, w, (xz, wz), win))
    conv = planned_conv(site, x, w, (None, wz), win, kinds=KINDS, stores=False)
    prepare, sums = dynamic_sums(conv, Given.input(site, 2).operand, memo=site.memo)
    wraps = site.memo.once("reach", lambda: reach(w, wz)) >= LIMIT
    stages = Stage(prepare, (2,), "prepared"), Stage(sums, (0, "prepared"))
    return staged_kernel(site, stages, (sums,), Settled(not wraps))
