"""DequantizeLinear of ai.onnx and com.microsoft."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from qrun.ir.schema import OPSETS, schema
from qrun.ir.types import DTYPES, is_narrow, type_name
from qrun.ops._granularity import Grain, grain
from qrun.ops._native import LoweringContext, NativeKernel
from qrun.ops._native_quantize import dequantize_kernel
from qrun.ops._op import Array, Context, Real, op, refuse
from qrun.ops._quantize import BLOCK, assumed_axis, note_scale, same_type

_OP = "DequantizeLinear"
_NAMES = ("x_scale", "x_zero_point")
_F32 = np.dtype(np.float32)


@op(_OP, since=10, form="pointwise", computes=Real("Identity", {"x": "axis"}))
def dequantize_linear(
    x: Array,
    x_scale: Array,
    x_zero_point: Array | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
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
    return _dequantize(x, x_scale, x_zero_point, axis, ctx, block_size, output_dtype)


@op(
    _OP,
    since=1,
    domain="com.microsoft",
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
    """DequantizeLinear-13 for more types. A 1-D x_scale without axis means axis 1, as in onnxruntime; this is observed."""
    return _dequantize(x, x_scale, x_zero_point, assumed_axis(axis, x_scale, "x_scale", ctx), ctx)


def _dequantize(
    x: Array,
    scale: Array,
    zero: Array | None,
    axis: int | None,
    ctx: Context,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Array:
    target, form = _check(x, scale, zero, axis, (block_size, output_dtype), ctx)
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
    x: Array, scale: Array, zero: Array | None, axis: int | None, numbers: Sequence[int], ctx: Context
) -> tuple[np.dtype[Any], Grain]:
    """Refuse what does not fit, and observe scales: y's type, and how scales cover x.

    numbers: block_size, output_dtype.
    """
    block_size, output_dtype = numbers
    target = _output_type(scale.dtype, output_dtype, ctx)
    same_type(zero, x.dtype, "x_zero_point", "x")
    form = grain(x, scale, zero, axis, block_size, _OP, ctx.version, _NAMES)
    if zero is not None and is_narrow(x.dtype):
        _refuse_zero_point(zero)
    note_scale(ctx, scale, "x_scale")
    return target, form


def _lower(site: LoweringContext) -> NativeKernel:
    x, scale, zero = site.inputs
    a = site.attributes
    axis = a.get("axis")
    axis = assumed_axis(axis, scale, "x_scale", site.ctx) if "axis" in a else axis
    target, form = _check(x, scale, zero, axis, [a.get(name, 0) for name in ("block_size", "output_dtype")], site.ctx)
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
    known = schema("", _OP, min(ctx.version, OPSETS[-1]))
    allowed = known.outputs[0].types if known else None
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


def _refuse_zero_point(zero: Array) -> None:
    bad = ~(zero.astype(_F32) == 0)
    if bad.any():
        raise refuse(
            f"x_zero_point of {type_name(zero.dtype)} is not 0",
            "x_zero_point",
            "0",
            str(zero.reshape(-1)[int(np.argmax(bad))]),
            why="the zero point of float8, float6 and float4 is not used.",
            fix="use a zero point of 0",
        )
