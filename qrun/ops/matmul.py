"""MatMul."""

from __future__ import annotations

from qrun.ir import Array
from qrun.ops._context import Context
from qrun.ops._float import is_integer, product
from qrun.ops._matmul import check_matmul, matmul_macs
from qrun.ops._op import op
from qrun.ops._sums import rounded_products
from qrun.shapes import broadcast_shapes


@op("MatMul", since=1, cost=matmul_macs)
def matmul(A: Array, B: Array, *, ctx: Context | None = None) -> Array:
    """Matrix product of A [...,M,K] and B [...,K,N], shapes as numpy.matmul; both of one type.

    Each element of floating point is its real value rounded once to the type; float64 is added in float64.
    Integers wrap as in two's complement. Raises OperatorError for shapes that do not fit.
    Source: ONNX operators, MatMul-13.
    """
    ctx = ctx or Context()
    check_matmul(A, B)
    rows, columns = A.shape[-2:-1], B.shape[-1:] if B.ndim > 1 else ()
    ctx.claim((*broadcast_shapes(A.shape[:-2], B.shape[:-2]), *rows, *columns), 8)
    return product(A, B) if is_integer(A.dtype) else rounded_products(A, B, A.dtype)
