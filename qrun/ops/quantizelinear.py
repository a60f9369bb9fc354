"""QuantizeLinear and DequantizeLinear of ai.onnx and com.microsoft, and DynamicQuantizeLinear."""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from qrun.declare.frozen import frozen, replace
from qrun.ir.types import DTYPES, FLOAT8, is_narrow, type_name
from qrun.ops._cast import output_types
from qrun.ops._complete import KnownScale
from qrun.ops._context import assumed_axis, note_scale, same_type
from qrun.ops._granularity import Grain, check_no_zero_point, grain
from qrun.ops._op import Array, Context, Real, contrib_op, op, refuse
from qrun.ops._quantize import BLOCK, Counts, narrow, quantize_dynamically, round_codes
from qrun.ops._signature import Attributes
from qrun.ops.lowering.integers import quantize_stages
from qrun.ops.lowering.kernel import LoweringContext, NativeKernel, decline_error, require_type, staged_kernel
from qrun.ops.lowering.pointwise import dequantize_kernel, quantize_kernel

SINGLE, DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
_QUANTIZE = "QuantizeLinear"
_Y_NAMES = ("y_scale", "y_zero_point")
_HALF, _BRAIN = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
_SCALE8 = np.dtype(ml_dtypes.float8_e8m0fnu)
_PRECISIONS = (SINGLE, _HALF, _BRAIN, DOUBLE)


@frozen
class QuantizeAttributes(Attributes):
    axis: int = 1
    block_size: int = 0
    output_dtype: int = 0
    precision: int = 0
    saturate: int = 1


@op(_QUANTIZE, since=10, form="pointwise", computes=Real("Identity", {"y": "axis"}))
def quantize_linear(
    x: Array,
    y_scale: Array,
    y_zero_point: Array | None = None,
    *,
    attributes: QuantizeAttributes,
    ctx: Context,
) -> Array:
    """Quantize a tensor of any shape with the given scales and zero points.

    x float32, float16, bfloat16 or int32; y_scale scalar, [n] along axis, or x's shape with axis divided by
    block_size; y_zero_point of y_scale's shape. y: y_zero_point's type, else output_dtype, else uint8.

        q = x / y_scale                              rounded once to the division type
        y = saturate(RNE(q) + y_zero_point)          integers
        y = narrow(q)                                float8: Cast's tables; zero points must be 0
        y = narrow(q + y_zero_point)                 float6, float4: the same, so -0 becomes 0 where one is given

    Division type, to which x and y_scale are converted first: `precision`; else y_scale's type. Before opset 23:
    float32, or the half type that x has. If x or y_scale is int32 or float8e8m0 the quotient is computed as a real
    number. ``ort`` divides in float32 before opset 23; ``onnx-ref`` without `precision` in the type numpy promotes to.
    NaN becomes the smallest integer, or the largest float6 or float4.

    Raises OperatorError for shapes, types and attributes that the page forbids.
    """
    return _quantize(x, y_scale, y_zero_point, attributes, ctx)


@contrib_op(
    _QUANTIZE,
    computes=Real("Identity", {"y": "axis"}),
    form="pointwise",
    types={
        "T1": ("float16 float", "x y_scale"),
        "T2": ("int8 uint8 int16 uint16 int4 uint4", "y"),
    },
)
def ms_quantize_linear(
    x: Array,
    y_scale: Array,
    y_zero_point: Array | None = None,
    *,
    axis: int | None = None,
    ctx: Context,
) -> Array:
    """QuantizeLinear-13 for more types. A 1-D y_scale without axis means axis 1, as observed in onnxruntime."""
    attributes = QuantizeAttributes(assumed_axis(axis, y_scale, "y_scale", ctx))
    return _quantize(x, y_scale, y_zero_point, attributes, ctx, contrib=True)


