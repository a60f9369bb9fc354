"""AMD Quark's operators (com.amd.quark) and the same ones under their former names, which vai_q_onnx wrote
(com.vai.quantize): QuantizeLinear and DequantizeLinear with more types, block floating point and Microscaling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from qrun.ir.schema import QUARK, VAI
from qrun.ops._context import note_scale, same_type
from qrun.ops._granularity import Grain, grain
from qrun.ops._op import Array, Context, Kernel, OpDef, Real, bad_attribute, one_of, op, refuse, require
from qrun.ops._quantize import Counts, largest, narrow, round_codes
from qrun.ops._signature import Form, Types

_HALVES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
_CODES = "int8 uint8 int16 uint16 int32 uint32 float16 bfloat16"


def _quark_op(
    name: str, former: str, types: Types, form: Form = "", computes: Real | None = None
) -> Callable[[Kernel], OpDef]:
    """Declare an operator under both its names. Returns the declaration of the current one."""

    def declare(kernel: Kernel) -> OpDef:
        op(former, since=1, domain=VAI, types=types, form=form, computes=computes)(kernel)
        return op(name, since=1, domain=QUARK, types=types, form=form, computes=computes)(kernel)

    return declare


@_quark_op(
    "ExtendedQuantizeLinear",
    "VitisQuantizeLinear",
    {"T1": ("float", "x y_scale"), "T3": (_CODES, "y")},
    "pointwise",
    Real("Identity", {"y": "axis"}),
)
def extended_quantize_linear(
    x: Array, y_scale: Array, y_zero_point: Array | None = None, *, axis: int | None = None, ctx: Context
) -> Array:
    """QuantizeLinear of float32 x, of any shape, to integers of up to 32 bits, float16 or bfloat16.

    y_scale float32, a scalar or [n] along axis; y_zero_point of y_scale's shape. y: y_zero_point's type, else uint8.

        y = saturate(round to even(x / y_scale) + y_zero_point)       integers
        y = round to even(saturate(x / y_scale + y_zero_point))       float16, bfloat16

    The quotient is one float32 operation, and so is the sum for float16 and bfloat16; the sum of integers is exact.
    NaN becomes the smallest integer, and stays NaN in float16 and bfloat16, which saturate at their largest number.
    Quark's library ignores scale and zero point for float16, does not saturate bfloat16, and needs a zero point.

    Raises OperatorError for shapes and types that do not fit, and for [n] scales without axis, for which Quark's page
    says axis 1 and its library takes 0. Source: AMD Quark documentation, com.amd.quark.ExtendedQuantizeLinear.
    """
    form = _grain(x, y_scale, y_zero_point, axis, ("y_scale", "y_zero_point"), "ExtendedQuantizeLinear")
    note_scale(ctx, y_scale, "y_scale")
    y = np.empty(x.shape, np.uint8 if y_zero_point is None else y_zero_point.dtype)
    counts = Counts(ctx.observing)
    for part, out, scale, zero in form.views(np.ascontiguousarray(x).reshape(x.shape), y, y_scale, y_zero_point):
        with np.errstate(all="ignore"):
            q = part / scale
            if y.dtype in _HALVES:
                out[...] = _to_half(q if y_zero_point is None else q + zero.astype(np.float32), y.dtype, counts)
            else:
                round_codes(q.astype(np.float64), None if y_zero_point is None else zero, out, counts)
    counts.report(ctx, x)
    return y


def _to_half(values: Array, dtype: np.dtype[Any], counts: Counts) -> Array:
    """The nearest numbers of float16 or bfloat16, the largest ones in place of those beyond."""
    top = np.float32(largest(dtype))
    counts.saturated += int(np.count_nonzero(np.abs(values) > top)) if counts.observing else 0
    return np.clip(values, -top, top).astype(dtype)


@_quark_op(
    "ExtendedDequantizeLinear",
    "VitisDequantizeLinear",
    {"T1": (_CODES, "x"), "T2": ("float", "x_scale")},
    "pointwise",
    Real("Identity", {"x": "axis"}),
)
def extended_dequantize_linear(
    x: Array, x_scale: Array, x_zero_point: Array | None = None, *, axis: int | None = None, ctx: Context
) -> Array:
    """DequantizeLinear of integers of up to 32 bits, float16 or bfloat16, of any shape; y is float32.

    x_scale float32, a scalar or [n] along axis; x_zero_point of x's type and x_scale's shape.

        y = (x - x_zero_point) * x_scale

    The difference is exact, then float32; for float16 and bfloat16 it is one float32 operation. So is the product.
    Quark's library ignores scale and zero point for float16, and needs a zero point.

    Raises OperatorError for shapes and types that do not fit, and for [n] scales without axis, for which Quark's page
    says axis 1 and its library takes 0. Source: AMD Quark documentation, com.amd.quark.ExtendedDequantizeLinear.
    """
    same_type(x_zero_point, x.dtype, "x_zero_point", "x")
    form = _grain(x, x_scale, x_zero_point, axis, ("x_scale", "x_zero_point"), "ExtendedDequantizeLinear")
    note_scale(ctx, x_scale, "x_scale")
    ctx.claim(x.shape, 4)
    y, wide = np.empty(x.shape, np.float32), np.float32 if x.dtype in _HALVES else np.int64
    for part, out, scale, zero in form.views(np.ascontiguousarray(x).reshape(x.shape), y, x_scale, x_zero_point):
        with np.errstate(all="ignore"):
            codes = part.astype(wide) if x_zero_point is None else part.astype(wide) - zero.astype(wide)
            np.multiply(codes.astype(np.float32), scale, out=out)
    return y


def _grain(x: Array, scale: Array, zero: Array | None, axis: int | None, names: tuple[str, str], op_type: str) -> Grain:
    """How scales cover x. Raises OperatorError if they do not."""
    if axis is None and scale.ndim == 1 and scale.size != 1:
        why = "without axis, Quark's page says axis 1, and its library takes axis 0."
        raise refuse(
            "axis is missing", "axis", "the axis of the scales", "none", why=why, fix="write axis", code="QR204"
        )
    return grain(x, scale, zero, axis or 0, 0, op_type, 1, names)


def _half_away(v: Array) -> Array:
    return np.copysign(np.floor(np.abs(v) + 0.5), v)


def _half_up(v: Array) -> Array:
    return np.copysign(np.floor(v + 0.5), v)


_ROUNDINGS: tuple[Callable[[Array], Array], ...] = (_half_away, _half_up, np.rint)
"""By rounding_mode. They take float64 with at most 24 significant bits, for which adding 0.5 is exact or harmless."""
_SPECIAL = 255
"""The biased exponent of infinity and NaN in float32."""
_BIAS = 127


def _exponents(x: Array) -> Array:
    """The biased exponents of float32 numbers; 0 for subnormal ones."""
    return np.asarray((x.view(np.uint32) >> 23) & 255, np.int64)


def _by_blocks(x: Array, axis: int, block_size: int, quantize: Callable[[Array], Array], ctx: Context) -> Array:
    """`quantize` applied to blocks [lanes, count, block_size] along an axis, the last one filled with zeros.

    As in Quark's library, a tensor of one axis ignores `axis`, and one number alone is returned unchanged.
    """
    require("block_size", block_size >= 1, "1 or more", block_size)
    if x.size <= 1:
        return x.copy()
    axis = 0 if x.ndim == 1 else axis
    require("axis", -x.ndim <= axis < x.ndim, f"{-x.ndim} to {x.ndim - 1}", axis)
    rows = np.moveaxis(x, axis, -1)
    length, lanes = rows.shape[-1], x.size // rows.shape[-1]
    count = -(-length // block_size)
    ctx.claim((lanes, count * block_size), 32, "blocks")
    padded = np.zeros((lanes, count * block_size), np.float32)
    padded[:, :length] = rows.reshape(lanes, length)
    with np.errstate(all="ignore"):
        made = quantize(padded.reshape(lanes, count, block_size)).astype(np.float32)
    made = made.reshape(padded.shape)[:, :length].reshape(rows.shape)
    return np.ascontiguousarray(np.moveaxis(made, -1, axis))


@_quark_op("BFPQuantizeDequantize", "BFPFixNeuron", {"T": ("float", "x")})
def bfp_quantize_dequantize(
    x: Array,
    *,
    bfp_method: str = "to_bfp",
    axis: int = 1,
    bit_width: int = 16,
    block_size: int = 8,
    rounding_mode: int = 0,
    sub_block_size: int = 2,
    sub_block_shift_bits: int = 1,
    convert_to_bfloat_before_bfp: int = 0,
    use_compiler_version_cpu_kernel: int = 0,
    ctx: Context,
) -> Array:
    """x in block floating point: blocks of block_size numbers along axis share an exponent. float32, any shape.

    m = bit_width - 9 bits of mantissa. e is the largest exponent of the block's finite numbers (2**e <= |x|), -127 if
    all are 0 or subnormal. bfp_method to_bfp:

        s = 2**(e + 1 - m)
        y = clip(round(x / s) * s, -(2**(e + 1) - s), 2**(e + 1) - s)           infinity and NaN are kept

    to_bfp_prime (MX4, MX6, MX9), whose sub-blocks have exponents E of their own, where their numbers are small:

        E = max(largest exponent of the sub-block, e - (2**sub_block_shift_bits - 1)),  s = 2**(E + 1 - m)
        y = clip(round(x / s), -(2**m - 1), 2**m - 1) * s
        subnormal x become 0; a block with infinity or NaN becomes NaN

    rounding_mode: 0 half away from zero, 1 half up, 2 half to even. Exact. convert_to_bfloat_before_bfp: x is rounded
    to bfloat16 first. A tensor of one axis ignores axis, and one number alone is returned unchanged, as in Quark's
    library. Zeros keep the sign of x, but with to_bfp and rounding_mode 2 only 0 itself does: others become +0.

    Raises OperatorError for other attributes, bit_width outside 10 to 32, sub-blocks that do not divide a block, and
    use_compiler_version_cpu_kernel, which Quark's page does not describe.
    Source: AMD Quark documentation, com.amd.quark.BFPQuantizeDequantize; amd-quark 0.13, whose code states the steps.
    """
    one_of("bfp_method", bfp_method, ("to_bfp", "to_bfp_prime", "to_bfp_prime_shared"))
    one_of("rounding_mode", rounding_mode, range(len(_ROUNDINGS)))
    require("bit_width", 10 <= bit_width <= 32, "10 to 32", bit_width)
    one_of("use_compiler_version_cpu_kernel", use_compiler_version_cpu_kernel, (0,))
    if convert_to_bfloat_before_bfp:
        with np.errstate(all="ignore"):
            x = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    bits, rounded = bit_width - 9, _ROUNDINGS[rounding_mode]
    if bfp_method == "to_bfp":
        return _by_blocks(x, axis, block_size, lambda blocks: _to_bfp(blocks, bits, rounded), ctx)
    fits = 0 < sub_block_size <= block_size and block_size % sub_block_size == 0
    require("sub_block_size", fits, f"a divisor of block_size, {block_size}", sub_block_size)
    require("sub_block_shift_bits", 0 <= sub_block_shift_bits <= 8, "0 to 8", sub_block_shift_bits)
    most = 2**sub_block_shift_bits - 1
    return _by_blocks(x, axis, block_size, lambda b: _to_bfp_prime(b, bits, rounded, sub_block_size, most), ctx)


def _shared(blocks: Array) -> tuple[Array, Array]:
    """Each block's exponent, with an axis of length 1, and where numbers are infinite or NaN."""
    exponents = _exponents(blocks)
    special = exponents == _SPECIAL
    return np.where(special, 0, exponents).max(axis=-1, keepdims=True) - _BIAS, special


