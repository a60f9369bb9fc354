"""The operator QGemm of com.microsoft."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir.types import shape_text
from qrun.ops._context import note_scale, same_type, scalar
from qrun.ops._matmul import claim_product, column_param, gemm_macs, integer_matmul
from qrun.ops._op import Array, Context, Real, contrib_op, misfit, refuse
from qrun.ops._quantize import requantize
from qrun.ops._rounding import scale_sums
from qrun.ops._signature import InputRecord
from qrun.ops.lowering.integers import (
    DynamicProduct,
    float_kernel,
    gemm_kernel,
    native_target,
    plain_scales,
    quantized_kernel,
)
from qrun.ops.lowering.kernel import LoweringContext, NativeKernel, decline_error, quiet
from qrun.shapes import broadcasts_to

if TYPE_CHECKING:
    from qrun.ops.lowering.integers import DynamicProduct

_NAME = "QGemm"
_SCALES = (1, 4, 7)


@frozen
class QGemmInputs(InputRecord):
    A: Array
    a_scale: Array
    a_zero_point: Array
    B: Array
    b_scale: Array
    b_zero_point: Array
    C: Array | None = None
    y_scale: Array | None = None
    y_zero_point: Array | None = None


@contrib_op(
    _NAME,
    computes=Real("Gemm", {"B": "gemm"}, bias="C"),
    cost=gemm_macs,
    types={"TA": ("int8 uint8", "A"), "TB": ("int8 uint8", "B"), "TC": ("int32", "C"), "TYZ": ("int8 uint8", "Y")},
)
def qgemm(given: QGemmInputs, *, alpha: float = 1.0, transA: int = 0, transB: int = 0, ctx: Context) -> Array:
    """Multiply quantized matrices and add an int32 bias.

    A [M,K] ([K,M] if transA), B [K,N] ([N,K] if transB), each int8 or uint8; C int32, broadcasting to [M,N], of scale
    alpha * a_scale * b_scale. a's and y's parameters are scalars, b's scalars or [N]; alpha is a float32 number.

        acc = sum over k of (A - a_zero_point) * (B - b_zero_point) + C            int32, wrapping
        y   = saturate(RNE(alpha * a_scale * b_scale * acc / y_scale) + y_zero_point)
        y   = alpha * a_scale * b_scale * acc, float32, if y_zero_point or both are absent

    Exact: one rounding of the real value, to an integer or to float32. ``ort``: float32 multiplier and product.
    onnx.reference has no such operator: ``onnx-ref`` is exact.
    """
    c = _check(given, (transA, transB), ctx)
    acc = integer_matmul(c.a, c.b, c.a_zero, c.b_zero, ctx, bias=given.C)
    with np.errstate(all="ignore"):
        slope = np.float32(alpha)
    factors = (c.a_scale, c.b_scale) if slope == 1 else (np.asarray(slope), c.a_scale, c.b_scale)
    if c.y_zero is not None:
        assert c.y_scale is not None
        own = replace(ctx, arith="exact") if ctx.arith == "onnx-ref" else ctx
        return requantize(acc, factors, c.y_scale, c.y_zero, own)
    if ctx.arith != "ort":
        return scale_sums(acc, factors, None, np.dtype(np.float32))
    with np.errstate(all="ignore"):
        return np.asarray(acc.astype(np.float32) * (slope * c.a_scale * c.b_scale))


@frozen
class _Checked:
    """Operands [M,K] and [K,N]; parameters of rank 0, b's perhaps shaped to broadcast to [K,N]."""

    a: Array
    b: Array
    a_scale: Array
    a_zero: Array | None
    b_scale: Array
    b_zero: Array | None
    y_scale: Array | None
    y_zero: Array | None


def _check(given: QGemmInputs, transposed: tuple[int, int], ctx: Context) -> _Checked:
    """Refuse what the page forbids and observe the scales."""
    a, b = _operands(given.A, given.B, *transposed)
    _check_bias(given.C, (a.shape[0], b.shape[1]))
    same_type(given.a_zero_point, a.dtype, "a_zero_point", "A")
    same_type(given.b_zero_point, b.dtype, "b_zero_point", "B")
    bz = column_param(given.b_zero_point, "b_zero_point", b, _NAME)
    bs = column_param(given.b_scale, "b_scale", b, _NAME)
    sa, za = scalar(given.a_scale, "a_scale", _NAME), scalar(given.a_zero_point, "a_zero_point", _NAME)
    ys, yz = scalar(given.y_scale, "y_scale", _NAME), scalar(given.y_zero_point, "y_zero_point", _NAME)
    if yz is not None and ys is None:
        what = "y_zero_point is given without y_scale"
        raise refuse(what, "y_scale", "both, or neither for a float32 result", "nothing", code="QR205")
    for name, scale in (("a_scale", sa), ("b_scale", bs), ("y_scale", ys)):
        if scale is not None:
            note_scale(ctx, scale, name)
    return _Checked(a, b, sa, za, bs, bz, ys, yz)


