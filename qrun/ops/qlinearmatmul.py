"""QLinearMatMul."""

from __future__ import annotations

import numpy as np

from qrun.ir import Array
from qrun.ops._context import Context
from qrun.ops._matmul import check_matmul, column_param, integer_matmul, matmul_macs, matmul_shape, row_param
from qrun.ops._op import op
from qrun.ops._quantize import note_scale, requantize, same_type, scalar

_NAME = "QLinearMatMul"


@op("QLinearMatMul", since=10, cost=matmul_macs)
def qlinear_matmul(
    a: Array,
    a_scale: Array,
    a_zero_point: Array,
    b: Array,
    b_scale: Array,
    b_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
    *,
    ctx: Context | None = None,
) -> Array:
    """Matrix product of quantized tensors, shapes as numpy.matmul.

    a [...,M,K], b [...,K,N], each int8 or uint8. a's parameters: scalar, [M] for 2-D a, or [...,M,1]; b's: scalar,
    [N] for 2-D b, or [...,1,N]; y's: scalars. Scales float32, float16 or bfloat16. Output: y_zero_point's type.

        acc = sum over k of (a - a_zero_point) * (b - b_zero_point)          int32, wrapping
        y   = saturate(RNE(acc * a_scale * b_scale / y_scale) + y_zero_point)

    Exact: the scales multiply as real numbers and the quotient is rounded once.
    Source: ONNX operators, QLinearMatMul-21.
    """
    ctx = ctx or Context()
    check_matmul(a, b, ("a", "b"))
    same_type(a_zero_point, a.dtype, "a_zero_point", "a")
    same_type(b_zero_point, b.dtype, "b_zero_point", "b")
    az = row_param(a_zero_point, "a_zero_point", a, _NAME)
    bz = column_param(b_zero_point, "b_zero_point", b, _NAME)
    scale_a = row_param(a_scale, "a_scale", a, _NAME)
    scale_b = column_param(b_scale, "b_scale", b, _NAME)
    ys = scalar(y_scale, "y_scale", _NAME)
    yz = scalar(y_zero_point, "y_zero_point", _NAME)
    assert scale_a is not None
    assert scale_b is not None
    assert ys is not None
    assert yz is not None
    for name, scale in (("a_scale", scale_a), ("b_scale", scale_b), ("y_scale", ys)):
        note_scale(ctx, scale, name)
    acc = integer_matmul(a, b, az, bz, ctx)
    return np.asarray(matmul_shape(requantize(acc, (scale_a, scale_b), ys, yz, ctx), a, b))
