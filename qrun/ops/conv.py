"""Conv."""

from __future__ import annotations

import numpy as np

from qrun.ir import Array
from qrun.ops._context import Context
from qrun.ops._conv import ConvGeometry, check_bias, conv_macs, conv_window
from qrun.ops._native import LoweringContext, NativeKernel
from qrun.ops._native_products import float_conv_kernel
from qrun.ops._op import Real, op
from qrun.ops._sums import rounded_products
from qrun.ops._window import SlidingWindow, padded, patches

COLUMN_ELEMENTS = 1 << 19


@op("Conv", since=1, cost=conv_macs, computes=Real("Conv", {"W": "channel"}, bias="B"))
def conv(
    X: Array,
    W: Array,
    B: Array | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: tuple[int, ...] = (),
    group: int = 1,
    kernel_shape: tuple[int, ...] = (),
    pads: tuple[int, ...] = (),
    strides: tuple[int, ...] = (),
    ctx: Context,
) -> Array:
    """Convolution: X [N,C,spatial...], W [M,C/group,kernel...], B [M], floating point of one type.

        Y[n,m,o] = sum over c, k of X[n,c,o*stride + k*dilation - pad] * W[m,c,k] + B[m]      padding counts as 0

    Each element is its real value rounded once to X's type; float64 is added in float64.
    Raises OperatorError for shapes and geometry that the page forbids.
    Source: ONNX operators, Conv-22.
    """
    win = _checked(X, W, B, ConvGeometry(group, kernel_shape, strides, dilations, pads, auto_pad), ctx)
    channels = W.shape[0]
    y = np.empty((X.shape[0], group, channels // group, *win.out), X.dtype)
    with np.errstate(all="ignore"):
        if y.size:
            _convolve(X, W, B, win, y, ctx)
    return y.reshape(X.shape[0], channels, *win.out)


def _convolve(x: Array, w: Array, bias: Array | None, win: SlidingWindow, y: Array, ctx: Context) -> None:
    """Fill y [N,group,M/group,out...], some output rows at a time."""
    group, m = y.shape[1:3]
    k = w[0].size
    weights = w.reshape(group, m, k).astype(np.float64)
    addend = None if bias is None else bias.reshape(group, m, 1).astype(np.float64)
    source = padded(x, win, 0, ctx)
    width = int(np.prod(win.out[1:], dtype=np.int64))
    rows = max(1, min(win.out[0], COLUMN_ELEMENTS // max(group * (k + m) * width, 1)))
    ctx.claim((group * (k + m), rows, width), 8, "convolution columns")
    for n in range(x.shape[0]):
        for first in range(0, win.out[0], rows):
            last = min(first + rows, win.out[0])
            columns = np.array(patches(source[n], win, first, last), np.float64, order="C")
            made = rounded_products(weights, columns.reshape(group, k, (last - first) * width), y.dtype, 1.0, addend)
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
    win = _checked(x, w, bias, ConvGeometry.of(site.attributes), site.ctx)
    return float_conv_kernel(site, x, w, bias, win)
