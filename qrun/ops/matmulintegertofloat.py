"""MatMulIntegerToFloat of com.microsoft."""

from __future__ import annotations

import numpy as np

from qrun.ir import Array
from qrun.ir.types import type_name
from qrun.ops._context import Context
from qrun.ops._matmul import claim_product, matmul_macs
from qrun.ops._native import LoweringContext, NativeKernel, declined, quiet
from qrun.ops._native_dynamic import DynamicProduct
from qrun.ops._native_floats import float_kernel, plain_scales
from qrun.ops._op import Real, op
from qrun.ops._quantize import same_type, scalar
from qrun.ops._tofloat import check_product, float_matmul

_NAME = "MatMulIntegerToFloat"


@op(
    _NAME,
    since=1,
    domain="com.microsoft",
    computes=Real("MatMul", {"B": "column"}, bias="bias"),
    cost=matmul_macs,
    types={
        "T1": ("int8 uint8", "A a_zero_point"),
        "T2": ("int8 uint8", "B b_zero_point"),
        "T3": ("float float16", "a_scale b_scale bias"),
    },
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
    Source: onnxruntime ContribOperators, com.microsoft.MatMulIntegerToFloat.
    """
    same_type(a_zero_point, A.dtype, "a_zero_point", "A")
    scale, zero = scalar(a_scale, "a_scale", _NAME), scalar(a_zero_point, "a_zero_point", _NAME)
    return float_matmul(A, scale, zero, B, b_scale, b_zero_point, bias, _NAME, ctx)


@matmul_integer_to_float.native
def _lower(site: LoweringContext) -> NativeKernel:
    a, b, a_scale, b_scale, a_zero, b_zero, bias = site.inputs
    same_type(a_zero, a.dtype, "a_zero_point", "A")
    scalar(a_scale, "a_scale", _NAME)
    scalar(a_zero, "a_zero_point", _NAME)
    check_product(a, a_scale.reshape(()), b, b_scale, b_zero, bias, _NAME, quiet(site))
    claim_product(a, b, site.ctx)
    if a_scale.dtype != np.float32:
        raise declined(f"no native {type_name(a_scale.dtype)} results")
    product = DynamicProduct(site, a, b, (0, 1, 4, 5))
    return float_kernel(product, (2, 3), 6, plain_scales(site, 2, 3))
