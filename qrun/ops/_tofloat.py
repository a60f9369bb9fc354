"""Products of integer matrices as real numbers: what MatMulIntegerToFloat and DynamicQuantizeMatMul share."""

from __future__ import annotations

import numpy as np

from qrun.ir import Array
from qrun.ops._context import Context, refuse
from qrun.ops._matmul import check_matmul, column_param, integer_matmul, matmul_shape
from qrun.ops._quantize import Given, note_scale, same_type
from qrun.ops._rounding import scaled


def float_matmul(
    a: Array,
    a_scale: Array,
    a_zero: Array | None,
    b: Array,
    b_scale: Array,
    b_zero_point: Array | None,
    bias: Array | None,
    op_type: str,
    ctx: Context,
) -> Array:
    """(sum over k of (a - a_zero) * (b - b_zero_point)) * a_scale * b_scale + bias in a_scale's type.

    a's parameters are rank 0 and checked; b's are scalar, [N], or [...,1,N]. The integer sum wraps to
    int32. The real result is rounded once; in ``ort`` sum, product and addition are float32 operations.
    """
    bz, bs = check_product(a, a_scale, b, b_scale, b_zero_point, bias, op_type, ctx)
    acc = integer_matmul(a, b, a_zero, bz, ctx)
    if ctx.arith != "ort" or a_scale.dtype != np.float32:
        y = scaled(acc, (a_scale, bs), bias, a_scale.dtype)
    else:
        with np.errstate(all="ignore"):
            y = acc.astype(np.float32) * (a_scale * bs)
            y = y if bias is None else y + bias
    return np.asarray(matmul_shape(y, a, b))


def check_product(
    a: Array,
    a_scale: Array,
    b: Array,
    b_scale: Array,
    b_zero_point: Array | None,
    bias: Array | None,
    op_type: str,
    ctx: Context,
) -> tuple[Array | None, Array]:
    """Refuse what these pages forbid and observe the scales; b's zero point and scale, to broadcast."""
    check_matmul(a, b)
    same_type(b_zero_point, b.dtype, "b_zero_point", "B")
    bz = column_of(b_zero_point, "b_zero_point", b, op_type)
    bs = column_of(b_scale, "b_scale", b, op_type)
    note_scale(ctx, a_scale, "a_scale")
    note_scale(ctx, bs, "b_scale")
    columns = b.shape[-1] if b.ndim > 1 else 1
    if bias is not None and bias.shape != (columns,):
        raise refuse(
            "the bias has the wrong shape",
            "bias",
            f"[{columns}] (one per column of B)",
            bias,
            why=f"{op_type}: bias is 1-D, as long as B's last dimension.",
            code="QR305",
        )
    return bz, bs


def column_of(array: Given, name: str, b: Array, op_type: str) -> Given:
    """A parameter of the right operand: scalar, [N] for any rank of it, or [...,1,N]; returned to broadcast."""
    return column_param(_lifted(array, b), name, b, op_type)


def _lifted(array: Given, b: Array) -> Given:
    """[N] as [1,...,1,N] for a stack of matrices: these pages, unlike MatMulInteger's, allow 1-D for any rank of B."""
    if array is None or array.ndim != 1 or b.ndim < 3 or array.shape[0] != b.shape[-1]:
        return array
    return array.reshape((1,) * (b.ndim - 1) + (-1,))
