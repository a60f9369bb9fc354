"""ConvTranspose."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir import Array
from qrun.ir.types import shape_text
from qrun.ops._context import Context, refuse
from qrun.ops._float import narrow
from qrun.ops._op import Shape, op
from qrun.ops._window import INT32_MAX, check_rank, window

COLUMN_ELEMENTS = 1 << 20


def _macs(inputs: Sequence[Shape], outputs: Sequence[Shape], attributes: Mapping[str, Any]) -> int:
    return math.prod(inputs[0]) * math.prod(inputs[1][1:])


@op("ConvTranspose", since=1, cost=_macs)
def conv_transpose(
    X: Array,
    W: Array,
    B: Array | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: tuple[int, ...] = (),
    group: int = 1,
    kernel_shape: tuple[int, ...] = (),
    output_padding: tuple[int, ...] = (),
    output_shape: tuple[int, ...] = (),
    pads: tuple[int, ...] = (),
    strides: tuple[int, ...] = (),
    ctx: Context | None = None,
) -> Array:
    """Transposed convolution: X [N,C,spatial...], W [C,M/group,kernel...], B [M], floating point of one type.

        full[n,m,i*stride + k*dilation] += sum over c of X[n,c,i] * W[c,m,k]
        Y = full without its pads, plus B[m]; places that no product reaches are 0 plus B[m]

    Along each axis Y has stride * (size - 1) + output_padding + extent - pads elements, or `output_shape`, or
    stride * size with SAME_UPPER and SAME_LOWER. The last two set the pads: the odd element goes to the end for
    SAME_UPPER, else to the begin (ConvTranspose-22; the equations of versions 1 and 11 say the reverse and contradict
    their own auto_pad), and they are never negative.
    Products and sums are in float64 and rounded once to X's type; float64 stays float64.
    Raises OperatorError for shapes and geometry that the page forbids.
    Source: ONNX operators, ConvTranspose-22.
    """
    ctx = ctx or Context()
    _check(X, W, B, group, kernel_shape)
    size = X.shape[2:]
    place = _placement(size, W.shape[2:], strides, dilations, pads, auto_pad, output_padding, output_shape)
    m = W.shape[1]
    ctx.claim((X.shape[0], group, m, *place.out), X.itemsize)
    y = np.empty((X.shape[0], group, m, *place.out), X.dtype)
    if y.size:
        wide = [max(f, b + o) for f, b, o in zip(place.full, place.begin, place.out, strict=True)]
        ctx.claim((group, m, *wide), 8, "transposed convolution")
        weights = np.moveaxis(W.reshape(group, -1 if W.size else 0, *W.shape[1:]), 1, -1).astype(np.float64)
        crop: tuple[Any, ...] = (..., *(slice(b, b + o) for b, o in zip(place.begin, place.out, strict=True)))
        bias = 0 if B is None else B.astype(np.float64).reshape(group, m, *(1,) * len(size))
        with np.errstate(all="ignore"):
            for n in range(X.shape[0]):
                full = np.zeros((group, m, *wide))
                if X.size and W.size:
                    _scatter(X[n].reshape(group, -1, *size), weights, place, full, ctx)
                y[n] = narrow(full[crop] + bias, X.dtype)
    return y.reshape(X.shape[0], group * m, *place.out)


@frozen
class _Placement:
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    full: tuple[int, ...]
    begin: tuple[int, ...]
    out: tuple[int, ...]


def _check(x: Array, w: Array, bias: Array | None, group: int, kernel_shape: Sequence[int]) -> None:
    if x.ndim < 3 or w.ndim != x.ndim:
        raise refuse(
            "X and W do not fit together",
            "W",
            f"X [N,C,spatial...] and W [C,M/group,kernel...] of one rank of 3 or more, W of rank {max(x.ndim, 3)}",
            f"X {shape_text(x.shape)}, W {shape_text(w.shape)}",
        )
    check_rank(x.ndim - 2, "X")
    if group < 1 or w.shape[0] != x.shape[1] or w.shape[0] % group:
        raise refuse(
            "channels do not fit the groups",
            "W",
            f"W [C,M/group,...] with C = {x.shape[1]}, a multiple of group = {group}",
            f"W {shape_text(w.shape)}",
            fix="check group and the layout of X: channels are axis 1",
            code="QR207",
        )
    if kernel_shape and tuple(kernel_shape) != w.shape[2:]:
        raise refuse(
            "kernel_shape differs from W",
            "kernel_shape",
            shape_text(w.shape[2:]),
            shape_text(tuple(kernel_shape)),
            fix="remove kernel_shape; W gives it",
            code="QR214",
        )
    if bias is not None and bias.shape != (w.shape[1] * group,):
        raise refuse(
            "the bias has the wrong shape", "B", f"[{w.shape[1] * group}] (one per output channel)", bias, code="QR305"
        )


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


def _placement(
    size: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
    auto_pad: str,
    output_padding: Sequence[int],
    output_shape: Sequence[int],
) -> _Placement:
    rank = len(size)
    given = pads if not output_shape else ()
    win = window(size, kernel, strides, dilations, given, auto_pad, empty_ok=True)
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
    matrix = w.reshape(group, -1, c)
    rest = math.prod(x.shape[3:])
    rows = max(1, min(x.shape[2], COLUMN_ELEMENTS // max(group * matrix.shape[1] * rest, 1)))
    ctx.claim((group * matrix.shape[1], rows, rest), 8, "convolution columns")
    for first in range(0, x.shape[2], rows):
        block = x[:, :, first : first + rows]
        size = block.shape[2:]
        products = np.matmul(matrix, block.astype(np.float64).reshape(group, c, -1))
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