def _quantize(
    x: Array,
    scale: Array,
    zero: Array | None,
    attributes: QuantizeAttributes,
    ctx: Context,
    contrib: bool = False,
) -> Array:
    """Quantize x and observe what saturates; `contrib`: as com.microsoft.QuantizeLinear."""
    target, division, form = _check(x, scale, zero, attributes, contrib, ctx)
    zero = None if target in FLOAT8 else zero
    y = np.empty(x.shape, target)
    counts = Counts(ctx.observing)
    buffer = np.empty(min(BLOCK, x.size), DOUBLE if division == DOUBLE else SINGLE)
    for part, out, s, z in form.views(np.ascontiguousarray(x).reshape(x.shape), y, scale, zero):
        q = buffer[: part.size].reshape(part.shape)
        divide(part, s, division, q)
        if is_narrow(target):
            counts.narrow(q, target)
            if zero is not None:
                np.add(q, 0, out=q)
            out[...] = narrow(q, target, bool(attributes.saturate))
        else:
            round_codes(q, None if zero is None else z, out, counts)
    counts.report(ctx, x)
    return y


def _check(
    x: Array, scale: Array, zero: Array | None, attributes: QuantizeAttributes, contrib: bool, ctx: Context
) -> tuple[np.dtype[Any], np.dtype[Any], Grain]:
    """Refuse what does not fit, and observe scales; returns y's type, the division's, and how scales cover x."""
    target = output_type(zero, attributes.output_dtype, ctx)
    division = _division(x.dtype, scale.dtype, attributes.precision, ctx, contrib)
    form = grain(x, scale, zero, attributes.axis, attributes.block_size, _QUANTIZE, ctx.version, _Y_NAMES)
    if zero is not None and is_narrow(target):
        why = "implementations ignore or add it; no page says where it would be rounded."
        check_no_zero_point(zero, "y_zero_point", why)
    note_scale(ctx, scale, "y_scale")
    return target, division, form


def _lower(site: LoweringContext) -> NativeKernel:
    x, scale, zero = site.inputs
    contrib, attributes = site.ctx.version == 1, QuantizeAttributes.of(site.attributes)
    if contrib:
        attributes = replace(attributes, axis=assumed_axis(site.attributes["axis"], scale, "y_scale", site.ctx))
    target, division, form = _check(x, scale, zero, attributes, contrib, site.ctx)
    require_type(division == SINGLE, division, "division in {}")
    return quantize_kernel(site, x, scale, zero, target, form)


quantize_linear.native(_lower)
ms_quantize_linear.native(_lower)


def output_type(zero: Array | None, output_dtype: int, ctx: Context) -> np.dtype[Any]:
    """The type of y: the zero point's, else output_dtype, else uint8; refuses both when they differ."""
    given = DTYPES.get(output_dtype)
    _, allowed = output_types(_QUANTIZE, ctx)
    if output_dtype and (given is None or (allowed is not None and given not in allowed)):
        raise refuse(
            f"output_dtype {output_dtype} is not a type that QuantizeLinear writes",
            "output_dtype",
            ", ".join(sorted(type_name(t) for t in allowed or ())),
            type_name(given) if given is not None else str(output_dtype),
            code="QR204",
        )
    if zero is None:
        return given if given is not None else np.dtype(np.uint8)
    if given is not None:
        same_type(zero, given, "y_zero_point", "output_dtype")
    return zero.dtype


def _division(x: np.dtype[Any], scale: np.dtype[Any], precision: int, ctx: Context, contrib: bool) -> np.dtype[Any]:
    """The type that the quotient is rounded to; float64 means the real quotient, which it separates from every tie."""
    if precision and (precision not in DTYPES or DTYPES[precision] not in _PRECISIONS):
        raise refuse(
            f"precision {precision} is not a type to divide in",
            "precision",
            ", ".join(type_name(t) for t in _PRECISIONS),
            type_name(DTYPES[precision]) if precision in DTYPES else str(precision),
            code="QR204",
        )
    if ctx.arith == "ort" and ctx.version < 23:
        return SINGLE
    if precision:
        return DTYPES[precision]
    if np.dtype(np.int32) in (x, scale) or scale == _SCALE8:
        return DOUBLE
    if ctx.arith == "onnx-ref":
        return x if x == scale else SINGLE
    if ctx.version >= 23 or contrib:
        return scale
    return x


