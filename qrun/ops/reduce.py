"""Reductions: ReduceSum, Mean, Max, Min, Prod, L1, L2, SumSquare, LogSum, LogSumExp; ArgMax and ArgMin."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from qrun.ops._cast import convert
from qrun.ops._float import axes_in, axis_in, is_integer, narrow, widen
from qrun.ops._op import Array, Context, Lowering, misfit, op, refuse
from qrun.ops._polynomials import exp, log
from qrun.ops._reduce import extreme, left, product_over, sum_over
from qrun.ops.lowering.float32 import reduction_kernel
from qrun.ops.lowering.kernel import LoweringContext, NativeKernel

Reduction = Callable[[Array, tuple[int, ...], bool], Array]


def reduction(op_type: str, axes_input: int = 18, native: str = "") -> Callable[[Reduction], Reduction]:
    """Declares the operator that (data, axes counted from the front, keepdims) computes, in both its forms.

    native: the kind of its kernel, in native/kernels/reduce.py, if it has one.

    axes is an attribute, and all axes if it is omitted. Since version `axes_input` it is an int64 vector; omitted or
    empty, it means all axes, or none with noop_with_empty_axes.
    Both raise OperatorError for axes outside [-r, r-1] or named twice.
    """

    def declare(reduce: Reduction) -> Reduction:
        def by_attribute(data: Array, *, axes: tuple[int, ...] = (), keepdims: int = 1, ctx: Context) -> Array:
            return claimed(data, _chosen(data, axes, 0), keepdims, ctx)

        def by_input(
            data: Array,
            axes: Array | None = None,
            *,
            keepdims: int = 1,
            noop_with_empty_axes: int = 0,
            ctx: Context,
        ) -> Array:
            return claimed(data, _chosen(data, _vector(axes), noop_with_empty_axes), keepdims, ctx)

        def claimed(data: Array, axes: tuple[int, ...], keepdims: int, ctx: Context) -> Array:
            ctx.claim(left(data, axes, keepdims), max(8, data.itemsize))
            return reduce(data, axes, bool(keepdims))

        by_attribute.__doc__ = by_input.__doc__ = reduce.__doc__
        for definition in (op(op_type, since=1)(by_attribute), op(op_type, since=axes_input)(by_input)):
            if native:
                definition.native(_lowering(native))
        return reduce

    return declare


def _lowering(kind: str) -> Lowering:
    def lower(site: LoweringContext) -> NativeKernel:
        data, axes = site.inputs[0], site.inputs[1] if len(site.inputs) > 1 else None
        given = site.attributes["axes"] if "axes" in site.attributes else _vector(axes)
        chosen = _chosen(data, given, site.attributes.get("noop_with_empty_axes", 0))
        site.require_constants()
        shape = left(data, chosen, site.attributes["keepdims"])
        return reduction_kernel(site, kind, chosen, shape)

    return lower


@reduction("ReduceSum", axes_input=13, native="sum")
def reduce_sum(data: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """The sum over `axes`.

    Floating point: in float64 and rounded once; float64 stays float64. Integers wrap. 0 over no elements.
    """
    return _added(data, axes, keepdims)


@reduction("ReduceMean", native="mean")
def reduce_mean(data: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """The mean over `axes`.

    Floating point: in float64 and rounded once; float64 stays float64; NaN over no elements.
    Integers: the exact mean truncated toward zero; 0 over no elements.
    """
    count = math.prod(data.shape[a] for a in axes)
    with np.errstate(all="ignore"):
        if not is_integer(data.dtype):
            return narrow(sum_over(data, axes, keepdims) / np.float64(count), data.dtype)
        if not count:
            return _wrapped(np.add, data, axes, keepdims)
        # sum(data) = count * whole + rest, and neither can overflow
        wide = data.dtype.type if data.dtype.itemsize == 8 else np.int64
        divisor = wide(count)
        high, low = np.divmod(data.astype(wide), divisor)
        rest = np.sum(low, axis=axes, keepdims=keepdims)
        mean = np.asarray(np.sum(high, axis=axes, keepdims=keepdims) + rest // divisor)
        return np.asarray(mean + ((mean < 0) & (rest % divisor != 0))).astype(data.dtype)


@reduction("ReduceMax", native="greatest")
def reduce_max(data: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """The largest element over `axes`, exact; +0 before -0; NaN if there is one;
    -inf or the type's smallest value over no elements.

    8-bit integers since version 12, bool since version 20.
    """
    return extreme(np.maximum, data, axes, keepdims, -np.inf)


@reduction("ReduceMin", native="least")
def reduce_min(data: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """The smallest element over `axes`, exact; -0 before +0; NaN if there is one;
    inf or the type's largest value over no elements.

    8-bit integers since version 12, bool since version 20.
    """
    return extreme(np.minimum, data, axes, keepdims, np.inf)


@reduction("ReduceProd", native="product")
def reduce_prod(data: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """The product over `axes`.

    Floating point: in float64 and rounded once; float64 stays float64. Integers wrap. 1 over no elements.
    """
    if is_integer(data.dtype):
        return _wrapped(np.multiply, data, axes, keepdims)
    with np.errstate(all="ignore"):
        return narrow(product_over(data, axes, keepdims), data.dtype)


@reduction("ReduceL1", native="sum_abs")
def reduce_l1(data: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """The sum of absolute values over `axes`, as ReduceSum adds."""
    with np.errstate(all="ignore"):
        return _added(np.abs(data), axes, keepdims)


@reduction("ReduceL2", native="norm")
def reduce_l2(data: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """The square root of the sum of squares over `axes`, in float64 and rounded once; integers toward zero."""
    return _rounded(lambda x: np.sqrt(sum_over(np.square(x), axes, keepdims)), data)


@reduction("ReduceSumSquare", native="sum_square")
def reduce_sum_square(data: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """The sum of squares over `axes`, as ReduceSum adds."""
    if is_integer(data.dtype):
        return _added(np.square(data), axes, keepdims)
    return _rounded(lambda x: sum_over(np.square(x), axes, keepdims), data)


@reduction("ReduceLogSum", native="log_sum")
def reduce_log_sum(data: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """The logarithm of the sum over `axes`, in float64 and rounded once; -inf over no elements.

    Integers, until version 18: toward zero.
    """
    return _rounded(lambda x: log(sum_over(x, axes, keepdims)), data)


@reduction("ReduceLogSumExp", native="log_sum_exp")
def reduce_log_sum_exp(data: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """log(sum(exp(data))) over `axes` without overflow, in float64 and rounded once; -inf over no elements.

    Integers, until version 18: toward zero.
    """

    def wide(x: Array) -> Array:
        top = np.max(x, axis=axes, keepdims=True, initial=-np.inf)
        top = np.where(np.isfinite(top), top, 0.0)
        apart = np.exp(x - top) if data.dtype == np.float64 else exp((x - top).astype(np.float32))
        added = sum_over(apart, axes, keepdims)
        return np.asarray(log(added) + top.reshape(added.shape))

    return _rounded(wide, data)


@op("ArgMax", since=1)
def arg_max(data: Array, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Array:
    """int64 index of the largest element along an axis: the first of equals, or the last with select_last_index.

    NaN counts as the largest. Exact. Raises OperatorError for an axis that does not exist or has no elements.
    """
    return _place(np.argmax, data, axis, keepdims, select_last_index)


@op("ArgMin", since=1)
def arg_min(data: Array, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Array:
    """int64 index of the smallest element along an axis: the first of equals, or the last with select_last_index.

    NaN counts as the smallest. Exact. Raises OperatorError for an axis that does not exist or has no elements.
    """
    return _place(np.argmin, data, axis, keepdims, select_last_index)


def _vector(axes: Array | None) -> tuple[int, ...]:
    if axes is None:
        return ()
    if axes.ndim > 1:
        raise misfit("axes is not a vector", "axes", "rank 1", axes)
    return tuple(int(a) for a in axes.reshape(-1))


def _chosen(data: Array, axes: Sequence[int], noop: int) -> tuple[int, ...]:
    if axes:
        return axes_in(axes, data.ndim)
    return () if noop else tuple(range(data.ndim))


def _wrapped(function: np.ufunc, data: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """A reduction of integers in their own type."""
    with np.errstate(all="ignore"):
        return np.asarray(function.reduce(data, axis=axes, dtype=data.dtype, keepdims=keepdims))


def _added(data: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    if is_integer(data.dtype):
        return _wrapped(np.add, data, axes, keepdims)
    with np.errstate(all="ignore"):
        return narrow(sum_over(data, axes, keepdims), data.dtype)


def _rounded(function: Callable[[Array], Any], data: Array) -> Array:
    """The function in float64, rounded once; to integers toward zero."""
    with np.errstate(all="ignore"):
        made = np.asarray(function(widen(data)))
        return convert(made, data.dtype, True, "up", Context()) if is_integer(data.dtype) else narrow(made, data.dtype)


def _lower_place(site: LoweringContext, what: str) -> NativeKernel:
    from qrun.ops.lowering.top import arg_kernel

    return arg_kernel(site, what, _searched(site.inputs[0], site.attributes["axis"]))


arg_max.native(partial(_lower_place, what="max"))
arg_min.native(partial(_lower_place, what="min"))


def _searched(data: Array, axis: int) -> int:
    """The axis, counted from the front; refuses one without elements."""
    place = axis_in(axis, data.ndim)
    if not data.shape[place]:
        raise refuse("the axis has no elements", "data", f"one or more along axis {place}", data)
    return place


def _place(find: Callable[..., Any], data: Array, axis: int, keepdims: int, last: int) -> Array:
    place = _searched(data, axis)
    length = data.shape[place]
    with np.errstate(all="ignore"):
        found = find(np.flip(data, place) if last else data, axis=place, keepdims=bool(keepdims))
    return np.asarray(length - 1 - found if last else found, np.int64)
