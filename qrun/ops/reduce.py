"""Operators along axes: ReduceSum, Mean, Max, Min, Prod, L1, L2, SumSquare, LogSum, LogSumExp; ArgMax and ArgMin;
Softmax and LogSoftmax; CumSum and CumProd."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from qrun.ops._cast import convert
from qrun.ops._complete import ALWAYS
from qrun.ops._float import axes_in, axis_in, is_integer, narrow, round_to_type, widen
from qrun.ops._functions import exp, log
from qrun.ops._op import Array, Context, misfit, op, refuse
from qrun.ops._reduce import extreme, product_over, reduced_shape, shares, sum_over
from qrun.ops._shape import scalar
from qrun.ops.lowering.float32 import reduction_kernel, shares_kernel
from qrun.ops.lowering.kernel import FLOAT, Lowering, LoweringContext, NativeKernel, between_turns, kernel_of, operand
from qrun.ops.lowering.pool import arg_kernel

Reduction = Callable[[Array, tuple[int, ...], bool], Array]


def reduction(op_type: str, axes_input: int = 18, native: str = "") -> Callable[[Reduction], Reduction]:
    """Declares both forms of the operator that a function (data, axes counted from the front, keepdims) computes.

    native: the kind of its kernel, in native/kernels/reduce.py, if it has one.

    axes is an attribute, and all axes if it is omitted. Since version `axes_input` it is an int64 vector; omitted or
    empty, it means all axes, or none with noop_with_empty_axes.
    Both raise OperatorError for axes outside [-r, r-1] or named twice.
    """

    def declare(reduce: Reduction) -> Reduction:
        def by_attribute(data: Array, *, axes: tuple[int, ...] = (), keepdims: int = 1, ctx: Context) -> Array:
            return claimed(data, _choose_axes(data, axes, 0), keepdims, ctx)

        def by_input(
            data: Array,
            axes: Array | None = None,
            *,
            keepdims: int = 1,
            noop_with_empty_axes: int = 0,
            ctx: Context,
        ) -> Array:
            return claimed(data, _choose_axes(data, _vector(axes), noop_with_empty_axes), keepdims, ctx)

        def claimed(data: Array, axes: tuple[int, ...], keepdims: int, ctx: Context) -> Array:
            ctx.claim(reduced_shape(data, axes, keepdims), max(8, data.itemsize))
            return reduce(data, axes, bool(keepdims))

        by_attribute.__doc__ = by_input.__doc__ = reduce.__doc__
        for definition in (op(op_type, since=1)(by_attribute), op(op_type, since=axes_input)(by_input)):
            if native:
                definition.native(_lowering_of(native))
        return reduce

    return declare


def _lowering_of(kind: str) -> Lowering:
    """The lowering of a reduction."""

    def lower(site: LoweringContext) -> NativeKernel:
        data, axes = site.inputs[0], site.inputs[1] if len(site.inputs) > 1 else None
        given = site.attributes["axes"] if "axes" in site.attributes else _vector(axes)
        chosen = _choose_axes(data, given, site.attributes.get("noop_with_empty_axes", 0))
        site.require_constants()
        shape = reduced_shape(data, chosen, site.attributes["keepdims"])
        return reduction_kernel(site, kind, chosen, shape)

    return lower


@reduction("ReduceSum", axes_input=13, native="sum")
def reduce_sum(data: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """Sum over `axes`.

    Floating point: in float64 and rounded once; float64 stays float64. Integers wrap. 0 over no elements.
    """
    return _sum(data, axes, keepdims)


@reduction("ReduceMean", native="mean")
def reduce_mean(data: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """Average over `axes`.

    Floating point: in float64 and rounded once; float64 stays float64; NaN over no elements.
    Integers: the exact mean truncated toward zero; 0 over no elements.
    """
    count = math.prod(data.shape[a] for a in axes)
    with np.errstate(all="ignore"):
        if not is_integer(data.dtype):
            return narrow(sum_over(data, axes, keepdims) / np.float64(count), data.dtype)
        if not count:
            return _wrap(np.add, data, axes, keepdims)
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
    """Multiply over `axes`.

    Floating point: in float64 and rounded once; float64 stays float64. Integers wrap. 1 over no elements.
    """
    if is_integer(data.dtype):
        return _wrap(np.multiply, data, axes, keepdims)
    with np.errstate(all="ignore"):
        return narrow(product_over(data, axes, keepdims), data.dtype)


@reduction("ReduceL1", native="sum_abs")
def reduce_l1(data: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """The sum of absolute values over `axes`, as ReduceSum adds."""
    with np.errstate(all="ignore"):
        return _sum(np.abs(data), axes, keepdims)


@reduction("ReduceL2", native="norm")
def reduce_l2(data: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """The square root of the sum of squares over `axes`, in float64 and rounded once; integers toward zero."""
    return _round(lambda x: np.sqrt(sum_over(np.square(x), axes, keepdims)), data)


@reduction("ReduceSumSquare", native="sum_square")
def reduce_sum_square(data: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """The sum of squares over `axes`, as ReduceSum adds."""
    if is_integer(data.dtype):
        return _sum(np.square(data), axes, keepdims)
    return _round(lambda x: sum_over(np.square(x), axes, keepdims), data)


@reduction("ReduceLogSum", native="log_sum")
def reduce_log_sum(data: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """The logarithm of the sum over `axes`, in float64 and rounded once; -inf over no elements.

    Integers, until version 18: toward zero.
    """
    return _round(lambda x: log(sum_over(x, axes, keepdims)), data)


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

    return _round(wide, data)


@op("ArgMax", since=1)
def arg_max(data: Array, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Array:
    """Return the int64 index of the largest element along an axis: the first of equals, or with select_last_index the
    last.

    NaN counts as the largest. Exact. Raises OperatorError for an axis that does not exist or has no elements.
    """
    return _place(np.argmax, data, axis, keepdims, select_last_index)


@op("ArgMin", since=1)
def arg_min(data: Array, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Array:
    """Return the int64 index of the smallest element along an axis: the first of equals, or with select_last_index the
    last.

    NaN counts as the smallest. Exact. Raises OperatorError for an axis that does not exist or has no elements.
    """
    return _place(np.argmin, data, axis, keepdims, select_last_index)


def _vector(axes: Array | None) -> tuple[int, ...]:
    """The axes as integers; none if not given. Raises OperatorError."""
    if axes is None:
        return ()
    if axes.ndim > 1:
        raise misfit("axes is not a vector", "axes", "rank 1", axes)
    return tuple(int(a) for a in axes.reshape(-1))


def _choose_axes(data: Array, axes: Sequence[int], noop: int) -> tuple[int, ...]:
    """The axes to reduce: all if none are given, unless `noop`."""
    if axes:
        return axes_in(axes, data.ndim)
    return () if noop else tuple(range(data.ndim))


def _wrap(function: np.ufunc, data: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """A reduction of integers in their own type."""
    with np.errstate(all="ignore"):
        return np.asarray(function.reduce(data, axis=axes, dtype=data.dtype, keepdims=keepdims))


def _sum(data: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """The sum over axes; integers wrap."""
    if is_integer(data.dtype):
        return _wrap(np.add, data, axes, keepdims)
    with np.errstate(all="ignore"):
        return narrow(sum_over(data, axes, keepdims), data.dtype)


def _round(function: Callable[[Array], Any], data: Array) -> Array:
    """Applies the function in float64 and rounds once; to integers toward zero."""
    with np.errstate(all="ignore"):
        made = np.asarray(function(widen(data)))
        return convert(made, data.dtype, True, "up", Context()) if is_integer(data.dtype) else narrow(made, data.dtype)


def _lower_place(site: LoweringContext, what: str) -> NativeKernel:
    """The native kernel of ArgMax ("greatest") or ArgMin ("least")."""

    return arg_kernel(site, what, _check_axis(site.inputs[0], site.attributes["axis"]))


arg_max.native(partial(_lower_place, what="max"))
arg_min.native(partial(_lower_place, what="min"))


def _check_axis(data: Array, axis: int) -> int:
    """The axis, counted from the front; refuses one without elements."""
    dim = axis_in(axis, data.ndim)
    if not data.shape[dim]:
        raise refuse("the axis has no elements", "data", f"one or more along axis {dim}", data)
    return dim


def _place(find: Callable[..., Any], data: Array, axis: int, keepdims: int, last: int) -> Array:
    """The index of the largest or smallest element along an axis: first, or last if `last`."""
    dim = _check_axis(data, axis)
    length = data.shape[dim]
    with np.errstate(all="ignore"):
        found = find(np.flip(data, dim) if last else data, axis=dim, keepdims=bool(keepdims))
    return np.asarray(length - 1 - found if last else found, np.int64)


def _shares(x: Array, axis: int = 1, logarithms: bool = False) -> Array:
    """Softmax of x along an axis, or its logarithms."""
    if not x.size:
        return x
    rows = np.moveaxis(x, axis, -1)  # makes the order of additions independent of the axis
    matrix = np.ascontiguousarray(rows).reshape(-1, rows.shape[-1])
    made = shares(matrix.astype(x.dtype if x.dtype == np.float64 else FLOAT), logarithms)
    return np.ascontiguousarray(np.moveaxis(round_to_type(made, x.dtype).reshape(rows.shape), -1, axis))


def _of_rest(x: Array, axis: int, logarithms: bool = False) -> Array:
    """`_shares` over all axes from `axis` on."""
    first = axis_in(axis, x.ndim)
    matrix = x.reshape(math.prod(x.shape[:first]), math.prod(x.shape[first:]))
    return _shares(matrix, 1, logarithms).reshape(x.shape)


def _softmax_lowering(rest: bool, logarithms: bool = False) -> Lowering:
    """The lowering of Softmax or LogSoftmax along an axis, or over all axes from it on (`rest`)."""

    def lower(site: LoweringContext) -> NativeKernel:
        x = site.inputs[0]
        axis = axis_in(site.attributes["axis"], x.ndim)
        if rest or axis == x.ndim - 1 or x.shape[axis] == x.size:
            return shares_kernel(site, axis, logarithms)
        perm = [*(index for index in range(x.ndim) if index != axis), axis]
        turned = replace(site, inputs=(x.transpose(perm), *site.inputs[1:]))
        return between_turns(site, shares_kernel(turned, x.ndim - 1, logarithms), perm)

    return lower


@op("Softmax", since=1, native=_softmax_lowering(rest=True))
def softmax_1(input: Array, *, axis: int = 1) -> Array:
    """exp(x) / sum(exp(x)) over all axes from `axis` on: the input is taken as a matrix [axes before, axes from axis].

    In float64 and rounded once to the type; float64 stays float64.
    Raises OperatorError for an axis outside [-r, r-1].
    Source: ONNX operators, Softmax-1 and Softmax-11.
    """
    return _of_rest(input, axis)


@op("Softmax", since=13, native=_softmax_lowering(rest=False))
def softmax(input: Array, *, axis: int = -1) -> Array:
    """exp(x) / sum(exp(x)) along one axis.

    In float64 and rounded once to the type; float64 stays float64. A row with +inf or NaN, or of -inf alone, gives NaN.
    Raises OperatorError for an axis outside [-r, r-1].
    """
    return _shares(input, axis_in(axis, input.ndim))


@op("LogSoftmax", since=1, native=_softmax_lowering(rest=True, logarithms=True))
def log_softmax_1(input: Array, *, axis: int = 1) -> Array:
    """x - log(sum(exp(x))) over all axes from `axis` on, as in Softmax-1. Source: ONNX operators, LogSoftmax-11."""
    return _of_rest(input, axis, logarithms=True)


@op("LogSoftmax", since=13, native=_softmax_lowering(rest=False, logarithms=True))
def log_softmax(input: Array, *, axis: int = -1) -> Array:
    """x - log(sum(exp(x))) along one axis.

    In float64 and rounded once to the type; float64 stays float64. A row with +inf or NaN, or of -inf alone, gives NaN.
    Raises OperatorError for an axis outside [-r, r-1].
    """
    return _shares(input, axis_in(axis, input.ndim), logarithms=True)


@op("CumSum", since=11)
def cum_sum(x: Array, axis: Array, *, exclusive: int = 0, reverse: int = 0) -> Array:
    """y[i] = x[0] + ... + x[i] along `axis`, an integer scalar; exclusive: up to x[i-1]; reverse: from the end.

    Floating point: in float64 and rounded once; float64 stays float64. Integers wrap.
    Raises OperatorError for an axis outside [-r, r-1].
    """
    return _run_along(np.add, x, axis, bool(exclusive), bool(reverse))


@op("CumProd", since=26)
def cum_prod(x: Array, axis: Array, *, exclusive: int = 0, reverse: int = 0) -> Array:
    """y[i] = x[0] * ... * x[i] along `axis`, an integer scalar; exclusive: up to x[i-1]; reverse: from the end.

    Floating point: in float64 and rounded once; float64 stays float64. Integers wrap.
    Raises OperatorError for an axis outside [-r, r-1].
    """
    return _run_along(np.multiply, x, axis, bool(exclusive), bool(reverse))


def _lower_running(site: LoweringContext, what: str) -> NativeKernel:
    """The native kernel of CumSum ("sum") or CumProd ("product")."""
    from qrun.native.kernels.reduce import Accumulated

    x, axis = site.inputs
    dim = axis_in(scalar(axis, "axis"), x.ndim)
    site.require_constant(1)
    exclusive, reverse = (bool(site.attributes[name]) for name in ("exclusive", "reverse"))
    made = Accumulated(site.engine, operand(x), dim, what, exclusive, reverse)
    return kernel_of(site, made, (0,), ALWAYS)


cum_sum.native(partial(_lower_running, what="sum"))
cum_prod.native(partial(_lower_running, what="product"))


def _run_along(function: np.ufunc, x: Array, axis: Array, exclusive: bool, reverse: bool) -> Array:
    """Running sums or products along an axis."""
    dim = axis_in(scalar(axis, "axis"), x.ndim)
    wide: np.dtype[Any] = x.dtype if is_integer(x.dtype) else np.dtype(np.float64)
    source = np.moveaxis(np.flip(x, dim) if reverse else x, dim, 0)
    made = np.empty(source.shape, wide)
    with np.errstate(all="ignore"):
        if exclusive:
            made[:1] = function.identity
            function.accumulate(source[:-1], axis=0, dtype=wide, out=made[1:])
        else:
            function.accumulate(source, axis=0, dtype=wide, out=made)
    result = np.moveaxis(made, 0, dim)
    result = np.flip(result, dim) if reverse else result
    return result if wide == x.dtype else narrow(result, x.dtype)
