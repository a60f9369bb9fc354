"""QLinearMatMul."""

from __future__ import annotations

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir.schema import OWN
from qrun.ir.types import FLOAT8, shape_text
from qrun.ops._context import note_scale, same_type, scalar
from qrun.ops._granularity import check_no_zero_point
from qrun.ops._matmul import (
    check_matmul,
    claim_product,
    column_param,
    integer_matmul,
    matmul,
    matmul_macs,
    matmul_shape,
    row_param,
)
from qrun.ops._op import Array, Context, Real, op
from qrun.ops._quantize import narrow, requantize, store
from qrun.ops._rounding import DoubleDouble, scale_pair, two_product
from qrun.ops._signature import InputRecord
from qrun.ops.lowering.dynamic import DynamicProduct, quantized_kernel
from qrun.ops.lowering.integers import gemm_kernel, native_target
from qrun.ops.lowering.kernel import LoweringContext, NativeKernel, declined

_NAME = "QLinearMatMul"
_CENTRED = 255
"""The most that a code can differ from a zero point."""


@frozen
class QLinearMatMulInputs(InputRecord):
    a: Array
    a_scale: Array
    a_zero_point: Array
    b: Array
    b_scale: Array
    b_zero_point: Array
    y_scale: Array
    y_zero_point: Array


@op("QLinearMatMul", since=10, cost=matmul_macs, computes=Real("MatMul", {"a": "row", "b": "column"}))
def qlinear_matmul(given: QLinearMatMulInputs, *, ctx: Context) -> Array:
    """Matrix product of quantized tensors, shapes as numpy.matmul.

    a [...,M,K], b [...,K,N], each int8, uint8 or (21) float8. a's parameters: scalar, [M] for 2-D a, or [...,M,1];
    b's: scalar, [N] for 2-D b, or [...,1,N]; y's: scalars. Scales float32, float16 or bfloat16. Output:
    y_zero_point's type.

        acc = sum over k of (a - a_zero_point) * (b - b_zero_point)          int32, wrapping; real for float8
        y   = saturate(RNE(acc * a_scale * b_scale / y_scale) + y_zero_point)

    Exact: the scales multiply as real numbers and the quotient is rounded once, before the zero point is added.
    ``ort``: float32(acc) times the float32 number a_scale * b_scale / y_scale, each step rounded to float32.
    ``onnx-ref``: a multiplier from steps in y_scale's type, times acc in float64, the zero point added before
    rounding. float8, in every arithmetic: products are exact and
    summed in float64, so the sum is exact while its terms span 53 bits (always, for e4m3 and K below 2**17); y of
    float8 is rounded once to the nearest, ties to even, and saturates; float8 zero points must be 0.
    """
    c = _check(given, ctx)
    return _product(given, c, c.is_real, ctx)


def _product(given: QLinearMatMulInputs, c: _Checked, is_real: bool, ctx: Context) -> Array:
    """The requantized product. is_real: its sums are real numbers, not int32."""
    a, b = given.a, given.b
    if is_real:
        y = _real_quotient(_real_matmul(a, c.a_zero, b, c.b_zero, ctx), c.a_scale, c.b_scale, c.y_scale, c.y_zero, ctx)
    else:
        acc = integer_matmul(a, b, c.a_zero, c.b_zero, ctx)
        y = requantize(acc, (c.a_scale, c.b_scale), c.y_scale, c.y_zero, ctx)
    return np.asarray(matmul_shape(y, a, b))


@op(
    "QLinearMatMul",
    since=1,
    domain=OWN,
    cost=matmul_macs,
    types={"T1": ("int8 uint8", "a"), "T2": ("int8 uint8", "b"), "T3": ("int8 uint8", "y")},
)
def wide_matmul(given: QLinearMatMulInputs, *, ctx: Context) -> Array:
    """What a MatMul of dequantized tensors becomes whose K is known at run time only: QLinearMatMul without its int32.

    As that of ai.onnx, for 8-bit codes, where K is so small that no sum can leave int32; for a longer K the real value,
    rounded once in every arithmetic.
    """
    return _product(given, _check(given, ctx), not _fits_int32(given.a), ctx)


def _fits_int32(a: Array) -> bool:
    """Whether no sum of K products of centred codes (code - zero point) can leave int32; K: the length of a's rows."""
    return bool(a.shape[-1] * _CENTRED**2 < 2**31)


@frozen
class _Checked:
    """Parameters that broadcast to the operands; is_real: float8 is among the types."""

    a_scale: Array
    a_zero: Array
    b_scale: Array
    b_zero: Array
    y_scale: Array
    y_zero: Array
    is_real: bool


