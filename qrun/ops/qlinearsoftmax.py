"""QLinearSoftmax of com.microsoft."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from qrun.ops._codes import Rounded, scale_param, single, zero_param
from qrun.ops._complete import FewEnds
from qrun.ops._float import axis_in
from qrun.ops._functions import nearest_share
from qrun.ops._op import Array, Context, Real, contrib_op
from qrun.ops._quantize import store
from qrun.ops._rounding import REACH, DoubleDouble, decide
from qrun.ops.lowering.kernel import LoweringContext, NativeKernel, declined, kernel_of, quiet
from qrun.ops.lowering.turned import between_turns

_NAME = "QLinearSoftmax"
_BLOCK = 1 << 18
_EPS = float(np.finfo(np.float64).eps)


@contrib_op(_NAME, computes=Real("Softmax"), types={"T": ("int8 uint8", "X Y")})
def qlinear_softmax(
    X: Array,
    X_scale: Array,
    x_zero_point: Array | None,
    y_scale: Array,
    y_zero_point: Array,
    *,
    axis: int = -1,
    opset: int,
    ctx: Context,
) -> Array:
    """Softmax of a quantized tensor, int8 or uint8, with scalar parameters.

    opset: that of the Softmax meant: from 13 on over one axis, before over all axes from `axis` on.
    x_zero_point cancels out.

        Y = saturate(RNE(exp(X_scale * X) / sum exp(X_scale * X) / y_scale) + y_zero_point)

    Exact: the real value is rounded once; near a tie it is computed with as many digits as it takes.
    ``ort``: a float32 table of exponentials, float32 sum in order, and floor(1 / y_scale) as multiplier, as
    onnxruntime does, but where its product overflows (a short axis, small y_scale) the quotient is formed first, and
    an X_scale that is not positive and finite is computed as in exact arithmetic.
    onnx.reference has no such operator: ``onnx-ref`` is exact.
    Source: ONNX operators, Softmax-11 and -13.
    """
    place = axis_in(axis, X.ndim)
    xs, ys = scale_param(X_scale, "X_scale", _NAME, ctx), scale_param(y_scale, "y_scale", _NAME, ctx)
    zero_param(x_zero_point, X.dtype, "x_zero_point", "X", _NAME)
    yz = zero_param(y_zero_point, X.dtype, "y_zero_point", "Y", _NAME)
    ctx.claim(X.shape, 1)
    moved = X if opset < 13 else np.moveaxis(X, place, -1)
    length = math.prod(X.shape[place:]) if opset < 13 else X.shape[place]
    if not X.size:
        return np.empty(X.shape, X.dtype)
    rows = moved.reshape(-1, length)
    y = np.empty(rows.shape, X.dtype)
    step = max(1, _BLOCK // length)
    function = _ort if ctx.arith == "ort" else _exact
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        store(function(rows[part], float(xs), ys), yz, y[part], ctx, "Y")
    return np.ascontiguousarray(y.reshape(X.shape) if opset < 13 else np.moveaxis(y.reshape(moved.shape), -1, place))


@qlinear_softmax.native
def lower_qlinear_softmax(site: LoweringContext) -> NativeKernel:
    """In float64; inputs with a result near a tie go to the reference."""
    from qrun.native.kernels.softmax import Softmax

    site.require_constants()
    x, scale, _, y_scale, y_zero = (np.zeros(0) if array is None else array for array in site.inputs)
    axis, opset = site.attributes["axis"], site.attributes["opset"]
    whole: Callable[..., Array] = qlinear_softmax
    site.ctx.claim(x.shape, 1)
    nothing = x[:0] if x.ndim else x
    site.memo.once(
        ("checked", x.ndim, x.dtype), lambda: whole(nothing, *site.inputs[1:], axis=axis, opset=opset, ctx=quiet(site))
    )
    xs, ys, zero = float(scale.reshape(())), float(y_scale.reshape(())), y_zero.reshape(())
    if site.ctx.arith == "ort" or not (0 < xs < math.inf and 0 < ys < math.inf) or not x.size:
        raise declined("an unusual scale, or the arithmetic of onnxruntime")
    place, complete = axis % x.ndim, FewEnds.of(x.dtype, int(zero))
    perm = [*(axis for axis in range(x.ndim) if axis != place), place]
    turns = opset >= 13 and place != x.ndim - 1 and x.shape[place] != x.size
    shape = [x.shape[axis] for axis in perm] if turns else x.shape
    length = x.shape[place] if turns else math.prod(x.shape[place:])
    kernel = kernel_of(site, Softmax(site.engine, shape, length, xs, ys, zero, site.memo), (0,), complete)
    return between_turns(site, kernel, perm) if turns else kernel


def _exact(rows: Array, xs: float, ys: Array) -> Rounded:
    if not math.isfinite(xs):
        return np.full(rows.shape, np.nan)
    length = rows.shape[1]
    codes = rows.astype(np.int16)
    below = np.abs(codes - (codes.max if xs >= 0 else codes.min)(axis=1, keepdims=True))
    with np.errstate(all="ignore"):
        weight = np.exp(-abs(xs) * np.arange(256.0))[below]
        estimate = weight / weight.sum(axis=1, keepdims=True) / ys
        rounded = np.rint(estimate)
        doubtful = np.abs(np.abs(estimate - rounded) - 0.5) <= (length + 32) * REACH * _EPS
        doubtful &= np.abs(rounded) <= REACH
        even = decide(np.full(1, 1 / (ys * length)), lambda at: (DoubleDouble(np.ones(1), np.zeros(1)), ys * length))
    flat = (below == 0).all(axis=1) | (xs == 0)
    rounded[flat] = even
    doubtful[flat] = False
    known: dict[bytes, int] = {}
    for i in np.nonzero(doubtful.any(axis=1))[0]:
        present, first, counts = np.unique(codes[i], return_index=True, return_counts=True)
        for code, at in zip(present, first, strict=True):
            if doubtful[i, at]:
                distance = present - code
                key = np.concatenate([distance, counts, [np.rint(estimate[i, at] - 0.5)]]).tobytes()
                if key not in known:
                    terms = dict(zip(distance.tolist(), counts.tolist(), strict=True))
                    known[key] = nearest_share(terms, xs, float(ys), float(estimate[i, at]))
                rounded[i, codes[i] == code] = known[key]
    return np.asarray(rounded)


def _ort(rows: Array, xs: float, ys: Array) -> Rounded:
    if not 0 < xs < math.inf:
        return _exact(rows, xs, ys)
    codes = rows.astype(np.int16)
    with np.errstate(all="ignore"):
        room = float(np.log(np.finfo(np.float32).max / np.float32(rows.shape[1])))
        shift = max(0.0, room - 5) / xs
        table = np.array([math.exp((i - 255 + shift) * xs) for i in range(256)]).astype(np.float32)
        weight = table[255 + codes - codes.max(axis=1, keepdims=True)]
        total = np.add.accumulate(weight, axis=1)[:, -1:]
        levels = np.floor(np.float32(1) / single(ys))
        product = weight * levels
        quotient = np.where(np.isfinite(product), product / total, weight / total * levels)
        quotient[weight == 0] = 0
        return np.asarray(np.rint(quotient).astype(np.float64))
