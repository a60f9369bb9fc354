"""Normalizer of ai.onnx.ml, whose MAX onnx.reference takes for the greatest magnitude."""

from __future__ import annotations

import numpy as np

from qrun.ir.schema import ML
from qrun.ops._op import Array, Context, misfit, one_of, op
from qrun.ops._reduce import sum_over


@op("Normalizer", since=1, domain=ML, types={"T": ("float double int64 int32", "X")})
def normalizer(X: Array, *, norm: str = "MAX", ctx: Context) -> Array:
    """Rows [N,C] or [C] divided by their greatest element (MAX),
    the sum of |x| (L1) or sqrt of the sum of x**2 (L2), float32.

    A row whose divisor is 0 stays. In float64 and rounded once. Raises OperatorError for another rank and norm.
    """
    one_of("norm", norm, ("MAX", "L1", "L2"))
    if X.ndim not in (1, 2):
        raise misfit("X is no table", "X", "[N,F] or [F]", X)
    ctx.claim(X.shape, 28)
    rows = np.atleast_2d(X).astype(np.float64)
    with np.errstate(all="ignore"):
        if norm == "MAX":
            size = rows.max(axis=1, keepdims=True, initial=-np.inf)
        else:
            size = sum_over(abs(rows), (1,), True) if norm == "L1" else np.sqrt(sum_over(rows * rows, (1,), True))
        return np.where(size == 0, rows, rows / size).astype(np.float32).reshape(X.shape)