def divide(x: Array, scale: Array, division: np.dtype[Any], out: Array) -> None:
    """x / scale, operands and quotient in the division type, written as float32 (or float64 for that type)."""
    with np.errstate(all="ignore"):
        if division == SINGLE and x.dtype == scale.dtype == SINGLE:
            np.divide(x, scale, out=out)
        elif division in (SINGLE, DOUBLE):
            np.divide(x.astype(division), scale.astype(division), out=out)
        else:
            a, b = (v.astype(division).astype(SINGLE) for v in (x, scale))
            np.divide(a, b, out=out)
            out[...] = out.astype(division)


_DEQUANTIZE = "DequantizeLinear"
_X_NAMES = ("x_scale", "x_zero_point")


@frozen
class DequantizeAttributes(Attributes):
    axis: int = 1
    block_size: int = 0
    output_dtype: int = 0


@op(_DEQUANTIZE, since=10, form="pointwise", computes=Real("Identity", {"x": "axis"}))
def dequantize_linear(
    x: Array,
    x_scale: Array,
    x_zero_point: Array | None = None,
    *,
    attributes: DequantizeAttributes,
    ctx: Context,
) -> Array:
    """Dequantize a tensor of any shape with the given scales and zero points.

    x 8-, 16-, 4- or 2-bit integers, int32, float8, float6 or float4; x_scale scalar, [n] along axis, or x's shape
    with axis divided by block_size; x_zero_point of x's type and x_scale's shape. y: output_dtype, else x_scale's type.

        y = (x - x_zero_point) * x_scale

    The difference is exact, then float32; the product is float32; then it is converted to y's type. (The page asks
    for a product in y's type, which in float16 would overflow where no implementation does.) Zero points of float8,
    float6 and float4 must be 0.

    Raises OperatorError for shapes, types and attributes that the page forbids.
    """
    return _dequantize(x, x_scale, x_zero_point, attributes, ctx)


@contrib_op(
    _DEQUANTIZE,
    computes=Real("Identity", {"x": "axis"}),
    form="pointwise",
    types={
        "T1": ("int8 uint8 int16 uint16 int32 int4 uint4", "x"),
        "T2": ("float16 float", "x_scale"),
    },
)
def ms_dequantize_linear(
    x: Array,
    x_scale: Array,
    x_zero_point: Array | None = None,
    *,
    axis: int | None = None,
    ctx: Context,
) -> Array:
    """DequantizeLinear-13 for more types. A 1-D x_scale without axis means axis 1, as observed in onnxruntime."""
    attributes = DequantizeAttributes(assumed_axis(axis, x_scale, "x_scale", ctx))
    return _dequantize(x, x_scale, x_zero_point, attributes, ctx)


def _dequantize(x: Array, scale: Array, zero: Array | None, attributes: DequantizeAttributes, ctx: Context) -> Array:
    """(x - zero) * scale in the output's type."""
    target, form = _check_dequantize(x, scale, zero, attributes, ctx)
    zero = None if is_narrow(x.dtype) else zero
    ctx.claim(x.shape, target.itemsize)
    y = np.empty(x.shape, target)
    buffer = np.empty(0 if target == SINGLE else min(BLOCK, x.size), SINGLE)
    zero = None if zero is None or not zero.any() else zero
    with np.errstate(all="ignore"):
        for part, out, s, z in form.views(np.ascontiguousarray(x).reshape(x.shape), y, scale.astype(SINGLE), zero):
            product = out if target == SINGLE else buffer[: part.size].reshape(part.shape)
            np.multiply(_difference(part, None if zero is None else z), s, out=product)
            if product is not out:
                out[...] = product.astype(target)
    return y


def _check_dequantize(
    x: Array, scale: Array, zero: Array | None, attributes: DequantizeAttributes, ctx: Context
) -> tuple[np.dtype[Any], Grain]:
    """Refuse what does not fit, and observe scales; returns y's type, and how scales cover x."""
    target = _output_type(scale.dtype, attributes.output_dtype, ctx)
    same_type(zero, x.dtype, "x_zero_point", "x")
    form = grain(
        x,
        scale,
        zero,
        attributes.axis,
        attributes.block_size,
        _DEQUANTIZE,
        ctx.version,
        _X_NAMES,
    )
    if zero is not None and is_narrow(x.dtype):
        check_no_zero_point(zero, "x_zero_point", "the zero point of float8, float6 and float4 is not used.")
    note_scale(ctx, scale, "x_scale")
    return target, form


