"""Elementwise operators of quantized tensors: QLinearAdd, QLinearMul and QLinearWhere of com.microsoft."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ops._codes import Rounded, all_codes, binary, common_shape, lookup, parameters, requantized, single
from qrun.ops._op import Array, Context, Real, Shape, contrib_op
from qrun.ops._rounding import decide, fma32, two_product, two_sum
from qrun.ops._signature import InputRecord
from qrun.ops.lowering.kernel import LoweringContext, NativeKernel
from qrun.ops.lowering.pointwise import binary_kernel
from qrun.shapes import broadcast_shapes

if TYPE_CHECKING:
    from qrun.native.proof.fits import CodeProduct, CodeSum

_ADD = "QLinearAdd"


@frozen
class BinaryInputs(InputRecord):
    A: Array
    A_scale: Array
    A_zero_point: Array | None
    B: Array
    B_scale: Array
    B_zero_point: Array | None
    C_scale: Array
    C_zero_point: Array | None = None


@contrib_op(_ADD, computes=Real("Add"), form="broadcast", types={"T": ("int8 uint8", "A B C")})
def qlinear_add(given: BinaryInputs, *, ctx: Context) -> Array:
    """Sum of two quantized tensors that broadcast, all of one 8-bit type; scales and zero points are scalars or [1].

        C = saturate(RNE((A_scale * (A - A_zero_point) + B_scale * (B - B_zero_point)) / C_scale) + C_zero_point)

    Exact: the quotient is rounded once, as a real number, and before the zero point is added.
    ``ort``: a chain of float32 multiply-adds that ends with the zero point, rounded after it, as on x86 with FMA;
    values beyond int32 saturate instead of wrapping. onnx.reference has no such operator: ``onnx-ref`` is exact.
    """
    shape = common_shape(_ADD, A=given.A, B=given.B)
    (sa, sb, sc), (za, zb, zc) = parameters(_ADD, given, ctx)
    order = _scalar_side(given.A.shape, given.B.shape)

    def exact(a: Array, b: Array) -> Rounded:
        with np.errstate(all="ignore"):
            both = (a - float(za)) * sa, (b - float(zb)) * sb
            left, right = (np.broadcast_to(x, broadcast_shapes(*(x.shape for x in both))) for x in both)
            return decide((left + right) / sc, lambda at: (two_sum(left[at], right[at]), sc))

    def ort(a: Array, b: Array) -> Rounded:
        with np.errstate(all="ignore"):
            ac, bc = single(sa) / single(sc), single(sb) / single(sc)
            if order == "a":
                a, b, ac, bc = b, a, bc, ac
                fixed = single(zc) - fma32(ac, single(zb), bc * single(za))
            else:
                fixed = single(zc) - fma32(ac, single(za), bc * single(zb))
            total = fma32(a, ac, fma32(b, bc, fixed))
        return np.rint(total).astype(np.float64) - float(zc)

    return binary(given.A, given.B, shape, ort if ctx.arith == "ort" else exact, zc, ctx, "C")


def _scalar_side(a: Shape, b: Shape) -> str:
    """Which operand onnxruntime folds into the constant: the one that is a scalar for each inner loop ("a"), else B."""
    pairs = list(zip(reversed(a), reversed(b), strict=False))
    if not a or not b:
        pairs = [((a or (1,))[-1], (b or (1,))[-1])]
    inner = next((p for p in pairs if p != (1, 1)), (1, 1))
    return "a" if inner[0] == 1 != inner[1] else "b"


@qlinear_add.native
def _lower_add(site: LoweringContext) -> NativeKernel:
    return binary_kernel(site, _ADD, _near_sum, _scalar_side)


def _near_sum(sa: np.float64, sb: np.float64, sc: np.float64, za: int, zb: int, zc: int, ort: bool) -> CodeSum:
    from qrun.native.proof.fits import CodeSum

    return CodeSum(float(sa / sc), float(sb / sc), za, zb, zc, ort)


_MUL = "QLinearMul"


@contrib_op(_MUL, computes=Real("Mul"), form="broadcast", types={"T": ("int8 uint8", "A B C")})
def qlinear_mul(given: BinaryInputs, *, ctx: Context) -> Array:
    """Product of two quantized tensors that broadcast, all of one 8-bit type; scales and zero points scalars or [1].

        C = saturate(RNE((A - A_zero_point) * (B - B_zero_point) * A_scale * B_scale / C_scale) + C_zero_point)

    Exact: the quotient is rounded once, as a real number, and before the zero point is added.
    ``ort``: float32 multiplier A_scale * B_scale / C_scale, and the zero point is added before rounding, as on x86;
    values beyond int32 saturate instead of wrapping. onnx.reference has no such operator: ``onnx-ref`` is exact.
    """
    shape = common_shape(_MUL, A=given.A, B=given.B)
    (sa, sb, sc), (za, zb, zc) = parameters(_MUL, given, ctx)

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

    return binary(given.A, given.B, shape, ort if ctx.arith == "ort" else exact, zc, ctx, "C")


@qlinear_mul.native
def _lower_mul(site: LoweringContext) -> NativeKernel:
    return binary_kernel(site, _MUL, _near_product, lambda a, b: "b")


def _near_product(sa: np.float64, sb: np.float64, sc: np.float64, za: int, zb: int, zc: int, ort: bool) -> CodeProduct:
    from qrun.native.proof.fits import CodeProduct

    return CodeProduct(float(sa * sb / sc), za, zb, zc, ort)


_WHERE = "QLinearWhere"


@frozen
class WhereInputs(InputRecord):
    condition: Array
    X: Array
    x_scale: Array
    x_zero_point: Array
    Y: Array
    y_scale: Array
    y_zero_point: Array
    z_scale: Array
    z_zero_point: Array


@contrib_op(
    _WHERE,
    computes=Real("Where"),
    types={
        "B": ("bool", "condition"),
        "T": ("int8 uint8", "X Y Z"),
    },
)
def qlinear_where(given: WhereInputs, *, ctx: Context) -> Array:
    """X where condition holds, else Y, requantized; the three broadcast. X, Y, Z of one 8-bit type, scalar parameters.

        Z = saturate(RNE((V - v_zero_point) * v_scale / z_scale) + z_zero_point),    V = X or Y

    Exact: the quotient is rounded once, as a real number. ``ort``: float32 product and quotient; equal parameters
    copy. onnx.reference has no such operator: ``onnx-ref`` is exact.
    """
    condition, X, Y = given.condition, given.X, given.Y
    shape = common_shape(_WHERE, condition=condition, X=X, Y=Y)
    (xs, ys, zs), (xz, yz, zz) = parameters(_WHERE, given, ctx)
    table = np.concatenate(
        [requantized(all_codes(X.dtype), xz, xs, zz, zs, ctx), requantized(all_codes(Y.dtype), yz, ys, zz, zs, ctx)]
    )
    ctx.claim(shape, 3)
    index = np.where(condition, X.view(np.uint8), Y.view(np.uint8).astype(np.uint16) + np.uint16(256))
    return lookup((index,), shape, table, zz, ctx, "Z")
