"""QLinearWhere of com.microsoft."""

from __future__ import annotations

import numpy as np

from qrun.ir import Array
from qrun.ops._codes import all_codes, common_shape, lookup, parameters, requantized
from qrun.ops._context import Context
from qrun.ops._op import Real, op

_NAME = "QLinearWhere"


@op(
    _NAME,
    since=1,
    domain="com.microsoft",
    computes=Real("Where"),
    types={
        "B": ("bool", "condition"),
        "T": ("int8 uint8", "X x_zero_point Y y_zero_point z_zero_point"),
        "TF": ("float", "x_scale y_scale z_scale"),
    },
)
def qlinear_where(
    condition: Array,
    X: Array,
    x_scale: Array,
    x_zero_point: Array,
    Y: Array,
    y_scale: Array,
    y_zero_point: Array,
    z_scale: Array,
    z_zero_point: Array,
    *,
    ctx: Context,
) -> Array:
    """X where condition holds, else Y, requantized; the three broadcast. X, Y, Z of one 8-bit type, scalar parameters.

        Z = saturate(RNE((V - v_zero_point) * v_scale / z_scale) + z_zero_point),    V = X or Y

    Exact: the quotient is rounded once, as a real number. ``ort``: float32 product and quotient; equal parameters
    copy. onnx.reference has no such operator: ``onnx-ref`` is exact.
    Source: onnxruntime ContribOperators, com.microsoft.QLinearWhere.
    """
    shape = common_shape(_NAME, condition=condition, X=X, Y=Y)
    (xs, ys, zs), (xz, yz, zz) = parameters(
        _NAME,
        ctx,
        x=(X.dtype, x_scale, x_zero_point),
        y=(Y.dtype, y_scale, y_zero_point),
        z=(X.dtype, z_scale, z_zero_point),
    )
    table = np.concatenate(
        [requantized(all_codes(X.dtype), xz, xs, zz, zs, ctx), requantized(all_codes(Y.dtype), yz, ys, zz, zs, ctx)]
    )
    ctx.claim(shape, 3)
    index = np.where(condition, X.view(np.uint8), Y.view(np.uint8).astype(np.uint16) + np.uint16(256))
    return lookup((index,), shape, table, zz, ctx, "Z")