def _lower_dequantize(site: LoweringContext) -> NativeKernel:
    """The native kernel of DequantizeLinear."""
    x, scale, zero = site.inputs
    attributes = DequantizeAttributes.of(site.attributes)
    attributes = replace(attributes, axis=assumed_axis(attributes.axis, scale, "x_scale", site.ctx))
    target, form = _check_dequantize(x, scale, zero, attributes, site.ctx)
    site.ctx.claim(x.shape, target.itemsize)
    return dequantize_kernel(site, x, scale, zero, target, form)


dequantize_linear.native(_lower_dequantize)
ms_dequantize_linear.native(_lower_dequantize)


def _difference(x: Array, zero: Array | None) -> Array:
    """x - zero rounded once to float32."""
    if x.dtype == np.int32:
        return np.asarray((x if zero is None else x.astype(np.int64) - zero).astype(SINGLE))
    values = x.astype(SINGLE) if x.dtype.kind != "V" else _float_table(x.dtype)[x.view(np.uint8)]
    if zero is not None:
        values -= zero.astype(SINGLE)
    return values


@cache
def _float_table(dtype: np.dtype[Any]) -> Array:
    """The float32 value of every byte of an 8-bit or narrower type."""
    return np.arange(256, dtype=np.uint8).view(dtype).astype(SINGLE)


def _output_type(scale: np.dtype[Any], output_dtype: int, ctx: Context) -> np.dtype[Any]:
    """The type of y: output_dtype, or x_scale's. Raises OperatorError."""
    given = DTYPES.get(output_dtype) if output_dtype else scale
    _, allowed = output_types(_DEQUANTIZE, ctx)
    if given is None or (allowed is not None and given not in allowed):
        missing = not output_dtype
        raise refuse(
            f"y cannot be {type_name(given)}" if given is not None else f"output_dtype {output_dtype} is not a type",
            "x_scale" if missing else "output_dtype",
            f"output_dtype, one of {_type_names(allowed)}" if missing else _type_names(allowed),
            type_name(given) if given is not None else str(output_dtype),
            why=f"{_QUANTIZE}: without output_dtype, y has x_scale's type." if missing else "",
            code="QR204",
        )
    return given


def _type_names(types: frozenset[np.dtype[Any]] | None) -> str:
    """The names of types, in words."""
    return ", ".join(sorted(type_name(t) for t in types or ()))


@op("DynamicQuantizeLinear", since=11)
def dynamic_quantize_linear(x: Array, *, ctx: Context) -> tuple[Array, Array, Array]:
    """Quantize float32 x to uint8 with parameters computed from its own range.

    Outputs: y, y_scale and y_zero_point (both scalars).

        y_scale = (max(0, max x) - min(0, min x)) / 255       y_zero_point = RNE(clip(0 - min(0, min x) / y_scale))
        y = saturate(RNE(x / y_scale) + y_zero_point)

    Exact: each step is one float32 operation, as in the function body of the operator's page. If y_scale would be 0, it
    is 1 and the zero point is 0: x is then empty, all zeros, or so small that its range / 255 underflows. NaN and -inf
    are refused; inf produces an infinite scale. ``ort``: the same steps, but -inf produces an infinite scale and zero
    point 255. NaN is refused there too: onnxruntime's result depends on its position and on the CPU, because it hides
    earlier elements in its vector lane. ``onnx-ref``: the same, but the scale is 1/255 for zeros only.
    """
    ctx.claim(x.shape)
    made = quantize_dynamically(x, ctx.arith)
    note_scale(ctx, made[1], "y_scale")
    return made


@dynamic_quantize_linear.native
def _lower_dynamic(site: LoweringContext) -> NativeKernel:
    if site.ctx.arith == "onnx-ref":
        raise decline_error("no native kernels for onnx-ref arithmetic")
    stages = quantize_stages(site.engine, site.inputs[0], (0, 1, 2))
    return staged_kernel(site, stages, [stages[index].operation for index in (0, -1)], KnownScale())