@qgemm.native
def _lower(site: LoweringContext) -> NativeKernel:
    given = site.input_record(QGemmInputs)
    C, y_zero = given.C, given.y_zero_point
    transposed = (site.attributes["transA"], site.attributes["transB"])
    scales_fixed = all(site.fixed[index] for index in _SCALES)
    ctx = site.ctx if y_zero is not None and scales_fixed else quiet(site)
    c = _check(given, transposed, ctx)
    claim_product(c.a, c.b, site.ctx)
    if C is not None and C.ndim == 2 and C.shape[0] != 1:
        raise decline_error("C is not one row")
    if c.y_zero is None:
        return _lower_float(site, c)
    for index in (*_SCALES, 6, 8):
        site.require_constant(index)
    assert c.y_scale is not None
    target = native_target(site, _slope(site, c.a_scale), c.b_scale, c.y_scale, c.y_zero)
    bias = _row(C, c.b.shape[1])
    if all(site.fixed[1:]):
        return gemm_kernel(site, c.a, c.b, (c.a_zero, c.b_zero), bias, target, transpose=bool(transposed[0]))

    return quantized_kernel(_product(site, c), target, 1)


def _lower_float(site: LoweringContext, c: _Checked) -> NativeKernel:
    """The native kernel of a QGemm with a float result."""

    site.require_constant(6)
    with np.errstate(all="ignore"):
        slope = np.float32(site.attributes["alpha"])
    product, plain = _product(site, c), plain_scales(site, *_SCALES)
    return float_kernel(product, (1, 4), None, plain, None if slope == 1 else np.asarray(slope))


def _product(site: LoweringContext, c: _Checked) -> DynamicProduct:
    """The int32 product of a QGemm."""

    turned = (bool(site.attributes["transA"]), bool(site.attributes["transB"]))
    return DynamicProduct(site, c.a, c.b, (0, 3, 2, 5), turned, _row(site.inputs[6], c.b.shape[1]))


def _row(bias: Array | None, columns: int) -> Array | None:
    """C, which is one row, as int32 [N]."""
    return None if bias is None else np.broadcast_to(bias.reshape(-1), (columns,))


def _slope(site: LoweringContext, scale: Array) -> Array:
    """alpha * a_scale, if that is a float32 number; else raises Declined."""
    with np.errstate(all="ignore"):
        slope = np.float32(site.attributes["alpha"])
        product = np.asarray(slope * scale)
        if slope != 1 and site.ctx.arith != "ort" and np.float64(product) != np.float64(slope) * np.float64(scale):
            raise decline_error("alpha * a_scale is not a float32 number")
    return product


def _operands(a: Array, b: Array, trans_a: int, trans_b: int) -> tuple[Array, Array]:
    """A and B, transposed as the attributes say. Raises OperatorError."""
    if a.ndim == b.ndim == 2:
        left, right = (a.T if trans_a else a), (b.T if trans_b else b)
        if left.shape[1] == right.shape[0]:
            return left, right
    expected = f"A {'[K,M]' if trans_a else '[M,K]'} and B {'[N,K]' if trans_b else '[K,N]'}, matrices with one K"
    got = f"A {shape_text(a.shape)}, B {shape_text(b.shape)}"
    raise misfit("A and B cannot be multiplied", "B", expected, got, fix="check transA and transB")


def _check_bias(bias: Array | None, shape: tuple[int, int]) -> None:
    """Raise OperatorError unless C broadcasts to the product."""
    if bias is not None and not broadcasts_to(bias.shape, shape):
        expected = f"a shape that broadcasts to {shape_text(shape)}"
        why = f"{_NAME}: C is unidirectionally broadcastable to (M, N)."
        raise refuse("C does not broadcast to the product", "C", expected, bias, why=why, code="QR305")
