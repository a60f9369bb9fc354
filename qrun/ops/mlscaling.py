"""Features of ai.onnx.ml that are brought to one scale: Scaler, Normalizer."""

from __future__ import annotations

import numpy as np

from qrun.declare.memo import Memo
from qrun.ops._complete import ALWAYS
from qrun.ops._ml import ML, NUMBERS, Floats, kept_singles, per_feature, rows_of, single_results
from qrun.ops._op import Array, Context, one_of, op
from qrun.ops._reduce import sum_over
from qrun.ops.lowering.kernel import FLOAT, LoweringContext, NativeKernel, declined, kernel_of


@op("Scaler", since=1, domain=ML, types={"T": (NUMBERS, "X")})
def scaler(X: Array, *, offset: Floats | None = None, scale: Floats | None = None, ctx: Context) -> Array:
    """(X - offset) * scale, float32: one number each, or one for each place along the last axis.

    In float64 and rounded once. Raises OperatorError for other numbers of them.
    """
    count = X.shape[-1] if X.ndim else 1
    parts = _offset_and_scale(count, offset, scale, ctx.memo)
    ctx.claim(X.shape, 16)
    with np.errstate(all="ignore"):
        return single_results((np.asarray(X, np.float64) - parts[0]) * parts[1], ctx)


def _offset_and_scale(count: int, offset: Floats | None, scale: Floats | None, memo: Memo) -> list[Array]:
    given = (("offset", offset or (0.0,)), ("scale", scale or (1.0,)))
    return [per_feature(kept_singles(name, v, memo), count, name) for name, v in given]


@scaler.native
def _lower_scaler(site: LoweringContext) -> NativeKernel:
    from qrun.native.kernels.normalize import BatchNorm

    x, given = site.inputs[0], site.attributes
    count = x.shape[-1] if x.ndim else 1
    parts = _offset_and_scale(count, given["offset"], given["scale"], site.memo)
    if x.dtype != FLOAT or x.ndim != 2 or not x.size:
        raise declined("X is no table of float32 with elements")
    mean, factor, bias = (np.full(count, values) for values in (*parts, -0.0))
    return kernel_of(site, BatchNorm(site.engine, x.shape, mean, factor, bias), (0,), ALWAYS)


@op("Normalizer", since=1, domain=ML, types={"T": (NUMBERS, "X")})
def normalizer(X: Array, *, norm: str = "MAX", ctx: Context) -> Array:
    """Rows [N,C] or [C] divided by their greatest element (MAX),
    the sum of |x| (L1) or sqrt of the sum of x**2 (L2), float32.

    A row whose divisor is 0 stays. In float64 and rounded once. Raises OperatorError for another rank and norm.
    """
    one_of("norm", norm, ("MAX", "L1", "L2"))
    ctx.claim(X.shape, 24)
    return single_results(_normalized(rows_of(X), norm).reshape(X.shape), ctx)


def _normalized(x: Array, norm: str) -> Array:
    with np.errstate(all="ignore"):
        if norm == "MAX":
            size = x.max(axis=1, keepdims=True) if x.size else x
        else:
            size = sum_over(np.abs(x), (1,), True) if norm == "L1" else np.sqrt(sum_over(x * x, (1,), True))
        return np.where(size == 0, x, x / np.where(size == 0, 1.0, size))


@normalizer.native
def _lower_normalizer(site: LoweringContext) -> NativeKernel:
    from qrun.native.kernels.normalize import LpNorm

    x, norm = site.inputs[0], site.attributes["norm"]
    one_of("norm", norm, ("MAX", "L1", "L2"))
    rows_of(x)
    if norm == "MAX" or x.dtype != FLOAT or not x.size:
        raise declined("no sums of float32")
    return kernel_of(site, LpNorm(site.engine, x.shape, int(norm[1])), (0,), ALWAYS)
