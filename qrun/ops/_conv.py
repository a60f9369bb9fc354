"""Integer convolution as matrix products over image columns, block by block so that no large intermediate is made."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir.types import shape_text
from qrun.ops._context import per_channel, same_type, scalar
from qrun.ops._matmul import Weights, add_bias, centred, magnitude, wrap32
from qrun.ops._op import Array, Context, Shape, refuse
from qrun.ops._signature import Attributes
from qrun.ops._window import SlidingWindow, check_rank, padded, patches, window

COLUMN_ELEMENTS = 1 << 21


@frozen
class ConvGeometry(Attributes):
    """The attributes of a convolution; a length of 0 stands for the default."""

    auto_pad: str = "NOTSET"
    dilations: tuple[int, ...] = ()
    group: int = 1
    kernel_shape: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()


def conv_window(x: Array, w: Array, geometry: ConvGeometry, names: tuple[str, str] = ("x", "w")) -> SlidingWindow:
    """Check x [N,C,spatial] against w [M,C/group,kernel] and place the window.

    names: the specification's names of x and w.
    Refuses rank < 3, different ranks, channels that do not fit the groups, and kernel_shape unlike w's.
    """
    check_operands(x, w, geometry.group, geometry.kernel_shape, names)
    return window(x.shape[2:], w.shape[2:], geometry.strides, geometry.dilations, geometry.pads, geometry.auto_pad)


def check_operands(
    x: Array, w: Array, group: int, kernel_shape: Sequence[int], names: tuple[str, str], transposed: bool = False
) -> None:
    """What `conv_window` refuses; transposed: of a transposed convolution, whose w is [C,M/group,kernel]."""
    xn, wn = names
    layout = "C,M/group" if transposed else "M,C/group"
    if x.ndim < 3 or w.ndim != x.ndim:
        raise refuse(
            f"{xn} and {wn} do not fit together",
            wn,
            f"{xn} [N,C,spatial...], {wn} [{layout},kernel...] of one rank of 3 or more; {wn} of rank {max(x.ndim, 3)}",
            f"{xn} {shape_text(x.shape)}, {wn} {shape_text(w.shape)}",
        )
    check_rank(x.ndim - 2, xn)
    if group < 1 or x.shape[1] != (w.shape[0] if transposed else w.shape[1] * group) or w.shape[0] % group:
        raise refuse(
            "channels do not fit the groups",
            wn,
            f"{wn} [{layout},...] with C = {x.shape[1]}, group = {group} and {layout[0]} a multiple of group",
            f"{wn} {shape_text(w.shape)}",
            fix=f"check group and the layout of {xn}: channels are axis 1",
            code="QR207",
        )
    if kernel_shape and tuple(kernel_shape) != w.shape[2:]:
        raise refuse(
            f"kernel_shape differs from {wn}",
            "kernel_shape",
            shape_text(w.shape[2:]),
            shape_text(tuple(kernel_shape)),
            fix=f"remove kernel_shape; {wn} gives it",
            code="QR214",
        )


def check_bias(bias: Array | None, channels: int, why: str = "") -> None:
    """Refuse a B that is not [channels]."""
    if bias is not None and bias.shape != (channels,):
        expected = f"[{channels}] (one per output channel)"
        raise refuse("the bias has the wrong shape", "B", expected, bias, why=why, code="QR305")


def accumulate(
    x: Array,
    w: Array,
    x_zero_point: Array | None,
    w_zero_point: Array | None,
    bias: Array | None,
    win: SlidingWindow,
    group: int,
    ctx: Context,
) -> Iterator[tuple[tuple[Any, ...], Array]]:
    """Yield (index into y [N,group,M/group,out...], int32 sums) for blocks of images and output rows.

    The sums are exact integers in float32 or float64, wrapped to int32 like the specification's accumulator.
    """
    m = w.shape[0] // group
    k = math.prod(w.shape[1:])
    zero = None if w_zero_point is None else w_zero_point.reshape(-1, *(1,) * (w.ndim - 1))
    weights = Weights(centred(w, zero).reshape(group, m, k), magnitude(x.dtype, x_zero_point))
    addend = None if bias is None else bias.reshape(group, m, 1)
    if any(win.begin) or any(win.end):
        sides = zip(win.begin, x.shape[2:], win.end, strict=True)
        ctx.claim((*x.shape[:2], *(sum(s) for s in sides)), 5, "padded input")
    source = centred(padded(x, win, 0 if x_zero_point is None else x_zero_point, ctx), x_zero_point)
    places = math.prod(win.out[1:])
    columns = group * k * places
    rows = max(1, min(win.out[0], COLUMN_ELEMENTS // max(columns, 1)))
    images = max(1, min(x.shape[0], COLUMN_ELEMENTS // max(columns * win.out[0], 1)))
    ctx.claim((images, columns, rows), 4, "convolution columns")
    for start in range(0, x.shape[0], images):
        batch = source[start : start + images]
        for first in range(0, win.out[0], rows):
            last = min(first + rows, win.out[0])
            view = patches(batch, win, first, last)
            acc = weights.times(view.reshape(len(batch), group, k, (last - first) * places))
            acc, bound = add_bias(acc, addend, weights.bound)
            acc = wrap32(acc, bound, ctx, partial(_place, start, first, m, win.out))
            index = (slice(start, start + images), slice(None), slice(None), slice(first, last))
            yield index, acc.reshape(len(batch), group, m, last - first, *win.out[1:])


def _place(start: int, first: int, m: int, out: Shape, index: tuple[int, ...]) -> tuple[int, ...]:
    """The index into y [N,M,out...] of element [n,group,M/group,place] of the block from image `start`, row `first`."""
    n, group, channel, place = index
    row, *rest = np.unravel_index(place, (out[0], *out[1:]))
    return (start + n, group * m + channel, first + int(row), *(int(i) for i in rest))


def conv_params(
    x: Array, w: Array, x_zero_point: Array | None, w_zero_point: Array | None, op_type: str
) -> tuple[Array | None, Array | None]:
    """The zero points of x (scalar) and w (scalar or one per output channel), checked."""
    same_type(x_zero_point, x.dtype, "x_zero_point", "x")
    same_type(w_zero_point, w.dtype, "w_zero_point", "w")
    return (
        scalar(x_zero_point, "x_zero_point", op_type),
        per_channel(w_zero_point, "w_zero_point", w.shape[0] if w.ndim else 0, op_type),
    )


def conv_macs(inputs: Sequence[Shape], outputs: Sequence[Shape], attributes: Mapping[str, Any], w: int = 1) -> int:
    """Multiply-adds of a convolution: each output element sums one kernel of one group."""
    return int(np.prod(outputs[0], dtype=np.int64)) * int(np.prod(inputs[w][1:], dtype=np.int64))
