"""Softmax and LogSoftmax."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from qrun.ops._float import axis_in, rounded
from qrun.ops._op import Array, op
from qrun.ops._reduce import shares
from qrun.ops.lowering.float32 import shares_kernel
from qrun.ops.lowering.kernel import FLOAT, Lowering, LoweringContext, NativeKernel
from qrun.ops.lowering.turned import between_turns


def _shares(x: Array, axis: int = 1, logarithms: bool = False) -> Array:
    """Softmax of x along an axis, or its logarithms."""
    if not x.size:
        return x
    rows = np.moveaxis(x, axis, -1)  # so that the order of additions does not depend on the axis
    matrix = np.ascontiguousarray(rows).reshape(-1, rows.shape[-1])
    made = rounded(shares(matrix.astype(_single(x.dtype)), logarithms), x.dtype).reshape(rows.shape)
    return np.ascontiguousarray(np.moveaxis(made, -1, axis))


def _single(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type in which shares are made: float32, but for float64."""
    return dtype if dtype == np.float64 else FLOAT


def _of_rest(x: Array, axis: int, logarithms: bool = False) -> Array:
    """The same over all axes from `axis` on."""
    first = axis_in(axis, x.ndim)
    matrix = x.reshape(math.prod(x.shape[:first]), math.prod(x.shape[first:]))
    return _shares(matrix, 1, logarithms).reshape(x.shape)


def _lowering(rest: bool, logarithms: bool = False) -> Lowering:
    """The lowering of Softmax or LogSoftmax along an axis, or over the rest of the axes from it on."""

    def lower(site: LoweringContext) -> NativeKernel:
        x = site.inputs[0]
        axis = axis_in(site.attributes["axis"], x.ndim)
        if rest or axis == x.ndim - 1 or x.shape[axis] == x.size:
            return shares_kernel(site, axis, logarithms)
        perm = [*(place for place in range(x.ndim) if place != axis), axis]
        turned = replace(site, inputs=(x.transpose(perm), *site.inputs[1:]))
        return between_turns(site, shares_kernel(turned, x.ndim - 1, logarithms), perm)

    return lower


@op("Softmax", since=1, native=_lowering(rest=True))
def softmax_1(input: Array, *, axis: int = 1) -> Array:
    """exp(x) / sum(exp(x)) over all axes from `axis` on: the input is taken as a matrix [axes before, axes from axis].

    In float64 and rounded once to the type; float64 stays float64.
    Raises OperatorError for an axis outside [-r, r-1].
    Source: ONNX operators, Softmax-1 and Softmax-11.
    """
    return _of_rest(input, axis)


@op("Softmax", since=13, native=_lowering(rest=False))
def softmax(input: Array, *, axis: int = -1) -> Array:
    """exp(x) / sum(exp(x)) along one axis.

    In float64 and rounded once to the type; float64 stays float64. A row with +inf or NaN, or of -inf alone, gives NaN.
    Raises OperatorError for an axis outside [-r, r-1].
    """
    return _shares(input, axis_in(axis, input.ndim))


@op("LogSoftmax", since=1, native=_lowering(rest=True, logarithms=True))
def log_softmax_1(input: Array, *, axis: int = 1) -> Array:
    """x - log(sum(exp(x))) over all axes from `axis` on, as in Softmax-1. Source: ONNX operators, LogSoftmax-11."""
    return _of_rest(input, axis, logarithms=True)


@op("LogSoftmax", since=13, native=_lowering(rest=False, logarithms=True))
def log_softmax(input: Array, *, axis: int = -1) -> Array:
    """x - log(sum(exp(x))) along one axis.

    In float64 and rounded once to the type; float64 stays float64. A row with +inf or NaN, or of -inf alone, gives NaN.
    Raises OperatorError for an axis outside [-r, r-1].
    """
    return _shares(input, axis_in(axis, input.ndim), logarithms=True)
