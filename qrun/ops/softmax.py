"""Softmax and LogSoftmax, NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from qrun.ir.types import shape_text
from qrun.ops._float import axis_in, narrow, rounded, widen
from qrun.ops._op import Array, Context, misfit, one_of, op, refuse
from qrun.ops._reduce import shares, sum_over
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


@op("NegativeLogLikelihoodLoss", since=12)
def negative_log_likelihood_loss(
    input: Array,
    target: Array,
    weight: Array | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
    ctx: Context,
) -> Array:
    """-weight[c] * input[n,c,...] with c = target[n,...], 0 where c is ignore_index; reduced.

    input [N,C,...], target [N,...] integers 0 to C-1, weight [C]. reduction: none, sum, or mean, which divides by the
    sum of the weights of targets that are not ignored. In float64 and rounded once.
    Raises OperatorError for shapes, targets and reductions that do not fit.
    """
    _check(input, target, weight, ignore_index, reduction, ("input", "target", "weight"))
    ctx.claim(target.shape, 40)
    return narrow(_loss(widen(input), target, weight, ignore_index, reduction), input.dtype)


@op("SoftmaxCrossEntropyLoss", since=12)
def softmax_cross_entropy_loss(
    scores: Array,
    labels: Array,
    weights: Array | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
    ctx: Context,
) -> tuple[Array, Array]:
    """NegativeLogLikelihoodLoss of LogSoftmax(scores) over axis 1: the loss, and those logarithms log_prob.

    scores [N,C,...], labels [N,...], weights [C]. In float64, each result rounded once.
    Raises OperatorError as NegativeLogLikelihoodLoss.
    """
    _check(scores, labels, weights, ignore_index, reduction, ("scores", "labels", "weights"))
    ctx.claim(scores.shape, 40)
    rows = np.moveaxis(scores, 1, -1)
    matrix = np.ascontiguousarray(rows).reshape(-1, scores.shape[1])
    made = shares(matrix.astype(_single(scores.dtype)), True) if scores.size else matrix
    logs = np.moveaxis(made.reshape(rows.shape), -1, 1)
    loss = _loss(widen(logs), labels, weights, ignore_index, reduction)
    return narrow(loss, scores.dtype), rounded(np.ascontiguousarray(logs), scores.dtype)


def _loss(logs: Array, labels: Array, weight: Array | None, ignored: int | None, reduction: str) -> Array:
    kept = np.ones(labels.shape, bool) if ignored is None else labels != ignored
    classes = np.where(kept, labels, 0).astype(np.int64)
    with np.errstate(all="ignore"):
        shares = kept.astype(np.float64) if weight is None else np.where(kept, widen(weight)[classes], 0.0)
        picked = np.take_along_axis(logs, classes[:, None], axis=1)[:, 0] if labels.size else np.zeros(labels.shape)
        losses = np.where(kept, -picked * shares, 0.0)
        if reduction == "none":
            return losses
        whole = tuple(range(losses.ndim))
        added = sum_over(losses, whole, False)
        return added if reduction == "sum" else np.asarray(added / sum_over(shares, whole, False))


def _check(
    x: Array, labels: Array, weight: Array | None, ignored: int | None, reduction: str, names: tuple[str, str, str]
) -> None:
    if x.ndim < 2 or not x.shape[1]:
        raise misfit(f"{names[0]} has no classes", names[0], "[N,C,...], C 1 or more", x)
    wanted = (x.shape[0], *x.shape[2:])
    if labels.shape != wanted:
        raise misfit(f"{names[1]} does not fit {names[0]}", names[1], shape_text(wanted), labels)
    if weight is not None and weight.shape != x.shape[1:2]:
        raise misfit(f"{names[2]} does not fit {names[0]}", names[2], shape_text(x.shape[1:2]), weight)
    bad = (labels < 0) | (labels >= x.shape[1])
    bad &= True if ignored is None else labels != ignored
    if bad.any():
        first = int(labels[bad][0])
        raise refuse(f"there is no class {first}", names[1], f"0 to {x.shape[1] - 1}", str(first), code="QR209")
    one_of("reduction", reduction, ("none", "sum", "mean"))
