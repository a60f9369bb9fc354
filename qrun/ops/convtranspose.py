"""ConvTranspose."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir.types import shape_text
from qrun.ops._chains import chained_products
from qrun.ops._conv import ConvGeometry, check_bias, check_operands
from qrun.ops._op import Array, Context, Shape, op, refuse
from qrun.ops._window import INT32_MAX, window
from qrun.ops.lowering.kernel import LoweringContext, NativeKernel
from qrun.ops.lowering.products import float_conv_transpose_kernel


def _macs(inputs: Sequence[Shape], outputs: Sequence[Shape], attributes: Mapping[str, Any]) -> int:
    return math.prod(inputs[0]) * math.prod(inputs[1][1:])


@op("ConvTranspose", since=1, cost=_macs)
def conv_transpose(
    X: Array,
    W: Array,
    B: Array | None = None,
    *,
    geometry: ConvGeometry,
    output_padding: tuple[int, ...] = (),
    output_shape: tuple[int, ...] = (),
    ctx: Context,
) -> Array:
    """Transposed convolution: X [N,C,spatial...], W [C,M/group,kernel...], B [M], floating point of one type.

        full[n,m,i*stride + k*dilation] += sum over c of X[n,c,i] * W[c,m,k]
        Y = full without its pads, plus B[m]; places that no product reaches are 0 plus B[m]

    Along each axis Y has stride * (size - 1) + output_padding + extent - pads elements, or `output_shape`, or
    stride * size with SAME_UPPER and SAME_LOWER. The last two set the pads: the odd element goes to the end for
    SAME_UPPER, else to the begin (ConvTranspose-22; the equations of versions 1 and 11 say the reverse and contradict
    their own auto_pad), and they are never negative.
    Sums have the order of docs/numerics.md, F1, plus B at the end; float64 is added in float64.
    Raises OperatorError for shapes and geometry that the page forbids.
    """
    place = _placed(X, W, B, geometry, output_padding, output_shape)
    size, group, m = X.shape[2:], geometry.group, W.shape[1]
    ctx.claim((X.shape[0], group, m, *place.out), X.itemsize)
    y = np.empty((X.shape[0], group, m, *place.out), X.dtype)
    if y.size:
        weights = W.reshape(group, -1 if W.size else 0, *W.shape[1:])
        bias = None if B is None else B.reshape(group, m, 1)
        with np.errstate(all="ignore"):
            for n in range(X.shape[0]):
                _fill(X[n].reshape(group, -1 if X.size else 0, *size), weights, bias, place, y[n], ctx)
    return y.reshape(X.shape[0], group * m, *place.out)


@conv_transpose.native
def _lower(site: LoweringContext) -> NativeKernel:
    x, w, bias = site.inputs
    geometry, lengths = (
        ConvGeometry.of(site.attributes),
        [site.attributes[n] for n in ("output_padding", "output_shape")],
    )
    place, group = _placed(x, w, bias, geometry, *lengths), geometry.group
    y_shape = (x.shape[0], group * w.shape[1], *place.out)
    site.ctx.claim(y_shape, x.itemsize)
    return float_conv_transpose_kernel(
        site, x, w, bias, y_shape, group=group, strides=place.strides, dilations=place.dilations, begin=place.begin
    )


def _fill(x: Array, w: Array, bias: Array | None, place: _Placement, y: Array, ctx: Context) -> None:
    """Fill y [group,M,out...] from x [group,C,size...], w [group,C,M,kernel...] and bias [group,M,1].

    Results whose places leave the same remainders of the strides meet the same taps of the kernel: they are one product
    for each group, whose k runs over channels, then these taps.
    """
    group, m, *out = y.shape
    rank = len(out)
    axes = list(zip(out, place.begin, w.shape[3:], place.strides, place.dilations, strict=True))
    for firsts in itertools.product(*(range(min(axis[3], axis[0])) for axis in axes)):
        met = [_meeting(first, *axis) for first, axis in zip(firsts, axes, strict=True)]
        where: tuple[Any, ...] = (..., *(slice(first, None, axis[3]) for first, axis in zip(firsts, axes, strict=True)))
        target = y[where]
        columns, weights = x, w
        for axis, (taps, places) in enumerate(met):
            columns = _taken(columns, places, 2 + 2 * axis)
            weights = np.take(weights, taps, 3 + axis)
        order = (0, 1, *range(2, 2 + 2 * rank, 2), *range(3, 3 + 2 * rank, 2))
        ctx.claim(columns.shape, 4, "convolution columns")
        k = weights[0, :, 0].size
        turned = np.moveaxis(weights, 2, 1).reshape(group, m, k)
        made = chained_products(
            turned, columns.transpose(order).reshape(group, k, math.prod(target.shape[2:])), y.dtype, bias=bias
        )
        target[...] = made.reshape(target.shape)


def _meeting(first: int, out: int, begin: int, kernel: int, stride: int, dilation: int) -> tuple[list[int], Array]:
    """Along an axis: the taps that meet an input at the results `first`, first + stride, ...; and which inputs these
    are, [taps, results], some of them beyond the image."""
    taps = [tap for tap in range(kernel) if (first + begin - tap * dilation) % stride == 0]
    begins = np.array([(first + begin - tap * dilation) // stride for tap in taps], np.int64)
    return taps, begins[:, None] + np.arange(-(-(out - first) // stride))


def _taken(x: Array, places: Array, axis: int) -> Array:
    """The elements at these places of an axis, which is replaced by those of `places`; 0 beyond its ends."""
    size = x.shape[axis]
    if not size:
        return np.zeros((*x.shape[:axis], *places.shape, *x.shape[axis + 1 :]), x.dtype)
    inside = (places >= 0) & (places < size)
    taken = np.take(x, np.clip(places, 0, size - 1), axis)
    return np.where(inside.reshape(*inside.shape, *(1,) * (x.ndim - axis - 1)), taken, x.dtype.type(0))


@frozen
class _Placement:
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    full: tuple[int, ...]
    begin: tuple[int, ...]
    out: tuple[int, ...]


def _numbers(values: Sequence[int], rank: int, name: str, below: Sequence[int]) -> tuple[int, ...]:
    if not values:
        return (0,) * rank
    if len(values) != rank or any(not 0 <= v < limit for v, limit in zip(values, below, strict=True)):
        raise refuse(
            f"{name} does not fit",
            name,
            f"{rank} numbers from 0 to {shape_text(tuple(b - 1 for b in below))}",
            shape_text(tuple(values)),
            code="QR216",
        )
    return tuple(values)


def _placed(
    x: Array,
    w: Array,
    bias: Array | None,
    geometry: ConvGeometry,
    output_padding: Sequence[int],
    output_shape: Sequence[int],
) -> _Placement:
    """Where in the result products are added; refuses what the page forbids."""
    check_operands(x, w, geometry.group, geometry.kernel_shape, ("X", "W"), transposed=True)
    check_bias(bias, w.shape[1] * geometry.group)
    size, auto_pad = x.shape[2:], geometry.auto_pad
    rank, given = len(size), geometry.pads if not output_shape else ()
    win = window(size, w.shape[2:], geometry.strides, geometry.dilations, given, auto_pad, empty_ok=True)
    most = [max(s, d) for s, d in zip(win.strides, win.dilations, strict=True)]
    extra = _numbers(output_padding, rank, "output_padding", most)
    shape = _numbers(output_shape, rank, "output_shape", [INT32_MAX] * rank)
    full = tuple(s * (n - 1) + e if n else 0 for s, n, e in zip(win.strides, size, win.extent, strict=True))
    if not output_shape and auto_pad in ("NOTSET", "VALID"):
        out = [f + x - b - e for f, x, b, e in zip(full, extra, win.begin, win.end, strict=True)]
        return _Placement(win.strides, win.dilations, full, win.begin, tuple(max(o, 0) for o in out))
    if not output_shape:
        shape = tuple(n * s for n, s in zip(size, win.strides, strict=True))
    total = [max(f + x - o, 0) for f, x, o in zip(full, extra, shape, strict=True)]
    begin = tuple(t // 2 if auto_pad == "SAME_UPPER" else t - t // 2 for t in total)
    return _Placement(win.strides, win.dilations, full, begin, shape)
