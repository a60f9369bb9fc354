"""MatMulIntegerToFloat of com.microsoft."""

from __future__ import annotations

from qrun.ir import Array
from qrun.ops._context import Context
from qrun.ops._matmul import matmul_macs
from qrun.ops._op import op
from qrun.ops._quantize import same_type, scalar
from qrun.ops._tofloat import float_matmul

_NAME = "MatMulIntegerToFloat"


@op(
    _NAME,
    since=1,
    domain="com.microsoft",
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
    ctx: Context | None = None,
) -> Array:
    """Product of quantized tensors as real numbers, shapes as numpy.matmul.

    A [...,M,K], B [...,K,N], each int8 or uint8. a's parameters are scalars; b's scalars, [N] for 2-D B, or [...,1,N];
    bias [N]. Scales, bias and result are all float32 or all float16.

        acc = sum over k of (A - a_zero_point) * (B - b_zero_point)            int32, wrapping
        Y   = acc * a_scale * b_scale + bias

    Exact: the real value is rounded once. ``ort``: float32(acc) * float32(a_scale * b_scale) + bias, each step
    rounded to float32; float16 as exact. onnx.reference has no such operator: ``onnx-ref`` is exact.
    The page's "number of columns of A" for a's parameters cannot be meant (a sum over columns has one scale): a
    1-D a_scale of more than one element is refused, as onnxruntime does.
    Source: onnxruntime ContribOperators, com.microsoft.MatMulIntegerToFloat.
    """
    ctx = ctx or Context()
    same_type(a_zero_point, A.dtype, "a_zero_point", "A")
    scale, zero = scalar(a_scale, "a_scale", _NAME), scalar(a_zero_point, "a_zero_point", _NAME)
    assert scale is not None
    return float_matmul(A, scale, zero, B, b_scale, b_zero_point, bias, _NAME, ctx)
