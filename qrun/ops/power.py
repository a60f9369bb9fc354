"""Pow, Mod and PRelu."""

from __future__ import annotations

from typing import Any

import numpy as np

from qrun.ir import Array
from qrun.ir.types import shape_text
from qrun.ops._cast import convert
from qrun.ops._context import Context, refuse
from qrun.ops._elementwise import binary, observe_zeros
from qrun.ops._float import is_integer, narrow, widen
from qrun.ops._native import LoweringContext, NativeKernel, declined
from qrun.ops._native_float32 import function_kernel
from qrun.ops._op import op


@op("Pow", since=7, form="broadcast")
def pow_(X: Array, Y: Array, *, ctx: Context) -> Array:
    """X ** Y in X's type, with numpy's broadcasting. Y may be of another type since version 12.

    X floating point: in float64 and rounded once; float64 stays float64; NaN for a fraction of a negative number.
    Both integers: exact and wrapping; for a negative Y the fraction is truncated toward zero, and 0 ** Y, which the
    page leaves open, is 0 and observed. X integer, Y floating point: in float64, then as Cast does.
    Raises OperatorError for shapes that do not broadcast. Source: ONNX operators, Pow-15.
    """
    names = ("X", "Y")
    if not is_integer(X.dtype):
        return binary(lambda x, y: narrow(_power(widen(x), widen(y)), X.dtype), X, Y, ctx, names, 8)
    if not is_integer(Y.dtype):
        real = binary(lambda x, y: _power(widen(x), widen(y)), X, Y, ctx, names, 8)
        return convert(real, X.dtype, True, "up", ctx)
    if ctx.observing and Y.size and Y.min() < 0:
        observe_zeros(X, "X", ctx)
    return binary(_integer_power, X, Y, ctx, names, 8)


@pow_.native
def _lower_pow(site: LoweringContext) -> NativeKernel:
    x, y = site.inputs
    site.require_constant(1)
    name = {2.0: "square", 3.0: "cube"}.get(float(y.reshape(-1)[0])) if y.size == 1 and y.ndim <= x.ndim else None
    if name is None:
        raise declined("neither a square nor a cube")
    return function_kernel(site, name)


def _power(x: Array, y: Array) -> Any:
    if y.size == 1 and y.ndim <= x.ndim and y.reshape(()) == 2:
        return np.square(x)
    return np.power(x, y)


def _integer_power(x: Array, y: Array) -> Array:
    """Modulo 2**64 first: its low bits are those of the narrower type."""
    exponent = np.where(y < 0, np.array(0, y.dtype), y).astype(np.uint64)
    power = np.power(x.astype(np.uint64), exponent).astype(x.dtype)
    odd = (y & np.array(1, y.dtype)) != 0
    unit = np.where(x == -1, np.where(odd, -1, 1), x == 1).astype(x.dtype)
    return np.where(y < 0, unit, power)


@op("Mod", since=10, form="broadcast")
def mod(A: Array, B: Array, *, fmod: int = 0, ctx: Context) -> Array:
    """A - floor(A / B) * B, of B's sign; with fmod A - trunc(A / B) * B, of A's sign. With numpy's broadcasting.

    Integers: exact; where B is 0, which the page leaves open, the result is 0 and is observed.
    Floating point: fmod is exact; floor, since version 28, is computed in float64 and rounded once. Of zeros, infinities
    and NaN as the page says.
    Raises OperatorError for floating point without fmod before version 28, for an fmod other than 0 and 1, and for
    shapes that do not broadcast.
    Source: ONNX operators, Mod-28.
    """
    if fmod not in (0, 1):
        raise refuse("fmod is neither 0 nor 1", "fmod", "0, 1", fmod, code="QR204")
    function = np.fmod if fmod else np.remainder
    if is_integer(A.dtype):
        observe_zeros(B, "B", ctx)
        return binary(function, A, B, ctx)
    if not fmod and ctx.version < 28:
        raise refuse(
            "floating point needs fmod",
            "fmod",
            "1 for floating point",
            "0",
            why=f"Mod-{ctx.version}: with fmod = 0 the inputs are integers; opset 28 lifts this.",
            code="QR204",
        )
    return binary(lambda a, b: narrow(function(widen(a), widen(b)), A.dtype), A, B, ctx, itemsize=8)


@op("PRelu", since=7, form="broadcast")
def p_relu(X: Array, slope: Array, *, ctx: Context) -> Array:
    """slope * X where X < 0, else X; slope broadcasts to X. Floating point: correctly rounded. Integers wrap.

    Raises OperatorError for a slope that does not broadcast to X's shape. Source: ONNX operators, PRelu-16.
    """
    made = binary(lambda x, s: np.where(x < 0, s * x, x), X, slope, ctx, ("X", "slope"))
    if made.shape != X.shape:
        raise refuse(
            "slope does not broadcast to X",
            "slope",
            f"a shape that broadcasts to {shape_text(X.shape)}",
            slope,
            code="QR208",
        )
    return made
