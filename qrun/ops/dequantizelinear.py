"""DequantizeLinear of ai.onnx and com.microsoft."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen, replace
from qrun.ir.types import DTYPES, is_narrow, type_name
from qrun.ops._cast import output_types
from qrun.ops._context import assumed_axis, note_scale, same_type
from qrun.ops._granularity import Grain, check_no_zero_point, grain
from qrun.ops._op import Array, Context, Real, contrib_op, op, refuse
from qrun.ops._quantize import BLOCK
from qrun.ops._signature import Attributes
from qrun.ops.lowering.kernel import LoweringContext, NativeKernel
from qrun.ops.lowering.quantize import dequantize_kernel

_OP = "DequantizeLinear"
_NAMES = ("x_scale", "x_zero_point")
_F32 = np.dtype(np.float32)


@frozen
class DequantizeAttributes(Attributes):
    axis: int = 1
    block_size: int = 0
    output_dtype: int = 0


@op(_OP, since=10, form="pointwise", computes=Real("Identity", {"x": "axis"}))
def dequantize_linear(
    x: Array,
    x_scale: Array,
    x_zero_point: Array | None = None,
    *,
    attributes: DequantizeAttributes,
    ctx: Context,
) -> Array:
    """Dequantize a tensor of any shape.

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
    _OP,
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
    """DequantizeLinear-13 for more types. A 1-D x_scale without axis means axis 1, as in onnxruntime;
    this is observed."""
    attributes = DequantizeAttributes(assumed_axis(axis, x_scale, "x_scale", ctx))
    return _dequantize(x, x_scale, x_zero_point, attributes, ctx)


def _dequantize(x: Array, scale: Array, zero: Array | None, attributes: DequantizeAttributes, ctx: Context) -> Array:
    target, form = _check(x, scale, zero, attributes, ctx)
    zero = None if is_narrow(x.dtype) else zero
    ctx.claim(x.shape, target.itemsize)
    y = np.empty(x.shape, target)
    buffer = np.empty(0 if target == _F32 else min(BLOCK, x.size), _F32)
    zero = None if zero is None or not zero.any() else zero
    with np.errstate(all="ignore"):
        for part, out, s, z in form.views(np.ascontiguousarray(x).reshape(x.shape), y, scale.astype(_F32), zero):
            product = out if target == _F32 else buffer[: part.size].reshape(part.shape)
            np.multiply(_difference(part, None if zero is None else z), s, out=product)
            if product is not out:
                out[...] = product.astype(target)
    return y


def _check(
    x: Array, scale: Array, zero: Array | None, attributes: DequantizeAttributes, ctx: Context
) -> tuple[np.dtype[Any], Grain]:
    """Refuse what does not fit, and observe scales: y's type, and how scales cover x."""
    target = _output_type(scale.dtype, attributes.output_dtype, ctx)
    same_type(zero, x.dtype, "x_zero_point", "x")
    form = grain(x, scale, zero, attributes.axis, attributes.block_size, _OP, ctx.version, _NAMES)
    if zero is not None and is_narrow(x.dtype):
        check_no_zero_point(zero, "x_zero_point", "the zero point of float8, float6 and float4 is not used.")
    note_scale(ctx, scale, "x_scale")
    return target, form


def _lower(site: LoweringContext) -> NativeKernel:
    x, scale, zero = site.inputs
    attributes = DequantizeAttributes.of(site.attributes)
    attributes = replace(attributes, axis=assumed_axis(attributes.axis, scale, "x_scale", site.ctx))
    target, form = _check(x, scale, zero, attributes, site.ctx)
    site.ctx.claim(x.shape, target.itemsize)
    return dequantize_kernel(site, x, scale, zero, target, form)


dequantize_linear.native(_lower)
ms_dequantize_linear.native(_lower)


def _difference(x: Array, zero: Array | None) -> Array:
    """x - zero rounded once to float32."""
    if x.dtype == np.int32:
        return np.asarray((x if zero is None else x.astype(np.int64) - zero).astype(_F32))
    values = x.astype(_F32) if x.dtype.kind != "V" else _table(x.dtype)[x.view(np.uint8)]
    if zero is not None:
        values -= zero.astype(_F32)
    return values


@cache
def _table(dtype: np.dtype[Any]) -> Array:
    """float32 of every byte of an 8-bit or narrower type."""
    return np.arange(256, dtype=np.uint8).view(dtype).astype(_F32)


def _output_type(scale: np.dtype[Any], output_dtype: int, ctx: Context) -> np.dtype[Any]:
    given = DTYPES.get(output_dtype) if output_dtype else scale
    _, allowed = output_types(_OP, ctx)
    if given is None or (allowed is not None and given not in allowed):
        missing = not output_dtype
        raise refuse(
            f"y cannot be {type_name(given)}" if given is not None else f"output_dtype {output_dtype} is not a type",
            "x_scale" if missing else "output_dtype",
            f"output_dtype, one of {_names(allowed)}" if missing else _names(allowed),
            type_name(given) if given is not None else str(output_dtype),
            why=f"{_OP}: without output_dtype, y has x_scale's type." if missing else "",
            code="QR204",
        )
    return given


def _names(types: frozenset[np.dtype[Any]] | None) -> str:
    return ", ".join(sorted(type_name(t) for t in types or ()))
