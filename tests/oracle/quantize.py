"""Exact oracle of quantization: Python integers and fractions, one element at a time, written from the specification.

A real number is a Fraction; infinities, NaN and division by zero are Python floats with IEEE 754's answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np

from oracle.cast import cast

Real = Fraction | float

RANGES = {
    "uint8": (0, 255), "int8": (-128, 127), "uint16": (0, 65535), "int16": (-32768, 32767),
    "uint4": (0, 15), "int4": (-8, 7), "uint2": (0, 3), "int2": (-2, 1), "int32": (-(2**31), 2**31 - 1),
}  # fmt: skip


def real(value: Any) -> Real:
    """What a numpy scalar stands for; -0.0 stays a float so that its sign is kept."""
    number = float(value)
    return number if not math.isfinite(number) or (number == 0 and math.copysign(1, number) < 0) else Fraction(number)


def integer(value: Any) -> int:
    return int(value)


def to_float(value: Real, name: str) -> Real:
    """Rounded to float32, float16 or bfloat16, overflowing to infinity."""
    return value if isinstance(value, float) else real(cast(value, name, False))


def divide(a: Real, b: Real) -> Real:
    if isinstance(a, float) or isinstance(b, float) or not b:
        with np.errstate(all="ignore"):
            quotient = float(np.float64(_signed(a)) / np.float64(_signed(b)))
        return quotient if not math.isfinite(quotient) or quotient == 0 else Fraction(a) / Fraction(b)
    return -0.0 if not a and b < 0 else a / b


def multiply(a: Real, b: Real) -> Real:
    if isinstance(a, float) or isinstance(b, float):
        with np.errstate(all="ignore"):
            return float(np.float64(_signed(a)) * np.float64(_signed(b)))
    return a * b


def _signed(value: Real) -> float:
    """A float of the same kind and sign: only used where one side is zero or not finite."""
    if isinstance(value, float):
        return value
    return 0.0 if not value else math.copysign(1.0, value)


def saturate(q: Real, zero: int, limits: tuple[int, int]) -> int:
    """Round, then add the zero point, then saturate; NaN gives the smallest value."""
    low, high = limits
    if isinstance(q, float):
        if math.isnan(q):
            return low
        if math.isinf(q):
            return high if q > 0 else low
        q = Fraction(0)
    return min(max(round(q) + zero, low), high)


def requantize(acc: int | Real, factors: Sequence[Real], y_scale: Real) -> Real:
    """acc * factor * ... / y_scale."""
    value: Real = Fraction(acc) if isinstance(acc, int) else acc
    for f in factors:
        value = multiply(value, f)
    return divide(value, y_scale)


def narrow(q: Real, name: str, saturating: bool = True) -> float:
    """The float8, float6 or float4 value of a quotient; oracle/answers.py notes what is rounded here."""
    return cast(q, name, saturating)


def parameter(array: np.ndarray, shape: Sequence[int], axis: int, block: int) -> Callable[[tuple[int, ...]], Any]:
    """The element of a scale or zero point that belongs to an index of the tensor."""
    if array.size == 1 and not (block and array.ndim):
        return lambda index: array.reshape(-1)[0]
    if block:
        place = axis % len(shape)
        return lambda index: array[tuple(i // block if d == place else i for d, i in enumerate(index))]
    return lambda index: array[index[axis]]


def indices(shape: Sequence[int]) -> Any:
    return product(*map(range, shape))


def quantize_linear(
    x: np.ndarray,
    scale: np.ndarray,
    zero: np.ndarray | None,
    target: np.dtype,
    *,
    axis: int = 1,
    block: int = 0,
    saturating: bool = True,
    division: str = "float32",
) -> np.ndarray:
    """division: float32, float16 or bfloat16, or ``real`` for the exact quotient."""
    y = np.zeros(x.shape, target)
    scale_at = parameter(scale, x.shape, axis, block)
    zero_at = parameter(zero, x.shape, axis, block) if zero is not None else None
    for index in indices(x.shape):
        a, b = real(x[index]), real(scale_at(index))
        if division == "real":
            q = divide(a, b)
        else:
            q = to_float(divide(to_float(a, division), to_float(b, division)), division)
        if target.name in RANGES:
            y[index] = saturate(q, int(zero_at(index)) if zero_at else 0, RANGES[target.name])
        else:
            if zero_at and not target.name.startswith("float8") and not q:
                q = Fraction(0)
            y[index] = narrow(q, target.name, saturating)
    return y


def dequantize_linear(
    x: np.ndarray,
    scale: np.ndarray,
    zero: np.ndarray | None,
    target: np.dtype,
    *,
    axis: int = 1,
    block: int = 0,
) -> np.ndarray:
    y = np.zeros(x.shape, target)
    scale_at = parameter(scale, x.shape, axis, block)
    zero_at = parameter(zero, x.shape, axis, block) if zero is not None else None
    for index in indices(x.shape):
        a = real(x[index])
        if zero_at is not None and x.dtype.name in RANGES:
            a = Fraction(int(x[index]) - int(zero_at(index)))
        product_ = to_float(multiply(to_float(a, "float32"), to_float(real(scale_at(index)), "float32")), "float32")
        with np.errstate(over="ignore"):
            y[index] = float(to_float(product_, target.name))
    return y


def dynamic_quantize_linear(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each step rounded to float32. All zeros or empty: scale 1, zero point 0."""
    values = [real(v) for v in x.reshape(-1)]
    top, bottom = max([Fraction(0), *values]), min([Fraction(0), *values])
    span = to_float(Fraction(top) - Fraction(bottom), "float32")
    scale = to_float(divide(span, Fraction(255)), "float32")
    if not scale:
        scale, zero = Fraction(1), 0
    else:
        start = to_float(divide(Fraction(bottom), scale), "float32")
        zero = saturate(-start, 0, (0, 255))
    y = quantize_linear(x, np.array(float(scale), np.float32), np.array(zero, np.uint8), np.dtype(np.uint8))
    return y, np.array(float(scale), np.float32), np.array(zero, np.uint8)
