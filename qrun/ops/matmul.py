"""MatMul."""

from __future__ import annotations

from qrun.ir import Array
from qrun.ops._context import Context
from qrun.ops._float import is_integer, product
from qrun.ops._matmul import check_matmul, matmul_macs
from qrun.ops._native import LoweringContext, NativeKernel
from qrun.ops._native_products import matmul_kernel
from qrun.ops._op import op
from qrun.ops._sums import rounded_products
from qrun.shapes import broadcast_shapes


@op("MatMul", since=1, cost=matmul_macs)
def matmul(A: Array, B: Array, *, ctx: Context) -> Array:
    """Matrix product of A [...,M,K] and B [...,K,N], shapes as numpy.matmul; both of one type.

    Each element of floating point is its real value rounded once to the type; float64 is added in float64.
    Integers wrap as in two's complement. Raises OperatorError for shapes that do not fit.
    Source: ONNX operators, MatMul-13.
    """
    _claim(A, B, ctx)
    return product(A, B) if is_integer(A.dtype) else rounded_products(A, B, A.dtype)


def _claim(a: Array, b: Array, ctx: Context) -> None:
    """Check the shapes, and claim the result."""
    check_matmul(a, b)
    rows, columns = a.shape[-2:-1], b.shape[-1:] if b.ndim > 1 else ()
    ctx.claim((*broadcast_shapes(a.shape[:-2], b.shape[:-2]), *rows, *columns), 8)


@matmul.native
def _lower(site: LoweringContext) -> NativeKernel:
    a, b = site.inputs
    _claim(a, b, site.ctx)
    return matmul_kernel(site, a, b)