def _check(given: QLinearMatMulInputs, ctx: Context) -> _Checked:
    """Refuse what the page forbids and observe the parameters."""
    a, b = given.a, given.b
    check_matmul(a, b, ("a", "b"))
    same_type(given.a_zero_point, a.dtype, "a_zero_point", "a")
    same_type(given.b_zero_point, b.dtype, "b_zero_point", "b")
    az = row_param(given.a_zero_point, "a_zero_point", a, _NAME)
    bz = column_param(given.b_zero_point, "b_zero_point", b, _NAME)
    scale_a = row_param(given.a_scale, "a_scale", a, _NAME)
    scale_b = column_param(given.b_scale, "b_scale", b, _NAME)
    ys = scalar(given.y_scale, "y_scale", _NAME)
    yz = scalar(given.y_zero_point, "y_zero_point", _NAME)
    for name, scale in (("a_scale", scale_a), ("b_scale", scale_b), ("y_scale", ys)):
        note_scale(ctx, scale, name)
    for name, scale, zero in (("a_zero_point", scale_a, az), ("b_zero_point", scale_b, bz)):
        if scale.shape != zero.shape:
            detail = f"scale {shape_text(scale.shape)}, zero point {shape_text(zero.shape)}"
            ctx.observe("mixed-granularity", name, 1, 1, (), detail)
    is_real = bool(FLOAT8 & {a.dtype, b.dtype, yz.dtype})
    if is_real:
        for name, zero in (("a_zero_point", az), ("b_zero_point", bz), ("y_zero_point", yz)):
            if zero.dtype in FLOAT8:
                check_no_zero_point(zero, name, "the zero point of float8 is not used.")
    return _Checked(scale_a, az, scale_b, bz, ys, yz, is_real)


@qlinear_matmul.native
def _lower(site: LoweringContext) -> NativeKernel:
    given = site.given(QLinearMatMulInputs)
    a, b, c = given.a, given.b, _check(given, site.ctx)
    claim_product(a, b, site.ctx)
    for place in (1, 4, 6, 7):
        site.require_constant(place)
    matrices = int(np.prod(b.shape[:-2], dtype=np.int64)) if c.b_scale.ndim > 2 else 1
    scale = c.b_scale
    if matrices > 1:
        scale = np.broadcast_to(scale, (*b.shape[:-2], 1, scale.shape[-1]))
    target = native_target(site, c.a_scale, scale, c.y_scale, c.y_zero)
    if all(site.fixed[1:]) and b.ndim == 2 and not c.a_zero.ndim:
        return gemm_kernel(site, a, b, (c.a_zero, c.b_zero), None, target)
    return quantized_kernel(DynamicProduct(site, a, b, (0, 3, 2, 5)), target, matrices)


@wide_matmul.native
def _lower_wide(site: LoweringContext) -> NativeKernel:
    a = site.inputs[0]
    if a is not None and a.ndim and not _fits_int32(a):
        raise declined("its sums may not fit int32")
    return _lower(site)


def _real_matmul(a: Array, a_zero: Array, b: Array, b_zero: Array, ctx: Context) -> Array:
    left, right = claim_product(a, b, ctx, 48)
    left, right = (x.astype(np.float64) - zero.astype(np.float64) for x, zero in ((left, a_zero), (right, b_zero)))
    with np.errstate(all="ignore"):
        return matmul(left, right)


def _real_quotient(
    acc: Array, a_scale: Array, b_scale: Array, y_scale: Array, zero_point: Array, ctx: Context
) -> Array:
    """acc * a_scale * b_scale / y_scale rounded once to the type of zero_point, which is added if an integer.

    The float32 nearest to the quotient is compared with it exactly and moved to its side, by less than what
    separates it from any tie.
    """
    first, second, den = (np.asarray(s, np.float64) for s in (a_scale, b_scale, y_scale))
    with np.errstate(all="ignore"):
        guess = (acc * (first * second) / den).astype(np.float32).astype(np.float64)
        num = scale_pair(two_product(acc, first), second)
        bound = two_product(guess, den)
        above = _compare(num, bound) * np.sign(den)
        moved = np.nextafter(guess, np.where(above > 0, np.inf, -np.inf))
        quotient = np.where((above == 0) | np.isnan(above) | ~np.isfinite(guess), guess, moved)
        out = np.empty(acc.shape, zero_point.dtype)
        if zero_point.dtype in FLOAT8:
            out[...] = narrow(quotient, zero_point.dtype)
        elif out.size:
            store(np.rint(quotient), zero_point, out, ctx)
    return out


def _compare(a: DoubleDouble, b: DoubleDouble) -> Array:
    return np.asarray(np.where(a.hi == b.hi, np.sign(a.lo - b.lo), np.sign(a.hi - b.hi)))
