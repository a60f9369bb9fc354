"""QLinearMul of com.microsoft."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from qrun.ir import Array
from qrun.ops._codes import Rounded, binary, common_shape, parameters, single
from qrun.ops._context import Context
from qrun.ops._native import LoweringContext, NativeKernel
from qrun.ops._native_pointwise import binary_kernel
from qrun.ops._op import Real, op
from qrun.ops._rounding import decide, two_product

if TYPE_CHECKING:
    from qrun.native.proof.fits import CodeProduct

_NAME = "QLinearMul"


@op(
    _NAME,
    since=1,
    domain="com.microsoft",
    computes=Real("Mul"),
    form="broadcast",
    types={
        "T": ("int8 uint8", "A A_zero_point B B_zero_point C_zero_point"),
        "float": ("float", "A_scale B_scale C_scale"),
    },
)
def qlinear_mul(
    A: Array,
    A_scale: Array,
    A_zero_point: Array | None,
    B: Array,
    B_scale: Array,
    B_zero_point: Array | None,
    C_scale: Array,
    C_zero_point: Array | None = None,
    *,
    ctx: Context,
) -> Array:
    """Product of two quantized tensors that broadcast, all of one 8-bit type; scales and zero points scalars or [1].

        C = saturate(RNE((A - A_zero_point) * (B - B_zero_point) * A_scale * B_scale / C_scale) + C_zero_point)

    Exact: the quotient is rounded once, as a real number, and before the zero point is added.
    ``ort``: float32 multiplier A_scale * B_scale / C_scale, and the zero point is added before rounding, as on x86;
    values beyond int32 saturate instead of wrapping. onnx.reference has no such operator: ``onnx-ref`` is exact.
    Source: onnxruntime ContribOperators, com.microsoft.QLinearMul.
    """
    shape = common_shape(_NAME, A=A, B=B)
    (sa, sb, sc), (za, zb, zc) = parameters(
        _NAME,
        ctx,
        A=(A.dtype, A_scale, A_zero_point),
        B=(B.dtype, B_scale, B_zero_point),
        C=(A.dtype, C_scale, C_zero_point),
    )

    def exact(a: Array, b: Array) -> Rounded:
        with np.errstate(all="ignore"):
            product = (a - float(za)) * (b - float(zb))
            factor = sa * sb
            return decide(product * (factor / sc), lambda at: (two_product(product[at], factor), sc))

    def ort(a: Array, b: Array) -> Rounded:
        with np.errstate(all="ignore"):
            product = ((a - float(za)) * (b - float(zb))).astype(np.float32)
            total = product * (single(sa) * single(sb) / single(sc)) + single(zc)
        return np.rint(total).astype(np.float64) - float(zc)

    return binary(A, B, shape, ort if ctx.arith == "ort" else exact, zc, ctx, "C")


@qlinear_mul.native
def _lower(site: LoweringContext) -> NativeKernel:
    return binary_kernel(site, _NAME, _near, lambda a, b: "b")


def _near(sa: np.float64, sb: np.float64, sc: np.float64, za: int, zb: int, zc: int, ort: bool) -> CodeProduct:
    from qrun.native.proof.fits import CodeProduct

    return CodeProduct(float(sa * sb / sc), za, zb, zc, ort)
