"""DynamicQuantizeMatMul of com.microsoft."""

from __future__ import annotations

import numpy as np

from qrun.ir import Array
from qrun.ops._context import Context
from qrun.ops._dynamic import quantized
from qrun.ops._matmul import check_matmul, claim_product, matmul_macs
from qrun.ops._native import LoweringContext, NativeKernel, quiet
from qrun.ops._native_floats import dynamic_kernel, plain_scales
from qrun.ops._op import Real, op
from qrun.ops._tofloat import check_product, float_matmul

_NAME = "DynamicQuantizeMatMul"


@op(
    _NAME,
    since=1,
    domain="com.microsoft",
    computes=Real("MatMul", {"B": "column"}, bias="bias"),
    cost=matmul_macs,
    types={"T1": ("float", "A b_scale bias"), "T2": ("int8 uint8", "B b_zero_point")},
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
    Source: onnxruntime ContribOperators, com.microsoft.DynamicQuantizeMatMul; ONNX operators, DynamicQuantizeLinear-11.
    """
    check_matmul(A, B)
    codes, scale, zero = quantized(A, "ort" if ctx.arith == "ort" else "exact")
    return float_matmul(codes, scale, zero, B, b_scale, b_zero_point, bias, _NAME, ctx)


@dynamic_quantize_matmul.native
def _lower(site: LoweringContext) -> NativeKernel:
    a, b, b_scale, b_zero, bias = site.inputs
    check_product(a, np.ones((), np.float32), b, b_scale, b_zero, bias, _NAME, quiet(site))
    claim_product(a, b, site.ctx)
    return dynamic_kernel(site, a, b, (1, 2, 3, 4), plain_scales(site, 2))
