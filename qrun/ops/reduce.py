"""ReduceMean, ReduceSum and ArgMax."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from qrun.ir import Array
from qrun.ops._float import axes_in, axis_in, is_integer, narrow
from qrun.ops._op import op, refuse


@op("ReduceMean", since=1)
def reduce_mean_1(data: Array, *, axes: tuple[int, ...] = (), keepdims: int = 1) -> Array:
    """ReduceMean-18 with axes as an attribute; all axes if it is omitted. Source: ONNX operators, ReduceMean-13."""
    return _mean(data, _chosen(data, axes, 0), bool(keepdims))


@op("ReduceMean", since=18)
def reduce_mean(data: Array, axes: Array | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Array:
    """The mean over `axes`, an int64 vector; omitted or empty, over all axes, or none with noop_with_empty_axes.

    Floating point: in float64 and rounded once; float64 stays float64; NaN over no elements.
    Integers: the exact mean truncated toward zero; 0 over no elements.
    Raises OperatorError for axes outside [-r, r-1] or named twice.
    Source: ONNX operators, ReduceMean-18.
    """
    return _mean(data, _chosen(data, _vector(axes), noop_with_empty_axes), bool(keepdims))


@op("ReduceSum", since=1)
def reduce_sum_1(data: Array, *, axes: tuple[int, ...] = (), keepdims: int = 1) -> Array:
    """ReduceSum-13 with axes as an attribute; all axes if it is omitted. Source: ONNX operators, ReduceSum-11."""
    return _sum(data, _chosen(data, axes, 0), bool(keepdims))


@op("ReduceSum", since=13)
def reduce_sum(data: Array, axes: Array | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Array:
    """The sum over `axes`, an int64 vector; omitted or empty, over all axes, or none with noop_with_empty_axes.

    Floating point: in float64 and rounded once; float64 stays float64. Integers wrap. 0 over no elements.
    Raises OperatorError for axes outside [-r, r-1] or named twice.
    Source: ONNX operators, ReduceSum-13.
    """
    return _sum(data, _chosen(data, _vector(axes), noop_with_empty_axes), bool(keepdims))


@op("ArgMax", since=1)
def arg_max_1(data: Array, *, axis: int = 0, keepdims: int = 1) -> Array:
    """ArgMax-12 with the first index. Source: ONNX operators, ArgMax-1 and ArgMax-11."""
    return _arg_max(data, axis, keepdims, 0)


@op("ArgMax", since=12)
def arg_max(data: Array, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Array:
    """int64 index of the largest element along an axis: the first of equals, or the last with select_last_index.

    NaN counts as the largest. Exact. Raises OperatorError for an axis that does not exist or has no elements.
    Source: ONNX operators, ArgMax-13.
    """
    return _arg_max(data, axis, keepdims, select_last_index)


def _vector(axes: Array | None) -> tuple[int, ...]:
    if axes is None:
        return ()
    if axes.ndim > 1:
        raise refuse("axes is not a vector", "axes", "rank 1", axes, code="QR208", name="shape-mismatch")
    return tuple(int(a) for a in axes.reshape(-1))


def _chosen(data: Array, axes: Sequence[int], noop: int) -> tuple[int, ...]:
    if axes:
        return axes_in(axes, data.ndim)
    return () if noop else tuple(range(data.ndim))


def _sum(data: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    with np.errstate(all="ignore"):
        if is_integer(data.dtype):
            return np.asarray(np.sum(data, axis=axes, dtype=data.dtype, keepdims=keepdims))
        return narrow(np.sum(data, axis=axes, dtype=np.float64, keepdims=keepdims), data.dtype)


def _mean(data: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    count = math.prod(data.shape[a] for a in axes)
    with np.errstate(all="ignore"):
        if not is_integer(data.dtype):
            total = np.sum(data, axis=axes, dtype=np.float64, keepdims=keepdims)
            return narrow(total / np.float64(count), data.dtype)
        if not count:
            return _sum(data, axes, keepdims)
        # sum(data) = count * whole + rest, and neither can overflow
        wide = data.dtype.type if data.dtype.itemsize == 8 else np.int64
        divisor = wide(count)
        high, low = np.divmod(data.astype(wide), divisor)
        rest = np.sum(low, axis=axes, keepdims=keepdims)
        mean = np.asarray(np.sum(high, axis=axes, keepdims=keepdims) + rest // divisor)
        return np.asarray(mean + ((mean < 0) & (rest % divisor != 0))).astype(data.dtype)


def _arg_max(data: Array, axis: int, keepdims: int, last: int) -> Array:
    place = axis_in(axis, data.ndim)
    length = data.shape[place]
    if not length:
        raise refuse("the axis has no elements", "data", f"one or more along axis {place}", data)
    with np.errstate(all="ignore"):
        found = np.argmax(np.flip(data, place) if last else data, axis=place, keepdims=bool(keepdims))
    return np.asarray(length - 1 - found if last else found, np.int64)
