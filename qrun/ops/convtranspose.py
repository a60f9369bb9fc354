"""ConvTranspose."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir.types import shape_text
from qrun.ops._conv import ConvGeometry, check_bias, check_operands
from qrun.ops._float import narrow
from qrun.ops._op import Array, Context, Shape, op, refuse
from qrun.ops._rounding import odd, two_sum
from qrun.ops._sums import UNIT, decided, exact_products, steps_of
from qrun.ops._window import INT32_MAX, window
from qrun.ops.lowering.kernel import LoweringContext, NativeKernel
from qrun.ops.lowering.products import float_conv_transpose_kernel

COLUMN_ELEMENTS = 1 << 20


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
    Each element is its real value rounded once to X's type; float64 is added in float64.
    Raises OperatorError for shapes and geometry that the page forbids.
    """
    place = _placed(X, W, B, geometry, output_padding, output_shape)
    size, group, m = X.shape[2:], geometry.group, W.shape[1]
    ctx.claim((X.shape[0], group, m, *place.out), X.itemsize)
    y = np.empty((X.shape[0], group, m, *place.out), X.dtype)
    if y.size:
        wide = [max(f, b + o) for f, b, o in zip(place.full, place.begin, place.out, strict=True)]
        ctx.claim((group, m, *wide), 16, "transposed convolution")
        weights = np.moveaxis(W.reshape(group, -1 if W.size else 0, *W.shape[1:]), 1, -1).astype(np.float64)
        bias = np.zeros(group * m) if B is None else B.astype(np.float64)
        addend = np.broadcast_to(bias.reshape(group, m, *(1,) * len(size)), y.shape[1:])
        with np.errstate(all="ignore"):
            for n in range(X.shape[0]):
                _rounded(X[n].reshape(group, -1 if X.size else 0, *size), weights, addend, place, y[n], ctx)
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


def _rounded(x: Array, w: Array, addend: Array, place: _Placement, y: Array, ctx: Context) -> None:
    """Fill y [group,M,out...]: the sums of products of x [group,C,size...] and w [group,M,kernel...,C], plus addend."""
    wide = [max(f, b + o) for f, b, o in zip(place.full, place.begin, place.out, strict=True)]
    crop: tuple[Any, ...] = (..., *(slice(b, b + o) for b, o in zip(place.begin, place.out, strict=True)))
    some = bool(x.size and w.size)

    def sums(x: Array, w: Array) -> Array:
        full = np.zeros((*y.shape[:2], *wide))
        if some:
            _scatter(x, w, place, full, ctx)
        return np.asarray(full[crop])

    plain = sums(x, w)
    if y.dtype == np.float64:
        y[...] = plain + addend
        return
    sizes = sums(np.abs(x), np.abs(w))
    reach = sizes * ((math.prod(w.shape[2:]) + 8) * 2 * UNIT) + np.abs(addend) * (8 * UNIT)
    doubtful = decided(plain + addend, reach, y)
    if np.count_nonzero(doubtful) > y.size >> 8:
        step = steps_of(x.ravel(), 0) * steps_of(w.ravel(), 0)
        whole = doubtful & (sizes * 2 <= step * 2.0**53)
        y[whole] = narrow(odd(two_sum(plain[whole], addend[whole])) + 0.0, y.dtype)
        doubtful &= ~whole
    for index in np.argwhere(doubtful):
        left, right = _factors(x, w, place, index)
        y[tuple(index)] = exact_products(left, right, y.dtype, 1.0, addend[tuple(index)][None])[0]


def _factors(x: Array, w: Array, place: _Placement, index: Array) -> tuple[Array, Array]:
    """What is multiplied for the element of y at this index: two rows [1, count]."""
    group, channel, *at = (int(n) for n in index)
    meets = []
    for axis, o in enumerate(at):
        taps = np.arange(w.shape[2 + axis])
        steps = o + place.begin[axis] - taps * place.dilations[axis]
        found = (steps % place.strides[axis] == 0) & (steps >= 0) & (steps // place.strides[axis] < x.shape[2 + axis])
        meets.append((taps[found], steps[found] // place.strides[axis]))
    left = x[group][np.ix_(range(x.shape[1]), *(place for _, place in meets))]
    right = w[group, channel][np.ix_(*(taps for taps, _ in meets), range(w.shape[-1]))]
    return np.moveaxis(left, 0, -1).reshape(1, -1), right.reshape(1, -1)


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


def _scatter(x: Array, w: Array, place: _Placement, full: Array, ctx: Context) -> None:
    """Add every product of x [group,C,size...] and w [group,M,kernel...,C] to full [group,M,...].

    An input at i and a tap k meet at i*stride + k*dilation. The loop runs over the fewer of the two.
    """
    group, m, *kernel, c = w.shape
    matrix = np.asarray(w, order="C").reshape(group, -1, c)
    rest = math.prod(x.shape[3:])
    rows = max(1, min(x.shape[2], COLUMN_ELEMENTS // max(group * matrix.shape[1] * rest, 1)))
    ctx.claim((group * matrix.shape[1], rows, rest), 8, "convolution columns")
    for first in range(0, x.shape[2], rows):
        block = x[:, :, first : first + rows]
        size = block.shape[2:]
        products = np.matmul(matrix, block.astype(np.float64, order="C").reshape(group, c, -1))
        columns = products.reshape(group, m, *kernel, *size)
        target = full[:, :, first * place.strides[0] :]
        steps, taps, strides, dilations = size, tuple(kernel), place.strides, place.dilations
        if math.prod(steps) < math.prod(taps):
            columns = columns.transpose(0, 1, *range(2 + len(taps), columns.ndim), *range(2, 2 + len(taps)))
            steps, taps, strides, dilations = taps, steps, dilations, strides
        for tap in np.ndindex(*taps):
            at = (
                slice(t * d, t * d + (n - 1) * s + 1, s)
                for t, d, n, s in zip(tap, dilations, steps, strides, strict=True)
            )
            target[(slice(None), slice(None), *at)] += columns[(slice(None), slice(None), *tap)]
