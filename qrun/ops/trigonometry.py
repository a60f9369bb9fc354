"""Sin, Cos, Tan, Sinh, Cosh, and the inverses of these and Tanh: in float64, rounded once; float64 stays float64."""

from __future__ import annotations

import numpy as np

from qrun.ir import Array
from qrun.ops._float import unary
from qrun.ops._op import op


@op("Sin", since=7, form="pointwise")
def sin(input: Array) -> Array:
    """The sine of radians; NaN at infinities. Source: ONNX operators, Sin-22."""
    return unary(np.sin, input)


@op("Cos", since=7, form="pointwise")
def cos(input: Array) -> Array:
    """The cosine of radians; NaN at infinities. Source: ONNX operators, Cos-22."""
    return unary(np.cos, input)


@op("Tan", since=7, form="pointwise")
def tan(input: Array) -> Array:
    """The tangent of radians; NaN at infinities. Source: ONNX operators, Tan-22."""
    return unary(np.tan, input)


@op("Asin", since=7, form="pointwise")
def asin(input: Array) -> Array:
    """The angle in [-pi/2, pi/2] with this sine; NaN outside [-1, 1]. Source: ONNX operators, Asin-22."""
    return unary(np.arcsin, input)


@op("Acos", since=7, form="pointwise")
def acos(input: Array) -> Array:
    """The angle in [0, pi] with this cosine; NaN outside [-1, 1]. Source: ONNX operators, Acos-22."""
    return unary(np.arccos, input)


@op("Atan", since=7, form="pointwise")
def atan(input: Array) -> Array:
    """The angle in [-pi/2, pi/2] with this tangent. Source: ONNX operators, Atan-22."""
    return unary(np.arctan, input)


@op("Sinh", since=9, form="pointwise")
def sinh(input: Array) -> Array:
    """(e**x - e**-x) / 2. Source: ONNX operators, Sinh-22."""
    return unary(np.sinh, input)


@op("Cosh", since=9, form="pointwise")
def cosh(input: Array) -> Array:
    """(e**x + e**-x) / 2. Source: ONNX operators, Cosh-22."""
    return unary(np.cosh, input)


@op("Asinh", since=9, form="pointwise")
def asinh(input: Array) -> Array:
    """The number with this Sinh. Source: ONNX operators, Asinh-22."""
    return unary(np.arcsinh, input)


@op("Acosh", since=9, form="pointwise")
def acosh(input: Array) -> Array:
    """The number >= 0 with this Cosh; NaN below 1. Source: ONNX operators, Acosh-22."""
    return unary(np.arccosh, input)


@op("Atanh", since=9, form="pointwise")
def atanh(input: Array) -> Array:
    """The number with this Tanh; NaN outside [-1, 1]. Source: ONNX operators, Atanh-22."""
    return unary(np.arctanh, input)
