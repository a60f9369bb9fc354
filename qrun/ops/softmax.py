"""Softmax and LogSoftmax."""

from __future__ import annotations

import math

import numpy as np

from qrun.ops._float import axis_in, narrow
from qrun.ops._native import LoweringContext, NativeKernel, declined
from qrun.ops._native_float32 import shares_kernel
from qrun.ops._op import Array, op


@op("Softmax", since=1)
def softmax_1(input: Array, *, axis: int = 1) -> Array:
    """exp(x) / sum(exp(x)) over all axes from `axis` on: the input is taken as a matrix [axes before, axes from axis].

    In float64 and rounded once to the type; float64 stays float64.
    Raises OperatorError for an axis outside [-r, r-1].
    Source: ONNX operators, Softmax-1 and Softmax-11.
    """
    return _softmax(_matrix(input, axis), 1).reshape(input.shape)


@softmax_1.native
def _lower_softmax_1(site: LoweringContext) -> NativeKernel:
    x = site.inputs[0]
    return shares_kernel(site, axis_in(site.attributes["axis"], x.ndim), _rows)


@op("Softmax", since=13)
def softmax(input: Array, *, axis: int = -1) -> Array:
    """exp(x) / sum(exp(x)) along one axis.

    In float64 and rounded once to the type; float64 stays float64. A row with +inf or NaN, or of -inf alone, gives NaN.
    Raises OperatorError for an axis outside [-r, r-1].
    Source: ONNX operators, Softmax-13.
    """
    return _softmax(input, axis_in(axis, input.ndim))


@softmax.native
def _lower_softmax(site: LoweringContext) -> NativeKernel:
    x = site.inputs[0]
    axis = axis_in(site.attributes["axis"], x.ndim)
    if axis != x.ndim - 1:
        raise declined("not along the last axis")
    return shares_kernel(site, axis, _rows)


def _rows(x: Array) -> Array:
    return _softmax(x, 1)


def _softmax(x: Array, axis: int) -> Array:
    if not x.size:
        return x
    with np.errstate(all="ignore"):
        e = np.subtract(x, x.max(axis=axis, keepdims=True), dtype=np.float64, order="C")
        np.exp(e, out=e)
        e /= e.sum(axis=axis, keepdims=True)
    return narrow(e, x.dtype)


@op("LogSoftmax", since=1)
def log_softmax_1(input: Array, *, axis: int = 1) -> Array:
    """x - log(sum(exp(x))) over all axes from `axis` on, as in Softmax-1. Source: ONNX operators, LogSoftmax-11."""
    return _log_softmax(_matrix(input, axis), 1).reshape(input.shape)


@op("LogSoftmax", since=13)
def log_softmax(input: Array, *, axis: int = -1) -> Array:
    """x - log(sum(exp(x))) along one axis.

    In float64 and rounded once to the type; float64 stays float64. A row with +inf or NaN, or of -inf alone, gives NaN.
    Raises OperatorError for an axis outside [-r, r-1].
    Source: ONNX operators, LogSoftmax-13.
    """
    return _log_softmax(input, axis_in(axis, input.ndim))


def _log_softmax(x: Array, axis: int) -> Array:
    if not x.size:
        return x
    with np.errstate(all="ignore"):
        made = np.subtract(x, x.max(axis=axis, keepdims=True), dtype=np.float64)
        made -= np.log(np.exp(made).sum(axis=axis, keepdims=True))
    return narrow(made, x.dtype)


def _matrix(x: Array, axis: int) -> Array:
    first = axis_in(axis, x.ndim)
    return x.reshape(math.prod(x.shape[:first]), math.prod(x.shape[first:]))