def _to_bfp(blocks: Array, bits: int, rounded: Callable[[Array], Array]) -> Array:
    exponent, special = _shared(blocks)
    step = np.ldexp(1.0, exponent + 1 - bits)
    quotient = blocks / step
    codes = rounded(quotient)
    if rounded is np.rint:
        codes = np.where(quotient == 0, quotient, codes + 0.0)  # -0 + 0 is 0
    top = np.ldexp(1.0, exponent + 1) - step
    return np.where(special, blocks, np.clip(codes * step, -top, top))


def _to_bfp_prime(blocks: Array, bits: int, rounded: Callable[[Array], Array], size: int, most: int) -> Array:
    exponents = _exponents(blocks)
    shared = exponents.max(axis=-1, keepdims=True)
    smaller = exponents.reshape(*exponents.shape[:-1], -1, size).max(axis=-1)
    own = np.repeat(np.maximum(smaller, shared - most), size, axis=-1)
    step = np.ldexp(1.0, own - _BIAS + 1 - bits)
    codes = np.minimum(np.abs(rounded(np.where(exponents == 0, 0, blocks) / step)), 2**bits - 1)
    return np.where(shared == _SPECIAL, np.nan, np.copysign(codes * step, blocks))


_ELEMENTS: dict[str, tuple[np.dtype[Any], int]] = {
    "fp8_e5m2": (np.dtype(ml_dtypes.float8_e5m2), 15),
    "fp8_e4m3": (np.dtype(ml_dtypes.float8_e4m3fn), 8),
    "fp6_e3m2": (np.dtype(ml_dtypes.float6_e3m2fn), 4),
    "fp6_e2m3": (np.dtype(ml_dtypes.float6_e2m3fn), 2),
    "fp4_e2m1": (np.dtype(ml_dtypes.float4_e2m1fn), 2),
}
"""Element types of floats, with the exponent of their largest number."""


