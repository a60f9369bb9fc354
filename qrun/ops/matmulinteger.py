"""MatMulInteger, and MatMulIntegerToFloat and DynamicQuantizeMatMul of com.microsoft."""

from __future__ import annotations

import numpy as np

from qrun.declare.frozen import replace
from qrun.ops._complete import NEVER, Finite, Settled
from qrun.ops._context import same_type, scalar
from qrun.ops._dynamic import quantized
from qrun.ops._matmul import (
    check_matmul,
    check_product,
    claim_product,
    column_param,
    float_matmul,
    integer_matmul,
    matmul_macs,
    matmul_shape,
    row_param,
)
from qrun.ops._op import Array, Context, Real, contrib_op, op
from qrun.ops.lowering.dynamic import DynamicProduct, Given
from qrun.ops.lowering.floats import float_kernel, plain_scales, quantizing, scaled_stages
from qrun.ops.lowering.integers import gemm_kernel
from qrun.ops.lowering.kernel import LoweringContext, NativeKernel, quiet, require_type, staged_kernel

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

    Exact.
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
    product = DynamicProduct(site, a, b, (0, 1, 2, 3))
    stages, shown = product.stages()
    return staged_kernel(site, stages, (shown,), Settled(not product.wraps))


_TO_FLOAT = "MatMulIntegerToFloat"


@contrib_op(
    _TO_FLOAT,
    computes=Real("MatMul", {"B": "column"}, bias="bias"),
    cost=matmul_macs,
    types={"T1": ("int8 uint8", "A"), "T2": ("int8 uint8", "B"), "T3": ("float float16", "a_scale b_scale bias")},
)
def matmul_integer_to_float(
    A: Array,
    B: Array,
    a_scale: Array,
    b_scale: Array,
    a_zero_point: Array | None = None,
    b_zero_point: Array | None = None,
    bias: Array | None = None,
    *,
    ctx: Context,
) -> Array:
    """Product of quantized tensors as real numbers, shapes as numpy.matmul.

    A [...,M,K], B [...,K,N], each int8 or uint8. a's parameters are scalars; b's scalars, [N] for 2-D B, or [...,1,N];
    bias [N]. Scales, bias and result are all float32 or all float16.

        acc = sum over k of (A - a_zero_point) * (B - b_zero_point)            int32, wrapping
        Y   = acc * a_scale * b_scale + bias

    Exact: the real value is rounded once. ``ort``: float32(acc) * float32(a_scale * b_scale) + bias, each step
    rounded to float32; float16 as exact. onnx.reference has no such operator: ``onnx-ref`` is exact.
    The page's "number of columns of A" for a's parameters cannot be meant (a sum over columns has one scale): a
    1-D a_scale of more than one element is refused.
    """
    same_type(a_zero_point, A.dtype, "a_zero_point", "A")
    scale, zero = scalar(a_scale, "a_scale", _TO_FLOAT), scalar(a_zero_point, "a_zero_point", _TO_FLOAT)
    return float_matmul(A, scale, zero, B, b_scale, b_zero_point, bias, _TO_FLOAT, ctx)


@matmul_integer_to_float.native
def _lower_to_float(site: LoweringContext) -> NativeKernel:
    a, b, a_scale, b_scale, a_zero, b_zero, bias = site.inputs
    same_type(a_zero, a.dtype, "a_zero_point", "A")
    scalar(a_scale, "a_scale", _TO_FLOAT)
    scalar(a_zero, "a_zero_point", _TO_FLOAT)
    check_product(a, a_scale.reshape(()), b, b_scale, b_zero, bias, _TO_FLOAT, quiet(site))
    claim_product(a, b, site.ctx)
    require_type(a_scale.dtype == np.float32, a_scale.dtype, "{} results")
    product = DynamicProduct(site, a, b, (0, 1, 4, 5))
    return float_kernel(product, (2, 3), 6, plain_scales(site, 2, 3))


_DYNAMIC = "DynamicQuantizeMatMul"


@contrib_op(
    _DYNAMIC,
    computes=Real("MatMul", {"B": "column"}, bias="bias"),
    cost=matmul_macs,
    types={"T1": ("float", "A bias"), "T2": ("int8 uint8", "B")},
)
def dynamic_quantize_matmul(
    A: Array,
    B: Array,
    b_scale: Array,
    b_zero_point: Array | None = None,
    bias: Array | None = None,
    *,
    ctx: Context,
) -> Array:
    """Product of a float32 tensor, quantized to uint8 on the fly, with a quantized one; shapes as numpy.matmul.

    A [...,M,K] float32; B [...,K,N] int8 or uint8; b's parameters scalars, [N] for 2-D B, or [...,1,N]; bias [N].

        a, a_scale, a_zero_point = DynamicQuantizeLinear(A)
        acc = sum over k of (a - a_zero_point) * (B - b_zero_point)            int32, wrapping
        Y   = acc * a_scale * b_scale + bias

    Exact: a as DynamicQuantizeLinear-11 says, in float32 steps; then the real value is rounded once to float32.
    ``ort``: float32(acc) * float32(a_scale * b_scale) + bias, each step rounded to float32; NaN in A is refused there
    too, see DynamicQuantizeLinear. onnx.reference has no such operator: ``onnx-ref`` is exact.
    Source: ONNX operators, DynamicQuantizeLinear-11.
    """
    unobserved = replace(ctx, observing=False)
    check_product(A, np.ones((), np.float32), B, b_scale, b_zero_point, bias, _DYNAMIC, unobserved)
    codes, scale, zero = quantized(A, "ort" if ctx.arith == "ort" else "exact", "A")
    return float_matmul(codes, scale, zero, B, b_scale, b_zero_point, bias, _DYNAMIC, ctx)


@dynamic_quantize_matmul.native
def _lower_dynamic(site: LoweringContext) -> NativeKernel:
    from qrun.native.kernels.quantize import RESULTS

    a, b, b_scale, b_zero, bias = site.inputs
    check_product(a, np.ones((), np.float32), b, b_scale, b_zero, bias, _DYNAMIC, quiet(site))
    claim_product(a, b, site.ctx)
    codes = np.broadcast_to(np.uint8(0), a.shape)
    product = DynamicProduct(site, codes, b, ("codes", 1, Given("zero", RESULTS["zero"]), 3))
    stages, shown = scaled_stages(product, Given("scale", RESULTS["scale"]), 2, 4)
    before = quantizing(site.engine, a, ("codes", "scale", "zero"))
    complete = NEVER if product.wraps else Finite()
    return staged_kernel(site, [*before, *stages], shown, complete, plain_scales(site, 2))
