"""CDist of com.microsoft."""

from __future__ import annotations

import numpy as np

from qrun.ops._float import narrow, widen
from qrun.ops._op import Array, Context, bad_shape, contrib_op, misfit, one_of


@contrib_op("CDist", types={"T": ("float double", "A B")})
def cdist(A: Array, B: Array, *, metric: str = "sqeuclidean", ctx: Context) -> Array:
    """The distance between each row of A [M,N] and each of B [K,N], or its square: [M,K], of their type.

    metric: sqeuclidean, the sum of the squares of differences, or euclidean, its root. In float64 and rounded once.
    Raises OperatorError for shapes that do not fit and other metrics.
    """
    one_of("metric", metric, ("sqeuclidean", "euclidean"))
    if A.ndim != 2:
        raise bad_shape("A", "[M,N]", A)
    if B.ndim != 2 or B.shape[1] != A.shape[1]:
        raise misfit("rows of A and B differ in length", "B", f"[K,{A.shape[1]}]", B)
    ctx.claim((len(A), len(B)), 8)
    ctx.claim(B.shape, 24)
    made, others = np.empty((len(A), len(B))), widen(B)
    with np.errstate(all="ignore"):
        for row, x in zip(made, widen(A), strict=True):
            np.square(others - x).sum(axis=1, out=row)
        return narrow(np.sqrt(made) if metric == "euclidean" else made, A.dtype)
