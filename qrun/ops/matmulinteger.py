"""Integer matrix products: MatMulInteger, QLinearMatMul, and MatMulIntegerToFloat and DynamicQuantizeMatMul of
com.microsoft."""

from __future__ import annotations

import numpy as np

from qrun.declare.frozen import frozen, replace
from qrun.ir.schema import OWN
from qrun.ir.types import FLOAT8, shape_text
from qrun.ops._complete import NEVER, Finite, Settled
from qrun.ops._context import note_scale, same_type, scalar
from qrun.ops._granularity import check_no_zero_point
from qrun.ops._matmul import (
    check_matmul,
    check_product,
    claim_product,
    column_param,
    float_matmul,
    integer_matmul,
    matmul,
    matmul_macs,
    matmul_shape,
    row_param,
)
from qrun.ops._op import Array, Context, Real, contrib_op, op
from qrun.ops._quantize import narrow, quantize_dynamically, requantize, store
from qrun.ops._rounding import DoubleDouble, scale_pair, two_product
from qrun.ops._signature import InputRecord
from qrun.ops.lowering.integers import (
    DynamicProduct,
    Given,
    float_kernel,
    gemm_kernel,
    native_target,
    plain_scales,
    quantize_stages,
    quantized_kernel,
    scaled_stages,
)
from qrun.ops.lowering.kernel import LoweringContext, NativeKernel, decline_error, quiet, require_type, staged_kernel

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
    """Multiply integer matrices with an int32 result; shapes are as in numpy.matmul.

    A [...,M,K], B [...,K,N], each int8 or uint8; a_zero_point scalar, [M] for 2-D A, or [...,M,1];
    b_zero_point scalar, [N] for 2-D B, or [...,1,N].

        Y = sum over k of (A - a_zero_point) * (B - b_zero_point)            int32, wrapping

    Exact.
    """
    az, bz = _check(A, B, a_zero_point, b_zero_point)
    return np.asarray(matmul_shape(integer_matmul(A, B, az, bz, ctx), A, B)).astype(np.int32)


def _check(A: Array, B: Array, a_zero: Array | None, b_zero: Array | None) -> tuple[Array | None, Array | None]:
    """Refuse what the page forbids; returns the zero points, reshaped to broadcast."""
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
    """Multiply quantized tensors and return a float result; shapes are as in numpy.matmul.

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
    """Quantize a float32 tensor to uint8 on the fly and multiply it by a quantized tensor, as numpy.matmul.

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
    codes, scale, zero = quantize_dynamically(A, "ort" if ctx.arith == "ort" else "exact", "A")
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
    before = quantize_stages(site.engine, a, ("codes", "scale", "zero"))
    complete = NEVER if product.wraps else Finite()
    return staged_kernel(site, [*before, *stages], shown, complete, plain_scales(site, 2))


_QLINEAR = "QLinearMatMul"
_CENTRED = 255
"""The largest difference between a code and a zero point."""


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
    """Multiply quantized matrices and quantize the result; shapes are as in numpy.matmul.

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
    c = _check_qlinear(given, ctx)
    return _qlinear_product(given, c, c.is_real, ctx)


def _qlinear_product(given: QLinearMatMulInputs, c: _Checked, is_real: bool, ctx: Context) -> Array:
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
    """QLinearMatMul without its int32: it replaces a MatMul of dequantized tensors whose K is known only at run time.

    As that of ai.onnx, for 8-bit codes, if K is so small that no sum can leave int32; for a longer K the real value,
    rounded once in every arithmetic.
    """
    return _qlinear_product(given, _check_qlinear(given, ctx), not _fits_int32(given.a), ctx)


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


def _check_qlinear(given: QLinearMatMulInputs, ctx: Context) -> _Checked:
    """Refuse what the page forbids and observe the parameters."""
    a, b = given.a, given.b
    check_matmul(a, b, ("a", "b"))
    same_type(given.a_zero_point, a.dtype, "a_zero_point", "a")
    same_type(given.b_zero_point, b.dtype, "b_zero_point", "b")
    az = row_param(given.a_zero_point, "a_zero_point", a, _QLINEAR)
    bz = column_param(given.b_zero_point, "b_zero_point", b, _QLINEAR)
    scale_a = row_param(given.a_scale, "a_scale", a, _QLINEAR)
    scale_b = column_param(given.b_scale, "b_scale", b, _QLINEAR)
    ys = scalar(given.y_scale, "y_scale", _QLINEAR)
    yz = scalar(given.y_zero_point, "y_zero_point", _QLINEAR)
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
def _lower_qlinear(site: LoweringContext) -> NativeKernel:
    given = site.input_record(QLinearMatMulInputs)
    a, b, c = given.a, given.b, _check_qlinear(given, site.ctx)
    claim_product(a, b, site.ctx)
    for index in (1, 4, 6, 7):
        site.require_constant(index)
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
        raise decline_error("its sums may not fit int32")
    return _lower_qlinear(site)


def _real_matmul(a: Array, a_zero: Array, b: Array, b_zero: Array, ctx: Context) -> Array:
    """(a - a_zero) @ (b - b_zero) in float64."""
    left, right = claim_product(a, b, ctx, 48)
    left, right = (x.astype(np.float64) - zero.astype(np.float64) for x, zero in ((left, a_zero), (right, b_zero)))
    with np.errstate(all="ignore"):
        return matmul(left, right)


def _real_quotient(
    acc: Array, a_scale: Array, b_scale: Array, y_scale: Array, zero_point: Array, ctx: Context
) -> Array:
    """acc * a_scale * b_scale / y_scale rounded once to the type of zero_point, which is added if an integer.

    The float32 nearest to the quotient is compared with it exactly and moved towards it, by less than its distance from
    any tie.
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
    """The sign of a - b, element by element."""
    return np.asarray(np.where(a.hi == b.hi, np.sign(a.lo - b.lo), np.sign(a.hi - b.hi)))