@_quark_op("MXQuantizeDequantize", "MXFixNeuron", {"T": ("float", "x")})
def mx_quantize_dequantize(
    x: Array,
    *,
    element_dtype: str = "int8",
    axis: int = 1,
    block_size: int = 32,
    rounding_mode: int = 0,
    ctx: Context,
) -> Array:
    """x in an OCP Microscaling format: block_size numbers along axis share a power of two. float32, any shape.

    e is the largest exponent of the block's finite numbers (2**e <= |x|), -127 if all are 0 or subnormal.

        s = 2**(e - emax)                  emax: that of the element type's largest number, 0 for int8
        y = narrow(x / s) * s              fp8_e5m2, fp8_e4m3, fp6_e3m2, fp6_e2m3, fp4_e2m1: ties to even, saturated
        y = clip(round(x / s * 64), -128, 127) / 64 * s                         int8

    rounding_mode, for int8: 0 half away from zero, 1 half up, 2 half to even. Exact; the last product is rounded to
    float32. Infinity and NaN are kept. Zeros are positive, but those of int8 keep the sign of x, with rounding_mode 2
    only if x is 0. A tensor of one axis ignores axis, and one number alone is returned unchanged, as in Quark's
    library.

    Raises OperatorError for other attributes, and for elements of floats with a rounding_mode other than 2: Quark's
    page says that it counts, and its library always rounds ties to even.
    Source: AMD Quark documentation, com.amd.quark.MXQuantizeDequantize; amd-quark 0.13, whose code states the steps.
    """
    one_of("element_dtype", element_dtype, ("int8", *_ELEMENTS))
    one_of("rounding_mode", rounding_mode, range(len(_ROUNDINGS)))
    if element_dtype != "int8" and rounding_mode != 2:
        raise bad_attribute("rounding_mode", f"2, because element_dtype is {element_dtype}", rounding_mode)
    return _by_blocks(x, axis, block_size, lambda blocks: _to_mx(blocks, element_dtype, rounding_mode), ctx)


def _to_mx(blocks: Array, element_dtype: str, rounding_mode: int) -> Array:
    exponent, special = _shared(blocks)
    if element_dtype == "int8":
        step = np.ldexp(1.0, exponent - 6)
        quotient = blocks / step
        codes = np.clip(_ROUNDINGS[rounding_mode](quotient), -128, 127)
        if rounding_mode == 2:
            codes = np.where(quotient == 0, quotient, codes + 0.0)  # -0 + 0 is 0
        return np.where(special, blocks, codes * step)
    dtype, greatest = _ELEMENTS[element_dtype]
    step = np.ldexp(1.0, exponent - greatest)
    elements = narrow(np.where(special, 0, blocks) / step, dtype).astype(np.float64) + 0.0
    return np.where(special, blocks, elements * step)
