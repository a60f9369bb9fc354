"""ConvInteger."""

from __future__ import annotations

import numpy as np

from qrun.ir import Array
from qrun.ops._context import Context
from qrun.ops._conv import accumulate, conv_macs, conv_params, conv_window
from qrun.ops._op import op


@op("ConvInteger", since=10, cost=conv_macs)
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
    ctx: Context | None = None,
) -> Array:
    """Integer convolution with int32 result.

    x [N,C,spatial...], w [M,C/group,kernel...], each int8 or uint8; x_zero_point scalar, w_zero_point scalar or [M].

        y = sum (x - x_zero_point) * (w - w_zero_point)              int32, wrapping; padding counts as real 0

    Exact. Raises OperatorError for shapes, types and geometry that the page forbids.
    Source: ONNX operators, ConvInteger-10.
    """
    ctx = ctx or Context()
    xz, wz = conv_params(x, w, x_zero_point, w_zero_point, "ConvInteger-10")
    win = conv_window(x, w, group, kernel_shape, strides, dilations, pads, auto_pad)
    ctx.claim((x.shape[0], w.shape[0], *win.out), 4)
    y = np.empty((x.shape[0], group, w.shape[0] // group, *win.out), np.int32)
    for index, acc in accumulate(x, w, xz, wz, None, win, group, ctx):
        y[index] = acc
    return y.reshape(x.shape[0], w.shape[0], *win.out)
