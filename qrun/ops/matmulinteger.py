"""MatMulInteger."""

from __future__ import annotations

import numpy as np

from qrun.ir import Array
from qrun.ops._context import Context
from qrun.ops._matmul import (
    check_matmul,
    claim_product,
    column_param,
    integer_matmul,
    matmul_macs,
    matmul_shape,
    row_param,
)
from qrun.ops._native import LoweringContext, NativeKernel
from qrun.ops._native_dynamic import DynamicProduct, sums_kernel
from qrun.ops._native_integers import gemm_kernel
from qrun.ops._op import Real, op
from qrun.ops._quantize import same_type

_NAME = "MatMulInteger"


@op(_NAME, since=10, cost=matmul_macs, computes=Real("MatMul", {"A": "row", "B": "column"}))
def matmul_integer(
    A: Array,
    B: Array,
    a_zero_point: Array | None = None,
    b_zero_point: Array | None = None,
    *,
    ctx: Context,
) -> Array:
    """Integer matrix product, shapes as numpy.matmul, int32 result.

    A [...,M,K], B [...,K,N], each int8 or uint8; a_zero_point scalar, [M] for 2-D A, or [...,M,1];
    b_zero_point scalar, [N] for 2-D B, or [...,1,N].

        Y = sum over k of (A - a_zero_point) * (B - b_zero_point)            int32, wrapping

    Exact. Source: ONNX operators, MatMulInteger-10.
    """
    az, bz = _check(A, B, a_zero_point, b_zero_point)
    return np.asarray(matmul_shape(integer_matmul(A, B, az, bz, ctx), A, B)).astype(np.int32)


def _check(A: Array, B: Array, a_zero: Array | None, b_zero: Array | None) -> tuple[Array | None, Array | None]:
    """Refuse what the page forbids; the zero points, to broadcast."""
    check_matmul(A, B)
    same_type(a_zero, A.dtype, "a_zero_point", "A")
    same_type(b_zero, B.dtype, "b_zero_point", "B")
    az = row_param(a_zero, "a_zero_point", A, _NAME)
    return az, column_param(b_zero, "b_zero_point", B, _NAME)


@matmul_integer.native
def _lower(site: LoweringContext) -> NativeKernel:
    a, b, a_zero_point, b_zero_point = site.inputs
    zeros = _check(a, b, a_zero_point, b_zero_point)
    claim_product(a, b, site.ctx)
    if all(site.fixed[1:]) and b.ndim == 2 and (zeros[0] is None or not zeros[0].ndim):
        return gemm_kernel(site, a, b, zeros, None, None)
    return sums_kernel(DynamicProduct(site, a, b, (0, 1, 2, 3)))
