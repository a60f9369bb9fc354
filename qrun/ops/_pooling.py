"""Sums and means over windows of quantized tensors."""

from __future__ import annotations

import numpy as np

from qrun.ir import Array
from qrun.ir.types import shape_text
from qrun.ops._context import refuse
from qrun.ops._rounding import decide, two_product
from qrun.ops._window import SlidingWindow

Spans = list[tuple[Array, Array]]
"""For each spatial axis: first and one-past-last input position of each window, inside the input."""


def channel_layout(x: Array, channels_last: bool, op_type: str) -> tuple[int, ...]:
    """The spatial axes of x [N,C,spatial...] or [N,spatial...,C]; refuses rank < 3."""
    if x.ndim < 3:
        raise refuse(
            f"X has rank {x.ndim}",
            "X",
            "[N,spatial...,C] of rank 3 or more" if channels_last else "[N,C,spatial...] of rank 3 or more",
            shape_text(x.shape),
            why=f"{op_type} pools over the spatial axes.",
            code="QR208",
        )
    return tuple(range(1, x.ndim - 1)) if channels_last else tuple(range(2, x.ndim))


def spans(size: tuple[int, ...], win: SlidingWindow) -> Spans:
    """The input positions under each window."""
    found = []
    for n, k, s, b, o in zip(size, win.kernel, win.strides, win.begin, win.out, strict=True):
        start = np.arange(o, dtype=np.int64) * s - b
        found.append((np.clip(start, 0, n), np.clip(start + k, 0, n)))
    return found


def window_sums(x: Array, axes: tuple[int, ...], where: Spans) -> Array:
    """Sums of codes over windows, int32 or int64: differences of running sums, one axis after another."""
    most = 1
    for start, end in where:
        most *= int((end - start).max(initial=0))
    wide = np.int32 if most < 1 << 23 else np.int64
    total = x
    for axis, (start, end) in zip(axes, where, strict=True):
        shape = list(total.shape)
        shape[axis] += 1
        running = np.zeros(shape, wide)
        after = (slice(None),) * axis + (slice(1, None),)
        np.cumsum(total, axis=axis, dtype=wide, out=running[after])
        total = np.take(running, end, axis=axis)
        total -= np.take(running, start, axis=axis)
    return total


def counts(where: Spans, axes: tuple[int, ...], rank: int) -> Array:
    """How many input positions lie under each window, float64, shaped to broadcast over the output."""
    result = np.ones((1,) * rank)
    for axis, (start, end) in zip(axes, where, strict=True):
        result = result * (end - start).astype(np.float64).reshape([-1 if a == axis else 1 for a in range(rank)])
    return result


def pooled(acc: Array, x_scale: Array, y_scale: Array, count: Array) -> Array:
    """RNE(acc * x_scale / (y_scale * count)) for exact integers acc; float64."""
    with np.errstate(all="ignore"):
        den = y_scale * count
        full = np.broadcast_to(den, acc.shape)
        return decide(acc * x_scale / den, lambda at: (two_product(acc[at].astype(np.float64), x_scale), full[at]))
